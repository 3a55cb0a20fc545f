//! A pool with memory in blocks, over random operations: arenas and the pool's counts agree after each operation, no
//! model is evicted needlessly, no request waits that could run, and in the end all memory is free.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use policy::memory::{self, Memory, OwnerId, Rule, UNIT};
use policy::pool::slots::{
    BlocksError, Decision, EvictReason, Evicted, Eviction, LoadBlocks, Model, Placement, Pool,
    Settings, Source, Topology, WaitReason,
};
use policy::pool::{FunctionId, Refusal, SlotId};
use policy::{Span, Time};
use testing::Random;

const MS: u64 = 1_000_000;
const SLOTS: u32 = 3;
const FUNCTIONS: u32 = 12;
const PARTITION: u64 = 64 * UNIT;

struct World {
    pool: Pool,
    random: Random,
    now: u64,
    sizes: Vec<Vec<u64>>,
    evicted: Vec<Evicted>,
    /// Counts of the pool's reasons.
    loads: u32,
    evictions: u32,
    scattered: u32,
    blocked: u32,
}

fn model(sizes: &[u64], heavy: bool) -> Model {
    Model {
        bytes: sizes.iter().sum(),
        heavy,
        tight: false,
        writes: false,
        execution: Span(10 * MS),
        swapped: Span(20 * MS),
    }
}

impl World {
    fn new(seed: u64, rule: Rule, settings: Settings) -> Self {
        let mut random = Random(seed);
        let mut topology =
            Topology::new(&[3 * PARTITION, 4 * PARTITION + 5, 3 * PARTITION]).unwrap();
        topology.share_host_path(SlotId(0), SlotId(1)).unwrap();
        topology.link(SlotId(0), SlotId(2), 40_000).unwrap();
        let blocks = memory::Settings {
            rule,
            ..memory::Settings::new(0)
        };
        let mut pool = Pool::with_blocks(settings, topology, blocks).unwrap();
        let mut sizes = Vec::new();
        for function in 0..FUNCTIONS {
            let own = cut(&mut random);
            let heavy = random.below(2) == 0;
            pool.add(FunctionId(function), model(&own, heavy)).unwrap();
            pool.set_blocks(FunctionId(function), &own).unwrap();
            sizes.push(own);
        }
        Self {
            pool,
            random,
            now: 0,
            sizes,
            evicted: Vec::new(),
            loads: 0,
            evictions: 0,
            scattered: 0,
            blocked: 0,
        }
    }

    fn arenas(&self) -> Vec<Memory> {
        (0..SLOTS)
            .map(|slot| self.pool.arena(SlotId(slot)).unwrap().clone())
            .collect()
    }

    fn agree(&self, context: &str) {
        for slot in 0..SLOTS {
            let arena = self.pool.arena(SlotId(slot)).unwrap();
            arena.check().unwrap();
            let (gauges, view) = (arena.gauges(), self.pool.slot(SlotId(slot)).unwrap());
            assert_eq!(
                (gauges.owned, gauges.free),
                (view.used, view.unused),
                "{context}"
            );
            assert!(gauges.owned <= gauges.arena, "{context}: {gauges:?}");
            for function in 0..FUNCTIONS {
                let id = FunctionId(function);
                let there = self.pool.hosts(id).any(|host| host == SlotId(slot))
                    || view.running == Some(id);
                let blocks = arena.blocks(OwnerId(function)).count();
                let all = self.sizes[function as usize].len();
                assert_eq!(
                    blocks,
                    if there { all } else { 0 },
                    "{context}: {function} on {slot}"
                );
            }
        }
    }

    fn step(&mut self, context: &str) {
        self.now += self.random.below(5 * MS);
        let now = Time(self.now);
        self.evicted.clear();
        let slot = SlotId(u32::try_from(self.random.index(SLOTS as usize)).unwrap());
        match self.random.below(12) {
            0..6 => self.request(context),
            6..8 => self.pool.loaded(now, slot, &mut self.evicted),
            8..11 => self.pool.finished(now, slot, &mut self.evicted),
            _ if self.random.below(3) == 0 => self.pool.abandon(now, slot),
            _ => {
                let function = u32::try_from(self.random.index(FUNCTIONS as usize)).unwrap();
                self.pool
                    .unload(FunctionId(function), slot, &mut self.evicted);
            }
        }
        self.agree(context);
    }

