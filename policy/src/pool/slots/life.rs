//! Functions, instances and slots come and go.

use super::copies::{Copy, Function};
use super::decision::{EvictReason, Evicted, Model, Source};
use super::settings::Swap;
use super::{Pool, bits};
use crate::Time;
use crate::pool::{FunctionId, IDS_MAX, Refusal, SlotId};

impl Pool {
    /// A function has come; its model is on the host.
    ///
    /// # Errors
    /// [`Refusal::IdTooLarge`], [`Refusal::FunctionTaken`].
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

    /// What is known of a function's model has changed. Copies that are there keep what they take; whether the model
    /// writes stays as it was added.
    ///
    /// # Errors
    /// [`Refusal::NoSuchFunction`].
    pub fn update(&mut self, function: FunctionId, model: Model) -> Result<(), Refusal> {
        if self.function(function).is_none() {
            return Err(Refusal::NoSuchFunction { function });
        }
        let entry = self.entry_mut(function);
        let writes = entry.model.writes;
        let before = std::mem::replace(&mut entry.model, Model { writes, ..model });
        let (was_heavy, whole) = (before.heavy, entry.hosts | entry.leaving);
        if before.bytes != model.bytes {
            self.one_block(function, model.bytes);
        }
        if was_heavy != model.heavy {
            for slot in bits(whole) {
                let light = &mut self.slots[slot as usize].light;
                *light = *light + u32::from(was_heavy) - u32::from(model.heavy);
            }
            self.file_all(function);
        }
        Ok(())
    }

    /// A function goes, with its copies and instances.
    ///
    /// # Errors
    /// [`Refusal::NoSuchFunction`]; [`Refusal::InUse`] while a request of it runs.
    pub fn remove(
        &mut self,
        function: FunctionId,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), Refusal> {
        let Some(entry) = self.function(function) else {
            return Err(Refusal::NoSuchFunction { function });
        };
        let (hosts, instances) = (entry.hosts, entry.instances);
        // What loads runs, and what is left or read belongs to a load.
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
        self.functions[function.0 as usize] = None;
        Ok(())
    }

    /// An instance of a function has come to a slot. Its context takes `residue` bytes there for as long as it lives,
    /// whether its model is there or not; others give way for it where models are swapped.
    ///
    /// # Errors
    /// [`Refusal::NoSuchFunction`], [`Refusal::NoSuchSlot`], [`Refusal::InstanceTaken`],
    /// [`Refusal::NoMemory`], also of any residue where memory is kept in blocks, outside of which contexts lie.
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

    /// An instance is gone, with its weights and its context.
    ///
    /// # Errors
    /// [`Refusal::NoInstance`]; [`Refusal::InUse`] while it runs, loads or is copied from.
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

    /// A model is on a slot already, as when this pool was restarted or models were loaded beforehand. Nobody gives
    /// way for it.
    ///
    /// # Errors
    /// [`Refusal::NoSuchFunction`], [`Refusal::NoSuchSlot`], [`Refusal::InUse`] if a copy of it is there
    /// or on its way there, or it writes and is anywhere; [`Refusal::NoMemory`].
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

    /// A model is to leave a slot, as at the end of its keep-alive. False if it is not there or in use.
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

    /// A slot failed: what ran there came to nothing, what was there is lost, instances there are gone, and nothing is
    /// given to it until [`Pool::restored`]. Loads that read from it are to be told [`Pool::abandon`] by the
    /// caller if they failed with it. O(functions).
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
                // There is nothing left to unlock.
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

    /// A slot that had failed is there again, empty.
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
