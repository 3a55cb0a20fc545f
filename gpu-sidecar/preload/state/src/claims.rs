//! Memory claim of the process: its share of the pod's memory limit, as agreed with the agent.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::message::FromProcess;
use protocol::page::Orders;

use crate::nanoseconds;

/// Time for which a claim waits for the agent's reply: others may leave the slot for it, which may have requests to end first. The end of the agent ends the
/// wait, and so does its silence.
pub const ANSWER_MAX: Duration = Duration::from_secs(600);
/// Time for which a refresh of the bytes held by other processes waits for the agent's reply. The agent also publishes them every
/// 100 ms without a request.
pub const COUNT_MAX: Duration = Duration::from_millis(50);

/// Claims sent to the agent.
#[derive(Debug, Default)]
pub struct ClaimRequests {
    /// Sequence number of the last claim.
    seq: u32,
    /// Smallest claim among those that may be unanswered, in bytes.
    least: u64,
}

/// Claim that is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Claim {
    seq: u32,
    bytes: u64,
    /// Whether the bytes are granted however this claim and earlier ones are answered.
    is_held: bool,
}

/// Wait for the answer to a claim.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    seq: u32,
    /// Time until which the answer is waited for, in nanoseconds.
    until: u64,
}

/// Next step of a thread that waits for the answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerStep {
    /// The claim is answered, and the page is up to date.
    Answered,
    /// No answer came in time, or another page is in use.
    Unanswered,
    /// The thread waits on `claim_answered` while it is `expected`, for at most `left`.
    Wait {
        /// Value of `claim_answered` to wait on.
        expected: u32,
        /// Longest time to wait.
        left: Duration,
    },
}

impl ClaimRequests {
    /// Creates the record of a process that has claimed nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { seq: 0, least: 0 }
    }

    /// Records a claim of `bytes` in total, to be sent at once: under the same lock, since claims are totals.
    pub fn request(&mut self, orders: &Orders, bytes: u64) -> Claim {
        let answered = orders.claim_answered.load(Ordering::Acquire);
        let held = self.held(answered, orders.memory_claim.load(Ordering::Acquire));
        Claim {
            seq: self.record(answered, bytes),
            bytes,
            is_held: bytes <= held,
        }
    }

    /// Returns the bytes granted however the unanswered claims turn out: the claim on the page may be about to shrink.
    fn held(&self, answered: u32, claim: u64) -> u64 {
        if answered == self.seq {
            claim
        } else {
            claim.min(self.least)
        }
    }

    /// Records a new claim and returns its sequence number.
    fn record(&mut self, answered: u32, bytes: u64) -> u32 {
        self.least = if answered == self.seq {
            bytes
        } else {
            self.least.min(bytes)
        };
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }
}

impl Claim {
    /// Returns the message to send.
    #[must_use]
    pub const fn message(&self) -> FromProcess {
        FromProcess::Claim {
            seq: self.seq,
            bytes: self.bytes,
        }
    }

    /// Returns whether the bytes may be used without waiting for an answer.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        self.is_held
    }

    /// Begins at `now` to wait for the answer, for `at_most`.
    #[must_use]
    pub fn answer(&self, now: u64, at_most: Duration) -> Answer {
        Answer {
            seq: self.seq,
            until: now.saturating_add(nanoseconds(at_most)),
        }
    }

    /// Returns whether the bytes may be used after a wait for the answer, under a limit of the pod of `limit` bytes.
    #[must_use]
    pub fn is_granted(&self, answered: bool, orders: &Orders, limit: u64) -> bool {
        if answered {
            orders.memory_claim.load(Ordering::Acquire) >= self.bytes
        } else {
            // Without an agent no account of the pod is kept, so each process applies the whole limit to itself.
            self.bytes <= limit
        }
    }
}

impl Answer {
    /// Returns what the waiting thread does next. `is_current`: `orders`, to which the claim was made, are still in use.
    #[must_use]
    pub fn step(&self, now: u64, orders: &Orders, is_current: bool) -> AnswerStep {
        let expected = orders.claim_answered.load(Ordering::Acquire);
        if expected == self.seq {
            return AnswerStep::Answered;
        }
        if now >= self.until || !is_current {
            return AnswerStep::Unanswered;
        }
        let left = Duration::from_nanos(self.until - now);
        AnswerStep::Wait { expected, left }
    }
}

