//! One function with several instances behind one router ([`policy::routing`]), each behind a queue-proxy of its own
//! ([`policy::gate`]): the number of requests answered in time, by rule.
//!
//! A bound request reaches its instance after the time of a hand-over; the instance's proxy executes one request at a time, in
//! order of deadline, or in order of arrival under Knative's rule. The router is notified of an answer at once: both directions
//! are included in the hand-over. Nothing else takes time.

use policy::class;
use policy::gate::{Action as GateAction, Admission, Arrival, Gate, Late, Order};
use policy::profile::ClassId;
use policy::routing::{
    Action, BindingId, Completion, Decision, InstanceId, MARGIN_PERCENT, Places, Request, Router,
    Rule, Settings, Shape,
};
use policy::{RequestId, Span, Time};

use crate::agenda::Agenda;
use crate::random::Stream;

/// Largest number of waiting requests: more than the experiments reach.
const DEPTH: usize = 100_000;

/// A request to the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Time at which the request is due.
    pub due: Time,
    /// Time of computation on an instance of speed 1.
    pub service: Span,
    /// Time from `due` within which the answer is in time.
    pub objective: Span,
}

/// Rule and instances to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup<'a> {
    /// Rule by which instances are chosen.
    pub rule: Rule,
    /// Speed of each instance, in percent.
    pub speeds: &'a [u32],
    /// Time from the choice of an instance until the request reaches it.
    pub hand_over: Span,
    /// Largest relative error of a request's estimate: 0.25 is a quarter more or less.
    pub estimate_error: f64,
}

/// Results of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Number of all requests.
    pub requests: u64,
    /// Number of requests answered in time.
    pub in_time: u64,
    /// Number of requests not answered because their deadlines could not be met.
    pub shed: u64,
}

impl Counts {
    /// Returns the share of requests answered in time.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
    pub fn hit_rate(&self) -> f64 {
        self.in_time as f64 / self.requests.max(1) as f64
    }
}

/// An event of the simulation.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request arrives at the router.
    Arrives(usize),
    /// A bound request reaches its instance.
    Reaches(usize),
    /// A request has been executed.
    Ends(usize),
    /// The router's timer fires.
    Wakes,
    /// The timer of an instance's proxy fires.
    GateWakes(usize),
}

#[derive(Clone, Copy, Debug)]
struct State {
    estimate: Span,
    binding: Option<BindingId>,
    instance: usize,
}

struct Run<'a> {
    jobs: &'a [Job],
    setup: &'a Setup<'a>,
    router: Router,
    gates: Vec<Gate>,
    agenda: Agenda<Event>,
    states: Vec<State>,
    counts: Counts,
    actions: Vec<Action>,
    gate_actions: Vec<GateAction>,
    stream: &'a mut Stream,
    wakes_at: Time,
}

/// Serves requests, which must be ordered by their due times. The same requests, setup and stream yield the same counts on every
/// machine.
#[must_use]
pub fn serve(jobs: &[Job], setup: &Setup<'_>, stream: &mut Stream) -> Counts {
    let (order, late) = match setup.rule {
        Rule::Knative => (Order::Arrival, Late::Serve),
        _ => (Order::Deadline, Late::Shed),
    };
    let settings = Settings {
        rule: setup.rule,
        order,
        late,
        depth: DEPTH,
        waiting_min: DEPTH,
        waiting_max: DEPTH,
        margin_percent: MARGIN_PERCENT,
        hand_over: setup.hand_over,
        execution: Span::from_millis(10),
        classes: class::COUNT,
        slo: None,
    };
    let gate = policy::gate::Settings {
        concurrency: 1,
        depth: DEPTH,
        order,
        late,
    };
    let mut run = Run {
        jobs,
        setup,
        router: Router::new(settings),
        gates: vec![Gate::new(gate); setup.speeds.len()],
        agenda: Agenda::new(),
        states: Vec::with_capacity(jobs.len()),
        counts: Counts::default(),
        actions: Vec::new(),
        gate_actions: Vec::new(),
        stream,
        wakes_at: Time::NEVER,
    };
    for (ordinal, &speed) in (0..).zip(setup.speeds) {
        let shape = Shape {
            speed_ppm: speed * 10_000,
            ..Shape::monolith(Places::Fixed(1), ordinal)
        };
        run.router.add(Time::ZERO, shape, &mut run.actions);
    }
    for (at, job) in jobs.iter().enumerate() {
        let error = setup.estimate_error;
        let factor = run.stream.uniform(1.0 - error, 1.0 + error);
        run.states.push(State {
            estimate: scaled(job.service, factor),
            binding: None,
            instance: 0,
        });
        run.agenda.add(job.due, Event::Arrives(at));
    }
    while let Some(event) = run.agenda.take() {
        run.handle(event);
    }
    run.counts.requests = jobs.len() as u64;
    run.counts
}

