//! The memory of slots: counted in bytes, or kept in blocks (M2.10, papers 2.5), and what taking it costs.
//!
//! The pool decides what fits, who gives way and where blocks lie; here are only the blocks that a model has, and the time that
//! calls to the device take. Where all memory was reserved beforehand there are no such calls, and placing a block takes no
//! virtual time: it is well below a microsecond (`cargo bench -p policy --bench memory`). Nothing is copied to make room: M2.10
//! keeps a model's blocks together when they are placed.

use policy::memory::{self, Rule};
use policy::pool::Pool;
use policy::pool::slots::{self, BlocksError, Taken, Topology};
use policy::{Span, Time};
use serde::Deserialize;

use super::hardware::{Hardware, bytes, millis};
use super::run::{Event, Run};

/// How the memory of slots is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryRule {
    /// It is counted: a model fits if enough bytes are free, and taking them costs nothing.
    #[default]
    Bytes,
    /// It is reserved as a whole and given in blocks, those of a model together (M2.10).
    Blocks,
    /// Blocks come from the device. What was released is kept in one list, for whoever asks for no more than a block has;
    /// where none is large enough, blocks are given back to the device (M2.21, Torpor §7.3 `Block`).
    FreeList,
}

/// What calls to the device cost that give or take memory.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryTimes {
    /// A block from the device, µs.
    pub device_allocation_us: f64,
    /// A block back to it, µs.
    pub device_free_us: f64,
}

impl MemoryTimes {
    /// How long a load waits for its memory before the first copy.
    #[must_use]
    pub fn of(&self, taken: Taken) -> Span {
        let allocations = f64::from(taken.device_allocations) * self.device_allocation_us;
        let frees = f64::from(taken.device_frees) * self.device_free_us;
        millis((allocations + frees) / 1e3)
    }
}

impl MemoryRule {
    /// A pool that keeps its memory so.
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

/// Where the file says nothing of a model's blocks, the larger of those that a framework's caching allocator asks for.
const BLOCK_MIB: u64 = 20;
const MIB: u64 = 1 << 20;

impl Hardware {
    /// The blocks of a model, in bytes: as the file has them, else its weights in blocks of 20 MiB and a last one of what is
    /// left.
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
    /// How long its copies take, one after the other and alone.
    pub(super) takes: Span,
    pub(super) from_host: bool,
}

impl Run<'_> {
    /// A load begins to copy, at once or when the device has given its memory.
    pub(super) fn copy(&mut self, node: u32, slot: u32, prepared: Prepared) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let waits = self.hardware.memory.of(own.pool.taken());
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

    /// The memory of a load is there.
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
        self.foretell(node);
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
    fn the_wait_is_that_of_the_calls() {
        let times = MemoryTimes {
            device_allocation_us: 200.0,
            device_free_us: 50.0,
        };
        let taken = Taken {
            blocks: 9,
            device_allocations: 3,
            device_frees: 4,
        };
        assert_eq!(times.of(taken), Span(800_000));
        assert_eq!(times.of(Taken::default()), Span::ZERO);
    }

    #[test]
    fn a_rule_is_read_by_its_name() {
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
