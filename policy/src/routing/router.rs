//! The router of one function.

use super::action::{Action, Decision, EjectReason, RefuseReason, RouteReason};
use super::bindings::{Binding, BindingId, Bindings};
use super::choice::Choice;
use super::instance::{Instance, InstanceId, Waiter};
use super::settings::{Request, Rule, Settings, Shape, Share, at_speed};
use crate::gate::{Arrival, DispatchReason, Order};
use crate::line::Line;
use crate::profile::{ClassId, Profile};
use crate::queue::{Left, SLACK_BOUNDS, Ticket};
use crate::{RequestId, Span, Time};

/// So many of the most urgent requests are looked at for one that makes it on the instance that has a place.
const SCAN_MAX: usize = 8;
/// What is known of the fastest instance for a class holds for so many requests: looking at all of them for each would be
/// the better part of a decision.
const FASTEST_KEPT: u8 = 63;
/// Weight of a sample in the mean time of a hand-over: 1 / 2^SHIFT.
const HAND_OVER_SHIFT: u32 = 3;
/// A longer hand-over is an accident, and counts as this.
const HAND_OVER_MAX: Span = Span::from_millis(100);

/// How a request's stay at an instance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It was answered.
    Answered {
        /// How long it took tells something of others.
        learn: bool,
    },
    /// The connection broke, or the answer could not be read. Whether the instance lives a probe shows.
    Broken,
    /// The instance accepted no connection.
    NotConnected,
    /// Its client left.
    Cancelled,
}

/// A mean of hand-over times.
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

/// See the [module](super).
#[derive(Clone, Debug)]
pub struct Router {
    pub(super) settings: Settings,
    line: Line,
    /// What is known of those that wait, by their ticket's slot.
    waiters: Vec<Waiter>,
    pub(super) instances: Vec<Option<Instance>>,
    free: Vec<u32>,
    pub(super) bindings: Bindings,
    pub(super) profile: Profile,
    pub(super) hand_over: HandOver,
    share: Share,
    /// When the first instance is back that accepted no connection.
    next_return: Option<Time>,
    /// How long a request runs on the instance that is fastest for it, by class, and for how many more that holds.
    fastest: Vec<(Span, u8)>,
    /// The highest stated speed, in millionths.
    speed_max_ppm: u32,
    /// Instances that may get requests.
    ready: usize,
    /// Requests that were bound.
    count: u64,
    /// Whose turn is next, for rules that go round.
    pub(super) turn: u32,
    urgent: Vec<Ticket>,
}

impl Router {
    /// A router without instances.
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

