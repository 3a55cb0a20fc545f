//! The programs of `tests/cuda/limits`: without the library, with it, and with a limit, their lines are the same.

use crate::node::{Node, SHARED, comes_to_ok};
use crate::place::{Place, until};

/// Bytes that a context keeps, as the agent is told: the numbers are exact then.
const RESIDUE: &str = "[slots]\ncontext-residue = { mps = \"400Mi\" }\n";
/// Of memory that a pod may have.
const GIBIBYTE: &str = "weir.dev/isolation=\"shared\"\nweir.dev/gpu-memory=\"1Gi\"\n";

/// The program says the same in each case; `unlimited`, `limited`: what it is told besides in a pod without and with a limit.
fn same(program: &str, arguments: &[&str], unlimited: &[&str], limited: &[&str]) {
    // Without a limit the device is the limit: the less it has the sooner it is used up.
    let node = Node::new(Place::new(&["--gpu", "H100", "--bytes", "512"]), "");
    node.pod("pod", SHARED, "");
    let built = node.build(&format!("limits/{program}"), &[]);
    let alone = comes_to_ok(node.command(&built).args(arguments));
    let mut command = node.command(&built);
    node.put(command.args(arguments).args(unlimited), "pod");
    assert_eq!(comes_to_ok(&mut command), alone);
    let node = Node::new(Place::h100(), RESIDUE);
    node.pod("pod", GIBIBYTE, "");
    let mut command = node.command(&built);
    node.put(command.args(arguments).args(limited), "pod");
    assert_eq!(comes_to_ok(&mut command), alone);
    until("who has ended holds nothing", || {
        let pod = node.instance("pod");
        pod["processes"] == serde_json::json!([]) && pod["memory"]["used_bytes"] == 0
    });
}

#[test]
fn exact() {
    same("exact", &["--nvml"], &[], &["--limit", "1024"]);
}

#[test]
fn frees() {
    same("frees", &[], &[], &[]);
}

#[test]
fn ranges() {
    same("ranges", &[], &[], &[]);
}

#[test]
fn small() {
    same("small", &["--count", "300"], &[], &[]);
}

#[test]
fn two_processes_of_a_pod_share_its_limit() {
    // Without a limit, either has up to an idle slab of its own.
    same("pair", &[], &["--slack", "4"], &["--slack", "64"]);
}
