//! The pipe directory, in which the daemon listens.
//!
//! Its files are accessed through the directory's descriptor, so that neither a long path nor a renamed directory
//! matters.

use std::fs::DirBuilder;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, chmodat, flock, open, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

/// Environment variable that names the directory.
pub(crate) const VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Directory without the variable.
const DEFAULT: &str = "/tmp/nvidia-mps";
const SOCKET: &str = "control";
const LOCK: &str = "control_lock";
const PID: &str = "nvidia-cuda-mps-control.pid";
/// Largest number of connections waiting to be accepted.
const BACKLOG: i32 = 1024;

/// A file of the directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}")]
pub(crate) struct PipeError {
    path: PathBuf,
    error: Errno,
}

/// The pipe directory, held open.
#[derive(Debug)]
pub(crate) struct PipeDirectory {
    path: PathBuf,
    folder: OwnedFd,
}

/// Returns the configured path of the directory.
pub(crate) fn path() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from(DEFAULT),
    }
}

impl PipeDirectory {
    /// Opens the directory, creating it if it is missing.
    pub(crate) fn create(path: &Path) -> Result<Self, PipeError> {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        made.map_err(|error| PipeError {
            path: path.to_path_buf(),
            error: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })?;
        Self::open(path)
    }

    /// Opens an existing directory.
    pub(crate) fn open(path: &Path) -> Result<Self, PipeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match open(path, flags, Mode::empty()) {
            Ok(folder) => Ok(Self {
                path: path.to_path_buf(),
                folder,
            }),
            Err(error) => Err(PipeError {
                path: path.to_path_buf(),
                error,
            }),
        }
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the socket, for messages.
    pub(crate) fn socket_path(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    fn wrong(&self, name: &str) -> impl FnOnce(Errno) -> PipeError {
        let path = self.path.join(name);
        move |error| PipeError { path, error }
    }

    /// Takes the lock, to be held while the daemon runs; returns `None` if another process holds it.
    pub(crate) fn lock(&self) -> Result<Option<OwnedFd>, PipeError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            openat(&self.folder, LOCK, flags, Mode::RUSR | Mode::WUSR).map_err(self.wrong(LOCK))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(self.wrong(LOCK)(error)),
            }
        }
    }

    fn address(&self) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new(format!("/proc/self/fd/{}/{SOCKET}", self.folder.as_raw_fd()).as_str())
    }

    /// Creates the listening socket, open to all users of the machine; removes that of a killed daemon. The caller must
    /// hold the lock.
    pub(crate) fn listen(&self) -> Result<OwnedFd, PipeError> {
        let listen_here = || {
            self.remove(SOCKET)?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            bind(&socket, &self.address()?)?;
            chmodat(
                &self.folder,
                SOCKET,
                Mode::from_raw_mode(0o666),
                AtFlags::empty(),
            )?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        listen_here().map_err(self.wrong(SOCKET))
    }

    /// Connects to the daemon; returns `None` if none listens.
    pub(crate) fn connect(&self) -> Result<Option<OwnedFd>, PipeError> {
        let connect_here = || {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            let address = self.address()?;
            loop {
                match connect(&socket, &address) {
                    Ok(()) => return Ok(Some(socket)),
                    Err(Errno::INTR) => {}
                    Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        connect_here().map_err(self.wrong(SOCKET))
    }

    /// Writes the file with the daemon's PID.
    pub(crate) fn write_pid(&self, pid: u32) -> Result<(), PipeError> {
        let write = || {
            // A link placed there is not followed, and another user's file is replaced.
            self.remove(PID)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = openat(&self.folder, PID, flags, Mode::from_raw_mode(0o644))?;
            let written = writeln!(std::fs::File::from(file), "{pid}");
            written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        write().map_err(self.wrong(PID))
    }

    /// Removes the files of [`PipeDirectory::listen`] and [`PipeDirectory::write_pid`]. The caller must hold the lock.
    pub(crate) fn clear(&self) {
        let _removed = self.remove(SOCKET);
        let _removed = self.remove(PID);
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
