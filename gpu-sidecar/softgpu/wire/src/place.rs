//! The folder of a software GPU, and how its server is found or started.
//!
//! | name in the folder | what |
//! |---|---|
//! | `softgpu.toml` | its configuration ([`crate::config`]) |
//! | `server.sock` | where the server listens |
//! | `server.lock` | locked by a running server, and by who starts one |
//! | `ledger`, `ledger.old` | who held what, when |
//! | `libcuda.so.1`, `libnvidia-ml.so.1`, `nvidia-cuda-mps-control`, `softgpu-server` | the stand-ins, where they were installed here |
//!
//! The folder is that of the variable `WEIR_SOFTGPU`, else the one in which the stand-in that asks lies.

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

/// The variable that names the folder.
pub const VARIABLE: &str = "WEIR_SOFTGPU";
/// The configuration in it.
pub const CONFIG: &str = "softgpu.toml";
/// The lock in it.
pub const LOCK: &str = "server.lock";
/// The socket in it.
pub const SOCKET: &str = "server.sock";
/// The ledger in it.
pub const LEDGER: &str = "ledger";
/// What the ledger was before it was begun anew.
pub const LEDGER_OLD: &str = "ledger.old";
/// The server's program.
pub const SERVER: &str = "softgpu-server";

/// A server that was started has to listen within this time.
const START_MAX: Duration = Duration::from_secs(10);

/// Until it does, it is looked for this often.
const LOOK_EVERY: Span = Span::from_millis(1);

/// No server can be had.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The folder, or something in it, cannot be opened.
    #[error("{path}: {error}")]
    Path {
        /// Which.
        path: PathBuf,
        /// Why.
        error: Errno,
    },
    /// The server's program cannot be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// Which.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It was started and does not listen.
    #[error("{program} was started, and has not listened in {folder} within {} s", START_MAX.as_secs())]
    Silent {
        /// Which.
        program: PathBuf,
        /// Where.
        folder: PathBuf,
    },
    /// It was started and has ended at once.
    #[error("{program} ended at once: {why}")]
    Ended {
        /// Which.
        program: PathBuf,
        /// What it said.
        why: String,
    },
}

/// The folder for a stand-in that lies in `own`.
#[must_use]
pub fn folder(own: Option<&Path>) -> Option<PathBuf> {
    match std::env::var_os(VARIABLE) {
        Some(folder) if !folder.is_empty() => Some(PathBuf::from(folder)),
        _ => own.map(Path::to_path_buf),
    }
}

fn path_error(path: PathBuf) -> impl FnOnce(Errno) -> PlaceError {
    move |error| PlaceError::Path { path, error }
}

/// The folder itself, by which its socket is reached however long its path is.
fn open_folder(folder: &Path) -> Result<OwnedFd, PlaceError> {
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

/// Listens in a folder: the server's side. The lock is to be held.
///
/// # Errors
/// The socket cannot be made.
pub fn listen_in(folder: &Path) -> Result<OwnedFd, PlaceError> {
    let at = open_folder(folder)?;
    let wrong = || path_error(folder.join(SOCKET));
    let address = socket_address(&at).map_err(wrong())?;
    match rustix::fs::unlink(folder.join(SOCKET)) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(wrong()(error)),
    }
    let socket = new_socket().map_err(wrong())?;
    bind(&socket, &address).map_err(wrong())?;
    // As a GPU's device file: who may use it follows from who sees the folder.
    let anyone = Mode::from_raw_mode(0o666);
    chmodat(&at, SOCKET, anyone, AtFlags::empty()).map_err(wrong())?;
    listen(&socket, 1024).map_err(wrong())?;
    Ok(socket)
}

/// Connects to the server of a folder, if there is one.
///
/// # Errors
/// The folder cannot be opened, or the socket refuses for another reason than that nobody listens.
pub fn connect_in(folder: &Path) -> Result<Option<OwnedFd>, PlaceError> {
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

/// Takes the lock of a folder; `None`: another has it, and it is not to be waited for.
///
/// # Errors
/// The lock's file cannot be made.
pub fn lock(folder: &Path, wait: bool) -> Result<Option<OwnedFd>, PlaceError> {
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

/// Connects to the server of a folder; where there is none, starts `program`, once for all that ask at the same time.
/// `prepare` may change how it is started.
///
/// # Errors
/// There is none, and none can be started.
pub fn connect_or_start(
    folder: &Path,
    program: &Path,
    prepare: impl Fn(&mut Command),
) -> Result<OwnedFd, PlaceError> {
    let begin = Instant::now();
    loop {
        if let Some(socket) = connect_in(folder)? {
            return Ok(socket);
        }
        if begin.elapsed() > START_MAX {
            return Err(PlaceError::Silent {
                program: program.to_path_buf(),
                folder: folder.to_path_buf(),
            });
        }
        // A server holds its lock for as long as it runs: who gets it here knows that none does.
        match lock(folder, false)? {
            Some(lock) => {
                drop(lock);
                start(folder, program, &prepare, begin)?;
            }
            None => clock::pause(LOOK_EVERY),
        }
    }
}

/// Starts a server and waits until it listens, or another does. Two who do so at once start two, of which one finds the
/// lock taken and ends.
fn start(
    folder: &Path,
    program: &Path,
    prepare: &impl Fn(&mut Command),
    begin: Instant,
) -> Result<(), PlaceError> {
    let wrong = |error| PlaceError::Start {
        program: program.to_path_buf(),
        error,
    };
    // It outlives this process's folder.
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
        // What is meant for this program is not meant for the server.
        .env_remove("LD_PRELOAD");
    prepare(&mut command);
    let mut child = command.spawn().map_err(wrong)?;
    // What was started ends once the server listens, or has failed and said why; the server itself is its child.
    loop {
        let status = match child.try_wait() {
            // A program that ignores its children's ends, or waits for all of them itself: what counts is who listens.
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
            return Err(PlaceError::Ended {
                program: program.to_path_buf(),
                why: why.trim().to_owned(),
            });
        }
        if begin.elapsed() > START_MAX {
            let _killed = child.kill();
            let _waited = child.wait();
            return Err(PlaceError::Silent {
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

    /// Who starts a program holds it, and who looks whether a file it closed is closed: until it has become the program, a child
    /// has every file that this process had when it began.
    static STARTING: Mutex<()> = Mutex::new(());

    #[test]
    fn who_listens_is_found_however_long_the_path_is() {
        let _nobody_starts = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
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
        // A socket left by a server that was killed is in nobody's way.
        assert!(listen_in(&folder).is_ok());
    }

    #[test]
    fn a_program_that_fails_or_is_not_there_is_named() {
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
