//! State of the gate of one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::page::Orders;

use super::word::Word;

/// Interval at which a thread parked at the gate re-reads it, whether it is woken or not.
pub const RECHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which a thread checks for completed work while too much is in flight, and for the end of launches in progress.
pub const IN_FLIGHT_POLL: Duration = Duration::from_micros(50);
/// Longest time in nanoseconds for which a launch waits for other launches of its process to finish; it then passes, since they
/// may depend on it. Such launches are counted.
pub const IN_FLIGHT_WAIT_MAX: u64 = 20_000_000;
/// Time without a heartbeat, while a thread is parked, after which the agent counts as hung.
pub const HUNG_AFTER: Duration = Duration::from_secs(1);
/// A program that usually launches again within this time, in nanoseconds, after a wait for the device keeps its token meanwhile.
pub const SHORT_GAP: u64 = 400_000;

/// Largest gap that enters the usual gap, in nanoseconds: 18 minutes.
const GAP_MAX: u64 = 1 << 40;

/// Gate of one process.
#[derive(Debug, Default)]
pub struct Gate {
    pub(super) word: Word,
    /// Token that this process returned last by itself. Its lock is held while the word is shut or opened.
    pub(super) returned: Mutex<Returned>,
    /// Epoch for which a token was requested, plus one; 0 if none was.
    pub(super) requested: AtomicU64,
    /// Time since when the host is known to have no work in flight, in nanoseconds; 0 if something was launched since.
    pub(super) idle_since: AtomicU64,
    /// Moving average of the time from then to the program's next launch, in nanoseconds.
    pub(super) usual_gap: AtomicU64,
}

/// Token that a process has returned by itself, or is about to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Returned {
    /// Even epoch of the token; 0 if none was returned.
    pub(super) epoch: u64,
    /// Whether the return is finished: no launch came first.
    pub(super) is_finished: bool,
}

/// Token of a process, as a thread finds it whose launch cannot pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    /// The word is not shut: the epoch alone decides.
    Held,
    /// The word was shut and is open now, because the agent has granted a new token.
    Taken,
    /// The return of the token has begun and may yet be undone.
    Returning,
    /// The token was returned.
    Returned,
}

/// Return of a token that has begun: the word is shut, and launches that came first may still be in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct GiveBack {
    pub(super) epoch: u64,
}

