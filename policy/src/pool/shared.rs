//! Leases of slots on which several instances compute at once, as through MPS (contracts §6; M2.12, M2.16 for memory alone): there a lease
//! decides only whether an instance's model is on its slot. Which holder computes when is for the tokens ([`crate::tokens`]).
//!
//! Any number of instances of a slot hold a lease, as long as their models fit there together:
//!
//! - An instance whose model is on its slot, or which has none yet, holds its lease without end, until another instance needs the memory.
//! - One whose model is away has it return for the head of its queue, or for a process that waits for its memory, and gets the lease then; where models
//!   stream, as soon as it begins to return.
//! - For room, models without work leave first: of those, one whose requests could hardly be in time if it had to return first goes last, and otherwise the one
//!   that has been without work for longest first. If they do not suffice, instances are recalled that have work, once the waiting head could miss otherwise; one that is
//!   late waits until their leases have lasted for twice the load.
//! - Memory grows by claims ([`SharedLeases::claim`]): others leave for them, or they wait.
//! - What works without a known request, as one which loads its model, has turns, in which it counts as with work: while heads wait because of it, a share of
//!   the slot's time.
//! - Heads are served in the order of [`queue`]; a head that cannot be served yet holds up no other one. One for which instances with work leave comes before
//!   theirs, and so does one that has waited for ten times its objective, for which they leave at once.
//!
//! Models return one at a time on a path to the host. What refuses to leave stays for a second ([`RETRY`]).
//!
//! [`SharedLeases::decide`] costs O(1) as long as nothing has changed, O(instances) without waiting heads, and O(waiting heads · (instances + models of the
//! slot · waiting heads)) with them; the other calls cost O(log functions), but [`SharedLeases::claim`] and [`SharedLeases::watched`], which are O(instances). A clock that is set back
//! counts as one that stands still.
//!
//! # Examples
//!
//! ```
//! use policy::pool::leases::{Action, Class, Demand, Instance, InstanceId, Location};
//! use policy::pool::shared::SharedLeases;
//! use policy::pool::{FunctionId, Percentile, SlotId, queue};
//! use policy::{Span, Time};
//!
//! let mut leases = SharedLeases::new(queue::Settings::default(), false);
//! leases.set_slot(SlotId(0), 16 << 30);
//! leases.set_usable(SlotId(0), true);
//! let (one, mut actions) = (InstanceId(7), Vec::new());
//! let instance = Instance {
//!     function: FunctionId(0),
//!     slot: SlotId(0),
//!     percentile: Percentile::default(),
//!     objective: Span::from_millis(80),
//!     class: Class::Tenant { namespace: 1 },
//!     may_leave: true,
//! };
//! leases.add(Time(0), one, &instance).unwrap();
//! leases.connect(Time(0), one, false);
//! leases.decide(Time(1), &mut actions);
//! assert_eq!(actions, [Action::Lease(one)]);
//! ```

mod memory;
mod plan;
mod report;
mod turn;

use std::collections::{BTreeMap, BTreeSet};

use super::leases::{Instance, InstanceId, Location, RETRY, RETRY_SOON, View};
use super::means::{Drains, LoadRate, in_proportion};
use super::queue::{self, Head, Queue, Ticket};
use super::{FunctionId, Refusal, SlotId};
use crate::{Span, Time};
use turn::{Credit, Turn};

pub use super::leases::{Action, Claim, Demand};

/// Number of objectives after which a head comes first.
const AGED: u64 = 10;

/// Lease of an instance's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lease {
    /// It has none.
    Free,
    /// It has one, of which its queue knows.
    Held { since: Time },
    /// It states one of an earlier agent, and is to be given another.
    Stated,
    /// It is to end it.
    Recalled { since: Time },
    /// It has ended it, and starts nothing.
    Ended,
}

/// Movement of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Motion {
    Rests,
    Leaves,
    /// Since this time, with this many bytes.
    Returns {
        since: Time,
        bytes: u64,
    },
}

