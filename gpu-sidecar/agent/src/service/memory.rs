//! How the processes of a pod share its memory limit: each claims what it wants to hold, and all claims together are within the
//! limit (M4.15).
//!
//! A claim that does not fit waits for a moment while the others are asked for what they have claimed and do not use.

use policy::tokens::ProcessId;

/// How long a claim waits for others to give back, in nanoseconds.
pub(super) const PATIENCE_NS: u64 = 200_000_000;
/// Claims that wait at most; a process has one.
const WAITING_MAX: usize = 1_024;

/// A claim that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    process: ProcessId,
    seq: u32,
    bytes: u64,
    until: u64,
}

/// The claims of one pod.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: Vec<(ProcessId, u64)>,
    waiting: Vec<Waiting>,
}

/// A claim is answered: the process may hold so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    /// Who.
    pub(super) process: ProcessId,
    /// Which question.
    pub(super) seq: u32,
    /// What it may hold now, whether or not that is what it wanted.
    pub(super) claim: u64,
}

impl Claims {
    fn sum_of_others(&self, process: ProcessId) -> u64 {
        let others = self.held.iter().filter(|(other, _)| *other != process);
        others.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// What a process may hold.
    pub(super) fn of(&self, process: ProcessId) -> u64 {
        let own = self.held.iter().find(|(other, _)| *other == process);
        own.map_or(0, |(_, bytes)| *bytes)
    }

    fn set(&mut self, process: ProcessId, bytes: u64) {
        match self.held.iter_mut().find(|(other, _)| *other == process) {
            Some((_, held)) => *held = bytes,
            None => self.held.push((process, bytes)),
        }
    }

    /// A process that was there before the agent holds so much already, whatever the limit says now.
    pub(super) fn adopt(&mut self, process: ProcessId, bytes: u64) {
        self.set(process, bytes);
    }

    /// A process wants to hold `bytes`. `None`: the others are to be asked first.
    pub(super) fn claim(
        &mut self,
        process: ProcessId,
        seq: u32,
        bytes: u64,
        limit: u64,
        now: u64,
    ) -> Option<Answer> {
        self.waiting.retain(|waiting| waiting.process != process);
        let held = self.of(process);
        let fits = self.sum_of_others(process).saturating_add(bytes) <= limit;
        if bytes <= held || fits {
            self.set(process, bytes);
            return Some(Answer {
                process,
                seq,
                claim: bytes,
            });
        }
        let can_be = bytes <= limit
            && self
                .held
                .iter()
                .any(|(other, bytes)| *other != process && *bytes > 0);
        if !can_be || self.waiting.len() >= WAITING_MAX {
            return Some(Answer {
                process,
                seq,
                claim: held,
            });
        }
        self.waiting.push(Waiting {
            process,
            seq,
            bytes,
            until: now.saturating_add(PATIENCE_NS),
        });
        None
    }

    /// Answers claims that fit by now or have waited for long enough, in the order in which they came.
    pub(super) fn answer(&mut self, limit: u64, now: u64, answers: &mut Vec<Answer>) {
        for waiting in std::mem::take(&mut self.waiting) {
            let Waiting {
                process,
                seq,
                bytes,
                until,
            } = waiting;
            if self.sum_of_others(process).saturating_add(bytes) <= limit {
                self.set(process, bytes);
                answers.push(Answer {
                    process,
                    seq,
                    claim: bytes,
                });
            } else if now >= until {
                let claim = self.of(process);
                answers.push(Answer {
                    process,
                    seq,
                    claim,
                });
            } else {
                self.waiting.push(waiting);
            }
        }
    }

    /// When the next claim has waited for long enough.
    pub(super) fn next(&self) -> Option<u64> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// A process is gone.
    pub(super) fn remove(&mut self, process: ProcessId) {
        self.held.retain(|(other, _)| *other != process);
        self.waiting.retain(|waiting| waiting.process != process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ProcessId = ProcessId(1);
    const B: ProcessId = ProcessId(2);

    #[test]
    fn claims_together_are_within_the_limit() {
        let mut claims = Claims::default();
        let got = |answer: Option<Answer>| answer.map(|answer| answer.claim);
        assert_eq!(got(claims.claim(A, 1, 60, 100, 0)), Some(60));
        assert_eq!(got(claims.claim(B, 1, 40, 100, 0)), Some(40));
        // More than there can ever be is refused at once; what another may give back waits.
        assert_eq!(got(claims.claim(A, 2, 101, 100, 0)), Some(60));
        assert_eq!(got(claims.claim(A, 3, 61, 100, 0)), None);
        assert_eq!(claims.next(), Some(PATIENCE_NS));
        let mut answers = Vec::new();
        claims.answer(100, PATIENCE_NS - 1, &mut answers);
        assert_eq!(answers, []);
        claims.answer(100, PATIENCE_NS, &mut answers);
        assert_eq!(
            answers,
            [Answer {
                process: A,
                seq: 3,
                claim: 60
            }]
        );
    }

    #[test]
    fn what_is_given_back_goes_to_who_waits() {
        let mut claims = Claims::default();
        let _all = claims.claim(A, 1, 100, 100, 0);
        assert_eq!(claims.claim(B, 1, 30, 100, 0), None);
        let _less = claims.claim(A, 2, 70, 100, 0);
        let mut answers = Vec::new();
        claims.answer(100, 1, &mut answers);
        assert_eq!(
            answers,
            [Answer {
                process: B,
                seq: 1,
                claim: 30
            }]
        );
        claims.remove(A);
        let whole = claims.claim(B, 2, 100, 100, 2).map(|answer| answer.claim);
        assert_eq!(whole, Some(100));
    }

    #[test]
    fn a_limit_that_was_lowered_takes_nothing_away() {
        let mut claims = Claims::default();
        claims.adopt(A, 90);
        let less = claims.claim(A, 1, 80, 50, 0).map(|answer| answer.claim);
        assert_eq!(less, Some(80));
        let more = claims.claim(A, 2, 81, 50, 0).map(|answer| answer.claim);
        assert_eq!(more, Some(80));
        assert_eq!(
            claims.claim(A, 3, u64::MAX, u64::MAX, 0).map(|a| a.claim),
            Some(u64::MAX)
        );
    }
}
