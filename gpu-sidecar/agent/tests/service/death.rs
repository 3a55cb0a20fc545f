//! Processes that die, stop, or go away without dying.

use std::time::Duration;

use gpu_sidecar::events::EventKind;
use rustix::process::Signal;

use crate::node::{Node, pause, until};
use crate::puppet::Puppet;

fn compute(puppet: &Puppet) {
    puppet.claims_work();
    puppet.ask();
    puppet.wait_open();
}

#[test]
fn death_frees_what_was_held_at_once() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let waiter = node.begun(&two);
    for is_told_first in [false, true, false, true] {
        let other = node.other(&one);
        let holder = other.connect().begin();
        compute(&holder);
        waiter.ask();
        if is_told_first {
            holder.wait_shut();
        }
        assert!(!waiter.is_open());
        other.kill();
        drop(holder);
        waiter.wait_open();
        let epoch = waiter.epoch();
        waiter.say(&protocol::message::FromProcess::Closed { epoch });
        waiter.wait_shut();
        until("it to be forgotten", || {
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

/// Its connection goes before it does: the agent is told nothing of the death.
#[test]
fn death_after_the_connection_is_noticed() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let waiter = node.begun(&two);
    let other = node.other(&one);
    let holder = other.connect().begin();
    compute(&holder);
    waiter.ask();
    drop(holder);
    // It lives, and counts as holder.
    until("the loss", || {
        (!node.of_pod(&one).processes.iter().any(|own| own.is_open)).then_some(())
    });
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(!waiter.is_open());
    other.kill();
    waiter.wait_open();
}

#[test]
fn one_that_is_stopped_loses_its_token_when_its_work_should_have_ended() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let other = node.other(&one);
    let mut holder = other.connect().begin();
    compute(&holder);
    holder.claims_work_of(Duration::from_millis(5));
    other.signal(Signal::STOP);
    let mut waiter = node.begun(&two);
    waiter.ask();
    waiter.wait_open();
    // Before the end of its turn, and before it had not answered for seconds.
    assert_eq!(node.of_pod(&one).counters.revoked_unresponsive, 1);
    assert_eq!(node.of_pod(&one).counters.overruns, 0);
    // What it says late changes nothing; what it asks late counts.
    other.signal(Signal::CONT);
    assert!(holder.give_back());
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    holder.ask();
    assert!(waiter.give_back());
    holder.wait_open();
    assert!(holder.give_back());
}

/// An agent that was stalled for a moment is taken for gone: the process connects anew. It is one process still.
#[test]
fn who_connects_anew_takes_its_place() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let other = node.other(&one);
    let waiter = node.begun(&two);
    let mut holder = other.connect().begin();
    for round in 0..6 {
        compute(&holder);
        if round % 2 == 0 {
            // The loss is noticed first.
            drop(holder);
            until("the loss", || {
                (!node.of_pod(&one).processes.iter().any(|own| own.is_open)).then_some(())
            });
            holder = other.connect().begin_again(true, 0);
        } else {
            // It is there again before.
            let later = other.connect().begin_again(true, 0);
            drop(std::mem::replace(&mut holder, later));
        }
        until("one process", || {
            (node.of_pod(&one).processes.len() == 1).then_some(())
        });
        holder.claims_work();
        // It may have been told to close, since for a moment it was there twice; until it has, it holds.
        assert_eq!(node.of_slot().held_hundredths, 6_000);
        waiter.ask();
        pause(20);
        assert!(!waiter.is_open());
        assert!(holder.give_back());
        let epoch = waiter.wait_open();
        waiter.say(&protocol::message::FromProcess::Closed { epoch });
        waiter.wait_shut();
    }
    let slot = node.of_slot();
    assert_eq!(
        (slot.processes, slot.holders, slot.held_hundredths),
        (2, 0, 0)
    );
}

#[test]
fn who_lives_without_a_connection_is_killed_and_who_returns_is_not() {
    let node = Node::new();
    let pods = [node.pod(0, 20), node.pod(1, 20), node.pod(2, 20)];
    let others = [
        node.other(&pods[0]),
        node.other(&pods[1]),
        node.other(&pods[2]),
    ];
    let mut puppets: Vec<_> = others.iter().map(|other| other.connect().begin()).collect();
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
    let returned = others[1].connect().begin_again(true, 0);
    // The last one held nothing, and computes without limits now.
    for at in [0, 2] {
        until("its end", || (!others[at].lives()).then_some(()));
    }
    until("its SMs", || {
        (node.of_slot().held_hundredths == 2_000).then_some(())
    });
    assert_eq!(node.count_events(EventKind::ProcessKilled), 2);
    pause(300);
    assert!(others[1].lives());
    assert!(returned.held().is_some());
    assert_eq!(node.count_events(EventKind::ProcessKilled), 2);
}

/// One that waits and loses its connection cannot be told that it has a token, and gets none.
#[test]
fn nobody_gets_a_token_who_is_not_there() {
    let node = Node::new();
    let (one, two, three) = (node.pod(0, 60), node.pod(1, 60), node.pod(2, 60));
    let mut holder = node.begun(&one);
    compute(&holder);
    let other = node.other(&two);
    let gone = other.connect().begin();
    gone.ask();
    until("it to wait", || node.of_pod(&two).is_waiting.then_some(()));
    drop(gone);
    until("it to wait no longer", || {
        (!node.of_pod(&two).is_waiting).then_some(())
    });
    let waiter = node.begun(&three);
    waiter.ask();
    assert!(holder.give_back());
    waiter.wait_open();
    assert_eq!(node.of_pod(&two).counters.grants, 0);
    assert!(other.lives(), "and not because it was killed");
}
