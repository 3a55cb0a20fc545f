//! Loads ahead: a model is loaded to a slot beside what runs there, for a request that waits for the slot.

use super::copies::{Ahead, Function, Slot};
use super::decision::Evicted;
use super::{Pool, bits};
use crate::pool::{FunctionId, SlotId};
use crate::{Span, Time};

impl Pool {
    /// Returns whether a model of `bytes` can be loaded ahead on a slot: no load runs on its path to the host, and it has room once models for which
    /// `may_leave` holds have been evicted. O(models on the slot). Where memory is kept in blocks, nothing is loaded ahead.
    #[must_use]
    pub fn can_load_ahead(
        &self,
        slot: SlotId,
        bytes: u64,
        may_leave: impl Fn(FunctionId) -> bool,
    ) -> bool {
        let Some(at) = self.slots.get(slot.0 as usize).filter(|at| !at.down) else {
            return false;
        };
        if self.arenas.is_some() || self.is_path_taken(slot) {
            return false;
        }
        let need = at.memory.need(bytes);
        if need == 0 || need > at.evictable {
            return need == 0;
        }
        let models = at.order.iter().flat_map(|class| class.iter());
        let leaving = models
            .map(|(_, model)| FunctionId(model))
            .filter(|model| may_leave(*model));
        let sum = leaving.fold(0_u64, |sum, model| sum + self.copy(model, slot.0).bytes);
        need <= sum
    }

    /// Makes room for a model of `bytes` that is loaded ahead, by evicting models for which `may_leave` holds, in their order. From then on it counts as
    /// there, and is pinned. Returns false, with nothing changed, unless [`Pool::can_load_ahead`] holds and no copy of the model is on the slot.
    pub fn load_ahead(
        &mut self,
        function: FunctionId,
        slot: SlotId,
        bytes: u64,
        may_leave: impl Fn(FunctionId) -> bool,
        evicted: &mut Vec<Evicted>,
    ) -> bool {
        if self.function(function).is_none()
            || self.held(function) >> slot.0 & 1 == 1
            || !self.can_load_ahead(slot, bytes, &may_leave)
        {
            return false;
        }
        let at = &self.slots[slot.0 as usize];
        let mut victims: Vec<(usize, u64, u32)> = (0..)
            .zip(&at.order)
            .flat_map(|(class, models)| {
                models.iter().map(move |(used, model)| (class, used, model))
            })
            .filter(|(_, _, model)| may_leave(FunctionId(*model)))
            .collect();
        victims.sort_unstable();
        for (_, _, model) in victims {
            if self.slots[slot.0 as usize].memory.need(bytes) == 0 {
                break;
            }
            let victim = FunctionId(model);
            let reason = self.evict_reason(victim);
            self.leaves(victim, slot.0, reason, evicted);
        }
        self.keep_ahead(function, slot, bytes);
        true
    }

    /// Counts a model of `bytes` as one that is being loaded ahead, whether there is room or not, as when the request for which it was loaded has failed.
    pub fn keep_ahead(&mut self, function: FunctionId, slot: SlotId, bytes: u64) {
        if self.set_resident(function, slot, bytes) {
            self.set_pinned(function, slot, true);
            let moves = true;
            self.slots[slot.0 as usize].ahead = Some(Ahead { function, moves });
        }
    }

    /// Records that the load ahead on a slot has ended: the model is there, may be evicted unless `pinned`, and counts as just used; or it is not there.
    pub fn loaded_ahead(&mut self, slot: SlotId, is_there: bool, pinned: bool) {
        let Some(at) = self.slots.get_mut(slot.0 as usize) else {
            return;
        };
        let Some(ahead) = at.ahead.as_mut().filter(|ahead| ahead.moves) else {
            return;
        };
        ahead.moves = false;
        let function = ahead.function;
        self.set_pinned(function, slot, pinned && is_there);
        if !is_there {
            self.slots[slot.0 as usize].ahead = None;
            let _gone = self.unload(function, slot, &mut Vec::new());
        } else if at_work(&self.slots[slot.0 as usize], function) {
            self.slots[slot.0 as usize].ahead = None;
        }
    }

    /// Forgets that a function's model was loaded ahead, since a request of it runs, unless it is on its way.
    pub(super) fn forget_ahead_of(&mut self, function: FunctionId) {
        for at in &mut self.slots {
            at.ahead = at
                .ahead
                .filter(|ahead| ahead.moves || ahead.function != function);
        }
    }

    /// Forgets that a model was loaded ahead, since no request waits for it any more, unless it is on its way.
    pub fn forget_ahead(&mut self, slot: SlotId) {
        if let Some(at) = self.slots.get_mut(slot.0 as usize) {
            at.ahead = at.ahead.filter(|ahead| ahead.moves);
        }
    }

    /// Returns the function whose model is on its way to a slot ahead of its request.
    #[must_use]
    pub fn moves_ahead(&self, slot: SlotId) -> Option<FunctionId> {
        let ahead = self.slots.get(slot.0 as usize)?.ahead;
        Some(ahead.filter(|ahead| ahead.moves)?.function)
    }

    /// Returns when the slot to which the model of a function was loaded ahead is expected to be free, if that is no later than the model would be there
    /// by a load to another slot.
    pub(super) fn waits_ahead(&self, entry: &Function) -> Option<Time> {
        let is_own = |at: &&Slot| at.ahead.is_some_and(|ahead| ahead.function == entry.id);
        let running = self.slots.iter().find(is_own)?.running?;
        let load = entry
            .model
            .swapped
            .0
            .saturating_sub(entry.model.execution.0);
        (running.ends <= self.now.after(Span(load)) && running.ends > self.now)
            .then_some(running.ends)
    }

    /// States whose model still returns to a slot from the host although its request runs already: it takes the slot's path to the host.
    pub fn set_streaming(&mut self, slot: SlotId, function: Option<FunctionId>) {
        let known = function.filter(|function| self.function(*function).is_some());
        if let Some(at) = self.slots.get_mut(slot.0 as usize) {
            at.streams = known;
        }
    }

    /// Returns the slots that share a slot's path to the host, and itself, as a bit set.
    #[must_use]
    pub fn on_path(&self, slot: SlotId) -> u64 {
        let neighbours = self.topology.neighbours.get(slot.0 as usize);
        neighbours.map_or(0, |set| set | 1 << slot.0)
    }

    /// Returns whether a model is loaded over a slot's path to the host, to the slot or to one of its neighbours.
    #[must_use]
    pub fn is_path_taken(&self, slot: SlotId) -> bool {
        bits(self.on_path(slot)).any(|slot| {
            let at = &self.slots[slot as usize];
            let loads = |running: super::Running| running.loading == Some(super::Source::Host);
            at.ahead.is_some_and(|ahead| ahead.moves)
                || at.running.is_some_and(loads)
                || at.streams.is_some()
        })
    }
}

/// Returns whether a function's request runs on a slot.
fn at_work(at: &Slot, function: FunctionId) -> bool {
    at.running
        .is_some_and(|running| running.function == function)
}
