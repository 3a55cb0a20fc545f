//! NUMA nodes on which the kernel makes the pages of a file.

use std::ffi::c_ulong;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Number of nodes that the kernel knows at most (`CONFIG_NODES_SHIFT` of 10).
const NODES_MAX: usize = 1_024;
/// Mode of `mbind`: on any of these nodes, else on others (`MPOL_PREFERRED_MANY` of `linux/mempolicy.h`, Linux 5.15).
const PREFERRED_MANY: c_ulong = 5;
/// Mode of `mbind`: on this node, else on others (`MPOL_PREFERRED`).
const PREFERRED: c_ulong = 1;
const WORD: usize = c_ulong::BITS as usize;
/// A set of nodes, in the kernel's form.
type Nodes = [c_ulong; NODES_MAX / WORD];

/// Has the kernel make the pages of a file's first `bytes` on these nodes as long as they have memory left. Pages that are there stay where they are. The
/// policy is the file's, whichever process makes a page.
///
/// # Errors
/// Returns an error if the kernel has no such nodes (`EINVAL`), none at all (`ENOSYS`), or forbids it (`EPERM`), as container runtimes do without
/// `CAP_SYS_NICE`.
pub(crate) fn prefer(file: BorrowedFd<'_>, bytes: u64, nodes: &[u32]) -> io::Result<()> {
    let mapping = Mapping::new(file, bytes)?;
    let many = mapping.set_policy(PREFERRED_MANY, &set_of(nodes)?);
    match many {
        // Before Linux 5.15 there was one.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            mapping.set_policy(PREFERRED, &set_of(&nodes[..nodes.len().min(1)])?)
        }
        set => set,
    }
}

fn set_of(nodes: &[u32]) -> io::Result<Nodes> {
    let mut set: Nodes = [0; NODES_MAX / WORD];
    for node in nodes {
        let node = usize::try_from(*node).unwrap_or(usize::MAX);
        let word = set.get_mut(node / WORD);
        *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % WORD);
    }
    Ok(set)
}

/// The beginning of a file, mapped for the lifetime of this value and never read.
#[derive(Debug)]
struct Mapping {
    at: NonNull<std::ffi::c_void>,
    bytes: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let none = ProtFlags::empty();
        // SAFETY: a new mapping, wherever the kernel puts it, which nothing can read.
        let at = unsafe { mmap(std::ptr::null_mut(), bytes, none, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, bytes })
    }

    fn set_policy(&self, mode: c_ulong, nodes: &Nodes) -> io::Result<()> {
        let flags: c_ulong = 0;
        // The kernel reads one bit less than stated.
        let bits = NODES_MAX + 1;
        let at = self.at.as_ptr();
        let set = nodes.as_ptr();
        // SAFETY: the mapping of `new`, and a set of at least that many bits less one, which the kernel reads.
        let done =
            unsafe { libc::syscall(libc::SYS_mbind, at, self.bytes, mode, set, bits, flags) };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which nothing uses any more.
        let _any = unsafe { munmap(self.at.as_ptr(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::os::fd::AsFd as _;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    const BYTES: u64 = 1 << 20;
    /// Flag of `get_mempolicy` (`MPOL_F_ADDR` of `linux/mempolicy.h`).
    const OF_ADDRESS: c_ulong = 2;

    /// Returns the policy of a mapping and its set of nodes, as the kernel states them.
    fn policy(mapping: &Mapping) -> io::Result<(c_ulong, Nodes)> {
        let (mut mode, mut nodes): (c_int, Nodes) = (0, [0; NODES_MAX / WORD]);
        let (bits, of_address): (usize, c_ulong) = (NODES_MAX, OF_ADDRESS);
        let at = mapping.at.as_ptr();
        // SAFETY: places for a mode and for a set of that many bits, which the kernel writes to.
        let done = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut mode,
                nodes.as_mut_ptr(),
                bits,
                at,
                of_address,
            )
        };
        match done {
            0 => Ok((c_ulong::try_from(mode).unwrap(), nodes)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    #[test]
    fn a_file_keeps_the_nodes_that_are_preferred_for_it() {
        let file = memfd_create("weir-numa", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES).unwrap();
        let set = prefer(file.as_fd(), BYTES, &[0]);
        let seen = Mapping::new(file.as_fd(), BYTES).and_then(|mapping| policy(&mapping));
        match set {
            Ok(()) => {
                let (mode, nodes) = seen.unwrap();
                assert!([PREFERRED_MANY, PREFERRED].contains(&mode), "{mode}");
                assert_eq!((nodes[0], nodes[1]), (1, 0));
            }
            // A kernel without NUMA, or a container which may not place memory, or not on this node.
            Err(error) => {
                let known = [libc::ENOSYS, libc::EPERM, libc::EINVAL];
                assert!(
                    error
                        .raw_os_error()
                        .is_some_and(|code| known.contains(&code)),
                    "{error}"
                );
            }
        }
    }

    #[test]
    fn nodes_that_no_kernel_has_are_refused() {
        let file = memfd_create("weir-numa", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES).unwrap();
        for node in [u32::try_from(NODES_MAX).unwrap(), u32::MAX] {
            let error = prefer(file.as_fd(), BYTES, &[node]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
