//! Tests of `weir demo` as a user runs it: messages, exit codes, children.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Returns a loopback address of this test in this process.
fn address(test: u8) -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.{}.{low}.{test}", 201 + high % 50)
}

fn demo(bind: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("demo").args(["--bind", bind]).args(arguments);
    command
}

fn run(bind: &str, arguments: &[&str]) -> Output {
    demo(bind, arguments).output().unwrap()
}

/// Asserts exit code 2, nothing on stdout and one line on stderr; returns that line.
fn refusal(output: &Output) -> String {
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn both_runs_answer_every_request_in_the_json() {
    let output = run(&address(11), &["--json", "--seconds", "3", "--seed", "2"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    // Whether a queue fills depends on how fast this machine answers; nothing else is warned of.
    let is_full = |line: &str| line.contains("\"the queue is full: requests are refused\"");
    assert!(stderr.lines().all(is_full), "{stderr}");
    let text = String::from_utf8(output.stdout).unwrap();
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (report["scenario"].as_str(), report["seed"].as_u64()),
        (Some("deadline"), Some(2))
    );
    assert!((report["load"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(
        runs.iter()
            .map(|run| run["name"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["stock", "weir"]
    );
    for run in runs {
        assert_eq!(run["requests"], runs[0]["requests"]);
        let fates =
            ["answered", "refused", "shed", "failed", "lost"].map(|key| run[key].as_u64().unwrap());
        assert_eq!(Some(fates.iter().sum()), run["requests"].as_u64(), "{run}");
        assert_eq!((&run["failed"], &run["lost"]), (&0.into(), &0.into()));
        assert!(run["in_time"].as_u64().unwrap() <= fates[0], "{run}");
        for key in ["hit_rate", "p50_ms", "p95_ms", "p99_ms", "goodput_rps"] {
            assert!(run[key].as_f64().unwrap() > 0.0, "{key} in {run}");
        }
        for key in ["refused", "shed"] {
            assert!(run[key].is_u64(), "{key} in {run}");
        }
        let classes: u64 = run["classes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|class| class["requests"].as_u64().unwrap())
            .sum();
        assert_eq!(Some(classes), run["requests"].as_u64());
    }
    assert_eq!(runs[0]["shed"], 0, "stock settings shed nothing");
}

#[test]
fn the_json_has_the_results_of_three_ways_of_routing() {
    let arguments = [
        "--scenario",
        "route",
        "--json",
        "--seconds",
        "3",
        "--seed",
        "2",
        "--speeds",
        "1,0.5",
    ];
    let output = run(&address(21), &arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.is_empty(), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (report["scenario"].as_str(), report["seed"].as_u64()),
        (Some("route"), Some(2))
    );
    assert_eq!(report["speeds"], serde_json::json!([1.0, 0.5]));
    assert!((report["load"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    let runs = report["runs"].as_array().unwrap();
    let names = runs.iter().map(|run| run["name"].as_str().unwrap());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["stock", "queue-proxies", "weir"]
    );
    for run in runs {
        let fates = ["answered", "refused", "shed"].map(|key| run[key].as_u64().unwrap());
        assert_eq!(
            (Some(fates.iter().sum()), &run["broken"]),
            (run["requests"].as_u64(), &0.into())
        );
        for key in ["hit_rate", "p50_ms", "p99_ms", "reported_over_true"] {
            assert!(run[key].as_f64().unwrap() > 0.0, "{key} in {run}");
        }
        let idle = run["idle_while_waiting"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&idle), "{run}");
        assert!(
            run["requests_max_over_mean"].as_f64().unwrap() >= 1.0,
            "{run}"
        );
        for key in ["p50", "p99"] {
            assert!(
                run["hand_over_us"][key].as_f64().unwrap() > 0.0,
                "{key} in {run}"
            );
        }
    }
    assert_eq!(runs[0]["shed"], 0, "Knative sheds nothing");
}

#[test]
fn refuses_unusable_speeds_and_addresses_by_name() {
    let output = run(&address(22), &["--scenario", "route", "--speeds", "1,2"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("allowed: 1 to 16 numbers from 0.05 to 1"),
        "{stderr}"
    );
    let message = refusal(&run("::1", &["--scenario", "route"]));
    assert!(
        message.contains("--scenario route needs an IPv4 address"),
        "{message}"
    );
    let message = refusal(&run(&address(22), &["--speeds", "1,1"]));
    assert!(
        message.contains("--speeds belongs to --scenario route"),
        "{message}"
    );
}

#[test]
fn weirs_own_csv_is_replayed_and_shown_as_a_table() {
    let mut trace = tempfile::NamedTempFile::new().unwrap();
    writeln!(trace, "arrival_s,service_ms,objective_ms,class").unwrap();
    for n in 0..20 {
        writeln!(
            trace,
            "{},20,200,{}",
            f64::from(n) * 0.03,
            if n % 2 == 0 { "even" } else { "odd" }
        )
        .unwrap();
    }
    let path = trace.path().to_str().unwrap();
    let output = run(
        &address(12),
        &["--trace", path, "--seconds", "0.5", "--load", "0.8"],
    );
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let table = String::from_utf8(output.stdout).unwrap();
    for word in [
        "stock",
        "weir",
        "even",
        "odd",
        "in time",
        "p99 all",
        "Weir answered",
        "refused",
        "shed",
        "load 0.80",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[test]
fn a_gzip_trace_is_replayed_and_drawn_on_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, page) = (
        folder.path().join("t.csv.gz"),
        folder.path().join("page.html"),
    );
    let mut text = "arrival_s,service_ms,objective_ms,class\n".to_owned();
    for n in 0..40 {
        text.push_str(&format!("{},20,80,<one>\n", f64::from(n) * 0.02));
    }
    fs::write(folder.path().join("t.csv"), text).unwrap();
    let packed = Command::new("gzip")
        .arg(folder.path().join("t.csv"))
        .status()
        .unwrap();
    assert!(packed.success());
    let paths = [&trace, &page].map(|path| path.to_str().unwrap());
    let output = run(
        &address(16),
        &[
            "--trace",
            paths[0],
            "--seconds",
            "0.8",
            "--html",
            paths[1],
            "--color",
            "never",
        ],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("Weir answered "), "{text}");
    for part in [
        " of 100 requests in time; Knative's settings ",
        "best order found",
        "refused   503: the queue was full",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    let html = fs::read_to_string(page).unwrap();
    for part in [
        "The queue from inside",
        "Request by request",
        "&lt;one&gt;",
        "<svg",
    ] {
        assert!(html.contains(part), "{part}");
    }
    // Which reasons there are depends on how fast this machine answers.
    let reasons = [
        "nothing else waited",
        "ms before its latest start",
        "ms after its latest start",
    ];
    assert!(reasons.iter().any(|reason| html.contains(reason)), "{html}");
    assert!(
        !html.contains("<script") && !html.contains("<one>"),
        "it runs nothing"
    );
}

#[test]
fn options_that_a_scenario_does_not_use_are_refused() {
    for (arguments, expected) in [
        (
            &["--scenario", "shares", "--load", "2"][..],
            "--load belongs to --scenario deadline, --scenario route; --scenario shares does not use it",
        ),
        (
            &["--scenario", "shares", "--seed", "2"],
            "--seed belongs to",
        ),
        (
            &["--scenario", "shares", "--trace", "x"],
            "--trace belongs to",
        ),
        (
            &["--scenario", "route", "--pods", "10:90"],
            "--pods belongs to --scenario shares",
        ),
        (&["--html", "/no/page.html"], "there is no folder /no"),
        (
            &["--json", "--color", "always"],
            "--color is not used by --json",
        ),
        (
            &["--seconds", "-1"],
            "invalid value '-1' for '--seconds <S>': a number above 0",
        ),
        (&["--lod", "1"], "a similar argument exists: '--load'"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let stderr = refusal(&command.arg("demo").args(arguments).output().unwrap());
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[test]
fn usage_errors_are_one_sentence() {
    let missing = refusal(&run(&address(13), &["--trace", "/nonexistent.csv"]));
    assert!(
        missing.contains("/nonexistent.csv") && missing.contains("No such file"),
        "{missing}"
    );

    let mut trace = tempfile::NamedTempFile::new().unwrap();
    writeln!(
        trace,
        "arrival_s,service_ms,objective_ms,class\n0,1,4,a\n1,oops,4,a"
    )
    .unwrap();
    let path = trace.path().to_str().unwrap();
    let bad_line = refusal(&run(&address(13), &["--trace", path]));
    assert!(
        bad_line.contains("line 3") && bad_line.contains("service_ms") && bad_line.contains("oops")
    );

    let _occupied = TcpListener::bind((address(13), 9090)).unwrap();
    let in_use = refusal(&run(&address(13), &["--seconds", "1"]));
    assert!(
        in_use.contains(&format!("{}:9090", address(13))) && in_use.contains("--bind"),
        "{in_use}"
    );

    let usage = run(&address(13), &["--load", "none"]);
    assert_eq!(usage.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&usage.stderr).contains("a number above 0"));
}

#[test]
fn an_interrupt_stops_every_child() {
    let mut demo = start(&address(14));
    let children = children_of(&mut demo);
    signal(&demo, Signal::INT);
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    gone(&children);

    let mut demo = start(&address(14));
    let children = children_of(&mut demo);
    signal(&demo, Signal::TERM);
    assert_eq!(demo.wait().unwrap().code(), Some(143));
    gone(&children);
}

#[test]
fn children_do_not_outlive_a_killed_demo() {
    // Leftovers of the killed demo are removed with this folder.
    let folder = tempfile::tempdir().unwrap();
    let mut demo = start_in(folder.path(), &address(15));
    let children = children_of(&mut demo);
    signal(&demo, Signal::KILL);
    demo.wait().unwrap();
    gone(&children);
}

fn start(bind: &str) -> Child {
    start_in(&std::env::temp_dir(), bind)
}

/// Starts a demo with its temporary folders in `folder`.
fn start_in(folder: &Path, bind: &str) -> Child {
    demo(bind, &["--json"])
        .env("TMPDIR", folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Longest wait for any condition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until the demo has all its children, and returns their PIDs: the software GPU's server, the model-server, the
/// queue-proxy.
fn children_of(demo: &mut Child) -> Vec<u32> {
    let list = format!("/proc/{0}/task/{0}/children", demo.id());
    let begin = Instant::now();
    loop {
        let text = fs::read_to_string(&list).unwrap_or_default();
        let children: Vec<u32> = text
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        if children.len() == 3 {
            return children;
        }
        assert!(demo.try_wait().unwrap().is_none(), "the demo has ended");
        assert!(
            begin.elapsed() < PATIENCE,
            "not three children within {PATIENCE:?}"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn gone(pids: &[u32]) {
    let begin = Instant::now();
    let lives = |pid: &u32| {
        // A zombie has ended; its new parent has yet to reap it.
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    while pids.iter().any(lives) {
        assert!(
            begin.elapsed() < PATIENCE,
            "a child is still running after {PATIENCE:?}"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
