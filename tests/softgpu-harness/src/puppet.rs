//! A process that executes driver calls line by line on command: see `puppet.c`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use testing::PATIENCE;

/// Answer of the puppet: the driver's result, and further output of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub result: u32,
    pub words: Vec<String>,
}

impl Answer {
    pub fn number(&self, at: usize) -> u64 {
        assert_eq!(self.result, 0);
        self.words[at].parse().unwrap()
    }

    /// Returns the answer to `elapsed`, in ms.
    pub fn milliseconds(&self) -> f32 {
        assert_eq!(self.result, 0);
        self.words[0].parse().unwrap()
    }
}

/// A puppet process: see the [module](self).
#[derive(Debug)]
pub struct Puppet {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Puppet {
    pub fn start(command: &mut Command) -> Self {
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

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends lines without waiting for their answers.
    pub fn send(&mut self, lines: &str) {
        let input = self.input.as_mut().unwrap();
        let lines: Vec<_> = lines.lines().map(str::trim).collect();
        let text = lines.join("\n") + "\n";
        input.write_all(text.as_bytes()).unwrap();
    }

    /// Receives the next answer; panics after [`PATIENCE`].
    pub fn answer(&mut self) -> Answer {
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
        let result = words.next().expect("the puppet has ended");
        Answer {
            result: result.parse().unwrap(),
            words: words.collect(),
        }
    }

    /// Sends a line and returns its answer.
    pub fn exchange(&mut self, line: &str) -> Answer {
        self.send(line);
        self.answer()
    }

    /// Sends a line and returns the driver's result.
    pub fn result(&mut self, line: &str) -> u32 {
        self.exchange(line).result
    }

    /// Sends a line which must succeed, and returns its answer.
    pub fn run(&mut self, line: &str) -> Answer {
        let answer = self.exchange(line);
        assert_eq!(answer.result, 0, "{line}");
        answer
    }

    /// Sends lines which must all succeed, and returns the last one's answer.
    pub fn run_all(&mut self, lines: &str) -> Answer {
        self.send(lines);
        let mut last = None;
        for line in lines.lines() {
            let answer = self.answer();
            assert_eq!(answer.result, 0, "{line}");
            last = Some(answer);
        }
        last.unwrap()
    }

    /// Closes its input, so that it ends by itself, and waits for its end.
    pub fn leave(mut self) {
        self.input = None;
        assert!(self.child.wait().unwrap().success());
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(mut self) {
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
