//! An arena compared with a naive model, over random operations; its own counts are checked after each operation.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures, seen with --nocapture")]

use policy::memory::{
    Allocation, BlockId, BlockPlacement, Fault, Memory, OutOfSpace, OutOfSpaceReason, OwnerId,
    Rule, Settings, UNIT,
};
use testing::Random;

const PARTITION: u64 = 64 * UNIT;
const OWNERS: u32 = 12;

/// Random draws of a memory test.
trait Draw {
    fn owner(&mut self) -> OwnerId;
    /// Returns a size: mostly common ones, some irregular, a few larger than a partition.
    fn size(&mut self) -> u64;
}

impl Draw for Random {
    fn owner(&mut self) -> OwnerId {
        OwnerId(u32::try_from(self.below(u64::from(OWNERS))).unwrap())
    }

    fn size(&mut self) -> u64 {
        match self.below(20) {
            0..7 => UNIT,
            7..12 => 10 * UNIT,
            12..14 => 3 * UNIT - self.below(UNIT),
            14..19 => 1 + self.below(PARTITION),
            _ => PARTITION + 1 + self.below(3 * PARTITION),
        }
    }
}

/// A block as seen by a caller.
#[derive(Clone, Copy, Debug)]
struct KnownBlock {
    owner: OwnerId,
    asked: u64,
    allocation: Allocation,
}

#[derive(Default)]
struct Model {
    blocks: Vec<KnownBlock>,
    device: [u64; 2],
    /// Under one list: sizes of released blocks, and bytes that are not allocated.
    cached: Vec<u64>,
    room: u64,
    /// Size of the smallest buddy in bytes.
    buddy_min: u64,
}

impl Model {
    fn took(&mut self, owner: OwnerId, asked: u64, allocation: Allocation, context: &str) {
        let bytes = allocation.bytes;
        assert!(
            bytes >= asked && bytes.is_multiple_of(UNIT),
            "{context}: {allocation:?} for {asked}"
        );
        for known in &self.blocks {
            assert_ne!(known.allocation.block, allocation.block, "{context}");
            if let (Some(one), Some(other)) = (known.allocation.offset, allocation.offset) {
                let apart = one + known.allocation.bytes <= other || other + bytes <= one;
                assert!(apart, "{context}: {known:?} and {allocation:?}");
            }
        }
        match allocation.placed {
            BlockPlacement::Device { frees } => {
                self.make_room(asked, frees, context);
                self.device[0] += 1;
                self.device[1] += u64::from(frees);
            }
            BlockPlacement::Reused => {
                let enough = self.cached.iter().filter(|&&cached| cached >= asked);
                let smallest = enough.min().copied();
                assert_eq!(smallest, Some(bytes), "{context}: {:?}", self.cached);
                let at = self.cached.iter().position(|&cached| cached == bytes);
                self.cached.swap_remove(at.unwrap());
            }
            BlockPlacement::Run => assert!(bytes - asked < PARTITION, "{context}"),
            BlockPlacement::Beside => {
                let partition = allocation.offset.unwrap() / PARTITION;
                let beside = |known: &&KnownBlock| {
                    known.owner == owner
                        && known.allocation.offset.unwrap() / PARTITION == partition
                };
                assert!(self.blocks.iter().any(|known| beside(&known)), "{context}");
            }
            BlockPlacement::Fullest | BlockPlacement::Opened | BlockPlacement::Foreign => {}
        }
        if allocation.offset.is_some() {
            // Rounding to the unit is not part of the rule.
            let most = (2 * asked.next_multiple_of(UNIT) - 1).max(self.buddy_min);
            assert!(bytes <= most, "{context}: {allocation:?} for {asked}");
        }
        self.blocks.push(KnownBlock {
            owner,
            asked,
            allocation,
        });
    }

    /// Allocates a new block under one list: no released block was large enough.
    fn make_room(&mut self, asked: u64, frees: u32, context: &str) {
        let bytes = asked.next_multiple_of(UNIT);
        self.cached.sort_unstable();
        assert!(
            self.cached.iter().all(|&cached| cached < bytes),
            "{context}: {:?}",
            self.cached
        );
        for _ in 0..frees {
            assert!(self.room < bytes, "{context}: freed for nothing");
            self.room += self.cached.pop().unwrap();
        }
        assert!(self.room >= bytes, "{context}");
        self.room -= bytes;
    }

    fn released(&mut self, known: KnownBlock) {
        if known.allocation.offset.is_none() {
            self.cached.push(known.allocation.bytes);
        }
    }

