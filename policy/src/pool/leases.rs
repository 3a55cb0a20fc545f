//! Leases: whose requests compute on each slot of a node, and whose models are there (M2.12–M2.16 with processes that are bound to their slots;
//! contracts §7).
//!
//! An *instance* is a process of a function on one slot, with a queue of its own before it. At most one instance of a slot holds its lease and
//! computes. [`queue`] decides whose head is next, and [`slots`] on which of the function's instances it runs and which
//! models leave for it; this module carries both out, step by step, with what queues and processes report:
//!
//! ```text
//!  head ──> turn on a slot ──> the holder is recalled ──> its gate is closed ──> models leave, one by one ──> the model returns ──> lease
//!                              (Recall … idle)            (Close … closed)       (Evict … evicted)            (Restore … restored)
//! ```
//!
//! - A holder with nothing queued or running keeps its lease until another instance needs the slot. Otherwise it is recalled once the time
//!   that its running requests take to end, as measured, ends at the latest start of a waiting head; if all waiting heads are late, after twice its load time.
//!   Its function yields the slot to a late head if all that waits of it can still be in time ([`Settings::yields`]).
//! - A *parked* process, which waits at its gate or for memory while no request of it is known, gets a lease when no head wants the slot, or
//!   out of a credit of 5 % of the time.
//! - Memory grows by claims ([`Leases::claim`]): others leave for them, or they wait.
//! - Where models of a slot have not all room there, one is *sealed* when its lease ends or has nothing to do: what its eviction would copy is copied ahead,
//!   while it may still compute. A sealed model leaves beside whatever else happens on the slot, several at a time; another leaves alone, since its
//!   contents are compared by a kernel.
//! - The model of a head that waits returns beside what computes, into room from which sealed models have left ([`crate::pool::ahead`]). On a slot of a
//!   class that keeps others' data away, and beside data of others, it does not.
//! - Where models stream ([`Settings::streams`]), the lease is granted as soon as the model begins to return, but one and a half executions before the load
//!   ends if that is later ([`Settings::begins_late`]): others compute until then.
//! - Where a device is lost the holder is recalled at once, and nothing is granted until it is back ([`Leases::set_lost`]); what waits there goes to
//!   siblings.
//! - An instance whose processes have failed is recalled likewise, and gets no lease until it has a new process ([`Leases::set_failed`]).
//! - What refuses to leave stays for a second ([`RETRY`]), or until what it lacked may have come ([`Leases::hasten`]), and the head for which it was to leave waits again.
//! - Data of other namespaces leave before an instance of class [`Class::Tenant`] gets the slot, and all others' before one of class
//!   [`Class::Strict`].
//!
//! [`Leases::decide`] looks only at slots on which something goes on or for which something waits, and costs O(1) without any. For each it costs O(waiting
//! functions · log functions), and where a load ahead may begin O(waiting functions · instances); the other calls cost O(log functions). A clock that is set
//! back counts as one that stands still.
//!
//! # Examples
//!
//! ```
//! use policy::pool::leases::{Action, Class, Demand, Instance, InstanceId, Leases, Settings};
//! use policy::pool::{FunctionId, Percentile, SlotId};
//! use policy::{Span, Time};
//!
//! let mut leases = Leases::new(Settings::default());
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
//! leases.connect(Time(0), one, None);
//! let demand = Demand {
//!     deadline: Time(80_000_000),
//!     estimate: Span::from_millis(5),
//!     waiting: 1,
//!     may_move: true,
//! };
//! leases.head(Time(1), one, demand);
//! leases.decide(Time(1), &mut actions);
//! assert_eq!(actions, [Action::Open(one), Action::Lease(one)]);
//! ```

mod ahead;
mod assign;
mod deferred;
mod demand;
mod drain;
mod evict;
mod failed;
mod function;
mod holder_model;
mod memory;
mod progress;
mod recall;
mod rule;
mod steps;
mod unsettled;
mod yielding;

