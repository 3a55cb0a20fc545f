//! An instance as its router knows it.

use super::bindings::{BindingId, Bindings};
use super::health::Health;
use super::settings::{Places, Settings, Shape, Share, at_speed};
use crate::Time;
use crate::profile::{ClassId, Profile};
use crate::{RequestId, Span};

/// An instance of a function. The number of one that has left, and at which no request is any more, is given anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(pub u32);

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) shape: Shape,
    pub(super) health: Health,
    /// It gets no more requests.
    pub(super) leaves: bool,
    /// How many requests it may have for this owner; `None`: any number. Kept by the router.
    pub(super) places: Option<u32>,
    /// Requests there, in the order in which they were bound.
    pub(super) bound: Vec<BindingId>,
    /// When the first of them is expected to be done.
    pub(super) free_at: Option<Time>,
    /// Apart, so that a look at all instances reads little memory.
    pub(super) profile: Box<Profile>,
    /// When it last got a request, by the router's count of them.
    pub(super) last_bound: u64,
    /// Latency, a mean that follows peaks at once, and when it was last touched.
    pub(super) peak: (Span, Time),
}

/// A place for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// When the request is expected to start there.
    pub(super) start: Time,
    /// It is taken still.
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

    /// It may get requests.
    pub(super) const fn is_usable(&self) -> bool {
        !self.leaves && self.health.ejected.is_none()
    }

    /// Requests there.
    pub(super) fn load(&self) -> u32 {
        u32::try_from(self.bound.len()).unwrap_or(u32::MAX)
    }

    /// How long a request runs here. `function`: what is known of all instances.
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

    /// How many of its places are this owner's; `None`: they are not limited.
    pub(super) fn part(&self, share: Share) -> Option<u32> {
        match self.shape.places {
            Places::Unlimited => None,
            Places::Fixed(places) => Some(share.part(places, self.shape.ordinal)),
        }
    }

    /// A place for one request more, if there is one: free now, or expected to be free within `hand_over`.
    pub(super) fn place(&self, now: Time, hand_over: Span) -> Option<Place> {
        let places = self.places.unwrap_or(u32::MAX);
        let slow = self.health.slow_places(now);
        let allowed =
            slow.map_or(places, |slow| slow.min(places)) + u32::from(self.shape.is_time_sharing);
        if self.load() < allowed {
            return Some(Place {
                start: now.after(hand_over),
                is_ahead: false,
            });
        }
        // One ahead at most; and none while the instance has yet to show that it serves.
        if self.load() > allowed || slow.is_some() || places == 0 {
            return None;
        }
        let free = self.free_at?;
        // Overdue by more than this the estimate is no guide: it may take as long again.
        let is_soon = free <= now.after(hand_over) && now <= free.after(hand_over);
        is_soon.then(|| Place {
            start: free.max(now.after(hand_over)),
            is_ahead: true,
        })
    }

    /// A request comes that is expected to be done at `end`.
    pub(super) fn bind(&mut self, id: BindingId, end: Time) {
        self.bound.push(id);
        self.free_at = Some(self.free_at.map_or(end, |free| free.min(end)));
    }

    /// A request has left, and the first that waits there has its place.
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

    /// A request took so long, waiting included.
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

/// A peak has decayed to 1/e after this time.
const PEAK_DECAY_SECS: f64 = 10.0;

/// What is known of a request while it waits, by its ticket's slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) id: RequestId,
    pub(super) class: ClassId,
    pub(super) deadline: Time,
    pub(super) has_objective: bool,
    pub(super) execution: Option<Span>,
}
