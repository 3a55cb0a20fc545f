//! Who has which copies of which models, and in which order they give way.

use super::decision::{EvictReason, Evicted, Model};
use super::memory::{Load, Memory};
use super::settings::Eviction;
use super::{Pool, bits};
use crate::heap::IndexedHeap;
use crate::pool::{FunctionId, SlotId};
use crate::{Span, Time};

/// Of one function on one slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copy {
    /// What it takes; what its function's model took when it came.
    pub(super) bytes: u64,
    /// The pool's count of uses when it was last used.
    pub(super) used: u64,
    /// Of an instance that is there.
    pub(super) residue: u64,
    /// How many loads copy from it now.
    pub(super) readers: u32,
    /// It computes, or loads to.
    pub(super) running: bool,
    /// It stands in the order of those that may give way, in this class.
    pub(super) class: Option<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) id: FunctionId,
    pub(super) model: Model,
    /// Slots with the whole model, where it may run.
    pub(super) hosts: u64,
    /// Slots that it is on its way to.
    pub(super) loading: u64,
    /// Slots with the whole model which it leaves as soon as its load elsewhere is done.
    pub(super) leaving: u64,
    /// Slots with an instance.
    pub(super) instances: u64,
    /// Until when it may wait for a better path.
    pub(super) patient_until: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    pub(super) function: FunctionId,
    /// From where its model comes, until it is there.
    pub(super) loading: Option<super::Source>,
    pub(super) since: Time,
    /// When it is expected to be done.
    pub(super) ends: Time,
}

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) memory: Memory,
    pub(super) running: Option<Running>,
    pub(super) down: bool,
    /// Light models that are wholly here.
    pub(super) light: u32,
    /// Bytes of those that may give way.
    pub(super) evictable: u64,
    /// Those that may give way, by last use: duplicates and light ones, then sole copies of heavy ones.
    pub(super) order: [IndexedHeap<u64>; 2],
    pub(super) load: Load,
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

    /// Of one that is known to be there.
    pub(super) fn entry(&self, function: FunctionId) -> &Function {
        self.function(function)
            .expect("asked for of one that is there")
    }

    pub(super) fn entry_mut(&mut self, function: FunctionId) -> &mut Function {
        self.functions[function.0 as usize]
            .as_mut()
            .expect("asked for of one that is there")
    }

    /// In which class a copy gives way: 0 before 1.
    const fn class(&self, entry: &Function) -> u8 {
        match self.settings.eviction {
            Eviction::LeastRecentlyUsed => 0,
            Eviction::Classes => (entry.model.heavy && entry.hosts.count_ones() == 1) as u8,
        }
    }

    /// Puts a copy where it belongs in the order of those that may give way.
    pub(super) fn file(&mut self, function: FunctionId, slot: u32) {
        let entry = self.entry(function);
        let copy = *self.copy(function, slot);
        let evictable = entry.hosts >> slot & 1 == 1 && !copy.running && copy.readers == 0;
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

    /// After the number of copies or the heaviness has changed.
    pub(super) fn file_all(&mut self, function: FunctionId) {
        for slot in bits(self.entry(function).hosts) {
            self.file(function, slot);
        }
    }

    /// The whole model is on a slot.
    pub(super) fn arrives(&mut self, function: FunctionId, slot: u32) {
        let entry = self.entry_mut(function);
        entry.loading &= !(1 << slot);
        entry.hosts |= 1 << slot;
        let light = !entry.model.heavy;
        self.slots[slot as usize].light += u32::from(light);
        self.file_all(function);
    }

    /// A whole model leaves a slot. It neither runs nor is copied from.
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
        // Out of the order, since it is no host any more.
        self.file(function, slot);
        let bytes = self.vacate(function, slot);
        let at = &mut self.slots[slot as usize];
        at.light -= u32::from(!model.heavy);
        evicted.push(Evicted {
            function,
            slot: SlotId(slot),
            bytes,
            copy_back: model.writes && reason != EvictReason::SlotFailed,
            reason,
        });
        self.file_all(function);
    }

    /// Evicts until so many bytes are free. The caller has seen that they can be.
    pub(super) fn make_room(&mut self, slot: u32, bytes: u64, evicted: &mut Vec<Evicted>) {
        while self.slots[slot as usize].memory.need(bytes) > 0 && self.one_gives_way(slot, evicted)
        {
        }
    }

    /// Evicts whoever is next; false if there is nobody.
    pub(super) fn one_gives_way(&mut self, slot: u32, evicted: &mut Vec<Evicted>) -> bool {
        let [light, heavy] = &self.slots[slot as usize].order;
        let Some((_, victim)) = light.peek().or_else(|| heavy.peek()) else {
            debug_assert!(false, "room was promised that is not there");
            return false;
        };
        let victim = FunctionId(victim);
        let entry = self.entry(victim);
        let reason = match self.settings.eviction {
            Eviction::LeastRecentlyUsed => EvictReason::LeastRecentlyUsed,
            Eviction::Classes if entry.hosts.count_ones() > 1 => EvictReason::Duplicate,
            Eviction::Classes if entry.model.heavy => EvictReason::Heavy,
            Eviction::Classes => EvictReason::Light,
        };
        self.leaves(victim, slot, reason, evicted);
        true
    }
}
