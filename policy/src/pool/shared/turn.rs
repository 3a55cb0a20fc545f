//! Turns of instances which work without a known request (contracts §7): a model load before readiness, a warm-up, background work.
//!
//! What such an instance does is seen only by its claims and by its threads that wait for its memory. Its turn begins with one of them, and lasts until its
//! processes have been quiet ([`QUIET`], while it loads [`LOADING_QUIET`]). While heads wait beside it, it uses the credit of its slot: one in [`PARKED_SHARE`] of
//! the time that passes, up to [`PARKED_CREDIT_MAX`]. A turn that others have ended begins again only with the whole credit, so that what it loads for is worth it.

use super::super::leases::{PARKED_CREDIT_MAX, PARKED_LOOK, PARKED_MAX, PARKED_SHARE, QUIET};
use super::{Entry, InstanceId, Lease, Motion, SharedLeases};
use crate::pool::SlotId;
use crate::{Span, Time};

/// Time without a launch or a claim after which an instance that loads its model counts as done: it may read from a disk in between.
const LOADING_QUIET: Span = Span::from_millis(200);

/// Turn of an instance which works without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    since: Time,
    /// Time at which it last claimed memory, or got its model back.
    active_at: Time,
    /// Whether it has claimed memory.
    loads: bool,
}

/// Time which the instances of a slot that work without requests may have while heads wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Credit {
    /// What there was at a time, in nanoseconds; negative if more was used.
    was: i64,
    at: Time,
    /// Time since which it is used.
    contested_since: Option<Time>,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            was: credit_max(),
            at: Time::ZERO,
            contested_since: None,
        }
    }
}

fn credit_max() -> i64 {
    i64::try_from(PARKED_CREDIT_MAX.0).unwrap_or(i64::MAX)
}

impl Credit {
    /// Returns what there is, in nanoseconds.
    fn left(&self, now: Time) -> i64 {
        let signed = |span: Span| i64::try_from(span.0).unwrap_or(i64::MAX);
        match self.contested_since {
            Some(since) => self.was.saturating_sub(signed(now.since(since))),
            None => {
                let gained = Span(now.since(self.at).0 / PARKED_SHARE);
                self.was.saturating_add(signed(gained)).min(credit_max())
            }
        }
    }

    /// Returns when there is as much as `least`, in nanoseconds, unless it is used before.
    fn time_of(&self, now: Time, least: i64) -> Time {
        let missing = least.saturating_sub(self.left(now)).max(0).unsigned_abs();
        now.after(Span(missing.saturating_mul(PARKED_SHARE)))
    }

    fn set_contested(&mut self, now: Time, is_contested: bool) {
        if is_contested != self.contested_since.is_some() {
            (self.was, self.at) = (self.left(now), now);
            self.contested_since = is_contested.then_some(now);
        }
    }
}

impl SharedLeases {
    /// Begins or continues the turn of an instance, if it works without a request.
    pub(super) fn begin_turn(&mut self, id: InstanceId, loads: bool) {
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        if !entry.is_without_request() {
            return;
        }
        let turn = entry.turn.get_or_insert(Turn {
            since: now,
            active_at: now,
            loads: false,
        });
        turn.active_at = now;
        turn.loads |= loads;
        entry.was_cut_off = false;
    }

    /// Ends the turns of those whose processes are quiet, or which have lasted for [`PARKED_MAX`], and charges the others while heads wait.
    pub(super) fn settle_turns(&mut self) {
        let now = self.now;
        let mut wake = Time::NEVER;
        for entry in self.instances.values_mut() {
            let Some(turn) = entry.turn else {
                continue;
            };
            let pause = if turn.loads { LOADING_QUIET } else { QUIET };
            let quiet_at = match entry.quiet_since {
                Some(quiet) if entry.claim.is_none() => quiet.max(turn.active_at).after(pause),
                _ => Time::NEVER,
            };
            let until = quiet_at.min(turn.since.after(PARKED_MAX));
            // A model which returns is still to be used.
            if entry.motion != Motion::Rests {
                continue;
            }
            if until <= now {
                entry.turn = None;
            } else {
                wake = wake.min(until);
            }
        }
        self.wake_at(wake);
        self.charge_turns();
    }

    /// Charges the turns of each slot on which heads wait beside them.
    pub(super) fn charge_turns(&mut self) {
        let now = self.now;
        let (instances, slots) = (&self.instances, &mut self.slots);
        let mut wakes = Vec::new();
        for (id, slot) in slots {
            let on_slot = || instances.values().filter(|entry| entry.about.slot == *id);
            let is_contested = on_slot().any(|entry| entry.turn.is_some())
                && on_slot().any(|entry| entry.head.is_some());
            slot.credit.set_contested(now, is_contested);
            if is_contested {
                wakes.push(now.after(PARKED_LOOK));
            }
        }
        for at in wakes {
            self.wake_at(at);
        }
    }

    /// Returns whether an instance may have others leave for its turn, and otherwise when it may.
    pub(super) fn may_have_turn(&self, entry: &Entry) -> Result<(), Time> {
        let Some(slot) = self.slots.get(&entry.about.slot) else {
            return Ok(());
        };
        let least = match entry.turn {
            None if entry.was_cut_off => credit_max(),
            _ => 1,
        };
        if slot.credit.left(self.now) >= least {
            return Ok(());
        }
        Err(slot.credit.time_of(self.now, least))
    }

    /// Returns when others may end the turn of an instance.
    pub(super) fn end_of_turn(&self, slot: SlotId, turn: &Turn) -> Time {
        let longest = turn.since.after(PARKED_MAX);
        match self.slots.get(&slot).map(|at| at.credit) {
            Some(credit) if credit.contested_since.is_some() => {
                let left = u64::try_from(credit.left(self.now)).unwrap_or(0);
                longest.min(self.now.after(Span(left)))
            }
            _ => longest,
        }
    }
}

impl Entry {
    /// Returns whether what it does or waits for belongs to no request, as far as is known.
    pub(super) const fn is_without_request(&self) -> bool {
        let is_idle = !self.has_queue || self.is_idle || self.turn.is_some();
        is_idle && self.head.is_none() && !matches!(self.lease, Lease::Stated)
    }
}
