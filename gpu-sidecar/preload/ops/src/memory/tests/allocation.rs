use preload_state::streams::DefaultStream;

use super::*;
use crate::capture::{begin, end};
use crate::cuda::{INVALID_VALUE, NOT_SUPPORTED};
use crate::fake::{SHARING, STREAM};
use crate::memory::physical::{ATTRIBUTE_MAPPINGS, ATTRIBUTE_RDMA};
use crate::outcome::Reason;

/// Begins a capture, with the reserve that this library makes for it.
fn capture(fake: &'static Fake) {
    let reserve = || make::before_capture(fake);
    let _begun = begin(fake, &|| SUCCESS, STREAM, DefaultStream::Legacy, reserve);
}

fn end_capture(fake: &'static Fake) {
    let _ended = end(fake, &|| SUCCESS);
}

#[test]
fn a_large_allocation_has_memory_of_its_own_until_it_is_freed() {
    let fake = unlimited();
    let at = allocate(fake, 3 * GRANULE - 5);
    assert_eq!(fake.physical_bytes(), 3 * GRANULE);
    assert_eq!(
        fake.mappings.borrow().get(&at).map(|(bytes, _)| *bytes),
        Some(3 * GRANULE)
    );
    assert_eq!(fake.access.borrow().get(&at).map(Vec::len), Some(1));
    assert_eq!(
        (held(fake, Kind::Plain), published(fake)),
        (3 * GRANULE, 3 * GRANULE)
    );
    assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    assert_eq!((fake.physical_bytes(), published(fake)), (0, 0));
    assert!(fake.mappings.borrow().is_empty());
    // The context's work was waited for.
    assert_eq!(*fake.synchronized.borrow(), [CONTEXT]);
}

#[test]
fn small_allocations_share_a_slab() {
    let fake = unlimited();
    let first = allocate(fake, 100);
    let second = allocate(fake, MIB / 2);
    assert_eq!((second - first, fake.physical_bytes()), (512, GRANULE));
    assert_eq!(held(fake, Kind::Plain), GRANULE);
    // One empty slab is kept, and counts as spare.
    assert_eq!(free_memory(fake, first), Outcome::Done(SUCCESS));
    assert_eq!(free_memory(fake, second), Outcome::Done(SUCCESS));
    assert_eq!(
        (held(fake, Kind::Plain), held(fake, Kind::Spare)),
        (0, GRANULE)
    );
    assert!(spare::reclaim(fake));
    assert_eq!((fake.physical_bytes(), published(fake)), (0, 0));
    assert!(!spare::reclaim(fake));
}

#[test]
fn invalid_calls_pass_to_the_driver() {
    let fake = unlimited();
    let invalid = Outcome::Pass(Reason::Invalid);
    assert_eq!(alloc::alloc(fake, 0, &unreached), invalid);
    assert_eq!(
        alloc::alloc_pitch(fake, 8, 8, 5, &unreached),
        Outcome::Pass(Reason::Invalid)
    );
    assert_eq!(
        alloc::alloc_pitch(fake, 0, 8, 4, &unreached),
        Outcome::Pass(Reason::Invalid)
    );
    assert_eq!(
        free::free(fake, &|| SUCCESS, 0),
        Outcome::Pass(Reason::Invalid)
    );
    fake.process.set_active(false);
    assert_eq!(
        alloc::alloc(fake, 5, &unreached),
        Outcome::Pass(Reason::Inactive)
    );
    assert_eq!(
        free::free(fake, &|| SUCCESS, 5),
        Outcome::Pass(Reason::Inactive)
    );
}

#[test]
fn rows_are_aligned() {
    let fake = unlimited();
    let allocated = alloc::alloc_pitch(fake, 513, 3_000, 4, &unreached);
    let Outcome::Done((at, Some(1_024))) = allocated else {
        panic!("{allocated:?}");
    };
    assert_eq!(held(fake, Kind::Plain), 2 * GRANULE);
    assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    let too_wide = alloc::alloc_pitch(fake, usize::MAX, 1, 4, &unreached);
    assert_eq!(too_wide, Outcome::Fail(INVALID_VALUE));
    let too_high = alloc::alloc_pitch(fake, 512, usize::MAX, 4, &unreached);
    assert_eq!(too_high, Outcome::Fail(OUT_OF_MEMORY));
}

