//! Loads ahead: models of waiting requests are loaded beside what computes, since copies need no processors of a GPU (contracts §7, M2.6).
//!
//! On each slot at most one model is *ahead*: it is loaded, or is there, for a request that waits. Requests are looked at by latest start, those that
//! are late after the others; a load begins
//! - for a request which a load slows, whose model is on no slot that it can use, and none of those is free;
//! - on the slot that is free first, of those that have no other model ahead and a path to the host on which nothing is loaded;
//! - if models for which no request waits, and which can leave beside what computes, make the room.
//!
//! Nothing is promised by that: which request is next on a slot is decided once it is free, with the model as one that is there.

use super::slots::Pool;
use super::{FunctionId, SlotId};
use crate::{Span, Time};

/// Request whose model may be loaded ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Function of the request.
    pub function: FunctionId,
    /// Size of its model, in bytes.
    pub bytes: u64,
    /// Whether a load slows the request (M2.14), as where it does not compute while the model arrives.
    pub is_slowed: bool,
    /// Slots on which it can run, as a bit set.
    pub among: u64,
    /// Latest time at which the load can begin for the request to be in time.
    pub latest: Time,
}

impl Candidate {
    /// Returns the key by which requests are looked at: the smallest first.
    #[must_use]
    pub fn key(&self, now: Time) -> (bool, Time, FunctionId) {
        (self.latest < now, self.latest, self.function)
    }
}

/// Chooses the slot on which the model of a waiting request is loaded ahead; `None`: on none. `is_open`: whether a slot may have a model ahead and has
/// none. `free_at`: when a slot will be free. `may_leave`: whether a model may leave a slot beside what computes.
pub fn choose(
    pool: &Pool,
    waiting: &Candidate,
    is_open: impl Fn(SlotId) -> bool,
    free_at: impl Fn(SlotId) -> Time,
    may_leave: impl Fn(SlotId, FunctionId) -> bool,
) -> Option<SlotId> {
    let among = waiting.among;
    if !waiting.is_slowed
        || pool.held(waiting.function) & among != 0
        || pool.free_set() & among != 0
    {
        return None;
    }
    (0..super::slots::SLOTS_MAX)
        .filter(|slot| among >> slot & 1 == 1)
        .filter_map(|slot| u32::try_from(slot).ok().map(SlotId))
        .filter(|slot| is_open(*slot))
        .filter(|slot| pool.can_load_ahead(*slot, waiting.bytes, |model| may_leave(*slot, model)))
        .min_by_key(|slot| (free_at(*slot), *slot))
}

/// Returns the latest time at which a load can begin for a request with this deadline to be in time.
#[must_use]
pub fn latest(deadline: Time, load: Span, execution: Span) -> Time {
    deadline.before(load).before(execution)
}