    fn sums(&self) -> (u64, u64) {
        let owned = self.blocks.iter().map(|known| known.allocation.bytes).sum();
        (owned, self.blocks.iter().map(|known| known.asked).sum())
    }

    /// Returns for each partition whether it is free once those owners are gone.
    fn free_partitions(&self, partitions: u64, gone: &[OwnerId]) -> Vec<bool> {
        let mut free = vec![true; usize::try_from(partitions).unwrap()];
        for known in self
            .blocks
            .iter()
            .filter(|known| !gone.contains(&known.owner))
        {
            let from = known.allocation.offset.unwrap() / PARTITION;
            let to =
                (known.allocation.offset.unwrap() + known.allocation.bytes).div_ceil(PARTITION);
            for partition in from..to {
                free[usize::try_from(partition).unwrap()] = false;
            }
        }
        free
    }

    fn assert_agrees(&self, memory: &Memory, context: &str) {
        assert_eq!(memory.check(), Ok::<(), Fault>(()), "{context}");
        let gauges = memory.gauges();
        let (owned, asked) = self.sums();
        assert_eq!((gauges.owned, gauges.asked), (owned, asked), "{context}");
        assert_eq!(gauges.owned + gauges.free, gauges.arena, "{context}");
        assert_eq!(gauges.waste(), owned - asked, "{context}");
        assert_eq!(gauges.blocks as usize, self.blocks.len(), "{context}");
        let device = [gauges.device_allocations, gauges.device_frees];
        assert_eq!(device, self.device, "{context}");
        if memory.settings().rule == Rule::Partitions {
            let free = self.free_partitions(gauges.arena / PARTITION, &[]);
            let count = free.iter().filter(|free| **free).count();
            assert_eq!(gauges.partitions[0] as usize, count, "{context}");
            assert_eq!(
                gauges.largest_free_run,
                longest(&free) * PARTITION,
                "{context}"
            );
            assert_eq!(
                u64::from(gauges.partitions.iter().sum::<u32>()),
                gauges.arena / PARTITION
            );
        }
    }

    /// Asserts that a refusal has the true reason.
    fn assert_short(&self, memory: &Memory, bytes: u64, short: OutOfSpace, context: &str) {
        let gauges = memory.gauges();
        assert_eq!((short.asked, short.free), (bytes, gauges.free), "{context}");
        assert_eq!(short.largest_free_run, gauges.largest_free_run, "{context}");
        match short.reason {
            OutOfSpaceReason::TooLarge => assert!(bytes > gauges.arena, "{context}: {short}"),
            OutOfSpaceReason::Full => assert!(bytes > gauges.free, "{context}: {short}"),
            OutOfSpaceReason::Scattered => {
                assert!(gauges.free >= bytes, "{context}: {short}");
                assert!(gauges.largest_free_run < bytes, "{context}: {short}");
                assert_eq!(
                    memory.settings().rule,
                    Rule::Partitions,
                    "{context}: {short}"
                );
            }
        }
    }

    fn gone(&mut self, owner: OwnerId) -> (u32, u64) {
        let before = self.sums().0;
        let blocks = self.blocks.len();
        for known in self.blocks.clone() {
            if known.owner == owner {
                self.released(known);
            }
        }
        self.blocks.retain(|known| known.owner != owner);
        let count = u32::try_from(blocks - self.blocks.len()).unwrap();
        (count, before - self.sums().0)
    }
}

fn longest(free: &[bool]) -> u64 {
    let runs = free.split(|free| !free).map(<[bool]>::len);
    runs.max().unwrap_or(0) as u64
}

/// Asserts that a clone without those owners accepts what the trial predicted.
fn try_out(memory: &mut Memory, model: &Model, random: &mut Random, context: &str) -> bool {
    let gone: Vec<_> = (0..random.below(4)).map(|_| random.owner()).collect();
    let owner = random.owner();
    let sizes: Vec<_> = (0..1 + random.below(60)).map(|_| random.size()).collect();
    let mut really = memory.clone();
    let mut trial = memory.trial();
    for &owner in &gone {
        assert_eq!(
            trial.free_owner(owner),
            really.free_owner(owner),
            "{context}"
        );
    }
    let run = trial.largest_free_run();
    let predicted = trial.fits(owner, &sizes);
    assert_eq!(
        predicted,
        trial.fits(owner, &sizes),
        "{context}: the same trial twice"
    );
    drop(trial);
    assert_eq!(run, really.gauges().largest_free_run, "{context}");
    if memory.settings().rule == Rule::Partitions {
        let free = model.free_partitions(memory.gauges().arena / PARTITION, &gone);
        assert_eq!(run, longest(&free) * PARTITION, "{context}");
        let before = model.free_partitions(memory.gauges().arena / PARTITION, &[]);
        let alone = model.free_partitions(memory.gauges().arena / PARTITION, &[owner]);
        let count = |free: &[bool]| free.iter().filter(|free| **free).count();
        let sole = memory.sole_partitions(owner) as usize;
        assert_eq!(sole, count(&alone) - count(&before), "{context}");
    }
    let mut placed = Ok(());
    for &size in &sizes {
        placed = placed.and_then(|()| really.alloc(owner, size).map(|_| ()));
    }
    assert_eq!(
        predicted, placed,
        "{context}: {gone:?} gone, {owner:?} asks for {sizes:?}"
    );
    predicted.is_ok()
}