impl Run<'_> {
    fn handle(&mut self, event: Event) {
        let now = self.agenda.now();
        match event {
            Event::Arrives(at) => {
                let request = self.request(at);
                let random = self.stream.bits();
                match self.router.arrive(now, &request, random, &mut self.actions) {
                    Decision::Bound {
                        binding, instance, ..
                    } => self.bound(at, binding, instance),
                    Decision::Waits(_) => {}
                    Decision::Refused(_) => self.counts.shed += 1,
                }
            }
            Event::Reaches(at) => self.reaches(at),
            Event::Ends(at) => self.ends(at),
            Event::Wakes => {
                self.wakes_at = Time::NEVER;
                self.router.wake(now, &mut self.actions);
            }
            Event::GateWakes(instance) => {
                self.gates[instance].wake(now, &mut self.gate_actions);
                self.follow_gate(instance);
            }
        }
        self.follow();
    }

    fn request(&self, at: usize) -> Request {
        let job = &self.jobs[at];
        Request {
            id: RequestId(at as u64),
            at: job.due,
            deadline: job.due.after(job.objective),
            objective: Some(job.objective),
            class: ClassId(0),
            execution: Some(self.states[at].estimate),
        }
    }

    fn bound(&mut self, at: usize, binding: BindingId, instance: InstanceId) {
        let state = &mut self.states[at];
        state.binding = Some(binding);
        state.instance = instance.0 as usize;
        let there = self.agenda.now().after(self.setup.hand_over);
        self.agenda.add(there, Event::Reaches(at));
    }

    /// Carries out the router's decisions.
    fn follow(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Bind {
                    id,
                    binding,
                    instance,
                    ..
                } => self.bound(number(id), binding, instance),
                Action::Refuse { .. } => self.counts.shed += 1,
                Action::Eject { .. } | Action::Return { .. } => {}
            }
        }
        self.actions = actions;
        if let Some(at) = self.router.next_wake(self.agenda.now())
            && at < self.wakes_at
        {
            self.wakes_at = at;
            self.agenda.add(at, Event::Wakes);
        }
    }

    fn reaches(&mut self, at: usize) {
        let now = self.agenda.now();
        let (job, state) = (&self.jobs[at], &self.states[at]);
        let instance = state.instance;
        let execution = scaled(
            state.estimate,
            100.0 / f64::from(self.setup.speeds[instance]),
        );
        let arrival = Arrival {
            id: RequestId(at as u64),
            at: now,
            key: job.due.after(job.objective).before(execution),
            objective: job.objective,
            // The router has already admitted it; it can only be late by the hand-over.
            kept: self.setup.rule == Rule::LateBinding,
        };
        let admission = self.gates[instance].arrive(now, arrival, &mut self.gate_actions);
        match admission {
            Admission::Dispatch(_) => self.starts(at),
            Admission::Wait(_) => {}
            Admission::Refuse(_) => self.is_shed(at),
        }
        self.follow_gate(instance);
    }

    fn starts(&mut self, at: usize) {
        let speed = f64::from(self.setup.speeds[self.states[at].instance]);
        let takes = scaled(self.jobs[at].service, 100.0 / speed);
        let ends = self.agenda.now().after(takes);
        self.agenda.add(ends, Event::Ends(at));
    }

    fn ends(&mut self, at: usize) {
        let now = self.agenda.now();
        let job = &self.jobs[at];
        self.counts.in_time += u64::from(now.since(job.due) <= job.objective);
        let instance = self.states[at].instance;
        self.leaves(at, Completion::Answered { learn: true });
        self.gates[instance].depart(now, &mut self.gate_actions);
        self.follow_gate(instance);
    }

    fn is_shed(&mut self, at: usize) {
        self.counts.shed += 1;
        self.leaves(at, Completion::Answered { learn: false });
    }

    fn leaves(&mut self, at: usize, completion: Completion) {
        let now = self.agenda.now();
        if let Some(binding) = self.states[at].binding.take() {
            self.router
                .complete(now, binding, completion, &mut self.actions);
        }
    }

    /// Carries out the decisions of an instance's proxy.
    fn follow_gate(&mut self, instance: usize) {
        let mut actions = std::mem::take(&mut self.gate_actions);
        for action in actions.drain(..) {
            match action {
                GateAction::Dispatch { id, .. } => self.starts(number(id)),
                GateAction::Refuse { id, .. } => self.is_shed(number(id)),
            }
        }
        self.gate_actions = actions;
        if let Some(at) = self.gates[instance].next_wake() {
            self.agenda.add(at, Event::GateWakes(instance));
        }
    }
}

