//! Tests of `weir replay` as a user runs it: exit codes and messages.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use agent_core::record::Recorder;
use agent_core::{Agent, Event, MemorySettings};
use policy::tokens::Settings;

/// Writes the record of an agent that published its figures once and woke once.
fn record(path: &Path) {
    let tokens = Settings::default();
    let mut agent = Agent::new(tokens);
    let file = File::create(path).unwrap();
    let mut recorder =
        Recorder::new(Box::new(file), "abc", &tokens, MemorySettings::default()).unwrap();
    for (at, event) in [(0, Event::FiguresWanted), (2_000_000, Event::Wake)] {
        let mut actions = Vec::new();
        agent.handle(at, &event, &mut actions);
        recorder.append(at, &event, &actions).unwrap();
    }
}

fn replay(path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("replay").arg(path).output().unwrap()
}

fn line(bytes: &[u8]) -> &str {
    let text = str::from_utf8(bytes).unwrap();
    assert!(text.lines().count() <= 1, "{text}");
    text.trim_end()
}

#[test]
fn the_same_actions_are_exit_code_0() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.jsonl");
    record(&path);
    let output = replay(&path);
    assert_eq!((output.status.code(), line(&output.stderr)), (Some(0), ""));
    let expected = "2 events over 0.002 s, 1 actions: all as recorded by abc";
    assert_eq!(line(&output.stdout), expected);
}

#[test]
fn another_action_is_exit_code_1_with_the_first_difference() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.jsonl");
    record(&path);
    let text = fs::read_to_string(&path).unwrap();
    let changed = text.replace("\"Publish\"", "\"Kill(ProcessId(7))\"");
    assert_ne!(changed, text);
    fs::write(&path, changed).unwrap();
    let output = replay(&path);
    assert_eq!((output.status.code(), line(&output.stdout)), (Some(1), ""));
    let expected = format!(
        "weir: {}: line 2: at 0 ns, action 1 differs\n  event:    FiguresWanted\n  recorded: Kill(ProcessId(7))\n  replayed: Publish\n",
        path.display()
    );
    assert_eq!(str::from_utf8(&output.stderr).unwrap(), expected);
}

#[test]
fn another_file_is_exit_code_2_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.jsonl");
    let output = replay(&path);
    let message = line(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("agent.jsonl: No such file"), "{message}");

    fs::write(&path, "{}\n").unwrap();
    let output = replay(&path);
    let message = line(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("agent.jsonl: line 1: not a record"),
        "{message}"
    );
}
