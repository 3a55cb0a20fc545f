use std::sync::atomic::Ordering;

use preload_state::link::Terms;
use protocol::message::{FromProcess, OnLoss};

use super::*;
use crate::fake::Fake;

fn limited(limit: u64) -> &'static Fake {
    let fake = Fake::new();
    fake.process.set_limits(&Terms {
        on_loss: OnLoss::Open,
        visible_devices: String::new(),
        mps_pipe_directory: String::new(),
        active_thread_hundredths: 10_000,
        mps_memory_limit: 0,
        memory_limit: limit,
        context_residue: 0,
    });
    fake
}

/// Has the agent answer at the next wait.
fn answers(fake: &Fake, seq: u32, claim: u64) {
    fake.at_wait(move |fake| {
        fake.orders.memory_claim.store(claim, Ordering::Relaxed);
        fake.orders.claim_answered.store(seq, Ordering::Relaxed);
    });
}

#[test]
fn without_a_limit_nothing_is_claimed() {
    let fake = limited(0);
    assert!(claim(fake, u64::MAX));
    lower(fake, 1);
    assert!(fake.take_sent().is_empty());
}

#[test]
fn without_an_agent_the_limit_alone_applies() {
    let fake = limited(100);
    fake.default_orders.set(true);
    assert!(claim(fake, 100) && !claim(fake, 101));
    assert!(fake.take_sent().is_empty());
}

#[test]
fn a_claim_waits_for_its_answer() {
    let fake = limited(100);
    answers(fake, 1, 60);
    assert!(claim(fake, 60));
    assert_eq!(*fake.waits.borrow(), [RECHECK_INTERVAL]);
    answers(fake, 2, 60);
    assert!(!claim(fake, 80), "the agent refuses");
    let sent = [(1, 60), (2, 80)].map(|(seq, bytes)| FromProcess::Claim { seq, bytes });
    assert_eq!(fake.take_sent(), sent);
}

#[test]
fn a_claim_of_what_is_granted_waits_for_nothing() {
    let fake = limited(100);
    fake.orders.memory_claim.store(60, Ordering::Relaxed);
    assert!(claim(fake, 60));
    assert!(fake.waits.borrow().is_empty());
}

#[test]
fn a_hung_agent_is_abandoned_and_leaves_the_limit() {
    let fake = limited(100);
    assert!(claim(fake, 100));
    assert_eq!(fake.abandoned.get(), 1);
    let waited =
        *fake.waits.borrow().first().unwrap() * u32::try_from(fake.waits.borrow().len()).unwrap();
    assert_eq!(waited, HUNG_AFTER + RECHECK_INTERVAL);
    assert!(!claim(fake, 101));
}

#[test]
fn an_agent_that_lives_is_waited_for_while_others_leave() {
    let fake = limited(100);
    for round in 0..100 {
        fake.at_wait(move |fake| {
            fake.orders.heartbeat.store(round, Ordering::Relaxed);
            if round == 99 {
                fake.orders.memory_claim.store(60, Ordering::Relaxed);
                fake.orders.claim_answered.store(1, Ordering::Relaxed);
            }
        });
    }
    assert!(claim(fake, 60));
    assert_eq!((fake.abandoned.get(), fake.waits.borrow().len()), (0, 100));
}

#[test]
fn a_lower_claim_is_sent_without_a_wait() {
    let fake = limited(100);
    lower(fake, 5);
    assert_eq!(fake.take_sent(), [FromProcess::Claim { seq: 1, bytes: 5 }]);
    assert!(fake.waits.borrow().is_empty());
}

#[test]
fn the_memory_of_others_is_refreshed_only_if_they_hold_some() {
    let fake = limited(100);
    refresh_held_by_others(fake, 7);
    assert!(fake.take_sent().is_empty());
    fake.orders.memory_others.store(30, Ordering::Relaxed);
    fake.at_wait(|fake| {
        fake.orders.memory_others.store(20, Ordering::Relaxed);
        fake.orders.claim_answered.store(1, Ordering::Relaxed);
    });
    refresh_held_by_others(fake, 7);
    assert_eq!(held_by_others(fake), 20);
    assert_eq!(*fake.waits.borrow(), [COUNT_MAX]);
}
