//! Arrival and removal of functions, instances, and slots.

use super::copies::{Copy, Function};
use super::decision::{EvictReason, Evicted, Model, Source};
use super::settings::Swap;
use super::{Pool, bits};
use crate::Time;
use crate::pool::{FunctionId, IDS_MAX, Refusal, SlotId};

impl Pool {
    /// Adds a function; its model is on the host.
    ///
    /// # Errors
    /// Returns [`Refusal::IdTooLarge`] or [`Refusal::FunctionTaken`].
    pub fn add(&mut self, function: FunctionId, model: Model) -> Result<(), Refusal> {
        if function.0 >= IDS_MAX {
            return Err(Refusal::IdTooLarge { id: function.0 });
        }
        let at = function.0 as usize;
        if self.functions.len() <= at {
            self.functions.resize_with(at + 1, || None);
            let copies = self.functions.len() * self.slots.len();
            self.copies.resize_with(copies, Copy::default);
        }
        if self.functions[at].is_some() {
            return Err(Refusal::FunctionTaken { function });
        }
        self.functions[at] = Some(Function {
            id: function,
            model,
            hosts: 0,
            loading: 0,
            leaving: 0,
            instances: 0,
            patient_until: None,
        });
        self.one_block(function, model.bytes);
        Ok(())
    }

    /// Updates the properties of a function's model. Existing copies keep the memory that they take, and
    /// [`Model::writes`] keeps its first value.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchFunction`].
    pub fn update(&mut self, function: FunctionId, model: Model) -> Result<(), Refusal> {
        if self.function(function).is_none() {
            return Err(Refusal::NoSuchFunction { function });
        }
        let entry = self.entry_mut(function);
        let writes = entry.model.writes;
        let before = std::mem::replace(&mut entry.model, Model { writes, ..model });
        let (was_heavy, whole) = (before.heavy, entry.hosts | entry.leaving);
        let is_moved = (before.heavy, before.tight) != (model.heavy, model.tight);
        if before.bytes != model.bytes {
            self.one_block(function, model.bytes);
        }
        if was_heavy != model.heavy {
            for slot in bits(whole) {
                let light = &mut self.slots[slot as usize].light;
                *light = *light + u32::from(was_heavy) - u32::from(model.heavy);
            }
        }
        if is_moved {
            self.update_eviction_orders(function);
        }
        Ok(())
    }

    /// Removes a function with its copies and instances.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchFunction`], or [`Refusal::InUse`] while a request of the function runs.
    pub fn remove(
        &mut self,
        function: FunctionId,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), Refusal> {
        let Some(entry) = self.function(function) else {
            return Err(Refusal::NoSuchFunction { function });
        };
        let (hosts, instances) = (entry.hosts, entry.instances);
        // A load counts as running, and a copy that is being read or left belongs to a load.
        if entry.loading != 0 || bits(hosts).any(|slot| self.copy(function, slot).running) {
            return Err(Refusal::InUse { function });
        }
        for slot in bits(hosts) {
            self.leaves(function, slot, EvictReason::Unloaded, evicted);
        }
        for slot in bits(instances) {
            let residue = std::mem::take(&mut self.copy_mut(function, slot).residue);
            self.slots[slot as usize].memory.give_residue(residue);
        }
        for at in &mut self.slots {
            at.streams = at.streams.filter(|own| *own != function);
        }
        self.functions[function.0 as usize] = None;
        Ok(())
    }

    /// Adds an instance of a function to a slot. Its context takes `residue` bytes there for as long as it lives,
    /// whether its model is there or not; other models are evicted for it where models are swapped.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchFunction`], [`Refusal::NoSuchSlot`], [`Refusal::InstanceTaken`], or
    /// [`Refusal::NoMemory`]. The last one is also returned for any residue where memory is kept in blocks, since
    /// contexts are outside of them.
    pub fn add_instance(
        &mut self,
        function: FunctionId,
        slot: SlotId,
        residue: u64,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), Refusal> {
        self.check(function, slot)?;
        if self.entry(function).instances >> slot.0 & 1 == 1 {
            return Err(Refusal::InstanceTaken { function, slot });
        }
        let at = &self.slots[slot.0 as usize];
        let room = match self.settings.swap {
            Swap::On => at.evictable,
            Swap::Off => 0,
        };
        let outside = residue > 0 && self.arenas.is_some();
        if outside || at.memory.need(residue) > room {
            let bytes = residue;
            return Err(Refusal::NoMemory { slot, bytes });
        }
        self.make_room(slot.0, residue, evicted);
        self.slots[slot.0 as usize].memory.take_for_good(residue);
        self.copy_mut(function, slot.0).residue = residue;
        self.entry_mut(function).instances |= 1 << slot.0;
        Ok(())
    }

