//! The two pages that the agent shares with each process (contracts §8): a memory file each, mapped, and sealed so that neither
//! side can shrink it while the other has it mapped. Host memory for copies, which the agent makes as well ([`host_memory()`]).
//!
//! Pages contain only atomics, so a reference to a page that another process writes to is sound; each reader validates the
//! values.
//!
//! Deliberately absent: the pages' layout, which is [`protocol::page`]'s. Start reading in [`Page`].

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use protocol::page::{Facts, Orders, PAGE_BYTES};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

mod host_memory;
mod numa;

pub use host_memory::{HostMemory, host_memory};

mod sealed {
    pub trait Contents: Sync {
        const NAME: &'static str;
        fn new() -> Self;
    }
}
use sealed::Contents;

impl Contents for Orders {
    const NAME: &'static str = "weir-orders";
    fn new() -> Self {
        Self::new()
    }
}

impl Contents for Facts {
    const NAME: &'static str = "weir-facts";
    fn new() -> Self {
        Self::new()
    }
}

/// A page, mapped for the lifetime of this value. Its file can be sent to the other process.
#[derive(Debug)]
pub struct Page<T: Contents> {
    mapped: NonNull<T>,
    file: OwnedFd,
    contents: PhantomData<T>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and contains only atomics.
unsafe impl<T: Contents> Send for Page<T> {}
// SAFETY: as above.
unsafe impl<T: Contents> Sync for Page<T> {}

impl<T: Contents> Page<T> {
    /// Creates a page with initial contents.
    ///
    /// # Errors
    /// Returns an error when file descriptors or memory are exhausted, or the kernel has no memory files.
    pub fn new() -> io::Result<Self> {
        const { assert!(size_of::<T>() <= PAGE_BYTES && align_of::<T>() <= PAGE_BYTES) };
        let file = memfd_create(T::NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, PAGE_BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // SAFETY: a new mapping, wherever the kernel puts it, of a file that cannot shrink.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        let mapped = NonNull::new(mapped.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: large enough, page-aligned, and not shared with another process yet.
        unsafe { mapped.write(T::new()) };
        Ok(Self {
            mapped,
            file,
            contents: PhantomData,
        })
    }

    /// Returns the file, for a process that may write to it.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the file opened read-only, for a process that must not write to it.
    ///
    /// # Errors
    /// Returns an error when `/proc` is missing or file descriptors are exhausted.
    pub fn read_only(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        File::open(path).map(OwnedFd::from)
    }
}

impl<T: Contents> Deref for Page<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped and initialised from `new` until `drop`.
        unsafe { self.mapped.as_ref() }
    }
}

impl<T: Contents> Drop for Page<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; references to it end with this value.
        let _any = unsafe { munmap(self.mapped.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// A page of the other side, mapped for the lifetime of this value.
#[derive(Debug)]
pub struct View<T: Contents> {
    mapped: NonNull<T>,
}

// SAFETY: as of `Page`.
unsafe impl<T: Contents> Send for View<T> {}
// SAFETY: as of `Page`.
unsafe impl<T: Contents> Sync for View<T> {}

impl<T: Contents> View<T> {
    fn new(file: BorrowedFd<'_>, protection: ProtFlags) -> io::Result<Self> {
        let is_sealed = fcntl_get_seals(file)?.contains(SealFlags::SHRINK);
        if !is_sealed || u64::try_from(fstat(file)?.st_size) != Ok(PAGE_BYTES as u64) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // SAFETY: a new mapping, wherever the kernel puts it, of a file that is large enough and cannot shrink.
        let mapped = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let mapped = NonNull::new(mapped.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { mapped })
    }
}

/// Maps the *orders* received from an agent, read-only: a store would end the process.
///
/// # Errors
/// Returns an error when the file is not a sealed page, or cannot be mapped.
pub fn open_orders(file: BorrowedFd<'_>) -> io::Result<View<Orders>> {
    View::new(file, ProtFlags::READ)
}

/// Maps the *facts* received from an agent.
///
/// # Errors
/// Returns an error when the file is not a sealed page, or cannot be mapped.
pub fn open_facts(file: BorrowedFd<'_>) -> io::Result<View<Facts>> {
    View::new(file, ProtFlags::READ | ProtFlags::WRITE)
}

impl<T: Contents> Deref for View<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped from `new` until `drop`; any bytes are a valid value, since pages contain only numbers.
        unsafe { self.mapped.as_ref() }
    }
}

impl<T: Contents> Drop for View<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; references to it end with this value.
        let _any = unsafe { munmap(self.mapped.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn values_written_to_a_page_are_in_its_file() {
        let page = Page::<Facts>::new().unwrap();
        page.launches.0.store(7, Ordering::Relaxed);
        let file = File::from(page.file().try_clone_to_owned().unwrap());
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 64).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 7);
    }

    #[test]
    fn a_page_cannot_be_shrunk_nor_written_read_only() {
        let page = Page::<Orders>::new().unwrap();
        assert!(ftruncate(page.file(), 0).is_err());
        let other = page.read_only().unwrap();
        assert!(rustix::io::write(&other, b"x").is_err());
        assert!(ftruncate(&other, 0).is_err());
        assert_eq!(page.layout(), protocol::LAYOUT);
    }

    #[test]
    fn both_sides_share_the_values_of_a_page() {
        let (orders, facts) = (
            Page::<Orders>::new().unwrap(),
            Page::<Facts>::new().unwrap(),
        );
        let read_only = orders.read_only().unwrap();
        let (theirs, own) = (
            open_orders(read_only.as_fd()).unwrap(),
            open_facts(facts.file()).unwrap(),
        );
        orders.gate.set(4);
        own.push(1, 2);
        let mut stretches = Vec::new();
        assert_eq!(
            (theirs.gate.epoch(), facts.stretches(0, &mut stretches)),
            (4, 1)
        );
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert!(open_facts(other.as_fd()).is_err());
    }
}
