//! A small machine for tests: processes with kernels, a GPU that runs every open gate's kernels at full speed, and
//! messages that take time. Kernels are not simulated one by one: a process with an open gate runs without
//! interruption, and a close lets work in flight run to its end.

#![expect(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of the machine"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use policy::tokens::{
    Action, Activity, PodId, ProcessId, ProcessUsage, Quota, Settings, Share, Tokens, Usage,
};
use policy::{Span, Time};

/// Largest work in flight of a process in nanoseconds, in addition to one longer launch.
pub const IN_FLIGHT: u64 = 2_000_000;
/// Delay in nanoseconds from the last kernel of one process to its notice by the agent, and from a grant to the first
/// kernel of the next.
pub const MESSAGE: u64 = 125_000;
/// Delay in nanoseconds from a close to the request of a process with more work, whose thread finds the gate shut.
pub const ASK: u64 = 50_000;
/// Initial time of the clock, since real ones do not start at zero.
const BEGIN: u64 = 86_400 * SECOND;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// The work of a process while it holds a token.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Length of one launch in nanoseconds.
    pub kernel: u64,
    /// Work until the next pause; `u64::MAX`: it never pauses.
    pub burst: u64,
    pub pause: u64,
    /// Time at which the process starts.
    pub from: u64,
    /// The way in which the process uses its tokens.
    pub manner: Manner,
}

/// The way in which a process uses its tokens. In all but the first it reports its work in flight, so that the
/// scheduler can revoke tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Runs its work, and reports no more than required.
    Plain,
    /// Runs its work, and reports work in flight.
    Reporting,
    /// Runs for the first time and is suspended for the second, repeatedly, as a container at its CPU limit is; or with
    /// `seen` as one that is stopped by a signal, which the agent detects.
    Stops { runs: u64, stands: u64, seen: bool },
    /// Never launches, and asks again as soon as its token is revoked.
    NeverLaunches,
    /// Claims to have this much in flight, launches nothing and answers nothing.
    Claims(u64),
}

impl Work {
    pub const fn always(kernel: u64) -> Self {
        Self {
            kernel,
            burst: u64::MAX,
            pause: 0,
            from: 0,
            manner: Manner::Plain,
        }
    }

    pub const fn pausing(kernel: u64, burst: u64, pause: u64) -> Self {
        Self {
            kernel,
            burst,
            pause,
            from: 0,
            manner: Manner::Plain,
        }
    }

    pub const fn with(self, manner: Manner) -> Self {
        Self { manner, ..self }
    }

    /// Returns the longest run after a close.
    pub fn launch(&self) -> u64 {
        self.kernel.max(IN_FLIGHT)
    }
}

struct Machine {
    pod: usize,
    sm: u32,
    work: Work,
    open: bool,
    closing: bool,
    contended: bool,
    /// Incremented with every run, so that old events are void.
    run: u64,
    running_since: Option<u64>,
    /// Work left of this burst.
    left: u64,
    wants: bool,
    until: u64,
    /// Time since which the process is suspended.
    stands_since: Option<u64>,
    /// Whether the process was probed while suspended.
    owes_answer: bool,
    /// Time by which the work in flight of the process ends, by its own report.
    ends: u64,
    /// Time of the last grant to the process.
    granted_at: u64,
    /// Time at which the process last stopped computing.
    computed_to: u64,
    /// Incremented with every token, so that old messages are void.
    token: u64,
    /// Whether the scheduler counts it as a holder.
    holds: bool,
}

/// The times in which at least one kernel of a pod ran.
#[derive(Default)]
pub struct Ledger {
    pub busy: Vec<(u64, u64)>,
    running: u32,
    since: u64,
    total: u64,
    reported: u64,
}