/// Claim which waits.
#[derive(Debug, Clone, Copy)]
struct WaitingClaim {
    /// Memory that the processes of the instance are to have in all, in bytes.
    bytes: u64,
    /// Place of the claim in the order of all.
    number: u64,
    since: Time,
}

#[derive(Debug, Clone)]
struct Entry {
    about: Instance,
    has_queue: bool,
    lease: Lease,
    motion: Motion,
    /// Whether its queue has nothing queued or running under its lease.
    is_idle: bool,
    /// Time since which its processes have computed nothing and waited for nothing; `None`: they do.
    quiet_since: Option<Time>,
    /// Time at which it last had work, as far as is known.
    used_at: Time,
    head: Option<(Ticket, Demand)>,
    /// Time since which its queue has had heads without a lease; [`Time::NEVER`]: it has none.
    waits_since: Time,
    /// Time by which a process that waits for its memory is to have it.
    parked: Option<Time>,
    claim: Option<WaitingClaim>,
    location: Location,
    /// Memory of its model, in bytes.
    bytes: u64,
    /// Whether others with work leave for it, so that it comes before them when they have.
    is_next: bool,
    /// Turn in which it works without a request.
    turn: Option<Turn>,
    /// Whether it has claimed memory without a request, and has not been quiet since.
    is_loading: bool,
    /// Time before which its model is not tried to be moved again.
    retry_at: Time,
    /// Time until which it gets no lease, since its processes have failed; [`Time::NEVER`]: until they have ended.
    failed_until: Time,
    outcomes: (u64, u64),
    /// Mean execution time of its requests, and their number.
    execution: Span,
    executions: u32,
    /// Drains of its leases.
    drains: Drains,
    /// Mean time of a load, and the size of the model then.
    load: Span,
    loaded_bytes: u64,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    is_known: bool,
    is_usable: bool,
    is_lost: bool,
    /// Memory for models, in bytes.
    capacity: u64,
    /// Number of its path to the host's memory; `None`: its own.
    host_path: Option<u32>,
    /// Number of instances with a queue: without, no leases are needed.
    queues: u32,
    credit: Credit,
}

/// Leases of the slots of a node on which several instances compute at once; see the [module](self).
#[derive(Debug, Clone)]
pub struct SharedLeases {
    now: Time,
    streams: bool,
    queue: Queue,
    slots: BTreeMap<SlotId, Slot>,
    instances: BTreeMap<InstanceId, Entry>,
    functions: BTreeMap<FunctionId, Vec<InstanceId>>,
    load_rate: LoadRate,
    claims: u64,
    wake: Option<Time>,
    /// Whether something has changed since the last decision.
    is_changed: bool,
}

impl SharedLeases {
    /// Creates leases without slots. `streams`: an instance computes while its model returns, as far as it is there.
    #[must_use]
    pub const fn new(queue: queue::Settings, streams: bool) -> Self {
        Self {
            now: Time::ZERO,
            streams,
            queue: Queue::new(queue),
            slots: BTreeMap::new(),
            instances: BTreeMap::new(),
            functions: BTreeMap::new(),
            load_rate: LoadRate::UNKNOWN,
            claims: 0,
            wake: None,
            is_changed: false,
        }
    }

    /// Sets the memory of a slot for models, in bytes.
    pub fn set_slot(&mut self, slot: SlotId, bytes: u64) {
        let at = self.slots.entry(slot).or_default();
        self.is_changed |= !at.is_known || at.capacity != bytes;
        (at.is_known, at.capacity) = (true, bytes);
    }

    /// Sets the number of a slot's path to the host's memory, which it shares with the slots of the same number; by default its own.
    pub fn set_host_path(&mut self, slot: SlotId, path: u32) {
        self.slots.entry(slot).or_default().host_path = Some(path);
    }

    /// Sets whether models move on a slot.
    pub fn set_usable(&mut self, slot: SlotId, is_usable: bool) {
        let at = self.slots.entry(slot).or_default();
        self.is_changed |= std::mem::replace(&mut at.is_usable, is_usable) != is_usable;
    }

