//! The descriptors behind tickets: given out by one process, copied by another.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Once;

use super::Place64;
use crate::driver::{self, Code, INVALID_VALUE, NOT_SUPPORTED, SUCCESS};
use crate::memory::physical::{self, Block, POSIX_FD, Part};

/// No allocation has more handles than this: 16 TiB.
const PARTS_MAX: u64 = 65_536;

/// A number that nobody guesses.
pub(super) fn random() -> Result<u64, Code> {
    let mut bytes = [0_u8; 8];
    // SAFETY: as many bytes as there are.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        Ok(u64::from_le_bytes(bytes))
    } else {
        Err(NOT_SUPPORTED)
    }
}

/// A descriptor of memory of ours.
pub(super) fn export(part: &Part) -> Result<OwnedFd, Code> {
    let mut file: c_int = -1;
    let place = (&raw mut file).cast();
    // SAFETY: a handle of ours; the driver writes the number of a file.
    let code = unsafe {
        driver::cuMemExportToShareableHandle(place, part.handle, POSIX_FD.cast_signed(), 0)
    };
    if code != SUCCESS || file < 0 {
        return Err(NOT_SUPPORTED);
    }
    // SAFETY: an open file, for a program that is executed from here to do without.
    let _set = unsafe { libc::fcntl(file, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: the driver has opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The id, how many descriptors, and each with its bytes.
pub(super) fn write_list(id: u64, block: &Block, files: &[OwnedFd]) -> Option<File> {
    // SAFETY: a text that ends.
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

/// Lets other processes of the user copy descriptors of this one, where the Yama module asks for that.
pub(super) fn allow_others() {
    static ALLOWED: Once = Once::new();
    ALLOWED.call_once(|| {
        // SAFETY: numbers alone. Refused where there is no Yama, which then asks for nothing.
        let _allowed = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    });
}

/// The memory behind a ticket, as handles of this process.
pub(super) fn import_all(place: Place64) -> Result<Vec<Part>, Code> {
    let pid = libc::pid_t::try_from(place.pid).map_err(|_| INVALID_VALUE)?;
    // SAFETY: numbers alone.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // Its maker is gone, and so is the memory.
    let process = owned(process).ok_or(INVALID_VALUE)?;
    let list = File::from(copy(&process, place.list)?);
    let word = |at: u64| {
        let mut bytes = [0; 8];
        let read = list.read_exact_at(&mut bytes, at * 8);
        read.map(|()| u64::from_le_bytes(bytes))
            .map_err(|_| INVALID_VALUE)
    };
    // Another file has the number now: the allocation was freed.
    if word(0)? != place.id {
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
    // SAFETY: an open file; the driver writes a handle.
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
    // SAFETY: the kernel has opened it for us just now.
    Some(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Copies a descriptor out of another process.
fn copy(process: &OwnedFd, number: u64) -> Result<OwnedFd, Code> {
    let number = c_int::try_from(number).map_err(|_| INVALID_VALUE)?;
    // SAFETY: an open descriptor of a process, and numbers.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    if let Some(copy) = owned(copy) {
        return Ok(copy);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EBADF | libc::ESRCH) => Err(INVALID_VALUE),
        _ => {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                crate::log::line(
                    "cuIpcOpenMemHandle is refused: the system does not let this process copy descriptors of the one that \
                     made the handle (pidfd_getfd; both need the same user and container, without a profile against it)",
                );
            });
            Err(NOT_SUPPORTED)
        }
    }
}