impl Ledger {
    /// Returns the part of `from..to` in which it ran.
    pub fn within(&self, from: u64, to: u64) -> u64 {
        let first = self.busy.partition_point(|&(_, end)| end <= from);
        self.busy[first..]
            .iter()
            .take_while(|&&(start, _)| start < to)
            .map(|&(start, end)| end.min(to) - start.max(from))
            .sum()
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy, Debug)]
enum Event {
    /// The gate of a process opens.
    Opens(usize, u64),
    /// The order to close arrives.
    Closes(usize, u64),
    /// The last kernel of a process has ended after a close.
    Drained(usize, u64),
    /// The burst of a process has ended, so that it pauses.
    Paused(usize, u64),
    /// The agent receives the report that the gate is shut.
    Closed(usize, u64),
    /// A process is suspended.
    Suspended(usize),
    /// The work of a suspended process that was in flight has ended.
    Halts(usize, u64),
    /// A process is resumed.
    Resumed(usize),
    /// The agent receives a heartbeat.
    Responds(usize),
    /// The agent receives the report that a process is parked at its shut gate.
    Asks(usize),
    /// A process has work again after a pause.
    Wants(usize),
    Wake(u64),
    /// An event of the test itself.
    Quota(usize, Share, Share),
}

pub struct Simulation {
    pub tokens: Tokens,
    pub ledgers: Vec<Ledger>,
    pub quotas: Vec<Quota>,
    /// Integral over time of the SMs in use, and over the time in which a runnable process waited.
    pub idle_while_waiting: u64,
    /// Number of grants since the start.
    pub grants: u64,
    /// Number of revocations since the start.
    pub revoked: u64,
    pub now: u64,
    processes: Vec<Machine>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    wakes: u64,
    accounted: u64,
}

impl Simulation {
    pub fn new(settings: Settings) -> Self {
        Self {
            tokens: Tokens::new(settings).unwrap(),
            ledgers: Vec::new(),
            quotas: Vec::new(),
            idle_while_waiting: 0,
            grants: 0,
            revoked: 0,
            now: 0,
            processes: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            wakes: 0,
            accounted: 0,
        }
    }

    /// Adds a pod with one process per entry of `works`, each with `sm` hundredths of a percent.
    pub fn pod(&mut self, request: u32, limit: u32, sm: u32, works: &[Work]) -> usize {
        let pod = self.ledgers.len();
        let share = |ppm| Share::from_parts_per_million(ppm).unwrap();
        let quota = Quota::new(share(request), share(limit)).unwrap();
        let id = PodId(u32::try_from(pod).unwrap());
        self.tokens.add_pod(instant(self.now), id, quota).unwrap();
        self.ledgers.push(Ledger::default());
        self.quotas.push(quota);
        for &work in works {
            let process = self.processes.len();
            let mut actions = Vec::new();
            self.tokens
                .add_process(
                    instant(self.now),
                    name(process),
                    id,
                    sm,
                    false,
                    &mut actions,
                )
                .unwrap();
            self.processes.push(Machine {
                pod,
                sm,
                work,
                open: false,
                closing: false,
                contended: false,
                run: 0,
                running_since: None,
                left: 0,
                wants: false,
                until: 0,
                stands_since: None,
                owes_answer: false,
                ends: 0,
                granted_at: 0,
                computed_to: 0,
                token: 0,
                holds: false,
            });
            self.at(work.from.max(self.now), Event::Wants(process));
            if let Manner::Stops { runs, .. } = work.manner {
                self.at(work.from.max(self.now) + runs, Event::Suspended(process));
            }
        }
        pod
    }

    pub fn quota_at(&mut self, at: u64, pod: usize, request: Share, limit: Share) {
        self.at(at, Event::Quota(pod, request, limit));
    }

    pub fn run(&mut self, until: u64) {
        while let Some(&Reverse((at, _, event))) = self.events.peek() {
            if at > until {
                break;
            }
            self.events.pop();
            self.pass_to(at);
            self.handle(event);
        }
        self.pass_to(until);
        for pod in 0..self.ledgers.len() {
            // So that the ledgers are complete.
            let ledger = &mut self.ledgers[pod];
            if ledger.running > 0 && until > ledger.since {
                ledger.busy.push((ledger.since, until));
                ledger.total += until - ledger.since;
                ledger.since = until;
            }
        }
    }