#[test]
fn an_allocation_larger_than_the_device_is_refused_at_once() {
    let fake = unlimited();
    let outcome = alloc::alloc(fake, fake.total.get() + 1, &unreached);
    assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
    assert_eq!(fake.facts.refused_allocations.load(Ordering::Relaxed), 0);
    let fake = limited(8);
    let outcome = alloc::alloc(fake, fake.total.get() + 1, &unreached);
    assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
    assert_eq!(fake.facts.refused_allocations.load(Ordering::Relaxed), 1);
}

#[test]
fn a_device_without_mappings_keeps_the_drivers_memory_and_is_counted() {
    let fake = unlimited();
    fake.lacks.borrow_mut().insert(ATTRIBUTE_MAPPINGS);
    let allocated = alloc::alloc(fake, 100, &|| Ok(7));
    assert_eq!(allocated, Outcome::Done(7));
    assert_eq!(held(fake, Kind::Native), 100);
    assert_eq!(
        alloc::alloc_pitch(fake, 512, 2, 4, &|| Ok(9)),
        Outcome::Done((9, None))
    );
    assert_eq!(held(fake, Kind::Native), 100 + 1_024);
    assert_eq!(free::free(fake, &|| SUCCESS, 7), Outcome::Done(SUCCESS));
    assert_eq!(held(fake, Kind::Native), 1_024);
}

#[test]
fn memory_that_cannot_be_shared_is_mapped_all_the_same() {
    let fake = unlimited();
    fake.lacks.borrow_mut().extend([SHARING, ATTRIBUTE_RDMA]);
    let at = allocate(fake, GRANULE);
    let slot = fake.memory().owner(at).unwrap();
    assert!(!lock(&slot.table).is_shareable());
}

#[test]
fn a_failed_creation_leaves_nothing_behind() {
    let fake = unlimited();
    fake.create_error.borrow_mut().push_back(999);
    assert_eq!(alloc::alloc(fake, GRANULE, &unreached), Outcome::Fail(999));
    assert_eq!((fake.physical_bytes(), published(fake)), (0, 0));
}

#[test]
fn a_failed_mapping_leaves_nothing_behind() {
    let fake = unlimited();
    fake.total.set(2_000 * GRANULE);
    let first = allocate(fake, GRANULE);
    fake.map_error.borrow_mut().push_back(999);
    assert_eq!(
        alloc::alloc(fake, 1_000 * GRANULE, &unreached),
        Outcome::Fail(999)
    );
    assert_eq!(fake.physical_bytes(), GRANULE);
    assert_eq!(fake.mappings.borrow().len(), 1);
    assert_eq!(published(fake), GRANULE);
    // The addresses are free again.
    let second = allocate(fake, GRANULE);
    assert_eq!(second, first + GRANULE);
}

#[test]
fn a_failed_unmapping_keeps_memory_counted_and_its_addresses_unused() {
    let fake = unlimited();
    let at = allocate(fake, GRANULE);
    fake.unmap_error.borrow_mut().push_back(700);
    assert_eq!(free_memory(fake, at), Outcome::Fail(700));
    assert_eq!(published(fake), GRANULE);
    assert_ne!(allocate(fake, GRANULE), at);
}

#[test]
fn a_full_device_gives_up_spare_memory_before_it_refuses() {
    let fake = unlimited();
    let small = allocate(fake, 100);
    assert_eq!(free_memory(fake, small), Outcome::Done(SUCCESS));
    assert_eq!(held(fake, Kind::Spare), GRANULE);
    let all = allocate(fake, fake.total.get());
    assert_eq!(held(fake, Kind::Spare), 0);
    let outcome = alloc::alloc(fake, GRANULE, &unreached);
    assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
    assert_eq!(free_memory(fake, all), Outcome::Done(SUCCESS));
}

