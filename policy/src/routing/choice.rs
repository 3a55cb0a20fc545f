//! The choice of an instance, for each rule.

use super::instance::{Instance, InstanceId, StartSlot, Waiter};
use super::router::Router;
use super::settings::{Places, Rule, serving_capacity};
use crate::{Span, Time};

/// Instance that a request may be bound to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) instance: InstanceId,
    /// Expected start of the request on the instance.
    pub(super) start: Time,
    /// Estimated execution time on the instance.
    pub(super) execution: Span,
    /// Whether the request would wait there for another one to finish.
    pub(super) is_ahead: bool,
}

impl Choice {
    pub(super) const fn end(&self) -> Time {
        self.start.after(self.execution)
    }
}

impl Router {
    /// Iterates over the instances that may get requests, in order of their ids.
    pub(super) fn usable(&self) -> impl Iterator<Item = (InstanceId, &Instance)> {
        let numbered = (0..).map(InstanceId).zip(&self.instances);
        numbered
            .filter_map(|(id, instance)| Some((id, instance.as_ref()?)))
            .filter(|(_, instance)| instance.is_usable())
    }

    /// Returns the place that the rule finds for a request, if any.
    pub(super) fn choose(&mut self, now: Time, waiter: &Waiter, random: u64) -> Option<Choice> {
        match self.settings.rule {
            Rule::LateBinding => self.earliest_end(now, waiter),
            Rule::Paper => self.paper(now, waiter),
            Rule::Knative => self.knative(now, waiter, random),
            Rule::RoundRobin => {
                let chosen = self.next_in_turn(|_| true)?;
                Some(self.at(chosen, now, waiter))
            }
            Rule::LeastRequest => self.least(now, waiter),
            Rule::PeakEwma => {
                let (a, b) = self.two_of(random)?;
                let cost = |id: InstanceId| {
                    let instance = self.instance(id);
                    let (latency, _) = instance.peak;
                    u128::from(latency.0.max(1)) * u128::from(instance.load() + 1)
                };
                let chosen = if cost(b) < cost(a) { b } else { a };
                Some(self.at(chosen, now, waiter))
            }
            Rule::Random => {
                let (chosen, _) = self.two_of(random)?;
                Some(self.at(chosen, now, waiter))
            }
        }
    }

    /// Returns the instance with a place on which the request is expected to end first, or the least loaded one where
    /// places are not limited.
    pub(super) fn earliest_end(&self, now: Time, waiter: &Waiter) -> Option<Choice> {
        let hand_over = self.hand_over.get();
        let mut best: Option<(Choice, (Time, u32, u64))> = None;
        for (id, instance) in self.usable() {
            if instance.places.is_none() {
                return self.least(now, waiter);
            }
            let Some(place) = instance.place(now, hand_over) else {
                continue;
            };
            let choice = self.choice(id, instance, place, waiter);
            // Among equals, the instance that has been idle for longest, so that the load is spread.
            let rank = (choice.end(), instance.shape.stages, instance.last_bound);
            if best.is_none_or(|(_, least)| rank < least) {
                best = Some((choice, rank));
            }
        }
        best.map(|(choice, _)| choice)
    }

    /// Returns whether a request would meet its deadline on an instance that has no place now.
    pub(super) fn meets_deadline_elsewhere(&self, now: Time, waiter: &Waiter) -> bool {
        let hand_over = self.hand_over.get();
        self.usable().any(|(_, instance)| {
            let Some(free) = instance.free_at else {
                return false;
            };
            let start = free.max(now).after(hand_over);
            // Cheapest check first: most instances are busy for longer than that.
            start <= waiter.deadline
                && instance.places.is_some_and(|places| places > 0)
                && instance.place(now, hand_over).is_none()
                && {
                    let class = waiter.class;
                    let execution = instance.estimate(class, waiter.execution, &self.profile);
                    start.after(execution) <= waiter.deadline
                }
        })
    }

    /// Chooses by mechanisms §1.7 as printed. `backlog` is the number of requests there × the time for which one of them
    /// occupies the instance.
    fn paper(&self, now: Time, waiter: &Waiter) -> Option<Choice> {
        let slo = self
            .settings
            .slo
            .unwrap_or_else(|| waiter.deadline.since(now));
        let mut in_time: Option<(Choice, (Span, u32, u32))> = None;
        let mut first: Option<(Choice, (Time, u32))> = None;
        let mut sharing: Option<Choice> = None;
        for (id, instance) in self.usable() {
            let latency = instance.estimate(waiter.class, waiter.execution, &self.profile);
            let stages = instance.shape.stages.max(1);
            let bottleneck = Span(latency.0 / u64::from(stages));
            let backlog = Span(bottleneck.0.saturating_mul(u64::from(instance.load())));
            let choice = Choice {
                instance: id,
                start: now.after(backlog),
                execution: latency,
                is_ahead: instance.load() > 0,
            };
            if instance.shape.is_time_sharing {
                sharing = sharing.or(Some(choice));
                continue;
            }
            let capacity = serving_capacity(stages, slo, latency, bottleneck);
            let rank = (latency, stages, id.0);
            if choice.end() <= waiter.deadline
                && instance.load() < capacity
                && in_time.is_none_or(|(_, least)| rank < least)
            {
                in_time = Some((choice, rank));
            }
            let rank = (choice.end(), id.0);
            if first.is_none_or(|(_, least)| rank < least) {
                first = Some((choice, rank));
            }
        }
        let in_time = in_time.map(|(choice, _)| choice);
        in_time
            .or(sharing)
            .or_else(|| first.map(|(choice, _)| choice))
    }

