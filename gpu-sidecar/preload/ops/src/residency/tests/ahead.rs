//! What is known of copies without hashes, and copies ahead of an eviction.

use preload_state::streams::DefaultStream;

use super::*;
use crate::launch::{Kind, launch};

/// Returns the number of barriers of a seal that nothing disturbs.
fn barriers_of_a_seal() -> u32 {
    let (fake, _, _) = process(8);
    assert!(try_seal(fake));
    fake.barriers.get()
}

/// Changes a granule as a program does: by a call in a thread of its own.
fn write(fake: &'static Fake, at: Address, number: u64) {
    let call = || {
        fake.set_granule(at, number);
        SUCCESS
    };
    let touched = fake.in_other_thread(|| touch::touch(fake, &call));
    assert_eq!(touched, Outcome::Done(SUCCESS));
}

fn launches(fake: &Fake) -> u64 {
    fake.facts.launches.0.load(Ordering::Relaxed)
}

fn is_sealed(fake: &Fake) -> bool {
    fake.facts.sealed.load(Ordering::Relaxed) == 1
}

fn try_seal(fake: &'static Fake) -> bool {
    seal::seal(fake, &fake.orders);
    is_sealed(fake)
}

#[test]
fn memory_that_nothing_has_touched_is_not_hashed_again() {
    let (fake, large, small) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    back(fake).unwrap();
    assert_eq!(launches(fake), 1);
    for _ in 0..3 {
        let moved = evict::evict(fake, DRAIN).unwrap();
        assert_eq!((moved.bytes, moved.copied_bytes), (4 * GRANULE, 0));
        back(fake).unwrap();
    }
    assert_eq!(launches(fake), 1);
    write(fake, large, 55);
    assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, GRANULE);
    back(fake).unwrap();
    assert_eq!(launches(fake), 2);
    let expected = [55, 101, 102, 103].map(Some);
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn after_a_seal_even_the_first_eviction_copies_nothing() {
    let (fake, large, small) = process(8);
    assert!(try_seal(fake));
    let in_flight = fake.process.gate.word().in_flight();
    assert_eq!(in_flight, 0, "the kernel of the hashes has ended");
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(contents(fake, large, small)[0], Some(100));
    let moved = evict::evict(fake, DRAIN).unwrap();
    assert_eq!((moved.bytes, moved.copied_bytes), (4 * GRANULE, 0));
    assert_eq!(launches(fake), 1, "hashed for the seal alone");
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn changes_after_a_seal_are_copied_by_the_eviction() {
    let (fake, large, small) = process(8);
    assert!(try_seal(fake));
    write(fake, small, 7);
    assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, GRANULE);
    back(fake).unwrap();
    let expected = [100, 101, 102, 7].map(Some);
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn a_call_of_the_program_ends_a_seal_and_no_torn_copy_counts() {
    for at in 0..barriers_of_a_seal() {
        let (fake, large, small) = process(8);
        fake.before_barrier(at, move |fake| write(fake, large + GRANULE, 9));
        let is_sealed = try_seal(fake);
        let is_written = fake.granule_at(large + GRANULE) == Some(9);
        // A write before the hash is part of it.
        assert_eq!(is_sealed, !is_written || at == 0, "barrier {at}");
        let moved = evict::evict(fake, DRAIN).unwrap();
        assert!(!is_sealed || !is_written || moved.copied_bytes == 0);
        back(fake).unwrap();
        let changed = if is_written { 9 } else { 101 };
        let expected = [100, changed, 102, 103].map(Some);
        assert_eq!(contents(fake, large, small), expected, "barrier {at}");
    }
}

#[test]
fn nothing_is_sealed_while_work_runs_or_memory_cannot_leave() {
    let (fake, large, _) = process(8);
    let call = || {
        fake.run(STREAM, 1_000_000_000);
        SUCCESS
    };
    let _made = launch(
        fake,
        &call,
        STREAM,
        DefaultStream::Legacy,
        KERNEL,
        Kind::Kernel,
    );
    assert!(!try_seal(fake));
    fake.pass(1_000_000_000);
    assert!(try_seal(fake));
    write(fake, large, 0);
    step(fake, &mut Mover::new());
    fake.process.captures.begin();
    assert!(!try_seal(fake));
    let (fake, _, _) = process(3);
    assert!(!try_seal(fake), "no room on the host");
    let (fake, _, _) = process(8);
    fake.orders.gate.set(3);
    assert!(!try_seal(fake), "no token");
    assert!(fake.take_sent().is_empty(), "none is requested for it");
}

#[test]
fn memory_freed_amid_a_seal_is_left_out() {
    for at in 0..barriers_of_a_seal() {
        let (fake, large, small) = process(8);
        fake.before_barrier(at, move |fake| {
            // The lock of the moves is held over some barriers: a free waits for it, in its own thread.
            if fake.memory().is_free_of_moves() {
                assert_eq!(free_memory(fake, small), Outcome::Done(SUCCESS));
            }
        });
        let _sealed = try_seal(fake);
        let moved = evict::evict(fake, DRAIN).unwrap();
        back(fake).unwrap();
        let expected: Vec<_> = (100..103).map(Some).collect();
        assert_eq!(contents(fake, large, small)[..3], expected, "barrier {at}");
        assert!(moved.bytes >= 3 * GRANULE);
    }
}

#[test]
fn the_mover_seals_a_quiet_process_once() {
    let (fake, large, _) = process(8);
    fake.orders.seal_after_ms.store(200, Ordering::Relaxed);
    let mut mover = Mover::new();
    for _ in 0..8 {
        step(fake, &mut mover);
    }
    assert!(is_sealed(fake));
    assert_eq!(launches(fake), 1);
    for _ in 0..8 {
        step(fake, &mut mover);
    }
    assert_eq!(launches(fake), 1);
    write(fake, large, 3);
    step(fake, &mut mover);
    assert!(!is_sealed(fake));
    for _ in 0..8 {
        step(fake, &mut mover);
    }
    assert!(is_sealed(fake));
    assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, 0);
}

#[test]
fn without_a_token_the_eviction_copies_everything_after_a_second() {
    let (fake, large, small) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    back(fake).unwrap();
    write(fake, large, 5);
    fake.orders.gate.set(3);
    let begin = fake.now.get();
    let moved = evict::evict(fake, DRAIN).unwrap();
    assert_eq!(moved.copied_bytes, 4 * GRANULE);
    let waited = fake.now.get() - begin;
    assert!((1_000_000_000..1_100_000_000).contains(&waited), "{waited}");
    back(fake).unwrap();
    let expected = [5, 101, 102, 103].map(Some);
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn an_order_of_a_former_page_is_not_answered_in_the_next() {
    let (fake, _, _) = process(8);
    let former: &'static Orders = Box::leak(Box::new(Orders::new()));
    answer(fake, former, 4, Ok(Transfer::default()));
    assert!(fake.take_sent().is_empty());
    assert_eq!(fake.facts.done_seq.load(Ordering::Relaxed), 0);
    answer(fake, &fake.orders, 5, Ok(Transfer::default()));
    assert_eq!(fake.take_sent().len(), 1);
    assert_eq!(fake.facts.done_seq.load(Ordering::Relaxed), 5);
}