    /// Sets whether the device of a slot is lost. There, nothing moves, and each instance has a lease: what it starts learns from the driver.
    pub fn set_lost(&mut self, now: Time, slot: SlotId, is_lost: bool) {
        self.now = self.now.max(now);
        let at = self.slots.entry(slot).or_default();
        self.is_changed |= std::mem::replace(&mut at.is_lost, is_lost) != is_lost;
    }

    /// Adds an instance, without a queue and without a model.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchSlot`], [`Refusal::IdTooLarge`] or [`Refusal::InstanceTaken`].
    pub fn add(&mut self, now: Time, id: InstanceId, about: &Instance) -> Result<(), Refusal> {
        self.now = self.now.max(now);
        let (function, slot) = (about.function, about.slot);
        if !self.slots.get(&slot).is_some_and(|at| at.is_known) {
            return Err(Refusal::NoSuchSlot { slot });
        }
        if self.instances.contains_key(&id) {
            return Err(Refusal::InstanceTaken { function, slot });
        }
        if !self.functions.contains_key(&function) {
            self.queue
                .add(self.now, function, about.percentile, about.objective)?;
        }
        self.functions.entry(function).or_default().push(id);
        self.instances.insert(
            id,
            Entry {
                about: *about,
                has_queue: false,
                lease: Lease::Free,
                motion: Motion::Rests,
                is_idle: true,
                quiet_since: None,
                used_at: self.now,
                head: None,
                waits_since: Time::NEVER,
                parked: None,
                claim: None,
                location: Location::Absent,
                bytes: 0,
                is_next: false,
                turn: None,
                is_loading: false,
                retry_at: Time::ZERO,
                failed_until: Time::ZERO,
                outcomes: (0, 0),
                execution: Span::ZERO,
                executions: 0,
                drains: Drains::default(),
                load: Span::ZERO,
                loaded_bytes: 0,
            },
        );
        Ok(())
    }

    /// Removes an instance. Its head is withdrawn, and its memory counts as free.
    pub fn remove(&mut self, now: Time, id: InstanceId) {
        self.disconnect(now, id);
        let Some(entry) = self.instances.remove(&id) else {
            return;
        };
        self.is_changed = true;
        let function = entry.about.function;
        let Some(own) = self.functions.get_mut(&function) else {
            return;
        };
        own.retain(|other| *other != id);
        if own.is_empty() {
            self.functions.remove(&function);
            self.queue.remove(self.now, function, &mut Vec::new());
        }
    }

    /// Returns whether an instance was added.
    #[must_use]
    pub fn has(&self, id: InstanceId) -> bool {
        self.instances.contains_key(&id)
    }

    /// Returns whether a slot was described.
    #[must_use]
    pub fn has_slot(&self, slot: SlotId) -> bool {
        self.slots.get(&slot).is_some_and(|at| at.is_known)
    }

    /// Returns whether leases are needed on a slot: some instance there has a queue.
    #[must_use]
    pub fn is_leased(&self, slot: SlotId) -> bool {
        self.slots.get(&slot).is_some_and(|at| at.queues > 0)
    }

    /// Returns whether a claim waits.
    #[must_use]
    pub fn has_claims(&self) -> bool {
        self.instances.values().any(|entry| entry.claim.is_some())
    }

    /// Returns the state of an instance, or `None` if there is none of this id.
    #[must_use]
    pub fn view(&self, id: InstanceId) -> Option<View> {
        let entry = self.instances.get(&id)?;
        Some(View {
            is_holder: matches!(entry.lease, Lease::Held { .. } | Lease::Stated),
            has_turn: matches!(entry.motion, Motion::Returns { .. }),
            location: entry.location,
            bytes: entry.bytes,
            execution: entry.execution,
            load: entry.load,
            has_failed: self.has_failed(entry),
        })
    }

    /// Returns when [`SharedLeases::decide`] is due unless something is reported before.
    #[must_use]
    pub const fn next_wake(&self) -> Option<Time> {
        self.wake
    }

