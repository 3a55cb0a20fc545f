//! Host memory for copies of device memory, which the agent makes and gives away.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::numa;

/// Size of a huge page, in bytes. Elsewhere than on processors with this size none is made.
const HUGE: u64 = 2 << 20;
/// Size of the parts in which they are requested, in bytes: once the kernel has none for one, the rest is made of small pages.
const PART: u64 = 32 * HUGE;

/// Host memory in a file.
#[derive(Debug)]
pub struct HostMemory {
    /// Memory file, which cannot change its size.
    pub file: OwnedFd,
    /// Why its pages may be on any NUMA node although some are preferred: the kernel has no such nodes, or does not permit to place memory.
    pub unplaced: Option<io::Error>,
}

/// Creates a memory file of this size, in bytes, whose pages are there: huge ones as far as the kernel has any (Linux 6.1), which take it a third of
/// the time, and on the NUMA nodes `nodes` as long as these have memory left. They count for the calling process. Without `nodes` the kernel chooses.
///
/// # Errors
/// Returns an error when file descriptors or memory are exhausted, or the kernel has no memory files.
pub fn host_memory(bytes: u64, nodes: &[u32]) -> io::Result<HostMemory> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("weir-host-memory", flags)?;
    ftruncate(&file, bytes)?;
    let unplaced = match nodes {
        [] => None,
        nodes => numa::prefer(file.as_fd(), bytes, nodes).err(),
    };
    let (mut begin, end) = (0, bytes / HUGE * HUGE);
    while begin < end && make_huge(file.as_fd(), begin, PART.min(end - begin)) {
        begin += PART;
    }
    fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(HostMemory { file, unplaced })
}

/// Makes huge pages for a range of a file, and returns whether there may be more. The range begins and ends at multiples of [`HUGE`].
fn make_huge(file: BorrowedFd<'_>, begin: u64, bytes: u64) -> bool {
    // The kernel makes a huge page of a range only where there is a page already.
    let are_begun = (0..bytes / HUGE)
        .map(|number| fallocate(file, FallocateFlags::empty(), begin + number * HUGE, 1))
        .all(|begun| begun.is_ok());
    are_begun && Mapping::new(file, begin, bytes).is_some_and(|mapping| mapping.collapse())
}

/// A range of a file, mapped at a multiple of [`HUGE`] for the lifetime of this value.
#[derive(Debug)]
struct Mapping {
    /// Reserved addresses, and their size in bytes.
    reserved: NonNull<std::ffi::c_void>,
    reserved_bytes: usize,
    at: usize,
    bytes: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, begin: u64, bytes: u64) -> Option<Self> {
        let (bytes, huge) = (usize::try_from(bytes).ok()?, usize::try_from(HUGE).ok()?);
        let reserved_bytes = bytes.checked_add(huge)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                reserved_bytes,
                ProtFlags::empty(),
                flags,
            )
        };
        let reserved = NonNull::new(reserved.ok()?)?;
        let at = reserved.as_ptr().addr().next_multiple_of(huge);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: it replaces addresses that were reserved just now, of which nothing else knows.
        let mapped = unsafe {
            mmap(
                reserved.as_ptr().with_addr(at),
                bytes,
                protection,
                flags,
                file,
                begin,
            )
        };
        // After a failure the kernel may have given the addresses away: they are not unmapped.
        mapped.is_ok().then_some(Self {
            reserved,
            reserved_bytes,
            at,
            bytes,
        })
    }

    /// Has the kernel replace the range's pages by huge ones. Returns whether it has, or could not for a reason that may not last.
    fn collapse(&self) -> bool {
        let at = self.reserved.as_ptr().with_addr(self.at);
        // SAFETY: the mapping of `new`, to which there are no references; its contents stay the same.
        let collapsed = unsafe { libc::madvise(at, self.bytes, libc::MADV_COLLAPSE) };
        collapsed == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the addresses of `new`, whose mappings nothing uses any more.
        let _any = unsafe { munmap(self.reserved.as_ptr(), self.reserved_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{fcntl_get_seals, fstat};

    use super::*;

    #[test]
    fn all_pages_of_a_file_are_there_whatever_its_size() {
        for bytes in [4_096, HUGE - 4_096, HUGE, 5 * HUGE + 8_192, PART + 3 * HUGE] {
            let HostMemory { file, unplaced } = host_memory(bytes, &[]).unwrap();
            assert!(unplaced.is_none());
            let status = fstat(&file).unwrap();
            assert_eq!(u64::try_from(status.st_size).unwrap(), bytes);
            // In units of 512 bytes.
            assert!(u64::try_from(status.st_blocks).unwrap() * 512 >= bytes);
            assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::SHRINK));
            let mut last = [1; 16];
            let at = bytes - last.len() as u64;
            let read = rustix::io::pread(&file, &mut last, at).unwrap();
            assert_eq!((read, last), (16, [0; 16]));
        }
    }
}
