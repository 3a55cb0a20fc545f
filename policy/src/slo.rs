//! Deadlines of requests: objectives, limits, deadlines, and budgets (contracts §2).
//!
//! # Examples
//!
//! ```
//! use policy::slo::{Ending, Parts, Signals, Verdict, judge};
//! use policy::{Span, Time};
//!
//! let objective = Span::from_millis(50);
//! let signals = Signals {
//!     slo: Some(Span::from_millis(200)),
//!     grpc_timeout: Some(objective),
//!     revision_timeout: Span::from_secs(300),
//!     ..Signals::default()
//! };
//! let deadline = signals.deadline(Time::ZERO);
//! assert_eq!(deadline.objective, Some(objective));
//! let latest_start = deadline.latest_start(Span::from_millis(30), Span::ZERO);
//! assert_eq!(latest_start, Time::ZERO.after(Span::from_millis(20)));
//!
//! let (took, ending) = (Span::from_millis(40), Ending::Answered { status: 200 });
//! assert_eq!(judge(objective, took, ending, &Parts::default()), Verdict::InTime);
//! ```

use crate::{Span, Time};

pub use verdict::{Ending, MissReason, Parts, Verdict, judge};

mod verdict;

/// Smallest budget that is forwarded: a hop that has used up the budget still forwards "at once".
pub const BUDGET_MIN: Span = Span::from_millis(1);

/// Whose statements about a request's remaining time are trusted (contracts §1, `trust-budget`).
///
/// A request that states less time than it has starts before others of its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Trust {
    /// Every client is trusted.
    #[default]
    All,
    /// Every client is trusted, but a stated time counts as at least half of the revision's `slo`.
    Floor,
    /// Only hops of Weir are trusted. Nothing proves yet that a request comes from such a hop, so no request is
    /// trusted.
    None,
}

/// Information about a request's objective on arrival. All spans count from the arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Signals {
    /// Remainder of the objective that an earlier hop has left, from the header `Weir-Budget-Ms`.
    pub budget: Option<Span>,
    /// Timeout that the client states in the header `grpc-timeout`.
    pub grpc_timeout: Option<Span>,
    /// Time at which the gateway gives up, from `X-Envoy-Expected-Rq-Timeout-Ms`: a limit, never an objective.
    pub gateway_limit: Option<Span>,
    /// Objective of the revision, from its `slo` annotation.
    pub slo: Option<Span>,
    /// Request timeout of the revision.
    pub revision_timeout: Span,
    /// Extent to which `budget`, `grpc_timeout` and `gateway_limit`, which the request itself states, are trusted.
    pub trust: Trust,
}

/// Time by which a request must be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Point in time of the deadline.
    pub at: Time,
    /// Time from arrival to `at` if an objective was stated; `None` for a best-effort request.
    pub objective: Option<Span>,
}

impl Signals {
    /// Returns the deadline of a request that arrived at `arrival`.
    ///
    /// The objective is the budget, or otherwise the smaller of `grpc-timeout` and `slo`. The limit is the smaller of
    /// the gateway's and the revision's timeout; it cuts an objective and never creates one. Without an objective the
    /// deadline is arrival + revision timeout.
    ///
    /// The values that the request itself states count as [`Trust`] specifies. That includes the gateway's limit,
    /// because a client can send that header as well.
    #[must_use]
    pub fn deadline(&self, arrival: Time) -> Deadline {
        let believed = |stated: Option<Span>| match self.trust {
            Trust::All => stated,
            Trust::Floor => stated.map(|stated| stated.max(self.floor())),
            Trust::None => None,
        };
        let asked = match believed(self.budget) {
            Some(budget) => Some(budget),
            None => match (believed(self.grpc_timeout), self.slo) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        };
        let limit = match believed(self.gateway_limit) {
            Some(gateway) => gateway.min(self.revision_timeout),
            None => self.revision_timeout,
        };
        let objective = asked.map(|objective| objective.min(limit));
        Deadline {
            at: arrival.after(objective.unwrap_or(self.revision_timeout)),
            objective,
        }
    }

