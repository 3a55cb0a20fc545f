//! Every program of `tests/cuda` in a pod without a memory limit: each prints `ok`, as without the library.

use softgpu_harness::node::{Node, SHARED, without_softgpu};
use softgpu_harness::programs::{built, linked, ptx};
use softgpu_harness::soft_gpu_dir::SoftGpuDir;
use testing::until;

/// Runs programs with each of these ways of loading the driver's functions.
fn run(programs: &[(&str, &[&str])], loaders: &[&str]) {
    run_in(&Node::h100(), programs, loaders);
}

fn run_in(node: &Node, programs: &[(&str, &[&str])], loaders: &[&str]) {
    for (name, arguments) in programs {
        for loader in loaders {
            let mut command = node.command(built(name));
            command.args(*arguments).env("CUDA_TEST_LOADER", loader);
            node.put(&mut command, "pod");
            node.softgpu.succeeds(&mut command);
        }
    }
    let pod = node.instance("pod");
    assert_eq!(pod["refused_connections"], serde_json::json!({}), "{pod}");
    assert_eq!(pod["ungated_seconds"], 0.0, "{pod}");
    assert!(pod["launches"].as_u64() > Some(0), "{pod}");
}

const LOADERS: [&str; 2] = ["dlsym", "resolver"];

#[test]
fn vector_add_and_memory() {
    run(&[("vector_add", &[]), ("memory", &[])], &LOADERS);
}

#[test]
fn vmm_without_mps() {
    // Clients of one MPS server suffer from each other's faults, which the program causes on purpose.
    let node = Node::new(SoftGpuDir::h100(), "mps-control = \"/bin/false\"\n");
    node.publish("pod", SHARED, "");
    until("the pod is served", || !node.instance("pod").is_null());
    run_in(&node, &[("vmm", &[])], &LOADERS);
}

#[test]
fn streams_and_graphs() {
    // The same tolerance as without the library: the program may be descheduled between two calls.
    let streams = ("streams_events", &["15000000"][..]);
    run(&[streams, ("graphs", &[])], &LOADERS);
}

#[test]
fn the_per_thread_stream() {
    let loaders = ["dlsym-per-thread", "resolver-per-thread"];
    run(&[("vector_add", &[]), ("graphs", &[])], &loaders);
}

#[test]
fn processes_and_faults() {
    run(
        &[
            ("ipc", &[]),
            ("faults", &["illegal"]),
            ("faults", &["wait", "--kernels", "20", "--us", "1000"]),
            ("faults", &["alloc", "--mib", "64"]),
            ("faults", &["alloc", "--mib", "64", "--kind", "1"]),
            ("faults", &["alloc", "--mib", "64", "--kind", "2"]),
        ],
        &LOADERS,
    );
}

#[test]
fn startup_checkpoint_and_many_launches() {
    run(&[("startup", &[]), ("checkpoint", &[])], &["dlsym"]);
    run(
        &[
            ("overhead", &["--launches", "1000", "--kernels", "50"]),
            ("rate", &["--rate", "2000", "--seconds", "1"]),
        ],
        &["resolver"],
    );
}

#[test]
fn programs_that_are_linked_to_the_driver() {
    let node = Node::h100();
    for name in ["linked_add", "linked_streams"] {
        let program = linked(name, node.softgpu.folder());
        let mut command = node.softgpu.command(&program);
        node.put(command.arg(ptx()), "pod");
        node.softgpu.succeeds(&mut command);
    }
    assert!(node.instance("pod")["launches"].as_u64() > Some(0));
}

#[test]
fn processes_that_share_a_pod() {
    let node = Node::h100();
    let mut command = node.command(built("share"));
    command.args(["--processes", "3", "--kernels", "50", "--us", "200"]);
    node.put(&mut command, "pod");
    let output = command.output().unwrap();
    assert!(
        output.status.success() && without_softgpu(&output.stderr).is_empty(),
        "{output:?}"
    );
    let printed = String::from_utf8(output.stdout).unwrap();
    let of_each = printed.lines().filter(|line| line.starts_with('{'));
    assert_eq!(of_each.count(), 3, "{printed}");
    // 50 launches of each process, and those to warm up.
    assert!(node.instance("pod")["launches"].as_u64() >= Some(150));
}
