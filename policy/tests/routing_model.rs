//! The router compared with a naive model of late binding, over random operations.

use std::collections::{BTreeMap, BTreeSet};

use policy::gate::{AGING_OBJECTIVES, AGING_PERIOD, Late, Order};
use policy::profile::ClassId;
use policy::queue::Ticket;
use policy::routing::{
    Action, BindingId, Completion, Decision, InstanceId, Places, RefuseReason, Request,
    RouteReason, Router, Rule, Settings, Shape,
};
use policy::{RequestId, Span, Time};
use testing::Random;

const MS: u64 = 1_000_000;
const MARGIN_PERCENT: u64 = 20;
const HAND_OVER: Span = Span(MS / 2);
/// Number of waiting requests examined for one that is in time at a free place.
const SCAN: usize = 8;

fn settings() -> Settings {
    Settings {
        rule: Rule::LateBinding,
        order: Order::Deadline,
        late: Late::Serve,
        depth: 10,
        waiting_min: 20,
        waiting_max: 60,
        margin_percent: 20,
        hand_over: HAND_OVER,
        execution: Span(10 * MS),
        classes: 1,
        slo: None,
    }
}

#[derive(Clone, Copy, Debug)]
struct ExpectedRun {
    id: RequestId,
    start: Option<Time>,
    execution: Span,
    end: Time,
}

#[derive(Clone, Debug)]
struct Machine {
    shape: Shape,
    at: Vec<ExpectedRun>,
    leaves: bool,
    answers: u32,
    slow_until: Time,
    last: u64,
}

/// A direct implementation of the rules, without regard to speed.
#[derive(Default)]
struct Model {
    waiting: Vec<(Request, Time)>,
    machines: BTreeMap<InstanceId, Machine>,
    dispatches: u64,
    count: u64,
}

impl Machine {
    fn execution(&self, request: &Request) -> Span {
        let stated = request.execution.expect("all are stated").0;
        Span(stated * 1_000_000 / u64::from(self.shape.speed_ppm))
    }

    fn places(&self) -> usize {
        match self.shape.places {
            Places::Fixed(places) => places as usize,
            Places::Unlimited => usize::MAX,
        }
    }

    fn is_slow(&self, now: Time) -> bool {
        self.answers < 5 && now < self.slow_until
    }

    /// Returns the expected start of one more request, and whether it would be bound ahead.
    fn start(&self, now: Time) -> Option<(Time, bool)> {
        let slow = if self.is_slow(now) {
            self.answers as usize + 1
        } else {
            usize::MAX
        };
        let extra = usize::from(self.shape.is_time_sharing);
        let allowed = slow.min(self.places()).saturating_add(extra);
        if self.at.len() < allowed {
            return Some((now.after(HAND_OVER), false));
        }
        if self.at.len() > allowed || self.is_slow(now) {
            return None;
        }
        let free = self.at.iter().map(|at| at.end).min()?;
        let soon = free <= now.after(HAND_OVER) && now <= free.after(HAND_OVER);
        soon.then(|| (free.max(now.after(HAND_OVER)), true))
    }
}

impl Model {
    fn usable(&self) -> impl Iterator<Item = (InstanceId, &Machine)> {
        let all = self.machines.iter().map(|(&id, machine)| (id, machine));
        all.filter(|(_, machine)| !machine.leaves)
    }

    fn best(&self, now: Time, request: &Request) -> Option<(InstanceId, ExpectedRun, bool)> {
        let mut found = Vec::new();
        for (id, machine) in self.usable() {
            if let Some((start, is_ahead)) = machine.start(now) {
                let execution = machine.execution(request);
                let at = ExpectedRun {
                    id: request.id,
                    start: (!is_ahead).then_some(start),
                    execution,
                    end: start.after(execution),
                };
                found.push((
                    (at.end, machine.shape.stages, machine.last),
                    (id, at, is_ahead),
                ));
            }
        }
        found.sort_by_key(|(rank, _)| *rank);
        found.first().map(|(_, choice)| *choice)
    }

    fn should_wait(&self, now: Time, request: &Request, end: Time) -> bool {
        end > request.deadline
            && self.usable().any(|(_, machine)| {
                let free = machine.at.iter().map(|at| at.end).min();
                machine.start(now).is_none()
                    && free.is_some_and(|free| {
                        let start = free.max(now).after(HAND_OVER);
                        start.after(machine.execution(request)) <= request.deadline
                    })
            })
    }

    fn bind(&mut self, id: InstanceId, at: ExpectedRun) {
        self.count += 1;
        self.dispatches += 1;
        let machine = self.machines.get_mut(&id).expect("it was chosen");
        machine.at.push(at);
        machine.last = self.count;
    }

