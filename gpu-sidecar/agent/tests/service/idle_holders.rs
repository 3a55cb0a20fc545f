//! Tokens that are held but unused pass to waiting processes.

use std::time::Duration;

use protocol::message::{FromAgent, FromProcess};

use crate::node::Node;
use crate::puppet::Puppet;
use testing::until;

/// Adds two pods that cannot hold tokens at the same time.
fn two(node: &Node) -> [(std::sync::Arc<gpu_sidecar::state::Pod>, Puppet); 2] {
    [0, 1].map(|key| {
        let pod = node.pod(key, 60);
        let puppet = node.attached(&pod);
        (pod, puppet)
    })
}

#[test]
fn an_idle_holder_loses_its_token_to_a_waiting_process() {
    let node = Node::new();
    let [(idle_pod, idle), (_, other)] = two(&node);
    for round in 1..4 {
        idle.request_token();
        idle.wait_open();
        other.request_token();
        other.wait_open();
        other.report_work();
        assert!(!idle.is_open());
        let counters = node.of_pod(&idle_pod).counters;
        assert_eq!((counters.revoked_idle, counters.overruns), (round, 0));
        assert!(counters.held_idle_ns > 0, "idle holding is charged");
        // A late return of a revoked token.
        let epoch = idle.epoch() - 1;
        idle.send(&FromProcess::Closed { epoch });
        assert_eq!(node.of_slot().held_hundredths, 6_000);
        let epoch = other.wait_open();
        other.send(&FromProcess::Closed { epoch });
        other.wait_shut();
    }
}

#[test]
fn a_holder_keeps_an_idle_token_while_no_other_waits() {
    let node = Node::new();
    let [(pod, idle), _] = two(&node);
    idle.request_token();
    let epoch = idle.wait_open();
    crate::node::pause(200);
    assert_eq!(
        (idle.epoch(), node.of_pod(&pod).counters.revoked_idle),
        (epoch, 0)
    );
}

/// Whether the answer is in time depends on the machine; `policy/tests/tokens_held.rs` covers the effect of an answer.
#[test]
fn a_holder_is_probed_before_its_token_is_revoked() {
    let node = Node::new();
    let [(pod, holder), (_, waiter)] = two(&node);
    holder.request_token();
    holder.wait_open();
    holder.report_work_of(Duration::from_millis(1));
    waiter.request_token();
    assert_eq!(holder.answer(), FromAgent::Probe);
    assert!(holder.send(&FromProcess::Present));
    waiter.wait_open();
    assert_eq!(node.of_pod(&pod).counters.revoked_unresponsive, 1);
    assert!(!holder.is_open());
    // An answer which is late, or without a probe, is ignored.
    assert!(holder.send(&FromProcess::Present));
    holder.request_token();
    assert_eq!(node.of_slot().held_hundredths, 6_000);
}

#[test]
fn repeated_idle_holders_do_not_starve_a_neighbour() {
    let node = Node::new();
    let (bad, good) = (node.pod(0, 60), node.pod(1, 60));
    let mut neighbour = node.attached(&good);
    for _round in 0..10 {
        let puppet = node.attached(&bad);
        puppet.request_token();
        puppet.wait_open();
        neighbour.request_token();
        neighbour.wait_open();
        neighbour.report_work();
        // The process stays alive without a connection, and holds nothing.
        drop(puppet);
        assert!(neighbour.give_back());
        neighbour
            .facts()
            .busy_since
            .store(0, std::sync::atomic::Ordering::Release);
    }
    until("no holders", || {
        (node.of_slot().held_hundredths == 0).then_some(())
    });
}
