//! Which pods of a function to add and to remove (M4.10, M4.11, mechanisms §4.3).

use std::cmp::{Ordering, Reverse};
use std::fmt;

use super::profile::{Point, Points};
use super::{Action, AddReason, Rate, RemoveReason, Rule, Settings};
use crate::Time;
use crate::rectangles::InstanceId;
use crate::tokens::SHARE_WHOLE;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Starting {
        ready_at: Time,
    },
    Ready,
    /// The pod was ordered to leave.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct TrackedPod {
    instance: InstanceId,
    point: Point,
    /// Sequence number among the function's pods.
    number: u64,
    phase: Phase,
}

/// Start of a period with too many pods, and the largest load during it.
#[derive(Clone, Copy, Debug)]
struct Surplus {
    since: Time,
    peak: Rate,
}

/// Reason why a pod is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A pod of this id is already known.
    InstanceTaken,
}

/// Decides which pods of one function to add and to remove (M4.10, M4.11, mechanisms §4.3).
///
/// The gap is the load minus the throughput of the pods. It is filled with pods of the most efficient shape, and its
/// rest with the shape that serves just the rest. Starting pods count in full until they are overdue, so that nothing
/// is added twice. But no pod is removed because of a starting one, since that one does not serve yet.
///
/// Scaling up is immediate, scaling down is delayed: a pod is removed only if the load at every decision within
/// [`Settings::down_after`] could have been served without it. The least efficient pod goes first, among equally
/// efficient ones the latest; removal stops at the first pod that is still needed.
///
/// A decision is O(p + points) for p pods of the function. Nothing is allocated once warm.
#[derive(Clone, Debug)]
pub struct Scaler {
    settings: Settings,
    points: Points,
    /// Pods in order of removal: least efficient first, then the latest.
    pods: Vec<TrackedPod>,
    added: u64,
    surplus: Option<Surplus>,
}

impl Scaler {
    /// Creates the scaler of a function without pods.
    #[must_use]
    pub const fn new(settings: Settings, points: Points) -> Self {
        Self {
            settings,
            points,
            pods: Vec::new(),
            added: 0,
            surplus: None,
        }
    }

    /// Returns the shapes that pods may have.
    #[must_use]
    pub const fn points(&self) -> &Points {
        &self.points
    }

    /// Sets the shapes that pods may have, as after a new profile or objective. Existing pods keep their shapes.
    pub fn set_points(&mut self, points: Points) {
        self.points = points;
    }

    /// Records that a pod of this shape is being started and will be ready at `ready_at`.
    ///
    /// # Errors
    /// Returns [`Refusal::InstanceTaken`].
    pub fn add(
        &mut self,
        instance: InstanceId,
        point: Point,
        ready_at: Time,
    ) -> Result<(), Refusal> {
        if self.pods.iter().any(|pod| pod.instance == instance) {
            return Err(Refusal::InstanceTaken);
        }
        let pod = TrackedPod {
            instance,
            point,
            number: self.added,
            phase: Phase::Starting { ready_at },
        };
        self.added += 1;
        let at = (self.pods).partition_point(|other| leaves_before(other, &pod) == Ordering::Less);
        self.pods.insert(at, pod);
        Ok(())
    }

    /// Records that a starting pod serves. A pod that is unknown, or was ordered to leave, is ignored.
    pub fn ready(&mut self, instance: InstanceId) {
        if let Some(pod) = (self.pods.iter_mut()).find(|pod| pod.instance == instance)
            && matches!(pod.phase, Phase::Starting { .. })
        {
            pod.phase = Phase::Ready;
        }
    }

    /// Records that a pod is gone, whether or not it was ordered to leave.
    pub fn gone(&mut self, instance: InstanceId) {
        self.pods.retain(|pod| pod.instance != instance);
    }

    /// Returns the throughput of the pods that are ready, and that of the pods that are starting and not overdue.
    #[must_use]
    pub fn capacity(&self, now: Time) -> (Rate, Rate) {
        let (mut ready, mut starting) = (Rate::ZERO, Rate::ZERO);
        for pod in &self.pods {
            match pod.phase {
                Phase::Ready => ready = ready.plus(pod.point.throughput),
                Phase::Starting { ready_at }
                    if now.since(ready_at) <= self.settings.overdue_after =>
                {
                    starting = starting.plus(pod.point.throughput);
                }
                Phase::Starting { .. } | Phase::Leaving => {}
            }
        }
        (ready, starting)
    }

    /// Decides what to do about a load, and returns the time at which the next decision is due even if nothing changes.
    /// Pods to be added must be recorded by [`Scaler::add`] before the next decision.
    pub fn decide(&mut self, now: Time, load: Rate, actions: &mut Vec<Action>) -> Time {
        match self.settings.rule {
            Rule::Weir => self.decide_weir(now, load, actions),
            Rule::Paper => self.decide_paper(now, load, actions),
        }
    }