    /// Removes an instance with its weights and its context.
    ///
    /// # Errors
    /// Returns [`Refusal::NoInstance`], or [`Refusal::InUse`] while the instance is running, loading, or being copied
    /// from.
    pub fn remove_instance(
        &mut self,
        function: FunctionId,
        slot: SlotId,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), Refusal> {
        let has = |entry: &Function| slot.0 < 64 && entry.instances >> slot.0 & 1 == 1;
        if !self.function(function).is_some_and(has) {
            return Err(Refusal::NoInstance { function, slot });
        }
        let copy = *self.copy(function, slot.0);
        if copy.running || copy.readers > 0 {
            return Err(Refusal::InUse { function });
        }
        if self.entry(function).hosts >> slot.0 & 1 == 1 {
            self.leaves(function, slot.0, EvictReason::Unloaded, evicted);
        }
        self.copy_mut(function, slot.0).residue = 0;
        self.slots[slot.0 as usize]
            .memory
            .give_residue(copy.residue);
        self.entry_mut(function).instances &= !(1 << slot.0);
        Ok(())
    }

    /// Records that a model is already on a slot, as after a restart of this pool or when models were loaded
    /// beforehand. No model is evicted for it.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchFunction`] or [`Refusal::NoSuchSlot`]; [`Refusal::InUse`] if a copy of the model is on
    /// the slot or being loaded to it, or if the model writes and has a copy anywhere; or [`Refusal::NoMemory`].
    pub fn adopt(&mut self, function: FunctionId, slot: SlotId) -> Result<(), Refusal> {
        self.check(function, slot)?;
        let entry = self.entry(function);
        let held = entry.hosts | entry.loading | entry.leaving;
        if held >> slot.0 & 1 == 1 || (entry.model.writes && held != 0) {
            return Err(Refusal::InUse { function });
        }
        let bytes = entry.model.bytes;
        if !self.has_room(function, slot.0) {
            return Err(Refusal::NoMemory { slot, bytes });
        }
        self.occupy(function, slot.0);
        self.uses += 1;
        self.copy_mut(function, slot.0).used = self.uses;
        self.arrives(function, slot.0);
        Ok(())
    }

    /// Unloads a model from a slot, as at the end of its keep-alive. Returns false if the model is not there or in use.
    pub fn unload(
        &mut self,
        function: FunctionId,
        slot: SlotId,
        evicted: &mut Vec<Evicted>,
    ) -> bool {
        let there =
            self.check(function, slot).is_ok() && self.copy(function, slot.0).class.is_some();
        if there {
            self.leaves(function, slot.0, EvictReason::Unloaded, evicted);
        }
        there
    }

    /// Records that a slot has failed. Its running request is abandoned, its models and instances are lost, and it is
    /// not used until [`Pool::restored`]. Loads that read from it must be abandoned by the caller ([`Pool::abandon`])
    /// if they failed with it. O(functions).
    pub fn failed(&mut self, now: Time, slot: SlotId, evicted: &mut Vec<Evicted>) {
        if slot.0 as usize >= self.slots.len() || self.slots[slot.0 as usize].down {
            return;
        }
        self.abandon(now, slot);
        self.slots[slot.0 as usize].down = true;
        self.idle &= !(1 << slot.0);
        for at in 0..self.slots.len() {
            if let Some(running) = &mut self.slots[at].running
                && running.loading == Some(Source::Slot(slot))
            {
                // The lost copy must not be unlocked later.
                running.loading = Some(Source::Host);
            }
        }
        for at in 0..self.functions.len() {
            let Some(entry) = &self.functions[at] else {
                continue;
            };
            let function = entry.id;
            let whole = (entry.hosts | entry.leaving) >> slot.0 & 1 == 1;
            self.copy_mut(function, slot.0).readers = 0;
            if whole {
                self.leaves(function, slot.0, EvictReason::SlotFailed, evicted);
            }
            let residue = std::mem::take(&mut self.copy_mut(function, slot.0).residue);
            self.slots[slot.0 as usize].memory.give_residue(residue);
            self.entry_mut(function).instances &= !(1 << slot.0);
        }
    }

    /// Records that a slot that had failed is available again, empty.
    pub fn restored(&mut self, slot: SlotId) {
        if let Some(at) = self.slots.get_mut(slot.0 as usize)
            && std::mem::take(&mut at.down)
        {
            self.idle |= 1 << slot.0;
        }
    }

    fn check(&self, function: FunctionId, slot: SlotId) -> Result<(), Refusal> {
        if self.function(function).is_none() {
            return Err(Refusal::NoSuchFunction { function });
        }
        if self.slots.get(slot.0 as usize).is_none_or(|at| at.down) {
            return Err(Refusal::NoSuchSlot { slot });
        }
        Ok(())
    }
}
