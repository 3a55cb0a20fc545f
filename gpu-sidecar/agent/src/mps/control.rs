//! Commands to a daemon: through the control program's standard input, as everybody does.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A command is answered within this time, or not at all.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer, at most.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Pids of an answer, at most.
const PIDS_MAX: usize = 1_024;

/// As the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// What the daemon of a pipe directory answers to lines.
///
/// # Errors
/// Nobody answers there, or not in time.
pub(crate) fn ask(program: &Path, pipe: &Path, lines: &str) -> Result<String, String> {
    let mut child = Command::new(program)
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let answer = converse(&mut child, lines);
    if answer.is_err() {
        let _gone = child.kill();
    }
    // Killed, or at the end of its output: it does not keep anybody waiting.
    let status = child.wait().map_err(|error| error.to_string())?;
    let answer = answer?;
    if status.success() {
        Ok(answer)
    } else {
        let said = answer
            .lines()
            .next()
            .unwrap_or("it said nothing")
            .to_owned();
        Err(format!(
            "the MPS control program ended with {status}: {said}"
        ))
    }
}

fn converse(child: &mut Child, lines: &str) -> Result<String, String> {
    let until = Instant::now() + ANSWER_MAX;
    let pipe = "its pipes are there";
    let mut input = child.stdin.take().ok_or(pipe)?;
    let output = child.stdout.take().ok_or(pipe)?;
    // Few bytes: they fit into the pipe. Who does not read them has ended, and its status tells.
    let _ended = writeln!(input, "{}", lines.trim_end());
    drop(input);
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        await_until(output.as_fd(), until)?;
        match rustix::io::read(&output, &mut chunk) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).to_string()),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(format!(
                "the answer is longer than {ANSWER_BYTES_MAX} bytes"
            ));
        }
    }
    if let Some(pidfd) =
        pid_of(child.id()).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
    {
        await_until(pidfd.as_fd(), until)?;
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn await_until(fd: std::os::fd::BorrowedFd<'_>, until: Instant) -> Result<(), String> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(0) => return Err(format!("no answer within {} s", ANSWER_MAX.as_secs())),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).to_string()),
        }
    }
}

/// As the kernel takes it.
pub(crate) fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// The numbers of an answer, one a line. What is no number is none.
pub(crate) fn pids(answer: &str) -> Vec<u32> {
    let numbers = answer.lines().filter_map(|line| line.trim().parse().ok());
    numbers.take(PIDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> tempfile::TempPath {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        crate::testing::script::make(&path, text);
        path
    }

    #[test]
    fn lines_are_answered() {
        let program = script("echo \"$CUDA_MPS_PIPE_DIRECTORY\"; cat");
        let answer = ask(&program, Path::new("/pipe"), "get_server_list").unwrap();
        assert_eq!(answer, "/pipe\nget_server_list\n");
    }

    #[test]
    fn who_fails_is_quoted() {
        let program = script("echo Cannot find MPS control daemon process; exit 1");
        let why = ask(&program, Path::new("/pipe"), "x").unwrap_err();
        assert!(
            why.ends_with(": Cannot find MPS control daemon process"),
            "{why}"
        );
    }

    #[test]
    fn who_talks_without_end_is_cut_off() {
        let program =
            script("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done");
        let why = ask(&program, Path::new("/pipe"), "x").unwrap_err();
        assert_eq!(why, "the answer is longer than 262144 bytes");
    }

    #[test]
    fn what_is_no_pid_is_none() {
        assert_eq!(pids("12\n\n 13 \nServer 9 not found\n-4\n"), [12, 13]);
    }
}
