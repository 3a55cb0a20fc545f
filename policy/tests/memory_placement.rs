//! Placement of blocks, case by case; the resulting free space; and that it allocates nothing.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::memory::{
    BlockPlacement, Memory, OutOfSpaceReason, OwnerId, Rule, Settings, SettingsError, UNIT,
    arena_of,
};

const PARTITION: u64 = 64 * UNIT;
const A: OwnerId = OwnerId(0);
const B: OwnerId = OwnerId(1);
const C: OwnerId = OwnerId(2);

fn memory(partitions: u64) -> Memory {
    Memory::new(Settings::new(partitions * PARTITION)).unwrap()
}

/// Allocates a block. Returns its partition and the reason of its placement.
fn put(memory: &mut Memory, owner: OwnerId, units: u64) -> (u64, BlockPlacement) {
    let allocation = memory.alloc(owner, units * UNIT).unwrap();
    (allocation.offset.unwrap() / PARTITION, allocation.placed)
}

#[test]
fn common_sizes_have_slabs_and_others_buddies() {
    let mut memory = memory(8);
    assert_eq!(put(&mut memory, A, 1), (0, BlockPlacement::Opened));
    assert_eq!(put(&mut memory, A, 10), (1, BlockPlacement::Opened));
    assert_eq!(put(&mut memory, A, 3), (2, BlockPlacement::Opened));
    assert_eq!(put(&mut memory, A, 1), (0, BlockPlacement::Beside));
    assert_eq!(put(&mut memory, A, 10), (1, BlockPlacement::Beside));
    assert_eq!(put(&mut memory, A, 20), (2, BlockPlacement::Beside));
    assert_eq!(put(&mut memory, A, 65), (3, BlockPlacement::Run));
    assert_eq!(memory.gauges().partitions, [3, 2, 1, 2]);
    let asked = 1 + 10 + 3 + 1 + 10 + 20 + 65;
    assert_eq!(memory.gauges().asked, asked * UNIT);
    assert_eq!(memory.gauges().owned, (asked + 1 + 12 + 63) * UNIT);
}

#[test]
fn a_block_goes_beside_its_owners_blocks_or_to_the_fullest_partition() {
    let mut memory = memory(4);
    for _ in 0..6 {
        put(&mut memory, A, 10);
    }
    assert_eq!(put(&mut memory, A, 10), (1, BlockPlacement::Opened));
    for _ in 0..3 {
        assert_eq!(put(&mut memory, B, 10).0, 1, "the fullest, then beside");
    }
    let first = memory.blocks(A).last().unwrap().0;
    memory.free(first).unwrap();
    // Partition 0 has five, partition 1 four: B stays beside its own, C goes to the fuller one.
    assert_eq!(put(&mut memory, B, 10), (1, BlockPlacement::Beside));
    assert_eq!(put(&mut memory, C, 10), (0, BlockPlacement::Fullest));
    assert_eq!(memory.sole_partitions(A), 0);
    assert_eq!(memory.would_free(&[A, C]).0.partitions, 1);
    assert_eq!(memory.would_free(&[A, B, C]).0.partitions, 2);
    assert_eq!(memory.check(), Ok(()));
}

#[test]
fn the_fullest_of_its_owners_partitions_is_chosen() {
    let mut memory = memory(4);
    for _ in 0..13 {
        put(&mut memory, A, 10);
    }
    // Six, six and one; then three, four and one.
    let blocks: Vec<_> = memory.blocks(A).map(|(block, _)| block).collect();
    for at in [1, 2, 7, 8, 9] {
        memory.free(blocks[at]).unwrap();
    }
    assert_eq!(put(&mut memory, A, 10), (1, BlockPlacement::Beside));
    assert_eq!(put(&mut memory, B, 10), (1, BlockPlacement::Fullest));
    // Buddies: 8 units are free in one, 32 in another.
    let mut memory = self::memory(4);
    for units in [32, 16, 8, 64, 32] {
        put(&mut memory, A, units);
    }
    assert_eq!(put(&mut memory, B, 7), (0, BlockPlacement::Fullest));
    assert_eq!(put(&mut memory, A, 16), (2, BlockPlacement::Beside));
    assert_eq!(memory.check(), Ok(()));
}