/// Returns the bytes held by other processes of the pod, as last published by the agent.
#[must_use]
pub fn held_by_others(orders: &Orders) -> u64 {
    orders.memory_others.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(orders: &Orders, seq: u32, claim: u64) {
        orders.memory_claim.store(claim, Ordering::Release);
        orders.claim_answered.store(seq, Ordering::Release);
    }

    #[test]
    fn only_the_smallest_unanswered_claim_is_relied_on() {
        let mut requests = ClaimRequests::new();
        assert_eq!(requests.held(0, 100), 100);
        assert_eq!(requests.record(0, 40), 1);
        // The page still has 100.
        assert_eq!(requests.held(0, 100), 40);
        assert_eq!(requests.record(0, 70), 2);
        assert_eq!(requests.held(0, 100), 40);
        assert_eq!(requests.held(1, 40), 40);
        // Both claims are answered.
        assert_eq!(requests.held(2, 70), 70);
        assert_eq!(requests.record(2, 90), 3);
        assert_eq!(requests.held(2, 70), 70);
        assert_eq!(requests.held(3, 90), 90);
    }

    #[test]
    fn a_claim_below_what_is_granted_needs_no_answer() {
        let (mut requests, orders) = (ClaimRequests::new(), Orders::new());
        answer(&orders, 0, 100);
        let claim = requests.request(&orders, 100);
        assert!(claim.is_held());
        assert_eq!(claim.message(), FromProcess::Claim { seq: 1, bytes: 100 });
        assert!(!requests.request(&orders, 101).is_held());
    }

    #[test]
    fn an_answer_grants_what_the_page_states() {
        let (mut requests, orders) = (ClaimRequests::new(), Orders::new());
        let claim = requests.request(&orders, 50);
        assert!(!claim.is_held());
        let wait = claim.answer(1_000, ANSWER_MAX);
        let step = wait.step(1_000, &orders, true);
        let left = ANSWER_MAX;
        assert_eq!(step, AnswerStep::Wait { expected: 0, left });
        answer(&orders, 1, 50);
        assert_eq!(wait.step(1_000, &orders, true), AnswerStep::Answered);
        assert!(claim.is_granted(true, &orders, 1_000));
        let claim = requests.request(&orders, 80);
        answer(&orders, 2, 50);
        assert!(!claim.is_granted(true, &orders, 1_000));
    }

    #[test]
    fn without_an_answer_each_process_applies_the_whole_limit() {
        let (mut requests, orders) = (ClaimRequests::new(), Orders::new());
        let claim = requests.request(&orders, 80);
        let wait = claim.answer(0, COUNT_MAX);
        let late = nanoseconds(COUNT_MAX);
        assert_eq!(wait.step(late, &orders, true), AnswerStep::Unanswered);
        assert!(claim.is_granted(false, &orders, 80));
        assert!(!claim.is_granted(false, &orders, 79));
    }

    #[test]
    fn another_page_ends_the_wait() {
        let (mut requests, orders) = (ClaimRequests::new(), Orders::new());
        let wait = requests.request(&orders, 80).answer(0, ANSWER_MAX);
        assert_eq!(wait.step(1, &orders, false), AnswerStep::Unanswered);
        answer(&orders, 1, 80);
        let step = wait.step(1, &orders, false);
        assert_eq!(step, AnswerStep::Answered, "the answer came first");
    }

    #[test]
    fn an_answer_to_an_earlier_claim_is_not_taken_for_the_last_one() {
        let (mut requests, orders) = (ClaimRequests::new(), Orders::new());
        let _first = requests.request(&orders, 10);
        let wait = requests.request(&orders, 20).answer(0, ANSWER_MAX);
        answer(&orders, 1, 10);
        let step = wait.step(400, &orders, true);
        let left = ANSWER_MAX - Duration::from_nanos(400);
        assert_eq!(step, AnswerStep::Wait { expected: 1, left });
    }
}
