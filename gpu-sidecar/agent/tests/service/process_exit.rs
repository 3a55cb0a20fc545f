//! Processes that die, are stopped, or disconnect while alive.

use std::time::Duration;

use gpu_sidecar::events::EventKind;
use rustix::process::Signal;

use crate::node::{Node, pause};
use crate::puppet::Puppet;
use testing::until;

fn compute(puppet: &Puppet) {
    puppet.report_work();
    puppet.request_token();
    puppet.wait_open();
}

#[test]
fn death_of_a_holder_frees_its_token_at_once() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let waiter = node.attached(&two);
    for is_ordered_first in [false, true, false, true] {
        let other = node.child_process(&one);
        let holder = other.connect().greet_and_attach();
        compute(&holder);
        waiter.request_token();
        if is_ordered_first {
            holder.wait_shut();
        }
        assert!(!waiter.is_open());
        other.kill();
        drop(holder);
        waiter.wait_open();
        let epoch = waiter.epoch();
        waiter.send(&protocol::message::FromProcess::Closed { epoch });
        waiter.wait_shut();
        until("the process to be forgotten", || {
            node.of_pod(&one).processes.is_empty().then_some(())
        });
    }
    let slot = node.of_slot();
    assert_eq!(
        (slot.holders, slot.waiters, slot.held_hundredths),
        (0, 0, 0)
    );
    assert_eq!(node.of_pod(&one).counters.grants, 4);
}

/// The connection ends before the process: the death raises no event at the agent.
#[test]
fn death_after_the_connection_is_noticed() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let waiter = node.attached(&two);
    let other = node.child_process(&one);
    let holder = other.connect().greet_and_attach();
    compute(&holder);
    waiter.request_token();
    drop(holder);
    // The process is alive, and counts as a holder.
    until("the loss", || {
        (!node.of_pod(&one).processes.iter().any(|own| own.is_open)).then_some(())
    });
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(!waiter.is_open());
    other.kill();
    waiter.wait_open();
}

#[test]
fn a_stopped_holder_loses_its_token_at_the_expected_end_of_its_work() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let other = node.child_process(&one);
    let mut holder = other.connect().greet_and_attach();
    compute(&holder);
    holder.report_work_of(Duration::from_millis(5));
    other.signal(Signal::STOP);
    let mut waiter = node.attached(&two);
    waiter.request_token();
    waiter.wait_open();
    // Before the end of its turn, and before the timeout for unresponsive processes.
    assert_eq!(node.of_pod(&one).counters.revoked_unresponsive, 1);
    assert_eq!(node.of_pod(&one).counters.overruns, 0);
    // A late return changes nothing; a late request counts.
    other.signal(Signal::CONT);
    assert!(holder.give_back());
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    holder.request_token();
    assert!(waiter.give_back());
    holder.wait_open();
    assert!(holder.give_back());
}

/// A process that takes a stalled agent for dead connects again. It is still one process.
#[test]
fn a_reconnecting_process_replaces_its_old_connection() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let other = node.child_process(&one);
    let waiter = node.attached(&two);
    let mut holder = other.connect().greet_and_attach();
    for round in 0..6 {
        compute(&holder);
        if round % 2 == 0 {
            // The loss of the connection is noticed first.
            drop(holder);
            until("the loss", || {
                (!node.of_pod(&one).processes.iter().any(|own| own.is_open)).then_some(())
            });
            holder = other.connect().reattach(true, 0);
        } else {
            // The new connection is made before the old one ends.
            let later = other.connect().reattach(true, 0);
            drop(std::mem::replace(&mut holder, later));
        }
        until("one process", || {
            (node.of_pod(&one).processes.len() == 1).then_some(())
        });
        holder.report_work();
        // It may have been ordered to close, since it was connected twice for a moment; until it has closed, it holds.
        assert_eq!(node.of_slot().held_hundredths, 6_000);
        waiter.request_token();
        pause(20);
        assert!(!waiter.is_open());
        assert!(holder.give_back());
        let epoch = waiter.wait_open();
        waiter.send(&protocol::message::FromProcess::Closed { epoch });
        waiter.wait_shut();
    }
    let slot = node.of_slot();
    assert_eq!(
        (slot.processes, slot.holders, slot.held_hundredths),
        (2, 0, 0)
    );
}

#[test]
fn only_processes_that_stay_disconnected_are_killed() {
    let node = Node::new();
    let pods = [node.pod(0, 20), node.pod(1, 20), node.pod(2, 20)];
    let others = [
        node.child_process(&pods[0]),
        node.child_process(&pods[1]),
        node.child_process(&pods[2]),
    ];
    let mut puppets: Vec<_> = others
        .iter()
        .map(|other| other.connect().greet_and_attach())
        .collect();
    for puppet in &puppets[..2] {
        compute(puppet);
    }
    puppets.clear();
    until("the losses", || {
        let figures = node.figures();
        let open = figures
            .pods
            .iter()
            .any(|pod| pod.processes.iter().any(|own| own.is_open));
        (!open).then_some(())
    });
    assert_eq!(node.of_slot().held_hundredths, 4_000);
    let returned = others[1].connect().reattach(true, 0);
    // The last process held nothing, and computes without limits now.
    for at in [0, 2] {
        until("the end of the process", || {
            (!others[at].is_alive()).then_some(())
        });
    }
    until("the release of its SMs", || {
        (node.of_slot().held_hundredths == 2_000).then_some(())
    });
    assert_eq!(node.count_events(EventKind::ProcessKilled), 2);
    pause(300);
    assert!(others[1].is_alive());
    assert!(returned.held().is_some());
    assert_eq!(node.count_events(EventKind::ProcessKilled), 2);
}

/// A waiting process without a connection cannot receive a grant, and gets none.
#[test]
fn a_disconnected_waiter_receives_no_token() {
    let node = Node::new();
    let (one, two, three) = (node.pod(0, 60), node.pod(1, 60), node.pod(2, 60));
    let mut holder = node.attached(&one);
    compute(&holder);
    let other = node.child_process(&two);
    let gone = other.connect().greet_and_attach();
    gone.request_token();
    until("the process to wait", || {
        node.of_pod(&two).is_waiting.then_some(())
    });
    drop(gone);
    until("the process to wait no longer", || {
        (!node.of_pod(&two).is_waiting).then_some(())
    });
    let waiter = node.attached(&three);
    waiter.request_token();
    assert!(holder.give_back());
    waiter.wait_open();
    assert_eq!(node.of_pod(&two).counters.grants, 0);
    assert!(other.is_alive(), "the process was not killed");
}
