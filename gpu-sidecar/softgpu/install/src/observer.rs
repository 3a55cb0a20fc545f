//! A connection to the server of a folder, for who looks and controls. It starts none.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::config::Config;
use softgpu_wire::message::{Kind, Message, MessageError, ProcessLine, Role, VERSION};
use softgpu_wire::place::{self, PlaceError};

/// An answer has to come within this time.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// `CUDA_ERROR_SYSTEM_DRIVER_MISMATCH`
const OTHER_VERSION: u32 = 803;
/// `CUDA_ERROR_DEVICE_UNAVAILABLE`
const LOST: u32 = 46;

/// The server does not do what it is asked for.
#[derive(Debug, thiserror::Error)]
pub enum ObserverError {
    /// The folder cannot be opened.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The connection is of no use.
    #[error("{folder}: the server (process {pid}) does not answer: {error}", folder = .folder.display())]
    Silent {
        /// Where.
        folder: PathBuf,
        /// The server's process.
        pid: i32,
        /// Why.
        error: MessageError,
    },
    /// It is of another version than this program.
    #[error("{folder}: the server (process {pid}) is of another version than this program; end it with `kill {pid}`", folder = .folder.display())]
    Version {
        /// Where.
        folder: PathBuf,
        /// The server's process.
        pid: i32,
    },
    /// It says no.
    #[error("{what}: the server refuses, with the driver API's error {error}")]
    Refused {
        /// What it was asked for.
        what: &'static str,
        /// Why not.
        error: u32,
    },
    /// What it answers makes no sense.
    #[error("{what}: the server's answer cannot be read")]
    Answer {
        /// What it was asked for.
        what: &'static str,
    },
}

/// See the [module](self).
#[derive(Debug)]
pub struct Observer {
    folder: PathBuf,
    socket: OwnedFd,
    /// The configuration that the server runs with.
    pub config: Config,
    /// The server's process.
    pub pid: i32,
}

/// Memory of a GPU or slice, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Not held by anybody.
    pub free: u64,
    /// All.
    pub total: u64,
}

impl Observer {
    /// Connects; `None`: no server runs there.
    ///
    /// # Errors
    /// The folder is not there, or who listens in it does not answer.
    pub fn open(folder: &Path) -> Result<Option<Self>, ObserverError> {
        let Some(socket) = place::connect_in(folder)? else {
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

    /// How the server does, as JSON: see its statistics.
    ///
    /// # Errors
    /// It does not answer.
    pub fn statistics(&self) -> Result<serde_json::Value, ObserverError> {
        let what = "statistics";
        let answer = self.ask(what, Kind::Statistics, &[])?;
        serde_json::from_slice(&answer.bytes).map_err(|_| ObserverError::Answer { what })
    }

    /// Programs that compute and are connected now.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn clients(&self) -> Result<u64, ObserverError> {
        Ok(self.statistics()?["clients"].as_u64().unwrap_or(0))
    }

    /// Lets the server write all that is in its ledger until now to the file.
    ///
    /// # Errors
    /// It does not answer.
    pub fn write_ledger(&self) -> Result<(), ObserverError> {
        self.ask("ledger", Kind::Ledger, &[]).map(|_| ())
    }

    /// Who is on a GPU or slice, by its number; `None`: its GPU is lost.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn processes(&self, unit: u32) -> Result<Option<Vec<ProcessLine>>, ObserverError> {
        let answer = self.ask_unit("processes", Kind::Processes, unit)?;
        Ok(answer.map(|answer| ProcessLine::decode_all(&answer.bytes)))
    }

    /// How much memory a GPU or slice has, by its number; `None`: its GPU is lost.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn memory(&self, unit: u32) -> Result<Option<Memory>, ObserverError> {
        let answer = self.ask_unit("memory", Kind::MemoryInfo, unit)?;
        Ok(answer.map(|answer| {
            let [free, total, ..] = answer.words;
            Memory { free, total }
        }))
    }

    /// Lets something go wrong with a GPU: watchers hear of this Xid; by 79 the GPU is lost.
    ///
    /// # Errors
    /// The server does not answer, or there is no such GPU.
    pub fn inject(&self, gpu: u64, xid: u64) -> Result<(), ObserverError> {
        self.ask("inject", Kind::Inject, &[gpu, xid]).map(|_| ())
    }

    fn ask_unit(
        &self,
        what: &'static str,
        kind: Kind,
        unit: u32,
    ) -> Result<Option<Message>, ObserverError> {
        match self.ask(what, kind, &[unit.into()]) {
            Ok(answer) => Ok(Some(answer)),
            Err(ObserverError::Refused { error: LOST, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ask(&self, what: &'static str, kind: Kind, words: &[u64]) -> Result<Message, ObserverError> {
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

/// One request, one answer.
fn exchange(socket: &OwnedFd, request: &Message) -> Result<Message, MessageError> {
    request.send(socket, SendFlags::empty())?;
    let answer = Message::receive(socket, RecvFlags::empty())?;
    if answer.kind == request.kind {
        Ok(answer)
    } else {
        Err(MessageError::Form)
    }
}
