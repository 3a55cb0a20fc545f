use super::*;
use crate::memory::physical::{Part, Properties};

const GRANULE: u64 = 2 << 20;

fn block(at: Address, parts: u64) -> Block {
    Block {
        at,
        bytes: parts * GRANULE,
        parts: (0..parts)
            .map(|handle| Part {
                handle,
                bytes: GRANULE,
            })
            .collect(),
        is_away: false,
        extent: None,
    }
}

fn traits(total: u64) -> Traits {
    Traits {
        granule: GRANULE,
        total,
        properties: Properties::plain(0, false),
    }
}

fn own(at: Address, context: Handle) -> Allocation {
    Allocation::new(1, GRANULE - 1, context, Backing::Own(block(at, 1)))
}

#[test]
fn an_address_belongs_to_the_range_of_its_device() {
    let mut ranges = Ranges::default();
    assert_eq!(ranges.owner(100), None);
    ranges.add(100, 50, 0);
    ranges.add(1_000, 50, 3);
    assert_eq!(ranges.owner(99), None);
    assert_eq!(ranges.owner(149), Some(0));
    assert_eq!(ranges.owner(150), None);
    assert_eq!(ranges.owner(1_000), Some(3));
}

#[test]
fn padding_belongs_to_no_allocation() {
    let mut table = Table::default();
    table.allocations.insert(GRANULE, own(GRANULE, 1));
    assert_eq!(table.find(GRANULE).map(|(at, _)| at), Some(GRANULE));
    assert!(table.find(2 * GRANULE - 2).is_some());
    assert!(table.find(2 * GRANULE - 1).is_none());
    assert!(table.find(GRANULE - 1).is_none());
    assert!(table.find_mut(2 * GRANULE - 2).is_some());
    assert!(table.find_mut(2 * GRANULE - 1).is_none());
}

#[test]
fn an_allocation_is_freed_once_and_at_its_first_address() {
    let mut table = Table::default();
    table.allocations.insert(GRANULE, own(GRANULE, 9));
    assert_eq!(table.begin_free(GRANULE + 1), None);
    assert_eq!(table.begin_free(GRANULE), Some(9));
    assert_eq!(table.begin_free(GRANULE), None);
    table.undo_free(GRANULE);
    assert_eq!(table.begin_free(GRANULE), Some(9));
}

#[test]
fn memory_of_another_process_is_not_freed() {
    let mut table = Table::default();
    let opened = Allocation::new(1, GRANULE, 9, Backing::Opened(block(0, 1)));
    table.allocations.insert(0, opened);
    assert_eq!(table.begin_free(0), None);
}

#[test]
fn a_destroyed_context_takes_its_allocations() {
    let mut table = Table::default();
    for (at, context) in [(1, 7), (2, 8), (3, 7)] {
        table.allocations.insert(at, own(at, context));
    }
    table.deferred.push((4, own(4, 7)));
    table.deferred.push((5, own(5, 8)));
    let gone = table.context_destroyed(7);
    assert_eq!(
        gone.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        [1, 3, 4]
    );
    assert_eq!(table.context_destroyed(8).len(), 2);
}

#[test]
fn mappings_are_those_of_blocks_slabs_and_the_reserve() {
    let mut table = Table::default();
    table.allocations.insert(1, own(GRANULE, 7));
    table.deferred.push((4, own(2 * GRANULE, 7)));
    table.add_slab(block(3 * GRANULE, 1));
    let piece = table.take_piece(512).unwrap();
    let allocation = Allocation::new(2, 500, 7, Backing::Piece(512));
    assert_eq!(allocation.bytes(), 512);
    table.allocations.insert(piece.at, allocation);
    table.reserve.push(block(4 * GRANULE, 2));
    let mut mapped = table.mapped();
    mapped.sort_unstable();
    let expected = [(1, 1), (2, 1), (3, 1), (4, 2)];
    assert_eq!(mapped, expected.map(|(at, n)| (at * GRANULE, n * GRANULE)));
}

#[test]
fn memory_that_is_away_is_not_mapped() {
    let mut table = Table::default();
    table.insert(GRANULE, own(GRANULE, 7));
    table.add_slab(block(3 * GRANULE, 1));
    let opened = Allocation::new(1, GRANULE, 9, Backing::Opened(block(9 * GRANULE, 1)));
    assert!(!table.has_opened());
    table.insert(9 * GRANULE, opened);
    assert!(table.has_opened());
    let blocks: Vec<_> = table
        .blocks()
        .map(|(block, context)| (block.at / GRANULE, context))
        .collect();
    assert_eq!(blocks, [(1, Some(7)), (3, None)]);
    for at in [GRANULE, 3 * GRANULE] {
        table.block_mut(at).unwrap().is_away = true;
    }
    assert!(table.block_mut(9 * GRANULE).is_none());
    assert!(table.mapped().is_empty());
    assert!(table.is_away(GRANULE + 5) && table.is_away(3 * GRANULE));
    assert!(!table.is_away(9 * GRANULE));
}

