//! Copies that pass through staging memory.

use testing::Random;

use super::*;
use crate::residency::staging::PIECES;

/// Size of the whole staging memory, in bytes.
const STAGING: u64 = PIECES as u64 * STAGING_GRANULES * GRANULE;

/// Most events by which the work of the hashes is measured.
const EVENTS_MAX: usize = 4;

/// Returns a process with blocks of these granules, whose contents are numbers from 100 on, and a window that it may not register, but staging memory; and its mover.
fn pageable(granules: &[u64]) -> (&'static Fake, Vec<Address>, Mover) {
    let fake = Fake::new();
    fake.total.set(1_024 * GRANULE);
    let window = HostSpan {
        at: HOST,
        bytes: 512 * GRANULE,
    };
    add_window(fake, window, false);
    fake.orders.pinned_max.store(STAGING + 1, Ordering::Relaxed);
    let blocks: Vec<Address> = granules
        .iter()
        .map(|granules| allocate(fake, granules * GRANULE))
        .collect();
    for (number, at) in (100..).zip(all_granules(&blocks, granules)) {
        fake.set_granule(at, number);
    }
    let mut mover = Mover::new();
    settle(fake, &mut mover);
    (fake, blocks, mover)
}

fn all_granules(blocks: &[Address], granules: &[u64]) -> Vec<Address> {
    let all = blocks.iter().zip(granules);
    all.flat_map(|(at, granules)| (0..*granules).map(move |number| at + number * GRANULE))
        .collect()
}

/// Runs the mover until it sleeps.
fn settle(fake: &'static Fake, mover: &mut Mover) {
    let slept = fake.waits.borrow().len();
    while fake.waits.borrow().len() == slept {
        step(fake, mover);
    }
}

/// As [`order`], of a move that may fail.
fn moved(fake: &'static Fake, mover: &mut Mover, wanted: Residency, seq: u32) -> MoveReport {
    fake.orders
        .residency_wanted
        .store(wanted as u32, Ordering::Relaxed);
    fake.orders.order_seq.store(seq, Ordering::Release);
    step(fake, mover);
    let sent = fake.take_sent();
    let mut reports = sent.iter().filter_map(|message| match message {
        FromProcess::Moved(report) => Some(*report),
        _ => None,
    });
    reports.next().expect("it is answered")
}

fn contents_are_whole(fake: &Fake, blocks: &[Address], granules: &[u64]) {
    for (number, at) in (100..).zip(all_granules(blocks, granules)) {
        assert_eq!(fake.granule_at(at), Some(number), "{at:#x}");
    }
}

#[test]
fn unregistered_copies_pass_through_staging_memory_in_both_directions() {
    let granules = [40, 3, 1, 5];
    let (fake, blocks, mut mover) = pageable(&granules);
    let registered: u64 = fake.registered.borrow().iter().map(|own| own.bytes).sum();
    assert_eq!(registered, STAGING, "it alone is registered");
    assert_eq!(fake.process.pinned_bytes.load(Ordering::Relaxed), STAGING);
    fake.copy_ns.set(1_000);
    let left = order(fake, &mut mover, Residency::Host, 1);
    assert_eq!(
        (left.refusal, left.transfer.copied_bytes),
        (None, 49 * GRANULE)
    );
    assert_eq!(fake.staged.get(), 49 * GRANULE);
    let back = order(fake, &mut mover, Residency::Resident, 2);
    assert_eq!(
        (back.refusal, back.transfer.copied_bytes),
        (None, 49 * GRANULE)
    );
    assert_eq!(fake.staged.get(), 98 * GRANULE);
    contents_are_whole(fake, &blocks, &granules);
    // Nothing is in use, and no event is left.
    assert!(fake.copying.borrow().is_empty());
    assert!(fake.events.borrow().len() <= EVENTS_MAX);
}

#[test]
fn sealed_contents_pass_through_staging_memory() {
    let granules = [17, 2];
    let (fake, blocks, mut mover) = pageable(&granules);
    fake.copy_ns.set(1_000);
    let sealed = order_number(fake, &mut mover, SEALED, 1);
    assert_eq!(sealed.refusal, None);
    assert_eq!(
        (fake.staged.get(), fake.facts.sealed.load(Ordering::Relaxed)),
        (19 * GRANULE, 1)
    );
    let left = order(fake, &mut mover, Residency::Host, 2);
    assert_eq!((left.refusal, left.transfer.copied_bytes), (None, 0));
    let back = order(fake, &mut mover, Residency::Resident, 3);
    assert_eq!(back.refusal, None);
    contents_are_whole(fake, &blocks, &granules);
}

#[test]
fn staging_memory_is_given_back_once_all_windows_may_be_registered() {
    let granules = [9];
    let (fake, blocks, mut mover) = pageable(&granules);
    let staging = fake.registered.borrow()[0];
    let all = 512 * GRANULE + 1;
    fake.orders.pinned_max.store(all, Ordering::Relaxed);
    settle(fake, &mut mover);
    assert_eq!(*fake.unmapped.borrow(), [staging]);
    let registered: u64 = fake.registered.borrow().iter().map(|own| own.bytes).sum();
    assert_eq!(registered, 512 * GRANULE);
    for (seq, wanted) in [(1, Residency::Host), (2, Residency::Resident)] {
        assert_eq!(order(fake, &mut mover, wanted, seq).refusal, None);
    }
    assert_eq!(fake.staged.get(), 0);
    contents_are_whole(fake, &blocks, &granules);
    // And made again.
    fake.orders.pinned_max.store(STAGING + 1, Ordering::Relaxed);
    settle(fake, &mut mover);
    assert_eq!(order(fake, &mut mover, Residency::Host, 3).refusal, None);
    assert_eq!(
        order(fake, &mut mover, Residency::Resident, 4).refusal,
        None
    );
    assert_eq!(fake.staged.get(), 9 * GRANULE);
    contents_are_whole(fake, &blocks, &granules);
}

