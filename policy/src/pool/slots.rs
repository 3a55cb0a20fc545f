//! The slots of a node: where a request runs, from where its model is loaded, and which models are evicted for it
//! (M2.1, M2.15, M2.16; mechanisms §2.3, §2.3b).
//!
//! Every model has a copy on the host; copies on slots are loaded and evicted. [`Pool::schedule`] is Algorithm 1 with
//! its ties resolved:
//! 1. a free slot with the model: the one with the fewest light models, then where the model was used least recently,
//!    then the first;
//! 2. otherwise a free slot that is linked to a copy: by link speed, then a quiet path to the host, then free memory,
//!    then the first. The copy is locked until the load ends;
//! 3. otherwise from the host: the slot with neighbours that load nothing from the host, or else only light models, or
//!    else heavy ones; then the fewest bytes to evict (what is missing, not the size of the victims), then the least
//!    recent load, then the first.
//!
//! A slot that cannot make room is skipped; if all are, the request waits. A model that is running, loading, or being
//! copied from is never evicted (M2.16). Two copies of a model are both duplicates; once one is evicted, the other is
//! judged by its heaviness again. The order of use is the order of [`Pool::finished`].
//!
//! With bound processes ([`Binding::Process`]) a load that has to evict *moves* the function: its other copies are
//! evicted, and the copy that it is loaded from once the load is done.
//!
//! A model may also be loaded *ahead*, beside what runs on a slot ([`Pool::load_ahead`], as [`crate::pool::ahead`] decides): then it counts as there from
//! the beginning of the load, and a request that is scheduled to it waits for the end of the load.
//!
//! A slot's memory is a count of bytes, or it is kept in blocks ([`Pool::with_blocks`], M2.10): then models are evicted
//! until the new model's blocks fit.
//!
//! [`Pool::schedule`] takes the slot and makes the room at once: the caller frees what is evicted, loads the model, and
//! reports [`Pool::loaded`] and [`Pool::finished`], or [`Pool::abandon`] if the request failed. Scheduling costs
//! O(slots · copies of the model) and O(log functions) for each victim; the other calls cost O(copies · log functions).
//! A pool has at most [`SLOTS_MAX`] slots. Nothing is allocated once each slot has held as many models before. A clock
//! that is set back counts as one that stands still.
//!
//! # Examples
//!
//! ```
//! use policy::pool::slots::{Decision, Model, Pool, Settings, Source, Topology};
//! use policy::pool::{FunctionId, SlotId};
//! use policy::{Span, Time};
//!
//! let mut pool = Pool::new(Settings::default(), Topology::new(&[10]).unwrap());
//! let (execution, swapped) = (Span(5), Span(9));
//! for function in [FunctionId(0), FunctionId(1)] {
//!     let model = Model { bytes: 8, heavy: false, tight: false, writes: false, execution, swapped };
//!     pool.add(function, model).unwrap();
//! }
//! let mut evicted = Vec::new();
//! let decision = pool.schedule(Time(0), FunctionId(0), 0, &mut evicted);
//! assert!(matches!(decision, Decision::Run(run) if run.source == Source::Host));
//! pool.finished(Time(9), SlotId(0), &mut evicted);
//! // The slot has no room for both models.
//! pool.schedule(Time(10), FunctionId(1), 0, &mut evicted);
//! assert_eq!(evicted[0].function, FunctionId(0));
//! ```

mod ahead;
mod blocks;
mod bound;
mod choice;
mod copies;
mod decision;
mod life;
mod memory;
mod settings;
mod settle;

pub use blocks::{BlocksError, LoadBlocks};
pub use decision::{Decision, EvictReason, Evicted, Model, Run, RunReason, Source, WaitReason};
pub use settings::{
    Binding, Eviction, Patience, Placement, SLOTS_MAX, Settings, Swap, Topology, TopologyError,
};
pub use settle::Filling;

use self::blocks::Arenas;
use self::copies::{Copy, Function, Running, Slot};
use super::{FunctionId, SlotId};
use crate::{Span, Time};

/// Slots of a node with their models; see the [module](self).
#[derive(Clone, Debug)]
pub struct Pool {
    settings: Settings,
    topology: Topology,
    /// Latest `now` passed in.
    now: Time,
    slots: Vec<Slot>,
    /// Bit set of the free slots.
    idle: u64,
    functions: Vec<Option<Function>>,
    /// Copies by function, then by slot.
    copies: Vec<Copy>,
    /// Number of uses of models so far: the clock of least recent use.
    uses: u64,
    /// Block allocators of the slots, where memory is kept in blocks.
    arenas: Option<Arenas>,
}

/// State of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Whether nothing runs and the slot is not down.
    pub free: bool,
    /// Function with a request that runs on the slot.
    pub running: Option<FunctionId>,
    /// Source from which the running function's model is loaded, until it is there.
    pub loading: Option<Source>,
    /// Memory taken by models, in bytes.
    pub used: u64,
    /// Memory taken by context residues, in bytes.
    pub residue: u64,
    /// Free memory, in bytes.
    pub unused: u64,
    /// Total time for which ended requests occupied the slot, waiting for the model and computing (M2.20).
    pub busy: Span,
    /// Part of `busy` before the model was entirely there; inference may have begun earlier.
    pub busy_loading: Span,
}

