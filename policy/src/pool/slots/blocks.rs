//! Slot memory kept in blocks (M2.10, mechanisms §2.5): whether a model's blocks fit, which models have to be evicted before
//! they do, and where the blocks are placed.
//!
//! Models are evicted in the order of mechanisms §2.3b, whatever the memory. With blocks, eviction continues until the model's
//! blocks fit, which may take longer than until enough bytes are free. Nothing is moved to make room: mechanisms §2.5 keeps a
//! model's blocks together when they are placed.
//!
//! Each evaluation of a slot costs O(blocks of the model) placements, and as many again for each model that would have
//! to be evicted after enough bytes are free.

use std::fmt;

use super::copies::Slot;
use super::settings::{Binding, Placement};
use super::{Evicted, Pool, Settings, Topology, bits};
use crate::memory::{self, BlockPlacement, Memory, OwnerId};
use crate::pool::{FunctionId, Refusal, SlotId};

/// Blocks allocated by the last load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LoadBlocks {
    /// Number of blocks allocated.
    pub blocks: u32,
    /// Number of these blocks that the device had to allocate.
    pub device_allocations: u32,
    /// Number of cached blocks that were first given back to the device.
    pub device_frees: u32,
}

/// Reason why a pool cannot keep its memory in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlocksError {
    /// The settings of a slot's arena are refused.
    Arena {
        /// Slot of the refused arena.
        slot: SlotId,
        /// Reason for the refusal.
        why: memory::SettingsError,
    },
    /// Processes are bound to slots, and the context of a bound process is outside of any arena.
    BoundProcesses,
}

impl fmt::Display for BlocksError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arena { slot, why } => write!(f, "slot {}: {why}", slot.0),
            Self::BoundProcesses => f.write_str(
                "memory can be kept in blocks only where calls are redirected: a bound process has its own memory",
            ),
        }
    }
}

impl std::error::Error for BlocksError {}

/// Blocks of a function's model.
#[derive(Clone, Debug, Default)]
struct ModelBlocks {
    /// Sizes in bytes, in the order in which the blocks are allocated.
    sizes: Vec<u64>,
    /// Least number of bytes that the blocks take: their sizes, each rounded up to whole units.
    least: u64,
    /// Whether the blocks fit an empty slot.
    ever: bool,
}

/// Block allocators of a pool's slots.
#[derive(Clone, Debug)]
pub(super) struct Arenas {
    slots: Vec<Memory>,
    /// Copy of the largest arena, without any block.
    empty: Memory,
    models: Vec<ModelBlocks>,
    /// Bytes that are missing for the function by slot, as of the last evaluation; `None` if its model cannot be loaded
    /// there.
    missing: Vec<Option<u64>>,
    /// Buffer for the order in which models would be evicted.
    order: Vec<(usize, u64, u32)>,
    pub(super) taken: LoadBlocks,
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
            models: Vec::new(),
            order: Vec::new(),
            taken: LoadBlocks::default(),
        })
    }

    fn set(&mut self, function: FunctionId, sizes: &[u64]) {
        let at = function.0 as usize;
        if self.models.len() <= at {
            self.models.resize_with(at + 1, ModelBlocks::default);
        }
        let unit = self.empty.settings().unit;
        let whole = |&bytes: &u64| bytes.max(1).div_ceil(unit).saturating_mul(unit);
        self.models[at] = ModelBlocks {
            least: sizes.iter().map(whole).fold(0, u64::saturating_add),
            ever: self.empty.fits(owner(function), sizes).is_ok(),
            sizes: sizes.to_vec(),
        };
    }

    /// Returns whether the blocks of a function's model fit a slot with `free` free bytes without evictions.
    fn fits(&mut self, function: FunctionId, slot: u32, free: u64) -> bool {
        let model = &self.models[function.0 as usize];
        let arena = &mut self.slots[slot as usize];
        model.least <= free && arena.fits(owner(function), &model.sizes).is_ok()
    }

    /// Returns the number of bytes that are missing on a slot, or `None` if the blocks do not fit whichever models are
    /// evicted. If enough bytes are free but not together, one unit is missing.
    fn look(&mut self, function: FunctionId, slot: u32, at: &Slot) -> Option<u64> {
        let free = at.memory.free();
        if self.fits(function, slot, free) {
            return Some(0);
        }
        let model = &self.models[function.0 as usize];
        if free + at.evictable < model.least {
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
            model.least <= room && trial.fits(owner(function), &model.sizes).is_ok()
        });
        let unit = self.empty.settings().unit;
        found.then(|| model.least.saturating_sub(free).max(unit))
    }

    /// Places the blocks, for which there is room, and returns the bytes that they take.
    fn place(&mut self, function: FunctionId, slot: u32) -> u64 {
        let model = &self.models[function.0 as usize];
        let mut bytes = 0;
        self.taken = LoadBlocks::default();
        for &size in &model.sizes {
            let Ok(block) = self.slots[slot as usize].alloc(owner(function), size) else {
                debug_assert!(false, "the blocks must fit, as checked before");
                continue;
            };
            bytes += block.bytes;
            self.taken.blocks += 1;
            if let BlockPlacement::Device { frees } = block.placed {
                self.taken.device_allocations += 1;
                self.taken.device_frees += frees;
            }
        }
        bytes
    }
}