use std::collections::BTreeMap;

use super::means::LoadRate;
use super::queue::{self, Head, Queue, Ticket};
use super::slots::{self, Evicted, Pool, SLOTS_MAX, Topology};
use super::{FunctionId, Percentile, Refusal, SlotId};
use crate::{Span, Time};

use function::{Function, is_part};
use unsettled::{Instances, slots_of};

pub(in crate::pool) use demand::{EXECUTIONS_MIN, news};
pub use rule::Rule;

/// Time for which a model that refused to leave stays, and a model that could not return is not tried again.
pub const RETRY: Span = Span::from_secs(1);
/// Time after which a model that refused to leave is tried again if host memory that it lacked has come since ([`Leases::hasten`]): its processes map that first.
pub const RETRY_SOON: Span = Span::from_millis(20);
/// Time for which nothing is forwarded to an instance from which a head has come back.
pub const LEFT_OUT: Span = Span::from_secs(10);
/// Time for which a lease waits for a request that another instance forwards.
pub const FORWARDED: Span = Span::from_millis(20);
/// Longest time from a recall until the gate of the holder is closed although its queue has not answered: the longest timeout of a revision. It is closed
/// earlier if its processes have computed nothing for [`RECALL_QUIET_MAX`].
pub const RECALL_MAX: Span = Span::from_secs(600);
/// Time since a recall, without a launch and without work in flight, after which the gate of the holder is closed although its queue has not answered. No
/// estimate shortens or stretches it, since queues state these.
pub const RECALL_QUIET_MAX: Span = Span::from_secs(10);
/// Interval at which it is looked whether the processes of a recalled holder compute.
pub const RECALLED_LOOK: Span = Span::from_millis(500);
/// Part of a slot's time that parked processes get while heads wait: one in this many.
pub const PARKED_SHARE: u64 = 20;
/// Largest time that parked processes can save up.
pub const PARKED_CREDIT_MAX: Span = Span::from_secs(1);
/// Time after which a lease of a parked process ends if others wait, whether it still computes or not.
pub const PARKED_MAX: Span = Span::from_secs(10);
/// Time without a launch after which a parked process counts as done ([`Leases::quiet`]).
pub const QUIET: Span = Span::from_millis(20);
/// Time by which a parked process of a pod without an objective is to have a lease.
pub const PARKED_DEADLINE: Span = Span::from_secs(10);
/// Longest time for which the end of a lease waits until its model is sealed.
pub const SEAL_MAX: Span = Span::from_millis(50);
/// Time after the end of the processes of an instance which had failed ([`Leases::set_failed`]), for which it waits for a new one: a container starts again in
/// less, the first times. A server that makes its process only for a request gets the next one after it.
pub const RESTART_MAX: Span = Span::from_secs(10);
/// Interval at which it is looked whether a parked process still computes while others wait.
pub const PARKED_LOOK: Span = Span::from_millis(50);

/// Id of an instance, given by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceId(pub u32);

/// Whose data may be on a slot beside an instance's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// That of no other instance.
    Strict,
    /// That of the same namespace.
    Tenant {
        /// Id of the namespace.
        namespace: u32,
    },
}

impl Class {
    /// Returns whether data of both may be on a slot at the same time.
    const fn is_beside(self, other: Self) -> bool {
        match (self, other) {
            (Self::Tenant { namespace: one }, Self::Tenant { namespace: other }) => one == other,
            _ => false,
        }
    }
}

