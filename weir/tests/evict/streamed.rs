//! Programs that compute amid a restore: a launch waits for what it uses, however it names it.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::Instant;

use softgpu_harness::node::{Node, SHARED};
use softgpu_harness::puppet::Puppet;
use softgpu_harness::soft_gpu_dir::SoftGpuDir;
use testing::until;

use crate::{GRANULE, evict, process, program, ready};

/// Number of words of the block that is used first.
const WORDS: u64 = 8 * GRANULE / 4;
/// Number of the last block that is used. Each after the first has four times its size.
const LAST: u64 = 30;

/// Starts an agent whose programs compute amid restores, and a program with memory whose restore takes more than a second.
fn restored() -> (Node, Puppet) {
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--bytes", "512", "--time", "8"]);
    let config = softgpu.folder().join("softgpu.toml");
    let mut file = File::options().append(true).open(config).unwrap();
    let rule = "\n[[kernel]]\nname = \"bump\"\nduration-us = 1\neffects = \"touch\"\n";
    file.write_all(rule.as_bytes()).unwrap();
    drop(file);
    let node = Node::new(softgpu, "[memory]\nstream-restores = \"poisoned\"\n");
    node.pod("pod", SHARED, "");
    let mut puppet = program(&node);
    // An address at the end of a block counts as of that block: what is allocated later lies behind one which is not used.
    for slot in 0..=LAST + 1 {
        let words = if slot == 0 { WORDS } else { 4 * WORDS };
        puppet.run(&format!("alloc {slot} {}", 4 * words));
    }
    puppet.run(&format!("fill 0 0 {WORDS} 3"));
    puppet.run("stream 1");
    puppet.run("sync_all");
    ready(&node);
    (node, puppet)
}

/// Returns the time for which the threads of a process have run, in nanoseconds.
fn run_time(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let times = threads.map(|thread| {
        // It may have ended.
        let text = fs::read_to_string(thread.unwrap().path().join("schedstat"));
        let first = text.unwrap_or_default();
        first
            .split(' ')
            .next()
            .and_then(|ns| ns.parse::<u64>().ok())
    });
    times.map(Option::unwrap_or_default).sum()
}

/// Waits until a process whose model has left does nothing: its copies have been searched for addresses. Before that every launch waits for all.
fn searched(puppet: &Puppet) {
    let (mut before, mut looks) = (0, 0);
    until("the copies are searched", || {
        let now = run_time(puppet.pid());
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
        looks >= 3
    });
}

/// Evicts the model, and returns whether this launch waits for all memory: whether the restore which it asks for takes longer until the launch has
/// returned than from then on.
fn waits_for_all(node: &Node, puppet: &mut Puppet, launch: &str) -> bool {
    evict(node);
    searched(puppet);
    puppet.send(launch);
    until("the model returns", || {
        process(node)["residency"] == "restoring"
    });
    let begin = Instant::now();
    assert_eq!(puppet.answer().result, 0, "{launch}");
    let until_launched = begin.elapsed();
    until("the model is there", || {
        process(node)["residency"] == "resident"
    });
    let all = begin.elapsed();
    puppet.run("sync_all");
    until_launched > all - until_launched
}

fn sum(puppet: &mut Puppet) -> u64 {
    puppet.run(&format!("sum 0 {WORDS}")).number(0)
}

#[test]
fn a_launch_with_its_arguments_in_one_buffer_waits_for_what_they_name() {
    let (node, mut puppet) = restored();
    let fill = format!("fill 1 0 {WORDS} 5");
    assert!(!waits_for_all(&node, &mut puppet, &fill));
    let packed = format!("packed 1 0 {WORDS} 7");
    assert!(!waits_for_all(&node, &mut puppet, &packed));
    assert_eq!(sum(&mut puppet), 7 * WORDS);
}

#[test]
fn a_graph_waits_for_what_its_nodes_name() {
    let (node, mut puppet) = restored();
    let capture = |puppet: &mut Puppet, graph: u32, commands: &[&str]| {
        puppet.run("capture 1");
        for command in commands {
            puppet.run(command);
        }
        puppet.run(&format!("graph {graph} 1"));
    };
    let fill = format!("fill 1 0 {WORDS} 5");
    let packed = format!("packed 1 0 {WORDS} 6");
    let last = format!("fill 1 {LAST} 8 1");
    puppet.run("host 0 64");
    capture(
        &mut puppet,
        0,
        &[
            &fill,
            &packed,
            "move 1 0 0 4",
            "pull 1 0 0 4",
            "clear 1 0 4",
        ],
    );
    assert!(!waits_for_all(&node, &mut puppet, "play 0 1"));
    assert_eq!(sum(&mut puppet), 6 * (WORDS - 1));
    capture(&mut puppet, 1, &[&fill, &last]);
    assert!(waits_for_all(&node, &mut puppet, "play 1 1"));
    // A copy from the host may bring addresses, which a kernel after it may follow.
    capture(&mut puppet, 2, &[&fill, "push 1 0 0 4"]);
    assert!(waits_for_all(&node, &mut puppet, "play 2 1"));
    // Another graph may have the handle of one that is destroyed.
    puppet.run("drop 0");
    let other = format!("fill 1 {} 8 1", LAST - 1);
    capture(&mut puppet, 0, &[&other]);
    assert!(waits_for_all(&node, &mut puppet, "play 0 1"));
}

#[test]
fn a_launch_with_a_descriptor_of_a_tensor_waits_for_the_tensor() {
    let (node, mut puppet) = restored();
    puppet.run("tensor 0 0");
    assert!(!waits_for_all(&node, &mut puppet, "bump 1 0"));
    assert_eq!(sum(&mut puppet), 3 * WORDS + 1);
    puppet.run("capture 1");
    puppet.run("bump 1 0");
    puppet.run("graph 0 1");
    assert!(!waits_for_all(&node, &mut puppet, "play 0 1"));
    assert_eq!(sum(&mut puppet), 3 * WORDS + 2);
    puppet.run(&format!("retensor 0 {LAST}"));
    assert!(waits_for_all(&node, &mut puppet, "bump 1 0"));
    assert_eq!(puppet.run(&format!("sum {LAST} {WORDS}")).number(0), 1);
    // The graph has the descriptor as it was.
    assert!(!waits_for_all(&node, &mut puppet, "play 0 1"));
    assert_eq!(sum(&mut puppet), 3 * WORDS + 3);
}