    /// Removes the next request that starts. Returns it with its instance and reason.
    fn next(&mut self, now: Time) -> Option<(RequestId, InstanceId, RouteReason)> {
        if self.waiting.is_empty() || !self.usable().any(|(_, it)| it.start(now).is_some()) {
            return None;
        }
        let mut late: Vec<_> = self.waiting.iter().filter(|(_, key)| *key < now).collect();
        late.sort_by_key(|(request, _)| (request.at, request.id));
        let aged = late.iter().find(|(request, _)| {
            let objective = request.objective.expect("all have one");
            now.since(request.at).0 / AGING_OBJECTIVES >= objective.0
        });
        let is_turn_of_aged = self.dispatches % AGING_PERIOD == AGING_PERIOD - 1;
        let mut chosen = aged
            .filter(|_| is_turn_of_aged)
            .map(|(request, _)| (*request, RouteReason::Aging));
        if chosen.is_none() {
            let mut urgent: Vec<_> = self.waiting.iter().filter(|(_, key)| *key >= now).collect();
            urgent.sort_by_key(|(request, key)| (*key, request.at, request.id));
            let first = urgent.iter().take(SCAN).find(|(request, _)| {
                let (_, at, _) = self.best(now, request).expect("a place is there");
                !self.should_wait(now, request, at.end)
            });
            chosen = first.map(|(request, _)| (*request, RouteReason::Turn));
        }
        let (request, reason) = chosen.or_else(|| {
            late.first()
                .map(|(first, _)| (*first, RouteReason::LateTurn))
        })?;
        let (id, at, _) = self.best(now, &request)?;
        self.waiting.retain(|(other, _)| other.id != request.id);
        self.bind(id, at);
        Some((request.id, id, reason))
    }

    fn key(&self, request: &Request) -> Time {
        let fastest = self
            .usable()
            .map(|(_, machine)| machine.execution(request))
            .min();
        match fastest {
            Some(execution) => {
                let margin = Span(execution.0 / 100 * MARGIN_PERCENT);
                let end = request.deadline.before(HAND_OVER);
                end.before(execution).before(margin)
            }
            None => request.deadline,
        }
    }

    fn rekey(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for (request, key) in &mut waiting {
            *key = self.key(request);
        }
        self.waiting = waiting;
    }

    fn limit(&self) -> usize {
        match self.usable().count() {
            0 => 60,
            instances => (10 * instances).clamp(20, 60),
        }
    }
}

struct Run {
    router: Router,
    model: Model,
    now: Time,
    next: u64,
    waiting: BTreeMap<RequestId, Ticket>,
    bound: BTreeMap<RequestId, (BindingId, InstanceId)>,
    actions: Vec<Action>,
    /// The first requests held for a cold start, which are kept.
    kept: BTreeSet<RequestId>,
    refused: u32,
    label: String,
}

impl Run {
    fn settle(&mut self) {
        let actions = std::mem::take(&mut self.actions);
        for action in &actions {
            match *action {
                Action::Bind {
                    ticket,
                    id,
                    binding,
                    instance,
                    reason,
                } => {
                    assert_eq!(self.waiting.remove(&id), Some(ticket), "{}", self.label);
                    self.bound.insert(id, (binding, instance));
                    let expected = self.model.next(self.now);
                    assert_eq!(Some((id, instance, reason)), expected, "{}", self.label);
                }
                Action::Refuse { .. } => panic!("{}: no request is shed", self.label),
                Action::Eject { .. } | Action::Return { .. } => {}
            }
        }
        assert_eq!(self.model.next(self.now), None, "{}", self.label);
        assert_eq!(
            self.router.waiting(),
            self.model.waiting.len(),
            "{}",
            self.label
        );
        assert_eq!(self.router.waiting_max(), self.model.limit());
        for (id, machine) in &self.model.machines {
            assert_eq!(self.router.load_of(*id) as usize, machine.at.len());
        }
        if let Some(at) = self.router.next_wake(self.now) {
            assert!(at >= self.now);
        }
        self.actions = actions;
        self.actions.clear();
    }

    fn arrive(&mut self, random: &mut Random) {
        self.next += 1;
        let objective = Span((5 + random.below(60)) * MS);
        let request = Request {
            id: RequestId(self.next),
            at: self.now,
            deadline: self.now.after(objective),
            objective: Some(objective),
            class: ClassId(0),
            execution: Some(Span((1 + random.below(20)) * MS)),
        };
        // Requests that waited have had their turn before, when time advanced.
        self.router.wake(self.now, &mut self.actions);
        self.settle();
        let routed = self.router.arrive(self.now, &request, 0, &mut self.actions);
        let key = self.model.key(&request);
        let best = self.model.best(self.now, &request);
        let is_free = self.model.waiting.is_empty()
            && best.is_some_and(|(_, at, _)| !self.model.should_wait(self.now, &request, at.end));
        match routed {
            Decision::Bound {
                binding, instance, ..
            } => {
                let (id, at, _) = best.expect("a place is there");
                assert!(is_free && id == instance, "{}", self.label);
                self.model.bind(id, at);
                self.bound.insert(request.id, (binding, instance));
            }
            Decision::Waits(ticket) => {
                assert!(!is_free, "{}", self.label);
                let first = self.actions.first().copied();
                if self.model.waiting.len() >= self.model.limit() {
                    let left = self.displaceable(key).expect("it has a place to give");
                    let displaced = Action::Refuse {
                        ticket: self.waiting[&left],
                        id: left,
                        reason: RefuseReason::Displaced,
                    };
                    assert_eq!(first, Some(displaced), "{}", self.label);
                    self.actions.remove(0);
                    self.waiting.remove(&left);
                    self.model.waiting.retain(|(other, _)| other.id != left);
                }
                if self.model.usable().count() == 0 && self.model.waiting.is_empty() {
                    self.kept.insert(request.id);
                }
                self.model.waiting.push((request, key));
                self.waiting.insert(request.id, ticket);
            }
            Decision::Refused(reason) => {
                assert_eq!(reason, RefuseReason::Full);
                let is_full = self.model.waiting.len() >= self.model.limit();
                let label = &self.label;
                let displaceable = self.displaceable(key);
                assert!(
                    is_full && displaceable.is_none(),
                    "{label}: {is_full} {displaceable:?} {} {}",
                    self.model.waiting.len(),
                    self.model.limit()
                );
                self.refused += 1;
            }
        }
        self.settle();
    }

