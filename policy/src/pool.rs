//! A pool of GPUs that many functions share: whose request runs next, on which slot, from where its model
//! comes, and which models give way (M2.1, M2.13–M2.21, papers 2.2–2.4).
//!
//! | module | decides | source |
//! |---|---|---|
//! | [`queue`] | whose request is next | M2.13, papers 2.2 |
//! | [`slots`] | where it runs, from where its model comes, who is evicted | M2.1, M2.15, M2.16, papers 2.3, 2.3b |
//! | [`heaviness`] | which models are slowed by a swap | M2.14, papers 2.4 |
//! | [`nodes`] | which nodes hold a function, and which serves a request | M2.17 |
//! | [`keepalive`] | how long a model stays loaded where models are not swapped | M2.21 |
//! | [`billing`] | what is charged | M2.18 |
//! | [`metrics`] | whether a function was compliant, how even the load was | M2.19, M2.20 |
//! | [`preset`] | which settings stand for which system and baseline | M2.21 |
//!
//! A request's way: [`queue::Queue::arrive`]; whenever a slot is free [`queue::Queue::next`] and
//! [`slots::Pool::schedule`]; if it may run, [`queue::Queue::take`]; [`slots::Pool::loaded`] when its model is
//! there, [`slots::Pool::finished`] and [`queue::Queue::completed`] when it is done. If it must wait although a
//! slot is free, because it may not run on that one, [`queue::Queue::hold`] lets others be next.

pub mod billing;
pub mod heaviness;
pub mod keepalive;
pub mod metrics;
pub mod nodes;
mod percentile;
pub mod preset;
pub mod queue;
pub mod slots;

use std::fmt;

pub use percentile::{Percentile, WHOLE};
pub use slots::Pool;

/// Ids of functions are indices into tables and have to stay below this.
pub const IDS_MAX: u32 = 1 << 20;

/// A function of the pool, and its model: a small integer, free again when the function is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FunctionId(pub u32);

/// A slot of the pool: where at most one function computes at a time. Dense, from zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SlotId(pub u32);

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Ids are indices: smaller, please.
    IdTooLarge {
        /// The id.
        id: u32,
    },
    /// There is such a function already.
    FunctionTaken {
        /// Which.
        function: FunctionId,
    },
    /// There is no such function.
    NoSuchFunction {
        /// Which.
        function: FunctionId,
    },
    /// There is no such slot, or it is down.
    NoSuchSlot {
        /// Which.
        slot: SlotId,
    },
    /// The model runs, loads or is copied from.
    InUse {
        /// Whose.
        function: FunctionId,
    },
    /// The function has an instance there already.
    InstanceTaken {
        /// Whose.
        function: FunctionId,
        /// Where.
        slot: SlotId,
    },
    /// The function has no instance there.
    NoInstance {
        /// Whose.
        function: FunctionId,
        /// Where.
        slot: SlotId,
    },
    /// Not even eviction makes that much room.
    NoMemory {
        /// Where.
        slot: SlotId,
        /// How many bytes are wanted.
        bytes: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::IdTooLarge { id } => write!(f, "id {id} is not below {IDS_MAX}"),
            Self::FunctionTaken { function } => {
                write!(f, "function {} is there already", function.0)
            }
            Self::NoSuchFunction { function } => write!(f, "there is no function {}", function.0),
            Self::NoSuchSlot { slot } => write!(f, "there is no slot {} in use", slot.0),
            Self::InUse { function } => write!(f, "the model of function {} is in use", function.0),
            Self::InstanceTaken { function, slot } => {
                let (function, slot) = (function.0, slot.0);
                write!(
                    f,
                    "function {function} has an instance on slot {slot} already"
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
