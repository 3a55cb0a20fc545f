//! Tests of `weir demo --scenario shares` as a user runs it: its output, its errors, its processes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn shares(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(["demo", "--scenario", "shares"])
        .args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    shares(arguments).output().unwrap()
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

#[test]
fn the_json_has_entitled_and_achieved_shares_of_each_pod() {
    let output = run(&["--json", "--seconds", "1.5", "--pods", "10:90"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.is_empty(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["scenario"], "shares");
    assert!((number(&report["seconds"]) - 1.5).abs() < f64::EPSILON);
    assert_eq!(
        (&report["scale"]["time"], &report["scale"]["bytes"]),
        (&1.into(), &64.into())
    );
    let lag = &report["lag_us"];
    assert!(
        number(&lag["p50"]) <= number(&lag["p99"]) && number(&lag["p99"]) <= number(&lag["max"])
    );
    assert_eq!(report["rule"], "weir");
    assert!(report["disturbed"].is_boolean() && report["hand_overs"].is_u64());
    for key in ["run_delay_ms", "steal_ms"] {
        assert!(number(&report[key]) >= 0.0, "{key}");
    }
    let pods = report["pods"].as_array().unwrap();
    let mut sum = 0.0;
    for (pod, (name, quota)) in pods.iter().zip([("pod-1", 0.1), ("pod-2", 0.9)]) {
        assert_eq!(
            (&pod["name"], &pod["work"]),
            (&name.into(), &"kernels".into())
        );
        for key in ["quota_request", "quota_limit", "share_asked"] {
            assert!((number(&pod[key]) - quota).abs() < 1e-6, "{key}: {pod}");
        }
        assert!((number(&pod["sm_percent"]) - 100.0).abs() < f64::EPSILON);
        assert!(number(&pod["share_reported"]) > 0.0);
        assert!(pod["requests"].as_u64().unwrap() > 0 && number(&pod["p99_ms"]) > 0.0);
        sum += number(&pod["share_achieved"]);
    }
    assert_eq!(pods.len(), 2);
    let achieved = |pod: usize| number(&pods[pod]["share_achieved"]);
    assert!(achieved(0) < achieved(1), "{report}");
    // Each pod has all SMs, so two never compute concurrently.
    let busy = number(&report["busy"]);
    assert!((sum - busy).abs() < 0.01 && busy <= 1.0, "{report}");
    let idle = number(&report["idle_while_waiting"]);
    assert!((0.0..=1.0 - busy + 1e-6).contains(&idle), "{report}");
}

#[test]
fn concurrent_pods_are_shown_as_a_table() {
    let output = run(&[
        "--seconds",
        "0.5",
        "--pods",
        "sm=12,24",
        "--work",
        "graphs",
        "--time",
        "2",
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let table = String::from_utf8(output.stdout).unwrap();
    for word in [
        "pod-2",
        "graphs",
        "24 %",
        "asked",
        "achieved",
        "reported",
        "allowed",
        "time × 2",
        "hand-overs",
    ] {
        assert!(table.contains(word), "{word}: {table}");
    }
}

#[test]
fn refused_options_state_the_allowed_values() {
    for (arguments, part) in [
        (&["--pods", "10:x"][..], "10:90"),
        (&["--pods", "sm=0"], "1 to 100"),
        (&["--pods", "share=1"], "request, limit, sm, work"),
        (&["--pods", "request=0.5,limit=0.4"], "must not be above"),
        (&["--work", "short"], "kernels, long, graphs, pauses, mixed"),
        (
            &["--rule", "fair"],
            "weir, paper, reactive-bucket, time-only, racing, exclusive",
        ),
        (&["--time", "9"], "a whole number from 1 to 8"),
        (&["--seconds", "0"], "above 0"),
        (&["--seconds", "7200"], "up to 3600"),
        (&["--idle-from", "3=1"], "pod-1, pod-2"),
        (&["--idle-from", "1"], "--idle-for"),
        (&["--idle-for", "-"], "seconds from 0"),
        (&["--suite", "--pods", "10:90"], "allowed with it"),
        (
            &["--scenario", "deadline", "--rule", "weir"],
            "--scenario shares",
        ),
    ] {
        let mut command = shares(&[]);
        if arguments[0] == "--scenario" {
            command = Command::new(env!("CARGO_BIN_EXE_weir"));
            command.arg("demo");
        }
        let output = command.args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn no_process_remains_however_the_demo_ends() {
    for (signal, code) in [
        (Signal::INT, Some(130)),
        (Signal::TERM, Some(143)),
        (Signal::KILL, None),
    ] {
        // Leftovers of the killed demo are removed with this folder.
        let temporary = tempfile::tempdir().unwrap();
        let mut demo = shares(&["--json", "--seconds", "60"])
            .env("TMPDIR", temporary.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let all = processes_of(&mut demo);
        let pid = Pid::from_raw(i32::try_from(demo.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
        assert_eq!(demo.wait().unwrap().code(), code);
        gone(&all);
    }
}

/// Collects the descendants of a process.
fn below(pid: u32, all: &mut BTreeSet<u32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return;
    };
    for thread in threads.flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in text.split_whitespace().map(|pid| pid.parse().unwrap()) {
            all.insert(child);
            below(child, all);
        }
    }
}

/// Longest wait for any condition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for all processes of the demo: the software GPU's server, the agent, two loads, the MPS daemon and its server.
fn processes_of(demo: &mut Child) -> BTreeSet<u32> {
    let begin = Instant::now();
    loop {
        let mut all = BTreeSet::new();
        below(demo.id(), &mut all);
        if all.len() >= 6 {
            return all;
        }
        assert!(demo.try_wait().unwrap().is_none(), "the demo has ended");
        assert!(
            begin.elapsed() < PATIENCE,
            "only {all:?} after {PATIENCE:?}"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn gone(pids: &BTreeSet<u32>) {
    let begin = Instant::now();
    let lives = |pid: &u32| {
        // A zombie has ended; its new parent has yet to reap it.
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    while let Some(pid) = pids.iter().find(|pid| lives(pid)) {
        let of = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(
            begin.elapsed() < PATIENCE,
            "still running after {PATIENCE:?}: {pid} {}",
            of.replace('\0', " ")
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn oversubscribed_quotas_are_reported_as_scaled() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let path = page.to_str().unwrap();
    let output = run(&["--pods", "60:70", "--seconds", "1", "--html", path]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Quotas add up to 130 %: "), "{text}");
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("Quotas add up to 130 %: ") && html.contains("Turns of the pods"));
    let own: Value =
        serde_json::from_slice(&run(&["--pods", "60:70", "--seconds", "1", "--json"]).stdout)
            .unwrap();
    assert!(
        (own["quotas_scaled_from"].as_f64().unwrap() - 1.3).abs() < 1e-9,
        "{own}"
    );
}