fn number(id: RequestId) -> usize {
    usize::try_from(id.0).unwrap_or(usize::MAX)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times of requests, far below 2^53 ns"
)]
fn scaled(span: Span, factor: f64) -> Span {
    Span((span.0 as f64 * factor) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, Streams};

    const MS: u64 = 1_000_000;

    fn job(due_ms: u64, service_ms: u64, objective_ms: u64) -> Job {
        Job {
            due: Time((20_000 + due_ms) * MS),
            service: Span::from_millis(service_ms),
            objective: Span::from_millis(objective_ms),
        }
    }

    fn count(jobs: &[Job], rule: Rule, speeds: &[u32], hand_over_ms: u64) -> Counts {
        let setup = Setup {
            rule,
            speeds,
            hand_over: Span::from_millis(hand_over_ms),
            estimate_error: 0.0,
        };
        let mut stream = Streams::new("routing", 1).stream(Purpose::Noise, 0);
        serve(jobs, &setup, &mut stream)
    }

    #[test]
    fn a_single_request_is_in_time_if_its_service_and_the_hand_over_fit() {
        for rule in Rule::ALL {
            let in_time = |objective| {
                let counts = count(&[job(0, 10, objective)], rule, &[100], 2);
                (counts.in_time, counts.requests)
            };
            assert_eq!(in_time(12), (1, 1), "{rule:?}");
            assert_eq!(in_time(11), (0, 1), "{rule:?}");
        }
    }

    #[test]
    fn late_binding_serves_waiting_requests_on_the_first_free_instance() {
        // Two long and two short requests: bound at arrival in turn, the second short one waits behind a long one.
        let jobs = [
            job(0, 100, 400),
            job(1, 10, 40),
            job(2, 10, 45),
            job(3, 10, 45),
        ];
        assert_eq!(count(&jobs, Rule::LateBinding, &[100, 100], 0).in_time, 4);
        assert_eq!(count(&jobs, Rule::RoundRobin, &[100, 100], 0).in_time, 3);
    }

    #[test]
    fn an_instance_of_half_the_speed_takes_twice_as_long() {
        assert_eq!(
            count(&[job(0, 10, 20)], Rule::LateBinding, &[50], 0).in_time,
            1
        );
        assert_eq!(
            count(&[job(0, 10, 19)], Rule::LateBinding, &[50], 0).in_time,
            0
        );
    }
}