    fn knative(&mut self, now: Time, waiter: &Waiter, random: u64) -> Option<Choice> {
        let (_, any) = self.usable().next()?;
        let places = match any.shape.places {
            Places::Unlimited => {
                let (a, b) = self.two_of(random)?;
                let is_less = self.instance(b).load() < self.instance(a).load();
                return Some(self.at(if is_less { b } else { a }, now, waiter));
            }
            Places::Fixed(places) => places,
        };
        let chosen = if places <= KNATIVE_FIRST_PLACES_MAX {
            let mut free = self.usable().filter(|&(_, it)| has_place(it));
            free.next()?.0
        } else {
            self.next_in_turn(has_place)?
        };
        Some(self.at(chosen, now, waiter))
    }

    /// Returns whether the rule finds a place for a request, whichever request it is.
    pub(super) fn has_any_place(&self, now: Time) -> bool {
        let hand_over = self.hand_over.get();
        let rule = self.settings.rule;
        self.usable().any(|(_, instance)| match rule {
            Rule::LateBinding => {
                instance.places.is_none() || instance.place(now, hand_over).is_some()
            }
            Rule::Knative => has_place(instance),
            _ => true,
        })
    }

    /// Chooses the instance with the fewest requests, among equals the one that has been idle for longest.
    fn least(&self, now: Time, waiter: &Waiter) -> Option<Choice> {
        let load = |instance: &Instance| match instance.health.slow_places(now) {
            // An instance that has not proved yet that it serves gets half as many requests as others.
            Some(_) => instance.load().saturating_add(1).saturating_mul(2),
            None => instance.load().saturating_add(1),
        };
        let least = self.usable().min_by_key(|(_, instance)| {
            let stages = instance.shape.stages;
            (load(instance), stages, instance.last_bound)
        });
        Some(self.at(least?.0, now, waiter))
    }

    fn next_in_turn(&mut self, fits: impl Fn(&Instance) -> bool) -> Option<InstanceId> {
        let after = self
            .usable()
            .find(|&(id, it)| id.0 >= self.turn && fits(it));
        let (id, _) = after.or_else(|| self.usable().find(|&(_, it)| fits(it)))?;
        self.turn = id.0 + 1;
        Some(id)
    }

    /// Returns two random usable instances, which differ if there is more than one.
    fn two_of(&self, random: u64) -> Option<(InstanceId, InstanceId)> {
        let count = self.usable().count() as u64;
        if count == 0 {
            return None;
        }
        let first = random % count;
        let second = (first + 1 + (random >> 32) % (count - 1).max(1)) % count;
        let at = |n: u64| {
            self.usable()
                .nth(usize::try_from(n).ok()?)
                .map(|(id, _)| id)
        };
        Some((at(first)?, at(second)?))
    }

    /// Returns this instance as the choice, whether or not it has a place.
    fn at(&self, id: InstanceId, now: Time, waiter: &Waiter) -> Choice {
        let instance = self.instance(id);
        let places = instance.places.unwrap_or(u32::MAX);
        let is_ahead = instance.load() >= places;
        let start = if is_ahead {
            instance.free_at.unwrap_or(now)
        } else {
            now
        };
        let place = StartSlot {
            start: start.max(now).after(self.hand_over.get()),
            is_ahead,
        };
        self.choice(id, instance, place, waiter)
    }

    fn choice(
        &self,
        id: InstanceId,
        instance: &Instance,
        place: StartSlot,
        waiter: &Waiter,
    ) -> Choice {
        Choice {
            instance: id,
            start: place.start,
            execution: instance.estimate(waiter.class, waiter.execution, &self.profile),
            is_ahead: place.is_ahead,
        }
    }
}

/// Largest number of places per instance with which Knative takes the first instance that has a place; above it goes
/// round.
const KNATIVE_FIRST_PLACES_MAX: u32 = 3;

/// Returns whether an instance has a place by Knative's rule, which has no places ahead of time.
fn has_place(instance: &Instance) -> bool {
    instance
        .places
        .is_none_or(|places| instance.load() < places)
}
