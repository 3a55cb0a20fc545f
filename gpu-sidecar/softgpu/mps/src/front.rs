//! The front end: sends standard input to the daemon, line by line.

use std::io::{BufRead, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::message::{Kind, Message};

use crate::command::LINE_MAX;
use crate::pipe::{self, PipeDirectory};
use crate::{print, report_error};

/// First word of an answer of which more follows.
pub(crate) const MORE: u64 = 1;
/// Second word of an answer after which the daemon has ended.
pub(crate) const ENDED: u64 = 1;

/// Runs commands until the end of input. The exit status reflects the connection to the daemon, not the results of
/// commands.
pub(crate) fn main() -> ExitCode {
    let found = PipeDirectory::open(&pipe::path()).and_then(|folder| folder.connect());
    let Ok(Some(socket)) = found else {
        let _printed = print("Cannot find MPS control daemon process\n");
        return ExitCode::FAILURE;
    };
    let mut input = std::io::stdin().lock();
    loop {
        let line = match next_line(&mut input) {
            Ok(Some(line)) => line,
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                report_error(&format!("Cannot read commands: {error}"));
                return ExitCode::FAILURE;
            }
        };
        match send_command(&socket, &line) {
            Some(false) => {}
            Some(true) => return ExitCode::SUCCESS,
            None => {
                report_error("Connection to the MPS control daemon is broken");
                return ExitCode::FAILURE;
            }
        }
    }
}

/// Reads the next line, cut behind the longest command; returns `None` at the end of input.
fn next_line(input: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let limit = LINE_MAX as u64 + 1;
    if input.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') && line.len() > LINE_MAX {
        input.skip_until(b'\n')?;
    }
    Ok(Some(String::from_utf8_lossy(&line).into_owned()))
}

/// Sends a command and prints its answer. Returns whether the daemon has ended with it, `None` if the connection is
/// broken.
fn send_command(socket: &OwnedFd, line: &str) -> Option<bool> {
    if line.trim().is_empty() {
        return Some(false);
    }
    Message::new(Kind::MpsCommand, &[])
        .with_bytes(line.as_bytes().to_vec())
        .send(socket, SendFlags::empty())
        .ok()?;
    let mut output = std::io::stdout();
    loop {
        let answer = Message::receive(socket, RecvFlags::empty()).ok()?;
        // The command has run, even if its output cannot be written.
        let _written = output
            .write_all(&answer.bytes)
            .and_then(|()| output.flush());
        if answer.words[0] != MORE {
            return Some(answer.words[1] == ENDED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_beyond_the_limit_is_read_as_one() {
        let long = "x".repeat(3 * LINE_MAX);
        let text = format!("one\n{long}\n\n\u{fffd}two");
        let mut input = text.as_bytes();
        let mut next = || next_line(&mut input).unwrap();
        assert_eq!(next().unwrap(), "one\n");
        assert_eq!(next().unwrap().len(), LINE_MAX + 1);
        assert_eq!(next().unwrap(), "\n");
        assert_eq!(next().unwrap(), "\u{fffd}two");
        assert_eq!(next(), None);
    }
}
