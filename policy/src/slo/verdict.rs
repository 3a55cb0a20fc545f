//! Whether a request met its objective, and the reason if it did not (contracts §4; M1.18, M2.19).
//!
//! Every judged request counts exactly once, as met or as missed for one [`MissReason`]: in time + Σ missed = judged.

use crate::Span;

/// Reason why a request missed its objective: the values of the label `reason`. Their order settles ties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissReason {
    /// The request arrived while no instance served, and waited for one.
    ColdStart,
    /// The request waited for its turn, at this hop or an earlier one.
    Queue,
    /// The instance waited for the lease of its slot.
    Lease,
    /// The model had to be loaded.
    Load,
    /// The request's kernels waited for tokens.
    Gate,
    /// The execution took too long.
    Execution,
    /// The queue was full, or the revision went away.
    Refused,
    /// The request was late, and late requests are shed.
    Shed,
    /// A timeout ended the request, or its client disconnected after the objective.
    Timeout,
    /// The application failed, aborted the response, or answered with a server error.
    Failed,
}

impl MissReason {
    /// All reasons, each at the index of its discriminant.
    pub const ALL: [Self; 10] = [
        Self::ColdStart,
        Self::Queue,
        Self::Lease,
        Self::Load,
        Self::Gate,
        Self::Execution,
        Self::Refused,
        Self::Shed,
        Self::Timeout,
        Self::Failed,
    ];

    /// Returns the value of the label `reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ColdStart => "cold-start",
            Self::Queue => "queue",
            Self::Lease => "lease",
            Self::Load => "load",
            Self::Gate => "gate",
            Self::Execution => "execution",
            Self::Refused => "refused",
            Self::Shed => "shed",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
        }
    }
}

/// End of a request, as far as its objective is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The application answered with this status.
    Answered {
        /// Status code of the HTTP response.
        status: u16,
    },
    /// The queue was full, or the revision went away.
    Refused,
    /// The request was late, and late requests are shed.
    Shed,
    /// A timeout ended the request.
    Timeout,
    /// The application could not be reached, or aborted the response.
    Failed,
    /// The client disconnected before the answer.
    Left,
    /// The request could not be parsed.
    Malformed,
}

/// Known parts of a request's time. A part that is not known is zero; it is never estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Parts {
    /// Time from arrival to dispatch of a request that arrived while no instance served.
    pub cold_start: Span,
    /// Time spent in queues, including those of earlier hops.
    pub queue: Span,
    /// Time for which the instance waited for the lease of its slot.
    pub lease: Span,
    /// Time for which the model was being loaded.
    pub load: Span,
    /// Time for which kernels waited for tokens.
    pub gate: Span,
    /// Time at the application, minus the two parts before as far as they are known.
    pub execution: Span,
}

impl Parts {
    /// Returns the parts with their reasons, in the order of [`MissReason`].
    #[must_use]
    pub const fn by_reason(&self) -> [(MissReason, Span); 6] {
        [
            (MissReason::ColdStart, self.cold_start),
            (MissReason::Queue, self.queue),
            (MissReason::Lease, self.lease),
            (MissReason::Load, self.load),
            (MissReason::Gate, self.gate),
            (MissReason::Execution, self.execution),
        ]
    }

    /// Returns the reason why an answer with these parts is late: `Execution` if that part alone exceeds the objective,
    /// and otherwise the longest part, the first of equal ones. If no part is known, the reason is `Execution`, since
    /// the application has answered and nothing held the request.
    fn reason(&self, objective: Span) -> MissReason {
        let mut longest = (MissReason::Execution, Span::ZERO);
        if self.execution > objective {
            return longest.0;
        }
        for part in self.by_reason() {
            if part.1 > longest.1 {
                longest = part;
            }
        }
        longest.0
    }
}

/// Classification of a request against its objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request was answered within its objective and without a server error.
    InTime,
    /// The request missed its objective for this reason.
    Missed(MissReason),
    /// The request does not count: it was malformed, or its client disconnected within the objective.
    NotJudged,
}

