//! An instance, as its router knows it.

use super::bindings::{BindingId, Bindings};
use super::health::Health;
use super::settings::{Places, Settings, Shape, Share, at_speed};
use crate::Time;
use crate::profile::{ClassId, Profile};
use crate::{RequestId, Span};
pub use units::InstanceId;

/// State of one instance; see the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) shape: Shape,
    pub(super) health: Health,
    /// Whether the instance is leaving and gets no more requests.
    pub(super) leaves: bool,
    /// Number of requests that the instance may have for this owner; `None` means any number. Maintained by the router.
    pub(super) places: Option<u32>,
    /// Requests at the instance, in the order in which they were bound.
    pub(super) bound: Vec<BindingId>,
    /// Expected end of the first request to finish.
    pub(super) free_at: Option<Time>,
    /// Boxed so that a scan over all instances reads little memory.
    pub(super) profile: Box<Profile>,
    /// Value of the router's counter of bound requests when this instance last got one.
    pub(super) last_bound: u64,
    /// Mean latency, which follows peaks at once, and the time of its last update.
    pub(super) peak: (Span, Time),
}

/// Slot for a request on an instance, free now or soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StartSlot {
    /// Expected start of the request.
    pub(super) start: Time,
    /// Whether another request still occupies the slot.
    pub(super) is_ahead: bool,
}

impl Instance {
    pub(super) fn new(shape: Shape, settings: &Settings, now: Time) -> Self {
        Self {
            shape,
            health: Health::new(now),
            leaves: false,
            places: None,
            bound: Vec::new(),
            free_at: None,
            profile: Box::new(Profile::new(settings.classes, settings.execution)),
            last_bound: 0,
            peak: (Span::ZERO, now),
        }
    }

    /// Returns whether the instance may get requests.
    pub(super) const fn is_usable(&self) -> bool {
        !self.leaves && self.health.ejected.is_none()
    }

    /// Returns the number of requests at the instance.
    pub(super) fn load(&self) -> u32 {
        u32::try_from(self.bound.len()).unwrap_or(u32::MAX)
    }

    /// Returns the estimated execution time of a request on this instance. `function` is the profile over all
    /// instances.
    pub(super) fn estimate(
        &self,
        class: ClassId,
        stated: Option<Span>,
        function: &Profile,
    ) -> Span {
        if let Some(stated) = stated {
            return at_speed(stated, self.shape.speed_ppm);
        }
        self.profile
            .estimate_of_class(class)
            .unwrap_or_else(|| function.estimate(class))
    }

    /// Returns this owner's part of the instance's places, or `None` if they are not limited.
    pub(super) fn part(&self, share: Share) -> Option<u32> {
        match self.shape.places {
            Places::Unlimited => None,
            Places::Fixed(places) => Some(share.part(places, self.shape.ordinal)),
        }
    }

    /// Returns a place for another request: one that is free now, or is expected to be free within `hand_over`.
    pub(super) fn place(&self, now: Time, hand_over: Span) -> Option<StartSlot> {
        let places = self.places.unwrap_or(u32::MAX);
        let slow = self.health.slow_places(now);
        let allowed =
            slow.map_or(places, |slow| slow.min(places)) + u32::from(self.shape.is_time_sharing);
        if self.load() < allowed {
            return Some(StartSlot {
                start: now.after(hand_over),
                is_ahead: false,
            });
        }
        // At most one request is bound ahead, and none while the instance has not proved yet that it serves.
        if self.load() > allowed || slow.is_some() || places == 0 {
            return None;
        }
        let free = self.free_at?;
        // If the running request is overdue by more than this, the estimate is no guide: it may take as long again.
        let is_soon = free <= now.after(hand_over) && now <= free.after(hand_over);
        is_soon.then(|| StartSlot {
            start: free.max(now.after(hand_over)),
            is_ahead: true,
        })
    }

    /// Adds a request that is expected to end at `end`.
    pub(super) fn bind(&mut self, id: BindingId, end: Time) {
        self.bound.push(id);
        self.free_at = Some(self.free_at.map_or(end, |free| free.min(end)));
    }

    /// Removes a request; the first request that waits on the instance gets its place.
    pub(super) fn unbind(&mut self, now: Time, id: BindingId, bindings: &mut Bindings) {
        if let Some(at) = self.bound.iter().position(|&other| other == id) {
            self.bound.remove(at);
        }
        let mut is_given = false;
        self.free_at = None;
        for &id in &self.bound {
            let Some(bound) = bindings.get_mut(id) else {
                continue;
            };
            if bound.started.is_none() && !is_given {
                is_given = true;
                bound.started = Some(now);
                bound.end = now.after(bound.execution);
            }
            self.free_at = Some(self.free_at.map_or(bound.end, |free| free.min(bound.end)));
        }
    }

    /// Records the latency of a request, waiting included.
    pub(super) fn note_latency(&mut self, now: Time, latency: Span) {
        let (mean, touched) = self.peak;
        let mean = if latency > mean {
            latency
        } else {
            let weight = libm::exp(-now.since(touched).as_secs_f64() / PEAK_DECAY_SECS);
            let blend = weight * mean.as_secs_f64() + (1.0 - weight) * latency.as_secs_f64();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "between two spans"
            )]
            Span((blend * 1e9) as u64)
        };
        self.peak = (mean, now);
    }
}

/// Time in seconds after which a peak has decayed to 1/e.
const PEAK_DECAY_SECS: f64 = 10.0;

/// Properties of a waiting request, stored by its ticket's slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: RequestId,
    pub(super) class: ClassId,
    pub(super) deadline: Time,
    pub(super) has_objective: bool,
    pub(super) execution: Option<Span>,
}
