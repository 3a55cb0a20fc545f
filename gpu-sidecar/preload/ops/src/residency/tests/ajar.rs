//! Programs that compute amid a restore.

use super::*;
use crate::launch::{Arguments, Kind, launch_with};
use crate::memory::moves;
use crate::touch::Use;
use preload_state::memory::Kind as Kinds;
use preload_state::streams::DefaultStream;

/// A list of arguments.
const LIST: Arguments = Arguments {
    list: 0x1000,
    extra: 0,
};
/// An executable graph.
const GRAPH: Handle = 0x6000;

/// Returns a process whose restores are streamed, with host memory.
fn streaming() -> &'static Fake {
    let fake = Fake::new();
    fake.orders.streams_restores.store(1, Ordering::Relaxed);
    let window = HostSpan {
        at: HOST,
        bytes: 64 * GRANULE,
    };
    add_window(fake, window, true);
    fake
}

/// Returns a process whose restores are streamed, with four allocations of eight granules each, which are away.
fn away() -> (&'static Fake, Vec<Address>) {
    let fake = streaming();
    let blocks: Vec<Address> = (0..4).map(|_| allocate(fake, 8 * GRANULE)).collect();
    for (number, at) in (0..).zip(&blocks) {
        for granule in 0..8 {
            fake.set_granule(at + granule * GRANULE, 100 * number + granule);
        }
    }
    evict::evict(fake, DRAIN).unwrap();
    while search::search_some(fake) {}
    (fake, blocks)
}

/// Launches a kernel with these words as arguments, in a thread of its own.
fn launch(fake: &'static Fake, words: &[u64]) -> Outcome {
    fake.arguments
        .borrow_mut()
        .insert(LIST.list, words.to_vec());
    fake.in_other_thread(|| {
        launch_with(
            fake,
            &|| SUCCESS,
            STREAM,
            DefaultStream::Legacy,
            KERNEL,
            Kind::Kernel,
            LIST,
        )
    })
}

fn launch_count(fake: &Fake) -> u64 {
    fake.facts.launches.0.load(Ordering::Relaxed)
}

/// Returns whether a launch with these words as arguments would run now.
fn runs(fake: &'static Fake, words: &[u64]) -> bool {
    fake.arguments
        .borrow_mut()
        .insert(LIST.list, words.to_vec());
    let mut needed = None;
    restoring::is_there(fake, &mut needed, || {
        restoring::of_launch(fake, KERNEL, Kind::Kernel, LIST)
    })
}