    fn request(&mut self, context: &str) {
        let function = u32::try_from(self.random.index(FUNCTIONS as usize)).unwrap();
        let (before, free) = (self.arenas(), self.free_slots());
        let may_go: Vec<Vec<u32>> = (0..SLOTS).map(|slot| self.may_go(slot)).collect();
        let random = self.random.next();
        let id = FunctionId(function);
        let sizes = &self.sizes[function as usize];
        match self
            .pool
            .schedule(Time(self.now), id, random, &mut self.evicted)
        {
            Decision::Run(run) if run.source == Source::Resident => {
                assert!(self.evicted.is_empty(), "{context}");
            }
            Decision::Run(run) => {
                self.loads += 1;
                let mut arena = before[run.slot.0 as usize].clone();
                let device = arena.gauges();
                for (at, victim) in self.evicted.iter().enumerate() {
                    self.evictions += 1;
                    assert_eq!(victim.slot, run.slot, "{context}");
                    assert!(
                        may_go[run.slot.0 as usize].contains(&victim.function.0),
                        "{context}"
                    );
                    let short = arena.fits(OwnerId(function), sizes).unwrap_err();
                    if at + 1 == self.evicted.len() && short.free >= short.asked {
                        self.scattered += 1;
                    }
                    let bytes = arena.free_owner(OwnerId(victim.function.0)).bytes;
                    assert_eq!(bytes, victim.bytes, "{context}");
                }
                let heavies = self
                    .evicted
                    .iter()
                    .map(|victim| victim.reason == EvictReason::Heavy);
                assert!(heavies.is_sorted(), "{context}: {:?}", self.evicted);
                arena.fits(OwnerId(function), sizes).unwrap();
                // The same blocks, by the same calls.
                for &size in sizes {
                    arena.alloc(OwnerId(function), size).unwrap();
                }
                let after = arena.gauges();
                assert_eq!(
                    after,
                    self.pool.arena(run.slot).unwrap().gauges(),
                    "{context}"
                );
                let taken = LoadBlocks {
                    blocks: u32::try_from(sizes.len()).unwrap(),
                    device_allocations: u32::try_from(
                        after.device_allocations - device.device_allocations,
                    )
                    .unwrap(),
                    device_frees: u32::try_from(after.device_frees - device.device_frees).unwrap(),
                };
                assert_eq!(self.pool.last_load(), taken, "{context}");
            }
            Decision::Wait {
                reason: WaitReason::Blocked,
                ..
            } => {
                self.blocked += 1;
                for slot in free {
                    let mut arena = before[slot as usize].clone();
                    for &victim in &may_go[slot as usize] {
                        arena.free_owner(OwnerId(victim));
                    }
                    assert!(
                        arena.fits(OwnerId(function), sizes).is_err(),
                        "{context}: {slot}"
                    );
                }
            }
            Decision::Wait { .. } => assert!(self.evicted.is_empty(), "{context}"),
        }
    }

    fn free_slots(&self) -> Vec<u32> {
        (0..SLOTS)
            .filter(|&slot| self.pool.slot(SlotId(slot)).unwrap().free)
            .collect()
    }

    /// Returns the models on a slot that are neither running nor the source of a copy.
    fn may_go(&self, slot: u32) -> Vec<u32> {
        let here = |function: &u32| {
            let id = FunctionId(*function);
            let runs = self.pool.slot(SlotId(slot)).unwrap().running == Some(id);
            let is_read = (0..SLOTS).any(|other| {
                let view = self.pool.slot(SlotId(other)).unwrap();
                view.running == Some(id) && view.loading == Some(Source::Slot(SlotId(slot)))
            });
            self.pool.hosts(id).any(|host| host == SlotId(slot)) && !runs && !is_read
        };
        (0..FUNCTIONS).filter(here).collect()
    }

    fn leave(&mut self) {
        for slot in 0..SLOTS {
            self.pool
                .finished(Time(self.now), SlotId(slot), &mut self.evicted);
        }
        for function in 0..FUNCTIONS {
            self.pool
                .remove(FunctionId(function), &mut self.evicted)
                .unwrap();
        }
        for slot in 0..SLOTS {
            let arena = self.pool.arena(SlotId(slot)).unwrap();
            let gauges = arena.gauges();
            arena.check().unwrap();
            assert_eq!(
                (gauges.owned, gauges.blocks, gauges.free),
                (0, 0, gauges.arena)
            );
            assert_eq!(gauges.largest_free_run, gauges.arena);
        }
    }
}

