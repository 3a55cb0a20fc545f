//! Commands to a daemon, through the standard input of the control program.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Timeout for the answer to commands.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Maximum length of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Maximum number of process IDs read from an answer.
const PIDS_MAX: usize = 1_024;

/// Converts a duration into the kernel's form.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

/// Sends lines of commands to the daemon of a pipe directory and returns its answer.
///
/// # Errors
/// Returns an error when no daemon answers within [`ANSWER_MAX`], or the control program fails.
pub(crate) fn query(program: &Path, pipe: &Path, lines: &str) -> Result<String, String> {
    let mut child = Command::new(program)
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let answer = exchange(&mut child, lines);
    if answer.is_err() {
        let _gone = child.kill();
    }
    // The program was killed or has closed its output, so the wait is short.
    let status = child.wait().map_err(|error| error.to_string())?;
    let answer = answer?;
    if status.success() {
        Ok(answer)
    } else {
        let line = answer.lines().next().unwrap_or("no output").to_owned();
        Err(format!(
            "the MPS control program failed with {status}: {line}"
        ))
    }
}

fn exchange(child: &mut Child, lines: &str) -> Result<String, String> {
    let until = Instant::now() + ANSWER_MAX;
    let missing = "a pipe of the MPS control program is missing";
    let mut input = child.stdin.take().ok_or(missing)?;
    let output = child.stdout.take().ok_or(missing)?;
    // The few bytes fit into the pipe's buffer. A program that does not read them has ended, and its status is reported.
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

/// Converts a process ID into the kernel's form; `None` for an invalid one.
pub(crate) fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Returns the process IDs in an answer, one per line; other lines are skipped.
pub(crate) fn pids(answer: &str) -> Vec<u32> {
    let numbers = answer.lines().filter_map(|line| line.trim().parse().ok());
    numbers.take(PIDS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> tempfile::TempPath {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        testing::write_script(&path, text);
        path
    }

    #[test]
    fn commands_receive_their_answer() {
        let program = script("echo \"$CUDA_MPS_PIPE_DIRECTORY\"; cat");
        let answer = query(&program, Path::new("/pipe"), "get_server_list").unwrap();
        assert_eq!(answer, "/pipe\nget_server_list\n");
    }

    #[test]
    fn a_failing_program_is_reported_with_its_output() {
        let program = script("echo Cannot find MPS control daemon process; exit 1");
        let why = query(&program, Path::new("/pipe"), "x").unwrap_err();
        assert!(
            why.ends_with(": Cannot find MPS control daemon process"),
            "{why}"
        );
    }

    #[test]
    fn an_endless_answer_is_cut_off() {
        let program =
            script("while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done");
        let why = query(&program, Path::new("/pipe"), "x").unwrap_err();
        assert_eq!(why, "the answer is longer than 262144 bytes");
    }

    #[test]
    fn lines_without_a_pid_are_skipped() {
        assert_eq!(pids("12\n\n 13 \nServer 9 not found\n-4\n"), [12, 13]);
    }
}
