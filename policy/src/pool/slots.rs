//! The slots of a node: where a request runs, from where its model comes, who is evicted for it (M2.1, M2.15,
//! M2.16; papers 2.3, 2.3b).
//!
//! Every model has a copy on the host; copies on slots come and go. [`Pool::schedule`] is Algorithm 1 with its
//! ties settled:
//! 1. a free slot with the model: with the fewest light models, then where the model was used least recently, then
//!    the first;
//! 2. else a free slot that is linked to a copy: by speed, then a quiet path to the host, then free memory, then
//!    the first. The copy is locked until the load ends;
//! 3. else from the host: the slot whose neighbours load nothing from the host, else light models, else
//!    heavy ones; then the fewest bytes to evict (what is missing, not what the victims hold), then the least
//!    recent load, then the first.
//!
//! A slot that cannot make room is passed over; if all are, the request waits. What runs, loads or is copied from
//! never gives way (M2.16). Two copies of a model are both duplicates; when one goes, the other counts by its
//! weight again. The order of use is the order of [`Pool::finished`].
//!
//! With bound processes ([`Binding::Process`]) a load that has to evict *moves* the function: its other copies go,
//! the one that it is copied from when it has arrived.
//!
//! A slot's memory is a count of bytes, or kept in blocks ([`Pool::with_blocks`], M2.10): then models give way until the
//! new one's blocks fit.
//!
//! [`Pool::schedule`] takes the slot and makes the room at once: the caller frees what is evicted, loads, and tells
//! [`Pool::loaded`] and [`Pool::finished`], or [`Pool::abandon`] if it came to nothing. It costs O(slots · copies of
//! the model) and O(log functions) for each victim; the others O(copies · log functions). A pool has at
//! most [`SLOTS_MAX`] slots. Nothing is allocated once each slot has held as many models before. A clock that
//! steps back stands still.

mod blocks;
mod copies;
mod decision;
mod life;
mod memory;
mod place;
mod settings;
mod settle;

pub use blocks::{BlocksError, Taken};
pub use decision::{Decision, EvictReason, Evicted, Model, Run, RunReason, Source, WaitReason};
pub use settings::{
    Binding, Eviction, Patience, Placement, SLOTS_MAX, Settings, Swap, Topology, TopologyError,
};
pub use settle::Filling;

use self::blocks::Arenas;
use self::copies::{Copy, Function, Running, Slot};
use self::memory::{Load, Memory};
use super::{FunctionId, SlotId};
use crate::heap::IndexedHeap;
use crate::{Span, Time};

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Pool {
    settings: Settings,
    topology: Topology,
    /// The latest `now` seen.
    now: Time,
    slots: Vec<Slot>,
    /// Slots that are free.
    idle: u64,
    functions: Vec<Option<Function>>,
    /// Function by function, slot by slot.
    copies: Vec<Copy>,
    /// How often a model was used: the clock of least recent use.
    uses: u64,
    /// Where memory is kept in blocks.
    arenas: Option<Arenas>,
}

/// What is on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Nothing runs, and it is not down.
    pub free: bool,
    /// Whose request runs.
    pub running: Option<FunctionId>,
    /// From where its model comes, until it is there.
    pub loading: Option<Source>,
    /// What models take, in bytes.
    pub used: u64,
    /// What context residues take, in bytes.
    pub residue: u64,
    /// What is free, in bytes.
    pub unused: u64,
    /// How long it was taken by requests that have ended: waiting for the model and computing (M2.20).
    pub busy: Span,
    /// Of it, until the model was wholly there; inference may have begun before.
    pub busy_loading: Span,
}

