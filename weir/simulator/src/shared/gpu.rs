//! One GPU whose SMs are shared: processes that have work, gates that messages open and shut, kernels whose speed
//! depends on who else runs.
//!
//! Kernels are short and not simulated one by one: a process with an open gate runs without a break while it has
//! work. A close lets what is in flight run to its end: launches are made ahead until [`GateTimes::in_flight_us`] of work is in
//! flight at the speed of that moment (or [`GateTimes::in_flight_alone_us`], as [`Tokens::in_flight`] says), the next burst's
//! among them if it is there already; a launch that has been made is not taken back, however long it is. A
//! grant, an order to close and the word that a gate is shut take a message each ([`GateTimes::message_us`]); what
//! [`Action::Contended`] says is read from shared memory at once, and a process without work then gives its token
//! back at once.
//!
//! **Speed** of a process: f(S) of its own SMs, through 1 + κ per neighbour that runs, times 100 % / sum of the SMs of all that
//! run if they are more than there are (workloads 8). Whoever starts or stops changes it for all: what is left of
//! each is kept as work, in ns at speed 1, and the next end is foretold anew.
//!
//! **Standing still** ([`Stands`]): a process that is stopped, or at its CPU limit, launches nothing and hears nothing; what it has in
//! flight runs to its end. The scheduler is reported what each holder has in flight, so that it can take tokens back.
//!
//! Every event costs O(pods of this GPU), beside what [`Tokens`] costs.

mod process;

use policy::tokens::{Account, Tokens};
use policy::tokens::{Action, PodId, ProcessId, Refusal, SM_WHOLE, Settings, SettingsError};
use policy::{Span, Time};

use super::models::GateTimes;
use crate::generate::nanos;
use process::{Gate, Order, Process};
pub use process::{Guest, Member, Stands};

/// Less work than this is rounding.
const NOTHING: f64 = 0.01;

/// What is to happen to a GPU, put into the agenda by its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A grant, the so manieth of it, reaches its process.
    Opens(Member, u64),
    /// An order to close reaches its process.
    Closes(Member, u64),
    /// The scheduler hears that a gate is shut and nothing in flight.
    Closed(Member, u64),
    /// The scheduler hears a process's answer to a probe.
    Responds(Member),
    /// A process stands still from now on.
    Stands(Member),
    /// A process goes on.
    GoesOn(Member),
    /// The scheduler hears that a process is parked at its gate.
    Asks(Member),
    /// The next of those that run has nothing more to do, or nothing more in flight.
    Stops,
    /// The scheduler wanted to be woken.
    Wakes,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Gpu {
    tokens: Tokens,
    times: GateTimes,
    processes: Vec<Process>,
    free: Vec<u32>,
    running: Vec<u32>,
    /// Until when [`Process::left`] is right.
    settled: Time,
    /// Stopped, and the scheduler does not know yet how long they ran.
    untold: Vec<u32>,
    stops_at: Time,
    wakes_at: Time,
    actions: Vec<Action>,
    ahead: Vec<(Time, Event)>,
    ended: Vec<Member>,
}

impl Gpu {
    /// A GPU without pods. Its processes have [`GateTimes::in_flight_us`] in flight, whatever the settings say.
    ///
    /// # Errors
    /// What the scheduler finds wrong with its settings.
    pub fn new(settings: Settings, times: GateTimes) -> Result<Self, SettingsError> {
        let alone_us = times.in_flight_alone_us.unwrap_or(times.in_flight_us);
        let settings = Settings {
            in_flight: Span(nanos(times.in_flight_us * 1e3)),
            in_flight_alone: Span(nanos(alone_us * 1e3)),
            ..settings
        };
        Ok(Self {
            tokens: Tokens::new(settings)?,
            times,
            processes: Vec::new(),
            free: Vec::new(),
            running: Vec::new(),
            settled: Time::ZERO,
            untold: Vec::new(),
            stops_at: Time::NEVER,
            wakes_at: Time::NEVER,
            actions: Vec::new(),
            ahead: Vec::new(),
            ended: Vec::new(),
        })
    }

