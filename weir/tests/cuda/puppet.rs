//! A process that does with the driver what it is told: see `puppet.c`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::place::PATIENCE;

/// What it answers: the driver's result, and what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) result: u32,
    pub(crate) words: Vec<String>,
}

impl Answer {
    pub(crate) fn number(&self, at: usize) -> u64 {
        assert_eq!(self.result, 0);
        self.words[at].parse().unwrap()
    }

    /// Of `elapsed`.
    pub(crate) fn milliseconds(&self) -> f32 {
        assert_eq!(self.result, 0);
        self.words[0].parse().unwrap()
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Puppet {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Puppet {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it these lines at once, and does not wait.
    pub(crate) fn tell(&mut self, lines: &str) {
        let input = self.input.as_mut().unwrap();
        let lines: Vec<_> = lines.lines().map(str::trim).collect();
        let text = lines.join("\n") + "\n";
        input.write_all(text.as_bytes()).unwrap();
    }

    /// Its next answer.
    pub(crate) fn answer(&mut self) -> Answer {
        if self.output.buffer().is_empty() {
            let patience = Timespec {
                tv_sec: PATIENCE.as_secs().cast_signed(),
                tv_nsec: 0,
            };
            let mut fds = [PollFd::new(self.output.get_ref(), PollFlags::IN)];
            let there = poll(&mut fds, Some(&patience)).unwrap();
            assert_ne!(there, 0, "no answer within {PATIENCE:?}");
        }
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let mut words = line.split_whitespace().map(str::to_owned);
        let result = words.next().expect("it has ended");
        Answer {
            result: result.parse().unwrap(),
            words: words.collect(),
        }
    }

    /// What it answers to a line.
    pub(crate) fn tries(&mut self, line: &str) -> Answer {
        self.tell(line);
        self.answer()
    }

    /// The result of a line.
    pub(crate) fn result(&mut self, line: &str) -> u32 {
        self.tries(line).result
    }

    /// The same, where it has to succeed.
    pub(crate) fn does(&mut self, line: &str) -> Answer {
        let answer = self.tries(line);
        assert_eq!(answer.result, 0, "{line}");
        answer
    }

    /// Does several lines; all have to succeed. The last one's answer.
    pub(crate) fn does_all(&mut self, lines: &str) -> Answer {
        self.tell(lines);
        let mut last = None;
        for line in lines.lines() {
            let answer = self.answer();
            assert_eq!(answer.result, 0, "{line}");
            last = Some(answer);
        }
        last.unwrap()
    }

    /// It ends by itself.
    pub(crate) fn leave(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }

    /// It is ended without a chance to do anything about it.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _waited = self.child.wait();
    }
}
