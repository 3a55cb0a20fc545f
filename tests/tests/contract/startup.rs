use std::time::Duration;

use tests::app::App;
use tests::client::Client;
use tests::client2::Client2;
use tests::proxy::is_own;
use tokio::net::{TcpListener, TcpStream};

use crate::proxy;

const SECOND: Duration = Duration::from_secs(1);
/// Longest time on a busy machine for a process that must fail within a second.
const LIMIT: Duration = tests::PATIENCE;

#[tokio::test]
async fn item_001_each_missing_variable_is_named_and_ends_the_process() {
    for name in [
        "SERVING_NAMESPACE",
        "SERVING_CONFIGURATION",
        "SERVING_REVISION",
        "QUEUE_SERVING_PORT",
        "QUEUE_SERVING_TLS_PORT",
        "CONTAINER_CONCURRENCY",
        "REVISION_TIMEOUT_SECONDS",
        "SERVING_POD",
        "SERVING_POD_IP",
        "SERVING_LOGGING_CONFIG",
        "SERVING_LOGGING_LEVEL",
        "USER_PORT",
    ] {
        let (status, stderr) = proxy(1).unset(name).run_to_end(LIMIT).await;
        assert!(!status.success());
        assert!(
            stderr.contains(&format!("required key {name} missing value")),
            "{stderr}"
        );
    }
}

#[test]
fn help_and_version_are_answered_and_other_arguments_refused() {
    if !is_own() {
        return;
    }
    let run = |arguments: &[&str]| {
        std::process::Command::new(crate::OWN)
            .args(arguments)
            .env_clear()
            .output()
            .expect("it runs")
    };
    for (arguments, begin) in [
        (["--help"], "Usage: queue-proxy"),
        (["-h"], "Usage: queue-proxy"),
        (["--version"], "queue-proxy 0."),
        (["-V"], "queue-proxy 0."),
    ] {
        let output = run(&arguments);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.starts_with(begin), "{arguments:?}: {printed}");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(output.stderr, b"", "{arguments:?}");
    }
    let output = run(&["--port", "1"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("--port: unknown argument"), "{said}");
    // Without arguments the environment is read.
    assert_eq!(run(&[]).status.code(), Some(1));
}

#[tokio::test]
async fn item_002_strings_may_be_empty() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set("SERVING_CONFIGURATION", "")
        .set("SERVING_LOGGING_CONFIG", "")
        .set("SERVING_LOGGING_LEVEL", "")
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.text(), "hello");
}

#[tokio::test]
async fn item_003_numbers_and_booleans_must_be_such() {
    for (name, value) in [
        ("CONTAINER_CONCURRENCY", "x"),
        ("REVISION_TIMEOUT_SECONDS", "1s"),
        ("ENABLE_HTTP_FULL_DUPLEX", "Yes"),
    ] {
        let (status, stderr) = proxy(1).set(name, value).run_to_end(LIMIT).await;
        assert_eq!(status.code(), Some(1), "{name}");
        assert!(stderr.contains(name) && stderr.contains(value), "{stderr}");
    }
}

#[tokio::test]
async fn item_004_malformed_json_ends_the_process() {
    for name in ["SERVING_READINESS_PROBE", "OBSERVABILITY_CONFIG"] {
        let (status, stderr) = proxy(1).set(name, "{oops").run_to_end(LIMIT).await;
        assert_eq!(status.code(), Some(1), "{name}");
        assert!(!stderr.is_empty());
        assert!(stderr.contains(name) || !is_own(), "{stderr}");
    }
}

#[tokio::test]
async fn item_005_a_malformed_logging_config_does_not_prevent_the_start() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set("SERVING_LOGGING_CONFIG", "{oops")
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.status(), 200);
}

#[tokio::test]
async fn item_006_listens_on_its_ports_and_no_other() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    for port in [8012, 8022, 9090] {
        assert!(TcpStream::connect(proxy.at(port)).await.is_ok(), "{port}");
    }
    for port in [8112, 9091, 8008] {
        assert!(TcpStream::connect(proxy.at(port)).await.is_err(), "{port}");
    }
}

#[tokio::test]
async fn item_007_an_occupied_port_ends_the_process() {
    for port in [8012, 8022, 9090] {
        let builder = proxy(1);
        let ip = builder.ip();
        let _occupied = TcpListener::bind((ip, port)).await.unwrap();
        let (status, stderr) = builder.run_to_end(LIMIT).await;
        assert_eq!(status.code(), Some(1), "{port}");
        assert!(stderr.contains(&format!(":{port}")), "{stderr}");
        let whole = format!("{ip}:{port}");
        assert!(stderr.contains(&whole) || !is_own(), "{stderr}");
    }
}

#[tokio::test]
async fn item_008_it_needs_no_file_and_writes_none() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set("WEIR_PODINFO", "/nonexistent/annotations")
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.status(), 200);
    let mut writable = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{}/fd", proxy.pid())).unwrap() {
        // The file may have been closed meanwhile.
        let Ok(target) = std::fs::read_link(entry.unwrap().path()) else {
            continue;
        };
        let kind = target.to_string_lossy().into_owned();
        let is_own = ["/dev/null", "/stdout", "/stderr"]
            .iter()
            .any(|own| kind.ends_with(own));
        // The runtime opens files of its limits, but does not write them.
        if kind.starts_with('/') && !is_own && !kind.starts_with("/sys/") {
            writable.push(kind);
        }
    }
    assert_eq!(writable, Vec::<String>::new());
}

#[tokio::test]
async fn item_009_unknown_variables_and_keys_are_ignored() {
    let app = App::saying("hello").await;
    let proxy = proxy(app.port)
        .set("SOMETHING_NEW", "1")
        .set(
            "OBSERVABILITY_CONFIG",
            r#"{"new":{"protocol":"x"},"requestMetrics":{"protocol":"none"}}"#,
        )
        .start()
        .await;
    assert_eq!(proxy.connect().await.get("/").await.status(), 200);
}

#[tokio::test]
async fn item_010_one_listener_speaks_http1_and_http2_on_either_port() {
    for port in ["8012", "8013"] {
        let app = App::saying("one").await;
        let app2 = tests::app2::App2::serving(|_| async {
            http::Response::new(tests::client2::full("two"))
        })
        .await;
        let one = proxy(app.port)
            .set("QUEUE_SERVING_PORT", port)
            .start()
            .await;
        assert_eq!(one.connect().await.get("/").await.text(), "one");
        drop(one);
        let two = proxy(app2.port)
            .set("QUEUE_SERVING_PORT", port)
            .start()
            .await;
        assert_eq!(
            Client2::connect(two.address()).await.get("/").await.1,
            "two"
        );
    }
}

#[tokio::test]
async fn is_ready_within_a_second() {
    let begin = tokio::time::Instant::now();
    let app = App::saying("hello").await;
    let proxy = proxy(app.port).start().await;
    Client::connect(proxy.at(9090)).await.get("/metrics").await;
    assert!(
        begin.elapsed() < SECOND + tests::SLACK,
        "{:?}",
        begin.elapsed()
    );
}
