//! The folder of a software GPU, and how its server is found or started.
//!
//! | name in the folder | contents |
//! |---|---|
//! | `softgpu.toml` | its configuration ([`crate::config`]) |
//! | `server.sock` | the server's listening socket |
//! | `server.lock` | lock held by a running server, and by a process that starts one |
//! | `ledger`, `ledger.old` | resources held over time, by process |
//! | `libcuda.so.1`, `libnvidia-ml.so.1`, `nvidia-cuda-mps-control`, `softgpu-server` | the stand-ins, if installed here |
//!
//! The variable `WEIR_SOFTGPU` names the folder; without it, it is the folder of the stand-in itself.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, chmodat, flock, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use device::Span;

use crate::clock;

/// Environment variable that names the folder.
pub const VARIABLE: &str = "WEIR_SOFTGPU";
/// Name of the configuration file.
pub const CONFIG: &str = "softgpu.toml";
/// Name of the server's lock file.
pub const LOCK: &str = "server.lock";
/// Name of the server's socket.
pub const SOCKET: &str = "server.sock";
/// Name of the ledger.
pub const LEDGER: &str = "ledger";
/// Name of the previous ledger, kept when a new one is begun.
pub const LEDGER_OLD: &str = "ledger.old";
/// Name of the server's program.
pub const SERVER: &str = "softgpu-server";

/// Largest time from starting a server until it must listen.
const START_MAX: Duration = Duration::from_secs(10);

/// Interval at which a starting server is polled.
const LOOK_EVERY: Span = Span::from_millis(1);

/// A failure to reach or start the server.
#[derive(Debug, thiserror::Error)]
pub enum SoftGpuDirError {
    /// The folder, or a file in it, cannot be opened.
    #[error("{path}: {error}")]
    Path {
        /// Path of the folder or file.
        path: PathBuf,
        error: Errno,
    },
    /// The server's program cannot be started.
    #[error("cannot start {program}: {error}")]
    Start {
        program: PathBuf,
        error: std::io::Error,
    },
    /// The server was started but does not listen.
    #[error("{program} was started but did not listen in {folder} within {} s", START_MAX.as_secs())]
    Silent {
        program: PathBuf,
        /// Folder in which the server was to listen.
        folder: PathBuf,
    },
    /// The server ended before it listened.
    #[error("{program} ended at once: {why}")]
    Ended {
        program: PathBuf,
        /// Standard error of the program, trimmed.
        why: String,
    },
}

/// Returns the folder of a stand-in installed in `own`: the one that [`VARIABLE`] names, otherwise `own`.
#[must_use]
pub fn locate(own: Option<&Path>) -> Option<PathBuf> {
    match std::env::var_os(VARIABLE) {
        Some(folder) if !folder.is_empty() => Some(PathBuf::from(folder)),
        _ => own.map(Path::to_path_buf),
    }
}

fn path_error(path: PathBuf) -> impl FnOnce(Errno) -> SoftGpuDirError {
    move |error| SoftGpuDirError::Path { path, error }
}

/// Opens the folder itself; its socket is then reachable through `/proc/self/fd`, however long the path is.
fn open_folder(folder: &Path) -> Result<OwnedFd, SoftGpuDirError> {
    open(
        folder,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(path_error(folder.to_path_buf()))
}

fn socket_address(folder: &OwnedFd) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd()).as_str())
}

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
}

/// Creates the server's listening socket in a folder. The caller must hold the lock.
///
/// # Errors
/// Fails when the socket cannot be created.
pub fn listen_in(folder: &Path) -> Result<OwnedFd, SoftGpuDirError> {
    let at = open_folder(folder)?;
    let wrong = || path_error(folder.join(SOCKET));
    let address = socket_address(&at).map_err(wrong())?;
    match rustix::fs::unlink(folder.join(SOCKET)) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(wrong()(error)),
    }
    let socket = new_socket().map_err(wrong())?;
    bind(&socket, &address).map_err(wrong())?;
    // Access follows from access to the folder, as with a GPU's device file.
    let anyone = Mode::from_raw_mode(0o666);
    chmodat(&at, SOCKET, anyone, AtFlags::empty()).map_err(wrong())?;
    listen(&socket, 1024).map_err(wrong())?;
    Ok(socket)
}

/// Connects to the server of a folder; returns `None` if no server listens.
///
/// # Errors
/// Fails when the folder cannot be opened, or the connection fails for a reason other than the lack of a listener.
pub fn connect_in(folder: &Path) -> Result<Option<OwnedFd>, SoftGpuDirError> {
    let at = open_folder(folder)?;
    let wrong = || path_error(folder.join(SOCKET));
    let address = socket_address(&at).map_err(wrong())?;
    let socket = new_socket().map_err(wrong())?;
    loop {
        match connect(&socket, &address) {
            Ok(()) => return Ok(Some(socket)),
            Err(Errno::INTR) => {}
            Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
            Err(error) => return Err(wrong()(error)),
        }
    }
}

