//! A pool of GPUs shared by many functions: which function's request runs next, on which slot, from where its model is
//! loaded, and which models are evicted (M2.1, M2.13–M2.21, mechanisms §2.2–§2.4).
//!
//! | module | decides | source |
//! |---|---|---|
//! | [`queue`] | which function's request is next | M2.13, mechanisms §2.2 |
//! | [`slots`] | where a request runs, the source of its model, the models evicted for it | M2.1, M2.15, M2.16, mechanisms §2.3, §2.3b |
//! | [`heaviness`] | which models are slowed by a swap | M2.14, mechanisms §2.4 |
//! | [`ahead`] | which waiting request's model is loaded beside what computes | M2.6, contracts §7 |
//! | [`leases`] | which process of a node computes, and whose model is there, step by step | M2.12–M2.16, contracts §7 |
//! | [`nodes`] | which nodes hold a function, and which serves a request | M2.17 |
//! | [`keepalive`] | how long a model stays loaded where models are not swapped | M2.21 |
//! | [`billing`] | what a function is charged | M2.18 |
//! | [`metrics`] | whether a function was compliant, and how evenly the slots were loaded | M2.19, M2.20 |
//! | [`preset`] | the settings of each system and baseline | M2.21 |
//!
//! The sequence of calls for a request is: [`queue::Queue::arrive`]; whenever a slot is free, [`queue::Queue::next`]
//! and [`slots::Pool::schedule`]; if the request may run, [`queue::Queue::take`]; [`slots::Pool::loaded`] once its
//! model is there; and [`slots::Pool::finished`] and [`queue::Queue::completed`] once it is done. If the request must
//! wait although a slot is free, because it may not run on that slot, [`queue::Queue::hold`] lets other functions be
//! next.
//!
//! # Examples
//!
//! ```
//! use policy::pool::slots::{self, Decision, Model, Topology};
//! use policy::pool::{FunctionId, Percentile, Pool, queue};
//! use policy::{RequestId, Span, Time};
//!
//! let (function, now) = (FunctionId(0), Time(0));
//! let mut queue = queue::Queue::new(queue::Settings::default());
//! queue.add(now, function, Percentile::default(), Span::from_secs(1)).unwrap();
//! let mut pool = Pool::new(slots::Settings::default(), Topology::new(&[16 << 30]).unwrap());
//! let (execution, swapped) = (Span::from_millis(5), Span::from_millis(9));
//! let model = Model { bytes: 1 << 30, heavy: false, tight: false, writes: false, execution, swapped };
//! pool.add(function, model).unwrap();
//!
//! queue.arrive(now, function, RequestId(1), Time::NEVER).unwrap();
//! let (head, _) = queue.next(now).unwrap();
//! let decision = pool.schedule(now, head.function, 0, &mut Vec::new());
//! assert!(matches!(decision, Decision::Run(_)));
//! queue.take(now, head.ticket);
//! assert!(queue.is_empty());
//! ```

pub mod ahead;
pub mod billing;
pub mod heaviness;
pub mod keepalive;
pub mod leases;
mod means;
pub mod metrics;
pub mod nodes;
mod percentile;
pub mod preset;
pub mod queue;
pub mod shared;
pub mod slots;

use std::fmt;

pub use percentile::{Percentile, WHOLE};
pub use slots::Pool;
pub use units::{FunctionId, SlotId};

/// Exclusive upper bound of function ids, which are indices into tables.
pub const IDS_MAX: u32 = 1 << 20;

/// Reason why an operation on the pool is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The id is not below [`IDS_MAX`].
    IdTooLarge {
        /// Value of the id.
        id: u32,
    },
    /// A function of this id already exists.
    FunctionTaken {
        /// Id of the function.
        function: FunctionId,
    },
    /// No function of this id exists.
    NoSuchFunction {
        /// Id of the function.
        function: FunctionId,
    },
    /// No slot of this id exists, or it is down.
    NoSuchSlot {
        /// Id of the slot.
        slot: SlotId,
    },
    /// The model is running, loading, or being copied from.
    InUse {
        /// Id of the model's function.
        function: FunctionId,
    },
    /// The function already has an instance on this slot.
    InstanceTaken {
        /// Id of the function.
        function: FunctionId,
        /// Id of the slot.
        slot: SlotId,
    },
    /// The function has no instance on this slot.
    NoInstance {
        /// Id of the function.
        function: FunctionId,
        /// Id of the slot.
        slot: SlotId,
    },
    /// Not even evictions make enough room on the slot.
    NoMemory {
        /// Id of the slot.
        slot: SlotId,
        /// Number of bytes required.
        bytes: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IdTooLarge { id } => write!(f, "id {id} must be below {IDS_MAX}"),
            Self::FunctionTaken { function } => {
                write!(f, "function {} already exists", function.0)
            }
            Self::NoSuchFunction { function } => {
                write!(f, "function {} does not exist", function.0)
            }
            Self::NoSuchSlot { slot } => write!(f, "slot {} does not exist or is down", slot.0),
            Self::InUse { function } => write!(f, "the model of function {} is in use", function.0),
            Self::InstanceTaken { function, slot } => {
                let (function, slot) = (function.0, slot.0);
                write!(
                    f,
                    "function {function} already has an instance on slot {slot}"
                )
            }
            Self::NoInstance { function, slot } => {
                write!(
                    f,
                    "function {} has no instance on slot {}",
                    function.0, slot.0
                )
            }
            Self::NoMemory { slot, bytes } => {
                write!(f, "slot {} has no room for {bytes} bytes", slot.0)
            }
        }
    }
}

impl std::error::Error for Refusal {}
