//! What goes wrong amid moves of models: forks, captures, orders at once, devices that are gone.

use std::thread;

use rustix::process::Signal;
use softgpu_harness::soft_gpu_dir::{is_gone, signal};
use testing::until;

use super::*;

/// `CUDA_ERROR_DEVICE_UNAVAILABLE`
const DEVICE_UNAVAILABLE: u32 = 46;

#[test]
fn a_forked_child_has_no_part_in_the_moves_of_its_parent() {
    let node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    // Children of a resident process and of one that is away, which live on over the next move.
    for round in 0..3 {
        puppet.run("fork");
        evict(&node);
        assert_eq!(puppet.run("reap").number(0), 0, "round {round}");
        puppet.run("fork");
        assert_eq!(process(&node)["residency"], "host");
        assert_eq!(sums(&mut puppet), before, "round {round}");
        assert_eq!(puppet.run("reap").number(0), 0, "round {round}");
    }
    let processes = node.instance("pod")["processes"].clone();
    assert_eq!(processes.as_array().map(Vec::len), Some(1), "{processes}");
}

#[test]
fn a_process_that_captures_stays_until_it_has_ended() {
    let node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    puppet.run_all("stream 1\ncapture 1");
    let (status, answer) = order(&node, "evict");
    assert_eq!((status, &answer["reason"]), (409, &"capturing".into()));
    // The gate is open.
    assert_eq!(sums(&mut puppet), before);
    puppet.run("captured 1");
    evict(&node);
    assert_eq!(sums(&mut puppet), before);
}

#[test]
fn orders_at_once_are_one_move() {
    let node = node("[memory]\nrestore = \"order\"\n");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    // Its host memory may be on its way until then.
    evict(&node);
    assert_eq!(order(&node, "restore").0, 200);
    for verb in ["evict", "restore", "evict", "restore"] {
        let answers = thread::scope(|scope| {
            let orders = [(); 4].map(|()| scope.spawn(|| order(&node, verb)));
            orders.map(|order| order.join().unwrap())
        });
        let number = &answers[0].1["seq"];
        for (status, answer) in &answers {
            assert_eq!((*status, &answer["seq"]), (200, number), "{verb}: {answer}");
        }
    }
    assert_eq!(sums(&mut puppet), before);
}

#[test]
fn a_kernel_that_does_not_end_keeps_the_model_and_the_gate_open() {
    let node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    puppet.run("spin 0 2000000000 1 1");
    let (status, answer) = node.post("/v1/instances/pod:evict?wait=true", r#"{"drain_ms":20}"#);
    assert_eq!((status, &answer["reason"]), (409, &"draining".into()));
    // A touch waits for neither the kernel nor a move.
    puppet.run("stream 1");
    puppet.run("host 0 4096");
    puppet.run("push 1 7 0 4");
    puppet.run("sync 1");
    puppet.run("sync 0");
    evict(&node);
    assert_eq!(sums(&mut puppet)[..7], before[..7]);
}

#[test]
fn memory_that_another_pod_had_reads_as_zeros() {
    let node = node("");
    node.pod("next", SHARED, "");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    evict(&node);
    let mut command = Command::new(built("puppet"));
    node.softgpu.is_for(&mut command);
    command.arg(ptx());
    node.put(&mut command, "next");
    let mut next = Puppet::start(&mut command);
    next.run_all("open\nload");
    // As much as the other had, by the library's allocations and by mappings of its own.
    let bytes = 2_000 * GRANULE;
    next.run(&format!("alloc 0 {bytes}"));
    next.run(&format!("own 1 {bytes}"));
    for slot in [0, 1] {
        let sum = next.run(&format!("sum {slot} {}", bytes / 4)).number(0);
        assert_eq!(sum, 0, "{slot}");
    }
    assert_eq!(sums(&mut puppet), before);
}

/// Steps of a move at which the device ends.
const MOMENTS: [&str; 3] = ["away", "amid an eviction", "amid a restore"];

#[test]
fn a_device_that_ends_leaves_no_thread_waiting_and_no_memory() {
    for moment in MOMENTS {
        let node = node("");
        let mut puppet = program(&node);
        filled(&mut puppet);
        ready(&node);
        let server = node.softgpu.server();
        match moment {
            "away" => {
                evict(&node);
            }
            "amid an eviction" => {
                let (status, _) = node.post("/v1/instances/pod:evict", "");
                assert_eq!(status, 202, "{moment}");
            }
            _ => {
                evict(&node);
                puppet.send("sum 7 1");
            }
        }
        signal(server, Signal::KILL);
        if moment == "amid a restore" {
            // Either the sum came first, or the device is gone.
            let result = puppet.answer().result;
            assert!([0, DEVICE_UNAVAILABLE].contains(&result), "{result}");
        }
        assert_eq!(puppet.result("sum 7 1"), DEVICE_UNAVAILABLE, "{moment}");
        until("the server is gone", || is_gone(server));
        // Orders are answered, whatever the answer.
        let (status, answer) = order(&node, "evict");
        assert!([200, 409].contains(&status), "{moment}: {answer}");
        signal(puppet.pid(), Signal::KILL);
        until("the agent knows", || {
            node.instance("pod")["processes"] == Value::Array(Vec::new())
        });
    }
}
