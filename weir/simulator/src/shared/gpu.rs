//! One GPU with shared SMs: processes with work, gates opened and closed by messages, and kernels with a speed that
//! depends on the other running processes.
//!
//! The node's agent is the real one ([`agent_core`]), with pages in this process's memory: it decides which gates are open from what
//! the processes publish and send. Kernels are short and not simulated one by one: a process with an open gate runs without a
//! break while it has work. After a close, the work in flight runs to its end: launches are made ahead until
//! [`GateTimes::in_flight_us`] of work is in flight at the current speed (or [`GateTimes::in_flight_alone_us`], as the agent
//! orders), including the next burst's if it has arrived; a launch cannot be taken back, however long it is. A grant, an order to
//! close and a process's message take a message's time each ([`GateTimes::message_us`]); that other processes wait is read from
//! shared memory at once, and a process without work then gives its token back at once.
//!
//! **Speed** of a process: f(S) of its own SMs, divided by 1 + κ for each running neighbour, times 100 % / sum of the SMs of all
//! running processes if that exceeds 100 % (workloads §8). Each start or stop changes the speed of all: the remainder of
//! each is kept as work, in ns at speed 1, and the next end is predicted anew.
//!
//! **Suspension** ([`Suspension`]): a process which is stopped, or at its CPU limit, launches nothing and handles no messages;
//! its work in flight runs to its end, and what it has published stays as it was.
//!
//! Every event costs O(pods of this GPU), besides the cost of the agent.

mod process;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;

use agent_core::local::{LocalAgent, READY_NS, Tenant};
use agent_core::{Action, AgentFigures, Event as AgentEvent, Order, PodKey};
use policy::tokens::{ProcessId, Refusal, SM_WHOLE, Settings, SettingsError};
use policy::{Span, Time};
use protocol::message::{FromAgent, FromProcess};

use super::models::GateTimes;
use crate::generate::nanos;
use process::{Gate, PendingOrder, Process};
pub use process::{Guest, Member, Suspension};

/// Largest amount of work that is attributed to rounding, in ns at speed 1.
const NOTHING: f64 = 0.01;

/// Event of a GPU, which the GPU's owner schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The grant with this number reaches its process.
    Opens(Member, u64),
    /// The order to close the grant with this number reaches its process.
    Closes(Member, u64),
    /// The scheduler is notified that a gate is shut and no work in flight.
    Closed(Member, u64),
    /// The scheduler receives a process's answer to a probe.
    Responds(Member),
    /// A process is suspended.
    Suspends(Member),
    /// A process is resumed.
    Resumes(Member),
    /// The scheduler is notified that a process is parked at its gate.
    Asks(Member),
    /// A running process reaches the end of its work, or of its work in flight.
    Stops,
    /// The scheduler's timer fires.
    Wakes,
}

/// Processes, gates and agent of one GPU; see the [module](self).
#[derive(Debug)]
pub struct Gpu {
    agent: LocalAgent,
    sm_limit: u32,
    times: GateTimes,
    processes: Vec<Process>,
    /// Index of each process by its number at the agent.
    by_number: BTreeMap<ProcessId, u32>,
    free: Vec<u32>,
    running: Vec<u32>,
    /// Time for which [`Process::left`] is up to date.
    settled: Time,
    stops_at: Time,
    wakes_at: Time,
    actions: Vec<Action>,
    ahead: Vec<(Time, Event)>,
    ended: Vec<Member>,
}