    /// A pod with one process comes; it has no work yet.
    ///
    /// # Errors
    /// What the scheduler refuses.
    pub fn add(&mut self, now: Time, guest: Guest) -> Result<Member, Refusal> {
        let number = match self.free.last() {
            Some(&number) => number,
            None => u32::try_from(self.processes.len()).unwrap_or(u32::MAX),
        };
        self.tokens.add_pod(now, PodId(number), guest.quota)?;
        let mut added = Ok(());
        self.call(now, |tokens, actions| {
            let (id, pod) = (ProcessId(number), PodId(number));
            added = tokens.add_process(now, id, pod, guest.sm, false, actions);
            if added.is_err() {
                tokens.remove_pod(now, pod, actions);
            }
        });
        added?;
        let _reused = self.free.pop();
        let mut process = Process::new(guest);
        let at = number as usize;
        if at < self.processes.len() {
            process.life = self.processes[at].life;
            self.processes[at] = process;
        } else {
            self.processes.push(process);
        }
        let member = self.member(number);
        if let Some(stands) = guest.stands {
            let at = now.after(stands.runs);
            self.ahead.push((at, Event::Stands(member)));
        }
        Ok(member)
    }

    /// A pod goes, whatever it does.
    pub fn remove(&mut self, now: Time, member: Member) {
        let number = member.number;
        if self.stale(member) {
            return;
        }
        self.settle(now);
        if self.processes[number as usize].runs {
            self.stop(number);
            self.foretell(now);
        }
        self.call(now, |tokens, actions| {
            tokens.remove_process(now, ProcessId(number), actions);
            tokens.remove_pod(now, PodId(number), actions);
        });
        let process = &mut self.processes[number as usize];
        process.here = false;
        process.life += 1;
        self.untold.retain(|&other| other != number);
        self.free.push(number);
    }

    /// A pod without work gets some: `work` ns at speed 1.
    pub fn give(&mut self, now: Time, member: Member, work: f64) {
        let number = member.number;
        if self.stale(member) {
            return;
        }
        let process = &mut self.processes[number as usize];
        debug_assert!(!process.wants, "it has work already");
        process.wants = true;
        (process.given, process.left) = (work, work);
        match process.gate {
            Gate::Open => self.start(now, number),
            // It asks when the scheduler has heard of the close.
            Gate::Shut if process.tells => {}
            Gate::Shut | Gate::Draining => self.ask(now, number),
        }
    }

    /// Whether a pod has nothing to do.
    #[must_use]
    pub fn is_idle(&self, member: Member) -> bool {
        !self.stale(member) && !self.processes[member.number as usize].wants
    }

    /// Carries out an event. Members that have ended their work are in [`Gpu::ended`]: each is to be told with
    /// [`Gpu::next`] what it does next, then the GPU to go on.
    pub fn happen(&mut self, now: Time, event: Event) {
        match event {
            Event::Opens(member, token) => self.opens(now, member, token),
            Event::Closes(member, token) => self.closes(now, member, token),
            Event::Closed(member, token) => self.closed(now, member, token),
            Event::Responds(member) => {
                if !self.stale(member) {
                    let process = &mut self.processes[member.number as usize];
                    process.owes_answer = process.stands_since.is_some();
                    if !process.owes_answer {
                        self.call(now, |tokens, actions| {
                            tokens.responds(now, ProcessId(member.number));
                            tokens.wake(now, actions);
                        });
                    }
                }
            }
            Event::Stands(member) => self.stands(now, member),
            Event::GoesOn(member) => self.goes_on(now, member),
            Event::Asks(member) => {
                let process = &self.processes[member.number as usize];
                let stands = process.stands_since.is_some();
                if !self.stale(member) && process.wants && process.gate == Gate::Shut && !stands {
                    self.ask(now, member.number);
                }
            }
            Event::Stops => self.stops(now),
            Event::Wakes => {
                if self.wakes_at <= now {
                    self.wakes_at = Time::NEVER;
                }
                if (self.tokens.next_wake()).is_some_and(|at| at <= now) {
                    self.call(now, |tokens, actions| tokens.wake(now, actions));
                } else {
                    self.foretell_wake();
                }
            }
        }
    }

    /// The next member that has ended its work, with its owner's name for it.
    pub fn ended(&mut self) -> Option<(Member, u32)> {
        let member = self.ended.pop()?;
        Some((member, self.processes[member.number as usize].guest.owner))
    }