/// Settings of the leases of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Order of the heads of all instances.
    pub queue: queue::Settings,
    /// Choice of slots and of models that leave. [`slots::Binding`] is always [`slots::Binding::Process`].
    pub slots: slots::Settings,
    /// Whether an instance computes while its model returns, as far as it is there.
    pub streams: bool,
    /// Whether a model is loaded on a free slot although another slot has it, which is in use and will be free soon enough, as Algorithm 1 (M2.15) does.
    pub loads_at_once: bool,
    /// Whether models of waiting heads return while others compute ([`crate::pool::ahead`]).
    pub loads_ahead: bool,
    /// Whether others compute on a slot while a model returns there that takes longer than its request needs; only with `loads_ahead` and without `loads_at_once`.
    pub begins_late: bool,
    /// Whether a function whose lease was recalled for a head yields the slot to a late head if all that waits of it can still be in time.
    pub yields: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue: queue::Settings::default(),
            slots: slots::Settings {
                eviction: slots::Eviction::Objectives,
                ..slots::Settings::default()
            },
            streams: false,
            loads_at_once: false,
            loads_ahead: true,
            begins_late: true,
            yields: true,
        }
    }
}

/// Properties of an instance, for its lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its function, of which there is at most one instance on a slot.
    pub function: FunctionId,
    /// Slot on which its process is.
    pub slot: SlotId,
    /// Share of the function's requests that must be in time; that of its first instance counts.
    pub percentile: Percentile,
    /// Objective of the function; zero: none. That of its first instance counts.
    pub objective: Span,
    /// Whose data may be beside its own.
    pub class: Class,
    /// Whether its model may leave the slot.
    pub may_leave: bool,
}

/// Head of an instance's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Time by which the head must be answered.
    pub deadline: Time,
    /// Execution time of the head as its queue estimates it.
    pub estimate: Span,
    /// Number of waiting requests; 0 withdraws the head.
    pub waiting: u32,
    /// Whether it may be forwarded to another instance.
    pub may_move: bool,
}

/// Location of an instance's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// There is none yet, or its process has ended.
    Absent,
    /// It is in the memory of its slot.
    Device,
    /// It is in host memory.
    Host,
}

/// Order of [`Leases`] to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let the instance's processes compute.
    Open(InstanceId),
    /// Let the instance's processes compute no more. Answered with [`Leases::closed`] once nothing is in flight.
    Close(InstanceId),
    /// Notify the instance's queue that it holds the lease.
    Lease(InstanceId),
    /// Notify the instance's queue that it is to end. Answered with [`Leases::idle`] once nothing runs.
    Recall(InstanceId),
    /// Notify a queue that its head is to be forwarded to another instance of the function, which has got the lease.
    Sibling {
        /// Instance with the head.
        from: InstanceId,
        /// Instance which is to serve it.
        to: InstanceId,
    },
    /// Copy to the host what has changed of the instance's model, which stays where it is. Answered with [`Leases::sealed`].
    Seal(InstanceId),
    /// Move the instance's model to the host. Answered with [`Leases::evicted`].
    Evict {
        /// Instance of the model.
        instance: InstanceId,
        /// Why it leaves.
        reason: slots::EvictReason,
        /// Whether it is sealed, and leaves without a kernel; otherwise no other instance of the slot computes meanwhile, but for claims.
        is_sealed: bool,
    },
    /// Move the instance's model to the device. Answered with [`Leases::restored`].
    Restore(InstanceId),
    /// Answer the pending claim of an instance.
    Claim {
        /// Instance which has claimed.
        instance: InstanceId,
        /// Whether it may hold what it has claimed.
        granted: bool,
    },
}

/// State of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// There is room for the claim.
    Granted,
    /// Others must leave first; [`Action::Claim`] follows.
    Waits,
    /// The slot can never hold so much.
    Refused,
}

/// State of an instance, for figures and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Whether it holds the lease of its slot and is not recalled.
    pub is_holder: bool,
    /// Whether the next lease of its slot is its own, or its model returns for a head which was next.
    pub has_turn: bool,
    /// Location of its model.
    pub location: Location,
    /// Memory of its model on the slot while it is there, in bytes.
    pub bytes: u64,
    /// Mean execution time as measured; zero before the first.
    pub execution: Span,
    /// Mean load time as measured; zero before the first.
    pub load: Span,
    /// Whether it gets no lease, since its processes have failed.
    pub has_failed: bool,
}

