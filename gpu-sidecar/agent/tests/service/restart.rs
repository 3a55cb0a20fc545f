//! Restart of the agent while processes compute.

use std::sync::atomic::Ordering;

use gpu_sidecar::events::EventKind;
use gpu_sidecar::state::Command;
use protocol::message::FromProcess;

use crate::node::{Node, pause};
use testing::until;

#[test]
fn nothing_is_granted_before_all_have_greeted_or_died() {
    let mut node = Node::new();
    let pods = [node.pod(0, 50), node.pod(1, 50), node.pod(2, 60)];
    let others = [node.child_process(&pods[0]), node.child_process(&pods[1])];
    let before: Vec<_> = others
        .iter()
        .map(|other| other.connect().greet_and_attach())
        .collect();
    for puppet in &before {
        puppet.request_token();
        puppet.wait_open();
    }
    node.restart();
    // The gates are unchanged.
    assert!(before.iter().all(|puppet| puppet.is_open()));
    drop(before);
    node.add_all();
    // A newcomer receives nothing.
    let mut newcomer = node.attached(&pods[2]);
    newcomer.request_token();
    assert_eq!(node.of_pod(&pods[0]).silent_processes, 1);
    let mut first = others[0].connect().reattach(true, 0);
    assert!(first.is_open());
    until("the first two seconds", || {
        assert!(newcomer.held().is_none());
        assert!(node.of_slot().held_hundredths <= 10_000);
        node.has_event(EventKind::ProcessReport, "has not greeted it")
            .then_some(())
    });
    // The silent process counts as a holder, and the first one may have to close.
    assert_eq!(node.of_slot().held_hundredths, 10_000);
    assert!(node.of_pod(&pods[1]).has_token);
    assert!(newcomer.held().is_none());
    assert!(first.give_back());
    pause(50);
    assert!(newcomer.held().is_none(), "50 and 60 do not fit");
    // Its death raises no event.
    others[1].kill();
    newcomer.wait_open();
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(!node.of_pod(&pods[1]).has_token);
    assert_eq!(node.of_pod(&pods[1]).silent_processes, 0);
    assert!(newcomer.give_back());
    first.request_token();
    first.wait_open();
    assert!(first.give_back());
    assert_eq!(node.of_slot().holders, 0);
}

#[test]
fn a_silent_process_that_greets_late_replaces_its_stand_in() {
    let mut node = Node::new();
    let pods = [node.pod(0, 60), node.pod(1, 60)];
    let other = node.child_process(&pods[0]);
    let before = other.connect().greet_and_attach();
    before.request_token();
    before.wait_open();
    node.restart();
    drop(before);
    node.add_all();
    let waiter = node.attached(&pods[1]);
    waiter.request_token();
    until("the silent one to count", || {
        (node.of_slot().held_hundredths == 6_000).then_some(())
    });
    let mut late = other.connect().reattach(true, 0);
    until("one holder", || {
        let slot = node.of_slot();
        assert!(!waiter.is_open());
        (slot.held_hundredths == 6_000 && slot.holders == 1).then_some(())
    });
    late.wait_shut();
    assert!(late.give_back());
    waiter.wait_open();
    assert!(!node.of_pod(&pods[0]).has_token);
}

/// The pod is found after the slot has started to grant tokens.
#[test]
fn silent_processes_of_pods_found_late_count_as_holders() {
    let mut node = Node::new();
    let pods = [node.pod(0, 60), node.pod(1, 60)];
    let other = node.child_process(&pods[0]);
    let before = other.connect().greet_and_attach();
    before.request_token();
    before.wait_open();
    node.restart();
    drop(before);
    node.add(&pods[1]);
    let waiter = node.attached(&pods[1]);
    waiter.request_token();
    let epoch = waiter.wait_open();
    waiter.send(&FromProcess::Closed { epoch });
    waiter.wait_shut();
    node.add(&pods[0]);
    until("the silent one to count", || {
        (node.of_slot().held_hundredths == 6_000).then_some(())
    });
    waiter.request_token();
    pause(50);
    assert!(!waiter.is_open());
    other.kill();
    waiter.wait_open();
}

#[test]
fn a_slot_may_be_added_after_its_pods() {
    let node = Node::bare();
    let pod = node.pod(0, 60);
    let early = node.connect(&pod);
    let refused = early.hello();
    assert!(matches!(
        refused,
        protocol::message::FromAgent::Refused {
            reason: protocol::message::Refusal::SlotLost,
            ..
        }
    ));
    node.send(Command::SlotAdded(std::sync::Arc::new(crate::node::slot(
        0,
    ))));
    node.mps(true);
    let mut puppet = node.attached(&pod);
    puppet.request_token();
    puppet.wait_open();
    // A repeated `SlotAdded` keeps the slot and its granted tokens.
    node.send(Command::SlotAdded(std::sync::Arc::new(crate::node::slot(
        0,
    ))));
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(puppet.give_back());
}

#[test]
fn claims_survive_a_restart() {
    let mut node = Node::new();
    let limit = 100;
    let pod = node.pod_with(0, |settings| settings.gpu_memory = Some(limit));
    let other = node.child_process(&pod);
    let before = other.connect().greet_and_attach();
    before.send(&FromProcess::Claim { seq: 1, bytes: 70 });
    until("the claim", || {
        (before.orders().claim_answered.load(Ordering::Acquire) == 1).then_some(())
    });
    node.restart();
    drop(before);
    node.add_all();
    let again = other.connect().reattach(false, 70);
    assert_eq!(again.orders().memory_claim.load(Ordering::Acquire), 70);
    let newcomer = node.attached(&pod);
    for (seq, bytes, held) in [(1, 31, 0), (2, 30, 30)] {
        newcomer.send(&FromProcess::Claim { seq, bytes });
        until("an answer", || {
            (newcomer.orders().claim_answered.load(Ordering::Acquire) == seq).then_some(())
        });
        assert_eq!(newcomer.orders().memory_claim.load(Ordering::Acquire), held);
    }
    drop(again);
}