    /// Returns the instances of which it matters at present whether their processes compute ([`SharedLeases::quiet`]): those that are recalled, those that work
    /// without a request, and where something waits for memory, those without a queue.
    pub fn watched(&self) -> impl Iterator<Item = InstanceId> {
        let all = self.instances.values();
        let waiting = all.filter(|entry| entry.needs_room());
        let waiting: BTreeSet<SlotId> = waiting.map(|entry| entry.about.slot).collect();
        let is_leased = |entry: &Entry| self.is_leased(entry.about.slot);
        let is_watched = move |entry: &Entry| match entry.lease {
            _ if !is_leased(entry) => false,
            Lease::Recalled { .. } => true,
            _ if entry.turn.is_some() => true,
            Lease::Free => {
                let has_model = !entry.has_queue && entry.bytes > 0;
                has_model && waiting.contains(&entry.about.slot)
            }
            Lease::Held { .. } | Lease::Stated | Lease::Ended => false,
        };
        let all = self.instances.iter();
        all.filter_map(move |(id, entry)| is_watched(entry).then_some(*id))
    }

    fn has_failed(&self, entry: &Entry) -> bool {
        self.now < entry.failed_until
    }

    fn wake_at(&mut self, at: Time) {
        if at != Time::NEVER {
            self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
        }
    }

    /// Returns whether leases are needed on a slot, and models move there.
    fn moves_on(&self, slot: SlotId) -> bool {
        let at = self.slots.get(&slot);
        at.is_some_and(|at| at.is_usable && !at.is_lost && at.queues > 0)
    }

    fn set_head(&mut self, id: InstanceId, head: &Head, demand: Demand) {
        if let Ok(ticket) = self.queue.put_back(self.now, head)
            && let Some(entry) = self.instances.get_mut(&id)
        {
            entry.head = Some((ticket, demand));
        }
    }

    /// Withdraws the head of an instance.
    fn withdraw(&mut self, id: InstanceId) {
        if let Some(entry) = self.instances.get_mut(&id)
            && let Some((ticket, _)) = entry.head.take()
        {
            let _gone = self.queue.cancel(self.now, ticket);
            (entry.is_next, entry.waits_since) = (false, Time::NEVER);
        }
    }
}

impl Entry {
    /// Returns whether something waits for its memory or for more of it.
    const fn needs_room(&self) -> bool {
        self.head.is_some() || self.parked.is_some() || self.claim.is_some()
    }

    /// Returns whether its model takes memory of its slot.
    fn is_there(&self) -> bool {
        self.location == Location::Device || matches!(self.motion, Motion::Returns { .. })
    }

    /// Returns whether nothing of it has work, as far as is known.
    const fn is_without_work(&self) -> bool {
        match self.lease {
            Lease::Ended => true,
            _ if self.turn.is_some() => false,
            _ if self.has_queue => self.is_idle,
            _ => self.quiet_since.is_some(),
        }
    }

    /// Returns the expected time of a load: as measured, else at the rate of other instances' loads.
    fn expected_load(&self, rate: LoadRate) -> Span {
        if self.load > Span::ZERO && self.loaded_bytes >= self.bytes / 2 && self.loaded_bytes > 0 {
            return in_proportion(self.load, self.loaded_bytes, self.bytes);
        }
        rate.expected(self.bytes)
    }

    /// Returns whether a load takes most of the objective, so that a request with one can hardly be in time.
    fn is_tight(&self, rate: LoadRate) -> bool {
        let objective = u128::from(self.about.objective.0);
        let loaded = u128::from(self.execution.0) + u128::from(self.expected_load(rate).0);
        objective > 0 && u128::from(self.execution.0) < objective && loaded * 4 > objective * 3
    }

    /// Returns the expected execution time of its next request.
    fn expected_execution(&self) -> Span {
        match self.head {
            Some((_, demand)) if self.executions == 0 => demand.estimate,
            _ => self.execution,
        }
    }

    /// Returns the time from a recall of its lease until the end of what runs, as expected: that of a request, or what was measured if it is more.
    fn expected_drain(&self) -> Span {
        self.expected_execution().max(self.drains.expected())
    }
}