#[derive(Debug, Clone)]
struct Entry {
    about: Instance,
    has_queue: bool,
    /// Whether its queue can forward its head to siblings, and be forwarded to.
    is_reachable: bool,
    /// Instances to which its queue forwards nothing until the time, since a head has come back from them.
    left_out: Vec<(InstanceId, Time)>,
    outcomes: (u64, u64),
    head: Option<(Ticket, Demand)>,
    /// Time by which a parked process is to have a lease.
    parked: Option<Time>,
    location: Location,
    bytes: u64,
    /// Part of `bytes` that was granted: less while others leave for a claim.
    granted: u64,
    /// Size of its model when that last began to return, in bytes.
    returning_bytes: u64,
    /// Time before which its model is not tried to be moved again.
    retry_at: Time,
    /// Total memory that its processes have claimed and wait for, in bytes.
    claim: Option<u64>,
    /// Whether the host has all of its model: nothing of it has computed since.
    is_sealed: bool,
    /// Time until which it gets no lease, since its processes have failed; [`Time::NEVER`]: until they have ended. [`Time::ZERO`]: they have not.
    failed_until: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Leased,
    Recalled { since: Time },
    Closing { since: Time },
}

/// Progress of a seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seal {
    /// None was asked for since the holder had work last.
    Open,
    /// It was ordered, and is not answered.
    Asked { since: Time },
    /// It was answered, or would serve nothing.
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    instance: InstanceId,
    stage: Stage,
    since: Time,
    /// Whether nothing of it is queued or running, as far as is known.
    is_idle: bool,
    /// Whether it has the lease for a parked process.
    is_parked: bool,
    /// Time since which heads have waited for the slot while it had the lease for a parked process; `None`: none do, or they did and it was charged.
    contested_since: Option<Time>,
    /// Whether its queue knows of the lease.
    is_notified: bool,
    /// Time since which its processes have computed nothing and waited for nothing, as far as is known.
    quiet_since: Option<Time>,
    /// Whether its model is sealed for the time after the lease.
    seal: Seal,
    /// Whether its processes may compute, as the caller knows: not before the first decision after an adoption.
    is_open: bool,
    /// Time of its recall for a head, if its queue had work then, or of the return of its model since.
    drains_since: Option<Time>,
    /// Time since which its model returns while it computes already.
    restores_since: Option<Time>,
    /// Deadline of the head for which it has got the lease; [`Time::ZERO`] if there was none.
    deadline: Time,
    /// Whether its queue has nothing while a forwarded request is still waited for.
    is_idle_later: bool,
    /// Time until which a forwarded request is waited for, and the instance that forwards it.
    reserved_until: Time,
    reserved_for: Option<InstanceId>,
}

/// What a turn is for.
#[derive(Debug, Clone, Copy)]
enum Cause {
    Head {
        from: InstanceId,
        head: Head,
        demand: Demand,
    },
    Parked,
    /// A head that has left its queue since, whether it was to be forwarded or not.
    Gone,
}

#[derive(Debug, Clone, Copy)]
struct Turn {
    instance: InstanceId,
    cause: Cause,
    /// Time since which the slot computes nothing for it; `None` while its holder still may.
    moves_since: Option<Time>,
    is_restoring: bool,
}

