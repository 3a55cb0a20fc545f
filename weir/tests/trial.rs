//! Tests of `weir proxy` and `weir compare` in front of foreign servers: Python's, and nginx with a delay.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "reports skipped checks")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Source of a server which handles one request at a time, each for 20 ms; `/slow` takes 5 s; after the given number of requests
/// it fails.
const SERVER: &str = r#"
import sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
lock, left = threading.Lock(), [int(sys.argv[1])]
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_GET(self):
        with lock:
            left[0] -= 1
            fails = left[0] < 0
            time.sleep(5.0 if self.path == "/slow" else 0.02)
        body = (self.command + " " + self.path + " " + self.headers.get("X-Model", "-") + "\n").encode()
        self.send_response(500 if fails else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()
    def log_message(self, *arguments):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A process started by a test, killed when dropped.
struct Running {
    child: Child,
    address: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

fn is_there(program: &str, argument: &str) -> bool {
    let is_there = Command::new(program).arg(argument).output().is_ok();
    if !is_there {
        eprintln!("not checked: {program} is not installed");
    }
    is_there
}

/// Starts Python's server, which fails after this many requests; `None` if Python is missing.
fn python(requests: u32) -> Option<Running> {
    if !is_there("python3", "--version") {
        return None;
    }
    let mut child = Command::new("python3")
        .args(["-c", SERVER, &requests.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let port: u16 = line.trim().parse().unwrap();
    Some(Running {
        child,
        address: SocketAddr::from(([127, 0, 0, 1], port)),
    })
}

/// Starts nginx, which passes a request each 25 ms and delays the others; `None` if nginx is missing.
fn nginx(folder: &TempDir) -> Option<Running> {
    if !is_there("nginx", "-v") {
        return None;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let root = folder.path().display();
    let configuration = format!(
        "daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n\
           access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fcgi;\n\
           uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;\n\
           limit_req_zone $request_method zone=one:1m rate=40r/s;\n\
           server {{ listen {address}; location / {{ limit_req zone=one burst=10000; limit_req_status 500; root {root}/www; }} }}\n\
         }}\n"
    );
    fs::create_dir(folder.path().join("www")).unwrap();
    fs::write(folder.path().join("www/index.html"), "ok\n").unwrap();
    let path = folder.path().join("nginx.conf");
    fs::write(&path, configuration).unwrap();
    let child = Command::new("nginx")
        .arg("-c")
        .arg(&path)
        .arg("-p")
        .arg(folder.path())
        .spawn()
        .unwrap();
    let running = Running { child, address };
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begin.elapsed() < PATIENCE, "nginx does not listen");
        std::thread::park_timeout(Duration::from_millis(10));
    }
    Some(running)
}

/// Longest wait for any condition.
const PATIENCE: Duration = Duration::from_secs(60);

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments);
    command
}

/// Starts a proxy in front of a server; returns it with the address of its metrics.
fn proxy(target: SocketAddr, more: &[&str]) -> (Running, SocketAddr) {
    let target = target.to_string();
    let own = [
        "proxy",
        "--target",
        &target,
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        "127.0.0.1:0",
        "--json",
    ];
    let mut child = weir(&own)
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let listening: Value = serde_json::from_str(&line).unwrap();
    let address = |key: &str| -> SocketAddr {
        let url = listening[key].as_str().unwrap();
        let rest = url.trim_start_matches("http://");
        rest.trim_end_matches("/metrics").parse().unwrap()
    };
    let running = Running {
        child,
        address: address("requests"),
    };
    (running, address("metrics"))
}

/// Sends a request on a connection of its own, and returns the raw answer.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: a\r\nX-Model: resnet\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Blocks until a gauge of the proxy is 1.
fn await_gauge(metrics: SocketAddr, gauge: &str) {
    testing::until(gauge, || {
        let page = get(metrics, "/metrics");
        let mut lines = page.lines();
        lines.any(|line| line.starts_with(gauge) && line.ends_with(" 1"))
    });
}

/// Asserts exit code 2, nothing on stdout and one line on stderr; returns that line.
fn refusal(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    stderr
}

fn compare(target: SocketAddr, arguments: &[&str]) -> Output {
    let target = target.to_string();
    weir(&["compare", "--target", &target])
        .args(arguments)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"))
}

#[test]
fn a_proxy_in_front_of_a_python_server_passes_answers_and_drains_at_an_interrupt() {
    let Some(server) = python(1_000) else {
        return;
    };
    let (mut proxy, metrics) = proxy(server.address, &["--slo", "200ms"]);
    let answer = get(proxy.address, "/a?b=c");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.ends_with("GET /a?b=c resnet\n"), "{answer}");
    assert!(
        answer.to_ascii_lowercase().contains("\r\nserver-timing: "),
        "{answer}"
    );
    let page = get(metrics, "/metrics");
    assert!(page.contains("weir_requests_in_time_total{"), "{page}");

    // One request is at the server and one waits when the interrupt arrives: both are answered.
    let address = proxy.address;
    let first = std::thread::spawn(move || get(address, "/slow"));
    await_gauge(metrics, "weir_requests_running");
    let second = std::thread::spawn(move || get(address, "/"));
    await_gauge(metrics, "weir_requests_waiting");
    let pid = Pid::from_raw(i32::try_from(proxy.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(first.join().unwrap().starts_with("HTTP/1.1 200 "));
    // Shed by then, or served: answered in any case.
    let second = second.join().unwrap();
    let is_answered = ["HTTP/1.1 200 ", "HTTP/1.1 503 "]
        .iter()
        .any(|own| second.starts_with(own));
    assert!(is_answered, "{second}");
    assert_eq!(proxy.child.wait().unwrap().code(), Some(0));
}

#[test]
fn usage_errors_are_one_sentence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let free = "127.0.0.1:1";
    for (arguments, expected) in [
        (vec!["proxy"], "--target <HOST:PORT>"),
        (
            vec!["proxy", "--target", "https://a"],
            "TLS to the server is not supported",
        ),
        (
            vec!["proxy", "--target", free, "--slo", "2"],
            "allowed: a time from 1ms to 1h such as 200ms or 1.5s",
        ),
        (
            vec!["proxy", "--target", free, "--late", "shed"],
            "--slo <TIME>",
        ),
        (
            vec!["proxy", "--target", free, "--concurrency", "0"],
            "a whole number from 1 to 1000",
        ),
        (
            vec!["proxy", "--target", &taken, "--listen", &taken],
            "requests would loop",
        ),
        (
            vec!["proxy", "--target", free, "--listen", &taken],
            "cannot listen: Address already in use",
        ),
        (
            vec![
                "proxy",
                "--target",
                free,
                "--listen",
                "127.0.0.1:0",
                "--metrics",
                &taken,
            ],
            "--metrics 127.0.0.1:",
        ),
        (vec!["compare", "--target", free], "--rate <R>"),
        (
            vec!["compare", "--target", free, "--rate", "0"],
            "a number from 0.1 to 20000",
        ),
        (
            vec!["compare", "--target", free, "--rate", "9"],
            "the server does not answer",
        ),
        (
            vec!["compare", "--target", free, "--rate", "1", "--seconds", "2"],
            "at least 20 are needed",
        ),
        (
            vec![
                "compare", "--target", free, "--rate", "9", "--expect", "good",
            ],
            "better, not-worse, or a number",
        ),
        (
            vec!["compare", "--target", free, "--trace", "/nonexistent"],
            "/nonexistent: cannot be read",
        ),
        (
            vec![
                "compare",
                "--target",
                free,
                "--rate",
                "9",
                "--html",
                "/no/x.html",
            ],
            "there is no folder /no",
        ),
    ] {
        let stderr = refusal(&weir(&arguments).output().unwrap());
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn weir_helps_a_busy_python_server_and_not_an_idle_one() {
    let Some(server) = python(1_000_000) else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    // It can answer some 48 requests a second.
    let busy = [
        "--rate",
        "70",
        "--seconds",
        "9",
        "--rounds",
        "3",
        "--slo",
        "150ms",
        "--json",
    ];
    let output = compare(
        server.address,
        &[&busy[..], &["--expect", "better", "--html", page]].concat(),
    );
    let own = json(&output);
    assert_eq!(own["verdict"], "weir", "{own}");
    assert_eq!(
        (output.status.code(), &own["as_expected"]),
        (Some(0), &Value::Bool(true))
    );
    let mean = |settings: &str| own["in_time"][settings]["mean"].as_f64().unwrap();
    assert!(mean("weir") > mean("stock") + 0.2, "{own}");
    assert!(own["server"]["busy"].as_f64().unwrap() > 0.8, "{own}");
    let takes = own["server"]["execution_ms"].as_f64().unwrap();
    assert!(takes >= 20.0, "{own}");
    for settings in ["stock", "weir"] {
        let counts = &own[settings];
        let fates = ["answered", "refused", "shed", "failed", "lost"];
        let sum: u64 = fates.iter().map(|key| counts[key].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), counts["requests"].as_u64(), "{own}");
        assert!(counts["requests"].as_u64().unwrap() > 500, "{own}");
    }
    assert_eq!(own["stock"]["shed"], 0);
    assert_eq!(own["rounds"].as_array().unwrap().len(), 3);
    let html = fs::read_to_string(page).unwrap();
    for part in [
        "Would Weir help this server?",
        "Knative&#39;s settings",
        "<svg",
        "Rounds",
    ] {
        assert!(
            html.contains(part) || html.contains(&part.replace("&#39;", "'")),
            "{part}"
        );
    }
    assert!(!html.contains("<script"));

    let idle = [
        "--rate",
        "8",
        "--seconds",
        "9",
        "--rounds",
        "3",
        "--slo",
        "2s",
        "--expect",
        "better",
        "--color",
        "never",
    ];
    let output = compare(server.address, &idle);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("No difference: the server is idle "),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(1), "{text}");
}

#[test]
fn failures_of_the_server_are_reported() {
    let Some(server) = python(150) else {
        return;
    };
    let output = compare(
        server.address,
        &["--rate", "30", "--seconds", "6", "--rounds", "3", "--json"],
    );
    let own = json(&output);
    let warnings = own["warnings"].to_string();
    assert!(warnings.contains("the server failed: with "), "{own}");
    assert!(own["weir"]["failed"].as_u64().unwrap() > 0, "{own}");
}

#[test]
fn requests_of_a_file_are_sent_as_specified() {
    let Some(server) = python(1_000) else {
        return;
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for n in 0..45 {
        writeln!(
            file,
            "{{\"at_s\":{:.3},\"method\":\"POST\",\"path\":\"/infer\",\"headers\":{{\"X-Model\":\"r\"}},\"body\":\"x\",\"slo_ms\":500}}",
            f64::from(n) * 0.05
        )
        .unwrap();
    }
    let path = file.path().to_str().unwrap();
    let own = json(&compare(
        server.address,
        &[
            "--requests",
            path,
            "--rounds",
            "3",
            "--late",
            "serve",
            "--queue-depth",
            "1000",
            "--json",
        ],
    ));
    for settings in ["stock", "weir"] {
        assert_eq!(own[settings]["requests"], 45, "{own}");
        assert_eq!(own[settings]["answered"], 45, "{own}");
    }
}

#[test]
fn a_throttling_nginx_is_slow_and_does_not_fail() {
    let folder = TempDir::new().unwrap();
    let Some(server) = nginx(&folder) else {
        return;
    };
    // It passes 40 requests a second.
    let own = json(&compare(
        server.address,
        &[
            "--rate",
            "60",
            "--seconds",
            "6",
            "--rounds",
            "3",
            "--slo",
            "150ms",
            "--json",
        ],
    ));
    assert_eq!(own["verdict"], "weir", "{own}");
    assert_eq!(own["weir"]["failed"], 0, "{own}");
    assert!(
        own["server"]["execution_ms"].as_f64().unwrap() > 15.0,
        "{own}"
    );
}
