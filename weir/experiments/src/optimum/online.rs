//! Runs the same cases through the online policies, which do not know future requests.

use policy::pool::preset::Preset;
use policy::pool::{Percentile, queue};
use policy::{Span, Time};

use super::draw::{DrawnCase, of_node};
use simulator::node::outcome::Occupancy;
use simulator::node::run::CountedSpan;
use simulator::node::{RunError, Settings, run};
use simulator::random::Streams;
use simulator::statistics;
use simulator::traces::{Arrival, FunctionInfo, TraceError, Work, Workload};

/// An online policy, named after its difference from the whole policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Online {
    /// All mechanisms of mechanisms §2.2, §2.3 and §2.3b.
    Whole,
    /// The whole policy, with requests in order of arrival.
    ArrivalOrder,
    /// The whole policy, with requests ordered by latest start time (M1.10).
    LatestStart,
    /// The whole policy, with eviction of the least recently used model.
    LeastRecentlyUsed,
    /// The whole policy, with random placement on slots.
    RandomPlacement,
}

impl Online {
    /// All policies, in the order of tables.
    pub const ALL: [Self; 5] = [
        Self::Whole,
        Self::ArrivalOrder,
        Self::LatestStart,
        Self::LeastRecentlyUsed,
        Self::RandomPlacement,
    ];

    /// Returns the name shown in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole policy",
            Self::ArrivalOrder => "order of arrival",
            Self::LatestStart => "latest start time",
            Self::LeastRecentlyUsed => "least recent use",
            Self::RandomPlacement => "random placement",
        }
    }

    /// Returns the settings of a node that runs this policy, without noise.
    #[must_use]
    pub fn settings(self, percentile: Percentile) -> Settings {
        let preset = match self {
            Self::Whole | Self::LatestStart => Preset::Adaptive,
            Self::ArrivalOrder => Preset::ArrivalOrder,
            Self::LeastRecentlyUsed => Preset::LeastRecentlyUsed,
            Self::RandomPlacement => Preset::RandomPlacement,
        };
        let rules = preset.rules();
        let mut settings = Settings {
            queue: rules.queue,
            slots: rules.slots,
            ..of_node(percentile)
        };
        if self == Self::LatestStart {
            settings.queue.order = queue::Order::LatestStart;
        }
        settings
    }

    /// Runs a case until every request is answered.
    ///
    /// # Errors
    /// Returns a [`RunError`] if the node refuses the case.
    pub fn run(self, drawn: &DrawnCase, percentile: Percentile) -> Result<OnlineOutcome, RunError> {
        let case = &drawn.case;
        let functions = (0..).zip(&drawn.models).map(|(at, &model): (u32, _)| {
            let name = drawn.hardware.models.get(model).map(|own| own.name.clone());
            FunctionInfo {
                model: name,
                ..FunctionInfo::named(at.to_string())
            }
        });
        let arrivals: Vec<Result<Arrival, TraceError>> = case
            .requests()
            .iter()
            .map(|request| {
                Ok(Arrival {
                    at: request.arrival,
                    function: u32::try_from(request.function).unwrap_or(u32::MAX),
                    work: Work::Unstated,
                    objective: Some(request.deadline.since(request.arrival)),
                })
            })
            .collect();
        let workload = Workload {
            functions: functions.collect(),
            arrivals: arrivals.into_iter(),
        };
        let span = CountedSpan {
            from: Time::ZERO,
            to: ends(drawn),
            keep: case.requests().len(),
        };
        let streams = Streams::new("optimum", drawn.seed);
        let settings = self.settings(percentile);
        let outcome = run(
            &drawn.hardware,
            &settings,
            workload,
            span,
            &streams,
            &mut |_, _| true,
        )?;
        let by_function: Vec<u64> = outcome
            .functions
            .iter()
            .map(|own| own.requests - own.late)
            .collect();
        let percentile = percentile_of(percentile);
        Ok(OnlineOutcome {
            in_time: small(by_function.iter().sum()),
            compliant: small(outcome.compliant(percentile) as u64),
            taken: outcome.taken,
        })
    }
}

/// Results of a policy on one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnlineOutcome {
    /// Number of requests in time.
    pub in_time: u32,
    /// Number of functions with enough requests in time; functions without a request are not counted.
    pub compliant: u32,
    /// Executed requests, in the order of their ends.
    pub taken: Vec<Occupancy>,
}

/// Converts a percentile to the unit of statistics, thousandths of a percent.
pub(super) fn percentile_of(percentile: Percentile) -> statistics::Percentile {
    let thousandths = percentile.parts_per_million() / 10;
    // Below a thousandth of a percent one request suffices, as it does at a thousandth.
    statistics::Percentile::from_thousandths(thousandths.max(1))
        .unwrap_or(statistics::Percentile::P999)
}

/// Returns a time by which every request has been executed, in any order and with any contention.
fn ends(drawn: &DrawnCase) -> Time {
    let (case, hardware) = (&drawn.case, &drawn.hardware);
    let last = case
        .requests()
        .iter()
        .map(|own| own.arrival.max(own.deadline));
    let alone = |function: usize| hardware.swapped_alone(drawn.models[function]).0;
    let work: u64 = case
        .requests()
        .iter()
        .map(|own| alone(own.function).max(case.functions()[own.function].swapped.0))
        .sum();
    // One after the other, each as slow as beside a load on every other slot.
    let slow = 1.0 + hardware.link.contention * 64.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and a float stops at the bounds"
    )]
    let slow = slow as u64 + 1;
    let work = Span(work.saturating_mul(slow));
    last.max()
        .unwrap_or_default()
        .after(work)
        .after(Span::from_secs(1))
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
