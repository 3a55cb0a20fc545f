//! Tokens that are held and not used go on to those that wait.

use std::time::Duration;

use protocol::message::{FromAgent, FromProcess};

use crate::node::{Node, until};
use crate::puppet::Puppet;

/// Two pods that do not fit beside each other.
fn two(node: &Node) -> [(std::sync::Arc<gpu_sidecar::state::Pod>, Puppet); 2] {
    [0, 1].map(|key| {
        let pod = node.pod(key, 60);
        let puppet = node.begun(&pod);
        (pod, puppet)
    })
}

#[test]
fn a_holder_that_never_launches_loses_its_token_to_one_that_waits() {
    let node = Node::new();
    let [(idle_pod, idle), (_, other)] = two(&node);
    for round in 1..4 {
        idle.ask();
        idle.wait_open();
        other.ask();
        other.wait_open();
        other.claims_work();
        assert!(!idle.is_open());
        let counters = node.of_pod(&idle_pod).counters;
        assert_eq!((counters.revoked_idle, counters.overruns), (round, 0));
        assert!(counters.held_idle_ns > 0, "what it held idle is charged");
        // Late, and for a token that it has no more.
        let epoch = idle.epoch() - 1;
        idle.say(&FromProcess::Closed { epoch });
        assert_eq!(node.of_slot().held_hundredths, 6_000);
        let epoch = other.wait_open();
        other.say(&FromProcess::Closed { epoch });
        other.wait_shut();
    }
}

#[test]
fn a_holder_keeps_an_idle_token_while_nobody_waits() {
    let node = Node::new();
    let [(pod, idle), _] = two(&node);
    idle.ask();
    let epoch = idle.wait_open();
    crate::node::pause(200);
    assert_eq!(
        (idle.epoch(), node.of_pod(&pod).counters.revoked_idle),
        (epoch, 0)
    );
}

/// Whether it answers in time depends on the machine; what an answer changes is shown in `policy/tests/tokens_held.rs`.
#[test]
fn a_holder_is_asked_for_a_sign_of_life_before_its_token_is_taken() {
    let node = Node::new();
    let [(pod, holder), (_, waiter)] = two(&node);
    holder.ask();
    holder.wait_open();
    holder.claims_work_of(Duration::from_millis(1));
    waiter.ask();
    assert_eq!(holder.answer(), FromAgent::Probe);
    assert!(holder.say(&FromProcess::Present));
    waiter.wait_open();
    assert_eq!(node.of_pod(&pod).counters.revoked_unresponsive, 1);
    assert!(!holder.is_open());
    // An answer that comes late, or without a probe, is ignored.
    assert!(holder.say(&FromProcess::Present));
    holder.ask();
    assert_eq!(node.of_slot().held_hundredths, 6_000);
}

#[test]
fn a_pod_that_asks_launches_nothing_and_hangs_up_again_and_again_costs_its_neighbour_little() {
    let node = Node::new();
    let (bad, good) = (node.pod(0, 60), node.pod(1, 60));
    let mut neighbour = node.begun(&good);
    for _round in 0..10 {
        let puppet = node.begun(&bad);
        puppet.ask();
        puppet.wait_open();
        neighbour.ask();
        neighbour.wait_open();
        neighbour.claims_work();
        // It lives on without its connection, and holds nothing.
        drop(puppet);
        assert!(neighbour.give_back());
        neighbour
            .facts()
            .busy_since
            .store(0, std::sync::atomic::Ordering::Release);
    }
    until("nobody to hold", || {
        (node.of_slot().held_hundredths == 0).then_some(())
    });
}
