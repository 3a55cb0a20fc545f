//! What processes bound to their slots need beside requests: slots that appear, models whose size changes while they are there, copies that
//! cannot leave, and a slot that its last model uses again ([`crate::pool::leases`]).

use super::copies::{CLASSES, Copy, Running, Slot};
use super::decision::{EvictReason, Evicted};
use super::memory::{Load, Memory};
use super::{Pool, SLOTS_MAX};
use crate::heap::IndexedHeap;
use crate::pool::{FunctionId, Refusal, SlotId};
use crate::{Span, Time};

impl Pool {
    /// Adds free slots without memory or links until there are `count`, at most [`SLOTS_MAX`]. O(functions · slots).
    pub fn add_slots(&mut self, count: usize) {
        let (before, count) = (self.slots.len(), count.min(SLOTS_MAX));
        if count <= before {
            return;
        }
        let mut copies = Vec::with_capacity(self.functions.len() * count);
        let mut links = Vec::with_capacity(count * count);
        for row in self.copies.chunks(before) {
            copies.extend_from_slice(row);
            copies.resize_with(copies.len() + count - before, Copy::default);
        }
        for row in self.topology.links.chunks(before) {
            links.extend_from_slice(row);
            links.resize(links.len() + count - before, 0);
        }
        links.resize(count * count, 0);
        self.copies = copies;
        self.topology.links = links;
        self.topology.memory.resize(count, 0);
        self.topology.neighbours.resize(count, 0);
        self.slots.resize_with(count, || Slot::new(0));
        for slot in before..count {
            self.idle |= 1 << slot;
        }
    }

    /// Changes the memory of a slot for models, in bytes. Models that exceed it stay until others need room.
    pub fn set_capacity(&mut self, slot: SlotId, bytes: u64) {
        if let Some(at) = self.slots.get_mut(slot.0 as usize) {
            at.memory.set_capacity(bytes);
            self.topology.memory[slot.0 as usize] = bytes;
        }
    }

    /// Sets with which others a slot shares its path to the host, as a bit set; they share it with that slot, too.
    pub fn set_neighbours(&mut self, slot: SlotId, neighbours: u64) {
        let at = slot.0 as usize;
        if at >= self.slots.len() {
            return;
        }
        let own = 1_u64 << slot.0;
        for (other, set) in self.topology.neighbours.iter_mut().enumerate() {
            let is_neighbour = neighbours >> other & 1 == 1 && other != at;
            *set = (*set & !own) | if is_neighbour { own } else { 0 };
        }
        self.topology.neighbours[at] = neighbours & (u64::MAX >> (64 - self.slots.len())) & !own;
    }

    /// Takes a free slot again for the function whose model is there, and returns whether both are so.
    pub fn resume(&mut self, now: Time, function: FunctionId, slot: SlotId) -> bool {
        self.now = self.now.max(now);
        let is_free = slot.0 < 64 && self.idle >> slot.0 & 1 == 1;
        let Some(entry) = self.function(function).filter(|_| is_free) else {
            return false;
        };
        if entry.hosts >> slot.0 & 1 == 0 {
            return false;
        }
        let ends = self.now.after(entry.model.execution);
        self.idle &= !(1 << slot.0);
        self.slots[slot.0 as usize].running = Some(Running {
            function,
            loading: None,
            since: self.now,
            ends,
        });
        self.copy_mut(function, slot.0).running = true;
        self.update_eviction_order(function, slot.0);
        true
    }

    /// Records that a model is completely on a slot and takes `bytes` there, whether there is room or not: what is so need not have been decided
    /// here. Returns false if the function or the slot does not exist, or the model is being loaded or copied from there.
    pub fn set_resident(&mut self, function: FunctionId, slot: SlotId, bytes: u64) -> bool {
        if self.slots.len() <= slot.0 as usize || self.arenas.is_some() {
            return false;
        }
        let Some(entry) = self.function(function) else {
            return false;
        };
        if (entry.loading | entry.leaving) >> slot.0 & 1 == 1 {
            return false;
        }
        let is_there = entry.hosts >> slot.0 & 1 == 1;
        let is_counted = self.copy(function, slot.0).class.is_some();
        let before = std::mem::replace(&mut self.copy_mut(function, slot.0).bytes, bytes);
        let at = &mut self.slots[slot.0 as usize];
        at.memory.give(before);
        at.memory.take(bytes);
        if is_counted {
            at.evictable = at.evictable - before + bytes;
        }
        if !is_there {
            self.uses += 1;
            self.copy_mut(function, slot.0).used = self.uses;
            self.arrives(function, slot.0);
        }
        true
    }

