//! Which pods of a function to add and to remove (M4.10, M4.11, papers 4.3).

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
    /// Told to go.
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    instance: InstanceId,
    point: Point,
    /// Counts the pods of this function.
    number: u64,
    phase: Phase,
}

/// For how long there have been too many pods, and the most that was to be served meanwhile.
#[derive(Clone, Copy, Debug)]
struct Surplus {
    since: Time,
    peak: Rate,
}

/// Why a pod is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is known already.
    InstanceTaken,
}

/// Decides which pods of one function to add and to remove (M4.10, M4.11, papers 4.3).
///
/// The gap is the load less what the pods serve. A gap is filled with pods of the most efficient shape, and its
/// rest with the shape that just serves it. Pods that are starting count in full until they are overdue, so that
/// nothing is added twice; but for none of them does another pod go, since they do not serve yet.
///
/// Up at once, down late: a pod goes only when without it the load at every decision of
/// [`Settings::down_after`] could have been served. The least efficient goes first, of those that are as
/// efficient the latest to come; at the first that is still needed it ends.
///
/// A decision is O(p + points) for p pods of the function; nothing is allocated once warm.
#[derive(Clone, Debug)]
pub struct Scaler {
    settings: Settings,
    points: Points,
    /// Least efficient first, then the latest.
    pods: Vec<Held>,
    added: u64,
    surplus: Option<Surplus>,
}

impl Scaler {
    /// A function without pods.
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

    /// The shapes that pods may have.
    #[must_use]
    pub const fn points(&self) -> &Points {
        &self.points
    }

    /// Other shapes from now on, as after another profile or objective. Pods that are there stay what they are.
    pub fn set_points(&mut self, points: Points) {
        self.points = points;
    }

    /// A pod of this shape is being started, and will be ready by then.
    ///
    /// # Errors
    /// [`Refusal::InstanceTaken`].
    pub fn add(
        &mut self,
        instance: InstanceId,
        point: Point,
        ready_at: Time,
    ) -> Result<(), Refusal> {
        if self.pods.iter().any(|held| held.instance == instance) {
            return Err(Refusal::InstanceTaken);
        }
        let held = Held {
            instance,
            point,
            number: self.added,
            phase: Phase::Starting { ready_at },
        };
        self.added += 1;
        let at = (self.pods).partition_point(|other| leaves_before(other, &held) == Ordering::Less);
        self.pods.insert(at, held);
        Ok(())
    }

    /// A starting pod serves. One that is not known, or was told to go, is left alone.
    pub fn ready(&mut self, instance: InstanceId) {
        if let Some(held) = (self.pods.iter_mut()).find(|held| held.instance == instance)
            && matches!(held.phase, Phase::Starting { .. })
        {
            held.phase = Phase::Ready;
        }
    }

    /// A pod has gone, told to or not.
    pub fn gone(&mut self, instance: InstanceId) {
        self.pods.retain(|held| held.instance != instance);
    }

    /// What pods serve that are ready, and what those will that are starting and not overdue.
    #[must_use]
    pub fn capacity(&self, now: Time) -> (Rate, Rate) {
        let (mut ready, mut starting) = (Rate::ZERO, Rate::ZERO);
        for held in &self.pods {
            match held.phase {
                Phase::Ready => ready = ready.plus(held.point.throughput),
                Phase::Starting { ready_at }
                    if now.since(ready_at) <= self.settings.overdue_after =>
                {
                    starting = starting.plus(held.point.throughput);
                }
                Phase::Starting { .. } | Phase::Leaving => {}
            }
        }
        (ready, starting)
    }

    /// Decides what to do about a load. What is to be added is told by [`Scaler::add`] before the next decision.
    /// Answers when it wants to be asked again even if nothing changes.
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
            // What comes next is judged by what comes next.
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
        let there = (self.pods.iter()).filter(|held| held.phase != Phase::Leaving);
        let capacity = there.fold(Rate::ZERO, |sum, held| sum.plus(held.point.throughput));
        if load >= capacity {
            self.grow(load.less(capacity), Rest::Always, actions);
            return Time::NEVER;
        }
        let mut left = capacity.less(load);
        for held in &mut self.pods {
            if held.phase == Phase::Leaving {
                continue;
            }
            if held.point.throughput > left {
                break;
            }
            left = left.less(held.point.throughput);
            leave(held, actions);
        }
        Time::NEVER
    }

    /// Fills a gap.
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
        // As printed it serves more than the rest; there is one, for the most efficient does.
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
            _ if left > Rate::ZERO => actions.push(Action::Short { by: left }),
            _ => {}
        }
    }

    /// Removes what is too much of pods that are ready.
    fn shrink(&mut self, mut surplus: Rate, actions: &mut Vec<Action>) {
        let mut ready = (self.pods.iter())
            .filter(|held| held.phase == Phase::Ready)
            .count();
        let least = self.settings.pods_min.max(1) as usize;
        for held in &mut self.pods {
            if held.phase != Phase::Ready {
                continue;
            }
            if held.point.throughput > surplus || ready <= least {
                break;
            }
            surplus = surplus.less(held.point.throughput);
            ready -= 1;
            leave(held, actions);
        }
    }

    /// When the next starting pod will be overdue.
    fn next_overdue(&self, now: Time) -> Time {
        (self.pods.iter())
            .filter_map(|held| match held.phase {
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

/// Which rests get a pod.
#[derive(Clone, Copy, Debug)]
enum Rest {
    AbovePart(Rate),
    Always,
}

fn leave(held: &mut Held, actions: &mut Vec<Action>) {
    held.phase = Phase::Leaving;
    actions.push(Action::Remove {
        instance: held.instance,
        reason: RemoveReason::Surplus,
    });
}

fn leaves_before(one: &Held, other: &Held) -> Ordering {
    (one.point.compare_efficiency(&other.point))
        .then(Reverse(one.number).cmp(&Reverse(other.number)))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InstanceTaken => f.write_str("the instance is known already"),
        }
    }
}

impl std::error::Error for Refusal {}