    /// What a member that has ended does next, at the same moment: more work, so that its kernels follow each other
    /// without a gap, or nothing. With the work: since when it has been there to be launched.
    pub fn next(&mut self, now: Time, member: Member, work: Option<(f64, Time)>) {
        let number = member.number;
        if self.stale(member) {
            return;
        }
        let process = &mut self.processes[number as usize];
        process.wants = work.is_some();
        process.left = work.map_or(0.0, |(work, _)| work);
        process.given = process.left;
        let has_launched = |until: Time| {
            work.is_some_and(|(_, since)| since < until) && process.in_flight > NOTHING
        };
        let goes_on = match (process.gate, process.stands_since) {
            (Gate::Shut, _) => false,
            // Its launches are in flight as well.
            (Gate::Draining, _) => has_launched(process.closed_at),
            (Gate::Open, Some((stood_at, _))) => has_launched(stood_at),
            (Gate::Open, None) => work.is_some(),
        };
        if goes_on {
            return;
        }
        if let Some((_, ends)) = &mut process.stands_since {
            *ends = now.min(*ends);
        }
        let gives_back = match process.gate {
            Gate::Open => work.is_none() && process.contended,
            Gate::Draining | Gate::Shut => true,
        };
        let stands = process.stands_since.is_some();
        self.stop(number);
        // One that stands still says nothing of it.
        if gives_back && !stands {
            self.shut(now, number);
        }
    }

    /// All that have ended know what they do: foretells the next end.
    pub fn go_on(&mut self, now: Time) {
        self.foretell(now);
    }

