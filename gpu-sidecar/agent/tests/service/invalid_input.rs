//! Invalid, false and excessive input from processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpu_sidecar::events::EventKind;
use protocol::message::{FromAgent, FromProcess, MESSAGE_MAX, Refusal, Report};

use crate::node::{Node, UUID, now_ns, socket};
use crate::puppet::{Puppet, attach, hello};
use testing::until;

/// Asserts that the service still works: another process receives and returns a token.
fn assert_still_granting(node: &Node, honest: &mut Puppet) {
    honest.request_token();
    honest.wait_open();
    assert!(honest.give_back());
    honest.wait_shut();
    assert!(!node.handle.is_ended());
}

#[test]
fn reported_time_is_bounded_by_the_time_passed() {
    let node = Node::new();
    let pods = [node.pod(0, 20), node.pod(1, 20), node.pod(2, 10)];
    let begin = now_ns();
    let mut honest = node.attached(&pods[2]);
    let mut forgers = [
        node.attached(&pods[0]),
        node.attached(&pods[1]),
        node.attached(&pods[1]),
    ];
    for forger in &forgers {
        forger.request_token();
    }
    for forger in &forgers {
        forger.wait_open();
    }
    for round in 0..50_u64 {
        for forger in &forgers {
            let facts = forger.facts();
            let now = now_ns();
            let busy = [u64::MAX, 0, round, u64::MAX / 2, 1 << 40][(round % 5) as usize];
            facts.busy_ns.store(busy, Ordering::Release);
            for (from, to) in [
                (0, u64::MAX),
                (now, now + (1 << 50)),
                (begin, now),
                (begin, now),
                (now, begin),
                (u64::MAX, 0),
            ] {
                facts.push(from, to);
            }
            facts
                .busy_since
                .store([u64::MAX, 1, 0][(round % 3) as usize], Ordering::Release);
            facts.parked.store(u32::MAX, Ordering::Release);
            facts.launches.0.store(u64::MAX - round, Ordering::Release);
            facts.bytes_used.store(u64::MAX, Ordering::Release);
            facts.bytes_fixed.store(u64::MAX, Ordering::Release);
            for fixed in &facts.fixed {
                fixed.store(u64::MAX, Ordering::Release);
            }
            facts.ungated_ns.store(u64::MAX, Ordering::Release);
            facts.mps.store(77, Ordering::Release);
            facts.residency.store(77, Ordering::Release);
        }
        if round % 10 == 0 {
            assert_still_granting(&node, &mut honest);
        }
        let figures = node.figures();
        for pod in &figures.pods {
            assert!(
                pod.counters.used_wall_ns <= now_ns() - begin,
                "{:?}",
                pod.pod.name
            );
        }
        assert!(figures.slots[0].busy_ns <= now_ns() - begin);
    }
    // A decreased count has added nothing, and a count at its maximum stays there.
    assert!(node.of_pod(&pods[0]).counters.launches >= u64::MAX - 50);
    for forger in &mut forgers {
        forger.facts().busy_since.store(0, Ordering::Release);
        let _shut_already = forger.give_back();
    }
}

#[test]
fn a_reported_sm_share_counts_only_above_the_configured_one() {
    let node = Node::new();
    let pod = node.pod(0, 20);
    for (multiprocessors, mps, hundredths) in [
        (0, true, 2_000),
        (u32::MAX, true, 10_000),
        (27, true, 2_046),
        (66, true, 5_000),
        (0, false, 10_000),
    ] {
        let mut puppet = node.connect(&pod);
        let _welcome = puppet.hello();
        puppet.attach_with(UUID, multiprocessors, mps).unwrap();
        puppet.request_token();
        puppet.wait_open();
        assert_eq!(node.of_slot().held_hundredths, hundredths);
        assert!(puppet.give_back());
        puppet.wait_shut();
    }
}

/// A process with a daemon that died before it had pages is limited by none, whatever it reports.
#[test]
fn a_process_without_an_mps_daemon_counts_with_all_sms() {
    let node = Node::new();
    let pod = node.pod(0, 20);
    let mut forger = node.connect(&pod);
    assert!(matches!(forger.hello(), FromAgent::Welcome { .. }));
    node.mps(false);
    // The service has handled the command.
    let _figures = node.figures();
    forger.attach_with(UUID, 27, true).unwrap();
    forger.request_token();
    forger.wait_open();
    assert_eq!(node.of_slot().held_hundredths, 10_000);
}

