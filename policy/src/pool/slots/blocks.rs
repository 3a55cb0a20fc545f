//! The memory of slots kept in blocks (M2.10, papers 2.5): whether a model's blocks fit, who would have to go before they do,
//! and where they come to lie.
//!
//! Who gives way is the order of 2.3b whatever the memory; with blocks it goes on until the model's blocks fit, which may be
//! later than when enough bytes are free. Nothing is moved to make room: 2.5 keeps a model's blocks together when they are
//! placed.
//!
//! Each look costs O(blocks of the model) placements for a slot, and as many again for each model that would have to give
//! way after enough bytes are free.

use std::fmt;

use super::copies::Slot;
use super::settings::{Binding, Placement};
use super::{Evicted, Pool, Settings, Topology, bits};
use crate::memory::{self, Memory, OwnerId, Placed};
use crate::pool::{FunctionId, Refusal, SlotId};

/// What the last load took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Taken {
    /// How many blocks.
    pub blocks: u32,
    /// Of them, how many the device had to give.
    pub device_allocations: u32,
    /// Blocks that were given back to the device first.
    pub device_frees: u32,
}

/// Why a pool cannot keep its memory in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksError {
    /// A slot's arena is refused.
    Arena {
        /// Whose.
        slot: SlotId,
        /// Why.
        why: memory::SettingsError,
    },
    /// The context of a bound process lies outside of any arena.
    BoundProcesses,
}

impl fmt::Display for BlocksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arena { slot, why } => write!(f, "slot {}: {why}", slot.0),
            Self::BoundProcesses => f.write_str(
                "memory is kept in blocks only where calls are redirected: a bound process has its own",
            ),
        }
    }
}

impl std::error::Error for BlocksError {}

/// The blocks of a function's model.
#[derive(Clone, Debug, Default)]
struct Cut {
    /// In bytes, in the order in which they are asked for.
    sizes: Vec<u64>,
    /// What they take at least.
    least: u64,
    /// Whether they fit an empty slot.
    ever: bool,
}

/// The arenas of a pool.
#[derive(Clone, Debug)]
pub(super) struct Arenas {
    slots: Vec<Memory>,
    /// The largest, with nothing in it.
    empty: Memory,
    cuts: Vec<Cut>,
    /// As of the last look, by slot: bytes that are missing for the function; `None`: it cannot come there.
    missing: Vec<Option<u64>>,
    /// Room for the order in which models would give way.
    order: Vec<(usize, u64, u32)>,
    pub(super) taken: Taken,
}

const fn owner(function: FunctionId) -> OwnerId {
    OwnerId(function.0)
}

impl Arenas {
    fn new(topology: &Topology, settings: memory::Settings) -> Result<Self, BlocksError> {
        let arena = |(slot, &arena): (u32, &u64)| {
            Memory::new(memory::Settings { arena, ..settings }).map_err(|why| BlocksError::Arena {
                slot: SlotId(slot),
                why,
            })
        };
        let slots: Vec<Memory> = (0..)
            .zip(&topology.memory)
            .map(arena)
            .collect::<Result<_, _>>()?;
        let largest = slots.iter().max_by_key(|arena| arena.settings().arena);
        Ok(Self {
            empty: largest.expect("a topology has a slot").clone(),
            missing: vec![None; slots.len()],
            slots,
            cuts: Vec::new(),
            order: Vec::new(),
            taken: Taken::default(),
        })
    }

    fn set(&mut self, function: FunctionId, sizes: &[u64]) {
        let at = function.0 as usize;
        if self.cuts.len() <= at {
            self.cuts.resize_with(at + 1, Cut::default);
        }
        let unit = self.empty.settings().unit;
        let whole = |&bytes: &u64| bytes.max(1).div_ceil(unit).saturating_mul(unit);
        self.cuts[at] = Cut {
            least: sizes.iter().map(whole).fold(0, u64::saturating_add),
            ever: self.empty.fits(owner(function), sizes).is_ok(),
            sizes: sizes.to_vec(),
        };
    }

    /// Whether the blocks fit a slot as it is.
    fn fits(&mut self, function: FunctionId, slot: u32, free: u64) -> bool {
        let cut = &self.cuts[function.0 as usize];
        let arena = &mut self.slots[slot as usize];
        cut.least <= free && arena.fits(owner(function), &cut.sizes).is_ok()
    }

    /// How many bytes are missing on a slot; `None`: the blocks do not fit, whoever gives way. Where enough bytes are free
    /// but not together, a unit is missing.
    fn look(&mut self, function: FunctionId, slot: u32, at: &Slot) -> Option<u64> {
        let free = at.memory.free();
        if self.fits(function, slot, free) {
            return Some(0);
        }
        let cut = &self.cuts[function.0 as usize];
        if free + at.evictable < cut.least {
            return None;
        }
        self.order.clear();
        for (class, heap) in at.order.iter().enumerate() {
            let each = heap.iter().map(|(used, victim)| (class, used, victim));
            self.order.extend(each);
        }
        self.order.sort_unstable();
        let mut trial = self.slots[slot as usize].trial();
        let mut room = free;
        let found = self.order.iter().any(|&(.., victim)| {
            room += trial.free_owner(OwnerId(victim)).bytes;
            cut.least <= room && trial.fits(owner(function), &cut.sizes).is_ok()
        });
        let unit = self.empty.settings().unit;
        found.then(|| cut.least.saturating_sub(free).max(unit))
    }

