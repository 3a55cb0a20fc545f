//! The regular lifecycle of a process, from hello to the end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use annotations::SHARE_WHOLE;
use gpu_sidecar::config::TokenSettings;
use protocol::message::{FromAgent, FromProcess, OnLoss};

use crate::node::{Node, now_ns, pause};
use crate::puppet::Puppet;
use testing::until;

#[test]
fn a_process_requests_uses_and_returns_a_token() {
    let node = Node::new();
    let pod = node.pod(0, 50);
    let mut puppet = node.connect(&pod);
    let FromAgent::Welcome {
        on_loss,
        visible_devices,
        active_thread_hundredths,
        pod: name,
        ..
    } = puppet.hello()
    else {
        panic!("not welcomed");
    };
    assert_eq!(
        (on_loss, active_thread_hundredths, name.as_str()),
        (OnLoss::Open, 5_000, "default/pod-0")
    );
    assert!(visible_devices.starts_with("GPU-"));
    puppet.attach().unwrap();
    let begin = puppet.epoch();
    assert_eq!((begin & 1, puppet.orders().layout()), (1, 1));
    for round in 1..=5 {
        puppet.request_token();
        assert_eq!(puppet.wait_open(), begin + 2 * round - 1);
        assert!(puppet.give_back());
        assert_eq!(puppet.wait_shut(), begin + 2 * round);
    }
    let figures = node.of_pod(&pod);
    assert_eq!((figures.counters.grants, figures.has_token), (5, false));
    assert_eq!(node.of_slot().held_hundredths, 0);
}

#[test]
fn an_uncontended_token_is_renewed_without_a_message() {
    let node = Node::new();
    let pod = node.pod(0, 50);
    let puppet = node.attached(&pod);
    puppet.request_token();
    let epoch = puppet.wait_open();
    let until_before = puppet.orders().open_until.load(Ordering::Relaxed);
    until("a renewal", || {
        puppet.facts().launches.0.fetch_add(1, Ordering::Release);
        let now = puppet.orders().open_until.load(Ordering::Relaxed);
        (now > until_before).then_some(())
    });
    // The gate stays open at the same epoch, however long no other process wants the token.
    pause(300);
    assert_eq!(
        (puppet.epoch(), puppet.receive(0).err()),
        (epoch, Some(false))
    );
    assert_eq!(node.of_pod(&pod).counters.grants, 1);
}

#[test]
fn a_holder_is_notified_of_waiting_processes() {
    let node = Node::new();
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let (mut first, mut second) = (node.attached(&one), node.attached(&two));
    first.request_token();
    first.wait_open();
    first.report_work();
    let bound = first.orders().inflight_us_max.load(Ordering::Relaxed);
    let seen = first.orders().attention.load(Ordering::Relaxed);
    second.request_token();
    until("contention", || {
        let orders = first.orders();
        let is_published = orders.contended.load(Ordering::Acquire) == 1 || !first.is_open();
        (is_published && orders.attention.load(Ordering::Acquire) != seen).then_some(())
    });
    if first.is_open() {
        assert!(first.orders().inflight_us_max.load(Ordering::Relaxed) < bound);
    }
    // Ordered to close or not: until it has closed, the other process waits.
    pause(50);
    assert!(!second.is_open());
    assert!(first.give_back());
    second.wait_open();
    assert!(!first.is_open());
    assert!(second.give_back());
}

/// Otherwise a process that resumes after a pause would wait for all work in flight of the other, each time.
#[test]
fn work_in_flight_stays_bounded_for_a_window_after_contention() {
    let node = Node::with(TokenSettings {
        window: Duration::from_millis(300),
        horizon: Duration::from_secs(1),
        ..TokenSettings::default()
    });
    let (one, two) = (node.pod(0, 60), node.pod(1, 60));
    let (mut first, second) = (node.attached(&one), node.attached(&two));
    let bound = |puppet: &Puppet| puppet.orders().inflight_us_max.load(Ordering::Acquire);
    first.request_token();
    first.wait_open();
    let alone = bound(&first);
    first.report_work();
    second.request_token();
    let contended = TokenSettings::default().inflight.as_micros();
    let contended = u32::try_from(contended).unwrap();
    assert!(contended < alone);
    // A token whose time is over by the time of the request is closed instead.
    until("a bound or the end of the token", || {
        let is_shut = first.epoch() & 1 == 1;
        (bound(&first) == contended || is_shut).then_some(())
    });
    until("the token", || first.give_back().then_some(()));
    second.wait_open();
    assert_eq!(bound(&second), contended);
    until("a window without waiting processes", || {
        second.facts().launches.0.fetch_add(1, Ordering::Release);
        (bound(&second) == alone).then_some(())
    });
}