impl Pool {
    /// Creates a pool without functions, with all slots free.
    #[must_use]
    pub fn new(settings: Settings, topology: Topology) -> Self {
        let memory = topology.memory.iter();
        let slots: Vec<Slot> = memory.map(|&bytes| Slot::new(bytes)).collect();
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

    /// Returns the settings of this pool.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the number of free slots.
    #[must_use]
    pub const fn free_slots(&self) -> u32 {
        self.idle.count_ones()
    }

    /// Returns the state of a slot, or `None` if there is no such slot.
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

    /// Iterates in ascending order over the slots on which a function's model is complete and may run.
    pub fn hosts(&self, function: FunctionId) -> impl Iterator<Item = SlotId> {
        let hosts = self.function(function).map_or(0, |entry| entry.hosts);
        bits(hosts).map(SlotId)
    }

    /// Returns whether a request of this function would find its model on a free slot, on a busy one, or on none, which
    /// determines the estimate of its load time.
    #[must_use]
    pub fn residency(&self, function: FunctionId) -> Residency {
        match self.function(function).map_or(0, |entry| entry.hosts) {
            0 => Residency::Host,
            hosts if hosts & self.idle != 0 => Residency::FreeSlot,
            _ => Residency::BusySlot,
        }
    }

    /// Decides on a request of this function, and takes the slot if it may run. Evicted models are appended to
    /// `evicted`. `random` is used by [`Placement::Random`] and [`Placement::ResidentElseRandom`] only.
    pub fn schedule(
        &mut self,
        now: Time,
        function: FunctionId,
        random: u64,
        evicted: &mut Vec<Evicted>,
    ) -> Decision {
        self.schedule_among(now, function, u64::MAX, random, evicted)
    }

    /// Decides as [`Pool::schedule`], on slots of the bit set `among` only.
    pub fn schedule_among(
        &mut self,
        now: Time,
        function: FunctionId,
        among: u64,
        random: u64,
        evicted: &mut Vec<Evicted>,
    ) -> Decision {
        self.now = self.now.max(now);
        self.look(function);
        match self.choose(function, among, random) {
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
        self.forget_ahead_of(function);
        if run.source == Source::Resident {
            self.update_eviction_order(function, slot);
            return;
        }
        if let Source::Slot(source) = run.source {
            self.copy_mut(function, source.0).readers += 1;
            self.update_eviction_order(function, source.0);
        }
        let moves = self.slots[slot as usize].memory.need(model.bytes) > 0
            && self.settings.binding == Binding::Process;
        self.make_room_for(function, slot, evicted);
        self.occupy(function, slot);
        if moves {
            self.leave_all_but(function, run.source, evicted);
        }
    }

    /// Moves the function: copies that are not being read are evicted at once, and the one that is read once the load
    /// is done.
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

    /// Records that the model of the request on a slot is entirely loaded.
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

    /// Unlocks the copy that was read. It may be evicted again; if its function has moved, it is evicted now.
    fn unlock(&mut self, function: FunctionId, source: Source, evicted: &mut Vec<Evicted>) {
        let Source::Slot(source) = source else { return };
        self.copy_mut(function, source.0).readers -= 1;
        if self.entry(function).leaving >> source.0 & 1 == 1 {
            self.leaves(function, source.0, EvictReason::Moved, evicted);
        } else {
            self.update_eviction_order(function, source.0);
        }
    }

    /// Records that the request on a slot is done, and frees the slot. Implies [`Pool::loaded`] if that was not
    /// reported.
    pub fn finished(&mut self, now: Time, slot: SlotId, evicted: &mut Vec<Evicted>) {
        self.loaded(now, slot, evicted);
        if let Some(running) = self.free(slot) {
            self.used(running.function, slot.0);
        }
    }

    /// Records the end of a use of a model that is entirely there.
    fn used(&mut self, function: FunctionId, slot: u32) {
        self.uses += 1;
        let uses = self.uses;
        let copy = self.copy_mut(function, slot);
        copy.running = false;
        copy.used = uses;
        self.update_eviction_order(function, slot);
    }

    /// Frees the slot of a request that failed. A model that was still loading is discarded; otherwise it counts as
    /// used.
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
            // The function does not move after all.
            let entry = self.entry_mut(function);
            entry.hosts |= entry.leaving;
            entry.leaving = 0;
            self.update_eviction_orders(function);
        }
    }

    /// Frees a slot and adds to its busy time.
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

    /// Returns the number of the current half-life.
    const fn period(&self) -> u64 {
        match self.settings.load_half_life.0 {
            0 => 0,
            half_life => self.now.0 / half_life,
        }
    }
}

/// Location of a model, as far as the next request is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residency {
    /// The model is on a free slot.
    FreeSlot,
    /// The model is on a slot that is not free.
    BusySlot,
    /// The model is in host memory only.
    Host,
}

/// Iterates over the slots of a bit set, in ascending order.
pub(in crate::pool) fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let slot = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (slot < 64).then_some(slot)
    })
}