    /// Makes room for a copy that is there to grow to `bytes`, by evicting others.
    ///
    /// # Errors
    /// Returns [`Refusal::NoInstance`] if no copy is there, or [`Refusal::NoMemory`] if evictions cannot make enough room; nothing is evicted then.
    pub fn grow(
        &mut self,
        function: FunctionId,
        slot: SlotId,
        bytes: u64,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), Refusal> {
        let held = self.function(function).map_or(0, |entry| entry.hosts);
        if slot.0 >= 64 || held >> slot.0 & 1 == 0 {
            return Err(Refusal::NoInstance { function, slot });
        }
        let more = bytes.saturating_sub(self.copy(function, slot.0).bytes);
        let was_pinned = self.is_pinned(function, slot);
        self.set_pinned(function, slot, true);
        let at = &self.slots[slot.0 as usize];
        let result = if at.memory.need(more) > at.evictable {
            Err(Refusal::NoMemory { slot, bytes })
        } else {
            self.make_room(slot.0, more, evicted);
            let _there = self.set_resident(function, slot, bytes);
            Ok(())
        };
        self.set_pinned(function, slot, was_pinned);
        result
    }

    /// Returns whether a copy must not be evicted although nothing uses it.
    #[must_use]
    pub fn is_pinned(&self, function: FunctionId, slot: SlotId) -> bool {
        let is_known = self.function(function).is_some() && (slot.0 as usize) < self.slots.len();
        is_known && self.copy(function, slot.0).pinned
    }

    /// Sets whether a copy must not be evicted although nothing uses it.
    pub fn set_pinned(&mut self, function: FunctionId, slot: SlotId, pinned: bool) {
        if self.function(function).is_some() && (slot.0 as usize) < self.slots.len() {
            self.copy_mut(function, slot.0).pinned = pinned;
            self.update_eviction_order(function, slot.0);
        }
    }

    /// Unloads the models on a slot for which `leaves` returns true, apart from those in use.
    pub fn unload_where(
        &mut self,
        slot: SlotId,
        leaves: impl Fn(FunctionId) -> bool,
        evicted: &mut Vec<Evicted>,
    ) {
        let Some(at) = self.slots.get(slot.0 as usize) else {
            return;
        };
        let mut models: Vec<u32> = at
            .order
            .iter()
            .flat_map(IndexedHeap::iter)
            .map(|(_, model)| model)
            .collect();
        models.sort_unstable();
        for function in models.into_iter().map(FunctionId) {
            if leaves(function) {
                self.leaves(function, slot.0, EvictReason::Unloaded, evicted);
            }
        }
    }

    /// Returns the memory that a function's copy takes on a slot, in bytes; 0 if there is none.
    #[must_use]
    pub fn bytes(&self, function: FunctionId, slot: SlotId) -> u64 {
        let is_known = self.function(function).is_some() && (slot.0 as usize) < self.slots.len();
        if is_known {
            self.copy(function, slot.0).bytes
        } else {
            0
        }
    }

    /// Returns the slots on which the function's model is complete or arrives, as a bit set.
    #[must_use]
    pub fn held(&self, function: FunctionId) -> u64 {
        self.function(function)
            .map_or(0, |entry| entry.hosts | entry.loading | entry.leaving)
    }

    /// Returns the slots on which the function has an instance, as a bit set.
    #[must_use]
    pub fn instances(&self, function: FunctionId) -> u64 {
        self.function(function).map_or(0, |entry| entry.instances)
    }

    /// Returns the free slots, as a bit set.
    #[must_use]
    pub const fn free_set(&self) -> u64 {
        self.idle
    }
}

impl Slot {
    /// Creates a free slot with this capacity for models, in bytes.
    pub(super) const fn new(capacity: u64) -> Self {
        Self {
            memory: Memory::new(capacity),
            running: None,
            down: false,
            light: 0,
            evictable: 0,
            order: [const { IndexedHeap::new() }; CLASSES],
            load: Load::new(),
            ahead: None,
            streams: None,
            busy: Span::ZERO,
            loading: Span::ZERO,
        }
    }
}