    /// Returns the late request that arrived last, if a new request with this key can be in time.
    fn displaceable(&self, key: Time) -> Option<RequestId> {
        let late = self
            .model
            .waiting
            .iter()
            .filter(|(request, key)| *key < self.now && !self.kept.contains(&request.id));
        let last = late.max_by_key(|(request, _)| (request.at, request.id));
        last.filter(|_| key >= self.now)
            .map(|(request, _)| request.id)
    }

    fn complete(&mut self, random: &mut Random) {
        if self.bound.is_empty() {
            return;
        }
        let nth = random.index(self.bound.len());
        let (&id, &(binding, instance)) = self.bound.iter().nth(nth).expect("below the length");
        self.bound.remove(&id);
        let completion = if random.below(10) == 0 {
            Completion::Cancelled
        } else {
            Completion::Answered { learn: true }
        };
        self.router
            .complete(self.now, binding, completion, &mut self.actions);
        let machine = self.model.machines.get_mut(&instance).expect("it is known");
        machine.at.retain(|at| at.id != id);
        if completion != Completion::Cancelled {
            machine.answers += 1;
        }
        if let Some(next) = machine.at.iter_mut().find(|at| at.start.is_none()) {
            next.start = Some(self.now);
            next.end = self.now.after(next.execution);
        }
        if machine.leaves && machine.at.is_empty() {
            self.model.machines.remove(&instance);
        }
        self.settle();
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(100) {
            0..40 => self.arrive(random),
            40..75 => self.complete(random),
            75..90 => {
                self.now = self.now.after(Span(random.below(4 * MS)));
                self.router.wake(self.now, &mut self.actions);
                self.settle();
            }
            90..94 => {
                if self.waiting.is_empty() {
                    return;
                }
                let nth = random.index(self.waiting.len());
                let (&id, &ticket) = self.waiting.iter().nth(nth).expect("below the length");
                assert!(self.router.cancel(ticket) && !self.router.cancel(ticket));
                self.waiting.remove(&id);
                self.model.waiting.retain(|(request, _)| request.id != id);
            }
            94..97 => self.add(random),
            _ => self.remove(random),
        }
    }

    fn add(&mut self, random: &mut Random) {
        if self.model.usable().count() >= 6 {
            return;
        }
        let shape = Shape {
            places: Places::Fixed(1 + random.below_u32(3)),
            stages: 1 + random.below_u32(2),
            is_time_sharing: random.below(8) == 0,
            speed_ppm: [1_000_000, 1_000_000, 400_000][random.index(3)],
            ordinal: 0,
        };
        let was_empty = self.model.usable().count() == 0;
        let id = self.router.add(self.now, shape, &mut self.actions);
        let machine = Machine {
            shape,
            at: Vec::new(),
            leaves: false,
            answers: 0,
            slow_until: self.now.after(Span::from_secs(10)),
            last: 0,
        };
        assert!(self.model.machines.insert(id, machine).is_none());
        if was_empty {
            self.model.rekey();
        }
        self.settle();
    }

    fn remove(&mut self, random: &mut Random) {
        let usable: Vec<_> = self.model.usable().map(|(id, _)| id).collect();
        if usable.is_empty() {
            return;
        }
        let id = usable[random.index(usable.len())];
        self.router.remove(self.now, id, &mut self.actions);
        let machine = self.model.machines.get_mut(&id).expect("it is usable");
        machine.leaves = true;
        if machine.at.is_empty() {
            self.model.machines.remove(&id);
        }
        if self.model.usable().count() == 0 {
            self.model.rekey();
        }
        self.settle();
    }
}

#[test]
fn a_million_random_operations_agree_with_the_model() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let mut run = Run {
            router: Router::new(settings()),
            model: Model::default(),
            now: Time(1_000 * MS),
            next: 0,
            waiting: BTreeMap::new(),
            bound: BTreeMap::new(),
            actions: Vec::new(),
            kept: BTreeSet::new(),
            refused: 0,
            label: String::new(),
        };
        let mut most = 0;
        for step in 0..50_000 {
            run.label = format!("seed {seed}, step {step}");
            run.step(&mut random);
            most = most.max(run.waiting.len());
        }
        assert!(most >= 20 && run.refused > 10, "{most}, {}", run.refused);
    }
}