/// Restores, and runs `f` when this number of groups is there.
fn restore_and(
    fake: &'static Fake,
    groups: u32,
    f: impl FnOnce(&'static Fake) + 'static,
) -> Result<Transfer, MoveRefusal> {
    fake.before_event_wait(groups, f);
    restore::restore(fake, |_| ())
}

#[test]
fn poisoned_memory_has_every_bit_set_before_anything_returns() {
    let (fake, blocks) = away();
    restore::restore(fake, |_| ()).unwrap();
    assert_eq!(fake.poisoned.get(), 0);
    restoring::end_observation(fake);
    let mapped = own_with(fake, 2, &[Access::full(0)]);
    fake.set_granule(mapped.at, 7);
    fake.set_granule(mapped.at + GRANULE, 8);
    evict::evict(fake, DRAIN).unwrap();
    let poisoned = Streaming::Poisoned as u32;
    fake.orders
        .streams_restores
        .store(poisoned, Ordering::Relaxed);
    fake.poisoned_at_first_copy.set(None);
    let moved = restore::restore(fake, |_| ()).unwrap();
    assert_eq!(fake.poisoned.get(), moved.bytes);
    assert_eq!(fake.poisoned_at_first_copy.get(), Some(moved.bytes));
    let blocks = blocks.iter().map(|at| at + 3 * GRANULE);
    let contents = blocks
        .chain([mapped.at, mapped.at + GRANULE])
        .map(|at| fake.granule_at(at));
    let expected = [3, 103, 203, 303, 7, 8].map(Some);
    assert_eq!(contents.collect::<Vec<_>>(), expected);
}

#[test]
fn mappings_that_other_devices_use_are_not_streamed() {
    let (fake, blocks) = away();
    restore::restore(fake, |_| ()).unwrap();
    restoring::end_observation(fake);
    let _mapped = own(fake, 2);
    evict::evict(fake, DRAIN).unwrap();
    restore_and(fake, 0, |_| panic!("the gate is ajar")).unwrap();
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(fake.granule_at(blocks[1]), Some(100));
}

#[test]
fn a_launch_runs_once_what_its_arguments_name_is_there() {
    let (fake, blocks) = away();
    let first = blocks[0];
    let launched = launch_count(fake);
    let moved = restore_and(fake, 2, move |fake| {
        assert!(fake.process.memory_gate.is_ajar());
        assert_eq!(fake.granule_at(first + 7 * GRANULE), Some(7));
        let before = fake.waits.borrow().len();
        assert_eq!(launch(fake, &[first + 12, 5]), Outcome::Done(SUCCESS));
        assert_eq!(fake.waits.borrow().len(), before, "it does not wait");
    });
    assert_eq!(moved.unwrap().copied_bytes, 32 * GRANULE);
    assert_eq!(launch_count(fake), launched + 1);
    assert!(fake.process.memory_gate.is_ajar());
    restoring::end_observation(fake);
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(location(fake), Residency::Resident);
    let last = fake.granule_at(blocks[3] + 7 * GRANULE);
    assert_eq!(last, Some(307));
}

#[test]
fn small_memory_does_not_wait_for_large_memory_that_comes_after_it() {
    let fake = streaming();
    // What is used first is sent first.
    let sizes = [1, 1, 10, 1, 1];
    let blocks = sizes.map(|granules| allocate(fake, granules * GRANULE));
    evict::evict(fake, DRAIN).unwrap();
    while search::search_some(fake) {}
    let there = |count: usize| {
        move |fake: &'static Fake| {
            let runs: Vec<bool> = blocks.iter().map(|at| runs(fake, &[*at])).collect();
            assert_eq!(runs, [0, 1, 2, 3, 4].map(|number| number < count));
        }
    };
    // Of the groups the first has one granule, the second would have two.
    for (groups, count) in [(1, 1), (2, 2), (3, 3), (4, 5)] {
        restore_and(fake, groups, there(count)).unwrap();
        restoring::end_observation(fake);
        evict::evict(fake, DRAIN).unwrap();
        while search::search_some(fake) {}
    }
}

#[test]
fn unnamed_or_followed_memory_makes_a_launch_wait_for_the_last_group() {
    let (fake, blocks) = away();
    let (first, last) = (blocks[0], blocks[3]);
    restore_and(fake, 2, move |fake| {
        assert!(runs(fake, &[first]));
        for words in [&[first, last][..], &[], &[7], &[first, 1 << 46]] {
            assert!(!runs(fake, words), "{words:?}");
        }
        fake.arguments.borrow_mut().clear();
        let mut needed = None;
        let there = restoring::is_there(fake, &mut needed, || {
            restoring::of_launch(fake, KERNEL, Kind::Kernel, LIST)
        });
        assert!(!there, "unknown arguments");
        let range = |at| Use::Range {
            at,
            bytes: 8,
            source: 0,
            is_deferred: true,
        };
        let is_there = |use_| {
            let mut needed = None;
            restoring::is_there(fake, &mut needed, || restoring::of_touch(fake, use_))
        };
        assert!(is_there(range(first)));
        assert!(!is_there(range(last)));
        assert!(!is_there(Use::Anything));
    })
    .unwrap();
}

#[test]
fn a_copy_that_holds_an_address_makes_its_block_one_that_may_be_followed() {
    let fake = streaming();
    let (table, other) = (allocate(fake, 8 * GRANULE), allocate(fake, 8 * GRANULE));
    fake.set_granule(table + GRANULE, other + 4);
    evict::evict(fake, DRAIN).unwrap();
    assert!(search::search_some(fake));
    assert!(!search::search_some(fake), "once");
    let keys: Vec<bool> = moves(fake).addresses.values().copied().collect();
    assert_eq!(keys, [true, false]);
    restore_and(fake, 1, move |fake| {
        assert!(!runs(fake, &[table]));
    })
    .unwrap();
    // Now the program copies an address into a block that had none.
    evict::evict(fake, DRAIN).unwrap();
    while search::search_some(fake) {}
    fake.host_contents.borrow_mut().insert(64, table);
    moves(fake).order = vec![other];
    restore_and(fake, 1, move |fake| {
        assert!(runs(fake, &[other]));
        copy(fake, other, 8);
        assert!(!runs(fake, &[other]));
    })
    .unwrap();
}

