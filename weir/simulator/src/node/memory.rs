//! Memory of slots, counted in bytes or managed in blocks (M2.10, mechanisms §2.5), and the cost of allocating it.
//!
//! The pool decides what fits, which models are evicted and where blocks are placed; this module only knows the blocks of a
//! model and the time of calls to the device. Where all memory is reserved beforehand there are no such calls, and placing a
//! block takes no virtual time: it is well below a microsecond (`cargo bench -p policy --bench memory`). Nothing is copied to
//! make room: M2.10 keeps a model's blocks together when they are placed.

use policy::memory::{self, Rule};
use policy::pool::Pool;
use policy::pool::slots::{self, BlocksError, LoadBlocks, Topology};
use policy::{Span, Time};
use serde::Deserialize;

use super::hardware::{Hardware, bytes, millis};
use super::run::{Event, Run};

/// Management of the slots' memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryRule {
    /// Bytes are counted: a model fits if enough bytes are free, and allocation takes no time.
    #[default]
    Bytes,
    /// All memory is reserved and divided into blocks, with those of a model together (M2.10).
    Blocks,
    /// Blocks are allocated from the device. Released blocks are kept in one list and serve requests of at most their size;
    /// where none is large enough, blocks are freed on the device (M2.21, Torpor §7.3 `Block`).
    FreeList,
}

/// Cost of the device's memory calls.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryTimes {
    /// Time to allocate a block, in microseconds.
    pub device_allocation_us: f64,
    /// Time to free a block, in microseconds.
    pub device_free_us: f64,
}

impl MemoryTimes {
    /// Returns how long a load waits for its memory before the first copy.
    #[must_use]
    pub fn of(&self, taken: LoadBlocks) -> Span {
        let allocations = f64::from(taken.device_allocations) * self.device_allocation_us;
        let frees = f64::from(taken.device_frees) * self.device_free_us;
        millis((allocations + frees) / 1e3)
    }
}

impl MemoryRule {
    /// Returns a pool with memory managed by this rule.
    pub(super) fn pool(
        self,
        settings: slots::Settings,
        topology: Topology,
    ) -> Result<Pool, BlocksError> {
        let rule = match self {
            Self::Bytes => return Ok(Pool::new(settings, topology)),
            Self::Blocks => Rule::Partitions,
            Self::FreeList => Rule::FreeList,
        };
        let blocks = memory::Settings {
            rule,
            ..memory::Settings::new(0)
        };
        Pool::with_blocks(settings, topology, blocks)
    }
}

/// Size of a block in MiB where the file lists none: the larger of those that a framework's caching allocator requests.
const BLOCK_MIB: u64 = 20;
const MIB: u64 = 1 << 20;

impl Hardware {
    /// Returns the blocks of a model, in bytes: as listed in the file, otherwise its weights in blocks of 20 MiB and a last one
    /// for the remainder.
    #[must_use]
    pub fn blocks(&self, model: usize) -> Vec<u64> {
        let times = &self.models[model];
        if times.blocks_mib.is_empty() {
            let weights = bytes(times.weights_mb * 1e6);
            let (whole, rest) = (weights / (BLOCK_MIB * MIB), weights % (BLOCK_MIB * MIB));
            let whole = (0..whole).map(|_| BLOCK_MIB * MIB);
            return whole.chain((rest > 0).then_some(rest)).collect();
        }
        let each = times.blocks_mib.iter();
        each.flat_map(|&[size, count]| (0..count).map(move |_| u64::from(size) * MIB))
            .collect()
    }
}

/// A load that waits for its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    /// Time that the load's copies take, one after the other and without contention.
    pub(super) takes: Span,
    pub(super) from_host: bool,
}

impl Run<'_> {
    /// Starts the copies of a load, at once or when the device has allocated its memory.
    pub(super) fn copy(&mut self, node: u32, slot: u32, prepared: Prepared) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let waits = self.hardware.memory.of(own.pool.last_load());
        if waits > Span::ZERO {
            if let Some(request) = &mut own.running[slot as usize] {
                request.executed = request.executed.after(waits);
                request.waited = waits;
            }
            own.prepared[slot as usize] = Some(prepared);
            self.agenda
                .add(now.after(waits), Event::Prepared { node, slot });
        } else {
            self.copies(node, slot, prepared, now);
        }
    }

    /// Starts the copies of a load when its memory has been allocated.
    pub(super) fn prepared(&mut self, node: u32, slot: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        if let Some(prepared) = own.prepared[slot as usize].take() {
            self.copies(node, slot, prepared, now);
        }
    }

    fn copies(&mut self, node: u32, slot: u32, prepared: Prepared, now: Time) {
        let links = &mut self.nodes[node as usize].links;
        if prepared.from_host {
            links.from_host(now, slot, prepared.takes, &mut self.ends);
        } else {
            links.from_slot(now, slot, prepared.takes, &mut self.ends);
        }
        self.schedule_ends(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_file_or_of_a_caching_allocator() {
        let mut hardware = Hardware::torpor();
        let at = hardware.model("Bert-qa").unwrap();
        let blocks = hardware.blocks(at);
        assert_eq!(blocks.len(), 69);
        assert_eq!(blocks.iter().sum::<u64>(), 1_290 * MIB);
        hardware.models[at].blocks_mib.clear();
        let blocks = hardware.blocks(at);
        assert_eq!(blocks.iter().sum::<u64>(), 1_340_000_000);
        assert_eq!(blocks.len(), 64);
        assert!(blocks.iter().all(|&block| block <= 20 * MIB));
    }

    #[test]
    fn the_wait_is_the_sum_of_the_calls() {
        let times = MemoryTimes {
            device_allocation_us: 200.0,
            device_free_us: 50.0,
        };
        let taken = LoadBlocks {
            blocks: 9,
            device_allocations: 3,
            device_frees: 4,
        };
        assert_eq!(times.of(taken), Span(800_000));
        assert_eq!(times.of(LoadBlocks::default()), Span::ZERO);
    }

    #[test]
    fn rules_are_parsed_by_name() {
        #[derive(Deserialize)]
        struct Line {
            memory: MemoryRule,
        }
        for (name, rule) in [
            ("bytes", MemoryRule::Bytes),
            ("blocks", MemoryRule::Blocks),
            ("free_list", MemoryRule::FreeList),
        ] {
            let line: Line = toml::from_str(&format!("memory = {name:?}")).unwrap();
            assert_eq!(line.memory, rule);
        }
    }
}
