//! Tests of `weir demo --observe` as a user runs it: with Debian's Prometheus, and without.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "reports skipped checks")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::until;

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("demo").args(arguments).stdin(Stdio::null());
    command
}

fn text(output: &Output) -> (Option<i32>, String) {
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), printed)
}

fn has_prometheus() -> bool {
    let is_there = Command::new("prometheus").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("not checked: prometheus is not installed (Debian's package prometheus)");
    }
    is_there
}

fn has_chromium() -> bool {
    let is_there = Command::new("chromium").arg("--version").output().is_ok();
    if !is_there {
        eprintln!("not checked: chromium is not installed: no pictures were taken");
    }
    is_there
}

/// Returns the command lines of Prometheus processes with data in this folder.
fn running_in(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let entries = fs::read_dir("/proc").unwrap();
    let lines = entries.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.starts_with("prometheus ") && line.contains(&folder))
        .collect()
}

#[test]
fn conflicting_options_are_refused_with_exit_code_2() {
    for (arguments, expected) in [
        (&["--hold", "5"][..], "--hold belongs to --observe"),
        (&["--break", "agent"], "--break belongs to --observe"),
        (
            &["--observe", "--scenario", "route"],
            "--scenario belongs to --scenario deadline, --scenario route, --scenario shares, --scenario evict, --scenario swap; --observe does not use it",
        ),
        (
            &["--observe", "--rule", "weir"],
            "--rule belongs to --scenario shares; --observe does not use it",
        ),
        (&["--observe", "--bind", "::1"], "needs an IPv4 address"),
        (
            &["--scenario", "route", "--html", "x"],
            "--html belongs to --scenario deadline, --scenario shares, --observe; --scenario route does not use it",
        ),
        (&["--traces", "x"], "--traces belongs to --observe"),
        (
            &["--observe", "--traces", "/nowhere/at/all"],
            "the folder above it is missing",
        ),
        (&["--observe", "--traces", "/"], "is a folder"),
        (
            &["--observe", "--html", "/nowhere/at/all"],
            "the folder above it is missing",
        ),
        (&["--observe", "--html", "/etc/passwd"], "is not a folder"),
        (
            &["--observe", "--break", "disk"],
            "possible values: agent, mps, queue",
        ),
    ] {
        let (code, printed) = text(&weir(arguments).output().unwrap());
        assert_eq!(code, Some(2), "{arguments:?}: {printed}");
        assert!(printed.contains(expected), "{arguments:?}: {printed}");
    }
}

#[test]
fn without_prometheus_the_error_names_the_package_with_exit_code_2() {
    let output = weir(&["--observe"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let (code, printed) = text(&output);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("apt-get install prometheus"), "{printed}");
}

#[test]
fn without_chromium_the_error_names_the_package_with_exit_code_2() {
    if !has_prometheus() {
        return;
    }
    // Only Prometheus is in the PATH.
    let folder = tempfile::tempdir().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut all = path.split(':').map(|own| Path::new(own).join("prometheus"));
    let program = all.find(|own| own.is_file()).unwrap();
    std::os::unix::fs::symlink(program, folder.path().join("prometheus")).unwrap();
    let output = weir(&["--observe", "--screenshots", "/tmp"])
        .env("PATH", folder.path())
        .output()
        .unwrap();
    let (code, printed) = text(&output);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("apt-get install chromium"), "{printed}");
}

#[test]
fn every_query_has_series_each_cause_is_named_and_an_alert_fires() {
    if !has_prometheus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("pages");
    let html = pages.display().to_string();
    let spans = folder.path().join("spans.jsonl");
    let traces = spans.display().to_string();
    let arguments = [
        "--observe",
        "--json",
        "--seconds",
        "12",
        "--break",
        "agent",
        "--bind",
        "127.0.41.1",
        "--html",
        &html,
        "--traces",
        &traces,
    ];
    let pictures = folder.path().join("pictures");
    let mut command = weir(&arguments);
    if has_chromium() {
        command.arg("--screenshots").arg(&pictures);
    }
    let output = command.output().unwrap();
    let (code, printed) = text(&output);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{printed}"));
    assert_eq!(report["failures"], serde_json::json!([]), "{report}");
    assert_eq!(
        (&report["errors"], &report["empty"]),
        (&0.into(), &0.into())
    );
    assert!(report["queries"].as_u64().unwrap() >= 60, "{report}");
    assert_eq!(report["targets"]["up"], 13);
    for cause in report["causes"].as_array().unwrap() {
        assert_eq!(cause["made"], cause["named"], "{report}");
    }
    let firing = report["alerts_firing"].as_array().unwrap();
    assert!(firing.contains(&"WeirAgentDown".into()), "{report}");
    assert_eq!(code, Some(0), "{printed}");
    check_traces(&spans, &report["worst"]);
    // Each dashboard is a page with all of its panels and without external resources.
    for board in dashboards::boards::boards() {
        let page = fs::read_to_string(pages.join(format!("{}.html", board.uid))).unwrap();
        assert!(page.contains("Content-Security-Policy") && !page.contains("<script"));
        for panel in board.json()["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            let title = title.replace('\'', "&#39;");
            assert!(page.contains(&title), "{}: {title}", board.uid);
        }
    }
    let page = fs::read_to_string(pages.join("weir-function.html")).unwrap();
    // Only both panels of cold starts may be empty, since the function had none.
    assert!(page.matches("There are no values.").count() <= 2, "{page}");
    if has_chromium() {
        for board in dashboards::boards::boards() {
            for width in [375, 1_440] {
                let picture =
                    fs::read(pictures.join(format!("{}-{width}.png", board.uid))).unwrap();
                assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"));
                let shown = u32::from_be_bytes(picture[16..20].try_into().unwrap());
                assert_eq!(shown, width);
            }
        }
    }
}

