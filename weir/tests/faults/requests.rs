//! Clients of the pod behind a queue-proxy: each request gets exactly one response (invariant 1), and answers are correct
//! (invariant 4).

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use testing::PATIENCE;

/// Number of concurrent clients, so that one always waits.
const CALLERS: u64 = 3;
/// Statuses that a queue-proxy may answer for a user container that is missing, too late, or failing.
const FAILURES: [u16; 4] = [500, 502, 503, 504];

/// Number of responses by status, and the longest latency.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    by_status: BTreeMap<u16, u64>,
    longest: Duration,
}

impl fmt::Display for Answers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (status, count) in &self.by_status {
            write!(out, "{count} × {status}, ")?;
        }
        write!(
            out,
            "the longest after {:.0} ms",
            self.longest.as_secs_f64() * 1e3
        )
    }
}

/// Clients that send requests until stopped.
#[derive(Debug)]
pub(crate) struct Requests {
    is_over: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Answers>>,
}

impl Requests {
    pub(crate) fn start(address: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let callers = (0..CALLERS).map(|caller| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || call(address, caller, &is_over))
        });
        Self {
            callers: callers.collect(),
            is_over,
        }
    }

    /// Stops the clients and returns their answers; panics if a response was missing or wrong.
    pub(crate) fn end(self) -> Answers {
        self.is_over.store(true, Ordering::Release);
        let mut all = Answers::default();
        for caller in self.callers {
            let answers = caller.join().unwrap();
            for (status, count) in answers.by_status {
                *all.by_status.entry(status).or_default() += count;
            }
            all.longest = all.longest.max(answers.longest);
        }
        assert!(all.by_status.get(&200) > Some(&0), "{all}");
        all
    }
}

fn call(address: SocketAddr, caller: u64, is_over: &AtomicBool) -> Answers {
    let mut answers = Answers::default();
    let mut seed = caller;
    while !is_over.load(Ordering::Acquire) {
        seed += CALLERS;
        let begin = Instant::now();
        let (status, body) = exchange(address, seed);
        answers.longest = answers.longest.max(begin.elapsed());
        *answers.by_status.entry(status).or_default() += 1;
        if status == 200 {
            let answer: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(answer["right"], true, "{answer}");
        } else {
            assert!(FAILURES.contains(&status), "{status}: {body}");
            // Back off as a refused client does.
            crate::pass(Duration::from_millis(10));
        }
    }
    answers
}

/// Sends one request on a connection of its own; exactly one complete response must arrive.
fn exchange(address: SocketAddr, seed: u64) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = format!(r#"{{"input":0,"output":0,"seed":{seed}}}"#);
    let length = body.len();
    write!(
        stream,
        "POST /infer HTTP/1.1\r\nHost: model\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no response: {answer:?}"));
    assert!(!body.contains("HTTP/1.1 "), "two responses: {answer}");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}
