//! Invariant 6: without an agent, with one that is gone, and with one that hangs, programs go on; with one that comes again they
//! are gated again.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::process::{Output, Stdio};
use std::time::Instant;

use rustix::event::{Timespec, poll};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket,
    socket_with,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::build::built;
use crate::node::{LIBRARIES, Node, library, preload, said, without_softgpu};
use crate::place::{Place, signal, until};

/// What may not always compute, so that it waits at the gate again and again.
const PART: &str = "weir.dev/isolation=\"shared\"\nweir.dev/quota-limit=\"0.3\"\n";

/// Runs a program with the libraries in a folder where no agent is.
fn without_agent(prepare: impl FnOnce(&std::path::Path)) -> Output {
    let place = Place::h100();
    let folder = tempfile::tempdir().unwrap();
    for name in LIBRARIES {
        fs::copy(library(name), folder.path().join(name)).unwrap();
    }
    prepare(folder.path());
    let mut command = place.program("vector_add");
    preload(&mut command, folder.path());
    let output = command.output().unwrap();
    said(&output, &command);
    output
}

#[test]
fn where_there_is_no_socket_nothing_is_said() {
    let output = without_agent(|_| {});
    assert_eq!(without_softgpu(&output.stderr), "");
}

#[test]
fn a_socket_that_nobody_keeps_is_told_of_once() {
    let output = without_agent(|folder| {
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(
            &listener,
            &SocketAddrUnix::new(folder.join("gpu.sock")).unwrap(),
        )
        .unwrap();
        // The file stays when the listener goes.
    });
    let error = without_softgpu(&output.stderr);
    assert_eq!(
        error,
        "weir: no agent answers: this process computes without limits until one does\n"
    );
}

/// A flood of connections makes an agent look so: its backlog is full, or holds a hello that it has not come to.
#[test]
fn an_agent_that_takes_no_connection_is_waited_for() {
    for backlog_is_full in [false, true] {
        let place = Place::h100();
        let folder = tempfile::tempdir().unwrap();
        for name in LIBRARIES {
            fs::copy(library(name), folder.path().join(name)).unwrap();
        }
        let address = SocketAddrUnix::new(folder.path().join("gpu.sock")).unwrap();
        let listener = own_socket();
        bind(&listener, &address).unwrap();
        // One waits at least, whatever the backlog.
        listen(&listener, 0).unwrap();
        let flood = backlog_is_full.then(|| {
            let client = own_socket();
            connect(&client, &address).unwrap();
            client
        });
        let mut command = place.program("vector_add");
        preload(&mut command, folder.path());
        let mut program = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut error = BufReader::new(program.stderr.take().unwrap());
        let mut line = String::new();
        error.read_line(&mut line).unwrap();
        assert_eq!(
            line,
            "weir: the agent is there and does not answer yet: this process waits for it\n"
        );
        // Ten times as long as it takes until a gate opens that nobody keeps.
        let moment = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        poll(&mut [], Some(&moment)).unwrap();
        assert!(
            program.try_wait().unwrap().is_none(),
            "it computed and ended"
        );
        // With the listener goes the last doubt.
        drop(listener);
        drop(flood);
        let mut rest = String::new();
        error.read_to_string(&mut rest).unwrap();
        // softgpu's own lines are its affair.
        let own: Vec<_> = rest
            .lines()
            .filter(|line| line.starts_with("weir: "))
            .collect();
        assert_eq!(
            own,
            ["weir: no agent answers: this process computes without limits until one does"]
        );
        assert!(program.wait().unwrap().success());
    }
}

/// A socket that no child inherits.
fn own_socket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// Stretches in which a process had SMs, until now.
fn runs(node: &Node, pid: u32) -> usize {
    node.place.ledger().of(pid).runs.len()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// The program has waited at the gate, and gone on, some more times.
fn is_gated(node: &Node) {
    let waits = |pod: &Value| number(&pod["waits"]["count"]);
    let grants = |pod: &Value| number(&pod["token"]["grants"]);
    let before = node.instance("pod");
    until("it is gated", || {
        let pod = node.instance("pod");
        let is_one = pod["processes"]
            .as_array()
            .is_some_and(|list| list.len() == 1);
        is_one && waits(&pod) >= waits(&before) + 1.0 && grants(&pod) >= grants(&before) + 1.0
    });
}

/// The program computes, for so long that the gate has opened without an agent if it was shut.
fn goes_on(node: &Node, pid: u32) {
    let before = runs(node, pid);
    until("it computes", || runs(node, pid) > before + 1_000);
}

#[test]
fn a_program_outlives_its_agent() {
    let mut node = Node::new(
        Place::h100(),
        "[tokens]\nwindow = \"100ms\"\nhorizon = \"1s\"\n",
    );
    node.pod("pod", PART, "");
    let arguments = ["--ns", "500000", "--batch", "8", "--seconds", "60"];
    let mut program = node.spawn(built("load"), &arguments, "pod");
    let pid = program.pid();
    until("it has pages", || {
        !node.instance("pod")["processes"][0].is_null()
    });
    is_gated(&node);
    let launches = number(&node.instance("pod")["launches"]);
    assert_eq!(node.instance("pod")["ungated_seconds"], 0.0);
    node.kill_agent();
    goes_on(&node, pid);
    node.start();
    until("it has said hello", || {
        let pod = node.instance("pod");
        pod["processes"][0]["pid"] == pid && number(&pod["ungated_seconds"]) > 0.0
    });
    is_gated(&node);
    let pod = node.instance("pod");
    // What it has launched in all is known to the new agent, and that nothing of it is silent.
    assert!(number(&pod["launches"]) > launches + 100.0, "{pod}");
    assert_eq!(pod["silent_processes"], 0, "{pod}");

    // One that hangs is no better: who has a token keeps it, who has none goes on all the same.
    signal(node.agent(), Signal::STOP);
    let begin = Instant::now();
    let before = runs(&node, pid);
    while begin.elapsed().as_secs() < 3 {
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        poll(&mut [], Some(&moment)).unwrap();
    }
    goes_on(&node, pid);
    assert!(runs(&node, pid) > before);
    signal(node.agent(), Signal::CONT);
    is_gated(&node);
    assert!(program.runs());
    let said = program.end();
    assert!(
        said.lines().all(|line| line.starts_with("weir: ")),
        "{said}"
    );
    assert!(said.lines().count() <= 4, "{said}");
}