/// Returns the verdict on a request that took `took` from its first arrival in Weir to its end.
#[must_use]
pub fn judge(objective: Span, took: Span, ending: Ending, parts: &Parts) -> Verdict {
    let reason = match ending {
        Ending::Malformed => return Verdict::NotJudged,
        Ending::Left if took <= objective => return Verdict::NotJudged,
        Ending::Left | Ending::Timeout => MissReason::Timeout,
        Ending::Answered { status } if status >= 500 => MissReason::Failed,
        Ending::Answered { .. } if took <= objective => return Verdict::InTime,
        Ending::Answered { .. } => parts.reason(objective),
        Ending::Refused => MissReason::Refused,
        Ending::Shed => MissReason::Shed,
        Ending::Failed => MissReason::Failed,
    };
    Verdict::Missed(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTIVE: Span = Span::from_millis(100);

    fn answered(took_ms: u64, status: u16, parts: &Parts) -> Verdict {
        let ending = Ending::Answered { status };
        judge(OBJECTIVE, Span::from_millis(took_ms), ending, parts)
    }

    #[test]
    fn each_reason_is_at_the_index_of_its_discriminant() {
        for (index, reason) in MissReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn a_request_is_in_time_within_the_objective_and_without_a_server_error() {
        let none = Parts::default();
        let failed = Verdict::Missed(MissReason::Failed);
        assert_eq!(answered(100, 200, &none), Verdict::InTime);
        assert_eq!(answered(1, 404, &none), Verdict::InTime);
        assert_eq!(answered(1, 500, &none), failed);
        assert_eq!(answered(900, 503, &none), failed);
    }

    #[test]
    fn a_client_that_disconnects_within_the_objective_does_not_count_and_later_is_a_timeout() {
        let left = |ms| {
            judge(
                OBJECTIVE,
                Span::from_millis(ms),
                Ending::Left,
                &Parts::default(),
            )
        };
        assert_eq!(left(100), Verdict::NotJudged);
        assert_eq!(left(101), Verdict::Missed(MissReason::Timeout));
    }

    #[test]
    fn execution_above_the_objective_is_the_reason_whatever_else_was_longer() {
        let parts = Parts {
            queue: Span::from_millis(500),
            execution: Span::from_millis(101),
            ..Parts::default()
        };
        let execution = Verdict::Missed(MissReason::Execution);
        assert_eq!(answered(601, 200, &parts), execution);
        let parts = Parts {
            execution: OBJECTIVE,
            ..parts
        };
        assert_eq!(
            answered(600, 200, &parts),
            Verdict::Missed(MissReason::Queue)
        );
    }

    #[test]
    fn of_equal_parts_the_first_in_order_is_the_reason() {
        let equal = Span::from_millis(60);
        let mut parts = Parts {
            cold_start: equal,
            queue: equal,
            lease: equal,
            load: equal,
            gate: equal,
            execution: equal,
        };
        for reason in MissReason::ALL.into_iter().take(6) {
            assert_eq!(answered(360, 200, &parts), Verdict::Missed(reason));
            match reason {
                MissReason::ColdStart => parts.cold_start = Span::ZERO,
                MissReason::Queue => parts.queue = Span::ZERO,
                MissReason::Lease => parts.lease = Span::ZERO,
                MissReason::Load => parts.load = Span::ZERO,
                MissReason::Gate => parts.gate = Span::ZERO,
                _ => parts.execution = Span::ZERO,
            }
        }
        // No part is known.
        assert_eq!(
            answered(101, 200, &parts),
            Verdict::Missed(MissReason::Execution)
        );
    }

    /// Checks all requests that differ in a relevant way against the rule as it is written down.
    #[test]
    fn every_judged_request_is_met_or_missed_for_exactly_one_reason() {
        let times = [0, 40, 99, 100, 101, 900];
        let mut endings = vec![
            Ending::Refused,
            Ending::Shed,
            Ending::Timeout,
            Ending::Failed,
            Ending::Left,
            Ending::Malformed,
        ];
        endings.extend([100, 200, 404, 499, 500, 599].map(|status| Ending::Answered { status }));
        let (mut judged, mut met, mut missed, mut left_out) = (0, 0, 0, 0);
        for took in times {
            for ending in &endings {
                for mask in 0..64_u32 {
                    let part = |bit: u32, ms: u64| {
                        let ms = if mask >> bit & 1 == 1 { ms } else { 0 };
                        Span::from_millis(ms)
                    };
                    let parts = Parts {
                        cold_start: part(0, 30),
                        queue: part(1, 50),
                        lease: part(2, 50),
                        load: part(3, 20),
                        gate: part(4, 60),
                        execution: part(5, if mask % 3 == 0 { 101 } else { 60 }),
                    };
                    let is_judged = match ending {
                        Ending::Malformed => false,
                        Ending::Left => took > 100,
                        _ => true,
                    };
                    let verdict = judge(OBJECTIVE, Span::from_millis(took), *ending, &parts);
                    judged += u64::from(is_judged);
                    match verdict {
                        Verdict::InTime => {
                            met += 1;
                            let is_answer =
                                matches!(ending, Ending::Answered { status } if *status < 500);
                            assert!(is_answer && took <= 100);
                        }
                        Verdict::Missed(reason) => {
                            missed += 1;
                            let by_part = parts.by_reason().iter().any(|(own, _)| *own == reason);
                            let is_late =
                                matches!(ending, Ending::Answered { status } if *status < 500);
                            assert_eq!(by_part, is_late, "{ending:?} {reason:?}");
                            if is_late && parts.execution <= OBJECTIVE {
                                let longest = parts.by_reason().map(|(_, span)| span);
                                let longest = longest.into_iter().max();
                                let own = parts.by_reason()[reason as usize].1;
                                assert_eq!(Some(own), longest);
                            }
                        }
                        Verdict::NotJudged => {
                            left_out += 1;
                            assert!(!is_judged);
                        }
                    }
                }
            }
        }
        assert_eq!(met + missed, judged);
        assert!(met > 0 && missed > 0 && left_out > 0);
    }
}