    fn decide_weir(&mut self, now: Time, load: Rate, actions: &mut Vec<Action>) -> Time {
        let (ready, starting) = self.capacity(now);
        let efficient = self.points.efficient().throughput;
        let parts = u64::from(self.settings.negligible.parts_per_million());
        let negligible = efficient.times(parts, u64::from(SHARE_WHOLE));
        let gap = load.less(ready.plus(starting));
        if gap > negligible {
            self.surplus = None;
            let fills = Rest::AbovePart(negligible);
            self.grow(gap, fills, actions);
            return self.next_overdue(now);
        }
        if ready.less(load) <= negligible {
            self.surplus = None;
            return self.next_overdue(now);
        }
        let surplus = self.surplus.get_or_insert(Surplus {
            since: now,
            peak: load,
        });
        surplus.peak = surplus.peak.max(load);
        if now.since(surplus.since) >= self.settings.down_after {
            let peak = surplus.peak;
            // Later decisions are based on the load from now on.
            *surplus = Surplus {
                since: now,
                peak: load,
            };
            self.shrink(ready.less(peak), actions);
        }
        let again = (self.surplus).map_or(Time::NEVER, |surplus| {
            surplus.since.after(self.settings.down_after)
        });
        again.min(self.next_overdue(now))
    }

    fn decide_paper(&mut self, _: Time, load: Rate, actions: &mut Vec<Action>) -> Time {
        let there = (self.pods.iter()).filter(|pod| pod.phase != Phase::Leaving);
        let capacity = there.fold(Rate::ZERO, |sum, pod| sum.plus(pod.point.throughput));
        if load >= capacity {
            self.grow(load.less(capacity), Rest::Always, actions);
            return Time::NEVER;
        }
        let mut left = capacity.less(load);
        for pod in &mut self.pods {
            if pod.phase == Phase::Leaving {
                continue;
            }
            if pod.point.throughput > left {
                break;
            }
            left = left.less(pod.point.throughput);
            leave(pod, actions);
        }
        Time::NEVER
    }

    /// Orders pods that fill a gap.
    fn grow(&self, gap: Rate, rest: Rest, actions: &mut Vec<Action>) {
        let efficient = *self.points.efficient();
        let serves = efficient.throughput.0.max(1);
        let there = u32::try_from(self.pods.len()).unwrap_or(u32::MAX);
        let mut may_add = self.settings.pods_max.saturating_sub(there);
        let wanted = gap.0 / serves;
        let count = u32::try_from(wanted).unwrap_or(u32::MAX).min(may_add);
        if count > 0 {
            may_add -= count;
            actions.push(Action::Add {
                point: efficient,
                count,
                reason: AddReason::Efficient,
            });
        }
        let left = gap.less(Rate(serves.saturating_mul(u64::from(count))));
        let wants_one = match rest {
            Rest::AbovePart(negligible) => left > negligible,
            Rest::Always => true,
        };
        if !wants_one {
            return;
        }
        // As printed, the last pod serves more than the rest. Such a shape exists, since the most efficient one does.
        let least = match rest {
            Rest::AbovePart(_) => left,
            Rest::Always => left.plus(Rate(1)),
        };
        match self.points.ideal(least) {
            Some(&point) if may_add > 0 => actions.push(Action::Add {
                point,
                count: 1,
                reason: AddReason::Rest,
            }),
            _ if left > Rate::ZERO => actions.push(Action::Shortfall { by: left }),
            _ => {}
        }
    }

    /// Removes surplus pods among those that are ready.
    fn shrink(&mut self, mut surplus: Rate, actions: &mut Vec<Action>) {
        let mut ready = (self.pods.iter())
            .filter(|pod| pod.phase == Phase::Ready)
            .count();
        let least = self.settings.pods_min.max(1) as usize;
        for pod in &mut self.pods {
            if pod.phase != Phase::Ready {
                continue;
            }
            if pod.point.throughput > surplus || ready <= least {
                break;
            }
            surplus = surplus.less(pod.point.throughput);
            ready -= 1;
            leave(pod, actions);
        }
    }

    /// Returns when the next starting pod becomes overdue.
    fn next_overdue(&self, now: Time) -> Time {
        (self.pods.iter())
            .filter_map(|pod| match pod.phase {
                Phase::Starting { ready_at } => {
                    let late = ready_at.after(self.settings.overdue_after);
                    Some(late.after(crate::Span(1)))
                }
                Phase::Ready | Phase::Leaving => None,
            })
            .filter(|&at| at > now)
            .min()
            .unwrap_or(Time::NEVER)
    }
}

/// Rests of a gap for which a pod is added.
#[derive(Clone, Copy, Debug)]
enum Rest {
    AbovePart(Rate),
    Always,
}

fn leave(pod: &mut TrackedPod, actions: &mut Vec<Action>) {
    pod.phase = Phase::Leaving;
    actions.push(Action::Remove {
        instance: pod.instance,
        reason: RemoveReason::Surplus,
    });
}

fn leaves_before(one: &TrackedPod, other: &TrackedPod) -> Ordering {
    (one.point.compare_efficiency(&other.point))
        .then(Reverse(one.number).cmp(&Reverse(other.number)))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InstanceTaken => f.write_str("instance is already known"),
        }
    }
}

impl std::error::Error for Refusal {}
