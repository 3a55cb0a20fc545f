//! Record of a process's calls: which functions of the driver each of its threads called, in order, and what they returned.
//!
//! `WEIR_SOFTGPU_CALLS` names a folder; each process appends to the file of its process ID there. A line is written when a call
//! returns: thread ID, name and result, separated by spaces. `tests/runtime/run` compares such records of a program with and
//! without the preload library.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// Variable with the folder of the records.
const VARIABLE: &str = "WEIR_SOFTGPU_CALLS";
/// Value of [`WRITER`] in a process which keeps no record.
const NONE: u32 = u32::MAX;

/// Process ID of the process which has opened [`FILE`]; 0: no process yet. A forked process opens a file of its own.
static WRITER: AtomicU32 = AtomicU32::new(0);
static FILE: Mutex<Option<File>> = Mutex::new(None);

/// Appends a call to the record, if there is one.
#[inline]
pub(crate) fn record(name: &str, result: u32) {
    if WRITER.load(Ordering::Relaxed) != NONE {
        write(name, result);
    }
}

#[cold]
fn write(name: &str, result: u32) {
    let writer = WRITER.load(Ordering::Relaxed);
    let is_own = writer == process::id();
    let mut file = if is_own || writer == 0 {
        FILE.lock().unwrap_or_else(PoisonError::into_inner)
    } else {
        // In the child of a fork nothing releases a lock that another thread of the parent has held.
        match FILE.try_lock() {
            Ok(file) => file,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        }
    };
    if !is_own {
        *file = open();
        let writer = if file.is_some() { process::id() } else { NONE };
        WRITER.store(writer, Ordering::Relaxed);
    }
    if let Some(file) = &mut *file {
        // SAFETY: takes no arguments, and cannot fail.
        let thread = unsafe { libc::gettid() };
        // One write a line, so that nothing is lost when the process is killed.
        let line = format!("{thread} {name} {result}\n");
        let _unrecorded = file.write_all(line.as_bytes());
    }
}

fn open() -> Option<File> {
    let folder = PathBuf::from(env::var_os(VARIABLE)?);
    let path = folder.join(process::id().to_string());
    let opened = OpenOptions::new().create(true).append(true).open(&path);
    opened
        .inspect_err(|error| {
            crate::driver::report(&format!("{VARIABLE}: {}: {error}", path.display()));
        })
        .ok()
}