#[test]
fn a_freed_common_block_is_reused_whole_by_the_next_model() {
    let mut memory = memory(1);
    for _ in 0..6 {
        put(&mut memory, A, 10);
    }
    let freed = memory.blocks(A).nth(2).unwrap().0;
    let offset = memory.offset(freed);
    memory.free(freed).unwrap();
    let again = memory.alloc(B, 10 * UNIT).unwrap();
    assert_eq!(
        (again.offset, again.placed),
        (offset, BlockPlacement::Fullest)
    );
}

#[test]
fn small_blocks_open_the_shortest_run_and_large_ones_the_best_fitting() {
    let mut memory = memory(12);
    // Runs at 0–1 and 2–3, a block at 4, a run at 5–7; then 0–1 is freed, and 8–11 are free.
    assert_eq!(put(&mut memory, A, 128), (0, BlockPlacement::Run));
    assert_eq!(put(&mut memory, B, 100), (2, BlockPlacement::Run));
    assert_eq!(put(&mut memory, B, 64), (4, BlockPlacement::Opened));
    assert_eq!(put(&mut memory, B, 129), (5, BlockPlacement::Run));
    memory.free_owner(A);
    assert_eq!(memory.gauges().largest_free_run, 4 * PARTITION);
    assert_eq!(put(&mut memory, C, 1), (0, BlockPlacement::Opened));
    assert_eq!(put(&mut memory, C, 200), (8, BlockPlacement::Run));
    let short = memory.alloc(C, 65 * UNIT).unwrap_err();
    assert_eq!(short.reason, OutOfSpaceReason::Scattered);
    assert_eq!(short.largest_free_run, PARTITION);
    assert_eq!(
        memory.alloc(C, 13 * PARTITION).unwrap_err().reason,
        OutOfSpaceReason::TooLarge
    );
    assert_eq!(
        memory.alloc(C, u64::MAX).unwrap_err().reason,
        OutOfSpaceReason::TooLarge
    );
}

#[test]
fn a_kind_without_space_uses_that_of_another() {
    let mut memory = memory(2);
    put(&mut memory, A, 40);
    assert_eq!(put(&mut memory, A, 5), (1, BlockPlacement::Opened));
    // It is a common size, but there is no partition for it.
    assert_eq!(put(&mut memory, B, 1), (1, BlockPlacement::Foreign));
    memory.free_owner(A);
    memory.free_owner(B);
    // Two slabs of 20 MiB have one place left each; with 14 MiB of 20 less than half is wasted.
    for _ in 0..11 {
        put(&mut memory, A, 10);
    }
    assert_eq!(put(&mut memory, B, 7), (1, BlockPlacement::Foreign));
    assert_eq!(
        memory.alloc(B, UNIT).unwrap_err().reason,
        OutOfSpaceReason::Scattered
    );
    assert_eq!(memory.check(), Ok(()));
}

#[test]
fn sizes_become_common_and_keep_their_slabs_afterwards() {
    let mut memory = memory(40);
    assert_eq!(put(&mut memory, A, 12).1, BlockPlacement::Opened);
    let large = |memory: &Memory| memory.common_sizes().any(|size| size == 12 * UNIT);
    assert!(!large(&memory));
    for n in 0..255 {
        put(&mut memory, OwnerId(1 + n % 3), 12);
        memory.free_owner(OwnerId(1 + (n + 1) % 3));
    }
    assert!(large(&memory));
    for owner in (0..4).map(OwnerId) {
        memory.free_owner(owner);
    }
    let slab = memory.alloc(A, 12 * UNIT).unwrap();
    assert_eq!(slab.bytes, 12 * UNIT, "not 16");
    for _ in 0..256 * 5 {
        put(&mut memory, B, 3);
        memory.free_owner(B);
    }
    assert!(!large(&memory));
    let still = memory.alloc(C, 12 * UNIT).unwrap();
    assert_eq!(
        (still.bytes, still.placed),
        (12 * UNIT, BlockPlacement::Fullest)
    );
}