#[test]
fn a_program_computes_with_what_has_passed_through_staging_memory() {
    let granules = [40, 40];
    let (fake, blocks, mut mover) = pageable(&granules);
    fake.orders.streams_restores.store(1, Ordering::Relaxed);
    assert_eq!(order(fake, &mut mover, Residency::Host, 1).refusal, None);
    fake.staged.set(0);
    fake.copy_ns.set(1_000);
    // The gate is ajar before all has passed.
    fake.before_event_wait(0, |fake| {
        assert!(fake.process.memory_gate.is_ajar());
        assert!(
            fake.staged.get() <= STAGING + 4 * GRANULE,
            "{}",
            fake.staged.get()
        );
    });
    assert_eq!(
        order(fake, &mut mover, Residency::Resident, 2).refusal,
        None
    );
    assert_eq!(fake.staged.get(), 80 * GRANULE);
    contents_are_whole(fake, &blocks, &granules);
    assert!(fake.events.borrow().len() <= EVENTS_MAX);
}

#[test]
fn moves_that_fail_amid_staged_copies_leave_pieces_and_events_free() {
    let granules = [20, 12];
    for errors in 0..24 {
        let (fake, blocks, mut mover) = pageable(&granules);
        fake.copy_ns.set(1_000);
        let mut seq = 0;
        let mut is_away = false;
        for at in [errors, errors / 2] {
            let wanted = if is_away {
                Residency::Resident
            } else {
                Residency::Host
            };
            let mut codes: Vec<Code> = vec![SUCCESS; at];
            codes.push(719);
            fake.copy_error.borrow_mut().extend(codes);
            seq += 1;
            let moved = moved(fake, &mut mover, wanted, seq);
            fake.copy_error.borrow_mut().clear();
            is_away = moved.residency == Residency::Host;
            assert!(fake.copying.borrow().is_empty(), "{errors}");
            assert!(fake.events.borrow().len() <= EVENTS_MAX, "{errors}");
        }
        if is_away {
            seq += 1;
            assert_eq!(
                order(fake, &mut mover, Residency::Resident, seq).refusal,
                None
            );
        }
        contents_are_whole(fake, &blocks, &granules);
    }
}

#[test]
fn contents_are_whole_after_random_moves_and_limits() {
    let mut random = Random(5);
    let mut staged = 0;
    for _ in 0..60 {
        let granules: Vec<u64> = (0..1 + random.below(5))
            .map(|_| 1 + random.below(30))
            .collect();
        let (fake, blocks, mut mover) = pageable(&granules);
        let streams = u32::try_from(random.below(2)).unwrap();
        fake.orders
            .streams_restores
            .store(streams, Ordering::Relaxed);
        for seq in 1..20 {
            let limit = [0, 1, 9 * GRANULE, STAGING + 1, 600 * GRANULE][random.index(5)];
            fake.orders.pinned_max.store(limit, Ordering::Relaxed);
            fake.copy_ns.set(random.below(3) * 500);
            if random.below(2) == 0 {
                settle(fake, &mut mover);
            }
            let number =
                [Residency::Host as u32, Residency::Resident as u32, SEALED][random.index(3)];
            assert_eq!(order_number(fake, &mut mover, number, seq).refusal, None);
        }
        assert_eq!(
            order(fake, &mut mover, Residency::Resident, 20).refusal,
            None
        );
        contents_are_whole(fake, &blocks, &granules);
        assert!(fake.events.borrow().len() <= EVENTS_MAX);
        staged += fake.staged.get();
    }
    assert!(staged > 100 * STAGING, "{staged}");
}

#[test]
fn a_model_that_cannot_return_while_its_program_computes_is_lost() {
    for (code, residency) in [
        (OUT_OF_MEMORY, Residency::Faulted),
        (719, Residency::Resident),
    ] {
        let (fake, _, mut mover) = pageable(&[40, 40]);
        fake.orders.streams_restores.store(1, Ordering::Relaxed);
        let left = order(fake, &mut mover, Residency::Host, 1);
        assert_eq!(left.refusal, None);
        fake.copy_ns.set(1_000);
        fake.before_event_wait(0, move |fake| {
            fake.copy_error.borrow_mut().push_back(code);
        });
        let back = moved(fake, &mut mover, Residency::Resident, 2);
        let refusal = Some(MoveRefusal::StickyError);
        assert_eq!((back.residency, back.refusal), (residency, refusal));
        // What waited for the memory goes on.
        assert!(fake.process.memory_gate.is_open());
        let has_lost = fake
            .lines
            .borrow()
            .iter()
            .any(|line| line.contains("not as it was"));
        assert_eq!(has_lost, residency == Residency::Faulted);
        assert!(fake.copying.borrow().is_empty());
    }
}
