//! Checkpoints of processes (`cuCheckpointProcess…`), carried out by the server: it blocks the process and moves its
//! device memory to the host's account.

use softgpu_wire::message::{CheckpointStep, Kind, Message};

use crate::driver::driver;
use crate::error::{Error, Result};
use crate::pointer::{In, Out};

/// `CUcheckpointLockArgs`: the timeout in ms, and 56 bytes that must be zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LockArguments {
    timeout_ms: u32,
    reserved: [u32; 15],
}

fn step(pid: i32, step: CheckpointStep, timeout_ms: u32) -> Result<u64> {
    let driver = driver()?;
    let pid = u64::try_from(pid).map_err(|_| Error::INVALID_VALUE)?;
    if pid == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let words = [pid, step as u64, u64::from(timeout_ms)];
    Ok(driver
        .request_apart(&Message::new(Kind::Checkpoint, &words))?
        .words[0])
}

/// Implements `cuCheckpointProcessGetState`: returns the state of a process, as a `CUprocessState`.
pub(crate) fn state(pid: i32, out: Out<u32>) -> Result {
    let state = step(pid, CheckpointStep::State, 0)?;
    out.put(u32::try_from(state).unwrap_or(u32::MAX))
}

/// Implements `cuCheckpointProcessLock`: blocks a process at its next call; with a timeout of 0, waits without limit.
pub(crate) fn lock(pid: i32, arguments: In<LockArguments>) -> Result {
    let timeout_ms = if arguments.is_null() {
        0
    } else {
        let arguments = arguments.get()?;
        if arguments.reserved != [0; 15] {
            return Err(Error::INVALID_VALUE);
        }
        arguments.timeout_ms
    };
    step(pid, CheckpointStep::Lock, timeout_ms).map(|_| ())
}

/// Implements `cuCheckpointProcessCheckpoint`: moves a locked process's device memory to the host.
pub(crate) fn checkpoint(pid: i32) -> Result {
    step(pid, CheckpointStep::Checkpoint, 0).map(|_| ())
}

/// Implements `cuCheckpointProcessRestore`: moves the memory back to the same GPU; another GPU cannot be chosen.
pub(crate) fn restore(pid: i32) -> Result {
    step(pid, CheckpointStep::Restore, 0).map(|_| ())
}

/// Implements `cuCheckpointProcessUnlock`: lets a locked process continue.
pub(crate) fn unlock(pid: i32) -> Result {
    step(pid, CheckpointStep::Unlock, 0).map(|_| ())
}
