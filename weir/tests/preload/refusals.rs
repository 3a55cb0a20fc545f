//! Processes that an agent does not take, and kernels that no process may launch in a pod.

use std::io::Write as _;

use crate::build::built;
use crate::node::{Node, SHARED, comes_to_ok, said, without_softgpu};
use crate::place::{Place, until};
use crate::puppet::Puppet;

/// `CUDA_ERROR_SYSTEM_NOT_READY`.
const REFUSED: u32 = 802;

/// The one line of standard error.
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
    let node = Node::new(Place::new(&["--gpu", "H100", "--gpus", "2"]), "");
    node.pod("pod", SHARED, "slot = \"1\"\n");
    // The driver cannot be told which device it is.
    let program = node.build("victims/setenv", &["-rdynamic"]);
    assert!(comes_to_ok(&mut node.command(&program)).contains("cuInit: 0"));
    let mut command = node.command(&program);
    node.put(&mut command, "pod");
    let (out, error) = said(&command.output().unwrap(), &command);
    assert!(out.contains(&format!("cuInit: {REFUSED}")), "{out}");
    assert!(
        line(&error).contains("another device than its pod's slot"),
        "{error}"
    );
    assert_eq!(
        node.instance("pod")["refused_connections"]["wrong-device"],
        1
    );
    // Who leaves that to us is on the right one.
    let mut command = node.command(built("vector_add"));
    node.put(&mut command, "pod");
    node.place.succeeds(&mut command);
}

#[test]
fn more_processes_than_mps_takes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slices");
    std::fs::write(&file, "[[gpu]]\nslices = [\"1g.10gb\"]\n").unwrap();
    let place = Place::new(&["--mig", file.to_str().unwrap()]);
    let node = Node::new(place, "");
    node.pod("pod", SHARED, "");
    let mut puppets = Vec::new();
    let refused = loop {
        let mut command = std::process::Command::new(built("puppet"));
        node.place.is_for(&mut command);
        command.arg(crate::build::ptx());
        node.put(&mut command, "pod");
        let error = tempfile::NamedTempFile::new().unwrap();
        command.stderr(error.reopen().unwrap());
        let mut puppet = Puppet::start(&mut command);
        puppet.tell("open");
        let result = puppet.answer().result;
        if result != 0 {
            assert_eq!(result, REFUSED);
            break std::fs::read_to_string(error.path()).unwrap();
        }
        puppets.push(puppet);
        assert!(puppets.len() < 48, "nobody is refused");
    };
    let expected = format!("MPS takes {} client processes", puppets.len());
    assert!(line(&refused).contains(&expected), "{refused}");
    // A place that becomes free is another's.
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
    node.place.succeeds(&mut command);
}

#[test]
fn a_part_of_the_sms_without_mps() {
    let node = Node::new(Place::h100(), "mps-control = \"/bin/false\"\n");
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
    let told = error.lines().find(|line| line.starts_with("weir: "));
    assert!(
        told.is_some_and(|line| line.contains("MPS does not run")),
        "{error}"
    );
    assert!(error.contains("cuInit"), "{error}");
    // One that has all of them needs none.
    let output = run("whole");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(without_softgpu(&output.stderr), "", "{output:?}");
}

#[test]
fn a_collective_among_ranks() {
    let place = Place::h100();
    let config = place.folder().join("softgpu.toml");
    let mut file = std::fs::File::options().append(true).open(config).unwrap();
    for name in ["ncclDevKernel_x", "plain"] {
        writeln!(file, "\n[[kernel]]\nname = {name:?}\nduration-us = 5").unwrap();
    }
    let node = Node::new(place, "");
    node.pod("pod", SHARED, "");
    let program = node.build("victims/collective", &[]);
    let alone = comes_to_ok(&mut node.command(&program));
    let answers = |nccl: u32| {
        format!("plain: 0\nncclDevKernel_x: {nccl}\nplain: 0\nncclDevKernel_x: {nccl}\nok\n")
    };
    assert_eq!(alone, answers(0));
    let mut command = node.command(&program);
    node.put(&mut command, "pod");
    let (out, error) = said(&command.output().unwrap(), &command);
    assert_eq!(out, answers(800));
    assert!(
        line(&error).contains("ncclDevKernel_x refused (CUDA_ERROR_NOT_PERMITTED)"),
        "{error}"
    );
}
