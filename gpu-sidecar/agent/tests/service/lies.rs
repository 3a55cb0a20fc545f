//! What processes say that is not so, and more of it than anybody needs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gpu_sidecar::events::EventKind;
use protocol::message::{FromAgent, FromProcess, MESSAGE_MAX, Refusal, Report};

use crate::node::{Node, UUID, now_ns, socket, until};
use crate::puppet::{Puppet, attach, hello};

/// The service goes on: somebody else gets a token.
fn goes_on(node: &Node, honest: &mut Puppet) {
    honest.ask();
    honest.wait_open();
    assert!(honest.give_back());
    honest.wait_shut();
    assert!(!node.handle.is_ended());
}

#[test]
fn nobody_is_believed_about_more_time_than_there_was() {
    let node = Node::new();
    let pods = [node.pod(0, 20), node.pod(1, 20), node.pod(2, 10)];
    let begin = now_ns();
    let mut honest = node.begun(&pods[2]);
    let mut liars = [
        node.begun(&pods[0]),
        node.begun(&pods[1]),
        node.begun(&pods[1]),
    ];
    for liar in &liars {
        liar.ask();
    }
    for liar in &liars {
        liar.wait_open();
    }
    for round in 0..50_u64 {
        for liar in &liars {
            let facts = liar.facts();
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
            facts.ungated_ns.store(u64::MAX, Ordering::Release);
            facts.mps.store(77, Ordering::Release);
            facts.residency.store(77, Ordering::Release);
        }
        if round % 10 == 0 {
            goes_on(&node, &mut honest);
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
    // A count that fell has added nothing, and one that is at its end goes no further.
    assert!(node.of_pod(&pods[0]).counters.launches >= u64::MAX - 50);
    for liar in &mut liars {
        liar.facts().busy_since.store(0, Ordering::Release);
        let _shut_already = liar.give_back();
    }
}

#[test]
fn who_says_that_it_has_other_sms_has_at_least_its_pods() {
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
        puppet.ask();
        puppet.wait_open();
        assert_eq!(node.of_slot().held_hundredths, hundredths);
        assert!(puppet.give_back());
        puppet.wait_shut();
    }
}

/// Whose daemon died before it had pages is bound by none, whatever it says.
#[test]
fn who_speaks_of_mps_where_none_runs_has_all_of_the_sms() {
    let node = Node::new();
    let pod = node.pod(0, 20);
    let mut liar = node.connect(&pod);
    assert!(matches!(liar.hello(), FromAgent::Welcome { .. }));
    node.mps(false);
    // The service has heard of it.
    let _figures = node.figures();
    liar.attach_with(UUID, 27, true).unwrap();
    liar.ask();
    liar.wait_open();
    assert_eq!(node.of_slot().held_hundredths, 10_000);
}

/// A pod that connects without end waits after so many connections a second, and nobody else does.
#[test]
fn who_connects_without_end_waits() {
    let node = Node::new();
    let (pod, other) = (node.pod(0, 20), node.pod(1, 20));
    let mut honest = node.begun(&other);
    let begin = Instant::now();
    // More than two seconds' worth and what the kernel keeps for later.
    let flooder = thread::spawn({
        let path = socket(&pod);
        move || {
            for _connection in 0..1_200 {
                drop(Puppet::new(&path));
            }
        }
    });
    goes_on(&node, &mut honest);
    flooder.join().unwrap();
    goes_on(&node, &mut honest);
    let late = node.begun(&pod);
    drop(late);
    assert!(
        begin.elapsed() >= Duration::from_secs(3),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn what_is_out_of_turn_ends_the_connection_and_nothing_else() {
    let node = Node::new();
    let (pod, other) = (node.pod(0, 20), node.pod(1, 20));
    let mut honest = node.begun(&other);
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
        assert!(puppet.say(&early));
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
        puppet.ended();
    }
    // Twice hello, twice attach.
    for again in [hello(false, false, 0, 0), attach(UUID, 1, true)] {
        let puppet = node.begun(&pod);
        assert!(puppet.say(&again));
        puppet.ended();
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
    // No messages at all.
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
        assert!(puppet.raw(&bytes));
        let FromAgent::Refused { reason, .. } = puppet.answer() else {
            panic!("refused");
        };
        let is_version = matches!(bytes.first(), Some(0 | 9)) && bytes.len() <= MESSAGE_MAX;
        assert_eq!(reason == Refusal::Version, is_version);
        puppet.ended();
    }
    goes_on(&node, &mut honest);
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

/// While MPS is not there yet, a process waits for its welcome; it has no pages before it.
#[test]
fn nobody_is_attached_who_was_not_welcome() {
    let node = Node::new();
    node.mps(false);
    let pod = node.pod(0, 20);
    let puppet = node.connect(&pod);
    assert!(puppet.say(&hello(false, false, 0, 0)));
    assert!(puppet.say(&attach(UUID, 1, true)));
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
fn closed_without_a_token_or_for_another_epoch_frees_nothing() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let (mut holder, waiter) = (node.begun(&one), node.begun(&two));
    holder.ask();
    let epoch = holder.wait_open();
    holder.claims_work();
    waiter.ask();
    for wrong in [
        0,
        1,
        epoch - 1,
        epoch + 1,
        epoch + 2,
        u64::MAX,
        u64::MAX - 1,
    ] {
        holder.say(&FromProcess::Closed { epoch: wrong });
        waiter.say(&FromProcess::Closed { epoch: wrong });
    }
    until("the holder to be told", || {
        (!holder.is_open() || holder.orders().contended.load(Ordering::Acquire) == 1).then_some(())
    });
    holder.wait_shut();
    // While it is told to close as well: `u64::MAX + 1` is no epoch.
    for wrong in [
        0,
        1,
        epoch - 2,
        epoch + 1,
        epoch + 2,
        u64::MAX,
        u64::MAX - 1,
    ] {
        holder.say(&FromProcess::Closed { epoch: wrong });
        waiter.say(&FromProcess::Closed { epoch: wrong });
    }
    assert_eq!(node.of_slot().held_hundredths, 6_000);
    assert!(!waiter.is_open());
    assert!(holder.give_back());
    waiter.wait_open();
    assert_eq!(node.of_slot().held_hundredths, 6_000);
}

/// A hundred thousand questions, and more as long as the others are at it.
#[test]
fn floods_starve_nobody() {
    let node = Node::new();
    let (pod, other) = (
        node.pod_with(0, |settings| {
            settings.sm_hundredths = 2_000;
            settings.gpu_memory = Some(1 << 30);
        }),
        node.pod(1, 20),
    );
    let flooder = node.begun(&pod);
    let claimer = node.begun(&pod);
    // One that never reads what it is told, of which the claims below make it much.
    let deaf = node.begun(&pod);
    deaf.say(&FromProcess::Claim {
        seq: 1,
        bytes: 1 << 30,
    });
    until("the claim", || {
        (deaf.orders().claim_answered.load(Ordering::Acquire) == 1).then_some(())
    });
    let reporter = node.begun(&pod);
    let mut honest = node.begun(&other);
    let is_over = AtomicBool::new(false);
    let (is_over, flooder, claimer, reporter) = (&is_over, &flooder, &claimer, &reporter);
    let asked = thread::scope(|scope| {
        let flood = scope.spawn(move || {
            let mut asked = 0_u64;
            while asked < 100_000 || !is_over.load(Ordering::Acquire) {
                assert!(flooder.say(&FromProcess::Ask { epoch: asked }));
                asked += 1;
            }
            asked
        });
        scope.spawn(move || {
            let mut seq = 0;
            while seq < 10_000 || !is_over.load(Ordering::Acquire) {
                let bytes = [2, u64::MAX, 1 << 40][(seq % 3) as usize];
                assert!(claimer.say(&FromProcess::Claim { seq, bytes }));
                assert!(reporter.say(&FromProcess::Report(Report::UnknownSymbol("x".to_owned()))));
                seq += 1;
            }
        });
        for _round in 0..30 {
            goes_on(&node, &mut honest);
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
    goes_on(&node, &mut honest);
    // Whoever did not read still is where it was.
    assert_eq!(deaf.orders().memory_claim.load(Ordering::Acquire), 1 << 30);
}

/// Connections that say nothing, or too many, are bounded and harm their own pod alone.
#[test]
fn connections_of_a_pod_are_bounded() {
    let node = Node::new();
    let (pod, other) = (node.pod(0, 20), node.pod(1, 20));
    let mut honest = node.begun(&other);
    let silent: Vec<_> = (0..256).map(|_| node.connect(&pod)).collect();
    until("256 to be there", || {
        (node.of_slot().processes == 257).then_some(())
    });
    let more: Vec<_> = (0..44).map(|_| node.connect(&pod)).collect();
    for puppet in &more {
        let FromAgent::Refused { reason, text } = puppet.answer() else {
            panic!("refused");
        };
        assert_eq!(reason, Refusal::TooMany);
        assert!(text.contains("256"), "{text}");
        puppet.ended();
    }
    goes_on(&node, &mut honest);
    assert_eq!(node.of_slot().processes, 257);
    drop(silent);
    until("them to be gone", || {
        (node.of_slot().processes == 1).then_some(())
    });
    let mut late = node.begun(&pod);
    goes_on(&node, &mut late);
}

/// A message without bytes looks like the end, and is taken for it.
#[test]
fn an_empty_message_is_the_end_and_nothing_breaks() {
    let node = Node::new();
    let pod = node.pod(0, 20);
    let puppet = node.connect(&pod);
    assert!(puppet.raw(&[]));
    puppet.ended();
    let mut honest = node.begun(&pod);
    goes_on(&node, &mut honest);
}
