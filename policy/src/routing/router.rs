//! The router of one function.

use super::action::{Action, Decision, EjectReason, RefuseReason, RouteReason};
use super::bindings::{Binding, BindingId, Bindings};
use super::choice::Choice;
use super::instance::{Instance, InstanceId, Waiter};
use super::settings::{Request, Rule, Settings, Shape, Share, at_speed};
use crate::gate::{Arrival, DispatchReason, Order};
use crate::line::Line;
use crate::profile::{ClassId, Profile};
use crate::queue::{Departure, SLACK_BOUNDS, Ticket};
use crate::{RequestId, Span, Time};

/// Number of the most urgent requests that are examined for one that meets its deadline on an instance with a place.
const SCAN_MAX: usize = 8;
/// Number of requests for which the fastest execution time of a class is cached: examining all instances for each
/// request would be the larger part of a decision.
const FASTEST_KEPT: u8 = 63;
/// Weight of a sample in the mean time of a hand-over: 1 / 2^SHIFT.
const HAND_OVER_SHIFT: u32 = 3;
/// Longest hand-over that counts; longer ones are accidents and count as this.
const HAND_OVER_MAX: Span = Span::from_millis(100);

/// End of a request's stay at an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The request was answered.
    Answered {
        /// Whether the request's execution time is representative of other requests.
        learn: bool,
    },
    /// The connection broke, or the answer could not be read. A probe shows whether the instance is alive.
    Broken,
    /// The instance accepted no connection.
    NotConnected,
    /// The client disconnected before the answer.
    Cancelled,
}

/// Mean of the measured hand-over times, if any, and the default.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandOver(Option<Span>, Span);

impl HandOver {
    pub(super) fn get(self) -> Span {
        self.0.unwrap_or(self.1)
    }

    fn observe(&mut self, sample: Span) {
        let sample = sample.min(HAND_OVER_MAX);
        self.0 = Some(match self.0 {
            None => sample,
            Some(mean) if sample >= mean => Span(mean.0 + ((sample.0 - mean.0) >> HAND_OVER_SHIFT)),
            Some(mean) => Span(mean.0 - ((mean.0 - sample.0) >> HAND_OVER_SHIFT)),
        });
    }
}

/// Router of one function; see the [module](super).
#[derive(Clone, Debug)]
pub struct Router {
    pub(super) settings: Settings,
    line: Line,
    /// Properties of the waiting requests, by their ticket's slot.
    waiters: Vec<Waiter>,
    pub(super) instances: Vec<Option<Instance>>,
    free: Vec<u32>,
    pub(super) bindings: Bindings,
    pub(super) profile: Profile,
    pub(super) hand_over: HandOver,
    share: Share,
    /// Earliest return of an instance that accepted no connection.
    next_return: Option<Time>,
    /// Cached execution time on the fastest instance by class, and the number of requests for which it is still valid.
    fastest: Vec<(Span, u8)>,
    /// Highest stated speed of an instance, in millionths.
    speed_max_ppm: u32,
    /// Number of instances that may get requests.
    ready: usize,
    /// Number of requests that have been bound.
    count: u64,
    /// Id of the next instance in turn, for the rules that go round.
    pub(super) turn: u32,
    urgent: Vec<Ticket>,
}

