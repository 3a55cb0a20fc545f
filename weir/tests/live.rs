//! Tests of `weir demo --live` and `weir live` as a user runs them, with the page in Debian's chromium.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "reports skipped checks")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use live::state::{FunctionStatus, State};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::client::Client;
use tests::control::{Cluster, Control, resource};
use tests::message::Message;
use tests::proxy::fresh_address;
use tests::{PATIENCE, SLACK, eventually, programs};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
/// Script that checks a page in a browser, in this repository.
const CHECK: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../dashboards/live/check/check"
);
/// Exit codes of the script when something is missing: usage or a program, npm's registry.
const NOT_CHECKED: [i32; 2] = [2, 3];

/// A program that prints the URL of its page, interrupted and reaped when dropped.
struct Server {
    child: Child,
    line: String,
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        Self {
            child,
            line: line.trim().to_owned(),
        }
    }

    fn end(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        // Its children end with it.
        let _gone = kill_process(pid, Signal::INT);
        let _status = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn text(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

fn address(url: &str) -> SocketAddr {
    let rest = url.strip_prefix("http://").unwrap();
    rest.strip_suffix("/live/").unwrap().parse().unwrap()
}

async fn get_state(at: SocketAddr) -> Message {
    let request = "GET /live/state HTTP/1.1\r\nHost: localhost\r\n\r\n";
    Client::connect(at).await.request(request).await
}

async fn state(at: SocketAddr) -> State {
    let answer = get_state(at).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    serde_json::from_str(&answer.text()).unwrap()
}

#[test]
fn unusable_options_are_refused_with_exit_code_2() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (token, empty, no_pem) = (file("token", "abc"), file("empty", "\n"), file("pem", "x"));
    let spaced = file("spaced", "a b");
    let (server, ca) = ("https://127.0.0.1", "/nowhere/ca.crt");
    for (arguments, expected) in [
        (&["demo", "--live", "--observe"][..], "cannot be used with"),
        (
            &["demo", "--live", "--hold", "5"],
            "--hold belongs to --observe; --live does not use it",
        ),
        (
            &["demo", "--live", "--scenario", "route"],
            "; --live does not use it",
        ),
        (
            &["demo", "--live", "--bind", "::1"],
            "needs an IPv4 address",
        ),
        (&["live"], "--server"),
        (
            &[
                "live",
                "--server",
                "http://127.0.0.1",
                "--token-file",
                &token,
                "--ca",
                ca,
            ],
            "allowed: https://HOST[:PORT]",
        ),
        (
            &[
                "live",
                "--server",
                "https://a/b",
                "--token-file",
                &token,
                "--ca",
                ca,
            ],
            "allowed: https://HOST[:PORT]",
        ),
        (
            &[
                "live",
                "--server",
                "https://a:b@c",
                "--token-file",
                &token,
                "--ca",
                ca,
            ],
            "allowed: https://HOST[:PORT]",
        ),
        (
            &[
                "live",
                "--server",
                server,
                "--token-file",
                &token,
                "--ca",
                ca,
            ],
            "--ca /nowhere/ca.crt",
        ),
        (
            &[
                "live",
                "--server",
                server,
                "--token-file",
                &token,
                "--ca",
                &no_pem,
            ],
            "contains no certificate",
        ),
    ] {
        let (code, printed) = text(&Command::new(WEIR).args(arguments).output().unwrap());
        assert_eq!(code, Some(2), "{arguments:?}: {printed}");
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
    }
    let key = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
    let ca = file("ca.crt", &key.cert.pem());
    for (token, bind, expected) in [
        (
            "/nowhere/token",
            "127.0.0.1:0",
            "--token-file /nowhere/token",
        ),
        (&*empty, "127.0.0.1:0", "is empty"),
        (&*spaced, "127.0.0.1:0", "not a token"),
        (&*token, "0.0.0.0:0", "served on loopback only"),
    ] {
        let arguments = [
            "live",
            "--server",
            server,
            "--token-file",
            token,
            "--ca",
            &ca,
            "--bind",
            bind,
        ];
        let (code, printed) = text(&Command::new(WEIR).args(arguments).output().unwrap());
        assert_eq!(code, Some(2), "{arguments:?}: {printed}");
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
    }
}

/// Number of the demo's slots: two GPUs and a MIG slice of one node, two GPUs of another which pods take in turns.
const SLOTS: usize = 5;

#[tokio::test]
async fn the_demos_page_shows_functions_slots_and_events_without_browser_errors() {
    let arguments = ["demo", "--live", "--json", "--bind", "127.0.44.1"];
    let server = Server::start(Command::new(WEIR).args(arguments));
    let found: Value = serde_json::from_str(&server.line).unwrap();
    let url = found["url"].as_str().unwrap().to_owned();
    let at = address(&url);
    let begin = std::time::Instant::now();
    loop {
        let state = state(at).await;
        let function = |name: &str| state.functions.iter().find(|own| own.name == name);
        let burst = function("burst");
        let is_shown = function("cold").is_some_and(|own| own.judged > 0)
            && burst.is_some_and(|own| own.judged > own.in_time && own.percentile == Some(98.0))
            && state.slots.len() == SLOTS
            && state.slots.iter().all(|slot| !slot.busy.is_empty())
            && state.events.iter().any(|event| event.kind == "slot-added");
        if is_shown {
            // An event is fetched once and shown once.
            let added = state.events.iter().filter(|own| own.kind == "slot-added");
            assert_eq!(added.count(), SLOTS);
            assert_eq!(state.notices, Vec::<String>::new());
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{state:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for (request, status) in [
        (
            "POST /live/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
            405,
        ),
        (
            "GET /live/state HTTP/1.1\r\nHost: rebound.example\r\n\r\n",
            421,
        ),
        (
            "GET /live/state HTTP/1.1\r\nHost: localhost\r\nOrigin: http://other.example\r\n\r\n",
            403,
        ),
        ("GET /v1/functions HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ] {
        let answer = Client::connect(at).await.request(request).await;
        assert_eq!(answer.status(), status, "{request}");
    }
    let checked =
        tokio::task::spawn_blocking(move || Command::new(CHECK).arg(&url).output().unwrap());
    let checked = checked.await.unwrap();
    let (code, printed) = text(&checked);
    if code.is_some_and(|code| NOT_CHECKED.contains(&code)) {
        eprintln!("not checked in a browser: {printed}");
        return;
    }
    assert_eq!(
        code,
        Some(0),
        "{printed}{}",
        String::from_utf8_lossy(&checked.stdout)
    );
}

/// Starts role `control` of this binary through a script, as if it were a separate program.
fn control(cluster: &Cluster, folder: &Path) -> Control {
    let script = folder.join("activator-ext");
    let text = format!("#!/bin/sh\nexec {WEIR} child activator-ext --parent $PPID -- \"$@\"\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    cluster.control(&script.display().to_string(), "weir-control-0")
}

/// Writes the certificate authorities as `kubectl get configmap weir-ca` shows them; `None` if they do not exist yet.
fn authorities(cluster: &Cluster, folder: &Path) -> Option<PathBuf> {
    let bundle = cluster
        .api
        .get(&resource("configmaps"), "weir-system", "weir-ca")?;
    let path = folder.join("ca.crt");
    fs::write(&path, bundle["data"]["ca.crt"].as_str()?).unwrap();
    Some(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_users_token_gives_access_to_a_clusters_page_and_other_tokens_do_not() {
    let cluster = Cluster::start(Duration::from_millis(30)).await;
    let folder = TempDir::new().unwrap();
    let pod = cluster.add_pod("data-0").await;
    cluster.add_revision("f", true);
    let agent = fresh_address();
    let empty = json!({"metadata": {"namespace": "weir-agent", "name": "weir-certificates"}});
    cluster.api.apply(&resource("secrets"), empty);
    // A server that accepts connections without answering, as behind a broken network.
    let silent = fresh_address();
    let _silent = tokio::net::TcpListener::bind((silent, 9470)).await.unwrap();
    for (node, ip) in [("node-1", agent), ("node-2", silent)] {
        let agent_pod = json!({
            "metadata": {
                "namespace": "weir-agent", "name": format!("weir-agent-{node}"),
                "labels": {"app.kubernetes.io/name": "weir-agent"},
            },
            "spec": {"nodeName": node}, "status": {"podIP": ip},
        });
        cluster.api.apply(&resource("pods"), agent_pod);
    }
    for (token, user, audience) in [
        ("person", "anna", None),
        ("stranger", "ben", None),
        (
            "pod",
            "system:serviceaccount:default:default",
            Some("weir.dev"),
        ),
    ] {
        cluster.api.allow_token(token, user, audience);
    }
    cluster.api.allow_user("anna");
    let control = control(&cluster, folder.path());
    let function = json!({"functions": [{
        "namespace": "default", "function": "f", "waiting": 3, "waiting_by_slack": [1, 2, 0, 0, 0],
        "variants": [{"revision": "f", "objective_ms": 1_000, "percentile": 98.0, "judged": 7, "in_time": 7}],
        "instances": [{"address": "10.0.0.1:8012", "revision": "f", "requests": 1, "ejected": false}],
    }]});
    let data = SocketAddr::new(pod.ip, 9475);
    programs::serve(&cluster, "knative-serving", data, move |_| {
        function.to_string()
    })
    .await;
    let event = json!({"sequence": 4, "unix_ms": 5, "kind": "slot-lost", "slot": "0", "text": "<b>gone</b>"});
    let slots = json!({"slots": [{
        "slot": "0", "product": "A GPU", "kind": "mps", "lost": "gone", "recent": {"busy_percent": [50, null]},
    }]});
    programs::serve(
        &cluster,
        "weir-agent",
        SocketAddr::new(agent, 9470),
        move |target| match target {
            "/v1/events?after=0" => format!("{event}\n"),
            "/v1/events?after=4" => String::new(),
            _ => slots.to_string(),
        },
    )
    .await;
    eventually("the authorities exist", || {
        authorities(&cluster, folder.path()).is_some()
    })
    .await;
    let token = folder.path().join("token");
    let mut command = Command::new(WEIR);
    command
        .args(["live", "--bind", "127.0.0.1:0", "--server"])
        .arg(format!("https://{}", control.ip))
        .arg("--token-file")
        .arg(&token)
        .arg("--ca")
        .arg(folder.path().join("ca.crt"));
    for (wrong, expected) in [
        ("unknown", "401 Unauthorized: a bearer token is required"),
        (
            "stranger",
            "403 Forbidden: ben may not get gpufunctions.weir.dev",
        ),
        (
            "pod",
            "403 Forbidden: a pod of default sees its own functions only",
        ),
    ] {
        fs::write(&token, wrong).unwrap();
        let (code, printed) = text(&command.output().unwrap());
        assert_eq!(code, Some(1), "{wrong}: {printed}");
        assert!(printed.contains(expected), "{wrong}: {printed}");
    }
    fs::write(&token, "person\n").unwrap();
    let mut server = Server::start(&mut command);
    let at = address(&server.line);
    let begin = std::time::Instant::now();
    let state = loop {
        let state = state(at).await;
        let is_whole =
            !state.functions.is_empty() && !state.slots.is_empty() && state.events.len() > 1;
        if is_whole && state.notices == ["the agent of node-2 does not answer"] {
            break state;
        }
        assert!(begin.elapsed() < PATIENCE, "{state:?} {}", control.log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let own = &state.functions[0];
    assert_eq!(
        (own.state, own.waiting, own.running, own.ready),
        (FunctionStatus::Late, 3, 1, 1)
    );
    assert_eq!(state.slots[0].busy, [Some(50), None]);
    assert_eq!(state.slots[0].lost.as_deref(), Some("gone"));
    let kinds: Vec<_> = state
        .events
        .iter()
        .map(|event| (&*event.kind, &*event.about))
        .collect();
    assert!(kinds.contains(&("slot-lost", "node-1/0")), "{kinds:?}");
    assert!(kinds.contains(&("Attached", "default/f")), "{kinds:?}");
    // The stream is sent every second, although an agent is silent.
    let begin = std::time::Instant::now();
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::io::Write::write_all(
        &mut stream,
        b"GET /live/stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    .unwrap();
    let mut read = String::new();
    let mut chunk = [0; 4_096];
    while read.matches("data: {").count() < 3 {
        let bytes = tokio::task::block_in_place(|| stream.read(&mut chunk)).unwrap();
        assert!(bytes > 0, "{read}");
        read.push_str(&String::from_utf8_lossy(&chunk[..bytes]));
    }
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(4) + SLACK, "{took:?}");
    assert!(read.contains("text/event-stream") && read.contains("default-src 'none'"));
    // An unknown token is refused by the server; its answer is passed on.
    fs::write(&token, "unknown").unwrap();
    let refused = get_state(at).await;
    assert_eq!(refused.status(), 401, "{}", refused.text());
    // A foreign page in a browser gets nothing, whatever the token.
    let foreign = "GET /live/state HTTP/1.1\r\nHost: rebound.example\r\n\r\n";
    let refused = Client::connect(at).await.request(foreign).await;
    assert_eq!(refused.status(), 421);
    server.end();
}