/// Takes the lock of a folder; returns `None` if another process holds it and `wait` is not set.
///
/// # Errors
/// Fails when the lock file cannot be created.
pub fn lock(folder: &Path, wait: bool) -> Result<Option<OwnedFd>, SoftGpuDirError> {
    let path = folder.join(LOCK);
    let file = open(
        &path,
        OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )
    .map_err(path_error(path.clone()))?;
    let operation = if wait {
        FlockOperation::LockExclusive
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(path_error(path)(error)),
        }
    }
}

/// Connects to the server of a folder. If none listens, starts `program`, once for all concurrent callers; `prepare`
/// may change how it is started.
///
/// # Errors
/// Fails when no server listens and none can be started.
pub fn connect_or_start(
    folder: &Path,
    program: &Path,
    prepare: impl Fn(&mut Command),
) -> Result<OwnedFd, SoftGpuDirError> {
    let begin = Instant::now();
    loop {
        if let Some(socket) = connect_in(folder)? {
            return Ok(socket);
        }
        if begin.elapsed() > START_MAX {
            return Err(SoftGpuDirError::Silent {
                program: program.to_path_buf(),
                folder: folder.to_path_buf(),
            });
        }
        // A server holds its lock while it runs: acquiring it proves that no server runs.
        match lock(folder, false)? {
            Some(lock) => {
                drop(lock);
                start(folder, program, &prepare, begin)?;
            }
            None => clock::pause(LOOK_EVERY),
        }
    }
}

/// Starts a server and blocks until it, or another one, listens. Two concurrent callers may start two servers, of which
/// one finds the lock taken and ends.
fn start(
    folder: &Path,
    program: &Path,
    prepare: &impl Fn(&mut Command),
    begin: Instant,
) -> Result<(), SoftGpuDirError> {
    let wrong = |error| SoftGpuDirError::Start {
        program: program.to_path_buf(),
        error,
    };
    // The server may outlive this process's current folder.
    let folder = &std::path::absolute(folder).map_err(wrong)?;
    let mut command = Command::new(program);
    command
        .arg("--folder")
        .arg(folder)
        .current_dir("/")
        .arg("--detach")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // A library preloaded into this program is not meant for the server.
        .env_remove("LD_PRELOAD");
    prepare(&mut command);
    let mut child = command.spawn().map_err(wrong)?;
    // The started process ends once the server, its child, listens, or when it has failed and reported why.
    loop {
        let status = match child.try_wait() {
            // This program ignores its children's exits, or reaps all of them elsewhere: only a listening server
            // counts.
            Err(error) if error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => {
                if connect_in(folder)?.is_some() {
                    return Ok(());
                }
                None
            }
            status => status.map_err(wrong)?,
        };
        if let Some(status) = status {
            if status.success() {
                return Ok(());
            }
            let mut why = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _read = std::io::Read::read_to_string(&mut stderr, &mut why);
            }
            return Err(SoftGpuDirError::Ended {
                program: program.to_path_buf(),
                why: why.trim().to_owned(),
            });
        }
        if begin.elapsed() > START_MAX {
            let _killed = child.kill();
            let _waited = child.wait();
            return Err(SoftGpuDirError::Silent {
                program: program.to_path_buf(),
                folder: folder.to_path_buf(),
            });
        }
        clock::pause(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Held by tests that start a program or check that a closed file is released: between fork and exec, a child has a
    /// copy of every file this process had open.
    static STARTING: Mutex<()> = Mutex::new(());

    #[test]
    fn a_listener_is_found_however_long_the_path_is() {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("long".repeat(40));
        std::fs::create_dir(&folder).unwrap();
        assert!(connect_in(&folder).unwrap().is_none());
        let lock_held = lock(&folder, false).unwrap();
        assert!(lock_held.is_some());
        assert!(lock(&folder, false).unwrap().is_none());
        let listener = listen_in(&folder).unwrap();
        assert!(connect_in(&folder).unwrap().is_some());
        drop(listener);
        assert!(connect_in(&folder).unwrap().is_none());
        // A socket left by a killed server does not prevent a new one.
        assert!(listen_in(&folder).is_ok());
    }

    #[test]
    fn errors_name_a_program_that_fails_or_is_missing() {
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let missing = connect_or_start(
            folder.path(),
            Path::new("/nonexistent/softgpu-server"),
            |_| {},
        );
        let error = missing.unwrap_err().to_string();
        assert!(
            error.contains("cannot start /nonexistent/softgpu-server"),
            "{error}"
        );
        let failing = connect_or_start(folder.path(), Path::new("/bin/false"), |_| {});
        assert!(failing.unwrap_err().to_string().contains("ended at once"));
        let gone = connect_in(Path::new("/nonexistent")).unwrap_err();
        assert!(gone.to_string().starts_with("/nonexistent: "), "{gone}");
    }
}
