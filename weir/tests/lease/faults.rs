//! Processes that compute no more, and GPUs that are lost, under leases.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use softgpu_harness::node::Node;
use softgpu_harness::pods::{About, Pod, exchange, infer, infer_for};
use softgpu_harness::programs::{built, ptx};
use softgpu_harness::puppet::Puppet;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, is_gone, signal};
use testing::until;

use super::{CONFIG, node, print};

/// Number of requests after which it is known how long they usually take, with some to spare.
const USUAL: u64 = 30;

/// `CUDA_ERROR_ILLEGAL_ADDRESS`, after which every call of the process fails.
const ILLEGAL_ADDRESS: u32 = 700;

/// Returns how many processes of a pod were killed for this reason.
fn faulted(node: &Node, pod: &str, reason: &str) -> u64 {
    let count = &node.instance(pod)["faulted_processes"][reason];
    count.as_u64().unwrap_or(0)
}

/// Blocks until the server of a pod computes a request.
fn computes(pod: &Pod) {
    until("it computes", || {
        let (_, stats) = exchange(pod.target, "GET", "/stats", "");
        let stats: Value = serde_json::from_str(&stats).unwrap_or_default();
        (stats["running"] == 1).then_some(())
    });
}

#[test]
fn a_server_whose_kernel_hangs_is_killed_and_the_slot_passes_on() {
    let (node, mut pods) = node();
    let [hanging, other] = pods.each_ref().map(Pod::address);
    for seed in 0..USUAL {
        assert_eq!(infer(hanging, seed), 200);
    }
    let hung = thread::spawn(move || infer_for(hanging, 600_000, 99));
    computes(&pods[0]);
    // It waits for the slot meanwhile.
    assert_eq!(infer(other, 1), 200);
    assert_eq!(hung.join().unwrap(), 502);
    assert_eq!(faulted(&node, "one", "no-progress"), 1);
    assert_eq!(faulted(&node, "two", "no-progress"), 0);
    pods[0].start_model(&node);
    assert_eq!(infer(hanging, 100), 200);
}

/// Returns where the model of a pod is.
fn residency(node: &Node, pod: &str) -> String {
    let instance = node.instance(pod);
    let place = instance["processes"][0]["residency"].as_str();
    place.unwrap_or_default().to_owned()
}

#[test]
fn the_slot_passes_on_wherever_the_model_of_a_killed_server_is() {
    let (node, mut pods) = node();
    let [killed, other] = pods.each_ref().map(Pod::address);
    for place in ["resident", "host", "restoring"] {
        assert_eq!(infer(killed, 1), 200);
        if place != "resident" {
            // There is room for one of both.
            assert_eq!(infer(other, 2), 200);
        }
        let waiting = (place == "restoring").then(|| {
            // Stopped, it cannot carry out the order to return.
            signal(pods[0].model.as_ref().unwrap().pid(), Signal::STOP);
            thread::spawn(move || infer(killed, 3))
        });
        until("its model is there", || {
            let is_there = match place {
                // It is ordered back at once when the other has left.
                "restoring" => residency(&node, "two") == "host",
                _ => residency(&node, "one") == place,
            };
            is_there.then_some(())
        });
        pods[0].model = None;
        let begin = Instant::now();
        assert_eq!(infer(other, 4), 200, "{place}");
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{place}: {took:?}");
        if let Some(waiting) = waiting {
            // Its server is gone; or its successor answers it.
            let status = waiting.join().unwrap();
            assert!([200, 502].contains(&status), "{place}: {status}");
        }
        pods[0].start_model(&node);
        assert_eq!(infer(killed, 5), 200, "{place}");
        let processes = node.instance("one")["processes"].as_array().unwrap().len();
        assert_eq!(processes, 1, "{place}");
    }
}

