use preload_state::streams::DefaultStream;

use super::*;
use crate::capture::{begin, end};
use crate::fake::{POOL, STREAM};
use crate::memory::measure::refresh;
use crate::memory::pools::{add_node, alloc, alloc_from, create, destroy, free_async, trimmed};
use crate::outcome::Reason;

/// Returns a process under a limit in granules with an empty default pool.
fn with_pool(granules: u64) -> &'static Fake {
    let fake = limited(granules);
    fake.pools.borrow_mut().insert(POOL, (0, 0));
    fake
}

/// A call of the driver by which the pool grows to these bytes reserved and used.
fn grows(
    fake: &'static Fake,
    pool: Handle,
    reserved: u64,
    used: u64,
) -> impl Fn() -> Result<Address, Code> {
    move || {
        fake.pools.borrow_mut().insert(pool, (reserved, used));
        Ok(0x77)
    }
}

#[test]
fn a_pool_counts_with_what_it_reserves() {
    let fake = with_pool(0);
    let call = grows(fake, POOL, 32 * MIB, MIB);
    assert_eq!(alloc(fake, MIB, STREAM, &call), Outcome::Done(0x77));
    assert_eq!(held(fake, Kind::Pool), 32 * MIB);
    // What it keeps after a free counts until it is trimmed.
    fake.pools.borrow_mut().insert(POOL, (32 * MIB, 0));
    let freed = free_async(fake, &|| SUCCESS, 0x77);
    assert_eq!(
        (freed, held(fake, Kind::Pool)),
        (Outcome::Done(SUCCESS), 32 * MIB)
    );
    assert!(spare::reclaim(fake));
    assert_eq!(held(fake, Kind::Pool), 0);
}

#[test]
fn growth_beyond_the_limit_is_undone() {
    let fake = with_pool(8);
    let call = grows(fake, POOL, 32 * MIB, MIB);
    assert_eq!(
        alloc(fake, MIB, STREAM, &call),
        Outcome::Fail(OUT_OF_MEMORY)
    );
    assert_eq!(*fake.freed_async.borrow(), [0x77]);
    assert_eq!(fake.facts.refused_allocations.load(Ordering::Relaxed), 1);
}

#[test]
fn an_allocation_without_room_does_not_reach_the_driver() {
    let fake = with_pool(8);
    let outcome = alloc(fake, 9 * GRANULE, STREAM, &unreached);
    assert_eq!(outcome, Outcome::Fail(OUT_OF_MEMORY));
}

#[test]
fn unused_memory_of_pools_makes_room() {
    let fake = with_pool(8);
    fake.pools.borrow_mut().insert(POOL + 1, (8 * GRANULE, 0));
    assert_eq!(
        create(fake, &|| Ok(Some(POOL + 1))),
        Outcome::Done(Some(POOL + 1))
    );
    let call = grows(fake, POOL, 2 * GRANULE, 2 * GRANULE);
    assert_eq!(alloc(fake, 2 * GRANULE, STREAM, &call), Outcome::Done(0x77));
    assert_eq!(held(fake, Kind::Pool), 2 * GRANULE);
}

#[test]
fn a_pool_that_the_driver_does_not_know_is_its_to_report() {
    let fake = with_pool(8);
    let outcome = alloc_from(fake, MIB, 0xbad, STREAM, &|| Err(1));
    assert_eq!(outcome, Outcome::Fail(1));
    assert_eq!(held(fake, Kind::Pool), 0);
}

#[test]
fn an_allocation_in_a_capture_becomes_a_node() {
    let fake = with_pool(0);
    let _begun = begin(fake, &|| SUCCESS, STREAM, DefaultStream::Legacy, || {});
    assert_eq!(alloc(fake, MIB, STREAM, &|| Ok(0x99)), Outcome::Done(0x99));
    assert_eq!(held(fake, Kind::Graph), 0);
    let _ended = end(fake, &|| SUCCESS);
    // A graph that runs reserves memory, which is measured.
    fake.graph_bytes.set(5 * MIB);
    refresh(fake);
    assert_eq!(held(fake, Kind::Graph), 5 * MIB);
    fake.graph_bytes.set(0);
    assert_eq!(trimmed(fake, &|| SUCCESS), Outcome::Done(SUCCESS));
    assert_eq!(held(fake, Kind::Graph), 0);
}

#[test]
fn a_node_added_by_hand_counts_as_well() {
    let fake = with_pool(0);
    fake.graph_bytes.set(MIB);
    assert_eq!(add_node(fake, &|| 1), Outcome::Done(1));
    assert_eq!(held(fake, Kind::Graph), 0);
    assert_eq!(add_node(fake, &|| SUCCESS), Outcome::Done(SUCCESS));
    assert_eq!(held(fake, Kind::Graph), MIB);
}

#[test]
fn a_destroyed_pool_counts_no_more() {
    let fake = with_pool(0);
    fake.pools.borrow_mut().insert(POOL + 1, (MIB, MIB));
    let _created = create(fake, &|| Ok(Some(POOL + 1)));
    refresh(fake);
    assert_eq!(held(fake, Kind::Pool), MIB);
    assert_eq!(destroy(fake, &|| 1, POOL + 1), Outcome::Done(1));
    assert_eq!(destroy(fake, &|| SUCCESS, POOL + 1), Outcome::Done(SUCCESS));
    assert_eq!(held(fake, Kind::Pool), 0);
}

#[test]
fn plain_memory_may_be_freed_in_stream_order() {
    let fake = with_pool(0);
    let at = allocate(fake, GRANULE);
    let freed = free_async(fake, &|| panic!("it is not the driver's"), at);
    assert_eq!((freed, fake.physical_bytes()), (Outcome::Done(SUCCESS), 0));
}

#[test]
fn an_inactive_process_uses_pools_unseen() {
    let fake = with_pool(0);
    fake.process.set_active(false);
    let passed = Outcome::Pass(Reason::Inactive);
    assert_eq!(alloc(fake, 1, STREAM, &unreached), passed);
    assert_eq!(
        free_async(fake, &|| SUCCESS, 1),
        Outcome::Pass(Reason::Inactive)
    );
    assert_eq!(
        destroy(fake, &|| SUCCESS, POOL),
        Outcome::Pass(Reason::Inactive)
    );
    assert_eq!(create(fake, &|| Err(3)), Outcome::Fail(3));
}
