use std::cell::Cell;
use std::sync::atomic::Ordering;

use preload_state::gate::{LaunchGuard, SHORT_GAP};

use super::*;
use crate::fake::Fake;

#[test]
fn an_unused_token_is_returned_with_its_epoch() {
    let fake = Fake::new();
    fake.process.streams.add_busy(5, 9, &fake.facts);
    assert!(give_back(fake));
    assert_eq!(fake.barriers.get(), 1);
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
    assert!(fake.process.gate.is_given_back());
    // The kernel time is published first.
    assert_eq!(fake.facts.stretches(0, &mut Vec::new()), 1);
}

#[test]
fn a_launch_before_the_barrier_keeps_the_token() {
    let fake = Fake::new();
    let guard: &'static Cell<Option<LaunchGuard<'_>>> = Box::leak(Box::default());
    fake.before_barrier(0, |fake| {
        guard.set(Some(fake.process.threads.begin(None)));
    });
    assert!(!give_back(fake));
    assert!(fake.take_sent().is_empty());
    assert!(!fake.process.gate.is_given_back());
}

#[test]
fn a_thread_in_a_launch_returns_nothing() {
    let fake = Fake::new();
    fake.set_inside(true);
    assert!(!give_back(fake));
    fake.set_inside(false);
    let guard = fake.process.threads.begin(fake.thread());
    assert!(!give_back(fake));
    drop(guard);
    assert!(give_back(fake));
}

#[test]
fn work_in_flight_keeps_the_token_without_a_barrier() {
    let fake = Fake::new();
    fake.process.gate.word().add(1);
    assert!(!give_back(fake));
    assert_eq!(fake.barriers.get(), 0);
}

#[test]
fn a_wait_of_a_program_that_pauses_returns_the_token_under_contention() {
    let fake = Fake::new();
    after_host_wait(fake);
    fake.pass(4 * SHORT_GAP);
    fake.process.gate.begin_burst(fake.now.get());
    after_host_wait(fake);
    assert!(fake.take_sent().is_empty(), "no process waits");
    fake.orders.contended.store(1, Ordering::Relaxed);
    after_host_wait(fake);
    assert_eq!(fake.take_sent(), [FromProcess::Closed { epoch: 2 }]);
}

#[test]
fn an_inactive_process_returns_nothing_after_a_wait() {
    let fake = Fake::new();
    fake.process.set_active(false);
    fake.orders.contended.store(1, Ordering::Relaxed);
    after_host_wait(fake);
    assert!(fake.take_sent().is_empty());
}

#[test]
fn launches_in_progress_are_waited_for() {
    let fake = Fake::new();
    let mut guard = Some(fake.process.threads.begin(None));
    fake.at_wait(|_| {});
    fake.at_wait(move |_| drop(guard.take()));
    wait_for_launches(fake);
    assert_eq!(*fake.waits.borrow(), [IN_FLIGHT_POLL; 2]);
}