#[test]
fn the_slot_passes_on_although_the_queue_proxy_of_the_holder_is_stopped() {
    let (_node, pods) = node();
    let [stopped, other] = pods.each_ref().map(Pod::address);
    assert_eq!(infer(stopped, 1), 200);
    let queue = pods[0].queue.as_ref().unwrap().pid();
    signal(queue, Signal::STOP);
    let begin = Instant::now();
    assert_eq!(infer(other, 1), 200);
    let took = begin.elapsed();
    signal(queue, Signal::CONT);
    // It cannot answer the recall: its processes have computed nothing for ten seconds.
    assert!(took < Duration::from_secs(18), "{took:?}");
    assert_eq!(infer(stopped, 2), 200);
}

#[test]
fn the_slot_passes_on_although_the_server_of_the_holder_is_stopped() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    // Room for both models: what is stopped cannot leave.
    let node = Node::new(softgpu, &CONFIG.replacen("5Mi", "12Mi", 1));
    let stopped = Pod::start(&node, About::of("one", "127.0.11.27"));
    let other = Pod::start(&node, About::of("two", "127.0.11.28"));
    assert_eq!(infer(stopped.address(), 1), 200);
    let server = stopped.model.as_ref().unwrap().pid();
    signal(server, Signal::STOP);
    let begin = Instant::now();
    // It cannot state that its gate is closed.
    assert_eq!(infer(other.address(), 2), 200);
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    signal(server, Signal::CONT);
    assert_eq!(infer(stopped.address(), 3), 200);
    assert_eq!(infer(other.address(), 4), 200);
}

#[test]
fn a_process_with_a_sticky_error_is_killed_where_there_are_leases() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--bytes", "64"]);
    let node = Node::new(softgpu, CONFIG);
    let about = About::of("one", "127.0.11.12");
    about.publish(&node);
    let _queue = about.start_queue(&node, 9);
    let mut command = Command::new(built("puppet"));
    node.softgpu.is_for(&mut command);
    command.arg(ptx());
    node.put(&mut command, "one");
    let mut puppet = Puppet::start(&mut command);
    puppet.run("open");
    puppet.run("load");
    puppet.run("wild 0");
    assert_eq!(puppet.result("sync 0"), ILLEGAL_ADDRESS);
    let pid = puppet.pid();
    until("it is killed", || is_gone(pid).then_some(()));
    assert_eq!(faulted(&node, "one", "sticky-error"), 1);
}

#[test]
fn requests_of_a_lost_gpu_are_answered_by_a_sibling_on_another() {
    let softgpu = SoftGpuDir::new(&["--gpu", "V100", "--gpus", "2", "--bytes", "64"]);
    let node = Node::new(softgpu, CONFIG);
    let about = |name, slot, ip, uid| About {
        function: "shared",
        uid,
        slot,
        ..About::of(name, ip)
    };
    let [here, _there] = [
        about(
            "here",
            "0",
            "127.0.11.13",
            "00000000-0000-0000-0000-000000000001",
        ),
        about(
            "there",
            "1",
            "127.0.11.14",
            "00000000-0000-0000-0000-000000000002",
        ),
    ]
    .map(|about| Pod::start(&node, about));
    let address = here.address();
    assert_eq!(infer(address, 1), 200);
    let running = thread::spawn(move || infer_for(address, 600_000, 2));
    computes(&here);
    let waiting = [3, 4, 5].map(|seed| thread::spawn(move || infer(address, seed)));
    here.waits_for(3);
    node.softgpu.inject("79");
    let begin = Instant::now();
    for answer in waiting {
        assert_eq!(answer.join().unwrap(), 200, "its sibling answers it");
    }
    let took = begin.elapsed();
    print(&format!("answered {took:?} after the loss"));
    assert!(took < Duration::from_secs(5), "{took:?}");
    let status = running.join().unwrap();
    assert!([500, 502, 503].contains(&status), "{status}");
    for seed in 6..10 {
        assert_eq!(infer(address, seed), 200);
    }
    let siblings = &node.instance("here")["lease"]["siblings"];
    assert!(siblings["named"].as_u64() >= Some(7), "{siblings}");
}
