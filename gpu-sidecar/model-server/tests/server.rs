//! The program over real sockets, without a GPU.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model_server::checksum::Checked;
use model_server::{Model, expected_checksum};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nothing here takes so long unless something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn command(port: Option<u16>, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_model-server"));
    command
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(port) = port {
        command.env("PORT", port.to_string());
    }
    command
}

fn poll(what: &str, mut is_there: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_there() {
        assert!(
            begin.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        std::thread::yield_now();
    }
}

impl Server {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let server = Self::listening(arguments, variables);
        poll("not ready", || server.get("/ready").0 == 200);
        server
    }

    /// A server on a port of its own choice, which nothing else can have taken in the meantime.
    fn listening(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut child = command(Some(0), arguments, variables).spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let port = line.trim_end().strip_prefix("listening on 127.0.0.1:");
        let port = port.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Self { child, port }
    }

    /// Blocks until one request is computed and one more waits for it.
    fn wait_until_one_runs_and_one_waits(&self) {
        poll("nobody waits behind another", || {
            let stats = self.stats();
            stats["running"] == 1 && stats["waiting"] == 1
        });
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn get(&self, path: &str) -> (u16, String) {
        exchange(self.connect(), &format!("GET {path}"), "")
    }

    fn infer(&self, body: &str) -> (u16, String) {
        exchange(self.connect(), "POST /infer", body)
    }

    fn answer(&self, body: &str) -> Value {
        let (status, body) = self.infer(body);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn stats(&self) -> Value {
        serde_json::from_str(&self.get("/stats").1).unwrap()
    }

    /// A request on a thread of its own.
    fn infer_beside(&self, body: &'static str) -> JoinHandle<(u16, String)> {
        let stream = self.connect();
        std::thread::spawn(move || exchange(stream, "POST /infer", body))
    }

    fn terminate(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
    }

    fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        poll("still there", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn complaint(&mut self) -> String {
        let mut text = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut text).unwrap();
        text
    }
}

fn send(stream: &mut TcpStream, head: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    let request = format!(
        "{head} HTTP/1.1\r\nHost: model\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())
}

/// Status and body of an answer that says its length; 0 where the server broke off.
fn exchange(mut stream: TcpStream, head: &str, body: &str) -> (u16, String) {
    let mut answer = String::new();
    let exchanged = send(&mut stream, head, body).and_then(|()| stream.read_to_string(&mut answer));
    if exchanged.is_err() || answer.is_empty() {
        return (0, String::new());
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

const NOTHING: &str = r#"{"input": 0, "output": 0}"#;

#[test]
fn costs_alone_make_a_server_that_waits() {
    let server = Server::start(
        &[],
        &[("MODEL_FIXED_US", "1000"), ("MODEL_OUTPUT_NS", "1000000")],
    );
    let begin = Instant::now();
    let answer = server.answer(r#"{"input": 3, "output": 4}"#);
    assert!(begin.elapsed() >= Duration::from_millis(5), "never sooner");
    assert_eq!(
        (&answer["model"], &answer["batch"]),
        (&"generic".into(), &1.into())
    );
    assert_eq!(server.get("/served"), (200, "1".to_owned()));
    assert_eq!(server.get("/health"), (200, "healthy".to_owned()));
    assert_eq!(server.get("/health?gpu=1"), (200, "healthy".to_owned()));
    let stats = server.stats();
    assert_eq!(
        (&stats["device"], &stats["condition"]),
        (&"cpu".into(), &"ready".into())
    );
    assert_eq!(
        (&stats["requests"], &stats["errors"]),
        (&1.into(), &0.into())
    );
}

#[test]
fn what_cannot_be_served_is_refused_with_a_reason() {
    let server = Server::start(&[], &[]);
    let (status, body) = server.infer("{}");
    assert_eq!(status, 400);
    assert!(
        body.starts_with(r#"{"input": n, "output": n} is needed"#),
        "{body}"
    );
    assert_eq!(server.infer(&"x".repeat(70_000)).0, 400);
    let (status, body) = server.infer(r#"{"input":0,"output":100001,"stream":true}"#);
    assert_eq!(status, 400, "{body}");
    let (status, body) = server.get("/");
    assert!(
        status == 404 && body.starts_with("known: POST /infer"),
        "{body}"
    );
    assert_eq!(
        server.get("/checksum?count=1").0,
        400,
        "there are no weights"
    );
    assert_eq!(server.get("/checksum?seed=x").0, 400);
    assert_eq!(server.get("/served"), (200, "0".to_owned()));
}

#[test]
fn requests_that_wait_together_are_computed_together() {
    let server = Server::start(&["--batch", "4", "--batch-wait", "60s"], &[]);
    let clients: Vec<_> = (0..4).map(|_| server.infer_beside(NOTHING)).collect();
    for client in clients {
        let (status, body) = client.join().unwrap();
        let answer: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &answer["batch"]), (200, &4.into()));
    }
    let stats = server.stats();
    assert_eq!(
        (&stats["requests"], &stats["batches"]),
        (&4.into(), &1.into())
    );
}

#[test]
fn one_at_a_time_unless_told_otherwise() {
    const LONG: &str = r#"{"input": 0, "output": 600}"#;
    let variables = [("MODEL_OUTPUT_NS", "1000000000")];
    let two = Server::start(&["--concurrency", "2"], &variables);
    let _long = two.infer_beside(LONG);
    // The other place is free, however long the first one takes.
    assert_eq!(two.infer(NOTHING).0, 200);

    let one = Server::start(&[], &variables);
    // Either may come first.
    let _one = one.infer_beside(LONG);
    let _other = one.infer_beside(LONG);
    one.wait_until_one_runs_and_one_waits();
    assert_eq!(one.get("/served").1, "0");
}

#[test]
fn streamed_output_comes_line_by_line() {
    let server = Server::start(&[], &[("MODEL_OUTPUT_NS", "1000000")]);
    let mut stream = server.connect();
    let body = r#"{"input": 0, "output": 3, "stream": true}"#;
    send(&mut stream, "POST /infer", body).unwrap();
    let lines: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
    assert!(lines[0].contains("200"), "{lines:?}");
    assert!(
        lines.contains(&"transfer-encoding: chunked".to_owned()),
        "{lines:?}"
    );
    let units: Vec<&String> = lines.iter().filter(|line| line.contains("unit")).collect();
    assert_eq!(units, [r#"{"unit":1}"#, r#"{"unit":2}"#, r#"{"unit":3}"#]);
    assert!(lines.iter().any(|line| line.contains("checksum")));
    assert_eq!(server.get("/served").1, "1");
}

#[test]
fn a_unit_does_not_wait_for_the_next_one() {
    let server = Server::start(&["--device", "cpu", "--kernels", "1x1us,1x500s"], &[]);
    let mut stream = server.connect();
    let body = r#"{"input": 0, "output": 2, "stream": true}"#;
    send(&mut stream, "POST /infer", body).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == r#"{"unit":1}"#));
    assert_eq!(server.get("/served").1, "0");
}

#[test]
fn every_batch_checks_the_next_blocks_of_the_weights() {
    let server = Server::start(
        &[
            "--model",
            "GNMT",
            "--device",
            "cpu",
            "--bytes",
            "512",
            "--kernels",
            "1x1us",
        ],
        &[("MODEL_CHECK", "7"), ("MODEL_VERIFY", "true")],
    );
    let model = Model::named("gnmt").unwrap();
    let blocks = usize::try_from(server.stats()["blocks"].as_u64().unwrap()).unwrap();
    assert_eq!(server.stats()["weights_bytes"], 640_000_000 / 512);
    for turn in 0..10 {
        let answer = server.answer(&format!(r#"{{"input":0,"output":0,"seed":{turn}}}"#));
        let checked = Checked {
            first: turn * 7 % blocks,
            count: 7,
        };
        assert_eq!(answer["checked_first"], checked.first);
        assert_eq!(answer["checked_count"], checked.count);
        let seed = u64::try_from(turn).unwrap();
        let expected = format!("{:016x}", expected_checksum(&model, 512, checked, seed));
        assert_eq!(
            (&answer["checksum"], &answer["right"]),
            (&expected.clone().into(), &true.into())
        );
        let path = format!("/checksum?first={}&count=7&seed={turn}", checked.first);
        assert_eq!(server.get(&path), (200, expected));
    }
    assert_eq!(server.stats()["wrong"], 0);
}

#[test]
fn what_runs_and_waits_is_finished_after_sigterm() {
    let mut server = Server::start(&[], &[("MODEL_FIXED_US", "1000000")]);
    let clients = [server.infer_beside(NOTHING), server.infer_beside(NOTHING)];
    server.wait_until_one_runs_and_one_waits();
    let idle = server.connect();
    server.terminate();
    for client in clients {
        assert_eq!(client.join().unwrap().0, 200);
    }
    assert_eq!(server.exit().code(), Some(0));
    drop(idle);
    assert!(TcpStream::connect(("127.0.0.1", server.port)).is_err());
}

#[test]
fn what_runs_for_too_long_is_broken_off() {
    let mut server = Server::start(&["--drain", "10ms"], &[("MODEL_FIXED_US", "600000000")]);
    let clients = [server.infer_beside(NOTHING), server.infer_beside(NOTHING)];
    server.wait_until_one_runs_and_one_waits();
    server.terminate();
    assert_eq!(server.exit().code(), Some(0));
    assert!(server.complaint().contains("they are broken off"));
    for client in clients {
        assert_eq!(client.join().unwrap().0, 0);
    }
}

#[test]
fn a_gpu_that_is_not_there_ends_the_server_with_a_reason() {
    let mut server = Server::listening(&["--model", "resnet-50", "--bytes", "4096"], &[]);
    let address = ("127.0.0.1", server.port);
    poll("neither ended nor ready", || {
        server.child.try_wait().unwrap().is_some()
            || TcpStream::connect(address)
                .is_ok_and(|stream| exchange(stream, "GET /ready", "").0 == 200)
    });
    // A machine that has one serves.
    if let Some(status) = server.child.try_wait().unwrap() {
        assert_eq!(status.code(), Some(1));
        let why = server.complaint();
        assert!(
            why.starts_with("model-server: cannot load the model: "),
            "{why}"
        );
        assert!(
            why.contains("libcuda.so.1") || why.contains("CUDA_ERROR"),
            "{why}"
        );
    }
}

#[test]
fn wrong_settings_end_with_2_and_their_name() {
    for (arguments, variables, why) in [
        (&[][..], &[][..], "model-server: PORT is not set\n"),
        (
            &["--port", "1", "--model", "alexnet"],
            &[],
            "model-server: --model=\"alexnet\": one of ",
        ),
        (
            &["--colour"],
            &[],
            "error: unexpected argument '--colour' found",
        ),
        (
            &[],
            &[("PORT", "1"), ("MODEL_FIXED_US", "soon")],
            "model-server: MODEL_FIXED_US=\"soon\": a whole number",
        ),
    ] {
        let output = command(None, arguments, variables).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.starts_with(why), "{text}");
    }
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let output = command(Some(port), &[], &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let output = command(None, &["--list-models"], &[]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), table.lines().count()),
        (Some(0), 13),
        "{table}"
    );
}