#[derive(Debug, Clone, Default)]
struct SlotLease {
    /// Memory for models, in bytes.
    capacity: u64,
    /// Number of its path to the host's memory, if it is known.
    host_path: Option<u32>,
    /// Number of instances with a queue: without, no leases are needed.
    queues: u32,
    holder: Option<Holder>,
    turn: Option<Turn>,
    /// Function that yields it, between a recall and the next turn.
    yielding: Option<yielding::Yielding>,
    /// Time by which the present turn, and the lease after it, are to end because a head was passed over for it.
    yielded_until: Option<Time>,
    /// Models that are to leave before the next lease.
    leaving: Vec<(InstanceId, slots::EvictReason)>,
    /// Model that leaves and is not sealed.
    evicting: Option<InstanceId>,
    /// Sealed models that leave.
    evicting_sealed: Vec<InstanceId>,
    /// Model that is loaded, or there, ahead of its lease.
    ahead: Option<ahead::Ahead>,
    /// Time for which heads will use the slot that wait for it since it has their models, in the present decision.
    awaited: Span,
    /// Time that parked processes may have while heads wait, in nanoseconds, and when it was counted.
    credit: i64,
    credited: Time,
}

/// Leases of a node; see the [module](self).
#[derive(Debug, Clone)]
pub struct Leases {
    now: Time,
    queue: Queue,
    pool: Pool,
    slots: Vec<SlotLease>,
    instances: Instances,
    functions: BTreeMap<FunctionId, Function>,
    load_rate: LoadRate,
    /// Instances with a head, a parked process or a claim.
    waiting: Vec<InstanceId>,
    /// Instances whose models are not to be moved for a while, since they refused.
    retried: Vec<InstanceId>,
    wake: Option<Time>,
    evicted: Vec<Evicted>,
    streams: bool,
    loads_at_once: bool,
    loads_ahead: bool,
    begins_late: bool,
    yields: bool,
    /// Heads that no slot can serve at present, which have left the queue so that others are next.
    held: Vec<(InstanceId, Head)>,
    /// Slots on which leases are granted, those whose device is lost, those with queues and those with a next turn, as bit sets.
    usable: u64,
    lost: u64,
    queued: u64,
    turns: u64,
    /// Slots that may have been changed since they were settled, or are not, as a bit set ([`unsettled`]).
    changed: u64,
}