/// Checks the spans as any tool would read them: each request has one root and five spans of two programs, children are within
/// their parents, and the parts of the latest request add up to its response time.
fn check_traces(file: &Path, worst: &Value) {
    let lines = fs::read_to_string(file).unwrap();
    let mut traces: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in lines.lines() {
        let export: Value = serde_json::from_str(line).unwrap();
        for resource in export["resourceSpans"].as_array().unwrap() {
            for scope in resource["scopeSpans"].as_array().unwrap() {
                for span in scope["spans"].as_array().unwrap() {
                    let trace = span["traceId"].as_str().unwrap().to_owned();
                    traces.entry(trace).or_default().push(span.clone());
                }
            }
        }
    }
    let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    let (start, end) = ("startTimeUnixNano", "endTimeUnixNano");
    for (trace, spans) in &traces {
        let roots = spans.iter().filter(|span| span["parentSpanId"] == "");
        assert_eq!(roots.count(), 1, "{trace}: {spans:?}");
        for span in spans.iter().filter(|span| span["parentSpanId"] != "") {
            let parent = spans.iter().find(|it| it["spanId"] == span["parentSpanId"]);
            let parent = parent.unwrap_or_else(|| panic!("{trace}: no parent of {span}"));
            let is_within =
                time(span, start) >= time(parent, start) && time(span, end) <= time(parent, end);
            assert!(is_within, "{trace}: {span} is not within {parent}");
        }
    }
    let own = &traces[worst["trace_id"].as_str().unwrap()];
    assert_eq!(own.len(), 8, "{own:?}");
    let seconds = |span: &Value| Duration::from_nanos(time(span, end) - time(span, start));
    let root = own.iter().find(|span| span["parentSpanId"] == "").unwrap();
    let parts = ["hold", "way", "queue", "execution"];
    let parts: f64 = parts
        .iter()
        .map(|part| worst["parts"][part].as_f64().unwrap())
        .sum();
    let response = seconds(root).as_secs_f64();
    assert!((parts / response - 1.0).abs() <= 0.01, "{worst}");
    let named = |name: &str, of: &Value| {
        let children = own
            .iter()
            .filter(|span| span["parentSpanId"] == of["spanId"]);
        let mut named = children.filter(|span| span["name"] == name);
        named
            .next()
            .unwrap_or_else(|| panic!("no {name}: {own:?}"))
            .clone()
    };
    let proxy = named("kn.activator.proxy", root);
    let sum =
        seconds(&named("kn.activator.throttler", root)) + seconds(&named("HTTP POST", &proxy));
    assert!(
        (sum.as_secs_f64() / response - 1.0).abs() <= 0.01,
        "{worst}"
    );
    let slo = root["attributes"].as_array().unwrap();
    let slo = slo
        .iter()
        .find(|pair| pair["key"] == "weir.slo.reason")
        .unwrap();
    assert_eq!(slo["value"]["stringValue"], worst["reason"]);
}

#[test]
fn a_killed_demo_leaves_no_prometheus_behind() {
    if !has_prometheus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = weir(&["--observe", "--bind", "127.0.42.1"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("there is a Prometheus", || {
        !running_in(folder.path()).is_empty()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    until("it is gone", || running_in(folder.path()).is_empty());
}

#[test]
fn a_failed_prometheus_ends_the_demo_with_its_log_and_exit_code_1() {
    if !has_prometheus() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child = weir(&["--observe", "--seconds", "5", "--bind", "127.0.43.1"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("there is a Prometheus", || {
        !running_in(folder.path()).is_empty()
    });
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let entry = entry.ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let is_own =
            line.starts_with("prometheus ") && line.contains(&folder.path().display().to_string());
        is_own.then(|| entry.file_name().into_string().ok()?.parse().ok())?
    });
    for pid in pids {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
    let (code, printed) = text(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("Prometheus has ended"), "{printed}");
}
