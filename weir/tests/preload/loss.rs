//! Invariant 6: programs continue without an agent, after its death, and while it hangs; a new agent gates them again.

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

use softgpu_harness::node::{LIBRARIES, Node, checked_output, library, preload, without_softgpu};
use softgpu_harness::programs::built;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, signal};
use testing::until;

/// Annotations of a pod with a limit, so that it waits at the gate again and again.
const PART: &str = "weir.dev/isolation=\"shared\"\nweir.dev/quota-limit=\"0.3\"\n";

/// Runs a program with the libraries in a folder without an agent.
fn without_agent(prepare: impl FnOnce(&std::path::Path)) -> Output {
    let softgpu = SoftGpuDir::h100();
    let folder = tempfile::tempdir().unwrap();
    for name in LIBRARIES {
        fs::copy(library(name), folder.path().join(name)).unwrap();
    }
    prepare(folder.path());
    let mut command = softgpu.program("vector_add");
    preload(&mut command, folder.path());
    let output = command.output().unwrap();
    checked_output(&output, &command);
    output
}

#[test]
fn without_a_socket_nothing_is_reported() {
    let output = without_agent(|_| {});
    assert_eq!(without_softgpu(&output.stderr), "");
}

#[test]
fn a_socket_without_a_listener_is_reported_once() {
    let output = without_agent(|folder| {
        let listener = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(
            &listener,
            &SocketAddrUnix::new(folder.join("gpu.sock")).unwrap(),
        )
        .unwrap();
        // The file stays when the listener is dropped.
    });
    let error = without_softgpu(&output.stderr);
    assert_eq!(
        error,
        "weir: no agent answers: this process computes without limits until one does\n"
    );
}

/// A flooded agent looks like this: its backlog is full, or holds a hello that it has not read.
#[test]
fn waits_for_an_agent_which_does_not_accept() {
    for backlog_is_full in [false, true] {
        let softgpu = SoftGpuDir::h100();
        let folder = tempfile::tempdir().unwrap();
        for name in LIBRARIES {
            fs::copy(library(name), folder.path().join(name)).unwrap();
        }
        let address = SocketAddrUnix::new(folder.path().join("gpu.sock")).unwrap();
        let listener = own_socket();
        bind(&listener, &address).unwrap();
        // At least one connection waits, whatever the backlog.
        listen(&listener, 0).unwrap();
        let flood = backlog_is_full.then(|| {
            let client = own_socket();
            connect(&client, &address).unwrap();
            client
        });
        let mut command = softgpu.program("vector_add");
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
            "weir: the agent is running but does not answer yet: this process waits for it\n"
        );
        // Ten times as long as it takes until an abandoned gate opens.
        let moment = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        poll(&mut [], Some(&moment)).unwrap();
        assert!(
            program.try_wait().unwrap().is_none(),
            "the program computed and ended"
        );
        // Without a listener the agent is certainly gone.
        drop(listener);
        drop(flood);
        let mut rest = String::new();
        error.read_to_string(&mut rest).unwrap();
        // Messages of softgpu are not checked here.
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

/// Creates a socket that no child inherits.
fn own_socket() -> OwnedFd {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// Returns the number of stretches in which a process held SMs so far.
fn runs(node: &Node, pid: u32) -> usize {
    node.softgpu.ledger().of(pid).runs.len()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// Waits until the program has waited at the gate and continued several times.
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

/// Waits until the program has computed for so long that the gate must have opened without an agent.
fn goes_on(node: &Node, pid: u32) {
    let before = runs(node, pid);
    until("it computes", || runs(node, pid) > before + 1_000);
}

#[test]
fn a_program_outlives_its_agent() {
    let mut node = Node::new(
        SoftGpuDir::h100(),
        "[tokens]\nwindow = \"100ms\"\nhorizon = \"1s\"\n",
    );
    node.pod("pod", PART, "");
    let arguments = ["--ns", "500000", "--batch", "8", "--seconds", "60"];
    let mut program = node.spawn(built("load"), &arguments, "pod");
    let pid = program.pid();
    until("the process is attached", || {
        !node.instance("pod")["processes"][0].is_null()
    });
    is_gated(&node);
    let launches = number(&node.instance("pod")["launches"]);
    assert_eq!(node.instance("pod")["ungated_seconds"], 0.0);
    node.kill_agent();
    goes_on(&node, pid);
    node.start();
    until("the process has reconnected", || {
        let pod = node.instance("pod");
        pod["processes"][0]["pid"] == pid && number(&pod["ungated_seconds"]) > 0.0
    });
    is_gated(&node);
    let pod = node.instance("pod");
    // The new agent knows the total of launches, and no process is silent.
    assert!(number(&pod["launches"]) > launches + 100.0, "{pod}");
    assert_eq!(pod["silent_processes"], 0, "{pod}");

    // A hanging agent is no obstacle: the holder of a token keeps it, and a process without one continues.
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
    let printed = program.end();
    assert!(
        printed.lines().all(|line| line.starts_with("weir: ")),
        "{printed}"
    );
    assert!(printed.lines().count() <= 4, "{printed}");
}