/// Returns the blocks of a model: common sizes, irregular ones, occasionally one larger than a partition.
fn cut(random: &mut Random) -> Vec<u64> {
    (0..1 + random.below(12))
        .map(|_| match random.below(8) {
            0..3 => UNIT,
            3..6 => 10 * UNIT,
            6 => 1 + random.below(PARTITION / 2),
            _ => 1 + random.below(PARTITION * 5 / 4),
        })
        .collect()
}

#[test]
fn arenas_and_counts_agree_after_random_operations() {
    let (mut evictions, mut scattered, mut blocked, mut loads) = (0, 0, 0, 0);
    for rule in [Rule::Partitions, Rule::FreeList] {
        for (number, placement, eviction) in [
            (0, Placement::InterferenceAware, Eviction::Classes),
            (1, Placement::Random, Eviction::LeastRecentlyUsed),
            (2, Placement::ResidentElseRandom, Eviction::Classes),
        ] {
            for seed in 0..12 {
                let settings = Settings {
                    placement,
                    eviction,
                    ..Settings::default()
                };
                let mut world = World::new(seed * 3 + number, rule, settings);
                for step in 0..150 {
                    world.step(&format!(
                        "{rule:?}, {placement:?}, seed {seed}, step {step}"
                    ));
                }
                loads += world.loads;
                evictions += world.evictions;
                scattered += world.scattered;
                blocked += world.blocked;
                world.leave();
            }
        }
    }
    assert!(
        loads > 1_000 && evictions > 300,
        "{loads} loads, {evictions} evictions"
    );
    assert!(
        blocked > 10 && scattered > 10,
        "{blocked} blocked, {scattered} scattered"
    );
}

#[test]
fn settings_without_support_for_blocks_are_refused() {
    let topology = || Topology::new(&[4 * PARTITION, UNIT]).unwrap();
    let blocks = memory::Settings::new(0);
    let small = Pool::with_blocks(Settings::default(), topology(), blocks).unwrap_err();
    assert!(small.to_string().contains("slot 1"), "{small}");
    let bound = Settings {
        binding: policy::pool::slots::Binding::Process,
        ..Settings::default()
    };
    let one = || Topology::new(&[4 * PARTITION]).unwrap();
    let refused = Pool::with_blocks(bound, one(), blocks).unwrap_err();
    assert_eq!(refused, BlocksError::BoundProcesses);
    let mut pool = Pool::with_blocks(Settings::default(), one(), blocks).unwrap();
    let id = FunctionId(0);
    assert_eq!(
        pool.set_blocks(id, &[1]),
        Err(Refusal::NoSuchFunction { function: id })
    );
    pool.add(id, model(&[UNIT], false)).unwrap();
    let residue = pool.add_instance(id, SlotId(0), 1, &mut Vec::new());
    assert!(matches!(residue, Err(Refusal::NoMemory { .. })));
}

/// Five blocks slightly larger than half a partition have the bytes of 2.6 partitions, but four partitions hold only
/// four of them.
#[test]
fn a_model_that_fits_by_bytes_but_not_in_blocks_is_reported() {
    let mut pool = Pool::with_blocks(
        Settings::default(),
        Topology::new(&[4 * PARTITION]).unwrap(),
        memory::Settings::new(0),
    )
    .unwrap();
    let sizes = [PARTITION / 2 + UNIT; 5];
    pool.add(FunctionId(0), model(&sizes, true)).unwrap();
    pool.set_blocks(FunctionId(0), &sizes).unwrap();
    let decision = pool.schedule(Time(0), FunctionId(0), 0, &mut Vec::new());
    assert!(
        matches!(
            decision,
            Decision::Wait {
                reason: WaitReason::NeverFits,
                ..
            }
        ),
        "{decision:?}"
    );
    // With one block fewer it fits; it would fit as one block of these bytes too, which is assumed until its blocks are
    // reported.
    pool.set_blocks(FunctionId(0), &sizes[1..]).unwrap();
    assert!(matches!(
        pool.schedule(Time(0), FunctionId(0), 0, &mut Vec::new()),
        Decision::Run(_)
    ));
}
