//! Signals: the first requests the partial result, the second ends the process at once.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::folder::Folder;

/// Longest wait for any condition.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of a run that takes far longer than the test.
const ENDLESS: [&str; 8] = [
    "--generate",
    "torpor-node",
    "--count",
    "100",
    "--sweep",
    "rate-scale=0.5..100..0.5",
    "--seeds=2",
    "--json",
];

#[test]
fn a_signal_prints_the_partial_result() {
    let folder = Folder::new();
    folder.write("cluster.toml", "like = \"torpor\"\n");
    folder.write("functions.toml", "models = \"torpor\"\n");
    for signal in [Signal::INT, Signal::TERM] {
        // The begin of the first run is not visible from outside, so the delays grow.
        let whole = [500, 2_000, 8_000, 30_000]
            .into_iter()
            .find_map(|patience| {
                let output = signalled_after(folder.command(&ENDLESS), signal, patience);
                assert_eq!(output.status.code(), Some(130), "{signal:?}");
                if output.stdout.is_empty() {
                    let stderr = String::from_utf8_lossy(&output.stderr);
                    let printed = "interrupted while the trace was read";
                    assert!(stderr.contains(printed), "{stderr}");
                    return None;
                }
                Some(serde_json::from_slice::<Value>(&output.stdout).unwrap())
            });
        let whole = whole.expect("a run is start");
        assert_eq!(whole["interrupted"], true);
        let runs = whole["runs"].as_array().unwrap();
        assert!(!runs.is_empty() && runs.len() < 200, "{}", runs.len());
        let (last, before) = runs.split_last().unwrap();
        let is_whole = |run: &Value| run["stopped"] == false && run["attainment"]["seeds"] == 2;
        assert!(before.iter().all(is_whole));
        assert!(
            is_whole(last) || last["stopped"] == true,
            "{}",
            last["attainment"]
        );
    }
}

#[test]
fn a_signal_prints_the_completed_experiments() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args([
        "simulate",
        "experiment",
        "--all",
        "--seeds",
        "1000",
        "--json",
    ]);
    let output = signalled_after(command, Signal::TERM, 500);
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8_lossy(&output.stderr);
    let printed = "interrupted: these are the claims that were run by then";
    assert!(stderr.contains(printed), "{stderr}");
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let claim: Value = serde_json::from_str(line).unwrap();
        assert!(claim.is_object(), "{line}");
    }
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let folder = Folder::new();
    let pipe = folder.path("pipe.csv");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    for signals in [
        [Signal::INT, Signal::INT],
        [Signal::TERM, Signal::TERM],
        [Signal::TERM, Signal::INT],
    ] {
        // The pipe has no writer, so the reading command never polls for interrupts.
        let mut child = start(folder.command(&["--trace", &pipe]));
        kill(&child, signals[0]);
        std::thread::park_timeout(Duration::from_millis(300));
        assert!(
            child.try_wait().unwrap().is_none(),
            "one signal does not end it"
        );
        kill(&child, signals[1]);
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(
                begin.elapsed() < PATIENCE,
                "the process has not ended by {signals:?} within {PATIENCE:?}"
            );
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn an_interrupted_trace_is_not_written() {
    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.current_dir(folder.0.path());
    command.args(["simulate", "--generate", "torpor-node", "--count", "100000"]);
    command.args(["--write-trace", "out.csv"]);
    let before = files(&folder);
    // At once: on a fast machine the command ends soon.
    let output = signalled_after(command, Signal::TERM, 0);
    assert_eq!(output.status.code(), Some(130));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("no trace was written"), "{stderr}");
    assert_eq!(files(&folder), before);
}

fn files(folder: &Folder) -> Vec<String> {
    let all = fs::read_dir(folder.0.path()).unwrap();
    let mut names: Vec<String> = all
        .map(|own| own.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Starts a command and waits until it handles signals.
fn start(mut command: Command) -> Child {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    // The signal handlers are installed before the worker thread starts.
    let threads = format!("/proc/{}/task", child.id());
    while fs::read_dir(&threads).map_or(0, Iterator::count) < 2 {
        assert!(
            begin.elapsed() < PATIENCE,
            "the process has no worker thread within {PATIENCE:?}"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
    child
}

fn kill(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn signalled_after(command: Command, signal: Signal, milliseconds: u64) -> Output {
    let child = start(command);
    std::thread::park_timeout(Duration::from_millis(milliseconds));
    kill(&child, signal);
    child.wait_with_output().unwrap()
}