/// Copies host memory from address 64 on to the device, in a stream.
fn copy(fake: &'static Fake, at: Address, bytes: u64) {
    let copied = Use::Range {
        at,
        bytes,
        source: 64,
        is_deferred: true,
    };
    let _needed = restoring::of_touch(fake, copied);
}

#[test]
fn addresses_are_found_where_they_are_aligned_on_the_device() {
    let (fake, blocks) = away();
    let first = blocks[0];
    fake.host_contents.borrow_mut().insert(68, blocks[3]);
    restore_and(fake, 1, move |fake| {
        copy(fake, first, 12);
        assert!(runs(fake, &[first]));
        copy(fake, first + 4, 12);
        assert!(!runs(fake, &[first]));
    })
    .unwrap();
}

#[test]
fn a_copy_after_a_host_function_may_bring_anything() {
    let (fake, blocks) = away();
    let first = blocks[0];
    restore_and(fake, 1, move |fake| {
        copy(fake, first, 8);
        assert!(runs(fake, &[first]));
        fake.process.note_host_function();
        copy(fake, first, 8);
        assert!(!runs(fake, &[first]));
    })
    .unwrap();
}

#[test]
fn a_copy_that_the_driver_may_refuse_is_not_read() {
    let (fake, blocks) = away();
    let (first, last) = (blocks[0], blocks[3]);
    restore_and(fake, 1, move |fake| {
        let is_there = |at, bytes, source| {
            let use_ = Use::Range {
                at,
                bytes,
                source,
                is_deferred: false,
            };
            let mut needed = None;
            restoring::is_there(fake, &mut needed, || restoring::of_touch(fake, use_))
        };
        assert!(is_there(first, 8, 64));
        assert!(!is_there(first, 1 << 40, 64), "beyond its end");
        assert!(!is_there(first, 8, last), "from the device");
    })
    .unwrap();
}

#[test]
fn an_address_of_freed_memory_counts_once_there_is_memory_again() {
    let fake = streaming();
    let (table, freed) = (allocate(fake, 8 * GRANULE), allocate(fake, 8 * GRANULE));
    fake.set_granule(table + GRANULE, freed + 4);
    assert_eq!(free_memory(fake, freed), Outcome::Done(SUCCESS));
    let leave = || {
        evict::evict(fake, DRAIN).unwrap();
        while search::search_some(fake) {}
    };
    leave();
    let found = |fake: &'static Fake| moves(fake).addresses.get(&table).copied();
    assert_eq!(found(fake), Some(false));
    restore::restore(fake, |_| ()).unwrap();
    restoring::end_observation(fake);
    assert_eq!(allocate(fake, 8 * GRANULE), freed);
    leave();
    assert_eq!(found(fake), Some(true));
    restore_and(fake, 1, move |fake| assert!(!runs(fake, &[table]))).unwrap();
}

#[test]
fn blocks_return_in_the_order_in_which_they_were_used() {
    let (fake, blocks) = away();
    let used = [blocks[2], blocks[0]];
    restore_and(fake, 3, move |fake| {
        for at in used {
            assert_eq!(launch(fake, &[at]), Outcome::Done(SUCCESS));
        }
    })
    .unwrap();
    assert_eq!(moves(fake).order, []);
    restoring::end_observation(fake);
    assert_eq!(moves(fake).order, used);
    evict::evict(fake, DRAIN).unwrap();
    while search::search_some(fake) {}
    let (third, second) = (blocks[2], blocks[1]);
    restore_and(fake, 2, move |fake| {
        assert!(runs(fake, &[third]));
        assert!(!runs(fake, &[second]));
    })
    .unwrap();
}

#[test]
fn a_process_with_other_memory_or_without_leave_does_not_stream() {
    let (fake, _) = away();
    fake.orders.streams_restores.store(0, Ordering::Relaxed);
    restore_and(fake, 1, |_| panic!("the gate is ajar")).unwrap();
    assert!(fake.process.memory_gate.is_open());
    let managed = memory::native::alloc(fake, Kinds::Managed, 8, &|| Ok(0x55));
    assert_eq!(managed, Outcome::Done(0x55));
    evict::evict(fake, DRAIN).unwrap();
    fake.orders.streams_restores.store(1, Ordering::Relaxed);
    restore_and(fake, 1, |_| panic!("the gate is ajar")).unwrap();
}