/// A pod that connects in a loop waits after the maximum number of connections per second; other pods do not.
#[test]
fn connections_per_second_are_bounded() {
    let node = Node::new();
    let (pod, other) = (node.pod(0, 20), node.pod(1, 20));
    let mut honest = node.attached(&other);
    let begin = Instant::now();
    // More than two seconds' worth of connections and the kernel's backlog.
    let flooder = thread::spawn({
        let path = socket(&pod);
        move || {
            for _connection in 0..1_200 {
                drop(Puppet::new(&path));
            }
        }
    });
    assert_still_granting(&node, &mut honest);
    flooder.join().unwrap();
    assert_still_granting(&node, &mut honest);
    let late = node.attached(&pod);
    drop(late);
    assert!(
        begin.elapsed() >= Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn an_unexpected_message_ends_only_its_connection() {
    let node = Node::new();
    let (pod, other) = (node.pod(0, 20), node.pod(1, 20));
    let mut honest = node.attached(&other);
    let closed = FromProcess::Closed { epoch: 2 };
    let claim = FromProcess::Claim { seq: 1, bytes: 1 };
    let report = FromProcess::Report(Report::Fatal(1));
    for early in [
        closed,
        claim,
        report,
        FromProcess::Ask { epoch: 1 },
        attach(UUID, 1, true),
    ] {
        let puppet = node.connect(&pod);
        assert!(puppet.send(&early));
        let refused = puppet.answer();
        assert!(
            matches!(
                refused,
                FromAgent::Refused {
                    reason: Refusal::Protocol,
                    ..
                }
            ),
            "{early:?}"
        );
        puppet.wait_ended();
    }
    // A second hello and a second attach.
    for again in [hello(false, false, 0, 0), attach(UUID, 1, true)] {
        let puppet = node.attached(&pod);
        assert!(puppet.send(&again));
        puppet.wait_ended();
    }
    // Another device.
    let mut puppet = node.connect(&pod);
    let _welcome = puppet.hello();
    let refused = puppet.attach_with([7; 16], 1, true);
    assert!(matches!(
        refused,
        Err(FromAgent::Refused {
            reason: Refusal::WrongDevice,
            ..
        })
    ));
    // Malformed messages.
    let mut head = hello(false, false, 0, 0).write().finish().to_vec();
    head[2] ^= 1;
    for bytes in [
        vec![9, 1, 0, 0],
        vec![1],
        vec![1, 99, 0, 0],
        head,
        vec![0; MESSAGE_MAX + 1],
    ] {
        let puppet = node.connect(&pod);
        assert!(puppet.send_raw(&bytes));
        let FromAgent::Refused { reason, .. } = puppet.answer() else {
            panic!("not refused");
        };
        let is_version = matches!(bytes.first(), Some(0 | 9)) && bytes.len() <= MESSAGE_MAX;
        assert_eq!(reason == Refusal::Version, is_version);
        puppet.wait_ended();
    }
    assert_still_granting(&node, &mut honest);
    let figures = node.figures();
    assert_eq!(figures.agent.malformed_messages, 5);
    let refused = &figures
        .pod(pod.serial)
        .unwrap()
        .counters
        .refused_connections;
    assert_eq!(refused.get("protocol"), Some(&11));
    assert_eq!(
        (refused.get("version"), refused.get("wrong-device")),
        (Some(&1), Some(&1))
    );
    assert!(
        figures
            .pod(other.serial)
            .unwrap()
            .counters
            .refused_connections
            .is_empty()
    );
}

/// While MPS is starting, a process waits for its welcome and has no pages before it.
#[test]
fn attach_before_welcome_is_refused() {
    let node = Node::new();
    node.mps(false);
    let pod = node.pod(0, 20);
    let puppet = node.connect(&pod);
    assert!(puppet.send(&hello(false, false, 0, 0)));
    assert!(puppet.send(&attach(UUID, 1, true)));
    let refused = puppet.answer();
    assert!(
        matches!(
            refused,
            FromAgent::Refused {
                reason: Refusal::Protocol,
                ..
            }
        ),
        "{refused:?}"
    );
}

#[test]
fn returns_without_a_token_or_of_another_epoch_free_nothing() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let (mut holder, waiter) = (node.attached(&one), node.attached(&two));
    holder.request_token();
    let epoch = holder.wait_open();
    holder.report_work();
    waiter.request_token();
    for wrong in [
        0,
        1,
        epoch - 1,
        epoch + 1,
        epoch + 2,
        u64::MAX,
        u64::MAX - 1,
    ] {
        holder.send(&FromProcess::Closed { epoch: wrong });
        waiter.send(&FromProcess::Closed { epoch: wrong });
    }
    until("the order to close", || {
        (!holder.is_open() || holder.orders().contended.load(Ordering::Acquire) == 1).then_some(())
    });
    holder.wait_shut();
    // While it is ordered to close as well: `u64::MAX + 1` is no epoch.
    for wrong in [
        0,
        1,
        epoch - 2,
        epoch + 1,
        epoch + 2,
        u64::MAX,
        u64::MAX - 1,
    ] {
        holder.send(&FromProcess::Closed { epoch: wrong });
        waiter.send(&FromProcess::Closed { epoch: wrong });
    }
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(!waiter.is_open());
    assert!(holder.give_back());
    waiter.wait_open();
    assert_eq!(node.of_slot().held_hundredths, 6_000);
}

/// At least a hundred thousand requests, and more until the other threads have finished.
#[test]
fn floods_do_not_starve_other_pods() {
    let node = Node::new();
    let (pod, other) = (
        node.pod_with(0, |settings| {
            settings.sm_hundredths = 2_000;
            settings.gpu_memory = Some(1 << 30);
        }),
        node.pod(1, 20),
    );
    let flooder = node.attached(&pod);
    let claimer = node.attached(&pod);
    // A process that never reads its messages, many of which are caused by the claims below.
    let non_reader = node.attached(&pod);
    non_reader.send(&FromProcess::Claim {
        seq: 1,
        bytes: 1 << 30,
    });
    until("the claim", || {
        (non_reader.orders().claim_answered.load(Ordering::Acquire) == 1).then_some(())
    });
    let reporter = node.attached(&pod);
    let mut honest = node.attached(&other);
    let is_over = AtomicBool::new(false);
    let (is_over, flooder, claimer, reporter) = (&is_over, &flooder, &claimer, &reporter);
    let asked = thread::scope(|scope| {
        let flood = scope.spawn(move || {
            let mut asked = 0_u64;
            while asked < 100_000 || !is_over.load(Ordering::Acquire) {
                assert!(flooder.send(&FromProcess::Ask { epoch: asked }));
                asked += 1;
            }
            asked
        });
        scope.spawn(move || {
            let mut seq = 0;
            while seq < 10_000 || !is_over.load(Ordering::Acquire) {
                let bytes = [2, u64::MAX, 1 << 40][(seq % 3) as usize];
                assert!(claimer.send(&FromProcess::Claim { seq, bytes }));
                assert!(reporter.send(&FromProcess::Report(Report::UnknownSymbol("x".to_owned()))));
                seq += 1;
            }
        });
        for _round in 0..30 {
            assert_still_granting(&node, &mut honest);
        }
        is_over.store(true, Ordering::Release);
        flood.join().unwrap()
    });
    assert!(asked >= 100_000);
    until("the flood to be over", || {
        let figures = node.of_pod(&pod);
        (figures.processes.len() == 4).then_some(())
    });
    assert_eq!(node.count_events(EventKind::ProcessReport), 32);
    assert_eq!(node.of_pod(&other).counters.grants, 30);
    assert_still_granting(&node, &mut honest);
    // The state of the process that does not read is unchanged.
    assert_eq!(
        non_reader.orders().memory_claim.load(Ordering::Acquire),
        1 << 30
    );
}

/// Silent or excessive connections are bounded and affect only their own pod.
#[test]
fn connections_of_a_pod_are_bounded() {
    let node = Node::new();
    let (pod, other) = (node.pod(0, 20), node.pod(1, 20));
    let mut honest = node.attached(&other);
    let silent: Vec<_> = (0..256).map(|_| node.connect(&pod)).collect();
    until("256 connections", || {
        (node.of_slot().processes == 257).then_some(())
    });
    let more: Vec<_> = (0..44).map(|_| node.connect(&pod)).collect();
    for puppet in &more {
        let FromAgent::Refused { reason, text } = puppet.answer() else {
            panic!("not refused");
        };
        assert_eq!(reason, Refusal::TooMany);
        assert!(text.contains("256"), "{text}");
        puppet.wait_ended();
    }
    assert_still_granting(&node, &mut honest);
    assert_eq!(node.of_slot().processes, 257);
    drop(silent);
    until("the connections to end", || {
        (node.of_slot().processes == 1).then_some(())
    });
    let mut late = node.attached(&pod);
    assert_still_granting(&node, &mut late);
}

/// An empty message is indistinguishable from the end of the connection, and is treated as such.
#[test]
fn an_empty_message_ends_the_connection() {
    let node = Node::new();
    let pod = node.pod(0, 20);
    let puppet = node.connect(&pod);
    assert!(puppet.send_raw(&[]));
    puppet.wait_ended();
    let mut honest = node.attached(&pod);
    assert_still_granting(&node, &mut honest);
}