impl Router {
    /// Creates a router without instances.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let order = match settings.rule {
            Rule::Knative => Order::Arrival,
            _ => settings.order,
        };
        Self {
            line: Line::new(settings.waiting_max, order, settings.late),
            waiters: Vec::new(),
            instances: Vec::new(),
            free: Vec::new(),
            bindings: Bindings::default(),
            profile: Profile::new(settings.classes, settings.execution),
            hand_over: HandOver(None, settings.hand_over),
            share: Share::WHOLE,
            next_return: None,
            fastest: Vec::new(),
            speed_max_ppm: 1_000_000,
            ready: 0,
            count: 0,
            turn: 0,
            urgent: Vec::new(),
            settings,
        }
    }

    /// Returns the number of waiting requests.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Returns the numbers of waiting requests by the time from `now` to their latest start times, in the buckets of
    /// [`DeadlineQueue::by_slack`](crate::queue::DeadlineQueue::by_slack).
    #[must_use]
    pub fn waiting_by_slack(&self, now: Time) -> [usize; SLACK_BOUNDS.len() + 2] {
        self.line.by_slack(now)
    }

    /// Returns the number of requests that may wait. A burst that waits for the first instance is held as far as memory
    /// allows, because it is not known yet how many instances it will get.
    #[must_use]
    pub fn waiting_max(&self) -> usize {
        let instances = self.ready;
        if instances == 0 {
            return self.settings.waiting_max;
        }
        let depth = self.settings.depth.saturating_mul(instances);
        let least = self.settings.waiting_min.min(self.settings.waiting_max);
        depth.clamp(least, self.settings.waiting_max)
    }

    /// Returns the number of instances that may get requests.
    #[must_use]
    pub const fn ready(&self) -> usize {
        self.ready
    }

    /// Returns the number of ejected instances.
    #[must_use]
    pub fn ejected(&self) -> usize {
        (0..)
            .map(InstanceId)
            .take(self.instances.len())
            .filter(|id| self.is_ejected(*id))
            .count()
    }

    /// Returns whether an instance is ejected; `false` for an unknown one.
    #[must_use]
    pub fn is_ejected(&self, id: InstanceId) -> bool {
        let instance = self.instances.get(id.0 as usize).and_then(Option::as_ref);
        instance.is_some_and(|it| !it.leaves && it.health.ejected.is_some())
    }

    /// Returns the number of requests at an instance; 0 for an unknown one.
    #[must_use]
    pub fn load_of(&self, id: InstanceId) -> u32 {
        let instance = self.instances.get(id.0 as usize).and_then(Option::as_ref);
        instance.map_or(0, Instance::load)
    }

    /// Returns the instance at which a request is, or `None` if it has left.
    #[must_use]
    pub fn instance_of(&self, binding: BindingId) -> Option<InstanceId> {
        self.bindings.get(binding).map(|bound| bound.instance)
    }

    /// Returns the estimated execution time of a request of this class, from the measurements on all instances: the mean
    /// of the class, or of all classes until it has [`TRUSTED_SAMPLES`](crate::profile::TRUSTED_SAMPLES), or
    /// [`Settings::execution`] before the first measurement.
    #[must_use]
    pub fn estimate(&self, class: ClassId) -> Span {
        self.profile.estimate(class)
    }

    /// Returns the time after which a refused request is worth retrying: the time until the requests before it are
    /// done.
    #[must_use]
    pub fn retry_after(&self, class: ClassId) -> Span {
        let running: u32 = self.usable().map(|(_, instance)| instance.load()).sum();
        let ahead = self.waiting() as u64 + u64::from(running);
        let places: u64 = self
            .usable()
            .map(|(_, instance)| u64::from(instance.places.unwrap_or(1)))
            .sum();
        Span(self.estimate(class).0.saturating_mul(ahead) / places.max(1))
    }

    /// Returns the mean measured time from the choice of an instance to the start of a request there.
    #[must_use]
    pub fn hand_over(&self) -> Span {
        self.hand_over.get()
    }

    /// Records the duration of a hand-over.
    pub fn observe_hand_over(&mut self, took: Span) {
        self.hand_over.observe(took);
    }

    /// Adds an instance that is ready, and returns its id.
    pub fn add(&mut self, now: Time, shape: Shape, actions: &mut Vec<Action>) -> InstanceId {
        let was_empty = self.ready() == 0;
        let instance = Instance::new(shape, &self.settings, now);
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.instances.push(None);
                u32::try_from(self.instances.len() - 1).expect("fewer instances than 2^32")
            }
        };
        self.instances[id as usize] = Some(instance);
        self.instances_changed();
        self.eject_kept(now, actions);
        if was_empty {
            self.rekey(now);
        }
        self.wake(now, actions);
        InstanceId(id)
    }

    /// Removes an instance: it gets no more requests, and those that are there end there.
    pub fn remove(&mut self, now: Time, id: InstanceId, actions: &mut Vec<Action>) {
        if let Some(Some(instance)) = self.instances.get_mut(id.0 as usize) {
            instance.leaves = true;
        }
        self.forget_if_left(id);
        self.instances_changed();
        if self.ready() == 0 {
            self.rekey(now);
        }
        self.wake(now, actions);
    }

    /// Sets this owner's share of all places.
    pub fn set_share(&mut self, now: Time, share: Share, actions: &mut Vec<Action>) {
        self.share = share;
        self.instances_changed();
        self.wake(now, actions);
    }

    /// Handles the arrival of a request and returns its immediate outcome. `random` is any number, for rules that draw.
    /// Other requests may lose their place to it; they are appended to `actions`.
    pub fn arrive(
        &mut self,
        now: Time,
        request: &Request,
        random: u64,
        actions: &mut Vec<Action>,
    ) -> Decision {
        self.wake(now, actions);
        let waiter = Waiter::of(request);
        // The waiting requests have no use for a free place, or there is none.
        if !self.settings.rule.waits() || self.line.is_empty() {
            let reason = if self.settings.rule.waits() {
                RouteReason::Free
            } else {
                RouteReason::Arrival
            };
            if let Some(choice) = self
                .choose(now, &waiter, random)
                .filter(|choice| !self.is_better_elsewhere(now, &waiter, choice))
            {
                self.line.pass();
                let binding = self.bind(now, &waiter, &choice);
                return Decision::Bound {
                    binding,
                    instance: choice.instance,
                    reason,
                };
            }
        }
        let mut arrival = self.arrival(request, &waiter);
        // A request held for a cold start is shed only for its deadline, and the first one not at all.
        arrival.kept = self.ready() == 0 && self.line.is_empty();
        let joined = self.line.join(now, arrival, false, refuse(actions));
        match joined {
            Ok(ticket) => {
                self.remember(ticket, waiter);
                self.dispatch(now, actions);
                Decision::Waits(ticket)
            }
            Err(reason) => Decision::Refused(reason),
        }
    }

    /// Handles the return of a request that was bound and of which no byte was written. It keeps its order, regardless
    /// of the bound on waiting requests.
    pub fn arrive_again(
        &mut self,
        now: Time,
        request: &Request,
        random: u64,
        actions: &mut Vec<Action>,
    ) -> Decision {
        self.wake(now, actions);
        let waiter = Waiter::of(request);
        if !self.settings.rule.waits()
            && let Some(choice) = self.choose(now, &waiter, random)
        {
            let binding = self.bind(now, &waiter, &choice);
            return Decision::Bound {
                binding,
                instance: choice.instance,
                reason: RouteReason::Arrival,
            };
        }
        let arrival = self.arrival(request, &waiter);
        let ticket = self.line.join_again(now, arrival);
        self.remember(ticket, waiter);
        self.dispatch(now, actions);
        Decision::Waits(ticket)
    }

    /// Removes a waiting request and returns whether it still waited.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.line.cancel(ticket)
    }

    /// Records the end of a request's stay at an instance. Its place goes to the next request.
    pub fn complete(
        &mut self,
        now: Time,
        binding: BindingId,
        completion: Completion,
        actions: &mut Vec<Action>,
    ) {
        let Some(bound) = self.bindings.remove(binding) else {
            return;
        };
        let id = bound.instance;
        let Some(Some(instance)) = self.instances.get_mut(id.0 as usize) else {
            return;
        };
        instance.unbind(now, binding, &mut self.bindings);
        let mut must_eject = false;
        match completion {
            Completion::Answered { learn } => {
                instance.health.answered();
                instance.note_latency(now, now.since(bound.at));
                if let Some(started) = bound.started.filter(|_| learn) {
                    let execution = now.since(started);
                    instance.profile.observe(bound.class, execution);
                    self.profile.observe(bound.class, execution);
                }
            }
            Completion::NotConnected => must_eject = instance.health.failed_to_connect(),
            Completion::Broken | Completion::Cancelled => {}
        }
        if must_eject {
            self.eject(now, id, EjectReason::Connect, actions);
        }
        self.forget_if_left(id);
        self.wake(now, actions);
    }

    /// Records whether a probe was answered in time. An answer ends an ejection for a missed probe.
    pub fn probed(
        &mut self,
        now: Time,
        id: InstanceId,
        is_answered: bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(Some(instance)) = self.instances.get_mut(id.0 as usize) else {
            return;
        };
        if instance.leaves {
            return;
        }
        if !is_answered {
            instance.health.missed();
            self.eject(now, id, EjectReason::Probe, actions);
            // The instance may have been ejected before, for another reason.
            self.instances_changed();
        } else if matches!(instance.health.ejected, Some((EjectReason::Probe, _))) {
            instance.health.come_back(now);
            instance.health.passed();
            actions.push(Action::Return { instance: id });
            self.instances_changed();
            self.eject_kept(now, actions);
        } else if instance.health.ejected.is_none() {
            instance.health.passed();
        }
        self.wake(now, actions);
    }

    /// Advances the time: sheds requests that have become late, takes back instances with an ejection that is over, and
    /// fills places.
    pub fn wake(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.line.wake(now, refuse(actions));
        if self.next_return.is_some_and(|at| at <= now) {
            self.take_back(now, actions);
        }
        self.dispatch(now, actions);
    }

    /// Takes back the instances with an ejection that is over. An instance that misses probes returns when it answers
    /// one.
    fn take_back(&mut self, now: Time, actions: &mut Vec<Action>) {
        for (number, instance) in (0..).zip(&mut self.instances) {
            let Some(instance) = instance else { continue };
            if let Some((EjectReason::Connect, until)) = instance.health.ejected
                && !instance.leaves
                && until <= now
            {
                instance.health.come_back(now);
                let instance = InstanceId(number);
                actions.push(Action::Return { instance });
            }
        }
        self.instances_changed();
        self.eject_kept(now, actions);
    }

    /// Returns when [`Router::wake`] next has something to do, unless an event comes before; never earlier than `now`.
    #[must_use]
    pub fn next_wake(&self, now: Time) -> Option<Time> {
        let is_waited_for = !self.line.is_empty() && self.settings.rule == Rule::LateBinding;
        let soon = is_waited_for.then(|| self.next_place(now)).flatten();
        let late = self.line.next_wake();
        let next = [soon, late, self.next_return].into_iter().flatten().min();
        next.map(|at| at.max(now))
    }

    /// Returns when an instance next has another place, unless an event comes before.
    fn next_place(&self, now: Time) -> Option<Time> {
        let hand_over = self.hand_over.get();
        let each = self.usable().flat_map(|(_, instance)| {
            let free = instance.free_at.map(|free| free.before(hand_over));
            let slow = instance.health.slow_until().filter(|_| free.is_some());
            [free, slow]
        });
        each.flatten().filter(|&at| at > now).min()
    }

    pub(super) fn instance(&self, id: InstanceId) -> &Instance {
        let instance = self.instances.get(id.0 as usize).and_then(Option::as_ref);
        instance.expect("a usable instance exists")
    }

    /// Fills places with waiting requests.
    fn dispatch(&mut self, now: Time, actions: &mut Vec<Action>) {
        while !self.line.is_empty() {
            let Some((left, reason, choice)) = self.next(now) else {
                return;
            };
            let waiter = self.waiters[left.ticket.slot()];
            let binding = self.bind(now, &waiter, &choice);
            actions.push(Action::Bind {
                ticket: left.ticket,
                id: waiter.id,
                binding,
                instance: choice.instance,
                reason: match reason {
                    DispatchReason::Free | DispatchReason::Turn => RouteReason::Turn,
                    DispatchReason::LateTurn => RouteReason::LateTurn,
                    DispatchReason::Aging => RouteReason::Aging,
                },
            });
        }
    }

    /// Takes the next request for which there is a place off the line.
    fn next(&mut self, now: Time) -> Option<(Departure, DispatchReason, Choice)> {
        // A place for any request; the loop below decides for which one.
        if !self.has_any_place(now) {
            return None;
        }
        if let Some((left, reason)) = self.line.next_aged(now) {
            return self.placed(now, left, reason);
        }
        let mut urgent = std::mem::take(&mut self.urgent);
        self.line.most_urgent(now, SCAN_MAX, &mut urgent);
        let mut found = None;
        for &ticket in &urgent {
            let waiter = self.waiters[ticket.slot()];
            let Some(choice) = self.choose(now, &waiter, 0) else {
                break;
            };
            if !self.is_better_elsewhere(now, &waiter, &choice) {
                found = Some((ticket, choice));
                break;
            }
        }
        self.urgent = urgent;
        if let Some((ticket, choice)) = found {
            let (left, reason) = self.line.take(ticket)?;
            return Some((left, reason, choice));
        }
        let (left, reason) = self.line.next_late(now)?;
        self.placed(now, left, reason)
    }

    fn placed(
        &mut self,
        now: Time,
        left: Departure,
        reason: DispatchReason,
    ) -> Option<(Departure, DispatchReason, Choice)> {
        let waiter = self.waiters[left.ticket.slot()];
        let choice = self.choose(now, &waiter, 0);
        let choice = choice.expect("a place exists, and places are the same for all requests");
        Some((left, reason, choice))
    }

    /// Returns whether a request that would be late on this choice would be in time on an instance that will soon have
    /// a place.
    fn is_better_elsewhere(&self, now: Time, waiter: &Waiter, choice: &Choice) -> bool {
        self.settings.rule == Rule::LateBinding
            && waiter.has_objective
            && choice.end() > waiter.deadline
            && self.meets_deadline_elsewhere(now, waiter)
    }

    fn bind(&mut self, now: Time, waiter: &Waiter, choice: &Choice) -> BindingId {
        self.count += 1;
        let binding = self.bindings.insert(Binding {
            instance: choice.instance,
            class: waiter.class,
            at: now,
            started: (!choice.is_ahead).then_some(choice.start),
            execution: choice.execution,
            end: choice.end(),
        });
        if let Some(Some(instance)) = self.instances.get_mut(choice.instance.0 as usize) {
            instance.bind(binding, choice.end());
            instance.last_bound = self.count;
        }
        binding
    }

    fn eject(&mut self, now: Time, id: InstanceId, reason: EjectReason, actions: &mut Vec<Action>) {
        let others = self.usable().any(|(other, _)| other != id);
        let Some(Some(instance)) = self.instances.get_mut(id.0 as usize) else {
            return;
        };
        // The last instance is kept: a request fails there, but would wait in vain without it.
        if !others || !instance.is_usable() {
            return;
        }
        let until = instance.health.eject(now, reason);
        actions.push(Action::Eject {
            instance: id,
            reason,
            until,
        });
        self.instances_changed();
    }

    /// Ejects an instance that missed a probe and was kept as the last one, now that there is another.
    fn eject_kept(&mut self, now: Time, actions: &mut Vec<Action>) {
        let mut usable = self.usable();
        let kept = usable.find(|(_, instance)| instance.health.has_missed);
        let kept = kept.map(|(id, _)| id);
        drop(usable);
        if let Some(id) = kept {
            self.eject(now, id, EjectReason::Probe, actions);
        }
    }

    /// Recomputes everything that depends on the instances, after one was added, removed, ejected, or returned.
    fn instances_changed(&mut self) {
        self.ready = self.usable().count();
        let depth = self.waiting_max();
        self.line.set_depth(depth);
        let has_none =
            |(_, instance): (InstanceId, &Instance)| instance.part(self.share) == Some(0);
        let mut lender = None;
        if self.ready() > 0 && self.usable().all(has_none) {
            let nth = self.share.index as usize % self.ready();
            lender = self.usable().nth(nth).map(|(id, _)| id);
        }
        for (number, instance) in (0..).zip(&mut self.instances) {
            let Some(instance) = instance else { continue };
            let is_lender = lender == Some(InstanceId(number));
            let share = if is_lender { Share::WHOLE } else { self.share };
            instance.places = instance.part(share);
        }
        let all = self.instances.iter().flatten().filter(|it| !it.leaves);
        let back = all.filter_map(|it| match it.health.ejected {
            Some((EjectReason::Connect, until)) => Some(until),
            _ => None,
        });
        self.next_return = back.min();
        self.fastest.clear();
        let speeds = self.usable().map(|(_, it)| it.shape.speed_ppm);
        self.speed_max_ppm = speeds.max().unwrap_or(1_000_000);
    }

    fn forget_if_left(&mut self, id: InstanceId) {
        if let Some(place) = self.instances.get_mut(id.0 as usize)
            && place
                .as_ref()
                .is_some_and(|it| it.leaves && it.bound.is_empty())
        {
            *place = None;
            self.free.push(id.0);
        }
    }

    fn remember(&mut self, ticket: Ticket, waiter: Waiter) {
        let slot = ticket.slot();
        if self.waiters.len() <= slot {
            self.waiters.resize(slot + 1, waiter);
        }
        self.waiters[slot] = waiter;
    }

    fn arrival(&mut self, request: &Request, waiter: &Waiter) -> Arrival {
        Arrival {
            id: request.id,
            at: request.at,
            key: self.key_of(waiter),
            objective: request.objective.unwrap_or(Span::ZERO),
            kept: false,
        }
    }

    /// Returns the latest start on the instance that is fastest for the request, with the margin. Without an instance
    /// it is the deadline itself, because it is not known when one will be ready.
    fn key_of(&mut self, waiter: &Waiter) -> Time {
        if !waiter.has_objective || self.ready() == 0 {
            return waiter.deadline;
        }
        let execution = match waiter.execution {
            Some(stated) => at_speed(stated, self.speed_max_ppm),
            None => self.fastest(waiter.class),
        };
        let margin = execution
            .0
            .saturating_mul(u64::from(self.settings.margin_percent))
            / 100;
        let start = waiter.deadline.before(execution).before(Span(margin));
        start.before(self.hand_over.get())
    }

    /// Returns the execution time of a request of this class on the instance where it is fastest.
    fn fastest(&mut self, class: ClassId) -> Span {
        let at = usize::from(class.0.min(self.settings.classes));
        if self.fastest.len() <= at {
            self.fastest.resize(at + 1, (Span::ZERO, 0));
        }
        let (known, left) = self.fastest[at];
        if left > 0 {
            self.fastest[at].1 = left - 1;
            return known;
        }
        let all = self.usable();
        let estimates = all.map(|(_, it)| it.estimate(class, None, &self.profile));
        let fastest = estimates.min().unwrap_or_default();
        self.fastest[at] = (fastest, FASTEST_KEPT);
        fastest
    }

    fn rekey(&mut self, now: Time) {
        let empty = Line::new(0, self.settings.order, self.settings.late);
        let mut line = std::mem::replace(&mut self.line, empty);
        line.rekey_by_slot(now, |slot, _| {
            let waiter = self.waiters[slot];
            self.key_of(&waiter)
        });
        self.line = line;
    }
}

impl Waiter {
    const fn of(request: &Request) -> Self {
        Self {
            id: request.id,
            class: request.class,
            deadline: request.deadline,
            has_objective: request.objective.is_some(),
            execution: request.execution,
        }
    }
}

/// Returns a callback that turns refusals of the line into actions.
fn refuse(actions: &mut Vec<Action>) -> impl FnMut(Ticket, RequestId, RefuseReason) {
    |ticket, id, reason| actions.push(Action::Refuse { ticket, id, reason })
}
