//! A connection to the server of a folder for queries and control. It never starts a server.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::config::Config;
use softgpu_wire::message::{Kind, Message, MessageError, ProcessLine, Role, VERSION};
use softgpu_wire::softgpu_dir::{self, SoftGpuDirError};

/// Largest time to wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`, returned by a server of another version.
const OTHER_VERSION: u32 = 803;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`, returned for a lost GPU.
const LOST: u32 = 46;

/// Failure to connect to the server or to query it.
#[derive(Debug, thiserror::Error)]
pub enum ObserverError {
    /// The folder cannot be opened.
    #[error(transparent)]
    Dir(#[from] SoftGpuDirError),
    /// The connection is broken or timed out.
    #[error("{folder}: the server (process {pid}) does not answer: {error}", folder = .folder.display())]
    Silent {
        folder: PathBuf,
        /// PID of the server.
        pid: i32,
        error: MessageError,
    },
    /// The server has another version than this program.
    #[error("{folder}: the server (process {pid}) is of another version than this program; end it with `kill {pid}`", folder = .folder.display())]
    Version {
        folder: PathBuf,
        /// PID of the server.
        pid: i32,
    },
    /// The server returned an error.
    #[error("{what}: the server returned error {error} of the driver API")]
    Refused {
        /// Kind of the request.
        what: &'static str,
        /// Error as a `CUresult`.
        error: u32,
    },
    /// The answer is malformed.
    #[error("{what}: invalid answer of the server")]
    Answer {
        /// Kind of the request.
        what: &'static str,
    },
}

/// Connection to a server; see the [module](self).
#[derive(Debug)]
pub struct Observer {
    folder: PathBuf,
    socket: OwnedFd,
    /// Configuration of the running server.
    pub config: Config,
    /// PID of the server.
    pub pid: i32,
}

/// Memory of a GPU or slice, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Memory not allocated by any process.
    pub free: u64,
    /// Total memory, after scaling.
    pub total: u64,
}

impl Observer {
    /// Connects to the server; returns `None` if none runs.
    ///
    /// # Errors
    /// Fails when the folder does not exist, or the server does not answer.
    pub fn open(folder: &Path) -> Result<Option<Self>, ObserverError> {
        let Some(socket) = softgpu_dir::connect_in(folder)? else {
            return Ok(None);
        };
        let pid = socket_peercred(&socket).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        let wrong = |error| ObserverError::Silent {
            folder: folder.to_path_buf(),
            pid,
            error,
        };
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_MAX))
            .map_err(|error| wrong(error.into()))?;
        let program = std::env::current_exe().unwrap_or_default();
        let name = program.file_name().unwrap_or_default();
        let hello = Message::new(Kind::Hello, &[VERSION, Role::Observer as u64])
            .with_bytes(name.as_encoded_bytes().to_vec());
        let answer = exchange(&socket, &hello).map_err(wrong)?;
        if answer.error == OTHER_VERSION {
            let folder = folder.to_path_buf();
            return Err(ObserverError::Version { folder, pid });
        }
        let what = "hello";
        if answer.error != 0 {
            let error = answer.error;
            return Err(ObserverError::Refused { what, error });
        }
        let text = String::from_utf8(answer.bytes).ok();
        let config = text.and_then(|text| Config::parse(&text).ok());
        Ok(Some(Self {
            folder: folder.to_path_buf(),
            socket,
            config: config.ok_or(ObserverError::Answer { what })?,
            pid,
        }))
    }

    /// Returns the server's statistics as JSON.
    ///
    /// # Errors
    /// Fails when the server does not answer.
    pub fn statistics(&self) -> Result<serde_json::Value, ObserverError> {
        let what = "statistics";
        let answer = self.request(what, Kind::Statistics, &[])?;
        serde_json::from_slice(&answer.bytes).map_err(|_| ObserverError::Answer { what })
    }

    /// Returns the number of computing programs connected now.
    ///
    /// # Errors
    /// Fails when the server does not answer.
    pub fn clients(&self) -> Result<u64, ObserverError> {
        Ok(self.statistics()?["clients"].as_u64().unwrap_or(0))
    }

    /// Makes the server write all pending lines of its ledger to the file.
    ///
    /// # Errors
    /// Fails when the server does not answer.
    pub fn write_ledger(&self) -> Result<(), ObserverError> {
        self.request("ledger", Kind::Ledger, &[]).map(|_| ())
    }

    /// Returns the processes on a GPU or slice, given by its number; `None` if its GPU is lost.
    ///
    /// # Errors
    /// Fails when the server does not answer.
    pub fn processes(&self, unit: u32) -> Result<Option<Vec<ProcessLine>>, ObserverError> {
        let answer = self.request_unit("processes", Kind::Processes, unit)?;
        Ok(answer.map(|answer| ProcessLine::decode_all(&answer.bytes)))
    }

    /// Returns the memory of a GPU or slice, given by its number; `None` if its GPU is lost.
    ///
    /// # Errors
    /// Fails when the server does not answer.
    pub fn memory(&self, unit: u32) -> Result<Option<Memory>, ObserverError> {
        let answer = self.request_unit("memory", Kind::MemoryInfo, unit)?;
        Ok(answer.map(|answer| {
            let [free, total, ..] = answer.words;
            Memory { free, total }
        }))
    }

    /// Injects an error into a GPU: subscribers receive the Xid, and 79 makes the GPU lost.
    ///
    /// # Errors
    /// Fails when the server does not answer, or there is no such GPU.
    pub fn inject(&self, gpu: u64, xid: u64) -> Result<(), ObserverError> {
        self.request("inject", Kind::Inject, &[gpu, xid])
            .map(|_| ())
    }

    fn request_unit(
        &self,
        what: &'static str,
        kind: Kind,
        unit: u32,
    ) -> Result<Option<Message>, ObserverError> {
        match self.request(what, kind, &[unit.into()]) {
            Ok(answer) => Ok(Some(answer)),
            Err(ObserverError::Refused { error: LOST, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn request(
        &self,
        what: &'static str,
        kind: Kind,
        words: &[u64],
    ) -> Result<Message, ObserverError> {
        let answer = exchange(&self.socket, &Message::new(kind, words)).map_err(|error| {
            ObserverError::Silent {
                folder: self.folder.clone(),
                pid: self.pid,
                error,
            }
        })?;
        match answer.error {
            0 => Ok(answer),
            error => Err(ObserverError::Refused { what, error }),
        }
    }
}

/// Sends a request and receives its answer.
fn exchange(socket: &OwnedFd, request: &Message) -> Result<Message, MessageError> {
    request.send(socket, SendFlags::empty())?;
    let answer = Message::receive(socket, RecvFlags::empty())?;
    if answer.kind == request.kind {
        Ok(answer)
    } else {
        Err(MessageError::Form)
    }
}
