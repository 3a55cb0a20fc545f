//! Settings of a function and of an instance, and the properties of a request.

use crate::gate::{Late, Order};
use crate::profile::ClassId;
use crate::{RequestId, Span, Time};

/// Rule by which an instance is chosen, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Late binding, as described in the [module](super).
    LateBinding,
    /// M1.13 as printed (mechanisms §1.7): on arrival, the instance with the lowest latency on which the request meets its
    /// deadline and which has fewer requests than its serving capacity; otherwise the one that shares its slot;
    /// otherwise the one that will finish first.
    Paper,
    /// Knative's activator, by the number of places: without a limit, the less loaded of two random instances; with up
    /// to three, the first instance that has a place; above, the instances with a place in turn. Without a free place a
    /// request waits, in order of arrival.
    Knative,
    /// On arrival, all instances in turn.
    RoundRobin,
    /// On arrival, the instance with the fewest requests.
    LeastRequest,
    /// On arrival, of two random instances the one with the smaller product of latency, as a mean that follows peaks at
    /// once, and number of requests.
    PeakEwma,
    /// On arrival, a random instance.
    Random,
}

impl Rule {
    /// All rules, each at the index of its discriminant.
    pub const ALL: [Self; 7] = [
        Self::LateBinding,
        Self::Paper,
        Self::Knative,
        Self::RoundRobin,
        Self::LeastRequest,
        Self::PeakEwma,
        Self::Random,
    ];

    /// Returns the rule's name on command lines and in reports.
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

    /// Returns whether requests wait for a place under this rule.
    pub(super) const fn waits(self) -> bool {
        matches!(self, Self::LateBinding | Self::Knative)
    }
}

/// Default of [`Settings::margin_percent`].
///
/// The most urgent request goes first, so near capacity each request starts at the last moment at which it can meet its
/// deadline by its estimate. If that estimate is too low, it has taken the place of another request for nothing.
/// docs/activator-ext.md has measurements.
pub const MARGIN_PERCENT: u32 = 25;

/// Settings of one function's router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rule by which an instance is chosen.
    pub rule: Rule,
    /// Order of waiting requests; [`Rule::Knative`] always uses that of arrival.
    pub order: Order,
    /// Treatment of late requests.
    pub late: Late,
    /// Number of requests that may wait, for each ready instance; the total is at least `waiting_min` and at most
    /// `waiting_max`.
    pub depth: usize,
    /// Least number of requests that may wait in total, while an instance is ready.
    pub waiting_min: usize,
    /// Largest number of requests that may wait in total, also while no instance is ready.
    pub waiting_max: usize,
    /// Margin added to a request's estimate before judging whether it can still meet its deadline, in percent; see
    /// [`MARGIN_PERCENT`].
    pub margin_percent: u32,
    /// Time from the choice of an instance to the start of the request there, until it has been measured.
    pub hand_over: Span,
    /// Execution time of a request, until one has been measured.
    pub execution: Span,
    /// Number of request classes.
    pub classes: u16,
    /// Objective by which [`Rule::Paper`] computes how many requests an instance may have.
    pub slo: Option<Span>,
}

/// Number of requests that may be at an instance at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Any number of requests.
    Unlimited,
    /// This number of requests; at least 1.
    Fixed(u32),
}

/// Settings of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of requests that may be there at once. For a pipeline this is its [`serving_capacity`].
    pub places: Places,
    /// Number of stages; 1 for a monolith.
    pub stages: u32,
    /// Whether the instance shares its slot: one more request is then bound ahead of its lease.
    pub is_time_sharing: bool,
    /// Stated speed in millionths, by which a request's stated execution time is divided.
    pub speed_ppm: u32,
    /// Number of the instance among those of the function, equal for all owners of the function.
    pub ordinal: u32,
}

impl Shape {
    /// Returns the settings of a monolith of speed 1.
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

/// Returns the time that `execution` at speed 1 takes at this speed.
pub(super) fn at_speed(execution: Span, speed_ppm: u32) -> Span {
    let scaled = u128::from(execution.0) * 1_000_000 / u128::from(speed_ppm.max(1));
    Span(u64::try_from(scaled).unwrap_or(u64::MAX))
}

/// Part of every instance's places that belongs to one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of the owner, from 0.
    pub index: u32,
    /// Number of owners; at least 1.
    pub of: u32,
}

impl Share {
    /// Share of a sole owner.
    pub const WHOLE: Self = Self { index: 0, of: 1 };

    /// Returns this owner's part of `places` on the instance with this ordinal. The parts of all owners add up to
    /// `places`, and the owner that gets the remainder differs from instance to instance.
    pub(super) const fn part(self, places: u32, ordinal: u32) -> u32 {
        let turn = (self.index + ordinal % self.of) % self.of;
        let rest = places % self.of;
        places / self.of + if turn < rest { 1 } else { 0 }
    }
}

/// Request that is to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Id of the request.
    pub id: RequestId,
    /// Time at which the request arrived.
    pub at: Time,
    /// Time by which the request must be answered.
    pub deadline: Time,
    /// Promised latency; `None` for a request that waits without one, in order of deadline.
    pub objective: Option<Span>,
    /// Class of the request, by which its execution time is estimated.
    pub class: ClassId,
    /// Execution time on an instance of speed 1, if the caller knows better than the class does.
    pub execution: Option<Span>,
}

/// Returns the number of requests at a pipeline with which a request that has just arrived still meets its deadline
/// (mechanisms §1.7): `max(stages, ⌊(slo − latency) ÷ bottleneck⌋ + stages)`.
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
    fn a_single_place_belongs_to_another_owner_on_each_instance() {
        let owner = Share { index: 0, of: 2 };
        let parts: Vec<_> = (0..4).map(|ordinal| owner.part(1, ordinal)).collect();
        assert_eq!(parts, [1, 0, 1, 0]);
    }

    #[test]
    fn a_pipeline_takes_as_many_requests_as_can_be_in_time() {
        let ms = Span::from_millis;
        assert_eq!(serving_capacity(3, ms(100), ms(60), ms(20)), 5);
        assert_eq!(serving_capacity(3, ms(50), ms(60), ms(20)), 3);
        assert_eq!(serving_capacity(1, ms(50), ms(60), Span::ZERO), 1);
    }
}
