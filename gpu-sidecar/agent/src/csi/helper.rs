//! A process of the agent's own that mounts where the kubelet is.
//!
//! In a container the kubelet's folders are in another mount namespace. A thread cannot enter it while others share its working
//! directory, so a small process does, before it has any other: `gpu-sidecar mounts --process PID`. It takes a request a line on its
//! standard input, and answers each on its standard output; it ends with its input.

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

/// What is to be done.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Make the volume at `target` of these parts.
    Show { target: PathBuf, parts: Vec<Part> },
    /// Take back the volume at `target`, and its folder.
    TakeBack { target: PathBuf },
}

/// A folder in a volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) name: String,
    /// What is shown there; `None`: nothing.
    pub(super) source: Option<PathBuf>,
    pub(super) is_read_only: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    error: Option<String>,
}

impl Request {
    fn serve(&self) -> io::Result<()> {
        match self {
            Self::Show { target, parts } => show(target, parts),
            Self::TakeBack { target } => {
                // Detached as a whole: what is mounted in it goes with it.
                mounts::take_back(target)?;
                match std::fs::remove_dir(target) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                }
            }
        }
    }
}

fn show(target: &Path, parts: &[Part]) -> io::Result<()> {
    super::make_folder(target)?;
    mounts::make_root(target)?;
    for part in parts {
        // On a volume that is published already nothing can be made, and nothing is missing.
        match super::make_folder(&target.join(&part.name)) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {}
            other => other?,
        }
    }
    for part in parts {
        if let Some(source) = &part.source {
            let place = target.join(&part.name);
            mounts::bind(source, &place, part.is_read_only).map_err(|error| {
                io::Error::new(error.kind(), format!("{}: {error}", source.display()))
            })?;
        }
    }
    mounts::seal_root(target)
}

/// Serves requests in the mount namespace of a process, until there are no more. Exit code 1: the namespace cannot be entered.
pub(crate) fn run(process: Option<u32>) -> ExitCode {
    if let Some(process) = process
        && let Err(error) = enter(process)
    {
        let text = format!("the mount namespace of process {process} cannot be entered: {error}");
        let _unread = answer(Some(text));
        return ExitCode::FAILURE;
    }
    if answer(None).is_err() {
        return ExitCode::FAILURE;
    }
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else {
            break;
        };
        let outcome = serde_json::from_str::<Request>(&line)
            .map_err(io::Error::from)
            .and_then(|request| request.serve());
        if answer(outcome.err().map(|error| error.to_string())).is_err() {
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

fn answer(error: Option<String>) -> io::Result<()> {
    let mut line = serde_json::to_vec(&Answer { error })?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

/// The process, which is started when it is needed.
#[derive(Debug)]
pub(super) struct Helper {
    process: Option<HostProcess>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
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
        let answers = child.stdout.take().ok_or_else(missing)?;
        let mut running = Self {
            child,
            requests,
            answers: BufReader::new(answers),
        };
        running.answer()?;
        Ok(running)
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer: Answer = serde_json::from_str(&line)?;
        answer
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
    /// One that mounts where `process` does; `None`: where this process does.
    pub(super) const fn new(process: Option<HostProcess>) -> Self {
        Self {
            process,
            running: Mutex::new(None),
        }
    }

    /// Blocks until a request is served.
    ///
    /// # Errors
    /// What the kernel says against it, or that the process cannot be started.
    pub(super) fn call(&self, request: &Request) -> io::Result<()> {
        let mut place = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was killed is replaced.
        let sent = place
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
        let outcome = running.answer();
        let is_gone =
            matches!(&outcome, Err(error) if error.kind() == io::ErrorKind::UnexpectedEof);
        if !is_gone {
            *place = Some(running);
        }
        outcome
    }
}
