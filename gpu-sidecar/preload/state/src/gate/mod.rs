//! The gate at each launch (contracts §6: open while the process has a token), and the return of an unused token.
//!
//! # States
//!
//! Three things decide whether a launch passes: the parity of the agent's *epoch* (even: open), the bit *shut* of the process's own
//! word, and the work *in flight* in the same word, compared with its bound.
//!
//! ```text
//!                        add
//!     ┌─────────────┐ ─────────► ┌─────────────┐
//! ┌──►│ open        │            │ open        │──┐ add, subtract
//! │   │ even, –, 0  │ ◄───────── │ even, –, >0 │◄─┘
//! │   └─┬────▲────┬─┘  subtract  └──────┬──────┘
//! │     │    │    │ agent closes        │ agent closes
//! │     │    │    ▼                     ▼
//! │     │    │  ┌─────────────┐  ┌─────────────┐
//! │     │    └──│ closed      │◄─│ draining    │──┐ subtract
//! │     │ agent │ odd, –, 0   │  │ odd, –, >0  │◄─┘
//! │     │ opens └─────────────┘  └─────────────┘
//! │     │ begin_give_back
//! │     ▼
//! │   ┌─────────────┐ finish_give_back: ┌─────────────┐ agent    ┌─────────────┐
//! ├◄──│ shutting    │ ────────────────► │ returned    │ ───────► │ returned    │
//! │   │ even, shut  │  no launch found  │ even, shut  │  closes  │ odd, shut   │
//! │   └─────────────┘                   └──────┬──────┘          └──────┬──────┘
//! │    finish_give_back: a launch was found    │ agent opens            │ agent opens
//! │                                            ▼                        ▼
//! │               a parked thread: open ┌─────────────────────────────────────┐
//! └─────────────────────────────────────│ granted: a later even epoch, shut   │
//!                                       └─────────────────────────────────────┘
//! ```
//!
//! A launch that has passed before the word was shut adds to it in *shutting*, where it is found. *Draining* ends with `Closed` once a
//! barrier over all threads shows no launch in progress and nothing is in flight; *returned* begins with `Closed`.
//!
//! A launch marks itself in a word of its own thread ([`Threads`]) before it reads gate and word. To close the gate, a thread runs a
//! barrier over all threads and then looks for marks, so that launches need no fence.
//!
//! # Orderings
//!
//! The word is shut and opened under the lock of [`Gate::returned`], which holds the token to which the bit belongs. So a thread that
//! has seen a new token cannot open a word that was shut again meanwhile, and nothing is asked or answered on the strength of a return
//! which may yet be undone. Launches take no lock: they read the word alone. `requested`, `idle_since` and `usual_gap` guard nothing;
//! each is correct by itself.
//!
//! A thread waits only where the agent's next order changes the word on which it waits: at a closed epoch, or after the return of a token
//! is finished. While it may be undone, the thread polls. A change of page
//! wakes all waiters: see [`crate::waiters`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::page::Orders;

#[cfg(test)]
mod model;
mod parking;
mod threads;
mod word;

pub use parking::{ParkStep, Parking, Work};
pub use threads::{LaunchGuard, THREADS, Thread, Threads};
pub use word::Word;

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
    word: Word,
    /// Token that this process returned last by itself. Its lock is held while the word is shut or opened.
    returned: Mutex<Returned>,
    /// Epoch for which a token was requested, plus one; 0 if none was.
    requested: AtomicU64,
    /// Time since when the host is known to have no work in flight, in nanoseconds; 0 if something was launched since.
    idle_since: AtomicU64,
    /// Moving average of the time from then to the program's next launch, in nanoseconds.
    usual_gap: AtomicU64,
}

/// Token that a process has returned by itself, or is about to.
#[derive(Debug, Clone, Copy, Default)]
struct Returned {
    /// Even epoch of the token; 0 if none was returned.
    epoch: u64,
    /// Whether the return is finished: no launch came first.
    is_finished: bool,
}

