//! One program of a kind in a run directory: a lock of the kernel's, which ends with the process.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tokio::sync::oneshot;

use crate::run::RunError;

/// A program of the same kind ends within this time, or it runs there. One that was killed while it started a program leaves
/// the lock to that until it has begun.
pub(crate) const LOCK_SPAN: Duration = Duration::from_secs(1);

/// Locks a file of the run directory until the descriptor is closed.
///
/// # Errors
/// Another program has it for longer than `span`, or the file cannot be made.
pub(crate) async fn lock(
    directory: &Path,
    name: &str,
    program: &'static str,
    span: Duration,
) -> Result<OwnedFd, RunError> {
    let path = directory.join(name);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600));
    let wrong = |errno: rustix::io::Errno| RunError::File {
        path: path.clone(),
        error: errno.into(),
    };
    let file = opened.map_err(wrong)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        Err(errno) => return Err(wrong(errno)),
    }
    // The kernel waits for a lock without end: a thread does, and one that has it too late gives it back.
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new()
        .name("lock".to_owned())
        .spawn(move || {
            let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
            let _too_late = tell.send(locked.map(|()| file));
        })?;
    match tokio::time::timeout(span, told).await {
        Ok(Ok(locked)) => locked.map_err(wrong),
        Ok(Err(_)) | Err(_) => Err(RunError::Running {
            program,
            directory: directory.to_path_buf(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_has_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let lock = |span| lock(directory.path(), "agent.lock", "agent", span);
        let one = lock(Duration::ZERO).await.unwrap();
        let why = lock(Duration::ZERO).await.unwrap_err();
        assert!(matches!(why, RunError::Running { .. }), "{why}");
        let other = lock(Duration::from_secs(60));
        tokio::join!(biased; other, async { drop(one) }).0.unwrap();
    }
}
