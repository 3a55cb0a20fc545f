//! Slots that go and come, pods that go and change, and MPS.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu_sidecar::config::TokenSettings;
use gpu_sidecar::state::{Command, SlotKey};
use protocol::message::{FromAgent, Refusal};

use crate::node::{Node, UUID, pause, slot, until};

#[test]
fn a_lost_slot_grants_nothing_until_it_is_back() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 30), node.pod(1, 30));
    let (mut holder, mut waiter) = (node.begun(&one), node.begun(&two));
    holder.ask();
    holder.wait_open();
    holder.claims_work();
    node.send(Command::SlotLost {
        slot: SlotKey(0),
        reason: "the test wants it".to_owned(),
    });
    holder.wait_shut();
    waiter.ask();
    let late = node.connect(&two).hello();
    assert!(matches!(
        late,
        FromAgent::Refused {
            reason: Refusal::SlotLost,
            ..
        }
    ));
    // A pod that comes meanwhile is stopped as well.
    let three = node.pod(2, 30);
    pause(30);
    assert!(waiter.held().is_none() && node.of_slot().is_lost);
    node.send(Command::SlotBack(Arc::new(slot(0))));
    waiter.wait_open();
    // The one that has not closed still has its SMs.
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(holder.give_back());
    let mut third = node.begun(&three);
    third.ask();
    third.wait_open();
    assert!(third.give_back() && waiter.give_back());
}

#[test]
fn a_pod_that_is_removed_while_it_holds_frees_its_sms() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let waiter = node.begun(&two);
    for _round in 0..3 {
        let others = [node.other(&one), node.other(&one)];
        let holders = [others[0].connect().begin(), others[1].connect().begin()];
        for holder in &holders {
            holder.ask();
        }
        until("a holder", || {
            holders.iter().any(|own| own.held().is_some()).then_some(())
        });
        waiter.ask();
        node.send(Command::PodRemoved(one.key));
        waiter.wait_open();
        for holder in &holders {
            holder.ended();
        }
        let epoch = waiter.epoch();
        waiter.say(&protocol::message::FromProcess::Closed { epoch });
        waiter.wait_shut();
        assert!(node.figures().pod(one.serial).is_none());
        // The same once more, and once more without having been removed.
        node.add(&one);
        node.add(&one);
        let mut own = node.begun(&one);
        own.ask();
        own.wait_open();
        assert!(own.give_back());
        own.wait_shut();
    }
    assert_eq!((node.of_slot().holders, node.of_slot().waiters), (0, 0));
}

#[test]
fn a_quota_that_changes_counts_at_once() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| {
        settings.quota_request_ppm = 0;
        settings.quota_limit_ppm = 1;
    });
    // A millionth of the time is little, and not nothing: it gets a token and is told to close at once. What it has used
    // is to be saved up before there is another.
    let mut puppet = node.begun(&pod);
    puppet.claims_work();
    puppet.ask();
    until("a token", || puppet.held());
    puppet.wait_shut();
    let mut busy = 1_000_000;
    pause(1);
    puppet.facts().busy_ns.store(busy, Ordering::Release);
    assert!(puppet.give_back());
    puppet.ask();
    pause(300);
    assert!(puppet.held().is_none() && node.of_pod(&pod).is_waiting);
    assert!(node.of_pod(&pod).debt_ns > 0);
    node.change(&pod, |settings| {
        settings.quota_request_ppm = 0;
        settings.quota_limit_ppm = 1_000_000;
    });
    puppet.wait_open();
    node.change(&pod, |settings| settings.quota_limit_ppm = 1);
    until("the limit again", || {
        busy += 1_000_000;
        puppet.facts().busy_ns.store(busy, Ordering::Release);
        puppet.facts().launches.0.fetch_add(1, Ordering::Release);
        (!puppet.is_open()).then_some(())
    });
    assert!(puppet.give_back());
    assert!(node.of_pod(&pod).debt_ns > 0);
}

#[test]
fn without_mps_nobody_has_a_part_of_the_sms() {
    let node = Node::new();
    node.mps(false);
    let (part, whole) = (node.pod(0, 30), node.pod(1, 100));
    let (first, mut second) = (node.connect(&part), node.connect(&whole));
    let FromAgent::Refused { reason, text } = first.hello() else {
        panic!("refused");
    };
    assert_eq!(reason, Refusal::NoMps);
    assert!(
        text.contains("slot 0") && text.contains("the daemon is as the test wants"),
        "{text}"
    );
    let FromAgent::Welcome {
        mps_pipe_directory, ..
    } = second.hello()
    else {
        panic!("welcome");
    };
    assert_eq!(mps_pipe_directory, "");
    second.attach_with(UUID, 132, false).unwrap();
    // One that waits is welcome as soon as the daemon is there.
    let third = node.connect(&part);
    third.say(&crate::puppet::hello(false, false, 0, 0));
    assert_eq!(third.hear(20).err(), Some(false));
    node.mps(true);
    assert!(matches!(third.answer(), FromAgent::Welcome { .. }));
    let counters = node.of_pod(&part).counters;
    assert_eq!(counters.refused_connections.get("no-mps"), Some(&1));
}

#[test]
fn mps_takes_so_many_processes_however_often_each_connects() {
    let node = Node::bare();
    let mut small = slot(0);
    small.client_limit = 2;
    node.send(Command::SlotAdded(Arc::new(small)));
    node.mps(true);
    let pod = node.pod(0, 30);
    let others = [node.other(&pod), node.other(&pod), node.other(&pod)];
    let mut puppets = Vec::new();
    for other in &others[..2] {
        for _connection in 0..3 {
            puppets.push(other.connect().begin());
        }
    }
    let FromAgent::Refused { reason, text } = others[2].connect().hello() else {
        panic!("refused");
    };
    assert_eq!(reason, Refusal::TooMany);
    assert!(text.contains("takes 2 client processes"), "{text}");
    others[0].kill();
    puppets.drain(..3);
    until("a place", || {
        let puppet = others[2].connect();
        matches!(puppet.hello(), FromAgent::Welcome { .. }).then_some(())
    });
}

/// Who has all SMs where less than all may be occupied computes alone, not never.
#[test]
fn all_of_the_sms_are_never_too_many() {
    let tokens = TokenSettings {
        sm_limit_hundredths: 9_000,
        ..TokenSettings::default()
    };
    let node = Node::with(tokens);
    let (all, part) = (node.pod(0, 100), node.pod(1, 30));
    let (mut first, second) = (node.begun(&all), node.begun(&part));
    first.ask();
    first.wait_open();
    first.claims_work();
    assert_eq!(node.of_slot().held_hundredths, 9_000);
    second.ask();
    pause(30);
    assert!(!second.is_open());
    assert!(first.give_back());
    second.wait_open();
}