impl Pool {
    /// A pool without functions, all of whose slots are free.
    #[must_use]
    pub fn new(settings: Settings, topology: Topology) -> Self {
        let slot = |&capacity: &u64| Slot {
            memory: Memory::new(capacity),
            running: None,
            down: false,
            light: 0,
            evictable: 0,
            order: [IndexedHeap::new(), IndexedHeap::new()],
            load: Load::default(),
            busy: Span::ZERO,
            loading: Span::ZERO,
        };
        let slots: Vec<Slot> = topology.memory.iter().map(slot).collect();
        Self {
            settings,
            now: Time::ZERO,
            idle: u64::MAX >> (64 - slots.len()),
            slots,
            topology,
            functions: Vec::new(),
            copies: Vec::new(),
            uses: 0,
            arenas: None,
        }
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many slots are free.
    #[must_use]
    pub const fn free_slots(&self) -> u32 {
        self.idle.count_ones()
    }

    /// What is on a slot.
    #[must_use]
    pub fn slot(&self, slot: SlotId) -> Option<SlotView> {
        let at = self.slots.get(slot.0 as usize)?;
        Some(SlotView {
            free: self.idle >> slot.0 & 1 == 1,
            running: at.running.map(|running| running.function),
            loading: at.running.and_then(|running| running.loading),
            used: at.memory.used(),
            residue: at.memory.residue(),
            unused: at.memory.free(),
            busy: at.busy,
            busy_loading: at.loading,
        })
    }

    /// Where a function's model is whole and may run, in ascending order.
    pub fn hosts(&self, function: FunctionId) -> impl Iterator<Item = SlotId> {
        let hosts = self.function(function).map_or(0, |entry| entry.hosts);
        bits(hosts).map(SlotId)
    }

    /// Whether a request of this function would find its model on a free slot, on a busy one, or on none: what the
    /// estimate of its load depends on.
    #[must_use]
    pub fn residency(&self, function: FunctionId) -> Residency {
        match self.function(function).map_or(0, |entry| entry.hosts) {
            0 => Residency::Host,
            hosts if hosts & self.idle != 0 => Residency::FreeSlot,
            _ => Residency::BusySlot,
        }
    }

    /// Decides on a request of this function, and takes the slot if it may run. Who has to give way is added to
    /// `evicted`. `random` is asked for by [`Placement::Random`] and [`Placement::ResidentElseRandom`] alone.
    pub fn schedule(
        &mut self,
        now: Time,
        function: FunctionId,
        random: u64,
        evicted: &mut Vec<Evicted>,
    ) -> Decision {
        self.now = self.now.max(now);
        self.look(function);
        match self.choose(function, random) {
            Ok(run) => {
                self.take(function, run, evicted);
                Decision::Run(run)
            }
            Err(decision) => decision,
        }
    }

    fn take(&mut self, function: FunctionId, run: Run, evicted: &mut Vec<Evicted>) {
        let slot = run.slot.0;
        let entry = self.entry_mut(function);
        entry.patient_until = None;
        let model = entry.model;
        let takes = match run.source {
            Source::Resident => model.execution,
            Source::Slot(_) | Source::Host => {
                entry.loading |= 1 << slot;
                model.swapped
            }
        };
        self.idle &= !(1 << slot);
        self.slots[slot as usize].running = Some(Running {
            function,
            loading: (run.source != Source::Resident).then_some(run.source),
            since: self.now,
            ends: self.now.after(takes),
        });
        self.copy_mut(function, slot).running = true;
        if run.source == Source::Resident {
            self.file(function, slot);
            return;
        }
        if let Source::Slot(source) = run.source {
            self.copy_mut(function, source.0).readers += 1;
            self.file(function, source.0);
        }
        let moves = self.slots[slot as usize].memory.need(model.bytes) > 0
            && self.settings.binding == Binding::Process;
        self.make_room_for(function, slot, evicted);
        self.occupy(function, slot);
        if moves {
            self.leave_all_but(function, run.source, evicted);
        }
    }

    /// The function moves: copies that nobody reads go at once, the one that is read when the load is done.
    fn leave_all_but(&mut self, function: FunctionId, source: Source, evicted: &mut Vec<Evicted>) {
        for slot in bits(self.entry(function).hosts) {
            if source == Source::Slot(SlotId(slot)) {
                let entry = self.entry_mut(function);
                entry.hosts &= !(1 << slot);
                entry.leaving |= 1 << slot;
            } else {
                self.leaves(function, slot, EvictReason::Moved, evicted);
            }
        }
    }

    /// The model is wholly on the slot that the request was given.
    pub fn loaded(&mut self, now: Time, slot: SlotId, evicted: &mut Vec<Evicted>) {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(at) = self.slots.get_mut(slot.0 as usize) else {
            return;
        };
        let Some(running) = &mut at.running else {
            return;
        };
        let (function, since) = (running.function, running.since);
        let Some(source) = running.loading.take() else {
            return;
        };
        at.loading.0 = at.loading.0.saturating_add(now.since(since).0);
        self.arrives(function, slot.0);
        self.unlock(function, source, evicted);
    }

    /// The copy that was read may give way again; if its function has moved, it goes.
    fn unlock(&mut self, function: FunctionId, source: Source, evicted: &mut Vec<Evicted>) {
        let Source::Slot(source) = source else { return };
        self.copy_mut(function, source.0).readers -= 1;
        if self.entry(function).leaving >> source.0 & 1 == 1 {
            self.leaves(function, source.0, EvictReason::Moved, evicted);
        } else {
            self.file(function, source.0);
        }
    }

    /// The request is done, and its slot is free. Says [`Pool::loaded`] itself if nobody has.
    pub fn finished(&mut self, now: Time, slot: SlotId, evicted: &mut Vec<Evicted>) {
        self.loaded(now, slot, evicted);
        if let Some(running) = self.free(slot) {
            self.used(running.function, slot.0);
        }
    }

    /// A model that is wholly there is not used any more.
    fn used(&mut self, function: FunctionId, slot: u32) {
        self.uses += 1;
        let uses = self.uses;
        let copy = self.copy_mut(function, slot);
        copy.running = false;
        copy.used = uses;
        self.file(function, slot);
    }

    /// The request came to nothing. If its model was not there yet, it is not there; else it counts as used.
    pub fn abandon(&mut self, now: Time, slot: SlotId) {
        self.now = self.now.max(now);
        let Some(running) = self.free(slot) else {
            return;
        };
        let function = running.function;
        let Some(source) = running.loading else {
            self.used(function, slot.0);
            return;
        };
        self.copy_mut(function, slot.0).running = false;
        self.entry_mut(function).loading &= !(1 << slot.0);
        self.vacate(function, slot.0);
        if let Source::Slot(source) = source {
            self.copy_mut(function, source.0).readers -= 1;
            // It does not move after all.
            let entry = self.entry_mut(function);
            entry.hosts |= entry.leaving;
            entry.leaving = 0;
            self.file_all(function);
        }
    }

    /// Frees a slot and counts how long it was taken.
    fn free(&mut self, slot: SlotId) -> Option<Running> {
        let now = self.now;
        let period = self.period();
        let at = self.slots.get_mut(slot.0 as usize)?;
        let running = at.running.take()?;
        let busy = now.since(running.since).0;
        at.busy.0 = at.busy.0.saturating_add(busy);
        at.load.add(period, busy);
        self.idle |= 1 << slot.0;
        Some(running)
    }

    /// In which half-life it is.
    const fn period(&self) -> u64 {
        match self.settings.load_half_life.0 {
            0 => 0,
            half_life => self.now.0 / half_life,
        }
    }
}

/// Where a model is, as far as the next request is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// On a slot that is free.
    FreeSlot,
    /// On a slot that is not free.
    BusySlot,
    /// In host memory alone.
    Host,
}

/// The slots of a set, in ascending order.
fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let slot = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (slot < 64).then_some(slot)
    })
}