    /// Places the blocks, for which there is room; tells the bytes that they take.
    fn place(&mut self, function: FunctionId, slot: u32) -> u64 {
        let cut = &self.cuts[function.0 as usize];
        let mut bytes = 0;
        self.taken = Taken::default();
        for &size in &cut.sizes {
            let Ok(block) = self.slots[slot as usize].alloc(owner(function), size) else {
                debug_assert!(false, "room was promised that is not there");
                continue;
            };
            bytes += block.bytes;
            self.taken.blocks += 1;
            if let Placed::Device { frees } = block.placed {
                self.taken.device_allocations += 1;
                self.taken.device_frees += frees;
            }
        }
        bytes
    }
}

impl Pool {
    /// A pool whose slots keep their memory in blocks; the arena of `blocks` is replaced by what the topology says of each
    /// slot.
    ///
    /// # Errors
    /// [`BlocksError`].
    pub fn with_blocks(
        settings: Settings,
        topology: Topology,
        blocks: memory::Settings,
    ) -> Result<Self, BlocksError> {
        if settings.binding == Binding::Process {
            return Err(BlocksError::BoundProcesses);
        }
        let arenas = Arenas::new(&topology, blocks)?;
        let mut pool = Self::new(settings, topology);
        for (slot, arena) in pool.slots.iter_mut().zip(&arenas.slots) {
            slot.memory = super::memory::Memory::new(arena.gauges().arena);
        }
        pool.arenas = Some(arenas);
        Ok(pool)
    }

    /// The blocks of a function's model, in bytes, in the order in which they are asked for: of its next copies. Until then,
    /// and again after [`Pool::update`] with other bytes, it is one block. Nothing where memory is only counted.
    ///
    /// # Errors
    /// [`Refusal::NoSuchFunction`].
    pub fn set_blocks(&mut self, function: FunctionId, sizes: &[u64]) -> Result<(), Refusal> {
        if self.function(function).is_none() {
            return Err(Refusal::NoSuchFunction { function });
        }
        if let Some(arenas) = &mut self.arenas {
            arenas.set(function, sizes);
        }
        Ok(())
    }

    /// A slot's arena; `None` where memory is only counted, or there is no such slot.
    #[must_use]
    pub fn arena(&self, slot: SlotId) -> Option<&Memory> {
        self.arenas.as_ref()?.slots.get(slot.0 as usize)
    }

    /// What the last load took of its slot's memory; nothing where memory is only counted.
    #[must_use]
    pub fn taken(&self) -> Taken {
        self.arenas
            .as_ref()
            .map_or_else(Taken::default, |arenas| arenas.taken)
    }

    /// Whether blocks of the model can be on an empty slot; `None` where memory is only counted.
    pub(super) fn ever_fits(&self, function: FunctionId) -> Option<bool> {
        let arenas = self.arenas.as_ref()?;
        Some(arenas.cuts[function.0 as usize].ever)
    }

    /// Looks at the slots where the function's model could come to, before one is chosen.
    pub(super) fn look(&mut self, function: FunctionId) {
        if self.arenas.is_none() {
            return;
        }
        let Some(entry) = self.function(function) else {
            return;
        };
        let is_there = entry.hosts & self.idle != 0;
        if is_there && self.settings.placement != Placement::Random {
            return;
        }
        let Some(arenas) = &mut self.arenas else {
            return;
        };
        for slot in bits(self.idle) {
            arenas.missing[slot as usize] = arenas.look(function, slot, &self.slots[slot as usize]);
        }
    }

    /// How many bytes are missing on a slot for so many more, if what may give way there is enough. In blocks: as of the
    /// last look.
    pub(super) fn missing(&self, bytes: u64, slot: u32) -> Option<u64> {
        let at = &self.slots[slot as usize];
        match &self.arenas {
            None => {
                let need = at.memory.need(bytes);
                (need <= at.evictable).then_some(need)
            }
            Some(arenas) => arenas.missing[slot as usize],
        }
    }

    /// Whether the model fits a slot with nobody gone.
    pub(super) fn has_room(&mut self, function: FunctionId, slot: u32) -> bool {
        let memory = self.slots[slot as usize].memory;
        match &mut self.arenas {
            None => memory.need(self.entry(function).model.bytes) == 0,
            Some(arenas) => arenas.fits(function, slot, memory.free()),
        }
    }

    /// Evicts until the model fits. The caller has seen that it can.
    pub(super) fn make_room_for(
        &mut self,
        function: FunctionId,
        slot: u32,
        evicted: &mut Vec<Evicted>,
    ) {
        while !self.has_room(function, slot) && self.one_gives_way(slot, evicted) {}
    }

    /// The model takes its memory, for which there is room.
    pub(super) fn occupy(&mut self, function: FunctionId, slot: u32) {
        let bytes = match &mut self.arenas {
            None => self.entry(function).model.bytes,
            Some(arenas) => arenas.place(function, slot),
        };
        self.slots[slot as usize].memory.take(bytes);
        self.copy_mut(function, slot).bytes = bytes;
        self.compare(slot);
    }

    /// The model gives its memory back; tells the bytes.
    pub(super) fn vacate(&mut self, function: FunctionId, slot: u32) -> u64 {
        let bytes = std::mem::take(&mut self.copy_mut(function, slot).bytes);
        self.slots[slot as usize].memory.give(bytes);
        if let Some(arenas) = &mut self.arenas {
            arenas.slots[slot as usize].free_owner(owner(function));
        }
        self.compare(slot);
        bytes
    }

    /// The arena and the count of bytes say the same.
    fn compare(&self, slot: u32) {
        debug_assert!(
            self.arena(SlotId(slot)).is_none_or(|arena| {
                arena.gauges().owned == self.slots[slot as usize].memory.used()
            }),
            "the books of slot {slot} do not agree"
        );
    }

    /// The blocks of a function whose model has these bytes, until they are said.
    pub(super) fn one_block(&mut self, function: FunctionId, bytes: u64) {
        if let Some(arenas) = &mut self.arenas {
            arenas.set(function, &[bytes]);
        }
    }
}
