//! The copies of models on the slots, and the order in which they are evicted.

use super::decision::{EvictReason, Evicted, Model};
use super::memory::{Load, Memory};
use super::settings::Eviction;
use super::{Pool, bits};
use crate::heap::IndexedHeap;
use crate::pool::{FunctionId, SlotId};
use crate::{Span, Time};

/// Copy of one function's model on one slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copy {
    /// Slot memory taken by the copy, in bytes; 0 while there is none. With arenas it is the sum of the blocks allocated
    /// for the model, each rounded up; otherwise the size of the model when it was loaded.
    pub(super) bytes: u64,
    /// Value of the pool's use counter when the copy was last used.
    pub(super) used: u64,
    /// Context residue of the function's instance on this slot, in bytes.
    pub(super) residue: u64,
    /// Number of loads that currently copy from it.
    pub(super) readers: u32,
    /// Whether the copy is in use by a request, which may still be loading it.
    pub(super) running: bool,
    /// Whether the copy must not be evicted although nothing uses it.
    pub(super) pinned: bool,
    /// Class under which the copy is in the eviction order; `None` if it must not be evicted.
    pub(super) class: Option<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) id: FunctionId,
    pub(super) model: Model,
    /// Slots with the complete model, on which it may run.
    pub(super) hosts: u64,
    /// Slots to which the model is being loaded.
    pub(super) loading: u64,
    /// Slots with the complete model that it leaves as soon as its load elsewhere is done.
    pub(super) leaving: u64,
    /// Slots with an instance of the function.
    pub(super) instances: u64,
    /// Time until which the function may wait for a better path.
    pub(super) patient_until: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) function: FunctionId,
    /// Source from which the model is loaded, until it is there.
    pub(super) loading: Option<super::Source>,
    pub(super) since: Time,
    /// Expected end of the request.
    pub(super) ends: Time,
}

/// Model that was loaded ahead of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    pub(super) function: FunctionId,
    /// Whether it is still on its way.
    pub(super) moves: bool,
}

/// Number of classes of copies in the order of eviction.
pub(super) const CLASSES: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) memory: Memory,
    pub(super) running: Option<Running>,
    pub(super) down: bool,
    /// Number of light models that are completely on the slot.
    pub(super) light: u32,
    /// Bytes of the copies that may be evicted.
    pub(super) evictable: u64,
    /// Copies that may be evicted, by last use: duplicates and light models, then sole copies of heavy models, then those of tight ones.
    pub(super) order: [IndexedHeap<u64>; CLASSES],
    pub(super) load: Load,
    /// Model that was loaded beside what runs, and has not run since.
    pub(super) ahead: Option<Ahead>,
    /// Function whose model still returns from the host although its request runs already.
    pub(super) streams: Option<FunctionId>,
    pub(super) busy: Span,
    pub(super) loading: Span,
}

impl Pool {
    pub(super) fn copy(&self, function: FunctionId, slot: u32) -> &Copy {
        &self.copies[function.0 as usize * self.slots.len() + slot as usize]
    }

    pub(super) fn copy_mut(&mut self, function: FunctionId, slot: u32) -> &mut Copy {
        &mut self.copies[function.0 as usize * self.slots.len() + slot as usize]
    }

    pub(super) fn function(&self, function: FunctionId) -> Option<&Function> {
        self.functions.get(function.0 as usize)?.as_ref()
    }

    /// Returns the entry of a function that is known to exist.
    pub(super) fn entry(&self, function: FunctionId) -> &Function {
        self.function(function).expect("the function must exist")
    }

    pub(super) fn entry_mut(&mut self, function: FunctionId) -> &mut Function {
        self.functions[function.0 as usize]
            .as_mut()
            .expect("the function must exist")
    }

    /// Returns the class under which a copy is evicted, the lowest first.
    const fn class(&self, entry: &Function) -> u8 {
        let is_kept = entry.model.heavy && entry.hosts.count_ones() == 1;
        match self.settings.eviction {
            Eviction::LeastRecentlyUsed => 0,
            Eviction::Classes => is_kept as u8,
            Eviction::Objectives => is_kept as u8 + (is_kept && entry.model.tight) as u8,
        }
    }

