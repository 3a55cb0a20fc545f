//! File descriptors behind tickets: exported by one process, copied by another.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Once;

use super::TicketContents;
use crate::driver::{self, Code, INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::memory::physical::{self, Block, POSIX_FD, Part};

/// Largest number of handles of an allocation, enough for 16 TiB.
const PARTS_MAX: u64 = 65_536;

/// Returns a random number, which cannot be guessed.
pub(super) fn random() -> Result<u64, Code> {
    let mut bytes = [0_u8; 8];
    // SAFETY: the buffer has this length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        Ok(u64::from_le_bytes(bytes))
    } else {
        Err(NOT_SUPPORTED)
    }
}

/// Exports physical memory as a file descriptor.
pub(super) fn export(part: &Part) -> Result<OwnedFd, Code> {
    let mut file: c_int = -1;
    let place = (&raw mut file).cast();
    // SAFETY: a handle of this library; `file` is valid for writes.
    let code = unsafe {
        driver::cuMemExportToShareableHandle(place, part.handle, POSIX_FD.cast_signed(), 0)
    };
    if code != SUCCESS || file < 0 {
        return Err(NOT_SUPPORTED);
    }
    // SAFETY: an open descriptor, which executed programs must not inherit.
    let _set = unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: opened just now by the driver, and owned by no other value.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Writes the list: the id, the number of descriptors, and each descriptor with its size in bytes.
pub(super) fn write_list(id: u64, block: &Block, files: &[OwnedFd]) -> Option<File> {
    // SAFETY: a NUL-terminated string.
    let list = unsafe { libc::memfd_create(c"weir-memory-ticket".as_ptr(), libc::MFD_CLOEXEC) };
    if list < 0 {
        return None;
    }
    // SAFETY: opened just now.
    let mut list = unsafe { File::from_raw_fd(list) };
    let mut words = vec![id, files.len() as u64];
    for (file, part) in files.iter().zip(&block.parts) {
        words.push(u64::try_from(file.as_raw_fd()).ok()?);
        words.push(part.bytes);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    list.write_all(&bytes).ok()?;
    Some(list)
}

/// Permits other processes of the user to copy descriptors of this one, where the Yama module requires permission.
pub(super) fn allow_others() {
    static ALLOWED: Once = Once::new();
    ALLOWED.call_once(|| {
        // SAFETY: the call passes numbers only. It fails without Yama, which then requires nothing.
        let _allowed = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    });
}

/// Imports the memory behind a ticket as handles of this process.
pub(super) fn import_all(contents: TicketContents) -> Result<Vec<Part>, Code> {
    let pid = libc::pid_t::try_from(contents.pid).map_err(|_| INVALID_VALUE)?;
    // SAFETY: the call passes numbers only.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // Fails if the exporting process, and thereby the memory, is gone.
    let process = owned(process).ok_or(INVALID_VALUE)?;
    let list = File::from(copy(&process, contents.list)?);
    let word = |at: u64| {
        let mut bytes = [0; 8];
        let read = list.read_exact_at(&mut bytes, at * 8);
        read.map(|()| u64::from_le_bytes(bytes))
            .map_err(|_| INVALID_VALUE)
    };
    // Another file has this number now, because the allocation was freed.
    if word(0)? != contents.id {
        return Err(INVALID_VALUE);
    }
    let mut parts = Vec::new();
    for number in 0..word(1)?.min(PARTS_MAX) {
        let (file, bytes) = (word(2 + 2 * number)?, word(3 + 2 * number)?);
        let imported = copy(&process, file).and_then(|file| import(&file, bytes));
        match imported {
            Ok(part) => parts.push(part),
            Err(code) => {
                physical::release_all(&parts);
                return Err(code);
            }
        }
    }
    Ok(parts)
}

fn import(file: &OwnedFd, bytes: u64) -> Result<Part, Code> {
    let mut handle = 0;
    let number = usize::try_from(file.as_raw_fd()).unwrap_or(usize::MAX);
    let number = std::ptr::without_provenance_mut::<c_void>(number);
    // SAFETY: an open file; `handle` is valid for writes.
    let code = unsafe {
        driver::cuMemImportFromShareableHandle(&raw mut handle, number, POSIX_FD.cast_signed())
    };
    if code == SUCCESS {
        Ok(Part { handle, bytes })
    } else {
        Err(code)
    }
}

fn owned(file: libc::c_long) -> Option<OwnedFd> {
    let file = RawFd::try_from(file).ok().filter(|file| *file >= 0)?;
    // SAFETY: opened just now by the kernel.
    Some(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Copies a descriptor from another process.
fn copy(process: &OwnedFd, number: u64) -> Result<OwnedFd, Code> {
    let number = c_int::try_from(number).map_err(|_| INVALID_VALUE)?;
    // SAFETY: an open process descriptor, and numbers.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    if let Some(copy) = owned(copy) {
        return Ok(copy);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EBADF | libc::ESRCH) => Err(INVALID_VALUE),
        _ => {
            static REPORTED: Once = Once::new();
            REPORTED.call_once(|| {
                crate::log::line(
                    "cuIpcOpenMemHandle is refused: the system does not permit this process to copy descriptors of the one that \
                     created the handle (pidfd_getfd requires the same user and container, and no security profile against it)",
                );
            });
            Err(NOT_SUPPORTED)
        }
    }
}
