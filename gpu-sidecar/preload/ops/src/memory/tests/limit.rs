use protocol::message::{FromProcess, Report};

use super::*;
use crate::memory::spare::relinquish;

/// Returns a process under a limit in granules whose agent answers.
fn served(granules: u64) -> &'static Fake {
    let fake = limited(granules);
    fake.default_orders.set(false);
    fake
}

/// Has the agent answer the claim `seq` at the next wait.
fn answer(fake: &Fake, seq: u32, claim: u64) {
    fake.at_wait(move |fake| {
        fake.orders.memory_claim.store(claim, Ordering::Relaxed);
        fake.orders.claim_answered.store(seq, Ordering::Relaxed);
    });
}

fn claims(fake: &Fake) -> Vec<u64> {
    let sent = fake.take_sent().into_iter();
    sent.filter_map(|message| match message {
        FromProcess::Claim { bytes, .. } => Some(bytes),
        _ => None,
    })
    .collect()
}

#[test]
fn an_allocation_beyond_the_limit_is_refused_and_reported() {
    let fake = limited(4);
    let _at = allocate(fake, 3 * GRANULE + 1);
    let outcome = alloc::alloc(fake, GRANULE, &unreached);
    assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
    assert_eq!(fake.facts.refused_allocations.load(Ordering::Relaxed), 1);
    let report = FromProcess::Report(Report::OutOfMemory(GRANULE));
    assert_eq!(fake.take_sent(), [report]);
}

#[test]
fn the_limit_can_be_reached_exactly_and_again() {
    let fake = limited(4);
    for _ in 0..3 {
        let all: Vec<Address> = (0..4).map(|_| allocate(fake, GRANULE)).collect();
        let outcome = alloc::alloc(fake, GRANULE, &unreached);
        assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
        for at in all {
            assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
        }
    }
}

#[test]
fn spare_memory_is_released_before_an_allocation_is_refused() {
    let fake = limited(4);
    let small = allocate(fake, 100);
    assert_eq!(free_memory(fake, small), Outcome::Done(SUCCESS));
    assert_eq!(held(fake, Kind::Spare), GRANULE);
    let _at = allocate(fake, 4 * GRANULE);
    assert_eq!(held(fake, Kind::Spare), 0);
}

#[test]
fn no_more_is_claimed_than_is_needed() {
    let fake = served(32);
    answer(fake, 1, GRANULE);
    let _first = allocate(fake, GRANULE);
    answer(fake, 2, 3 * GRANULE);
    let _second = allocate(fake, 2 * GRANULE);
    assert_eq!(claims(fake), [GRANULE, 3 * GRANULE]);
}

#[test]
fn an_allocation_that_the_agent_refuses_is_out_of_memory() {
    let fake = served(32);
    for seq in 1..=2 {
        answer(fake, seq, 0);
    }
    let outcome = alloc::alloc(fake, GRANULE, &unreached);
    assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
    assert_eq!((fake.physical_bytes(), published(fake)), (0, 0));
}

#[test]
fn a_hung_agent_delays_an_allocation_until_it_counts_as_gone() {
    let fake = served(32);
    let _at = allocate(fake, GRANULE);
    assert_eq!(fake.abandoned.get(), 1);
}

#[test]
fn freed_memory_is_claimed_no_more() {
    let fake = served(32);
    answer(fake, 1, 10 * GRANULE);
    let at = allocate(fake, 10 * GRANULE);
    assert_eq!(claims(fake), [10 * GRANULE]);
    assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    assert_eq!(claims(fake), [0]);
}

#[test]
fn a_process_that_is_asked_relinquishes_all_that_it_does_not_use() {
    let fake = served(32);
    answer(fake, 1, 3 * GRANULE);
    let small = allocate(fake, 100);
    let _claimed = claims(fake);
    assert_eq!(free_memory(fake, small), Outcome::Done(SUCCESS));
    relinquish(fake);
    assert_eq!(claims(fake).last(), Some(&0));
    assert_eq!(fake.physical_bytes(), 0);
}

#[test]
fn an_inactive_process_relinquishes_nothing() {
    let fake = served(32);
    fake.process.set_active(false);
    relinquish(fake);
    assert!(fake.take_sent().is_empty());
}