impl Pool {
    /// Creates a pool with slots that keep their memory in blocks. The arena size in `blocks` is replaced by the memory
    /// of each slot in the topology.
    ///
    /// # Errors
    /// Returns [`BlocksError`] if a slot's arena is refused, or processes are bound.
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

    /// Sets the blocks of a function's model for its next copies: their sizes in bytes, in the order in which they are
    /// allocated. Until then, and again after [`Pool::update`] with other bytes, the model is one block. Has no effect
    /// where memory is only counted.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchFunction`].
    pub fn set_blocks(&mut self, function: FunctionId, sizes: &[u64]) -> Result<(), Refusal> {
        if self.function(function).is_none() {
            return Err(Refusal::NoSuchFunction { function });
        }
        if let Some(arenas) = &mut self.arenas {
            arenas.set(function, sizes);
        }
        Ok(())
    }

    /// Returns a slot's arena, or `None` if memory is only counted or there is no such slot.
    #[must_use]
    pub fn arena(&self, slot: SlotId) -> Option<&Memory> {
        self.arenas.as_ref()?.slots.get(slot.0 as usize)
    }

    /// Returns the blocks that the last load allocated; zero where memory is only counted.
    #[must_use]
    pub fn last_load(&self) -> LoadBlocks {
        self.arenas
            .as_ref()
            .map_or_else(LoadBlocks::default, |arenas| arenas.taken)
    }

    /// Returns whether the model's blocks fit an empty slot, or `None` if memory is only counted.
    pub(super) fn ever_fits(&self, function: FunctionId) -> Option<bool> {
        let arenas = self.arenas.as_ref()?;
        Some(arenas.models[function.0 as usize].ever)
    }

    /// Evaluates the slots to which the function's model could be loaded, before one is chosen.
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

    /// Returns how many bytes must be evicted from a slot to make room for `bytes`, or `None` if what may be evicted
    /// there is not enough. With blocks, the result is that of the last evaluation.
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

    /// Returns whether the model fits a slot without evictions.
    pub(super) fn has_room(&mut self, function: FunctionId, slot: u32) -> bool {
        let memory = self.slots[slot as usize].memory;
        match &mut self.arenas {
            None => memory.need(self.entry(function).model.bytes) == 0,
            Some(arenas) => arenas.fits(function, slot, memory.free()),
        }
    }

    /// Evicts models until this one fits. The caller has checked that it can.
    pub(super) fn make_room_for(
        &mut self,
        function: FunctionId,
        slot: u32,
        evicted: &mut Vec<Evicted>,
    ) {
        while !self.has_room(function, slot) && self.evict_next(slot, evicted) {}
    }

    /// Takes the memory of the model, for which there is room.
    pub(super) fn occupy(&mut self, function: FunctionId, slot: u32) {
        let bytes = match &mut self.arenas {
            None => self.entry(function).model.bytes,
            Some(arenas) => arenas.place(function, slot),
        };
        self.slots[slot as usize].memory.take(bytes);
        self.copy_mut(function, slot).bytes = bytes;
        self.compare(slot);
    }

    /// Releases the memory of the model and returns its bytes.
    pub(super) fn vacate(&mut self, function: FunctionId, slot: u32) -> u64 {
        let bytes = std::mem::take(&mut self.copy_mut(function, slot).bytes);
        self.slots[slot as usize].memory.give(bytes);
        if let Some(arenas) = &mut self.arenas {
            arenas.slots[slot as usize].free_owner(owner(function));
        }
        self.compare(slot);
        bytes
    }

    /// Asserts in debug builds that the arena and the count of bytes agree.
    fn compare(&self, slot: u32) {
        debug_assert!(
            self.arena(SlotId(slot)).is_none_or(|arena| {
                arena.gauges().owned == self.slots[slot as usize].memory.used()
            }),
            "the arena and the byte count of slot {slot} must agree"
        );
    }

    /// Sets the model of a function to one block of `bytes`, until its blocks are set.
    pub(super) fn one_block(&mut self, function: FunctionId, bytes: u64) {
        if let Some(arenas) = &mut self.arenas {
            arenas.set(function, &[bytes]);
        }
    }
}