    /// What is to be put into the agenda.
    pub fn ahead(&mut self) -> std::vec::Drain<'_, (Time, Event)> {
        self.ahead.drain(..)
    }

    /// Whether a pod runs now.
    #[must_use]
    pub fn runs(&self, member: Member) -> bool {
        !self.stale(member) && self.processes[member.number as usize].runs
    }

    /// How long a pod has run until now.
    pub fn busy(&mut self, now: Time, member: Member) -> Span {
        self.settle(now);
        self.processes[member.number as usize].busy
    }

    /// What the scheduler knows of a pod.
    #[must_use]
    pub fn account(&self, member: Member) -> Option<&Account> {
        self.tokens.account(PodId(member.number))
    }

    /// SMs of the processes that run now, in hundredths of a percent.
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

    fn stale(&self, member: Member) -> bool {
        let process = self.processes.get(member.number as usize);
        process.is_none_or(|process| !process.here || process.life != member.life)
    }

    fn opens(&mut self, now: Time, member: Member, token: u64) {
        if self.stale(member) || self.processes[member.number as usize].token != token {
            return;
        }
        let process = &mut self.processes[member.number as usize];
        if process.stands_since.is_some() {
            process.order = Some(Order::Opens);
            return;
        }
        process.gate = Gate::Open;
        if process.wants {
            self.start(now, member.number);
        } else if process.contended {
            self.shut(now, member.number);
        }
    }

    fn closes(&mut self, now: Time, member: Member, token: u64) {
        if self.stale(member) || self.processes[member.number as usize].token != token {
            return;
        }
        self.settle(now);
        let process = &mut self.processes[member.number as usize];
        if process.stands_since.is_some() {
            process.order = Some(Order::Closes);
            return;
        }
        // It may be giving its token back already.
        if process.gate != Gate::Open {
            return;
        }
        if process.runs {
            process.gate = Gate::Draining;
            process.closed_at = now;
            process.in_flight = process.launched(process.bound * process.rate);
            self.foretell(now);
        } else {
            self.shut(now, member.number);
        }
    }

    fn closed(&mut self, now: Time, member: Member, token: u64) {
        if self.stale(member) {
            return;
        }
        let process = &mut self.processes[member.number as usize];
        process.tells = false;
        if process.token != token {
            return;
        }
        let held = std::mem::take(&mut process.holds);
        process.contended = false;
        let wants = process.wants;
        // A token that was revoked is given back already.
        if held {
            let id = ProcessId(member.number);
            self.call(now, |tokens, actions| tokens.closed(now, id, actions));
        }
        if wants {
            let at = now.after(self.times.ask());
            self.ahead.push((at, Event::Asks(member)));
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
                let stands = process.stands_since.is_some();
                self.stop(number);
                // One that stands still says nothing of it.
                if !stands {
                    self.shut(now, number);
                }
            }
        }
        if self.ended.is_empty() {
            self.foretell(now);
        }
    }

    /// Gives its token back, or says that it has shut its gate.
    fn shut(&mut self, now: Time, number: u32) {
        let member = self.member(number);
        let process = &mut self.processes[number as usize];
        process.gate = Gate::Shut;
        process.in_flight = f64::INFINITY;
        process.tells = true;
        let token = process.token;
        let at = now.after(self.times.message());
        self.ahead.push((at, Event::Closed(member, token)));
    }

    /// A process stands still: what it has in flight runs to its end, and nothing else happens.
    fn stands(&mut self, now: Time, member: Member) {
        let number = member.number as usize;
        let Some(stands) = self.processes[number]
            .guest
            .stands
            .filter(|_| !self.stale(member))
        else {
            return;
        };
        self.settle(now);
        let process = &mut self.processes[number];
        let mut ends = now;
        if process.runs {
            if process.gate == Gate::Open {
                process.in_flight = process.launched(process.bound * process.rate);
            }
            // The next burst's launches among them, if it is there.
            ends = now.after(process.lasts(process.in_flight));
        }
        process.stands_since = Some((now, ends));
        self.foretell(now);
        let at = now.after(stands.stands);
        self.ahead.push((at, Event::GoesOn(member)));
    }

    /// It goes on where it was, and does what it was ordered meanwhile.
    fn goes_on(&mut self, now: Time, member: Member) {
        let number = member.number;
        let Some(stands) = self.processes[number as usize].guest.stands else {
            return;
        };
        if self.stale(member) {
            return;
        }
        let at = now.after(stands.runs);
        self.ahead.push((at, Event::Stands(member)));
        self.settle(now);
        let process = &mut self.processes[number as usize];
        process.stands_since = None;
        if std::mem::take(&mut process.owes_answer) {
            let at = now.after(self.times.message());
            self.ahead.push((at, Event::Responds(member)));
        }
        if process.gate == Gate::Open {
            process.in_flight = f64::INFINITY;
        }
        let (order, token) = (process.order.take(), process.token);
        match (order, process.gate) {
            (Some(Order::Opens), _) => self.opens(now, member, token),
            (Some(Order::Closes), _) => self.closes(now, member, token),
            (None, Gate::Open) if !process.runs && process.wants => self.start(now, number),
            (None, Gate::Open) if !process.runs && process.contended => self.shut(now, number),
            (None, Gate::Draining) if !process.runs => self.shut(now, number),
            (None, Gate::Shut) if process.wants && !process.holds && !process.tells => {
                let at = now.after(self.times.ask());
                self.ahead.push((at, Event::Asks(member)));
            }
            _ => {}
        }
        self.foretell(now);
    }

    fn start(&mut self, now: Time, number: u32) {
        self.settle(now);
        self.processes[number as usize].runs = true;
        self.running.push(number);
        self.foretell(now);
    }

    fn stop(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        process.runs = false;
        process.idle_since = self.settled;
        self.running.retain(|&other| other != number);
        self.untold.push(number);
    }

    /// Lets time pass for those that run.
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

    /// The speeds from now on, and the next end.
    fn foretell(&mut self, now: Time) {
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
            let Guest {
                speed,
                interference,
                ..
            } = process.guest;
            process.rate = speed * crowded / (1.0 + interference * neighbours);
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

    fn foretell_wake(&mut self) {
        if let Some(at) = self.tokens.next_wake()
            && at < self.wakes_at
        {
            self.wakes_at = at;
            self.ahead.push((at, Event::Wakes));
        }
    }

    fn ask(&mut self, now: Time, number: u32) {
        let id = ProcessId(number);
        self.call(now, |tokens, actions| tokens.ask(now, id, actions));
    }

    /// Reports what holders have in flight.
    fn report_use(&mut self, now: Time) {
        for (number, process) in (0..).zip(&self.processes) {
            if !process.here || !process.holds {
                continue;
            }
            let id = ProcessId(number);
            match process.stands_since {
                Some((since, ends)) if ends > since => {
                    self.tokens.unfinished(now, id, Some(since));
                    self.tokens.busy(now, id, since, Some(ends.since(since)));
                }
                None if process.runs => {
                    self.tokens.active(now, id);
                    self.tokens.unfinished(now, id, None);
                    // It launches on and on; should it stop doing so, this much is in flight.
                    let in_flight = process.launched(process.bound * process.rate);
                    self.tokens
                        .busy(now, id, now, Some(process.lasts(in_flight)));
                }
                Some(_) | None => self.tokens.idle(now, id, process.idle_since),
            }
        }
    }

    /// Tells the scheduler what is known, calls it, and carries out what it orders.
    fn call(&mut self, now: Time, body: impl FnOnce(&mut Tokens, &mut Vec<Action>)) {
        self.settle(now);
        self.report_use(now);
        for &number in self.untold.iter().chain(&self.running) {
            let process = &mut self.processes[number as usize];
            // One that stands still publishes nothing.
            if process.stands_since.is_some() {
                continue;
            }
            let delta = process.busy.less(process.told);
            if delta > Span::ZERO {
                process.told = process.busy;
                self.tokens.used(now, PodId(number), delta);
            }
        }
        let processes = &self.processes;
        self.untold
            .retain(|&number| processes[number as usize].stands_since.is_some());
        let mut actions = std::mem::take(&mut self.actions);
        body(&mut self.tokens, &mut actions);
        let message = now.after(self.times.message());
        for action in actions.drain(..) {
            let (Action::Grant { process, .. }
            | Action::Extend { process, .. }
            | Action::Close { process, .. }
            | Action::Contended { process, .. }
            | Action::Probe { process }
            | Action::Revoke { process, .. }) = action;
            #[expect(clippy::cast_precision_loss, reason = "milliseconds, in ns")]
            let bound = self.tokens.in_flight(now, PodId(process.0)).0 as f64;
            match action {
                Action::Grant { .. } => {
                    let own = &mut self.processes[process.0 as usize];
                    own.contended = false;
                    own.bound = bound;
                    own.holds = true;
                    own.token += 1;
                    own.idle_since = now;
                    own.order = None;
                    let token = own.token;
                    let member = self.member(process.0);
                    self.ahead.push((message, Event::Opens(member, token)));
                }
                // The backstop: whoever is renewed goes on.
                Action::Extend { .. } => {
                    self.processes[process.0 as usize].bound = bound;
                }
                Action::Close { .. } => {
                    let member = self.member(process.0);
                    let token = self.processes[process.0 as usize].token;
                    self.ahead.push((message, Event::Closes(member, token)));
                }
                Action::Contended { contended, .. } => {
                    let own = &mut self.processes[process.0 as usize];
                    own.contended = contended;
                    own.bound = bound;
                    let stands = own.stands_since.is_some();
                    if contended && own.gate == Gate::Open && !own.wants && !stands {
                        self.shut(now, process.0);
                    }
                }
                Action::Probe { .. } => {
                    let own = &self.processes[process.0 as usize];
                    let is_seen = own.guest.stands.is_some_and(|stands| stands.is_seen);
                    if own.stands_since.is_some() && is_seen {
                        self.tokens.stopped(now, process);
                        self.processes[process.0 as usize].owes_answer = true;
                    } else {
                        let at = message.after(self.times.message());
                        let member = self.member(process.0);
                        self.ahead.push((at, Event::Responds(member)));
                    }
                }
                Action::Revoke { .. } => {
                    let member = self.member(process.0);
                    let own = &mut self.processes[process.0 as usize];
                    own.holds = false;
                    own.contended = false;
                    own.token += 1;
                    own.order = None;
                    // What is in flight runs to its end all the same.
                    own.gate = if own.runs { Gate::Draining } else { Gate::Shut };
                    if !own.runs {
                        own.in_flight = f64::INFINITY;
                    } else if own.in_flight.is_infinite() {
                        own.closed_at = now;
                        own.in_flight = own.launched(own.bound * own.rate);
                        self.foretell(now);
                    }
                    let own = &self.processes[process.0 as usize];
                    if own.wants && own.stands_since.is_none() {
                        let at = now.after(self.times.ask());
                        self.ahead.push((at, Event::Asks(member)));
                    }
                }
            }
        }
        self.actions = actions;
        self.foretell_wake();
    }
}
