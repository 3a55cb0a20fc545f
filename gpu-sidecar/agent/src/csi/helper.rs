//! A helper process that mounts in the kubelet's mount namespace.
//!
//! In a container the kubelet's folders are in another mount namespace. A thread cannot enter it while other threads share its
//! working directory, so a small process enters it before it starts any thread: `gpu-sidecar mounts --process PID`. It reads
//! one request per line from standard input, and writes a reply for each to standard output; it ends at the end of its input.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::mounts;
use crate::config::HostProcess;

/// A request to the helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Create the volume at `target` from these parts.
    #[serde(rename = "show")]
    Publish { target: PathBuf, parts: Vec<Part> },
    /// Unmount the volume at `target` and remove its folder.
    #[serde(rename = "take-back")]
    Unpublish { target: PathBuf },
}

/// A folder within a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) name: String,
    /// Folder mounted there; `None`: the folder stays empty.
    pub(super) source: Option<PathBuf>,
    pub(super) is_read_only: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reply {
    error: Option<String>,
}

impl Request {
    fn serve(&self) -> io::Result<()> {
        match self {
            Self::Publish { target, parts } => publish(target, parts),
            Self::Unpublish { target } => {
                // The unmount detaches the whole tree, mounts within it included.
                mounts::unmount_all(target)?;
                match std::fs::remove_dir(target) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }
}

/// Creates the volume at `target`: an in-memory file system with a folder for each part, on which the part's source is mounted.
/// The file system itself becomes read-only; a part with `is_read_only` false stays writable. Idempotent for a published volume.
fn publish(target: &Path, parts: &[Part]) -> io::Result<()> {
    super::make_folder(target)?;
    mounts::make_root(target)?;
    for part in parts {
        // A published volume is read-only and already has all folders.
        match super::make_folder(&target.join(&part.name)) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
            other => other?,
        }
    }
    for part in parts {
        if let Some(source) = &part.source {
            let folder = target.join(&part.name);
            mounts::bind(source, &folder, part.is_read_only).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", source.display()))
            })?;
        }
    }
    mounts::seal_root(target)
}

/// Serves requests in the mount namespace of a process until the end of the input. Returns exit code 1 when the namespace
/// cannot be entered.
pub(crate) fn run(process: Option<u32>) -> ExitCode {
    if let Some(process) = process
        && let Err(error) = enter(process)
    {
        let text = format!("cannot enter the mount namespace of process {process}: {error}");
        let _unread = reply(Some(text));
        return ExitCode::FAILURE;
    }
    if reply(None).is_err() {
        return ExitCode::FAILURE;
    }
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else {
            break;
        };
        let outcome = serde_json::from_str::<Request>(&line)
            .map_err(io::Error::from)
            .and_then(|request| request.serve());
        if reply(outcome.err().map(|error| error.to_string())).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

fn enter(process: u32) -> io::Result<()> {
    let namespace = File::open(format!("/proc/{process}/ns/mnt"))?;
    let kind = Some(LinkNameSpaceType::Mount);
    move_into_link_name_space(namespace.as_fd(), kind)?;
    Ok(())
}

fn reply(error: Option<String>) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Reply { error })?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// The helper process, started on first use.
#[derive(Debug)]
pub(super) struct Helper {
    process: Option<HostProcess>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Running {
    fn start(process: Option<HostProcess>) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("mounts");
        if let Some(process) = process {
            command.arg("--process").arg(process.find().to_string());
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::other("a pipe is missing");
        let requests = child.stdin.take().ok_or_else(missing)?;
        let replies = child.stdout.take().ok_or_else(missing)?;
        let mut running = Self {
            child,
            requests,
            replies: BufReader::new(replies),
        };
        running.read_reply()?;
        Ok(running)
    }

    fn read_reply(&mut self) -> io::Result<()> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let reply: Reply = serde_json::from_str(&line)?;
        reply
            .error
            .map_or(Ok(()), |error| Err(io::Error::other(error)))
    }

    fn send(&mut self, request: &Request) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.requests.write_all(&line)
    }
}

impl Helper {
    /// Creates a helper for the mount namespace of `process`; `None`: that of this process.
    pub(super) const fn new(process: Option<HostProcess>) -> Self {
        Self {
            process,
            running: Mutex::new(None),
        }
    }

    /// Sends a request and blocks until it is served.
    ///
    /// # Errors
    /// Returns the error of the request, or of starting the process.
    pub(super) fn call(&self, request: &Request) -> io::Result<()> {
        let mut current = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // A helper that was killed is replaced.
        let sent = current
            .take()
            .and_then(|mut running| running.send(request).ok().map(|()| running));
        let mut running = match sent {
            Some(running) => running,
            None => {
                let mut running = Running::start(self.process)?;
                running.send(request)?;
                running
            }
        };
        let outcome = running.read_reply();
        let is_gone =
            matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::UnexpectedEof);
        if !is_gone {
            *current = Some(running);
        }
        outcome
    }
}