/// Token of a process, as a thread finds it whose launch cannot pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
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
    epoch: u64,
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

    /// Returns whether a launch, already marked as in progress, may be made now. `bound_holds` is `false` for a launch that may exceed
    /// the bound of the work in flight.
    #[inline]
    #[must_use]
    pub fn may_launch(&self, orders: &Orders, bound_holds: bool) -> bool {
        let bound = if bound_holds { bound(orders) } else { 1 << 63 };
        orders.gate.is_open() && self.word.is_below(bound)
    }

    /// Adds a launch of `ns` nanoseconds to the work in flight before it passes the gate, and returns what was in flight without it.
    /// The caller publishes the sum, then asks [`Self::passes`]; a launch that does not pass is subtracted again.
    ///
    /// Before, because the thread may be preempted at any point: between the gate and the launch the agent would otherwise see a
    /// process with nothing in flight, and give its token to another.
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

    fn returned(&self) -> MutexGuard<'_, Returned> {
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
    fn token(&self, orders: &Orders) -> Token {
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
    fn request(&self, epoch: u64) -> bool {
        self.requested.swap(epoch + 1, Ordering::AcqRel) != epoch + 1
    }
}

/// Returns the bound of the work in flight, in nanoseconds.
#[inline]
fn bound(orders: &Orders) -> u64 {
    u64::from(orders.inflight_us_max.load(Ordering::Relaxed)) * 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_orders() -> Orders {
        let orders = Orders::new();
        orders.gate.set(2);
        orders
    }

    fn give_back(gate: &Gate, orders: &Orders) -> Option<u64> {
        let begun = gate.begin_give_back(orders)?;
        gate.finish_give_back(begun, false)
    }

    #[test]
    fn a_launch_passes_an_open_gate_below_the_bound() {
        let (gate, orders) = (Gate::new(), open_orders());
        orders.inflight_us_max.store(10, Ordering::Relaxed);
        assert!(gate.may_launch(&orders, true));
        gate.word().add(10_000);
        assert!(!gate.may_launch(&orders, true));
        assert!(gate.may_launch(&orders, false), "it may exceed the bound");
        orders.gate.set(3);
        assert!(!gate.may_launch(&orders, false));
    }

    #[test]
    fn an_announced_launch_counts_before_it_passes() {
        let (gate, orders) = (Gate::new(), open_orders());
        orders.inflight_us_max.store(10, Ordering::Relaxed);
        let before = gate.announce(50_000);
        assert_eq!((before, gate.word().in_flight()), (0, 50_000));
        assert!(gate.begin_give_back(&orders).is_none(), "it is in flight");
        assert!(gate.passes(&orders, before, true), "it is the first");
        let before = gate.announce(1);
        assert!(!gate.passes(&orders, before, true));
        assert!(gate.passes(&orders, before, false));
        orders.gate.set(3);
        assert!(!gate.passes(&orders, before, false));
    }

    #[test]
    fn an_announced_launch_does_not_pass_a_returned_token() {
        let (gate, orders) = (Gate::new(), open_orders());
        let begun = gate.begin_give_back(&orders).unwrap();
        let before = gate.announce(5);
        assert!(!gate.passes(&orders, before, true));
        assert_eq!(gate.finish_give_back(begun, true), None, "it is kept");
        assert!(gate.passes(&orders, before, true));
    }

    #[test]
    fn no_launch_passes_a_shut_gate_whatever_its_bound() {
        let (gate, orders) = (Gate::new(), open_orders());
        orders.inflight_us_max.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(give_back(&gate, &orders), Some(2));
        assert!(!gate.may_launch(&orders, true));
        assert!(!gate.may_launch(&orders, false));
    }

    #[test]
    fn a_token_is_returned_only_while_nothing_is_in_flight() {
        let (gate, orders) = (Gate::new(), open_orders());
        gate.word().add(1);
        assert_eq!(gate.begin_give_back(&orders), None);
        assert!(!gate.is_given_back());
        gate.word().subtract(1);
        assert_eq!(give_back(&gate, &orders), Some(2));
        assert!(gate.is_given_back() && gate.was_given_back(2));
        assert!(!gate.was_given_back(4));
    }

    #[test]
    fn a_closed_gate_has_no_token_to_return() {
        let (gate, orders) = (Gate::new(), Orders::new());
        assert_eq!(gate.begin_give_back(&orders), None);
    }

    #[test]
    fn a_token_is_returned_once() {
        let (gate, orders) = (Gate::new(), open_orders());
        assert_eq!(give_back(&gate, &orders), Some(2));
        assert_eq!(gate.begin_give_back(&orders), None);
    }

    #[test]
    fn a_launch_that_came_first_keeps_the_token() {
        let (gate, orders) = (Gate::new(), open_orders());
        let begun = gate.begin_give_back(&orders).unwrap();
        assert_eq!(gate.finish_give_back(begun, true), None);
        assert!(gate.may_launch(&orders, true));
        let begun = gate.begin_give_back(&orders).unwrap();
        gate.word().add(5);
        assert_eq!(gate.finish_give_back(begun, false), None);
        assert!(gate.may_launch(&orders, true));
        assert!(!gate.was_given_back(2));
    }

    #[test]
    fn a_reset_forgets_requested_and_returned_tokens() {
        let (gate, orders) = (Gate::new(), open_orders());
        assert_eq!(give_back(&gate, &orders), Some(2));
        assert!(gate.request(2) && !gate.request(2));
        gate.reset();
        assert!(!gate.is_given_back() && gate.may_launch(&orders, true));
        assert!(gate.request(2));
    }

    #[test]
    fn each_token_is_requested_once() {
        let gate = Gate::new();
        assert!(gate.request(0) && !gate.request(0));
        assert!(gate.request(1) && !gate.request(1));
    }

    #[test]
    fn only_a_later_token_opens_a_shut_word() {
        let (gate, orders) = (Gate::new(), open_orders());
        assert_eq!(gate.token(&orders), Token::Held);
        assert_eq!(give_back(&gate, &orders), Some(2));
        for epoch in [2, 3] {
            orders.gate.set(epoch);
            assert_eq!(gate.token(&orders), Token::Returned);
            assert!(gate.is_given_back());
        }
        orders.gate.set(4);
        assert_eq!(gate.token(&orders), Token::Taken);
        assert!(!gate.is_given_back());
        assert_eq!(gate.token(&orders), Token::Held);
    }

    #[test]
    fn a_return_that_may_be_undone_is_no_return_yet() {
        let (gate, orders) = (Gate::new(), open_orders());
        let begun = gate.begin_give_back(&orders).unwrap();
        // The agent ends the epoch by itself meanwhile.
        orders.gate.set(3);
        assert_eq!(gate.token(&orders), Token::Returning);
        assert!(!gate.is_given_back() && !gate.was_given_back(2));
        assert_eq!(gate.finish_give_back(begun, false), Some(2));
        assert!(gate.was_given_back(2));
    }

    #[test]
    fn a_reset_ends_a_return() {
        let (gate, orders) = (Gate::new(), open_orders());
        let begun = gate.begin_give_back(&orders).unwrap();
        gate.reset();
        assert_eq!(gate.finish_give_back(begun, false), None);
        assert!(gate.may_launch(&orders, true));
    }

    #[test]
    fn the_usual_gap_follows_the_gaps_by_a_quarter() {
        let (gate, orders) = (Gate::new(), open_orders());
        orders.contended.store(1, Ordering::Relaxed);
        let mut now = 1;
        // A gap of 1 ms raises the average to 250 µs, the next one to 437 µs.
        for expected in [false, true] {
            assert!(!gate.after_host_wait(now, &orders));
            now += 1_000_000;
            gate.begin_burst(now);
            assert_eq!(gate.usually_pauses(), expected);
        }
        assert!(gate.after_host_wait(now, &orders));
        // Short gaps lower it again.
        gate.begin_burst(now + 1_000);
        assert!(!gate.usually_pauses());
    }

    #[test]
    fn a_gap_begins_with_the_first_wait_and_ends_with_the_first_launch() {
        let (gate, orders) = (Gate::new(), open_orders());
        assert!(!gate.after_host_wait(1_000, &orders));
        assert!(!gate.after_host_wait(5_000, &orders));
        gate.begin_burst(4_001_000);
        assert_eq!(gate.usual_gap.load(Ordering::Relaxed), 1_000_000);
        gate.begin_burst(90_000_000);
        assert_eq!(gate.usual_gap.load(Ordering::Relaxed), 1_000_000);
    }

    #[test]
    fn a_gap_of_days_counts_as_minutes() {
        let (gate, orders) = (Gate::new(), open_orders());
        assert!(!gate.after_host_wait(1, &orders));
        gate.begin_burst(u64::MAX);
        assert_eq!(gate.usual_gap.load(Ordering::Relaxed), GAP_MAX / 4);
    }

    #[test]
    fn a_wait_returns_the_token_only_if_others_wait_and_nothing_is_in_flight() {
        let (gate, orders) = (Gate::new(), open_orders());
        gate.usual_gap.store(SHORT_GAP, Ordering::Relaxed);
        assert!(!gate.after_host_wait(1, &orders), "no process waits");
        orders.contended.store(1, Ordering::Relaxed);
        assert!(gate.after_host_wait(1, &orders));
        gate.word().add(1);
        assert!(!gate.after_host_wait(1, &orders));
    }
}
