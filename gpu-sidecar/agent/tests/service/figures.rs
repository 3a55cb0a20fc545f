//! Figures for the metrics: counters are monotonic and consistent.

use std::sync::atomic::Ordering;

use gpu_sidecar::state::{Figures, PodCounters};

use crate::node::{Node, now_ns, pause};
use testing::until;

fn numbers(counters: &PodCounters) -> Vec<u64> {
    vec![
        counters.used_wall_ns,
        counters.used_sm_ns,
        counters.given_ns,
        counters.asked_ns,
        counters.grants,
        counters.waits.count(),
        counters.waits.sum_ns,
        counters.overruns,
        counters.overrun_ns,
        counters.launches,
    ]
}

fn check(before: &Figures, after: &Figures) {
    for pod in &after.pods {
        let counters = &pod.counters;
        if let Some(before) = before.pod(pod.pod.serial) {
            let (old, new) = (numbers(&before.counters), numbers(counters));
            assert!(
                old.iter().zip(&new).all(|(old, new)| old <= new),
                "{old:?} {new:?}"
            );
        }
        assert_eq!(counters.waits.count(), counters.grants);
        assert!(
            counters.used_wall_ns <= counters.given_ns + counters.overrun_ns,
            "{counters:?}"
        );
        assert!(counters.used_wall_ns <= counters.asked_ns, "{counters:?}");
    }
    let grants: u64 = after.pods.iter().map(|pod| pod.counters.grants).sum();
    assert_eq!(after.slots[0].grants, grants);
    assert_eq!(after.agent.grants, grants);
    assert!(after.agent.service_cpu_ns >= before.agent.service_cpu_ns);
    assert!(after.agent.wakeups >= before.agent.wakeups);
    assert!(after.slots[0].busy_ns >= before.slots[0].busy_ns);
    assert!(after.slots[0].idle_while_waiting_ns >= before.slots[0].idle_while_waiting_ns);
}

#[test]
fn counters_are_monotonic_and_consistent() {
    let node = Node::new();
    let pods = [node.pod(0, 60), node.pod(1, 60), node.pod(2, 30)];
    let mut puppets: Vec<_> = pods.iter().map(|pod| node.attached(pod)).collect();
    for puppet in &puppets {
        puppet.report_work();
    }
    let other = node.child_process(&pods[2]);
    let mut mortal = Some(other.connect().greet_and_attach());
    if let Some(mortal) = &mortal {
        mortal.request_token();
        mortal.wait_open();
    }
    let begun = now_ns();
    let mut before = node.figures();
    let mut busy = [0; 3];
    for puppet in &puppets {
        puppet.request_token();
    }
    for round in 0..60 {
        for (puppet, busy) in puppets.iter_mut().zip(&mut busy) {
            if puppet.held().is_none() {
                continue;
            }
            let begin = now_ns();
            pause(1);
            let end = now_ns();
            *busy += end - begin;
            puppet.facts().busy_ns.store(*busy, Ordering::Release);
            puppet.facts().push(begin, end);
            puppet.facts().launches.0.fetch_add(1, Ordering::Release);
            assert!(puppet.give_back());
            puppet.request_token();
        }
        if round == 30
            && let Some(mortal) = mortal.take()
        {
            other.kill();
            drop(mortal);
        }
        let after = node.figures();
        check(&before, &after);
        before = after;
    }
    let figures = node.figures();
    for (pod, busy) in pods.iter().zip(busy).take(2) {
        let counters = &figures.pod(pod.serial).unwrap().counters;
        assert_eq!(counters.used_wall_ns, busy);
        let sm_ns = u128::from(busy) * 132 * 6 / 10;
        assert!(u128::from(counters.used_sm_ns).abs_diff(sm_ns) <= 60);
        assert!(counters.grants >= 10);
    }
    let slot = figures.slot(gpu_sidecar::state::SlotKey(0)).unwrap();
    assert!(slot.busy_ns <= busy.iter().sum::<u64>());
    assert!(slot.idle_while_waiting_ns <= figures.at_ns - begun);
}

/// The last usage of a process counts, also when the process dies with its token.
#[test]
fn the_last_usage_of_a_dead_process_is_charged_to_its_pod() {
    let node = Node::new();
    let pod = node.pod(0, 50);
    let other = node.child_process(&pod);
    let puppet = other.connect().greet_and_attach();
    puppet.request_token();
    puppet.wait_open();
    let begin = now_ns();
    pause(20);
    puppet
        .facts()
        .busy_ns
        .store(now_ns() - begin, Ordering::Release);
    puppet.facts().launches.0.store(7, Ordering::Release);
    let busy = puppet.facts().busy_ns.load(Ordering::Acquire);
    other.kill();
    drop(puppet);
    let counters = until("the end", || {
        let figures = node.of_pod(&pod);
        figures.processes.is_empty().then_some(figures.counters)
    });
    assert_eq!((counters.used_wall_ns, counters.launches), (busy, 7));
    assert_eq!(counters.used_sm_ns, busy * 66);
    assert!(counters.asked_ns >= busy && counters.given_ns >= busy);
}

/// A pod that waits for its own limit loses nothing to an unused token.
#[test]
fn idle_time_counts_only_while_a_waiting_pod_may_compute() {
    let node = Node::new();
    let poor = node.pod_with(0, |settings| {
        settings.quota_request_ppm = 0;
        settings.quota_limit_ppm = 1;
    });
    let pod = node.pod(1, 60);
    let (mut waiter, mut holder) = (node.attached(&poor), node.attached(&pod));
    waiter.report_work();
    waiter.request_token();
    until("a token", || waiter.held());
    pause(5);
    waiter.facts().busy_ns.store(5_000_000, Ordering::Release);
    assert!(waiter.give_back());
    waiter.request_token();
    until("the pod to wait", || {
        node.of_pod(&poor).is_waiting.then_some(())
    });
    holder.request_token();
    holder.wait_open();
    let now = now_ns();
    holder.facts().push(now - 1, now);
    holder.facts().busy_ns.store(1, Ordering::Release);
    let before = node.of_slot().idle_while_waiting_ns;
    pause(100);
    assert!(holder.give_back());
    holder.wait_shut();
    assert_eq!(node.of_slot().idle_while_waiting_ns, before);
    assert!(waiter.held().is_none());
}
