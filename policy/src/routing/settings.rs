//! What is fixed of a function, of an instance, and of a request.

use crate::gate::{Late, Order};
use crate::profile::ClassId;
use crate::{RequestId, Span, Time};

/// How an instance is chosen, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// See the [module](super).
    LateBinding,
    /// M1.13 as printed (papers 1.7): at arrival, the instance with the lowest latency on which it can make it and which
    /// has fewer requests than its serving capacity; else the one that shares its slot; else the one that will be done
    /// first.
    Paper,
    /// Knative's activator, by places: without a limit the less loaded of two chosen at random; up to three the first
    /// instance that has a place; above, in turn those that have one. Without a place a request waits in order of
    /// arrival.
    Knative,
    /// At arrival, in turn.
    RoundRobin,
    /// At arrival, the one with the fewest requests.
    LeastRequest,
    /// At arrival, of two chosen at random the one whose latency, a mean that follows peaks at once, times its requests is
    /// less.
    PeakEwma,
    /// At arrival, any.
    Random,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::LateBinding,
        Self::Paper,
        Self::Knative,
        Self::RoundRobin,
        Self::LeastRequest,
        Self::PeakEwma,
        Self::Random,
    ];

    /// Returns its name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LateBinding => "late-binding",
            Self::Paper => "paper",
            Self::Knative => "knative",
            Self::RoundRobin => "round-robin",
            Self::LeastRequest => "least-request",
            Self::PeakEwma => "peak-ewma",
            Self::Random => "random",
        }
    }

    /// Requests wait for a place.
    pub(super) const fn waits(self) -> bool {
        matches!(self, Self::LateBinding | Self::Knative)
    }
}

/// What [`Settings::margin_percent`] is unless there is a reason for another.
///
/// The most urgent request goes first, so near capacity each goes at the last moment at which it can make it by its
/// estimate. Where that is too low it has taken the place of another for nothing. What it brings: docs/activator-ext.md.
pub const MARGIN_PERCENT: u32 = 25;

/// A function's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How an instance is chosen.
    pub rule: Rule,
    /// The order of waiting requests; [`Rule::Knative`] knows only that of arrival.
    pub order: Order,
    /// What becomes of late ones.
    pub late: Late,
    /// Requests that may wait for each instance …
    pub depth: usize,
    /// … together at least so many …
    pub waiting_min: usize,
    /// … and at most so many.
    pub waiting_max: usize,
    /// What is added to a request's estimate before it is judged whether it can still make it, in per cent; see
    /// [`MARGIN_PERCENT`].
    pub margin_percent: u32,
    /// From the choice of an instance to the start of the request there, until it is measured.
    pub hand_over: Span,
    /// How long a request runs, until one was measured.
    pub execution: Span,
    /// Classes of requests.
    pub classes: u16,
    /// The objective, by which [`Rule::Paper`] counts how many requests an instance may have.
    pub slo: Option<Span>,
}

/// How many requests may be at an instance at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Any number.
    Unlimited,
    /// So many, at least 1.
    Fixed(u32),
}

/// An instance's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many requests may be there at once. A pipeline's are its [`serving_capacity`].
    pub places: Places,
    /// Stages: 1 is a monolith.
    pub stages: u32,
    /// It shares its slot: one request more is bound ahead of its lease.
    pub is_time_sharing: bool,
    /// Its stated speed, in millionths: what a request's stated execution is divided by.
    pub speed_ppm: u32,
    /// Its number among the function's instances, equal for all owners of the function.
    pub ordinal: u32,
}

impl Shape {
    /// A monolith of speed 1.
    #[must_use]
    pub const fn monolith(places: Places, ordinal: u32) -> Self {
        Self {
            places,
            stages: 1,
            is_time_sharing: false,
            speed_ppm: 1_000_000,
            ordinal,
        }
    }
}

/// How long what takes `execution` at speed 1 takes at this speed.
pub(super) fn at_speed(execution: Span, speed_ppm: u32) -> Span {
    let scaled = u128::from(execution.0) * 1_000_000 / u128::from(speed_ppm.max(1));
    Span(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// Which part of every instance's places is this owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The owner's number, from 0.
    pub index: u32,
    /// Owners, at least 1.
    pub of: u32,
}

impl Share {
    /// The only owner.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// This owner's part of `places` of the instance with this ordinal. The parts of all owners are `places` together, and
    /// which owner gets the rest differs from instance to instance.
    pub(super) const fn part(self, places: u32, ordinal: u32) -> u32 {
        let turn = (self.index + ordinal % self.of) % self.of;
        let rest = places % self.of;
        places / self.of + if turn < rest { 1 } else { 0 }
    }
}

/// A request that is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who it is.
    pub id: RequestId,
    /// When it came.
    pub at: Time,
    /// Until when it must be answered.
    pub deadline: Time,
    /// The latency it was promised; `None`: somebody who waits without one, in order of deadline.
    pub objective: Option<Span>,
    /// Its class.
    pub class: ClassId,
    /// How long it runs on an instance of speed 1, where the caller knows better than the class does.
    pub execution: Option<Span>,
}

/// Returns the number of requests at a pipeline with which one that has just arrived still makes it (papers 1.7):
/// `max(stages, ⌊(slo − latency) ÷ bottleneck⌋ + stages)`.
#[must_use]
pub fn serving_capacity(stages: u32, slo: Span, latency: Span, bottleneck: Span) -> u32 {
    let spare = slo.less(latency).0.checked_div(bottleneck.0).unwrap_or(0);
    stages.saturating_add(u32::try_from(spare).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_owners_are_the_whole() {
        for of in 1..6 {
            for places in 1..9 {
                for ordinal in 0..7 {
                    let parts = (0..of).map(|index| Share { index, of }.part(places, ordinal));
                    assert_eq!(parts.sum::<u32>(), places, "{of} {places} {ordinal}");
                }
            }
        }
    }

    #[test]
    fn a_single_place_goes_to_another_owner_with_each_instance() {
        let owner = Share { index: 0, of: 2 };
        let parts: Vec<_> = (0..4).map(|ordinal| owner.part(1, ordinal)).collect();
        assert_eq!(parts, [1, 0, 1, 0]);
    }

    #[test]
    fn a_pipeline_takes_what_still_makes_it() {
        let ms = Span::from_millis;
        assert_eq!(serving_capacity(3, ms(100), ms(60), ms(20)), 5);
        assert_eq!(serving_capacity(3, ms(50), ms(60), ms(20)), 3);
        assert_eq!(serving_capacity(1, ms(50), ms(60), Span::ZERO), 1);
    }
}