    /// Returns the smallest stated time that counts under [`Trust::Floor`].
    fn floor(&self) -> Span {
        Span(self.slo.unwrap_or_default().0 / 2)
    }
}

impl Deadline {
    /// Returns the latest start time (M1.10): deadline − estimated execution − estimated load. A best-effort request
    /// keeps its deadline as key, so such requests stay in order of arrival.
    #[must_use]
    pub const fn latest_start(&self, execution: Span, load: Span) -> Time {
        match self.objective {
            Some(_) => self.at.before(execution).before(load),
            None => self.at,
        }
    }
}

/// Returns what is left of `budget` for a request that was held from `arrival` to `now`; at least [`BUDGET_MIN`].
#[must_use]
pub fn budget_left(budget: Span, arrival: Time, now: Time) -> Span {
    budget.less(now.since(arrival)).max(BUDGET_MIN)
}

/// Time between a dispatch and the request's latest start time, which is never negative in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartMargin {
    /// The request starts this long before its latest start time, or exactly at it.
    Slack(Span),
    /// The request starts this long after its latest start time.
    Lateness(Span),
}

impl StartMargin {
    /// Returns the margin of a request with this latest start time that starts at `now`.
    #[must_use]
    pub fn new(latest_start: Time, now: Time) -> Self {
        if now > latest_start {
            Self::Lateness(now.since(latest_start))
        } else {
            Self::Slack(latest_start.since(now))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRIVAL: Time = Time(5_000_000_000);
    const BASE: Signals = Signals {
        budget: None,
        grpc_timeout: None,
        gateway_limit: None,
        slo: None,
        revision_timeout: Span::from_secs(300),
        trust: Trust::All,
    };

    fn objective(signals: Signals) -> Option<u64> {
        let deadline = signals.deadline(ARRIVAL);
        if let Some(objective) = deadline.objective {
            assert_eq!(deadline.at, ARRIVAL.after(objective));
        }
        deadline.objective.map(Span::as_millis)
    }

    #[test]
    fn the_slo_is_the_objective_when_nothing_else_is_stated() {
        assert_eq!(
            objective(Signals {
                slo: Some(Span::from_millis(200)),
                ..BASE
            }),
            Some(200)
        );
    }

    #[test]
    fn the_smaller_of_grpc_timeout_and_slo_wins() {
        let slo = Some(Span::from_millis(200));
        let grpc = |ms| Some(Span::from_millis(ms));
        assert_eq!(
            objective(Signals {
                slo,
                grpc_timeout: grpc(50),
                ..BASE
            }),
            Some(50)
        );
        assert_eq!(
            objective(Signals {
                slo,
                grpc_timeout: grpc(500),
                ..BASE
            }),
            Some(200)
        );
        assert_eq!(
            objective(Signals {
                grpc_timeout: grpc(500),
                ..BASE
            }),
            Some(500)
        );
    }

    #[test]
    fn a_budget_beats_both_even_when_longer() {
        let signals = Signals {
            budget: Some(Span::from_millis(900)),
            grpc_timeout: Some(Span::from_millis(50)),
            slo: Some(Span::from_millis(200)),
            ..BASE
        };
        assert_eq!(objective(signals), Some(900));
    }

    #[test]
    fn a_limit_cuts_an_objective() {
        let signals = Signals {
            slo: Some(Span::from_millis(200)),
            gateway_limit: Some(Span::from_millis(80)),
            ..BASE
        };
        assert_eq!(objective(signals), Some(80));
        let signals = Signals {
            slo: Some(Span::from_secs(400)),
            gateway_limit: Some(Span::from_secs(350)),
            ..BASE
        };
        assert_eq!(objective(signals), Some(300_000));
    }

    #[test]
    fn a_limit_never_makes_an_objective() {
        let signals = Signals {
            gateway_limit: Some(Span::from_millis(15_000)),
            ..BASE
        };
        let deadline = signals.deadline(ARRIVAL);
        assert_eq!(
            deadline,
            Deadline {
                at: ARRIVAL.after(Span::from_secs(300)),
                objective: None
            }
        );
    }

    #[test]
    fn with_a_floor_nothing_counts_as_less_than_half_of_the_slo() {
        let floor = |slo, budget, grpc_timeout, gateway_limit| {
            let span = |ms: Option<u64>| ms.map(Span::from_millis);
            objective(Signals {
                budget: span(budget),
                grpc_timeout: span(grpc_timeout),
                gateway_limit: span(gateway_limit),
                slo: span(slo),
                trust: Trust::Floor,
                ..BASE
            })
        };
        let slo = Some(200);
        assert_eq!(floor(slo, Some(1), None, None), Some(100));
        assert_eq!(floor(slo, Some(150), None, None), Some(150));
        assert_eq!(floor(slo, Some(900), None, None), Some(900));
        assert_eq!(floor(slo, None, Some(1), None), Some(100));
        assert_eq!(floor(slo, None, None, Some(1)), Some(100));
        assert_eq!(floor(slo, Some(900), None, Some(150)), Some(150));
        assert_eq!(floor(None, Some(1), None, None), Some(1));
        let longer = Signals {
            budget: Some(Span::from_millis(1)),
            slo: Some(Span::from_secs(800)),
            trust: Trust::Floor,
            ..BASE
        };
        assert_eq!(objective(longer), Some(300_000));
    }

    #[test]
    fn without_trust_the_slo_is_the_objective_whatever_a_request_states() {
        let stated = Signals {
            budget: Some(Span::from_millis(1)),
            grpc_timeout: Some(Span::from_millis(2)),
            gateway_limit: Some(Span::from_millis(3)),
            slo: Some(Span::from_millis(200)),
            trust: Trust::None,
            ..BASE
        };
        assert_eq!(objective(stated), Some(200));
        let longer = Signals {
            slo: Some(Span::from_secs(400)),
            ..stated
        };
        assert_eq!(objective(longer), Some(300_000));
        let best_effort = Signals {
            slo: None,
            ..stated
        };
        assert_eq!(objective(best_effort), None);
    }

    #[test]
    fn best_effort_requests_keep_their_order_of_arrival() {
        let early = BASE
            .deadline(Time(1))
            .latest_start(Span::from_secs(1), Span::ZERO);
        let later = BASE
            .deadline(Time(2))
            .latest_start(Span::from_secs(9), Span::ZERO);
        assert!(early < later);
    }

    #[test]
    fn the_key_is_deadline_minus_execution_minus_load() {
        let deadline = Signals {
            slo: Some(Span::from_millis(100)),
            ..BASE
        }
        .deadline(ARRIVAL);
        let key = deadline.latest_start(Span::from_millis(30), Span::from_millis(20));
        assert_eq!(key, ARRIVAL.after(Span::from_millis(50)));
        assert_eq!(
            deadline.latest_start(Span(u64::MAX), Span::ZERO),
            Time::ZERO
        );
    }

    #[test]
    fn a_forwarded_budget_is_reduced_by_the_time_held_but_never_to_zero() {
        let left = |held_ms| {
            budget_left(
                Span::from_millis(100),
                ARRIVAL,
                ARRIVAL.after(Span::from_millis(held_ms)),
            )
        };
        assert_eq!(left(30), Span::from_millis(70));
        assert_eq!(left(100), BUDGET_MIN);
        assert_eq!(left(5_000), BUDGET_MIN);
        // A clock that was set back counts as no time held.
        assert_eq!(
            budget_left(Span::from_millis(100), ARRIVAL, Time::ZERO),
            Span::from_millis(100)
        );
    }

    #[test]
    fn a_margin_is_never_negative_and_a_timely_start_has_slack() {
        let (early, late) = (Time(1_000), Time(5_000));
        assert_eq!(
            StartMargin::new(late, early),
            StartMargin::Slack(Span(4_000))
        );
        assert_eq!(StartMargin::new(late, late), StartMargin::Slack(Span::ZERO));
        assert_eq!(
            StartMargin::new(early, late),
            StartMargin::Lateness(Span(4_000))
        );
    }
}
