//! Answers to claims of memory: each process of a pod claims the memory that it wants to hold, and the sum of all claims is
//! within the pod's limit (M4.15).
//!
//! A claim that does not fit waits for a moment while the other processes are asked to relinquish unused claims. They answer
//! with a claim, which may have to wait as well, so they are asked at most once in [`ASK_INTERVAL`].
//!
//! # Examples
//!
//! ```
//! use policy::Time;
//! use policy::claims::Claims;
//! use policy::tokens::ProcessId;
//!
//! let mut claims = Claims::default();
//! let answer = claims.claim(ProcessId(1), 1, 60, 100, Time(0)).expect("it fits");
//! assert_eq!(answer.bytes, 60);
//! assert_eq!(claims.claim(ProcessId(2), 1, 50, 100, Time(0)), None);
//! claims.remove(ProcessId(1));
//! let mut answers = Vec::new();
//! claims.answer(100, Time(1), &mut answers);
//! assert_eq!(answers[0].bytes, 50);
//! ```

use crate::tokens::ProcessId;
use crate::{Span, Time};

/// Longest time that a claim waits for other processes to relinquish theirs.
pub const PATIENCE: Span = Span::from_millis(200);
/// Shortest time between two requests to relinquish memory.
pub const ASK_INTERVAL: Span = Span::from_millis(20);
/// Maximum number of pending claims of a pod; a process has one.
const PENDING_MAX: usize = 1_024;

/// A claim that waits for memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PendingClaim {
    process: ProcessId,
    seq: u32,
    bytes: u64,
    until: Time,
}

/// Granted and pending claims of one pod.
#[derive(Debug, Default)]
pub struct Claims {
    held: Vec<(ProcessId, u64)>,
    pending: Vec<PendingClaim>,
    /// Whether a claim waits for which no process was asked yet.
    must_ask: bool,
    /// Time from which the processes may be asked again.
    next_ask: Time,
}

/// Answer to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimAnswer {
    /// Process that made the claim.
    pub process: ProcessId,
    /// Sequence number of the claim.
    pub seq: u32,
    /// Memory that the process may hold now, in bytes, whether or not it is the claimed amount.
    pub bytes: u64,
}

