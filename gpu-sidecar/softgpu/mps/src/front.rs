//! The front end: standard input, line by line, to the daemon.

use std::io::{BufRead, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use rustix::net::{RecvFlags, SendFlags};
use softgpu_wire::message::{Kind, Message};

use crate::command::LINE_MAX;
use crate::pipe::{self, PipeDirectory};
use crate::{say, say_error};

/// In the first word of an answer: more of it follows.
pub(crate) const MORE: u64 = 1;
/// In the second word of an answer: the daemon has ended.
pub(crate) const ENDED: u64 = 1;

/// Reads commands until there are no more. Its status says whether the daemon could be talked to, not how commands went.
pub(crate) fn main() -> ExitCode {
    let found = PipeDirectory::open(&pipe::path()).and_then(|folder| folder.connect());
    let Ok(Some(socket)) = found else {
        let _said = say("Cannot find MPS control daemon process\n");
        return ExitCode::FAILURE;
    };
    let mut input = std::io::stdin().lock();
    loop {
        let line = match next_line(&mut input) {
            Ok(Some(line)) => line,
            Ok(None) => return ExitCode::SUCCESS,
            Err(error) => {
                say_error(&format!("Cannot read commands: {error}"));
                return ExitCode::FAILURE;
            }
        };
        match ask(&socket, &line) {
            Some(false) => {}
            Some(true) => return ExitCode::SUCCESS,
            None => {
                say_error("Connection to the MPS control daemon is broken");
                return ExitCode::FAILURE;
            }
        }
    }
}

/// The next line, without what of it is longer than any command; `None`: there are no more.
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

/// Sends a command and prints its answer; whether the daemon has ended by it, `None`: it cannot be talked to.
fn ask(socket: &OwnedFd, line: &str) -> Option<bool> {
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
        // Who does not read what was asked for has asked nevertheless.
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
    fn a_line_that_is_too_long_is_one_line() {
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