impl Leases {
    /// Creates leases without slots.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let slots = slots::Settings {
            binding: slots::Binding::Process,
            ..settings.slots
        };
        let pool = Pool::new(slots, Topology::of_one_slot());
        Self {
            now: Time::ZERO,
            queue: Queue::new(settings.queue),
            pool,
            slots: vec![SlotLease::default()],
            instances: Instances::default(),
            functions: BTreeMap::new(),
            load_rate: LoadRate::UNKNOWN,
            waiting: Vec::new(),
            retried: Vec::new(),
            wake: None,
            evicted: Vec::new(),
            streams: settings.streams,
            loads_at_once: settings.loads_at_once,
            loads_ahead: settings.loads_ahead,
            begins_late: settings.begins_late && settings.loads_ahead && !settings.loads_at_once,
            yields: settings.yields,
            held: Vec::new(),
            usable: 0,
            lost: 0,
            queued: 0,
            turns: 0,
            changed: 0,
        }
    }

    /// Sets the memory of a slot for models, in bytes. Slots from [`SLOTS_MAX`] on are ignored.
    pub fn set_slot(&mut self, slot: SlotId, bytes: u64) {
        let at = slot.0 as usize;
        if at >= SLOTS_MAX {
            return;
        }
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, SlotLease::default);
            self.pool.add_slots(at + 1);
        }
        self.at_mut(slot).capacity = bytes;
        self.pool.set_capacity(slot, bytes);
    }

    /// Sets the number of a slot's path to the host's memory, which it shares with the slots of the same number; by default its own.
    pub fn set_host_path(&mut self, slot: SlotId, path: u32) {
        let Some(at) = self.slots.get_mut(slot.0 as usize) else {
            return;
        };
        if at.host_path == Some(path) {
            return;
        }
        at.host_path = Some(path);
        let on_path = (0..).zip(&self.slots);
        let neighbours = on_path
            .filter(|(other, own)| own.host_path == Some(path) && *other != slot.0)
            .fold(0, |set, (other, _)| set | 1 << other);
        self.pool.set_neighbours(slot, neighbours);
    }

    /// Sets whether leases are granted on a slot. While they are not, what runs goes on.
    pub fn set_usable(&mut self, slot: SlotId, is_usable: bool) {
        if slot.0 as usize >= self.slots.len() {
            return;
        }
        let set = 1 << slot.0;
        if is_usable != (self.usable & set != 0) {
            self.usable ^= set;
            self.changed |= set;
        }
        if !is_usable {
            self.cancel_ahead(slot);
            self.return_promised(slot);
        }
    }

    /// Sets whether the device of a slot is lost. There, the holder is recalled, since what it runs fails, and nothing is granted; the heads of its
    /// instances go to siblings on other slots, if there are any.
    pub fn set_lost(&mut self, now: Time, slot: SlotId, is_lost: bool) {
        self.now = self.now.max(now);
        if slot.0 as usize >= self.slots.len() || self.is_lost(slot) == is_lost {
            return;
        }
        self.lost ^= 1 << slot.0;
        self.changed |= 1 << slot.0;
        if is_lost {
            self.give_up_plans(slot);
        }
    }

    /// Adds an instance, without a queue and without a model.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchSlot`], [`Refusal::IdTooLarge`] or [`Refusal::InstanceTaken`].
    pub fn add(&mut self, now: Time, id: InstanceId, about: &Instance) -> Result<(), Refusal> {
        self.now = self.now.max(now);
        let (function, slot) = (about.function, about.slot);
        if self.slots.len() <= slot.0 as usize {
            return Err(Refusal::NoSuchSlot { slot });
        }
        if self.instances.contains_key(&id) {
            return Err(Refusal::InstanceTaken { function, slot });
        }
        let is_first = !self.functions.contains_key(&function);
        if is_first {
            self.pool
                .add(function, Function::default().model(self.load_rate))?;
            self.queue
                .add(self.now, function, about.percentile, about.objective)?;
        }
        let mut evicted = std::mem::take(&mut self.evicted);
        let added = self.pool.add_instance(function, slot, 0, &mut evicted);
        self.evicted = evicted;
        added?;
        self.pool.set_pinned(function, slot, !about.may_leave);
        let entry = self.functions.entry(function).or_default();
        entry.instances.push(id);
        self.instances.insert(
            id,
            Entry {
                about: *about,
                has_queue: false,
                is_reachable: false,
                left_out: Vec::new(),
                outcomes: (0, 0),
                head: None,
                parked: None,
                location: Location::Absent,
                bytes: 0,
                granted: 0,
                returning_bytes: 0,
                retry_at: Time::ZERO,
                claim: None,
                is_sealed: false,
                failed_until: Time::ZERO,
            },
        );
        Ok(())
    }

    /// Removes an instance. Its lease is free, and its turn passes.
    pub fn remove(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        if !self.instances.contains_key(&id) {
            return;
        }
        self.disconnect(now, id);
        self.lost(now, id);
        let Some(slot) = self.slot_of(id) else {
            return;
        };
        if self.at(slot).turn.is_some_and(|turn| turn.instance == id) {
            self.fail_turn(slot);
        }
        if self
            .at(slot)
            .holder
            .is_some_and(|holder| holder.instance == id)
        {
            self.take_lease(slot);
        }
        self.withdraw(id);
        let Some(entry) = self.instances.remove(&id) else {
            return;
        };
        self.waiting.retain(|own| *own != id);
        let function = entry.about.function;
        let mut evicted = std::mem::take(&mut self.evicted);
        let _unused = self.pool.remove_instance(function, slot, &mut evicted);
        evicted.clear();
        self.evicted = evicted;
        if let Some(entry) = self.functions.get_mut(&function) {
            entry.instances.retain(|own| *own != id);
            if entry.instances.is_empty() {
                self.functions.remove(&function);
                self.queue.remove(self.now, function, &mut Vec::new());
                let _unused = self.pool.remove(function, &mut Vec::new());
            }
        }
    }

    /// Returns the state of an instance, or `None` if there is none of this id.
    #[must_use]
    pub fn view(&self, id: InstanceId) -> Option<View> {
        let entry = self.instances.get(&id)?;
        let function = self.functions.get(&entry.about.function)?;
        let at = &self.slots[entry.about.slot.0 as usize];
        let holder = at.holder;
        Some(View {
            has_turn: at.turn.is_some_and(|turn| turn.instance == id) || at.is_promised(id),
            is_holder: holder.is_some_and(|own| own.instance == id && own.stage == Stage::Leased),
            location: entry.location,
            bytes: entry.bytes,
            execution: function.execution,
            load: function.measured_load(),
            has_failed: self.has_failed(entry),
        })
    }

    /// Returns the instance which holds the lease of a slot, recalled or not.
    #[must_use]
    pub fn holder(&self, slot: SlotId) -> Option<InstanceId> {
        Some(self.slots.get(slot.0 as usize)?.holder?.instance)
    }

    /// Returns whether leases are needed on a slot: some instance there has a queue.
    #[must_use]
    pub fn is_leased(&self, slot: SlotId) -> bool {
        self.queued.checked_shr(slot.0).unwrap_or(0) & 1 == 1
    }

    /// Returns when [`Leases::decide`] is due unless something is reported before.
    #[must_use]
    pub const fn next_wake(&self) -> Option<Time> {
        self.wake
    }

    /// Decides what happens next, and appends it to `actions`.
    pub fn decide(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        self.wake = None;
        let all = (0..self.slots.len()).map(slot_id);
        let mut settled = all.filter(|slot| self.unsettled() >> slot.0 & 1 == 0);
        debug_assert!(
            settled.all(|slot| self.is_settled(slot)),
            "a slot is passed over"
        );
        self.end_waits();
        self.end_promises();
        loop {
            self.answer_claims(actions);
            self.each_unsettled(|own, slot| own.advance(slot, actions));
            if !self.assign() {
                break;
            }
        }
        let returns = self.returns_now();
        self.recall(&returns, actions);
        self.wake_for_deferred(&returns);
        self.release_held();
        self.load_ahead(actions);
        self.settle();
    }

    const fn is_lost(&self, slot: SlotId) -> bool {
        self.lost >> slot.0 & 1 == 1
    }

    /// Returns whether leases are granted on a slot.
    const fn grants(&self, slot: SlotId) -> bool {
        (self.usable & !self.lost) >> slot.0 & 1 == 1
    }

    fn wake_at(&mut self, at: Time) {
        if at != Time::NEVER {
            self.wake = Some(self.wake.map_or(at, |before| before.min(at)));
        }
    }

    /// Returns the instance of a function on a slot.
    fn instance_on(&self, function: FunctionId, slot: SlotId) -> Option<InstanceId> {
        let instances = self.functions.get(&function)?.instances.iter();
        instances
            .copied()
            .find(|id| self.instances[id].about.slot == slot)
    }

    /// Queues the models that the pool has decided to evict.
    fn queue_evicted(&mut self) {
        let mut evicted = std::mem::take(&mut self.evicted);
        for gone in evicted.drain(..) {
            if let Some(id) = self.instance_on(gone.function, gone.slot) {
                let reason = gone.reason;
                self.at_mut(gone.slot).leaving.push((id, reason));
            }
        }
        self.evicted = evicted;
    }
}

impl SlotLease {
    /// Returns whether the model of an instance returns, or is there, for a head which was next.
    fn is_promised(&self, id: InstanceId) -> bool {
        let is_own = |ahead: ahead::Ahead| ahead.instance == id && ahead.promised.is_some();
        self.ahead.is_some_and(is_own)
    }
}

impl Holder {
    fn is_leased(&self) -> bool {
        self.stage == Stage::Leased
    }
}

fn slot_id(at: usize) -> SlotId {
    SlotId(u32::try_from(at).unwrap_or(u32::MAX))
}
