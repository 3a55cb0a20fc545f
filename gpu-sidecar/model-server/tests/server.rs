//! The model-server over real sockets, without a GPU.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model_server::checksum::CheckedBlocks;
use model_server::{Model, expected_checksum};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Timeout of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
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

fn poll(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
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
        poll("the server is ready", || server.get("/ready").0 == 200);
        server
    }

    /// Starts a server on a free port chosen by itself, which no other program can have taken meanwhile.
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
        poll("one request runs and one waits", || {
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

    /// Sends a request from another thread.
    fn infer_in_background(&self, body: &'static str) -> JoinHandle<(u16, String)> {
        let stream = self.connect();
        std::thread::spawn(move || exchange(stream, "POST /infer", body))
    }

    fn terminate(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
    }

    fn exit(&mut self) -> ExitStatus {
        let mut status = None;
        poll("the server has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn error_output(&mut self) -> String {
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

/// Sends a request and returns status and body; status 0 when the server closed the connection.
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
fn a_server_with_costs_alone_waits_for_the_service_time() {
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
fn invalid_requests_are_refused_with_a_reason() {
    let server = Server::start(&[], &[]);
    let (status, body) = server.infer("{}");
    assert_eq!(status, 400);
    assert!(
        body.starts_with(r#"{"input": n, "output": n} is required"#),
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
fn waiting_requests_are_batched() {
    let server = Server::start(&["--batch", "4", "--batch-wait", "60s"], &[]);
    let clients: Vec<_> = (0..4)
        .map(|_| server.infer_in_background(NOTHING))
        .collect();
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
fn batches_run_one_at_a_time_by_default() {
    const LONG: &str = r#"{"input": 0, "output": 600}"#;
    let variables = [("MODEL_OUTPUT_NS", "1000000000")];
    let two = Server::start(&["--concurrency", "2"], &variables);
    let _long = two.infer_in_background(LONG);
    // The other lane is free, however long the first request takes.
    assert_eq!(two.infer(NOTHING).0, 200);

    let one = Server::start(&[], &variables);
    // Either may arrive first.
    let _one = one.infer_in_background(LONG);
    let _other = one.infer_in_background(LONG);
    one.wait_until_one_runs_and_one_waits();
    assert_eq!(one.get("/served").1, "0");
}

#[test]
fn streamed_output_has_a_line_per_unit() {
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
fn a_unit_is_sent_before_the_next_is_computed() {
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
        let checked = CheckedBlocks {
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
fn running_and_waiting_requests_finish_after_sigterm() {
    let mut server = Server::start(&[], &[("MODEL_FIXED_US", "1000000")]);
    let clients = [
        server.infer_in_background(NOTHING),
        server.infer_in_background(NOTHING),
    ];
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
fn requests_beyond_the_drain_time_are_aborted() {
    let mut server = Server::start(&["--drain", "10ms"], &[("MODEL_FIXED_US", "600000000")]);
    let clients = [
        server.infer_in_background(NOTHING),
        server.infer_in_background(NOTHING),
    ];
    server.wait_until_one_runs_and_one_waits();
    server.terminate();
    assert_eq!(server.exit().code(), Some(0));
    assert!(server.error_output().contains("are aborted"));
    for client in clients {
        assert_eq!(client.join().unwrap().0, 0);
    }
}

#[test]
fn a_missing_gpu_ends_the_server_with_a_reason() {
    let mut server = Server::listening(&["--model", "resnet-50", "--bytes", "4096"], &[]);
    let address = ("127.0.0.1", server.port);
    poll("the server has ended or is ready", || {
        server.child.try_wait().unwrap().is_some()
            || TcpStream::connect(address)
                .is_ok_and(|stream| exchange(stream, "GET /ready", "").0 == 200)
    });
    // On a machine with a GPU the server runs.
    if let Some(status) = server.child.try_wait().unwrap() {
        assert_eq!(status.code(), Some(1));
        let why = server.error_output();
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
fn invalid_settings_exit_with_2_and_their_name() {
    for (arguments, variables, why) in [
        (&[][..], &[][..], "model-server: PORT is not set\n"),
        (
            &["--port", "1", "--model", "alexnet"],
            &[],
            "model-server: --model=\"alexnet\": allowed: one of ",
        ),
        (
            &["--colour"],
            &[],
            "error: unexpected argument '--colour' found",
        ),
        (
            &[],
            &[("PORT", "1"), ("MODEL_FIXED_US", "soon")],
            "model-server: MODEL_FIXED_US=\"soon\": allowed: a whole number",
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
