use super::*;
use crate::cuda::INVALID_CONTEXT;
use crate::memory::contexts::{context_destroyed, has_context};
use crate::memory::{info, peers};

const OTHER: Handle = CONTEXT + 0x10;

/// Returns a process under a limit in granules, with contexts that occupy `residue` bytes.
fn with_residue(granules: u64, residue: u64) -> &'static Fake {
    let fake = limited(granules);
    fake.process.set_limits(&Terms {
        on_loss: OnLoss::Open,
        visible_devices: String::new(),
        mps_pipe_directory: String::new(),
        active_thread_hundredths: 10_000,
        mps_memory_limit: 0,
        memory_limit: granules * GRANULE,
        context_residue: residue,
    });
    fake
}

#[test]
fn without_a_context_nothing_is_allocated() {
    let fake = unlimited();
    fake.context.set(0);
    let outcome = alloc::alloc(fake, 100, &unreached);
    assert_eq!(outcome, Outcome::Fail(INVALID_CONTEXT));
    assert!(!has_context(fake));
}

#[test]
fn the_first_context_is_charged_once() {
    let fake = with_residue(32, 3 * MIB);
    let _at = allocate(fake, GRANULE);
    let _at = allocate(fake, GRANULE);
    assert_eq!(held(fake, Kind::Residue), 3 * MIB);
    assert!(has_context(fake));
    assert_eq!(info::held(fake), 2 * GRANULE + 3 * MIB);
}

/// Makes a process one of an exclusive slot, under a limit in granules, with an agent.
fn on_exclusive_slot(granules: u64) -> &'static Fake {
    let fake = Fake::new();
    fake.share_slot_memory(granules * GRANULE);
    fake
}

/// Has the agent grant a claim at the next wait, at which memory may leave.
fn grants(fake: &Fake, seq: u32, claim: u64) {
    fake.at_wait(move |fake| {
        assert!(!fake.process.threads.any_touching(), "memory may leave");
        fake.orders.memory_claim.store(claim, Ordering::Relaxed);
        fake.orders.claim_answered.store(seq, Ordering::Relaxed);
    });
}

#[test]
fn beside_other_pods_a_context_counts_once_the_agent_has_published_what_it_takes() {
    let fake = on_exclusive_slot(32);
    grants(fake, 1, GRANULE);
    let _at = allocate(fake, GRANULE);
    assert_eq!(held(fake, Kind::Residue), 0);
    fake.orders
        .context_residue
        .store(3 * MIB, Ordering::Relaxed);
    grants(fake, 2, 2 * GRANULE);
    grants(fake, 3, 2 * GRANULE + 3 * MIB);
    let _at = allocate(fake, GRANULE);
    assert_eq!(held(fake, Kind::Residue), 3 * MIB);
    assert_eq!(info::held(fake), 2 * GRANULE + 3 * MIB);
    assert!(!fake.process.threads.any_touching());
}

#[test]
fn a_destroyed_context_takes_its_memory_and_its_charge() {
    let fake = with_residue(32, 3 * MIB);
    let _large = allocate(fake, GRANULE);
    let _small = allocate(fake, 100);
    context_destroyed(fake, CONTEXT);
    assert_eq!(held(fake, Kind::Plain), 0);
    assert_eq!(held(fake, Kind::Residue), 0);
    assert!(!has_context(fake));
    assert!(spare::reclaim(fake));
    assert_eq!((fake.physical_bytes(), published(fake)), (0, 0));
}

#[test]
fn memory_of_another_context_stays() {
    let fake = unlimited();
    let _gone = allocate(fake, GRANULE);
    fake.context.set(OTHER);
    let stays = allocate(fake, GRANULE);
    context_destroyed(fake, CONTEXT);
    assert_eq!(fake.physical_bytes(), GRANULE);
    assert_eq!(free_memory(fake, stays), Outcome::Done(SUCCESS));
}

#[test]
fn the_view_is_the_limit_without_the_context() {
    let fake = with_residue(32, 3 * MIB);
    let outcome = info::info(fake, &|| SUCCESS);
    let Outcome::Done(Some(view)) = outcome else {
        panic!("{outcome:?}");
    };
    let total = 32 * GRANULE - 3 * MIB;
    assert_eq!((view.total, view.free), (total, total));
    let _at = allocate(fake, GRANULE);
    assert_eq!(info::view(fake, u64::MAX, u64::MAX).free, total - GRANULE);
    assert_eq!(info::total_of(fake, u64::MAX), total);
    assert_eq!(info::total_of(fake, 5 * MIB), 2 * MIB);
}

#[test]
fn a_failed_query_is_reported_as_the_driver_does() {
    let fake = unlimited();
    assert_eq!(info::info(fake, &|| 201), Outcome::Fail(201));
    assert_eq!(info::info_32(fake, &|| 201), Outcome::Fail(201));
    fake.process.set_active(false);
    assert_eq!(info::total_of(fake, 5), 5);
}

#[test]
fn memory_of_other_processes_is_not_free() {
    let fake = with_residue(32, 0);
    fake.orders
        .memory_others
        .store(8 * GRANULE, Ordering::Relaxed);
    let outcome = info::info_32(fake, &|| SUCCESS);
    let Outcome::Done(Some(view)) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!((view.total, view.free), (32 * GRANULE, 24 * GRANULE));
}

#[test]
fn a_peer_gets_access_to_existing_and_later_memory_until_it_is_disabled() {
    let fake = unlimited();
    let first = allocate(fake, GRANULE);
    // The context of another device uses this one's memory.
    fake.context.set(OTHER);
    assert_eq!(
        peers::enable(fake, &|| SUCCESS, CONTEXT),
        Outcome::Done(SUCCESS)
    );
    let devices = |at| fake.access.borrow().get(&at).map(Vec::len);
    assert_eq!(devices(first), Some(2));
    fake.context.set(CONTEXT);
    let second = allocate(fake, GRANULE);
    assert_eq!(devices(second), Some(2));
    // A free waits for the peer's work as well.
    assert_eq!(free_memory(fake, second), Outcome::Done(SUCCESS));
    assert_eq!(*fake.synchronized.borrow(), [OTHER, CONTEXT]);
    fake.context.set(OTHER);
    assert_eq!(
        peers::disable(fake, &|| SUCCESS, CONTEXT),
        Outcome::Done(SUCCESS)
    );
    fake.context.set(CONTEXT);
    let third = allocate(fake, GRANULE);
    assert_eq!(devices(third), Some(1));
}

#[test]
fn a_refused_peer_gets_no_access() {
    let fake = unlimited();
    let at = allocate(fake, GRANULE);
    fake.context.set(OTHER);
    assert_eq!(peers::enable(fake, &|| 704, CONTEXT), Outcome::Done(704));
    assert_eq!(fake.access.borrow().get(&at).map(Vec::len), Some(1));
}

#[test]
fn the_permissions_of_a_destroyed_peer_end() {
    let fake = unlimited();
    let at = allocate(fake, GRANULE);
    fake.context.set(OTHER);
    let _enabled = peers::enable(fake, &|| SUCCESS, CONTEXT);
    fake.context.set(CONTEXT);
    context_destroyed(fake, OTHER);
    assert_eq!(free_memory(fake, at), Outcome::Done(SUCCESS));
    assert_eq!(*fake.synchronized.borrow(), [CONTEXT]);
}
