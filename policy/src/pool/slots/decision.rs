//! What the pool decides, and why.

use crate::pool::{FunctionId, SlotId};
use crate::{Span, Time};

/// What the pool needs to know of a function's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// What it takes of a slot, in bytes.
    pub bytes: u64,
    /// A swap over the host path slows its inference (see [`crate::pool::heaviness`]). Unknown: yes.
    pub heavy: bool,
    /// It writes to its memory on the slot, so a copy is not as good as the original: it has one copy at most,
    /// and runs where that is (M2.7).
    pub writes: bool,
    /// Estimated inference with the model resident. Only [`super::Patience`] asks for it.
    pub execution: Span,
    /// Estimated inference with the model coming from the host, alone on the path.
    pub swapped: Span,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It runs. The slot is taken, and room is made.
    Run(Run),
    /// It stays queued.
    Wait {
        /// Why.
        reason: WaitReason,
        /// When to ask again even if nothing has happened.
        until: Option<Time>,
    },
}

/// Where a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where.
    pub slot: SlotId,
    /// Where its model comes from.
    pub source: Source,
    /// Why there.
    pub reason: RunReason,
}

/// Where a model comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// It is there.
    Resident,
    /// From another slot, over their link.
    Slot(SlotId),
    /// From host memory.
    Host,
}

/// Why a slot was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunReason {
    /// The model is there.
    Resident,
    /// The fastest link to a copy of the model.
    Link,
    /// Nobody else loads over its path to the host.
    QuietPath,
    /// A neighbour loads a light model over the same path; no slot has a quiet one.
    BesideLight,
    /// A neighbour loads a heavy model over the same path; every other slot is no better.
    BesideHeavy,
    /// By chance.
    Random,
    /// The function is bound to it from now on.
    Bound,
}

/// Why a request stays queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// There is no such function.
    NoSuchFunction,
    /// The function has no instance.
    NoInstance,
    /// No slot that it may use is free.
    NoSlotFree,
    /// The slot that it is bound to is not free.
    BoundSlotBusy,
    /// Its model, which writes, is on a slot that is not free.
    OneCopyBusy,
    /// On the free slots too much is running, loading or copied from to make room.
    Blocked,
    /// A second copy may only take free memory, and the first is in use.
    SecondCopy,
    /// Another slot, with a better path, will be free sooner than loading here would pay.
    Contention,
    /// No slot could ever hold the model.
    NeverFits,
}

/// A model that gave way. The caller frees its memory before the newcomer loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Whose.
    pub function: FunctionId,
    /// From where.
    pub slot: SlotId,
    /// How much it took.
    pub bytes: u64,
    /// What it wrote has to go to the host first.
    pub copy_back: bool,
    /// Why it.
    pub reason: EvictReason,
}

/// Why a model gave way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvictReason {
    /// There is another copy in the pool, and it was used least recently of its class.
    Duplicate,
    /// It is light, and was used least recently of its class.
    Light,
    /// It is heavy, and was used least recently; nothing lighter was left.
    Heavy,
    /// It was used least recently of all ([`super::Eviction::LeastRecentlyUsed`]).
    LeastRecentlyUsed,
    /// It moved: one instance of a function at a time holds weights when memory is short.
    Moved,
    /// It was unloaded, or its function is gone.
    Unloaded,
    /// Its slot failed; there is nothing to free.
    SlotFailed,
}
