//! MPS daemons of `gpu-sidecar mps`, with agents that start and stop.

use std::fs;
use std::process::{Child, Stdio};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::H100;
use crate::node::{Node, is_gone, signal};
use testing::until;

const EXTERNAL: &[&str] = &["--external-mps"];

/// A running `gpu-sidecar mps`, killed when a test fails.
struct Mps(Option<Child>);

impl Mps {
    fn start(node: &Node) -> Self {
        let mut command = node.command_of("mps", &[]);
        Self(Some(command.stderr(Stdio::null()).spawn().unwrap()))
    }

    fn end(mut self, how: Signal) -> Option<i32> {
        let mut child = self.0.take().unwrap();
        signal(child.id(), how);
        child.wait().unwrap().code()
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _gone = child.kill();
            let _status = child.wait();
        }
    }
}

/// Returns whether a program keeps the daemons of the node's run directory.
fn is_locked(node: &Node) -> bool {
    let file = fs::File::open(node.run().join("mps.lock")).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

fn down(node: &Node) -> Option<String> {
    let state = node.slot(0)["mps"]["state"].clone();
    (state["state"] == "down").then(|| state["reason"].as_str().unwrap().to_owned())
}

#[test]
fn daemons_of_another_program_are_only_watched() {
    let mut node = Node::new(H100, "");
    node.start_with(EXTERNAL);
    let why = until("no daemon answers", || down(&node));
    assert!(why.starts_with("no daemon answers in /"), "{why}");
    assert!(why.ends_with(": `gpu-sidecar mps` starts it"), "{why}");
    let mps = Mps::start(&node);
    let daemon = node.daemon(0);
    assert_eq!(
        node.events("mps-up"),
        [format!(
            "the daemon of `gpu-sidecar mps` answers (pid {daemon})"
        )]
    );
    for how in [Signal::TERM, Signal::KILL] {
        node.end(how);
        assert!(!is_gone(daemon), "{how:?}");
        // The variable that the manifests set.
        let mut command = node.command(&[]);
        command.env("WEIR_EXTERNAL_MPS", "true");
        node.start_as(command);
        assert_eq!(node.daemon(0), daemon);
        assert_eq!(node.slot(0)["mps"]["restarts"], 0);
    }
    // A killed daemon is restarted by its parent program.
    signal(daemon, Signal::KILL);
    let next = until("another daemon answers", || {
        Some(node.daemon(0)).filter(|pid| *pid != daemon)
    });
    assert_eq!(node.slot(0)["mps"]["restarts"], 1);
    assert_eq!(mps.end(Signal::TERM), Some(0));
    until("the daemon has ended", || is_gone(next).then_some(()));
    until("the agent reports it", || down(&node));
}

#[test]
fn daemons_outlive_a_killed_program_and_are_adopted_by_the_next() {
    let mut node = Node::new(H100, "");
    node.start_with(EXTERNAL);
    let mps = Mps::start(&node);
    let daemon = node.daemon(0);
    assert_eq!(mps.end(Signal::KILL), None);
    let mps = Mps::start(&node);
    until("the program has the lock", || {
        is_locked(&node).then_some(())
    });
    let second = node.command_of("mps", &[]).output().unwrap();
    let message = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{message}");
    assert!(
        message.contains("another gpu-sidecar mps is running"),
        "{message}"
    );
    assert_eq!(node.daemon(0), daemon);
    assert!(!is_gone(daemon));
    assert_eq!(mps.end(Signal::TERM), Some(0));
    until("the daemon has ended", || is_gone(daemon).then_some(()));
}

#[test]
fn external_mps_excludes_stop_mps() {
    let node = Node::new(H100, "");
    let ran = node
        .command(&["--external-mps", "--stop-mps"])
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(2));
    let message = String::from_utf8(ran.stderr).unwrap();
    assert!(
        message.contains("'--external-mps' cannot be used with '--stop-mps'"),
        "{message}"
    );
}