    fn at(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn pass_to(&mut self, at: u64) {
        self.now = at;
        let passed = at - self.accounted;
        self.accounted = at;
        let running = self.processes.iter().any(|p| p.running_since.is_some());
        let parked = self
            .processes
            .iter()
            .any(|p| p.wants && !p.open && p.stands_since.is_none() && !p.never_launches());
        if parked && !running {
            self.idle_while_waiting += passed;
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Opens(p, token) => {
                let process = &mut self.processes[p];
                if process.token != token {
                    return;
                }
                process.open = true;
                if process.stands_since.is_some() || process.never_launches() {
                    return;
                }
                if process.wants {
                    self.start(p);
                } else if process.contended && !process.closing {
                    self.give_back(p);
                }
            }
            Event::Closes(p, token) => {
                let process = &mut self.processes[p];
                if process.token != token || process.stands_since.is_some() {
                    return;
                }
                assert!(process.closing, "process {p} at {now}: a close too many");
                if matches!(process.work.manner, Manner::Claims(_)) {
                    return;
                }
                if let Some(since) = process.running_since {
                    let kernel = process.work.kernel;
                    let in_flight = if kernel > IN_FLIGHT {
                        kernel - (now - since) % kernel
                    } else {
                        IN_FLIGHT
                    };
                    let run = process.run;
                    self.at(now + in_flight, Event::Drained(p, run));
                } else {
                    self.report_closed(p);
                }
            }
            Event::Drained(p, run) if self.processes[p].run == run => {
                self.stop(p);
                self.report_closed(p);
            }
            Event::Paused(p, run) if self.processes[p].run == run => {
                self.stop(p);
                let process = &mut self.processes[p];
                if process.closing {
                    // Its close was delivered while it ran.
                    self.report_closed(p);
                } else if process.contended {
                    self.give_back(p);
                }
            }
            Event::Drained(..) | Event::Paused(..) => {}
            Event::Suspended(p) => {
                let process = &mut self.processes[p];
                let Manner::Stops { stands, .. } = process.work.manner else {
                    unreachable!("only such processes stand still");
                };
                process.stands_since = Some(now);
                process.ends = now;
                process.run += 1;
                if let Some(since) = process.running_since {
                    let kernel = process.work.kernel;
                    let left = if kernel > IN_FLIGHT {
                        kernel - (now - since) % kernel
                    } else {
                        IN_FLIGHT
                    };
                    process.ends = now + left;
                    let run = process.run;
                    self.at(now + left, Event::Halts(p, run));
                }
                self.at(now + stands, Event::Resumed(p));
            }
            Event::Halts(p, run) if self.processes[p].run == run => self.stop(p),
            Event::Halts(..) => {}
            Event::Resumed(p) => {
                let process = &mut self.processes[p];
                let Manner::Stops { runs, .. } = process.work.manner else {
                    unreachable!("only such processes stand still");
                };
                process.stands_since = None;
                let owes_answer = process.owes_answer;
                self.at(now + runs, Event::Suspended(p));
                if owes_answer {
                    self.at(now + MESSAGE, Event::Responds(p));
                }
                if self.processes[p].running_since.is_some() {
                    // It was not suspended for long.
                    self.stop(p);
                }
                let process = &mut self.processes[p];
                if process.holds && process.closing {
                    self.report_closed(p);
                } else if process.open && process.wants {
                    self.start(p);
                } else if process.wants && !process.holds {
                    self.at(now + ASK, Event::Asks(p));
                }
            }
            Event::Responds(p) => {
                let process = &mut self.processes[p];
                process.owes_answer = process.stands_since.is_some();
                if !process.owes_answer {
                    self.call(|tokens, now, _actions| tokens.responds(now, name(p)));
                }
            }
            Event::Closed(p, token) => {
                let process = &mut self.processes[p];
                if process.token != token || !process.holds {
                    return;
                }
                process.holds = false;
                process.closing = false;
                process.contended = false;
                let wants = process.wants;
                self.call(|tokens, now, actions| tokens.closed(now, name(p), actions));
                if wants {
                    self.at(now + ASK, Event::Asks(p));
                }
            }
            Event::Asks(p) => {
                let process = &self.processes[p];
                if process.wants && !process.open && process.stands_since.is_none() {
                    self.call(|tokens, now, actions| tokens.ask(now, name(p), actions));
                }
            }
            Event::Wants(p) => {
                let process = &mut self.processes[p];
                assert!(!process.wants && process.running_since.is_none());
                process.wants = true;
                process.left = process.work.burst;
                if process.open && !process.closing {
                    self.start(p);
                } else {
                    self.call(|tokens, now, actions| tokens.ask(now, name(p), actions));
                }
            }
            Event::Wake(wake) => {
                if wake == self.wakes {
                    self.call(|tokens, now, actions| tokens.wake(now, actions));
                }
            }
            Event::Quota(pod, request, limit) => {
                let quota = Quota::new(request, limit).unwrap();
                self.quotas[pod] = quota;
                let id = PodId(u32::try_from(pod).unwrap());
                self.call(|tokens, now, actions| {
                    tokens.set_quota(now, id, quota, actions).unwrap();
                });
            }
        }
    }

    fn start(&mut self, p: usize) {
        let now = self.now;
        let process = &mut self.processes[p];
        process.run += 1;
        process.running_since = Some(now);
        let (left, run) = (process.left, process.run);
        let ledger = &mut self.ledgers[process.pod];
        if ledger.running == 0 {
            ledger.since = now;
        }
        ledger.running += 1;
        if left != u64::MAX {
            self.at(now + left, Event::Paused(p, run));
        }
    }

    fn stop(&mut self, p: usize) {
        let now = self.now;
        let process = &mut self.processes[p];
        process.run += 1;
        let since = process.running_since.take().unwrap();
        process.computed_to = now;
        if process.left != u64::MAX {
            process.left -= (now - since).min(process.left);
            process.wants = process.left > 0;
            if process.left == 0 {
                let pause = process.work.pause;
                self.at(now + pause, Event::Wants(p));
            }
        }
        let ledger = &mut self.ledgers[self.processes[p].pod];
        ledger.running -= 1;
        if ledger.running == 0 && now > ledger.since {
            ledger.busy.push((ledger.since, now));
            ledger.total += now - ledger.since;
        }
    }

    fn give_back(&mut self, p: usize) {
        // It has to ask again, once the agent knows.
        self.processes[p].closing = true;
        self.report_closed(p);
    }

    fn report_closed(&mut self, p: usize) {
        let process = &mut self.processes[p];
        process.open = false;
        let token = process.token;
        self.at(self.now + MESSAGE, Event::Closed(p, token));
    }

    /// Adds the work in flight of a pod's holders that report it. Returns whether their kernel time is known.
    fn add_work(&self, pod: usize, usage: &mut Vec<ProcessUsage>) -> bool {
        let now = self.now;
        let mut is_known = true;
        for (p, process) in self.processes.iter().enumerate() {
            if process.pod != pod || process.work.manner == Manner::Plain {
                continue;
            }
            is_known &= process.stands_since.is_none();
            if !process.holds {
                continue;
            }
            let in_flight_to = match (process.work.manner, process.stands_since) {
                (Manner::NeverLaunches, _) => None,
                (Manner::Claims(claim), _) => {
                    Some((process.granted_at, process.granted_at + claim))
                }
                (_, Some(since)) => (process.ends > since).then_some((since, process.ends)),
                (_, None) => process.running_since.map(|_| {
                    let most = process.work.kernel.max(IN_FLIGHT);
                    (now, now + most)
                }),
            };
            let at = match usage.iter().position(|own| own.process == name(p)) {
                Some(at) => at,
                None => {
                    usage.push(inactive(p));
                    usage.len() - 1
                }
            };
            let own = &mut usage[at];
            match in_flight_to {
                None => {
                    let since = process.granted_at.max(process.computed_to);
                    own.activity = Activity::Idle {
                        since: instant(since),
                    };
                }
                Some((since, ends)) => {
                    if process.stands_since.is_some() || process.never_launches() {
                        own.unfinished_since = Some(instant(since));
                    }
                    own.activity = Activity::Busy {
                        since: instant(since),
                        expected: Some(Span(ends - since)),
                    };
                }
            }
        }
        is_known
    }

    /// Reports pending usage, calls `body`, and carries out its actions.
    fn call(&mut self, body: impl FnOnce(&mut Tokens, Time, &mut Vec<Action>)) {
        let now = self.now;
        for pod in 0..self.ledgers.len() {
            let mut known = now;
            let mut usage = Vec::new();
            for (p, process) in self.processes.iter().enumerate() {
                let Some(since) = process.running_since.filter(|_| process.pod == pod) else {
                    continue;
                };
                if process.stands_since.is_some() {
                    continue;
                }
                let kernel = process.work.kernel;
                let mut own = inactive(p);
                own.is_active = true;
                if kernel > IN_FLIGHT {
                    let current = now - (now - since) % kernel;
                    known = known.min(current);
                    own.unfinished_since = Some(instant(current));
                }
                usage.push(own);
            }
            let mut used = 0;
            if self.add_work(pod, &mut usage) {
                let ledger = &mut self.ledgers[pod];
                let mut busy = ledger.total;
                if ledger.running > 0 {
                    busy += known.saturating_sub(ledger.since);
                }
                if busy > ledger.reported {
                    used = busy - ledger.reported;
                    ledger.reported = busy;
                }
            }
            let usage = Usage {
                pod: PodId(u32::try_from(pod).unwrap()),
                used: Span(used),
                processes: &usage,
            };
            self.tokens.report(instant(now), &usage);
        }
        let mut actions = Vec::new();
        body(&mut self.tokens, instant(now), &mut actions);
        for action in actions {
            self.carry_out(action);
        }
        self.wakes += 1;
        if let Some(at) = self.tokens.next_wake() {
            let at = at.0 - BEGIN;
            assert!(at > now, "a wake at {at}, which is not after {now}");
            let wakes = self.wakes;
            self.at(at, Event::Wake(wakes));
        }
    }

    fn carry_out(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Grant { process, until, .. } => {
                let p = process.0 as usize;
                assert!(!self.processes[p].open, "process {p} has a token already");
                let own = &mut self.processes[p];
                own.until = until.0;
                own.contended = false;
                own.granted_at = now;
                own.holds = true;
                own.token += 1;
                let token = own.token;
                self.grants += 1;
                self.at(now + MESSAGE, Event::Opens(p, token));
            }
            Action::Extend { process, until } => {
                let p = process.0 as usize;
                assert!(until.0 > self.processes[p].until);
                self.processes[p].until = until.0;
            }
            Action::Close { process, .. } => {
                let p = process.0 as usize;
                // It may be releasing its token already.
                if !self.processes[p].closing {
                    self.processes[p].closing = true;
                    let token = self.processes[p].token;
                    self.at(now + MESSAGE, Event::Closes(p, token));
                }
            }
            Action::Contended { process, contended } => {
                let p = process.0 as usize;
                let process = &mut self.processes[p];
                process.contended = contended;
                let idle = process.open && process.running_since.is_none();
                let lives = process.stands_since.is_none() && !process.never_launches();
                if contended && idle && !process.closing && lives {
                    self.give_back(p);
                }
            }
            Action::Probe { process } => {
                let p = process.0 as usize;
                let process = &self.processes[p];
                match (process.work.manner, process.stands_since) {
                    (Manner::Claims(_), _) => {}
                    (Manner::Stops { seen: true, .. }, Some(_)) => {
                        self.tokens.stopped(instant(now), name(p));
                        self.processes[p].owes_answer = true;
                    }
                    _ => self.at(now + 2 * MESSAGE, Event::Responds(p)),
                }
            }
            Action::Revoke { process, .. } => {
                let p = process.0 as usize;
                let process = &mut self.processes[p];
                assert!(process.holds, "process {p} has no token");
                process.holds = false;
                process.open = false;
                process.closing = false;
                process.contended = false;
                process.token += 1;
                self.revoked += 1;
                if process.running_since.is_some() && process.stands_since.is_none() {
                    panic!("process {p} at {now} computes and loses its token");
                }
                if process.wants && process.stands_since.is_none() {
                    self.at(now + ASK, Event::Asks(p));
                }
            }
        }
    }
}

impl Machine {
    const fn never_launches(&self) -> bool {
        matches!(self.work.manner, Manner::NeverLaunches | Manner::Claims(_))
    }
}

/// Returns a time of the machine on the clock of the scheduler.
const fn instant(at: u64) -> Time {
    Time(BEGIN + at)
}

/// Returns the usage of a process of which nothing is known.
fn inactive(process: usize) -> ProcessUsage {
    ProcessUsage {
        process: name(process),
        is_active: false,
        unfinished_since: None,
        activity: Activity::Unknown,
    }
}

fn name(process: usize) -> ProcessId {
    ProcessId(u32::try_from(process).unwrap())
}
