//! Decisions of a pool, with their reasons.

use crate::pool::{FunctionId, SlotId};
use crate::{Span, Time};

/// Properties of a function's model that the pool needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Slot memory that the model takes, in bytes.
    pub bytes: u64,
    /// Whether a swap over the host path slows the inference (see [`crate::pool::heaviness`]); true if unknown.
    pub heavy: bool,
    /// Whether a load from the host leaves a request of the model little of its objective; used by [`super::Eviction::Objectives`] only.
    pub tight: bool,
    /// Whether the model writes to its memory on the slot. A copy then does not equal the original, so the model has at
    /// most one copy and runs where that is (M2.7).
    pub writes: bool,
    /// Estimated inference time with the model resident; used by [`super::Patience`] only.
    pub execution: Span,
    /// Estimated inference time while the model is loaded from the host, alone on the path.
    pub swapped: Span,
}

/// Decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request runs. The slot is taken, and room is made.
    Run(Run),
    /// The request stays queued.
    Wait {
        /// Reason why the request waits.
        reason: WaitReason,
        /// Time at which to try again even if nothing has changed.
        until: Option<Time>,
    },
}

/// Placement of a request that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Slot on which the request runs.
    pub slot: SlotId,
    /// Source from which the request's model is loaded.
    pub source: Source,
    /// Reason for the choice of the slot.
    pub reason: RunReason,
}

/// Source of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The model is on the slot already.
    Resident,
    /// Another slot, over the link between both.
    Slot(SlotId),
    /// Host memory, which holds a copy of every model.
    Host,
}

/// Reason why a slot was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunReason {
    /// The model is on the slot.
    Resident,
    /// The slot has the fastest link to a copy of the model.
    Link,
    /// No other slot loads over the slot's path to the host.
    QuietPath,
    /// A neighbour loads a light model over the same path, and no slot has a quiet one.
    BesideLight,
    /// A neighbour loads a heavy model over the same path, and no other slot is better.
    BesideHeavy,
    /// The slot was chosen at random.
    Random,
    /// The function is bound to this slot from now on.
    Bound,
}

/// Reason why a request stays queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// No such function exists.
    NoSuchFunction,
    /// The function has no instance.
    NoInstance,
    /// No slot that the function may use is free.
    NoSlotFree,
    /// The slot to which the function is bound is not free.
    BoundSlotBusy,
    /// The model writes to its memory, and its only copy is on a slot that is not free.
    OneCopyBusy,
    /// Too much on the free slots is running, loading, or being copied from to make room.
    Blocked,
    /// A second copy may only use free memory, and the first copy is in use.
    SecondCopy,
    /// Another slot with a better path will be free before loading here would pay off.
    Contention,
    /// The model was loaded ahead to a slot that will be free before a load to another would be over.
    Ahead,
    /// No slot could ever hold the model.
    NeverFits,
}

/// Model that was evicted. The caller frees its memory before the new model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Function of the evicted model.
    pub function: FunctionId,
    /// Slot from which the model was evicted.
    pub slot: SlotId,
    /// Memory that the evicted copy took, in bytes.
    pub bytes: u64,
    /// Whether the copy's memory must first be copied back to the host, because the model has written to it.
    pub copy_back: bool,
    /// Reason why this model was chosen.
    pub reason: EvictReason,
}

/// Reason why a model was evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvictReason {
    /// The pool has another copy, and this one was the least recently used of its class.
    Duplicate,
    /// The model is light, and was the least recently used of its class.
    Light,
    /// The model is heavy and was used least recently; no lighter one was left.
    Heavy,
    /// The model was used least recently of all ([`super::Eviction::LeastRecentlyUsed`]).
    LeastRecentlyUsed,
    /// The model moved: only one instance of a function holds weights while memory is short.
    Moved,
    /// The model was unloaded, or its function or instance was removed.
    Unloaded,
    /// The slot failed; there is nothing to free.
    SlotFailed,
}
