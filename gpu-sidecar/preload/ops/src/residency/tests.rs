use std::sync::atomic::Ordering;

use preload_state::memory::{Access, Properties};
use protocol::page::{Orders, SEALED};

use super::*;
use crate::cuda::{Address, Code, OUT_OF_MEMORY, SUCCESS};
use crate::fake::{CONTEXT, Fake, GRANULE, KERNEL, STREAM};
use crate::memory::{alloc, free, info, program, query};
use crate::outcome::Outcome;
use crate::platform::Driver as _;
use crate::touch;

mod ahead;
mod ajar;
mod extents;
mod staging;

const DRAIN: Duration = Duration::from_secs(1);
/// First address of the host memory.
const HOST: u64 = 1 << 30;

fn unreached<T>() -> Result<T, Code> {
    panic!("the driver's function is not called")
}

fn allocate(fake: &'static Fake, bytes: u64) -> Address {
    match alloc::alloc(fake, bytes, &unreached) {
        Outcome::Done(at) => at,
        other => panic!("{other:?}"),
    }
}

fn free_memory(fake: &'static Fake, at: Address) -> Outcome {
    free::free(fake, &|| panic!("the driver's function is not called"), at)
}

/// Returns a process with host memory of this many granules, and two allocations: of three granules and of a few bytes.
fn process(granules: u64) -> (&'static Fake, Address, Address) {
    let fake = Fake::new();
    add_window(
        fake,
        HostSpan {
            at: HOST,
            bytes: granules * GRANULE,
        },
        true,
    );
    let (large, small) = (allocate(fake, 3 * GRANULE - 7), allocate(fake, 100));
    for (number, at) in granules_of(large, small).into_iter().enumerate() {
        fake.set_granule(at, 100 + number as u64);
    }
    (fake, large, small)
}

/// Returns the memory to the device.
fn back(fake: &'static Fake) -> Result<Transfer, MoveRefusal> {
    restore::restore(fake, |_| assert!(!fake.process.memory_gate.is_open()))
}

fn granules_of(large: Address, small: Address) -> [Address; 4] {
    [large, large + GRANULE, large + 2 * GRANULE, small]
}

fn contents(fake: &Fake, large: Address, small: Address) -> Vec<Option<u64>> {
    let granules = granules_of(large, small).into_iter();
    granules.map(|at| fake.granule_at(at)).collect()
}

fn location(fake: &Fake) -> Residency {
    Residency::from_number(fake.facts.residency.load(Ordering::Relaxed)).unwrap()
}

#[test]
fn memory_leaves_and_returns_with_its_contents() {
    let (fake, large, small) = process(8);
    let moved = evict::evict(fake, DRAIN).unwrap();
    assert_eq!(
        (moved.bytes, moved.copied_bytes),
        (4 * GRANULE, 4 * GRANULE)
    );
    assert_eq!(
        (fake.physical_bytes(), location(fake)),
        (0, Residency::Host)
    );
    assert!(fake.mappings.borrow().is_empty());
    assert!(!fake.process.memory_gate.is_open());
    let back = back(fake).unwrap();
    assert_eq!((back.bytes, back.copied_bytes), (4 * GRANULE, 4 * GRANULE));
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
    assert_eq!(location(fake), Residency::Resident);
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(fake.access.borrow()[&large].len(), 1);
}