#[test]
fn invalid_settings_and_requests_are_refused() {
    let refused = |settings| Memory::new(settings).unwrap_err();
    let settings = Settings::new(PARTITION - 1);
    assert_eq!(
        refused(settings),
        SettingsError::ArenaTooSmall {
            partition: PARTITION
        }
    );
    let settings = Settings::new(u64::MAX);
    assert_eq!(refused(settings), SettingsError::ArenaTooLarge);
    let settings = Settings {
        unit: 0,
        ..Settings::new(PARTITION)
    };
    assert_eq!(refused(settings), SettingsError::NoUnit);
    for units in [0, 3, 128] {
        let settings = Settings {
            buddy_min: units,
            ..Settings::new(PARTITION)
        };
        assert_eq!(refused(settings), SettingsError::BuddyMin { units });
    }
    // A V100: 32 GiB less 1.5 GiB and 5 %.
    assert_eq!(arena_of(32 << 30) >> 20, 32_768 - 1_536 - 1_638 - 1);
    assert_eq!(arena_of(1 << 30), 0);
}

#[test]
fn one_list_reuses_large_enough_blocks_and_otherwise_frees_the_largest() {
    let mut memory = Memory::new(Settings {
        rule: Rule::FreeList,
        ..Settings::new(2 * PARTITION)
    })
    .unwrap();
    let mut put = |owner, units: u64| {
        let allocation = memory
            .alloc(owner, units * UNIT)
            .map_err(|short| short.reason);
        let seen = allocation.map(|allocation| (allocation.bytes / UNIT, allocation.placed));
        (seen, memory.gauges().device_frees)
    };
    for units in [50, 20, 10] {
        let device = BlockPlacement::Device { frees: 0 };
        assert_eq!(put(A, units), (Ok((units, device)), 0));
    }
    assert_eq!(
        put(B, 40),
        (Ok((40, BlockPlacement::Device { frees: 0 })), 0)
    );
    assert_eq!(put(B, 10), (Err(OutOfSpaceReason::Full), 0));
    memory.free_owner(A);
    let mut put = |owner, units: u64| {
        let allocation = memory
            .alloc(owner, units * UNIT)
            .map_err(|short| short.reason);
        let seen = allocation.map(|allocation| (allocation.bytes / UNIT, allocation.placed));
        (seen, memory.gauges().device_frees)
    };
    // 8 units are free; 50, 20 and 10 are released.
    assert_eq!(put(C, 12), (Ok((20, BlockPlacement::Reused)), 0));
    assert_eq!(
        put(C, 60),
        (Ok((60, BlockPlacement::Device { frees: 2 })), 2)
    );
    assert_eq!(put(C, 9), (Err(OutOfSpaceReason::Full), 2));
    assert_eq!(put(C, 8), (Ok((8, BlockPlacement::Device { frees: 0 })), 2));
    let gauges = memory.gauges();
    assert_eq!((gauges.device_allocations, gauges.device_frees), (6, 2));
    assert_eq!(gauges.waste(), 8 * UNIT);
}

/// Models arrive, query whether they fit, evict others as needed, and leave.
fn work(memory: &mut Memory, steps: u32) -> u32 {
    let mut loads = 0;
    for n in 0..steps {
        let spread = n.wrapping_mul(0x9E37_79B9) >> 7;
        let owner = OwnerId(spread % 50);
        let mut sizes = [10 * UNIT; 14];
        sizes[0] = UNIT * u64::from(1 + spread % 60);
        sizes[1] = UNIT;
        sizes[2] = UNIT * if spread.is_multiple_of(7) { 130 } else { 3 };
        memory.free_owner(owner);
        let mut victims = 0;
        {
            let mut trial = memory.trial();
            while trial.fits(owner, &sizes).is_err() && victims < 50 {
                trial.free_owner(OwnerId((n + victims) % 50));
                victims += 1;
            }
        }
        for victim in 0..victims {
            memory.free_owner(OwnerId((n + victim) % 50));
        }
        for size in sizes {
            memory.alloc(owner, size).unwrap();
        }
        loads += 1;
    }
    loads
}

#[test]
fn a_warm_arena_allocates_nothing() {
    for rule in [Rule::Partitions, Rule::FreeList] {
        let mut memory = Memory::new(Settings {
            rule,
            ..Settings::new(80 * PARTITION)
        })
        .unwrap();
        work(&mut memory, 3_000);
        let mut loads = 0;
        let counted = allocation_counter::measure(|| loads = work(&mut memory, 3_000));
        assert_eq!(loads, 3_000);
        assert_eq!(counted.count_total, 0, "{rule:?}: {counted:?}");
        assert_eq!(memory.check(), Ok(()));
    }
}