#[test]
fn a_second_free_and_an_inner_address_are_refused() {
    let fake = unlimited();
    let at = allocate(fake, GRANULE);
    assert_eq!(free_memory(fake, at + 1), Outcome::Fail(INVALID_VALUE));
    assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    assert_eq!(free_memory(fake, at), Outcome::Fail(INVALID_VALUE));
}

#[test]
fn a_free_whose_wait_fails_frees_nothing() {
    let fake = unlimited();
    let at = allocate(fake, GRANULE);
    fake.synchronize_error.borrow_mut().push_back(719);
    assert_eq!(free_memory(fake, at), Outcome::Fail(719));
    assert_eq!(fake.physical_bytes(), GRANULE);
    assert_eq!(
        free_memory(fake, at),
        Outcome::Done(SUCCESS),
        "it is not half freed"
    );
}

#[test]
fn a_context_with_a_sticky_error_allocates_and_frees_nothing() {
    let fake = unlimited();
    let at = allocate(fake, GRANULE);
    fake.query_error.set(Some(700));
    assert_eq!(alloc::alloc(fake, GRANULE, &unreached), Outcome::Fail(700));
    assert_eq!(free_memory(fake, at), Outcome::Fail(700));
    fake.query_error.set(None);
    assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
}

#[test]
fn a_capture_has_a_reserve_that_is_spare_memory() {
    let fake = unlimited();
    capture(fake);
    let reserve = 16 * GRANULE;
    assert_eq!(
        (fake.physical_bytes(), held(fake, Kind::Spare)),
        (reserve, reserve)
    );
    let before = fake.mappings.borrow().len();
    let at = allocate(fake, 2 * GRANULE);
    assert_eq!(
        fake.mappings.borrow().len(),
        before,
        "nothing is mapped in the capture"
    );
    assert_eq!(held(fake, Kind::Plain), 2 * GRANULE);
    // Freed in the capture, it counts until the capture is over.
    assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    assert_eq!(free_memory(fake, at), Outcome::Fail(INVALID_VALUE));
    assert_eq!(held(fake, Kind::Plain), 2 * GRANULE);
    assert!(
        fake.synchronized.borrow().is_empty(),
        "waiting would invalidate the capture"
    );
    end_capture(fake);
    assert!(spare::reclaim(fake));
    assert_eq!((fake.physical_bytes(), published(fake)), (0, 0));
}

#[test]
fn a_capture_with_half_a_reserve_gets_no_other() {
    let fake = unlimited();
    capture(fake);
    end_capture(fake);
    for _ in 0..2 {
        capture(fake);
        let _at = allocate(fake, 4 * GRANULE);
        end_capture(fake);
    }
    // 16 granules, of which 8 were taken; the next capture fills them up.
    assert_eq!(fake.physical_bytes(), 16 * GRANULE);
    capture(fake);
    assert_eq!(held(fake, Kind::Spare), 8 * GRANULE);
}

#[test]
fn an_allocation_in_a_strict_capture_is_refused_as_the_drivers_own() {
    let fake = unlimited();
    capture(fake);
    fake.allocate_error.set(Some(900));
    assert_eq!(alloc::alloc(fake, GRANULE, &unreached), Outcome::Fail(900));
    fake.allocate_error.set(None);
    let _at = allocate(fake, GRANULE);
}

#[test]
fn small_pieces_allocated_in_a_capture_invalidate_nothing() {
    let fake = unlimited();
    capture(fake);
    fake.capturing.borrow_mut().insert(STREAM);
    let _at = allocate(fake, 100);
    assert_eq!(fake.invalidated.get(), 0);
    fake.create_error.borrow_mut().push_back(NOT_SUPPORTED);
    let _at = allocate(fake, 40 * MIB);
}