/// Such a pod is closed at its limit, and work in flight then runs beyond it.
#[test]
fn work_in_flight_of_a_limited_pod_is_bounded_without_contention() {
    let node = Node::new();
    let TokenSettings {
        inflight,
        inflight_alone,
        ..
    } = TokenSettings::default();
    for (key, limit, expected) in [
        (0, SHARE_WHOLE / 2, inflight),
        (1, SHARE_WHOLE, inflight_alone),
    ] {
        let pod = node.pod_with(key, |settings| settings.quota_limit_ppm = limit);
        let mut puppet = node.attached(&pod);
        let bound = |puppet: &Puppet| {
            let us = puppet.orders().inflight_us_max.load(Ordering::Acquire);
            Duration::from_micros(us.into())
        };
        assert_eq!(bound(&puppet), expected);
        puppet.request_token();
        puppet.wait_open();
        assert_eq!(bound(&puppet), expected);
        // A new limit binds a holder at once.
        node.change(&pod, |settings| settings.quota_limit_ppm = SHARE_WHOLE / 4);
        until("the bound", || (bound(&puppet) == inflight).then_some(()));
        until("the return", || puppet.give_back().then_some(()));
    }
}

#[test]
fn early_requests_are_repeated_and_stale_returns_ignored() {
    let node = Node::new();
    let pods = [node.pod(0, 60), node.pod(1, 60)];
    let mut puppets = [node.attached(&pods[0]), node.attached(&pods[1])];
    for puppet in &puppets {
        puppet.report_work();
        puppet.request_token();
    }
    for _round in 0..40 {
        let holder = until("a holder", || {
            puppets.iter().position(|puppet| puppet.held().is_some())
        });
        assert!(puppets[1 - holder].held().is_none());
        // Closed from inside and by order, with requests before and after.
        let epoch = puppets[holder].epoch() & !1;
        puppets[holder].send(&FromProcess::Ask { epoch });
        puppets[holder].send(&FromProcess::Ask { epoch: epoch + 1 });
        for stale in [epoch.wrapping_sub(2), epoch + 1, epoch + 2, u64::MAX, 0] {
            puppets[holder].send(&FromProcess::Closed { epoch: stale });
            puppets[1 - holder].send(&FromProcess::Closed { epoch: stale });
        }
        assert_eq!(node.of_slot().held_hundredths, 6_000);
        assert!(puppets[1 - holder].held().is_none());
        assert!(puppets[holder].give_back());
        puppets[holder].send(&FromProcess::Closed { epoch });
        puppets[holder].request_token();
    }
    let mut served = [false; 2];
    until("a last token", || {
        for (puppet, served) in puppets.iter_mut().zip(&mut served) {
            *served |= puppet.give_back();
        }
        (served == [true; 2]).then_some(())
    });
    assert!(node.of_pod(&pods[0]).counters.grants >= 20);
}

#[test]
fn sms_of_two_processes_add_up_and_their_time_counts_once() {
    let node = Node::new();
    let pod = node.pod(0, 40);
    let mut puppets = [
        node.attached(&pod),
        node.attached(&pod),
        node.attached(&pod),
    ];
    for puppet in &puppets {
        puppet.report_work();
        puppet.request_token();
    }
    until("two tokens", || {
        (node.of_slot().held_hundredths == 8_000).then_some(())
    });
    let holders: Vec<_> = (0..3).filter(|at| puppets[*at].held().is_some()).collect();
    assert_eq!(holders.len(), 2);
    // Both run for 40 ms at the same time.
    let begin = now_ns();
    pause(40);
    let end = now_ns();
    for holder in &holders {
        let facts = puppets[*holder].facts();
        facts.busy_ns.store(end - begin, Ordering::Release);
        facts.push(begin, end);
    }
    let used = until("the time to be counted", || {
        Some(node.of_pod(&pod).counters.used_wall_ns).filter(|used| *used > 0)
    });
    assert_eq!(used, end - begin);
    let counters = node.of_pod(&pod).counters;
    let sms = 2 * u128::from(end - begin) * 132 * 4_000 / 10_000;
    assert!(u128::from(counters.used_sm_ns).abs_diff(sms) <= 2);
    assert_eq!(node.of_slot().busy_ns, end - begin);
    for holder in holders {
        assert!(puppets[holder].give_back());
    }
}

/// Reported time does not count as unfinished too: otherwise the limit would close the gate before it is used up, and reopen it
/// after half a pause.
#[test]
fn reported_time_counts_once() {
    let node = Node::new();
    let pod = node.pod_with(0, |settings| settings.quota_limit_ppm = 500_000);
    let mut puppet = node.attached(&pod);
    let cycle = TokenSettings::default().cycle;
    let mut shut_for = Vec::new();
    let mut shut_at = None;
    while shut_for.len() < 6 {
        puppet.request_token();
        puppet.wait_open();
        let mut published_at = now_ns();
        shut_for.extend(shut_at.map(|at| published_at - at));
        while puppet.is_open() {
            pause(1);
            let now = now_ns();
            let facts = puppet.facts();
            facts.launches.0.fetch_add(1, Ordering::Release);
            facts
                .busy_ns
                .fetch_add(now - published_at, Ordering::Release);
            facts.busy_since.store(now, Ordering::Release);
            published_at = now;
        }
        puppet.facts().busy_since.store(0, Ordering::Release);
        shut_at = Some(now_ns());
        assert!(puppet.give_back());
    }
    let shortest = shut_for.iter().min().copied().unwrap_or(0);
    let pause = u64::try_from(cycle.as_nanos()).unwrap();
    assert!(shortest > pause * 9 / 10, "{shut_for:?}");
}