#[test]
fn only_what_has_changed_is_copied_again() {
    let (fake, large, small) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    back(fake).unwrap();
    let moved = evict::evict(fake, DRAIN).unwrap();
    assert_eq!((moved.bytes, moved.copied_bytes), (4 * GRANULE, 0));
    back(fake).unwrap();
    let change = || {
        fake.set_granule(large + GRANULE, 7);
        SUCCESS
    };
    let touched = fake.in_other_thread(|| touch::touch(fake, &change));
    assert_eq!(touched, Outcome::Done(SUCCESS));
    assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, GRANULE);
    back(fake).unwrap();
    let expected = [100, 7, 102, 103].map(Some);
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn without_hashes_everything_is_copied() {
    let (fake, large, small) = process(8);
    fake.allocate_error.set(Some(OUT_OF_MEMORY));
    for _ in 0..2 {
        assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, 4 * GRANULE);
        back(fake).unwrap();
    }
    fake.allocate_error.set(None);
    // Nothing is known of the copies.
    assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, 4 * GRANULE);
    back(fake).unwrap();
    assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, 0);
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn a_process_that_is_not_let_compute_on_its_slot_leaves_soon_and_everything_is_copied() {
    let (fake, large, small) = process(8);
    fake.share_slot_memory(0);
    fake.orders.gate.set(3);
    let left = evict::evict(fake, DRAIN).unwrap();
    assert_eq!(left.copied_bytes, 4 * GRANULE);
    let waited = Duration::from_nanos(left.hash_ns);
    assert!(waited <= Duration::from_millis(50), "{waited:?}");
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn a_refused_eviction_leaves_everything_as_it_was() {
    let refused = |prepare: &dyn Fn(&'static Fake), refusal| {
        let (fake, large, small) = process(8);
        prepare(fake);
        assert_eq!(evict::evict(fake, DRAIN), Err(refusal));
        let expected: Vec<_> = (100..104).map(Some).collect();
        assert_eq!(contents(fake, large, small), expected);
        assert!(fake.process.memory_gate.is_open(), "{refusal:?}");
        assert_ne!(location(fake), Residency::Closing);
        fake
    };
    refused(
        &|fake| fake.process.captures.begin(),
        MoveRefusal::Capturing,
    );
    let sticky = |fake: &'static Fake| fake.synchronize_error.borrow_mut().push_back(700);
    refused(&sticky, MoveRefusal::StickyError);
    let copy = |fake: &'static Fake| fake.copy_error.borrow_mut().push_back(700);
    let fake = refused(&copy, MoveRefusal::StickyError);
    assert_eq!(fake.facts.last_error.load(Ordering::Relaxed), 700);
    // The copy that failed is not taken for one.
    let moved = evict::evict(fake, DRAIN).unwrap();
    assert_eq!(moved.copied_bytes, 4 * GRANULE);
}

#[test]
fn memory_that_is_shared_with_other_processes_stays() {
    let (fake, large, _) = process(8);
    let Outcome::Done(_ticket) = memory::ipc::get(fake, large) else {
        panic!("the memory can be exported");
    };
    assert_eq!(evict::evict(fake, DRAIN), Err(MoveRefusal::Exported));
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(free_memory(fake, large), Outcome::Done(SUCCESS));
    evict::evict(fake, DRAIN).unwrap();
}

#[test]
fn an_eviction_without_room_on_the_host_keeps_nothing_there() {
    let (fake, large, small) = process(3);
    let refused = evict::evict(fake, DRAIN);
    assert_eq!(refused, Err(MoveRefusal::NoMemory));
    add_window(
        fake,
        HostSpan {
            at: 2 * HOST,
            bytes: GRANULE,
        },
        false,
    );
    evict::evict(fake, DRAIN).unwrap();
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn work_that_does_not_end_refuses_the_eviction() {
    let (fake, _, _) = process(8);
    let launched = crate::launch::launch(
        fake,
        &|| SUCCESS,
        STREAM,
        preload_state::streams::DefaultStream::Legacy,
        KERNEL,
        crate::launch::Kind::Kernel,
    );
    assert_eq!(launched, Outcome::Done(SUCCESS));
    fake.run(STREAM, 10_000_000_000);
    let event_at = fake.now.get() + 10_000_000_000;
    for at in fake.events.borrow_mut().values_mut() {
        *at = event_at;
    }
    assert_eq!(evict::evict(fake, DRAIN), Err(MoveRefusal::Draining));
    assert!(fake.process.memory_gate.is_open());
    fake.now.set(event_at + 1);
    evict::evict(fake, DRAIN).unwrap();
}

#[test]
fn memory_that_cannot_be_unmapped_returns_all_that_has_left() {
    let (fake, large, small) = process(8);
    fake.unmap_error.borrow_mut().push_back(700);
    assert_eq!(evict::evict(fake, DRAIN), Err(MoveRefusal::StickyError));
    assert_eq!(location(fake), Residency::Resident);
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn a_restore_waits_for_memory_that_another_process_releases() {
    let (fake, large, small) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    let total = fake.total.replace(2 * GRANULE);
    fake.at_wait(|_| {});
    fake.at_wait(move |fake| fake.total.set(total));
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn a_restore_without_memory_leaves_it_on_the_host() {
    let (fake, large, small) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    let total = fake.total.replace(2 * GRANULE);
    let begin = fake.now.get();
    assert_eq!(back(fake), Err(MoveRefusal::NoMemory));
    assert!(fake.now.get() - begin >= 2_000_000_000);
    assert_eq!(
        (fake.physical_bytes(), location(fake)),
        (0, Residency::Host)
    );
    assert!(!fake.process.memory_gate.is_open());
    fake.total.set(total);
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn a_failed_copy_back_leaves_the_memory_on_the_host() {
    let (fake, large, small) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    fake.copy_error.borrow_mut().push_back(999);
    assert_eq!(back(fake), Err(MoveRefusal::StickyError));
    assert_eq!(
        (fake.physical_bytes(), location(fake)),
        (0, Residency::Host)
    );
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn other_work_that_does_not_end_refuses_the_eviction_and_ends_a_seal() {
    let (fake, _, _) = process(8);
    fake.is_working.set(true);
    assert_eq!(evict::evict(fake, DRAIN), Err(MoveRefusal::Draining));
    assert!(fake.process.memory_gate.is_open());
    seal::seal(fake, &fake.orders);
    assert_eq!(fake.facts.sealed.load(Ordering::Relaxed), 0);
    fake.is_working.set(false);
    evict::evict(fake, DRAIN).unwrap();
}

#[test]
fn a_device_that_is_gone_keeps_no_thread_from_its_error() {
    let (fake, _, _) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    fake.copy_error.borrow_mut().push_back(719);
    fake.synchronize_error.borrow_mut().push_back(719);
    assert_eq!(back(fake), Err(MoveRefusal::StickyError));
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(location(fake), Residency::Faulted);
    assert_eq!(fake.physical_bytes(), 0);
    // It cannot leave again, and stays so.
    assert_eq!(evict::evict(fake, DRAIN), Err(MoveRefusal::StickyError));
    let mut mover = Mover::new();
    step(fake, &mut mover);
    assert_eq!(location(fake), Residency::Faulted);
    assert!(fake.process.memory_gate.is_open());
}

#[test]
fn memory_that_is_away_can_be_freed_and_examined() {
    let (fake, large, small) = process(8);
    let before = info::view(fake, 64 * GRANULE - fake.physical_bytes(), 64 * GRANULE);
    evict::evict(fake, DRAIN).unwrap();
    let away = info::view(fake, 64 * GRANULE - fake.physical_bytes(), 64 * GRANULE);
    assert_eq!((away.free, away.total), (before.free, before.total));
    let never = || panic!("the driver does not know the memory");
    let range = query::address_range(fake, large + 9, &never, &never);
    assert_eq!(range, Outcome::Done((large, 3 * GRANULE - 7)));
    assert_eq!(free_memory(fake, large), Outcome::Done(SUCCESS));
    back(fake).unwrap();
    assert_eq!(fake.physical_bytes(), GRANULE);
    assert_eq!(fake.granule_at(small), Some(103));
    // Its place on the host is free again.
    let next = allocate(fake, 7 * GRANULE);
    fake.set_granule(next, 5);
    evict::evict(fake, DRAIN).unwrap();
}

#[test]
fn a_destroyed_context_takes_its_memory_from_the_host() {
    let (fake, _, _) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    memory::contexts::context_destroyed(fake, CONTEXT);
    fake.destroyed.borrow_mut().insert(CONTEXT);
    back(fake).unwrap();
    assert_eq!(location(fake), Residency::Resident);
    // The slab that is kept for the allocations of other contexts is mapped again.
    let other = CONTEXT + 1;
    fake.context.set(other);
    let at = allocate(fake, 100);
    assert!(fake.granule_at(at).is_some());
}

#[test]
fn a_slab_that_was_emptied_while_it_was_away_can_be_used_again() {
    let (fake, large, small) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    for at in [large, small] {
        assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    }
    back(fake).unwrap();
    let at = allocate(fake, 100);
    assert!(fake.granule_at(at).is_some());
}

#[test]
fn memory_shared_just_before_the_gate_was_shut_stays() {
    let (fake, large, small) = process(8);
    fake.before_barrier(0, move |fake| {
        // The call had passed the gate.
        open_for(fake, || {
            let shared = memory::ipc::get(fake, large);
            assert!(matches!(shared, Outcome::Done(_)));
        });
    });
    assert_eq!(evict::evict(fake, DRAIN), Err(MoveRefusal::Exported));
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
    assert!(fake.process.memory_gate.is_open());
}

/// Runs a call that has passed the gate before it was shut.
fn open_for(fake: &'static Fake, call: impl FnOnce()) {
    fake.process.memory_gate.open();
    call();
    fake.process.memory_gate.shut();
}

#[test]
fn an_eviction_that_can_neither_end_nor_be_undone_is_restored_later() {
    let (fake, large, small) = process(8);
    // One block leaves; the next cannot be unmapped, and nothing can be created.
    fake.unmap_error.borrow_mut().push_back(SUCCESS);
    fake.unmap_error.borrow_mut().push_back(700);
    fake.create_error.borrow_mut().push_back(999);
    assert_eq!(evict::evict(fake, DRAIN), Err(MoveRefusal::StickyError));
    assert_eq!(location(fake), Residency::Host);
    assert!(!fake.process.memory_gate.is_open());
    back(fake).unwrap();
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}

#[test]
fn mappings_without_access_of_their_device_stay() {
    let (fake, _, _) = process(16);
    let properties = Properties::plain(0, false);
    let created = program::create(fake, GRANULE, &properties, &|| {
        fake.create_memory(&properties, GRANULE)
    });
    let Outcome::Done(handle) = created else {
        panic!("created");
    };
    let at = fake.reserve_addresses(GRANULE, GRANULE).unwrap();
    let call = || match fake.map(at, GRANULE, handle) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    };
    let mapped = program::map(fake, &call, at, GRANULE, handle);
    assert_eq!(mapped, Outcome::Done(SUCCESS));
    // Its access has not been set yet: the kernel that hashes could not read it.
    let moved = evict::evict(fake, DRAIN).unwrap();
    assert_eq!(moved.bytes, 4 * GRANULE);
    assert_eq!(fake.physical_bytes(), GRANULE);
    back(fake).unwrap();
}

#[test]
fn memory_whose_handle_is_kept_returns_before_it_is_unmapped() {
    let (fake, _, _) = process(16);
    let mine = own(fake, 1);
    fake.set_granule(mine.at, 77);
    evict::evict(fake, DRAIN).unwrap();
    fake.at_wait(|fake| {
        back(fake).unwrap();
    });
    unmap(fake, mine.at, GRANULE);
    let next = fake.reserve_addresses(GRANULE, GRANULE).unwrap();
    let never = || panic!("the driver does not know the handle");
    let mapped = program::map(fake, &never, next, GRANULE, mine.handle);
    assert_eq!(mapped, Outcome::Done(SUCCESS));
    assert_eq!(fake.granule_at(next), Some(77));
}

#[test]
fn an_allocation_and_a_copy_wait_for_the_memory_and_ask_for_it() {
    let (fake, large, _) = process(8);
    evict::evict(fake, DRAIN).unwrap();
    fake.take_sent();
    fake.at_wait(|_| {});
    fake.at_wait(|fake| {
        back(fake).unwrap();
    });
    let touched = touch::touch(fake, &|| SUCCESS);
    assert_eq!(touched, Outcome::Done(SUCCESS));
    assert_eq!(fake.take_sent(), [const { FromProcess::MemoryWanted }; 2]);
    assert_eq!(fake.granule_at(large), Some(100));
    evict::evict(fake, DRAIN).unwrap();
    fake.at_wait(|fake| {
        back(fake).unwrap();
    });
    let _more = allocate(fake, GRANULE);
}

/// Carries out what the mover finds to do.
fn order(fake: &'static Fake, mover: &mut Mover, wanted: Residency, seq: u32) -> MoveReport {
    order_number(fake, mover, wanted as u32, seq)
}

fn order_number(fake: &'static Fake, mover: &mut Mover, wanted: u32, seq: u32) -> MoveReport {
    let orders: &Orders = &fake.orders;
    orders.residency_wanted.store(wanted, Ordering::Relaxed);
    orders.drain_ms.store(1_000, Ordering::Relaxed);
    orders.order_seq.store(seq, Ordering::Release);
    fake.take_sent();
    step(fake, mover);
    assert_eq!(fake.facts.done_seq.load(Ordering::Relaxed), seq);
    match fake.take_sent()[..] {
        [FromProcess::Moved(report)] => report,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn a_model_that_was_sealed_by_order_leaves_without_a_kernel_and_a_copy() {
    let (fake, _, _) = process(8);
    let mut mover = Mover::new();
    step(fake, &mut mover);
    let report = order_number(fake, &mut mover, SEALED, 1);
    assert_eq!(
        (report.residency, report.refusal),
        (Residency::Resident, None)
    );
    assert_eq!(fake.facts.sealed.load(Ordering::Relaxed), 1);
    // The gate of tokens is shut, so that no kernel of its hashes can run.
    fake.orders.gate.set(3);
    let left = order(fake, &mut mover, Residency::Host, 2);
    assert_eq!((left.residency, left.refusal), (Residency::Host, None));
    assert_eq!(left.transfer.copied_bytes, 0);
    // What is away is not sealed, and the order is answered all the same.
    let away = order_number(fake, &mut mover, SEALED, 3);
    assert_eq!((away.residency, away.refusal), (Residency::Host, None));
}

#[test]
fn nothing_of_the_hashes_stays_on_the_device() {
    let (fake, large, _) = process(8);
    let mut mover = Mover::new();
    step(fake, &mut mover);
    let left = || {
        let freed = fake.freed.borrow();
        let all = fake.allocated.borrow();
        let left = all.iter().filter(|at| !freed.contains(at)).count();
        (all.len(), left)
    };
    order_number(fake, &mut mover, SEALED, 1);
    let (made, rest) = left();
    assert_eq!(rest, 0, "of a seal");
    fake.set_granule(large, 77);
    drop(fake.process.threads.begin_touch(None));
    order(fake, &mut mover, Residency::Host, 2);
    assert_eq!(left(), (made + 1, 0), "of an eviction");
    order(fake, &mut mover, Residency::Resident, 3);
    assert_eq!(fake.granule_at(large), Some(77));
}

#[test]
fn the_mover_registers_windows_and_answers_orders() {
    let (fake, _, _) = process(8);
    let mut mover = Mover::new();
    step(fake, &mut mover);
    assert_eq!(fake.registered.borrow().len(), 1);
    let report = order(fake, &mut mover, Residency::Host, 1);
    assert_eq!((report.seq, report.refusal), (1, None));
    assert_eq!(report.residency, Residency::Host);
    assert_eq!(report.transfer.bytes, 4 * GRANULE);
    let again = order(fake, &mut mover, Residency::Host, 2);
    assert_eq!((again.refusal, again.transfer), (None, Transfer::default()));
    let back = order(fake, &mut mover, Residency::Resident, 3);
    assert_eq!(
        (back.residency, back.transfer.bytes),
        (Residency::Resident, 4 * GRANULE)
    );
    fake.process.captures.begin();
    let refused = order(fake, &mut mover, Residency::Host, 4);
    assert_eq!(refused.refusal, Some(MoveRefusal::Capturing));
    assert_eq!(refused.residency, Residency::Resident);
}

#[test]
fn the_mover_releases_windows_beyond_what_may_be_registered() {
    let (fake, _, _) = process(8);
    let mut mover = Mover::new();
    step(fake, &mut mover);
    assert_eq!(fake.registered.borrow().len(), 1);
    let kept = || fake.facts().pinned_max.load(Ordering::Relaxed);
    let pinned = || fake.process.pinned_bytes.load(Ordering::Relaxed);
    assert_eq!((kept(), pinned()), (0, 8 * GRANULE), "no limit is stated");
    fake.orders.pinned_max.store(1, Ordering::Relaxed);
    while kept() == 0 {
        step(fake, &mut mover);
    }
    assert_eq!((kept(), pinned()), (1, 0));
    assert!(fake.registered.borrow().is_empty());
    // It moves all the same.
    let report = order(fake, &mut mover, Residency::Host, 1);
    assert_eq!(report.refusal, None);
    let limit = 8 * GRANULE + 1;
    fake.orders.pinned_max.store(limit, Ordering::Relaxed);
    for _ in 0..4 {
        step(fake, &mut mover);
    }
    assert_eq!((kept(), fake.registered.borrow().len()), (limit, 1));
}

#[test]
fn the_mover_requests_host_memory_for_what_could_move() {
    let fake = Fake::new();
    let _at = allocate(fake, 3 * GRANULE);
    fake.take_sent();
    let mut mover = Mover::new();
    step(fake, &mut mover);
    let bytes = 3 * GRANULE;
    assert_eq!(fake.take_sent(), [FromProcess::WindowsWanted { bytes }]);
    step(fake, &mut mover);
    assert!(fake.take_sent().is_empty(), "it sleeps");
}

/// Memory that the program has created and mapped itself.
struct Own {
    handle: u64,
    at: Address,
}

/// Creates memory of this many granules and maps it at addresses of the program's.
fn own(fake: &'static Fake, granules: u64) -> Own {
    own_with(fake, granules, &[Access::full(0), Access::full(3)])
}

/// As [`own`], with this access.
fn own_with(fake: &'static Fake, granules: u64, access: &[Access]) -> Own {
    let bytes = granules * GRANULE;
    let properties = Properties::plain(0, false);
    let Outcome::Done(handle) = program::create(fake, bytes, &properties, &|| {
        fake.create_memory(&properties, bytes)
    }) else {
        panic!("created");
    };
    let at = fake.reserve_addresses(bytes, GRANULE).unwrap();
    map_with(fake, at, bytes, handle, access);
    Own { handle, at }
}

fn map(fake: &'static Fake, at: Address, bytes: u64, handle: u64) {
    map_with(fake, at, bytes, handle, &[Access::full(0), Access::full(3)]);
}

fn map_with(fake: &'static Fake, at: Address, bytes: u64, handle: u64, access: &[Access]) {
    let call = || match fake.map(at, bytes, handle) {
        Ok(()) => SUCCESS,
        Err(code) => code,
    };
    let mapped = program::map(fake, &call, at, bytes, handle);
    assert_eq!(mapped, Outcome::Done(SUCCESS));
    let set = program::set_access(fake, &|| SUCCESS, at, bytes, access);
    assert_eq!(set, Outcome::Done(SUCCESS));
}

fn release(fake: &'static Fake, handle: u64) {
    let call = || {
        fake.release_memory(handle);
        SUCCESS
    };
    let released = program::release(fake, &call, handle);
    assert_eq!(released, Outcome::Done(SUCCESS));
}

fn unmap(fake: &'static Fake, at: Address, bytes: u64) {
    let call = || {
        fake.unmap(at, bytes).unwrap();
        SUCCESS
    };
    let unmapped = program::unmap(fake, &call, at, bytes);
    assert_eq!(unmapped, Outcome::Done(SUCCESS));
}

#[test]
fn the_programs_own_mappings_leave_and_return_under_the_same_handle() {
    let (fake, _, _) = process(16);
    let mine = own(fake, 3);
    // A second mapping of the same memory.
    let alias = fake.reserve_addresses(3 * GRANULE, GRANULE).unwrap();
    map(fake, alias, 3 * GRANULE, mine.handle);
    for number in 0..3 {
        fake.set_granule(mine.at + number * GRANULE, 50 + number);
    }
    let moved = evict::evict(fake, DRAIN).unwrap();
    assert_eq!(
        (moved.bytes, moved.copied_bytes),
        (7 * GRANULE, 7 * GRANULE)
    );
    assert_eq!(fake.physical_bytes(), 0);
    assert!(fake.mappings.borrow().is_empty());
    back(fake).unwrap();
    for number in 0..3 {
        let at = number * GRANULE;
        assert_eq!(fake.granule_at(mine.at + at), Some(50 + number));
        assert_eq!(fake.granule_at(alias + at), Some(50 + number));
    }
    let access = fake.access.borrow()[&mine.at].clone();
    assert_eq!(access, [Access::full(0), Access::full(3)]);
    assert_eq!(evict::evict(fake, DRAIN).unwrap().copied_bytes, 0);
    back(fake).unwrap();
    // The program goes on with the handle it knows: a third mapping, the properties, an export.
    let third = fake.reserve_addresses(3 * GRANULE, GRANULE).unwrap();
    let call = || panic!("the driver does not know the handle");
    let mapped = program::map(fake, &call, third, 3 * GRANULE, mine.handle);
    assert_eq!(mapped, Outcome::Done(SUCCESS));
    assert_eq!(fake.granule_at(third), Some(50));
    assert!(matches!(
        program::properties(fake, mine.handle),
        Outcome::Done(_)
    ));
    release(fake, mine.handle);
    for at in [mine.at, alias, third] {
        unmap(fake, at, 3 * GRANULE);
    }
    assert_eq!(fake.physical_bytes(), 4 * GRANULE);
}

#[test]
fn memory_of_the_program_is_given_up_while_it_is_away() {
    let (fake, _, _) = process(16);
    let (one, two) = (own(fake, 2), own(fake, 1));
    release(fake, two.handle);
    evict::evict(fake, DRAIN).unwrap();
    // Neither call reaches the driver.
    let never = || panic!("the driver does not know it");
    let released = program::release(fake, &never, one.handle);
    assert_eq!(released, Outcome::Done(SUCCESS));
    let unmapped = program::unmap(fake, &never, one.at, 2 * GRANULE);
    assert_eq!(unmapped, Outcome::Done(SUCCESS));
    let back = back(fake).unwrap();
    assert_eq!(back.bytes, 5 * GRANULE);
    assert_eq!(fake.physical_bytes(), 5 * GRANULE);
    unmap(fake, two.at, GRANULE);
    assert_eq!(fake.physical_bytes(), 4 * GRANULE);
}

#[test]
fn memory_of_the_program_that_others_may_know_stays() {
    let refused = |prepare: &dyn Fn(&'static Fake, u64), refusal| {
        let (fake, _, _) = process(16);
        let mine = own(fake, 1);
        prepare(fake, mine.handle);
        assert_eq!(evict::evict(fake, DRAIN), Err(refusal));
        assert!(fake.process.memory_gate.is_open());
    };
    let export = |fake: &'static Fake, handle| {
        let exported = program::export(fake, &|| SUCCESS, handle, |_file| {});
        assert_eq!(exported, Outcome::Done(SUCCESS));
    };
    refused(&export, MoveRefusal::Exported);
    let import = |fake: &'static Fake, _| {
        let imported = program::import(fake, &|| Ok(Some(0x999)));
        assert_eq!(imported, Outcome::Done(Some(0x999)));
    };
    refused(&import, MoveRefusal::Imported);
    let bind = |fake: &'static Fake, _| {
        let bound = program::bind(fake, &|| SUCCESS);
        assert_eq!(bound, Outcome::Done(SUCCESS));
    };
    refused(&bind, MoveRefusal::Collective);
}

#[test]
fn a_restore_that_fails_amid_the_programs_memory_leaves_all_of_it_away() {
    let (fake, large, small) = process(16);
    let mine = own(fake, 2);
    evict::evict(fake, DRAIN).unwrap();
    // The last block cannot be mapped.
    fake.map_error.borrow_mut().push_back(OUT_OF_MEMORY);
    fake.at_wait(|fake| fake.map_error.borrow_mut().push_back(999));
    assert_eq!(back(fake), Err(MoveRefusal::StickyError));
    assert_eq!(fake.physical_bytes(), 0);
    assert!(fake.mappings.borrow().is_empty());
    back(fake).unwrap();
    assert_eq!(fake.granule_at(mine.at), Some(0));
    let expected: Vec<_> = (100..104).map(Some).collect();
    assert_eq!(contents(fake, large, small), expected);
}