    /// Adds a copy to the eviction order of its slot if it may be evicted, moves it if its class has changed, and removes
    /// it if it must not be evicted.
    pub(super) fn update_eviction_order(&mut self, function: FunctionId, slot: u32) {
        let entry = self.entry(function);
        let copy = *self.copy(function, slot);
        let is_used = copy.running || copy.readers > 0 || copy.pinned;
        let evictable = entry.hosts >> slot & 1 == 1 && !is_used;
        let class = evictable.then(|| self.class(entry));
        if class == copy.class {
            return;
        }
        let at = &mut self.slots[slot as usize];
        if let Some(class) = copy.class {
            at.order[usize::from(class)].remove(function.0);
            at.evictable -= copy.bytes;
        }
        if let Some(class) = class {
            at.order[usize::from(class)].push(function.0, copy.used);
            at.evictable += copy.bytes;
        }
        self.copy_mut(function, slot).class = class;
    }

    /// Updates the eviction orders for all copies of a function, after their number or its heaviness has changed.
    pub(super) fn update_eviction_orders(&mut self, function: FunctionId) {
        for slot in bits(self.entry(function).hosts) {
            self.update_eviction_order(function, slot);
        }
    }

    /// Records that the complete model is on a slot.
    pub(super) fn arrives(&mut self, function: FunctionId, slot: u32) {
        let entry = self.entry_mut(function);
        entry.loading &= !(1 << slot);
        entry.hosts |= 1 << slot;
        let light = !entry.model.heavy;
        self.slots[slot as usize].light += u32::from(light);
        self.update_eviction_orders(function);
    }

    /// Evicts a complete model from a slot. It must neither run nor be copied from.
    pub(super) fn leaves(
        &mut self,
        function: FunctionId,
        slot: u32,
        reason: EvictReason,
        evicted: &mut Vec<Evicted>,
    ) {
        let entry = self.entry_mut(function);
        entry.hosts &= !(1 << slot);
        entry.leaving &= !(1 << slot);
        let model = entry.model;
        // Removes it from the eviction order, as it is no longer among the hosts.
        self.update_eviction_order(function, slot);
        let bytes = self.vacate(function, slot);
        let at = &mut self.slots[slot as usize];
        at.ahead = at.ahead.filter(|ahead| ahead.function != function);
        at.light -= u32::from(!model.heavy);
        evicted.push(Evicted {
            function,
            slot: SlotId(slot),
            bytes,
            copy_back: model.writes && reason != EvictReason::SlotFailed,
            reason,
        });
        self.update_eviction_orders(function);
    }

    /// Evicts until `bytes` are free. The caller has checked that this is possible.
    pub(super) fn make_room(&mut self, slot: u32, bytes: u64, evicted: &mut Vec<Evicted>) {
        while self.slots[slot as usize].memory.need(bytes) > 0 && self.evict_next(slot, evicted) {}
    }

    /// Evicts the next copy in order, and returns false if there is none.
    pub(super) fn evict_next(&mut self, slot: u32, evicted: &mut Vec<Evicted>) -> bool {
        let mut classes = self.slots[slot as usize].order.iter();
        let Some((_, victim)) = classes.find_map(IndexedHeap::peek) else {
            debug_assert!(false, "room must be available, as checked before");
            return false;
        };
        let victim = FunctionId(victim);
        let reason = self.evict_reason(victim);
        self.leaves(victim, slot, reason, evicted);
        true
    }

    /// Returns the reason for which a copy of a model is evicted next.
    pub(super) fn evict_reason(&self, victim: FunctionId) -> EvictReason {
        let entry = self.entry(victim);
        match self.settings.eviction {
            Eviction::LeastRecentlyUsed => EvictReason::LeastRecentlyUsed,
            _ if entry.hosts.count_ones() > 1 => EvictReason::Duplicate,
            _ if entry.model.heavy => EvictReason::Heavy,
            _ => EvictReason::Light,
        }
    }
}