impl Claims {
    /// Returns the sum of all granted claims of other processes, in bytes.
    fn sum_of_others(&self, process: ProcessId) -> u64 {
        let others = self.held.iter().filter(|(other, _)| *other != process);
        others.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Returns the sum of all granted claims, in bytes.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let held = self.held.iter();
        held.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Returns the memory that a process may hold, in bytes.
    pub fn of(&self, process: ProcessId) -> u64 {
        let own = self.held.iter().find(|(other, _)| *other == process);
        own.map_or(0, |(_, bytes)| *bytes)
    }

    fn set(&mut self, process: ProcessId, bytes: u64) {
        match self.held.iter_mut().find(|(other, _)| *other == process) {
            Some((_, held)) => *held = bytes,
            None => self.held.push((process, bytes)),
        }
    }

    /// Records the memory that a process held before this agent started, whatever the current limit.
    pub fn adopt(&mut self, process: ProcessId, bytes: u64) {
        self.set(process, bytes);
    }

    /// Handles a claim to hold `bytes` within `limit`. Returns `None` when the claim waits for other processes to relinquish
    /// memory.
    pub fn claim(
        &mut self,
        process: ProcessId,
        seq: u32,
        bytes: u64,
        limit: u64,
        now: Time,
    ) -> Option<ClaimAnswer> {
        self.pending.retain(|claim| claim.process != process);
        let held = self.of(process);
        let fits = self.sum_of_others(process).saturating_add(bytes) <= limit;
        if bytes <= held || fits {
            self.set(process, bytes);
            return Some(ClaimAnswer {
                process,
                seq,
                bytes,
            });
        }
        let can_fit_later = bytes <= limit
            && self
                .held
                .iter()
                .any(|(other, bytes)| *other != process && *bytes > 0);
        if !can_fit_later || self.pending.len() >= PENDING_MAX {
            return Some(ClaimAnswer {
                process,
                seq,
                bytes: held,
            });
        }
        self.pending.push(PendingClaim {
            process,
            seq,
            bytes,
            until: now.after(PATIENCE),
        });
        self.must_ask = true;
        None
    }

    /// Returns whether the processes without a pending claim are to be asked now to relinquish memory that they do not use.
    pub fn ask(&mut self, now: Time) -> bool {
        self.must_ask &= !self.pending.is_empty();
        let asks = self.must_ask && now >= self.next_ask;
        if asks {
            self.must_ask = false;
            self.next_ask = now.after(ASK_INTERVAL);
        }
        asks
    }

    /// Returns whether a claim of the process waits.
    pub fn is_pending(&self, process: ProcessId) -> bool {
        self.pending.iter().any(|claim| claim.process == process)
    }

    /// Answers the pending claims that fit by now or have timed out, in order of arrival.
    pub fn answer(&mut self, limit: u64, now: Time, answers: &mut Vec<ClaimAnswer>) {
        for pending in std::mem::take(&mut self.pending) {
            let PendingClaim {
                process,
                seq,
                bytes,
                until,
            } = pending;
            if self.sum_of_others(process).saturating_add(bytes) <= limit {
                self.set(process, bytes);
                answers.push(ClaimAnswer {
                    process,
                    seq,
                    bytes,
                });
            } else if now >= until {
                answers.push(ClaimAnswer {
                    process,
                    seq,
                    bytes: self.of(process),
                });
            } else {
                self.pending.push(pending);
            }
        }
    }

    /// Returns the time at which the next pending claim times out, or the processes are to be asked.
    pub fn next(&self) -> Option<Time> {
        let ends = self.pending.iter().map(|claim| claim.until);
        let ask = (self.must_ask && !self.pending.is_empty()).then_some(self.next_ask);
        ends.chain(ask).min()
    }

    /// Removes the claims of a process.
    pub fn remove(&mut self, process: ProcessId) {
        self.held.retain(|(other, _)| *other != process);
        self.pending.retain(|claim| claim.process != process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProcessId = ProcessId(1);
    const B: ProcessId = ProcessId(2);

    #[test]
    fn the_sum_of_claims_is_within_the_limit() {
        let mut claims = Claims::default();
        let granted = |answer: Option<ClaimAnswer>| answer.map(|answer| answer.bytes);
        assert_eq!(granted(claims.claim(A, 1, 60, 100, Time(0))), Some(60));
        assert_eq!(granted(claims.claim(B, 1, 40, 100, Time(0))), Some(40));
        // A claim above the limit is refused at once; one that other processes can make room for waits.
        assert_eq!(granted(claims.claim(A, 2, 101, 100, Time(0))), Some(60));
        assert_eq!(granted(claims.claim(A, 3, 61, 100, Time(0))), None);
        assert!(claims.ask(Time(0)) && !claims.ask(Time(0)));
        assert_eq!(claims.next(), Some(Time(PATIENCE.0)));
        let mut answers = Vec::new();
        claims.answer(100, Time(PATIENCE.0 - 1), &mut answers);
        assert_eq!(answers, []);
        claims.answer(100, Time(PATIENCE.0), &mut answers);
        assert_eq!(
            answers,
            [ClaimAnswer {
                process: A,
                seq: 3,
                bytes: 60
            }]
        );
    }

    #[test]
    fn relinquished_memory_is_granted_to_pending_claims() {
        let mut claims = Claims::default();
        let _all = claims.claim(A, 1, 100, 100, Time(0));
        assert_eq!(claims.claim(B, 1, 30, 100, Time(0)), None);
        let _less = claims.claim(A, 2, 70, 100, Time(0));
        let mut answers = Vec::new();
        claims.answer(100, Time(1), &mut answers);
        assert_eq!(
            answers,
            [ClaimAnswer {
                process: B,
                seq: 1,
                bytes: 30
            }]
        );
        claims.remove(A);
        let whole = claims
            .claim(B, 2, 100, 100, Time(2))
            .map(|answer| answer.bytes);
        assert_eq!(whole, Some(100));
    }

    #[test]
    fn two_claims_beyond_what_is_granted_do_not_ask_each_other_for_ever() {
        // As after a hang of the agent, in which both processes have gone on without an answer.
        let mut claims = Claims::default();
        claims.adopt(A, 50);
        claims.adopt(B, 50);
        let mut asked = 0;
        let second = Span::from_secs(1).0;
        for now in (0..second).step_by(1_000) {
            for process in [A, B] {
                assert_eq!(claims.claim(process, 1, 80, 100, Time(now)), None);
                asked += u32::from(claims.ask(Time(now)));
            }
        }
        assert_eq!(asked, 50);
        assert!(claims.is_pending(A));
        claims.remove(A);
        claims.remove(B);
        assert!(!claims.ask(Time(second)));
        assert_eq!(claims.next(), None);
    }

    #[test]
    fn a_lowered_limit_revokes_no_claim() {
        let mut claims = Claims::default();
        claims.adopt(A, 90);
        let less = claims
            .claim(A, 1, 80, 50, Time(0))
            .map(|answer| answer.bytes);
        assert_eq!(less, Some(80));
        let more = claims
            .claim(A, 2, 81, 50, Time(0))
            .map(|answer| answer.bytes);
        assert_eq!(more, Some(80));
        assert_eq!(
            claims
                .claim(A, 3, u64::MAX, u64::MAX, Time(0))
                .map(|a| a.bytes),
            Some(u64::MAX)
        );
    }
}