fn run(seed: u64, rule: Rule, buddy_min: u32) -> [u32; 4] {
    let mut random = Random(seed);
    let partitions = 4 + random.below(66);
    let mut memory = Memory::new(Settings {
        rule,
        buddy_min,
        ..Settings::new(partitions * PARTITION + random.below(PARTITION))
    })
    .unwrap();
    let mut model = Model {
        buddy_min: u64::from(buddy_min) * UNIT,
        ..Model::default()
    };
    model.room = memory.gauges().arena;
    let mut seen = [0; 4];
    for step in 0..1_000 {
        let context = format!("seed {seed}, {rule:?}, step {step}");
        match random.below(100) {
            0..70 => {
                let (owner, bytes) = (random.owner(), random.size());
                match memory.alloc(owner, bytes) {
                    Ok(allocation) => model.took(owner, bytes, allocation, &context),
                    Err(short) => {
                        seen[0] += 1;
                        seen[1] += u32::from(short.reason == OutOfSpaceReason::Scattered);
                        model.assert_short(&memory, bytes, short, &context);
                    }
                }
            }
            70..90 if !model.blocks.is_empty() => {
                let at = usize::try_from(random.below(model.blocks.len() as u64)).unwrap();
                let known = model.blocks.swap_remove(at);
                model.released(known);
                assert_eq!(
                    memory.offset(known.allocation.block),
                    known.allocation.offset
                );
                let freed = memory.free(known.allocation.block).unwrap();
                assert_eq!(
                    (freed.blocks, freed.bytes),
                    (1, known.allocation.bytes),
                    "{context}"
                );
                assert_eq!(memory.free(known.allocation.block), None, "{context}");
            }
            90..94 => {
                let owner = random.owner();
                let owned = memory.owned(owner);
                let (blocks, bytes) = model.gone(owner);
                let freed = memory.free_owner(owner);
                assert_eq!((freed.blocks, freed.bytes), (blocks, bytes), "{context}");
                assert_eq!(bytes, owned, "{context}");
            }
            _ => {
                let fits = try_out(&mut memory, &model, &mut random, &context);
                seen[if fits { 2 } else { 3 }] += 1;
            }
        }
        model.assert_agrees(&memory, &context);
    }
    for owner in (0..OWNERS).map(OwnerId) {
        let mut blocks: Vec<_> = memory.blocks(owner).collect();
        blocks.sort_unstable();
        let known = model.blocks.iter().filter(|known| known.owner == owner);
        let mut known: Vec<_> = known
            .map(|known| (known.allocation.block, known.asked))
            .collect();
        known.sort_unstable();
        assert_eq!(blocks, known, "seed {seed}");
        memory.free_owner(owner);
    }
    let gauges = memory.gauges();
    assert_eq!((gauges.owned, gauges.asked), (0, 0), "seed {seed}");
    assert_eq!(gauges.largest_free_run, gauges.arena, "seed {seed}");
    assert_eq!(memory.free(BlockId(0)), None);
    seen
}

#[test]
fn an_arenas_counts_agree_with_the_model() {
    for (rule, buddy_min) in [
        (Rule::Partitions, 1),
        (Rule::Partitions, 8),
        (Rule::FreeList, 1),
    ] {
        let mut all = [0; 4];
        for seed in 0..12 {
            for (sum, seen) in all.iter_mut().zip(run(seed, rule, buddy_min)) {
                *sum += seen;
            }
        }
        println!("{rule:?}, buddies from {buddy_min}: short, scattered, fits, does not: {all:?}");
        let [short, scattered, fits, does_not] = all;
        assert!(short > 0 && fits > 0 && does_not > 0, "{all:?}");
        assert_eq!(scattered > 0, rule == Rule::Partitions, "{all:?}");
    }
}
