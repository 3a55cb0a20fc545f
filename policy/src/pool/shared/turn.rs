//! Turns of instances which work without a known request (contracts §7): a model load before readiness, a warm-up, background work.
//!
//! What such an instance does is seen only by its claims and by its threads that wait for its memory. Its turn begins once one of them has been granted memory,
//! and lasts until its processes have been quiet ([`QUIET`], while it loads [`LOADING_QUIET`]). While a head waits only because of it, a turn uses the credit of its
//! slot: one in [`PARKED_SHARE`] of the time that passes, up to [`PARKED_CREDIT_MAX`]. Others with work leave for a turn only with the whole credit, so that what
//! moves for it is worth it, and those that wait for it get it in the order in which they are due.

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
    /// Time at which it was last granted memory, or got its model back.
    active_at: Time,
}

/// Time which the instances of a slot that work without requests may have while heads wait because of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Credit {
    /// What there was at a time, in nanoseconds; negative if more was used.
    was: i64,
    at: Time,
    /// Time since which it is used.
    used_since: Option<Time>,
    /// Whether a head was found to wait because of a turn.
    delays: bool,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            was: credit_max(),
            at: Time::ZERO,
            used_since: None,
            delays: false,
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
        let left = match self.used_since {
            Some(since) => self.was.saturating_sub(signed(now.since(since))),
            None => {
                let gained = Span(now.since(self.at).0 / PARKED_SHARE);
                self.was.saturating_add(signed(gained))
            }
        };
        // A late look costs no more than what could be saved up.
        left.clamp(-credit_max(), credit_max())
    }

    /// Returns when there is all of it, unless it is used before.
    fn whole_at(&self, now: Time) -> Time {
        let missing = (credit_max() - self.left(now)).unsigned_abs();
        now.after(Span(missing.saturating_mul(PARKED_SHARE)))
    }

    fn set_used(&mut self, now: Time, is_used: bool) {
        if is_used != self.used_since.is_some() {
            (self.was, self.at) = (self.left(now), now);
            self.used_since = is_used.then_some(now);
        }
    }
}

impl SharedLeases {
    /// Begins or continues the turn of an instance, if it works without a request. `loads`: it was granted memory by a claim.
    pub(super) fn begin_turn(&mut self, id: InstanceId, loads: bool) {
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let at = self.slots.get(&entry.about.slot);
        let is_leased = at.is_some_and(|at| at.queues > 0);
        if !is_leased || !entry.is_without_request() {
            return;
        }
        entry.is_loading |= loads;
        let since = entry.turn.map_or(now, |turn| turn.since);
        let active_at = now;
        entry.turn = Some(Turn { since, active_at });
    }

    /// Ends the turns of those whose processes are quiet.
    pub(super) fn end_turns(&mut self) {
        let now = self.now;
        let mut wake = Time::NEVER;
        for entry in self.instances.values_mut() {
            // A model which returns is still to be used.
            let Some(turn) = entry.turn.filter(|_| entry.motion == Motion::Rests) else {
                continue;
            };
            let Some(quiet) = entry.quiet_since.filter(|_| entry.claim.is_none()) else {
                continue;
            };
            let pause = if entry.is_loading {
                LOADING_QUIET
            } else {
                QUIET
            };
            let until = quiet.max(turn.active_at).after(pause);
            if until <= now {
                (entry.turn, entry.is_loading) = (None, false);
            } else {
                wake = wake.min(until);
            }
        }
        self.wake_at(wake);
    }

    /// Notes that a head waits because of a turn on its slot.
    pub(super) fn note_delay(&mut self, slot: SlotId) {
        if let Some(at) = self.slots.get_mut(&slot) {
            at.credit.delays = true;
        }
    }

    /// Charges the turns because of which heads were found to wait since the last call.
    pub(super) fn charge_turns(&mut self) {
        let now = self.now;
        for slot in self.slots.values_mut() {
            let delays = std::mem::take(&mut slot.credit.delays);
            slot.credit.set_used(now, delays);
        }
    }

    /// Returns whether an instance may have others with work leave for its turn, and otherwise when it may.
    pub(super) fn may_have_turn(&self, entry: &Entry) -> Result<(), Time> {
        let Some(slot) = self.slots.get(&entry.about.slot) else {
            return Ok(());
        };
        let left = slot.credit.left(self.now);
        let may = match entry.turn {
            Some(_) => left > 0,
            None => left >= credit_max(),
        };
        if may {
            return Ok(());
        }
        Err(slot.credit.whole_at(self.now))
    }

    /// Returns when others may end the turn of an instance. `for_head`: a request waits for it, otherwise another that works without one.
    pub(super) fn end_of_turn(&self, slot: SlotId, turn: &Turn, for_head: bool) -> Time {
        let credit = self.slots.get(&slot).map(|at| at.credit);
        match credit.filter(|_| for_head) {
            Some(credit) => {
                let left = u64::try_from(credit.left(self.now)).unwrap_or(0);
                self.now.after(Span(left))
            }
            None => turn.since.after(PARKED_MAX),
        }
    }

    /// Has it looked again soon whether an instance still uses its turn.
    pub(super) fn look_at_turn(&mut self) {
        self.wake_at(self.now.after(PARKED_LOOK));
    }
}

impl Entry {
    /// Returns whether what it does or waits for belongs to no request, as far as is known.
    pub(super) const fn is_without_request(&self) -> bool {
        let is_idle = !self.has_queue || self.is_idle || self.turn.is_some();
        is_idle && self.head.is_none() && !matches!(self.lease, Lease::Stated)
    }

    /// Notes that what it waited for may be over: without anything it comes before no other.
    pub(super) const fn settle_next(&mut self) {
        if !self.needs_room() {
            self.is_next = false;
        }
    }
}
