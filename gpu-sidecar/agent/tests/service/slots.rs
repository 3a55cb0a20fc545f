//! Lost and restored slots, removed and changed pods, and MPS.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gpu_sidecar::config::TokenSettings;
use gpu_sidecar::state::{Command, SlotKey};
use protocol::message::{FromAgent, Refusal};

use crate::node::{Node, UUID, pause, slot};
use testing::until;

#[test]
fn a_lost_slot_grants_nothing_until_it_is_back() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 30), node.pod(1, 30));
    let (mut holder, mut waiter) = (node.attached(&one), node.attached(&two));
    holder.request_token();
    holder.wait_open();
    holder.report_work();
    node.send(Command::SlotLost {
        slot: SlotKey(0),
        reason: "set by the test".to_owned(),
    });
    holder.wait_shut();
    waiter.request_token();
    let late = node.connect(&two).hello();
    assert!(matches!(
        late,
        FromAgent::Refused {
            reason: Refusal::SlotLost,
            ..
        }
    ));
    // A pod added meanwhile is stopped as well.
    let three = node.pod(2, 30);
    pause(30);
    assert!(waiter.held().is_none() && node.of_slot().is_lost);
    node.send(Command::SlotBack(Arc::new(slot(0))));
    waiter.wait_open();
    // The holder that has not closed still occupies its SMs.
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(holder.give_back());
    let mut third = node.attached(&three);
    third.request_token();
    third.wait_open();
    assert!(third.give_back() && waiter.give_back());
}

#[test]
fn removing_a_holding_pod_frees_its_sms() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let waiter = node.attached(&two);
    for _round in 0..3 {
        let others = [node.child_process(&one), node.child_process(&one)];
        let holders = [
            others[0].connect().greet_and_attach(),
            others[1].connect().greet_and_attach(),
        ];
        for holder in &holders {
            holder.request_token();
        }
        until("a holder", || {
            holders.iter().any(|own| own.held().is_some()).then_some(())
        });
        waiter.request_token();
        node.send(Command::PodRemoved(one.key));
        waiter.wait_open();
        for holder in &holders {
            holder.wait_ended();
        }
        let epoch = waiter.epoch();
        waiter.send(&protocol::message::FromProcess::Closed { epoch });
        waiter.wait_shut();
        assert!(node.figures().pod(one.serial).is_none());
        // The same pod is added again, and once more without having been removed.
        node.add(&one);
        node.add(&one);
        let mut own = node.attached(&one);
        own.request_token();
        own.wait_open();
        assert!(own.give_back());
        own.wait_shut();
    }
    assert_eq!((node.of_slot().holders, node.of_slot().waiters), (0, 0));
}

#[test]
fn a_changed_quota_takes_effect_at_once() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| {
        settings.quota_request_ppm = 0;
        settings.quota_limit_ppm = 1;
    });
    // A millionth of the time is little, but not nothing: the process receives a token and is ordered to close at once. It must
    // save up the used time before the next token.
    let mut puppet = node.attached(&pod);
    puppet.report_work();
    puppet.request_token();
    until("a token", || puppet.held());
    puppet.wait_shut();
    let mut busy = 1_000_000;
    pause(1);
    puppet.facts().busy_ns.store(busy, Ordering::Release);
    assert!(puppet.give_back());
    puppet.request_token();
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
fn a_part_of_the_sms_requires_mps() {
    let node = Node::new();
    node.mps(false);
    let (part, whole) = (node.pod(0, 30), node.pod(1, 100));
    let (first, mut second) = (node.connect(&part), node.connect(&whole));
    let FromAgent::Refused { reason, text } = first.hello() else {
        panic!("not refused");
    };
    assert_eq!(reason, Refusal::NoMps);
    assert!(
        text.contains("slot 0") && text.contains("state set by the test"),
        "{text}"
    );
    let FromAgent::Welcome {
        mps_pipe_directory, ..
    } = second.hello()
    else {
        panic!("not welcomed");
    };
    assert_eq!(mps_pipe_directory, "");
    second.attach_with(UUID, 132, false).unwrap();
    // A waiting process is welcomed as soon as the daemon runs.
    let third = node.connect(&part);
    third.send(&crate::puppet::hello(false, false, 0, 0));
    assert_eq!(third.receive(20).err(), Some(false));
    node.mps(true);
    assert!(matches!(third.answer(), FromAgent::Welcome { .. }));
    let counters = node.of_pod(&part).counters;
    assert_eq!(counters.refused_connections.get("no-mps"), Some(&1));
}

#[test]
fn the_mps_client_limit_counts_processes_not_connections() {
    let node = Node::bare();
    let mut small = slot(0);
    small.client_limit = 2;
    node.send(Command::SlotAdded(Arc::new(small)));
    node.mps(true);
    let pod = node.pod(0, 30);
    let others = [
        node.child_process(&pod),
        node.child_process(&pod),
        node.child_process(&pod),
    ];
    let mut puppets = Vec::new();
    for other in &others[..2] {
        for _connection in 0..3 {
            puppets.push(other.connect().greet_and_attach());
        }
    }
    let FromAgent::Refused { reason, text } = others[2].connect().hello() else {
        panic!("not refused");
    };
    assert_eq!(reason, Refusal::TooMany);
    assert!(
        text.contains("too many MPS clients: the slot has 2, and 2 are allowed"),
        "{text}"
    );
    others[0].kill();
    puppets.drain(..3);
    until("room for a client", || {
        let puppet = others[2].connect();
        matches!(puppet.hello(), FromAgent::Welcome { .. }).then_some(())
    });
}

/// A process with all SMs computes alone where fewer may be occupied, instead of never.
#[test]
fn a_pod_with_all_sms_computes_alone_under_a_lower_limit() {
    let tokens = TokenSettings {
        sm_limit_hundredths: 9_000,
        ..TokenSettings::default()
    };
    let node = Node::with(tokens);
    let (all, part) = (node.pod(0, 100), node.pod(1, 30));
    let (mut first, second) = (node.attached(&all), node.attached(&part));
    first.request_token();
    first.wait_open();
    first.report_work();
    assert_eq!(node.of_slot().held_hundredths, 9_000);
    second.request_token();
    pause(30);
    assert!(!second.is_open());
    assert!(first.give_back());
    second.wait_open();
}