impl Gpu {
    /// Creates a GPU without pods. [`GateTimes::in_flight_us`] overrides the work in flight of the settings.
    ///
    /// # Errors
    /// Returns an error if the scheduler rejects its settings.
    pub fn new(settings: Settings, times: GateTimes) -> Result<Self, SettingsError> {
        let alone_us = times.in_flight_alone_us.unwrap_or(times.in_flight_us);
        let settings = Settings {
            in_flight: Span(nanos(times.in_flight_us * 1e3)),
            in_flight_alone: Span(nanos(alone_us * 1e3)),
            ..settings
        };
        settings.validate()?;
        Ok(Self {
            agent: LocalAgent::with_shared_slot(settings),
            sm_limit: settings.sm_limit,
            times,
            processes: Vec::new(),
            by_number: BTreeMap::new(),
            free: Vec::new(),
            running: Vec::new(),
            settled: Time::ZERO,
            stops_at: Time::NEVER,
            wakes_at: Time::NEVER,
            actions: Vec::new(),
            ahead: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// Adds a pod with one process, without work.
    ///
    /// # Errors
    /// Returns an error if the scheduler refuses the pod or the process.
    pub fn add(&mut self, now: Time, guest: Guest) -> Result<Member, Refusal> {
        let next = || u32::try_from(self.processes.len()).unwrap_or(u32::MAX);
        let number = self.free.last().copied().unwrap_or_else(next);
        let (sm, limit) = (guest.sm, self.sm_limit);
        if sm == 0 || sm > limit {
            return Err(Refusal::SmOutOfRange { sm, limit });
        }
        let tenant = Tenant {
            sm_hundredths: guest.sm,
            quota_request_ppm: guest.quota.request().parts_per_million(),
            quota_limit_ppm: guest.quota.limit().parts_per_million(),
        };
        let pod = PodKey(number);
        let mut actions = std::mem::take(&mut self.actions);
        let added = self.agent.add(at(now), pod, &tenant, &mut actions);
        self.carry_out_all(now, actions);
        let Some((id, pages)) = added else {
            self.tell(now, &AgentEvent::PodRemoved(pod));
            return Err(Refusal::IdTooLarge { id: number });
        };
        let _reused = self.free.pop();
        self.by_number.insert(id, number);
        let mut process = Process::new(guest, id, pages);
        let at = number as usize;
        if at < self.processes.len() {
            process.life = self.processes[at].life;
            self.processes[at] = process;
        } else {
            self.processes.push(process);
        }
        let member = self.member(number);
        if let Some(Suspension { runs, .. }) = guest.suspension {
            self.ahead.push((now.after(runs), Event::Suspends(member)));
        }
        Ok(member)
    }

    /// Removes a pod, even if it is running.
    pub fn remove(&mut self, now: Time, member: Member) {
        let number = member.number;
        let Some(process) = self.get(member) else {
            return;
        };
        let runs = process.runs;
        self.settle(now);
        if runs {
            self.stop(number);
            self.proceed(now);
        }
        self.tell(now, &AgentEvent::PodRemoved(PodKey(number)));
        let process = &mut self.processes[number as usize];
        process.here = false;
        process.life += 1;
        self.by_number.remove(&process.id);
        self.free.push(number);
    }

    /// Gives work to a pod without any: `work` ns at speed 1.
    pub fn give(&mut self, now: Time, member: Member, work: f64) {
        let number = member.number;
        let Some(process) = self.get_mut(member) else {
            return;
        };
        debug_assert!(!process.wants, "the process must have no work");
        process.wants = true;
        (process.given, process.left) = (work, work);
        match process.gate {
            Gate::Open => self.start(now, number),
            // It requests a token when the scheduler has been notified of the close.
            Gate::Shut if process.reports_close => {}
            Gate::Shut | Gate::Draining => self.ask(now, number),
        }
    }

    /// Returns whether a pod exists and has no work.
    #[must_use]
    pub fn is_idle(&self, member: Member) -> bool {
        self.get(member).is_some_and(|process| !process.wants)
    }

    /// Carries out an event. Members that have completed their work are returned by [`Gpu::ended`]; call [`Gpu::next`] with the
    /// next work of each, then [`Gpu::proceed`].
    pub fn handle(&mut self, now: Time, event: Event) {
        match event {
            Event::Opens(member, token) => self.opens(now, member, token),
            Event::Closes(member, token) => self.closes(now, member, token),
            Event::Closed(member, token) => self.closed(now, member, token),
            Event::Responds(member) => {
                if let Some(process) = self.get_mut(member) {
                    process.owes_answer = process.suspended_since.is_some();
                    if !process.owes_answer {
                        self.send(now, member.number, FromProcess::Present);
                    }
                }
            }
            Event::Suspends(member) => self.suspend(now, member),
            Event::Resumes(member) => self.resume(now, member),
            Event::Asks(member) => {
                let asks = |own: &Process| {
                    own.wants && own.gate == Gate::Shut && own.suspended_since.is_none()
                };
                if self.get(member).is_some_and(asks) {
                    self.ask(now, member.number);
                }
            }
            Event::Stops => self.stops(now),
            Event::Wakes => {
                if self.wakes_at <= now {
                    self.wakes_at = Time::NEVER;
                }
                let due = self.agent.agent().next_wake();
                if due.is_some_and(|due| due <= at(now)) {
                    self.tell(now, &AgentEvent::Wake);
                }
                self.schedule_wake();
            }
        }
    }

    /// Returns the next member that has completed its work, with its owner's number.
    pub fn ended(&mut self) -> Option<(Member, u32)> {
        let member = self.ended.pop()?;
        Some((member, self.processes[member.number as usize].guest.owner))
    }

    /// Sets the next work of a member that has completed its work, at the same time, so that its kernels follow each other
    /// without a gap, or `None`. With the work: the time since when it could be launched.
    pub fn next(&mut self, now: Time, member: Member, work: Option<(f64, Time)>) {
        let number = member.number;
        let Some(process) = self.get_mut(member) else {
            return;
        };
        process.wants = work.is_some();
        process.left = work.map_or(0.0, |(work, _)| work);
        process.given = process.left;
        let has_launched = |until: Time| {
            work.is_some_and(|(_, since)| since < until) && process.in_flight > NOTHING
        };
        let continues = match (process.gate, process.suspended_since) {
            (Gate::Shut, _) => false,
            // Launches made before the close are in flight as well.
            (Gate::Draining, _) => has_launched(process.closed_at),
            (Gate::Open, Some((stood_at, _))) => has_launched(stood_at),
            (Gate::Open, None) => work.is_some(),
        };
        if continues {
            return;
        }
        if let Some((_, ends)) = &mut process.suspended_since {
            *ends = now.min(*ends);
        }
        let gives_back = match process.gate {
            Gate::Open => work.is_none() && process.is_contended(),
            Gate::Draining | Gate::Shut => true,
        };
        if gives_back {
            self.stop_and_shut(now, number);
        } else {
            self.stop(number);
        }
    }

    /// Drains the events to be scheduled.
    pub fn ahead(&mut self) -> std::vec::Drain<'_, (Time, Event)> {
        self.ahead.drain(..)
    }

    /// Returns whether a pod runs now.
    #[must_use]
    pub fn runs(&self, member: Member) -> bool {
        self.get(member).is_some_and(|process| process.runs)
    }

    /// Returns the time for which a pod has run until now.
    pub fn busy(&mut self, now: Time, member: Member) -> Span {
        self.settle(now);
        self.processes[member.number as usize].busy
    }

    /// Returns the kernel time which the agent has charged to a pod; `None` if there is no such pod.
    #[must_use]
    pub fn charged(&self, member: Member) -> Option<Span> {
        let agent = self.agent.agent();
        let figures = agent.figures(&BTreeMap::new(), AgentFigures::default());
        let mut pods = figures.pods.iter();
        let pod = pods.find(|pod| pod.pod.key.0 == member.number)?;
        Some(Span(pod.counters.used_wall_ns))
    }

    /// Returns the SMs of the running processes, in hundredths of a percent.
    #[must_use]
    pub fn running_sm(&self) -> u64 {
        (self.running.iter())
            .map(|&number| u64::from(self.processes[number as usize].guest.sm))
            .sum()
    }

    fn member(&self, number: u32) -> Member {
        Member {
            number,
            life: self.processes[number as usize].life,
        }
    }

    fn get(&self, member: Member) -> Option<&Process> {
        let process = self.processes.get(member.number as usize)?;
        (process.here && process.life == member.life).then_some(process)
    }

    fn get_mut(&mut self, member: Member) -> Option<&mut Process> {
        let process = self.processes.get_mut(member.number as usize)?;
        (process.here && process.life == member.life).then_some(process)
    }

    /// Returns the process to which an order about this token belongs.
    fn holder(&mut self, member: Member, token: u64) -> Option<&mut Process> {
        self.get_mut(member).filter(|own| own.token() == token)
    }

    /// Schedules an event after the time of a message.
    fn later(&mut self, now: Time, event: Event) {
        let at = now.after(self.times.message());
        self.ahead.push((at, event));
    }

    fn opens(&mut self, now: Time, member: Member, token: u64) {
        let Some(process) = self.holder(member, token) else {
            return;
        };
        if process.suspended_since.is_some() {
            process.order = Some(PendingOrder::Opens);
            return;
        }
        process.gate = Gate::Open;
        if process.wants {
            self.start(now, member.number);
        } else if process.returns_at_once() {
            self.shut(now, member.number);
        }
    }

    fn closes(&mut self, now: Time, member: Member, token: u64) {
        self.settle(now);
        let Some(process) = self.holder(member, token) else {
            return;
        };
        if process.suspended_since.is_some() {
            process.order = Some(PendingOrder::Closes);
            return;
        }
        // It may already be returning its token.
        if process.gate != Gate::Open {
            return;
        }
        if process.runs {
            process.gate = Gate::Draining;
            process.closed_at = now;
            process.in_flight = process.most_launched();
            self.proceed(now);
        } else {
            self.shut(now, member.number);
        }
    }

    fn closed(&mut self, now: Time, member: Member, token: u64) {
        let Some(process) = self.get_mut(member) else {
            return;
        };
        process.reports_close = false;
        if process.token() != token {
            return;
        }
        let wants = process.wants;
        // The agent ignores the report if it has revoked the token.
        self.send(now, member.number, FromProcess::Closed { epoch: token });
        if wants {
            self.ahead
                .push((now.after(self.times.ask()), Event::Asks(member)));
        }
    }

    fn stops(&mut self, now: Time) {
        if self.stops_at <= now {
            self.stops_at = Time::NEVER;
        }
        self.settle(now);
        for at in (0..self.running.len()).rev() {
            let number = self.running[at];
            let process = &self.processes[number as usize];
            if process.left <= NOTHING {
                self.ended.push(self.member(number));
            } else if process.in_flight <= NOTHING {
                self.stop_and_shut(now, number);
            }
        }
        if self.ended.is_empty() {
            self.proceed(now);
        }
    }

    /// Shuts the gate and notifies the scheduler, which returns the token if there is one.
    fn shut(&mut self, now: Time, number: u32) {
        let member = self.member(number);
        let process = &mut self.processes[number as usize];
        process.gate = Gate::Shut;
        process.in_flight = f64::INFINITY;
        process.reports_close = true;
        let closed = Event::Closed(member, process.token());
        self.later(now, closed);
    }

    /// Suspends a process: its work in flight runs to its end, and nothing else happens.
    fn suspend(&mut self, now: Time, member: Member) {
        let Some(suspension) = self.get(member).and_then(|own| own.guest.suspension) else {
            return;
        };
        self.settle(now);
        // What it has published until now stays in its page.
        self.publish(now);
        let process = &mut self.processes[member.number as usize];
        let mut ends = now;
        if process.runs {
            if process.gate == Gate::Open {
                process.in_flight = process.most_launched();
            }
            // Includes launches of the next burst, if it has arrived.
            ends = now.after(process.lasts(process.in_flight));
        }
        process.suspended_since = Some((now, ends));
        process.publish_work(now, ends);
        self.proceed(now);
        let resumes = (now.after(suspension.suspended), Event::Resumes(member));
        self.ahead.push(resumes);
    }

    /// Resumes a process, which then carries out an order that arrived meanwhile.
    fn resume(&mut self, now: Time, member: Member) {
        let number = member.number;
        let Some(suspension) = self.get(member).and_then(|own| own.guest.suspension) else {
            return;
        };
        let at = now.after(suspension.runs);
        self.ahead.push((at, Event::Suspends(member)));
        self.settle(now);
        let process = &mut self.processes[number as usize];
        process.suspended_since = None;
        if process.gate == Gate::Open {
            process.in_flight = f64::INFINITY;
        }
        let (order, token) = (process.order.take(), process.token());
        if std::mem::take(&mut process.owes_answer) {
            self.later(now, Event::Responds(member));
        }
        let process = &self.processes[number as usize];
        match (order, process.gate) {
            (Some(PendingOrder::Opens), _) => self.opens(now, member, token),
            (Some(PendingOrder::Closes), _) => self.closes(now, member, token),
            (None, Gate::Open) if !process.runs && process.wants => self.start(now, number),
            (None, Gate::Open) if process.returns_at_once() => self.shut(now, number),
            (None, Gate::Draining) if !process.runs => self.shut(now, number),
            (None, Gate::Shut) if process.wants && !process.reports_close => {
                self.ahead
                    .push((now.after(self.times.ask()), Event::Asks(member)));
            }
            _ => {}
        }
        self.proceed(now);
    }

    fn start(&mut self, now: Time, number: u32) {
        self.settle(now);
        self.processes[number as usize].runs = true;
        self.running.push(number);
        self.proceed(now);
    }

    fn stop(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        process.runs = false;
        self.running.retain(|&other| other != number);
    }

    fn stop_and_shut(&mut self, now: Time, number: u32) {
        self.stop(number);
        // A suspended process cannot report it.
        if self.processes[number as usize].suspended_since.is_none() {
            self.shut(now, number);
        }
    }

    /// Advances the work of running processes to `now`.
    fn settle(&mut self, now: Time) {
        let passed = now.since(self.settled);
        self.settled = now;
        if passed == Span::ZERO {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
        let elapsed = passed.0 as f64;
        for &number in &self.running {
            let process = &mut self.processes[number as usize];
            process.left -= elapsed * process.rate;
            process.in_flight -= elapsed * process.rate;
            process.busy.0 += passed.0;
        }
    }

    /// Computes the speeds from now on, and schedules the next end; call it once every member that has ended has its next work.
    pub fn proceed(&mut self, now: Time) {
        let sms = self.running_sm();
        let whole = u64::from(SM_WHOLE);
        #[expect(clippy::cast_precision_loss, reason = "pods of one GPU and their SMs")]
        let (neighbours, crowded) = (
            self.running.len().saturating_sub(1) as f64,
            whole as f64 / sms.max(whole) as f64,
        );
        let mut first = f64::INFINITY;
        for &number in &self.running {
            let process = &mut self.processes[number as usize];
            let slowdown = 1.0 + process.guest.interference * neighbours;
            process.rate = process.guest.speed * crowded / slowdown;
            first = first.min(process.left.min(process.in_flight) / process.rate);
        }
        if first.is_finite() {
            let at = now.after(Span(nanos(first.max(0.0).ceil()).max(1)));
            if at < self.stops_at {
                self.stops_at = at;
                self.ahead.push((at, Event::Stops));
            }
        }
    }

    fn schedule_wake(&mut self) {
        if let Some(due) = self.agent.agent().next_wake() {
            let due = Time(due.saturating_sub(READY_NS));
            if due < self.wakes_at {
                self.wakes_at = due;
                self.ahead.push((due.max(self.settled), Event::Wakes));
            }
        }
    }

    fn ask(&mut self, now: Time, number: u32) {
        let epoch = self.processes[number as usize].pages.orders.gate.epoch();
        self.send(now, number, FromProcess::Ask { epoch });
    }

    /// Lets a message of a process reach the agent.
    fn send(&mut self, now: Time, number: u32, message: FromProcess) {
        let process = self.processes[number as usize].id;
        self.tell(now, &AgentEvent::Message { process, message });
    }

    /// Publishes what each process has used and has in flight. A suspended process publishes nothing.
    fn publish(&self, now: Time) {
        for process in &self.processes {
            if !process.here || process.suspended_since.is_some() {
                continue;
            }
            let facts = &process.pages.facts;
            facts.busy_ns.store(process.busy.0, Ordering::Relaxed);
            if process.runs {
                // It launches continuously; if it stopped now, this much would be in flight.
                facts.launches.0.fetch_add(1, Ordering::Relaxed);
                let in_flight = process.most_launched();
                process.publish_work(now, now.after(process.lasts(in_flight)));
            } else {
                facts.inflight_us.store(0, Ordering::Relaxed);
            }
            facts.busy_since.store(0, Ordering::Relaxed);
        }
    }

    /// Publishes the current state, lets the agent handle an event, and carries out its actions.
    fn tell(&mut self, now: Time, event: &AgentEvent) {
        self.settle(now);
        self.publish(now);
        let mut actions = std::mem::take(&mut self.actions);
        self.agent.handle(at(now), event, &mut actions);
        self.carry_out_all(now, actions);
    }

    fn carry_out_all(&mut self, now: Time, mut actions: Vec<Action>) {
        let mut follow_ups = VecDeque::new();
        loop {
            for action in actions.drain(..) {
                self.carry_out(now, action, &mut follow_ups);
            }
            let Some(event) = follow_ups.pop_front() else {
                break;
            };
            self.agent.handle(at(now), &event, &mut actions);
        }
        self.actions = actions;
        self.schedule_wake();
    }

    fn carry_out(&mut self, now: Time, action: Action, follow_ups: &mut VecDeque<AgentEvent>) {
        let (Action::Order { process: id, .. }
        | Action::Send { process: id, .. }
        | Action::Examine(id)) = action
        else {
            return;
        };
        let Some(&number) = self.by_number.get(&id) else {
            return;
        };
        let member = self.member(number);
        let own = &mut self.processes[number as usize];
        let is_suspended = own.suspended_since.is_some();
        let observable = own.guest.suspension.filter(|own| own.is_observable);
        match action {
            Action::Order { order, .. } => self.ordered(now, number, order),
            Action::Send {
                message: FromAgent::Probe,
                ..
            } => {
                own.owes_answer = is_suspended;
                if !is_suspended {
                    self.later(now.after(self.times.message()), Event::Responds(member));
                }
            }
            Action::Examine(_) if is_suspended && observable.is_some() => {
                follow_ups.push_back(AgentEvent::Stopped(id));
            }
            _ => {}
        }
    }

    /// Lets a process notice what the agent has written to its page.
    fn ordered(&mut self, now: Time, number: u32, order: Order) {
        let member = self.member(number);
        let own = &mut self.processes[number as usize];
        match order {
            Order::Open { epoch, .. } => {
                own.order = None;
                self.later(now, Event::Opens(member, epoch));
            }
            Order::Shut { .. } => {
                let closes = Event::Closes(member, own.token());
                self.later(now, closes);
            }
            Order::Contended { .. } if own.returns_at_once() => self.shut(now, number),
            // A renewed holder continues.
            _ => {}
        }
    }
}

/// Returns the agent's time.
const fn at(now: Time) -> u64 {
    now.0.saturating_add(READY_NS)
}