    /// Requests that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.line.len()
    }

    /// Returns how many requests wait, by the time from `now` to their latest start times, as
    /// [`DeadlineQueue::by_slack`](crate::queue::DeadlineQueue::by_slack) has it.
    #[must_use]
    pub fn waiting_by_slack(&self, now: Time) -> [usize; SLACK_BOUNDS.len() + 2] {
        self.line.by_slack(now)
    }

    /// Requests that may wait. A burst that has to wait for the first instance is held as far as memory allows: nobody knows
    /// yet how many instances it will get.
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

    /// Instances that may get requests.
    #[must_use]
    pub const fn ready(&self) -> usize {
        self.ready
    }

    /// Instances that are ejected.
    #[must_use]
    pub fn ejected(&self) -> usize {
        (0..)
            .map(InstanceId)
            .take(self.instances.len())
            .filter(|id| self.is_ejected(*id))
            .count()
    }

    /// Whether an instance gets no requests for a while; `false` for one that is not known.
    #[must_use]
    pub fn is_ejected(&self, id: InstanceId) -> bool {
        let instance = self.instances.get(id.0 as usize).and_then(Option::as_ref);
        instance.is_some_and(|it| !it.leaves && it.health.ejected.is_some())
    }

    /// Requests at an instance; 0 for one that is not known.
    #[must_use]
    pub fn load_of(&self, id: InstanceId) -> u32 {
        let instance = self.instances.get(id.0 as usize).and_then(Option::as_ref);
        instance.map_or(0, Instance::load)
    }

    /// Where a request is.
    #[must_use]
    pub fn instance_of(&self, binding: BindingId) -> Option<InstanceId> {
        self.bindings.get(binding).map(|bound| bound.instance)
    }

    /// How long a request of this class runs, by what was measured on all instances.
    #[must_use]
    pub fn estimate(&self, class: ClassId) -> Span {
        self.profile.estimate(class)
    }

    /// When a request that is refused now may be worth another try: the time until those before it are done.
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

    /// The time from the choice of an instance to the start of a request there, as it is measured.
    #[must_use]
    pub fn hand_over(&self) -> Span {
        self.hand_over.get()
    }

    /// A hand-over took so long.
    pub fn observe_hand_over(&mut self, took: Span) {
        self.hand_over.observe(took);
    }

    /// An instance is ready.
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

    /// An instance gets no more requests. Those that are there end there.
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

    /// This owner's part of all places has changed.
    pub fn set_share(&mut self, now: Time, share: Share, actions: &mut Vec<Action>) {
        self.share = share;
        self.instances_changed();
        self.wake(now, actions);
    }

    /// A request arrives. `random`: any number, for rules that draw. Others may lose their place to it: read `actions`.
    pub fn arrive(
        &mut self,
        now: Time,
        request: &Request,
        random: u64,
        actions: &mut Vec<Action>,
    ) -> Decision {
        self.wake(now, actions);
        let waiter = Waiter::of(request);
        // Those that wait now have no use for what is free, or there is none.
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
        // What is held for a cold start is not shed but for its deadline, and the first not at all.
        arrival.kept = self.ready() == 0 && self.line.is_empty();
        let joined = self.line.join(now, arrival, refuse(actions));
        match joined {
            Ok(ticket) => {
                self.remember(ticket, waiter);
                self.dispatch(now, actions);
                Decision::Waits(ticket)
            }
            Err(reason) => Decision::Refused(reason),
        }
    }

    /// A request comes back that was bound and of which no byte was written: it keeps its order, whatever the bound on those
    /// that wait.
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

    /// A waiting request gives its place back. False if it does not wait any more.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        self.line.cancel(ticket)
    }

    /// A request's stay at an instance has ended. Its place goes to the next.
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
        let mut is_once_too_often = false;
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
            Completion::NotConnected => is_once_too_often = instance.health.failed_to_connect(),
            Completion::Broken | Completion::Cancelled => {}
        }
        if is_once_too_often {
            self.eject(now, id, EjectReason::Connect, actions);
        }
        self.forget_if_left(id);
        self.wake(now, actions);
    }

    /// A probe was answered, or not in time. One that is answered ends an ejection for a probe.
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
            // It may have been ejected before, for another reason.
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

    /// Lets time pass: sheds those that have become late, takes back instances whose time is over, fills places.
    pub fn wake(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.line.wake(now, refuse(actions));
        if self.next_return.is_some_and(|at| at <= now) {
            self.take_back(now, actions);
        }
        self.dispatch(now, actions);
    }

    /// Takes back those whose time is over. One that misses probes is back when it answers one.
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

    /// When [`Router::wake`] next has something to do, if nothing happens before `now`.
    #[must_use]
    pub fn next_wake(&self, now: Time) -> Option<Time> {
        let is_waited_for = !self.line.is_empty() && self.settings.rule == Rule::LateBinding;
        let soon = is_waited_for.then(|| self.next_place(now)).flatten();
        let late = self.line.next_wake();
        let next = [soon, late, self.next_return].into_iter().flatten().min();
        next.map(|at| at.max(now))
    }

    /// When an instance next has a place more, if nothing happens before.
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
        instance.expect("a usable instance is there")
    }

    /// Fills places with those that wait.
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
                    DispatchReason::Ageing => RouteReason::Ageing,
                },
            });
        }
    }

    /// Takes the next request off the line for which there is a place.
    fn next(&mut self, now: Time) -> Option<(Left, DispatchReason, Choice)> {
        // A place for anybody: who it is for is seen next.
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
        left: Left,
        reason: DispatchReason,
    ) -> Option<(Left, DispatchReason, Choice)> {
        let waiter = self.waiters[left.ticket.slot()];
        let choice = self.choose(now, &waiter, 0);
        let choice = choice.expect("a place was there, and places are the same for all");
        Some((left, reason, choice))
    }

    /// A request that would be late where there is a place makes it on an instance that will soon have one.
    fn is_better_elsewhere(&self, now: Time, waiter: &Waiter, choice: &Choice) -> bool {
        self.settings.rule == Rule::LateBinding
            && waiter.has_objective
            && choice.end() > waiter.deadline
            && self.makes_it_elsewhere(now, waiter)
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
        // The last one is kept: a request fails there, and would wait in vain without it.
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

    /// Ejects an instance that has missed a probe and was kept as the last one, now that there is another.
    fn eject_kept(&mut self, now: Time, actions: &mut Vec<Action>) {
        let mut usable = self.usable();
        let kept = usable.find(|(_, instance)| instance.health.has_missed);
        let kept = kept.map(|(id, _)| id);
        drop(usable);
        if let Some(id) = kept {
            self.eject(now, id, EjectReason::Probe, actions);
        }
    }

    /// Instances have come, gone, or changed their minds.
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

    /// Latest start on the instance that is fastest for it, with the margin. Without an instance the deadline itself: nobody knows when
    /// one comes.
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

    /// How long a request of this class runs where it is fastest.
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

/// What becomes of those that lose their place in the line.
fn refuse(actions: &mut Vec<Action>) -> impl FnMut(Ticket, RequestId, RefuseReason) {
    |ticket, id, reason| actions.push(Action::Refuse { ticket, id, reason })
}
