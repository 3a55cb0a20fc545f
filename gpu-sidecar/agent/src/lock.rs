//! Exclusive use of a run directory by one program of each kind: a kernel lock (`flock`), which ends with the process.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use tokio::sync::oneshot;

use crate::run::RunError;

/// Time within which a predecessor has to release the lock; after it, that program counts as running. A child process which was
/// just being spawned when the predecessor was killed keeps the lock until it has executed its program.
pub(crate) const LOCK_SPAN: Duration = Duration::from_secs(1);

/// Locks the file `name` of the run directory; the lock lasts until the returned descriptor is closed.
///
/// # Errors
/// Returns [`RunError::Running`] when another program holds the lock for longer than `span`, and [`RunError::File`] when the
/// file cannot be created or locked.
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
    // A blocking `flock` has no timeout, so a thread calls it; a lock acquired after the timeout is released again.
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("lock".to_owned())
        .spawn(move || {
            let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
            let _too_late = sender.send(locked.map(|()| file));
        })?;
    match tokio::time::timeout(span, receiver).await {
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
    async fn a_directory_is_locked_by_one_program_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let lock = |span| lock(directory.path(), "agent.lock", "agent", span);
        let one = lock(Duration::ZERO).await.unwrap();
        let why = lock(Duration::ZERO).await.unwrap_err();
        assert!(matches!(why, RunError::Running { .. }), "{why}");
        let other = lock(Duration::from_secs(60));
        tokio::join!(biased; other, async { drop(one) }).0.unwrap();
    }
}