#[test]
fn an_error_amid_the_arrival_lets_everything_go_on() {
    let (fake, blocks) = away();
    fake.event_wait_error.set(Some(700));
    assert_eq!(
        restore::restore(fake, |_| ()),
        Err(MoveRefusal::StickyError)
    );
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(fake.facts.last_error.load(Ordering::Relaxed), 700);
    assert_eq!(location(fake), Residency::Resident);
    assert_eq!(launch(fake, &[blocks[0]]), Outcome::Done(SUCCESS));
}

#[test]
fn a_failed_creation_leaves_all_away_and_the_gate_shut() {
    let (fake, blocks) = away();
    fake.map_error.borrow_mut().push_back(999);
    assert_eq!(
        restore::restore(fake, |_| ()),
        Err(MoveRefusal::StickyError)
    );
    assert_eq!(fake.physical_bytes(), 0);
    assert!(fake.process.memory_gate.shut_at().is_some());
    restore::restore(fake, |_| ()).unwrap();
    assert_eq!(fake.granule_at(blocks[1]), Some(100));
}

#[test]
fn the_program_is_observed_for_a_while_after_all_is_there() {
    let (fake, blocks) = away();
    fake.orders.order_seq.store(1, Ordering::Release);
    let mut mover = Mover::new();
    step(fake, &mut mover);
    assert_eq!(location(fake), Residency::Resident);
    assert!(fake.process.memory_gate.is_ajar());
    // Allocations do not wait for the end of it.
    let more = fake.in_other_thread(|| allocate(fake, GRANULE));
    assert_eq!(fake.process.threads.calls(None) & 1, 0);
    assert_eq!(launch(fake, &[blocks[3]]), Outcome::Done(SUCCESS));
    assert_eq!(launch(fake, &[blocks[1]]), Outcome::Done(SUCCESS));
    for _ in 0..40 {
        step(fake, &mut mover);
    }
    assert!(fake.process.memory_gate.is_open());
    assert_eq!(moves(fake).order, [blocks[3], blocks[1]]);
    assert_eq!(free_memory(fake, more), Outcome::Done(SUCCESS));
    // An eviction does not wait for the end either.
    evict::evict(fake, DRAIN).unwrap();
    restore::restore(fake, |_| ()).unwrap();
    assert!(fake.process.memory_gate.is_ajar());
    evict::evict(fake, DRAIN).unwrap();
    assert!(fake.process.memory_gate.shut_at().is_some());
}

/// Returns whether a launch of the graph would run now.
fn graph_runs(fake: &'static Fake) -> bool {
    let mut needed = None;
    restoring::is_there(fake, &mut needed, || {
        restoring::of_launch(fake, GRAPH, Kind::Graph, Arguments::default())
    })
}

#[test]
fn a_graph_runs_once_what_its_nodes_name_is_there() {
    let (fake, blocks) = away();
    let (first, last) = (blocks[0], blocks[3]);
    restore_and(fake, 2, move |fake| {
        assert!(!graph_runs(fake), "not known");
        let graphs = &fake.process.graphs;
        graphs.note(GRAPH, [first + 12].into());
        assert!(graph_runs(fake));
        graphs.note(GRAPH, [first, last].into());
        assert!(!graph_runs(fake));
        graphs.note(GRAPH, [].into());
        assert!(!graph_runs(fake), "it names nothing");
    })
    .unwrap();
}

#[test]
fn descriptors_that_hide_addresses_make_every_launch_wait_for_the_last_group() {
    let (fake, blocks) = away();
    let first = blocks[0];
    restore_and(fake, 2, move |fake| {
        fake.process.graphs.note(GRAPH, [first].into());
        let mut contents = [0; 16];
        contents[0] = first;
        assert!(!fake.process.tensor_maps.note(contents, first));
        assert!(runs(fake, &[first]) && graph_runs(fake));
        assert!(fake.process.tensor_maps.note([0; 16], first));
        assert!(!runs(fake, &[first]) && !graph_runs(fake));
    })
    .unwrap();
}