impl Gate {
    /// Creates a gate with nothing in flight, not shut.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            word: Word::new(),
            returned: Mutex::new(Returned {
                epoch: 0,
                is_finished: false,
            }),
            requested: AtomicU64::new(0),
            idle_since: AtomicU64::new(0),
            usual_gap: AtomicU64::new(0),
        }
    }

    /// Returns the word: the work in flight, and whether the gate is shut within the process.
    #[inline]
    #[must_use]
    pub const fn word(&self) -> &Word {
        &self.word
    }

    /// Returns whether a launch which is not announced could be made now, for a thread that waits. `bound_holds` is `false` for a launch
    /// that may exceed the bound of the work in flight.
    #[must_use]
    pub(super) fn may_launch(&self, orders: &Orders, bound_holds: bool) -> bool {
        let bound = if bound_holds { bound(orders) } else { 1 << 63 };
        orders.gate.is_open() && self.word.is_below(bound)
    }

    /// Adds a launch of `ns` nanoseconds to the work in flight before it passes the gate, and returns what was in flight without it:
    /// see [`crate::streams::Streams::announce`].
    #[inline]
    #[must_use]
    pub fn announce(&self, ns: u64) -> u64 {
        self.word.add(ns).saturating_sub(ns)
    }

    /// Returns whether an announced launch may be made now beside `in_flight` nanoseconds of other work. `bound_holds` is `false` for a
    /// launch that may exceed the bound of the work in flight.
    #[inline]
    #[must_use]
    pub fn passes(&self, orders: &Orders, in_flight: u64, bound_holds: bool) -> bool {
        let fits = !bound_holds || in_flight < bound(orders);
        fits && orders.gate.is_open() && !self.word.is_shut()
    }

    /// Notes at `now` that a burst of launches begins, and updates the usual gap by a quarter of the difference.
    pub fn begin_burst(&self, now: u64) {
        let idle_since = self.idle_since.swap(0, Ordering::AcqRel);
        if idle_since == 0 {
            return;
        }
        let gap = now.saturating_sub(idle_since);
        let usual = self.usual_gap.load(Ordering::Relaxed);
        let usual = usual - usual / 4 + gap.min(GAP_MAX) / 4;
        self.usual_gap.store(usual, Ordering::Relaxed);
    }

    /// Notes at `now` that the program has waited for the device. Returns whether the token should be returned at once: nothing is in
    /// flight, other processes wait, and the program usually pauses.
    pub fn after_host_wait(&self, now: u64, orders: &Orders) -> bool {
        if self.word.in_flight() != 0 {
            return false;
        }
        let _first = self
            .idle_since
            .compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
        orders.contended.load(Ordering::Relaxed) != 0 && self.usually_pauses()
    }

    /// Returns whether the program usually pauses for at least [`SHORT_GAP`] before it launches again.
    #[must_use]
    pub fn usually_pauses(&self) -> bool {
        self.usual_gap.load(Ordering::Relaxed) >= SHORT_GAP
    }

    pub(super) fn returned(&self) -> MutexGuard<'_, Returned> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts the word if the gate is open and nothing is in flight, and begins to return the token. Not for a thread whose own launch is
    /// in progress.
    ///
    /// On `Some` the caller runs a barrier over all threads, looks for launches in progress, and calls [`Self::finish_give_back`].
    pub fn begin_give_back(&self, orders: &Orders) -> Option<GiveBack> {
        let mut returned = self.returned();
        let epoch = orders.gate.epoch();
        if epoch & 1 == 1 || !self.word.shut_if_idle() {
            return None;
        }
        *returned = Returned {
            epoch,
            is_finished: false,
        };
        Some(GiveBack { epoch })
    }

    /// Finishes the return of a token. `any_launching` states whether a launch was in progress after the barrier.
    ///
    /// Returns the epoch of the returned token, which is to be reported with `Closed`. Returns `None` if another thread launched first
    /// and the token is kept, in which case the word is open again, or if [`Self::reset`] was called meanwhile.
    ///
    /// A launch that is not found has either ended, and then its work is in the word, or reads the word after the barrier and finds it
    /// shut.
    #[must_use]
    pub fn finish_give_back(&self, begun: GiveBack, any_launching: bool) -> Option<u64> {
        let mut returned = self.returned();
        if returned.epoch != begun.epoch || returned.is_finished {
            return None;
        }
        if any_launching || self.word.in_flight() != 0 {
            self.word.open();
            return None;
        }
        returned.is_finished = true;
        Some(begun.epoch)
    }

    /// Returns whether the process has returned its token by itself.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        self.word.is_shut() && self.returned().is_finished
    }

    /// Returns whether the process has returned the token of `epoch` by itself.
    #[must_use]
    pub fn was_given_back(&self, epoch: u64) -> bool {
        let returned = self.returned();
        self.word.is_shut() && returned.is_finished && returned.epoch == epoch
    }

    /// Forgets requested and returned tokens, because another agent, or none, controls the gate from now on. Waiters of the gate have to
    /// be woken.
    pub fn reset(&self) {
        let mut returned = self.returned();
        *returned = Returned::default();
        self.requested.store(0, Ordering::Release);
        self.word.open();
    }

    /// Returns the process's token. Opens a shut word if the agent has granted a new token since.
    pub(super) fn token(&self, orders: &Orders) -> Token {
        if !self.word.is_shut() {
            return Token::Held;
        }
        let returned = self.returned();
        let epoch = orders.gate.epoch();
        if !self.word.is_shut() {
            Token::Held
        } else if !returned.is_finished {
            Token::Returning
        } else if epoch & 1 == 0 && epoch > returned.epoch {
            self.word.open();
            Token::Taken
        } else {
            Token::Returned
        }
    }

    /// Returns whether the token after `epoch` is yet to be requested, and notes the request.
    pub(super) fn request(&self, epoch: u64) -> bool {
        self.requested.swap(epoch + 1, Ordering::AcqRel) != epoch + 1
    }
}

/// Returns the bound of the work in flight, in nanoseconds.
#[inline]
pub(super) fn bound(orders: &Orders) -> u64 {
    u64::from(orders.inflight_us_max.load(Ordering::Relaxed)) * 1_000
}

#[cfg(test)]
mod tests;