#[test]
fn empty_slabs_are_removed_with_their_blocks() {
    let mut table = Table::default();
    assert_eq!(traits(1).slab_bytes(), GRANULE);
    assert_eq!(table.take_piece(512), None);
    table.add_slab(block(GRANULE, 1));
    let piece = table.take_piece(512).unwrap();
    assert!(table.slab_block(piece.at).is_some());
    assert!(table.remove_empty_slabs(0).is_empty());
    assert_eq!(table.give_piece_back(piece.at, 512), Some(GRANULE));
    assert!(table.remove_empty_slabs(1).is_empty());
    assert_eq!(table.remove_empty_slabs(0).len(), 1);
    assert!(table.slab_block(piece.at).is_none());
}

#[test]
fn the_reserve_gives_whole_parts_until_it_is_used_up() {
    let mut table = Table::default();
    table.reserve.push(block(0, 2));
    assert_eq!(table.reserved_parts(), 2);
    assert_eq!(table.take_reserve(3 * GRANULE), None);
    assert_eq!(table.take_reserve(1).map(|taken| taken.at), Some(0));
    let rest = table.take_reserve(GRANULE);
    assert_eq!(rest.map(|taken| taken.at), Some(GRANULE));
    assert!(table.reserve.is_empty());
}

#[test]
fn addresses_come_from_an_arena_and_return_to_it() {
    let mut table = Table::default();
    assert_eq!(table.take_addresses(1), None);
    table.add_arena(100, 10);
    table.add_arena(200, 10);
    assert_eq!(table.take_addresses(10), Some(100));
    assert_eq!(table.take_addresses(10), Some(200));
    assert_eq!(table.take_addresses(1), None);
    table.give_addresses_back(200, 10);
    table.give_addresses_back(999, 10);
    assert_eq!(table.take_addresses(4), Some(200));
}

#[test]
fn an_arena_has_four_times_the_devices_memory_or_what_fits() {
    let total = 100 * GRANULE;
    assert_eq!(
        Table::arena_sizes(&traits(total), GRANULE + 1),
        [400 * GRANULE, 100 * GRANULE, 2 * GRANULE]
    );
    let large = Table::arena_sizes(&traits(total), 500 * GRANULE);
    assert_eq!(large, [500 * GRANULE; 3]);
}

#[test]
fn a_device_without_a_remaining_pair_loses_its_access() {
    let mut table = Table::default();
    let pair = |user, device| Pair {
        user,
        device,
        owner: 1,
    };
    table.peers = vec![pair(2, 5), pair(3, 5), pair(4, 6)];
    assert_eq!(table.users(1), [2, 3, 4, 1]);
    assert_eq!(table.users(9), [9]);
    assert!(table.remove_peers(|pair| pair.user == 2).is_empty());
    assert_eq!(table.remove_peers(|pair| pair.user == 3), [5]);
    assert_eq!(table.remove_peers(|pair| pair.owner == 1), [6]);
    assert_eq!(table.users(1), [1]);
}

#[test]
fn access_is_granted_once_to_each_device_and_last_to_its_own() {
    let mut table = Table::default();
    for (user, device) in [(2, 5), (3, 5), (4, 1), (5, 0)] {
        table.add_peer(Pair {
            user,
            device,
            owner: 1,
        });
    }
    assert!(table.has_peer(|pair| pair.user == 4));
    assert!(!table.has_peer(|pair| pair.user == 1));
    let expected = [1, 5, 0].map(Access::full);
    assert_eq!(table.access_list(0), expected);
}

#[test]
fn a_deferred_allocation_is_mapped_but_no_longer_found() {
    let mut table = Table::default();
    table.insert(GRANULE, own(GRANULE, 7));
    table.defer(GRANULE);
    table.defer(GRANULE);
    assert!(table.find(GRANULE).is_none() && table.remove(GRANULE).is_none());
    assert_eq!(table.mapped(), [(GRANULE, GRANULE)]);
    let mut deferred = table.take_deferred();
    assert_eq!(deferred.len(), 1);
    let (at, allocation) = deferred.remove(0);
    table.defer_again(at, allocation);
    assert_eq!(table.take_deferred().len(), 1);
    assert!(table.mapped().is_empty());
}

#[test]
fn a_device_is_shareable_by_its_traits() {
    let mut table = Table::default();
    assert!(!table.is_shareable());
    table.traits = Some(traits(1));
    assert!(table.is_shareable());
}
