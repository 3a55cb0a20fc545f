//! The programs of `tests/cuda/limits`: their output is the same without the library, with it, and with a limit.

use softgpu_harness::node::{Node, SHARED, comes_to_ok};
use softgpu_harness::soft_gpu_dir::SoftGpuDir;
use testing::until;

/// Configuration of the agent with a context's own memory, so that the numbers are exact.
const RESIDUE: &str = "[slots]\ncontext-residue = { mps = \"400Mi\" }\n";
/// Annotations of a pod with a memory limit of 1 GiB.
const GIBIBYTE: &str = "weir.dev/isolation=\"shared\"\nweir.dev/gpu-memory=\"1Gi\"\n";

/// Runs the program in each case and compares its output; `unlimited` and `limited` are its additional arguments in a pod without
/// and with a limit.
fn same(program: &str, arguments: &[&str], unlimited: &[&str], limited: &[&str]) {
    // Without a limit the device's memory is the limit: a small device is used up quickly.
    let node = Node::new(SoftGpuDir::new(&["--gpu", "H100", "--bytes", "512"]), "");
    node.pod("pod", SHARED, "");
    let built = node.build(&format!("limits/{program}"), &[]);
    let alone = comes_to_ok(node.command(&built).args(arguments));
    let mut command = node.command(&built);
    node.put(command.args(arguments).args(unlimited), "pod");
    assert_eq!(comes_to_ok(&mut command), alone);
    let node = Node::new(SoftGpuDir::h100(), RESIDUE);
    node.pod("pod", GIBIBYTE, "");
    let mut command = node.command(&built);
    node.put(command.args(arguments).args(limited), "pod");
    assert_eq!(comes_to_ok(&mut command), alone);
    until("ended processes hold nothing", || {
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
    // Without a limit, each process may have an idle slab of its own.
    same("pair", &[], &["--slack", "4"], &["--slack", "64"]);
}
