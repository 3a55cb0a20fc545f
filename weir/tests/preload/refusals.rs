//! Processes that an agent refuses, and kernels that no process may launch in a pod.

use std::io::Write as _;

use softgpu_harness::node::{Node, SHARED, checked_output, comes_to_ok, without_softgpu};
use softgpu_harness::programs::built;
use softgpu_harness::puppet::Puppet;
use softgpu_harness::soft_gpu_dir::SoftGpuDir;
use testing::until;

/// Result `CUDA_ERROR_SYSTEM_NOT_READY` of refused processes.
const REFUSED: u32 = 802;

/// Returns the only line of standard error.
fn line(error: &str) -> &str {
    let line = error.strip_suffix('\n').unwrap_or(error);
    assert!(
        line.starts_with("weir: ") && !line.contains('\n'),
        "{error}"
    );
    line
}

#[test]
fn a_process_on_another_device_than_its_pods() {
    let node = Node::new(SoftGpuDir::new(&["--gpu", "H100", "--gpus", "2"]), "");
    node.pod("pod", SHARED, "slot = \"1\"\n");
    // The program selects a device which the driver's environment does not show.
    let program = node.build("victims/setenv", &["-rdynamic"]);
    assert!(comes_to_ok(&mut node.command(&program)).contains("cuInit: 0"));
    let mut command = node.command(&program);
    node.put(&mut command, "pod");
    let (out, error) = checked_output(&command.output().unwrap(), &command);
    assert!(out.contains(&format!("cuInit: {REFUSED}")), "{out}");
    assert!(
        line(&error).contains("another device than its pod's slot"),
        "{error}"
    );
    assert_eq!(
        node.instance("pod")["refused_connections"]["wrong-device"],
        1
    );
    // A program which leaves the device to the library is on the right one.
    let mut command = node.command(built("vector_add"));
    node.put(&mut command, "pod");
    node.softgpu.succeeds(&mut command);
}

#[test]
fn more_processes_than_mps_takes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slices");
    std::fs::write(&file, "[[gpu]]\nslices = [\"1g.10gb\"]\n").unwrap();
    let softgpu = SoftGpuDir::new(&["--mig", file.to_str().unwrap()]);
    let node = Node::new(softgpu, "");
    node.pod("pod", SHARED, "");
    let mut puppets = Vec::new();
    let refused = loop {
        let mut command = std::process::Command::new(built("puppet"));
        node.softgpu.is_for(&mut command);
        command.arg(softgpu_harness::programs::ptx());
        node.put(&mut command, "pod");
        let error = tempfile::NamedTempFile::new().unwrap();
        command.stderr(error.reopen().unwrap());
        let mut puppet = Puppet::start(&mut command);
        puppet.send("open");
        let result = puppet.answer().result;
        if result != 0 {
            assert_eq!(result, REFUSED);
            break std::fs::read_to_string(error.path()).unwrap();
        }
        puppets.push(puppet);
        assert!(puppets.len() < 48, "no process is refused");
    };
    let expected = format!(
        "too many MPS clients: the slot has {0}, and {0} are allowed",
        puppets.len()
    );
    assert!(line(&refused).contains(&expected), "{refused}");
    // A freed client slot is usable by another process.
    drop(puppets.pop());
    let all = puppets.len();
    until("the agent knows that it has ended", || {
        let pod = node.instance("pod");
        pod["processes"]
            .as_array()
            .is_some_and(|list| list.len() == all)
    });
    let mut command = node.command(built("vector_add"));
    node.put(&mut command, "pod");
    node.softgpu.succeeds(&mut command);
}

#[test]
fn a_part_of_the_sms_without_mps() {
    let node = Node::new(SoftGpuDir::h100(), "mps-control = \"/bin/false\"\n");
    let part = format!("{SHARED}weir.dev/sm-percent=\"50\"\n");
    node.publish("part", &part, "");
    node.publish("whole", SHARED, "");
    until("both are served", || {
        ["part", "whole"]
            .iter()
            .all(|pod| !node.instance(pod).is_null())
    });
    let run = |pod| {
        let mut command = node.command(built("vector_add"));
        node.put(&mut command, pod);
        command.output().unwrap()
    };
    let output = run("part");
    assert_ne!(output.status.code(), Some(0), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = error.lines().find(|line| line.starts_with("weir: "));
    assert!(
        line.is_some_and(|line| line.contains("MPS does not run")),
        "{error}"
    );
    assert!(error.contains("cuInit"), "{error}");
    // A pod with all SMs needs no MPS.
    let output = run("whole");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(without_softgpu(&output.stderr), "", "{output:?}");
}

#[test]
fn a_collective_among_ranks() {
    let softgpu = SoftGpuDir::h100();
    let config = softgpu.folder().join("softgpu.toml");
    let mut file = std::fs::File::options().append(true).open(config).unwrap();
    for name in ["ncclDevKernel_x", "plain"] {
        writeln!(file, "\n[[kernel]]\nname = {name:?}\nduration-us = 5").unwrap();
    }
    let node = Node::new(softgpu, "");
    node.pod("pod", SHARED, "");
    let program = node.build("victims/collective", &[]);
    let alone = comes_to_ok(&mut node.command(&program));
    let answers = |nccl: u32| {
        format!("plain: 0\nncclDevKernel_x: {nccl}\nplain: 0\nncclDevKernel_x: {nccl}\nok\n")
    };
    assert_eq!(alone, answers(0));
    let mut command = node.command(&program);
    node.put(&mut command, "pod");
    let (out, error) = checked_output(&command.output().unwrap(), &command);
    assert_eq!(out, answers(800));
    assert!(
        line(&error).contains("ncclDevKernel_x refused (CUDA_ERROR_NOT_PERMITTED)"),
        "{error}"
    );
}
