//! A small machine for tests: processes with kernels, a GPU that runs every open gate's kernels at full speed,
//! and messages that take time. Kernels are not simulated one by one: a process with an open gate runs
//! without a break, and a close lets what is in flight run to its end.

#![expect(
    dead_code,
    unreachable_pub,
    reason = "each test file uses its own part of the machine"
)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use policy::tokens::{Action, PodId, ProcessId, Quota, Settings, Share, Tokens};
use policy::{Span, Time};

/// What a process may have in flight; one longer launch in any case.
pub const IN_FLIGHT: u64 = 2_000_000;
/// From the last kernel of one to the agent's knowing of it, and from its grant to the first of another.
pub const MESSAGE: u64 = 125_000;
/// From a close to the question of a process that has more to do: its thread finds the gate shut.
pub const ASK: u64 = 50_000;
/// What the clock says when it begins: nobody's starts at zero.
const BEGIN: u64 = 86_400 * SECOND;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// What a process does when it has a token.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// One launch.
    pub kernel: u64,
    /// Work until the next pause; `u64::MAX`: it never pauses.
    pub burst: u64,
    pub pause: u64,
    /// When it begins.
    pub from: u64,
}

impl Work {
    pub const fn always(kernel: u64) -> Self {
        Self {
            kernel,
            burst: u64::MAX,
            pause: 0,
            from: 0,
        }
    }

    pub const fn pausing(kernel: u64, burst: u64, pause: u64) -> Self {
        Self {
            kernel,
            burst,
            pause,
            from: 0,
        }
    }

    /// What may run after a close.
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
    /// Changes with every run, so that old events are void.
    run: u64,
    running_since: Option<u64>,
    /// Of this burst.
    left: u64,
    wants: bool,
    until: u64,
}

/// When at least one kernel of a pod ran.
#[derive(Default)]
pub struct Ledger {
    pub busy: Vec<(u64, u64)>,
    running: u32,
    since: u64,
    total: u64,
    told: u64,
}

impl Ledger {
    /// Time of `from..to` in which it ran.
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
    Opens(usize),
    /// The order to close has come.
    Closes(usize),
    /// Its last kernel has ended after a close.
    Drained(usize, u64),
    /// Its burst has ended.
    Paused(usize, u64),
    /// The agent hears that the gate is shut.
    Closed(usize),
    /// The agent hears that it is parked at the shut gate.
    Asks(usize),
    /// It has something to do again.
    Wants(usize),
    Wake(u64),
    /// A caller's own.
    Quota(usize, Share, Share),
}

pub struct Simulation {
    pub tokens: Tokens,
    pub ledgers: Vec<Ledger>,
    pub quotas: Vec<Quota>,
    /// SMs in use × time, and the same for time in which somebody who might run waited.
    pub idle_while_waiting: u64,
    /// Tokens that were given.
    pub grants: u64,
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
            now: 0,
            processes: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            wakes: 0,
            accounted: 0,
        }
    }

    /// A pod with one process per entry of `works`, each with `sm` hundredths of a percent.
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
            });
            self.at(work.from.max(self.now), Event::Wants(process));
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
            // So that the ledgers say all.
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
        let parked = self.processes.iter().any(|p| p.wants && !p.open);
        if parked && !running {
            self.idle_while_waiting += passed;
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Opens(p) => {
                let process = &mut self.processes[p];
                process.open = true;
                if process.wants {
                    self.start(p);
                } else if process.contended && !process.closing {
                    self.give_back(p);
                }
            }
            Event::Closes(p) => {
                let process = &mut self.processes[p];
                assert!(process.closing, "process {p} at {now}: a close too many");
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
                    process.open = false;
                    self.at(now + MESSAGE, Event::Closed(p));
                }
            }
            Event::Drained(p, run) if self.processes[p].run == run => {
                self.stop(p);
                self.processes[p].open = false;
                self.at(now + MESSAGE, Event::Closed(p));
            }
            Event::Paused(p, run) if self.processes[p].run == run => {
                self.stop(p);
                let process = &mut self.processes[p];
                if process.closing {
                    // Its close was delivered while it ran.
                    process.open = false;
                    self.at(now + MESSAGE, Event::Closed(p));
                } else if process.contended {
                    self.give_back(p);
                }
            }
            Event::Drained(..) | Event::Paused(..) => {}
            Event::Closed(p) => {
                let process = &mut self.processes[p];
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
                if process.wants && !process.open {
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
        let process = &mut self.processes[p];
        process.open = false;
        // Until the agent knows, it has to be asked for anew.
        process.closing = true;
        self.at(self.now + MESSAGE, Event::Closed(p));
    }

    /// Tells what is known, calls, and carries out what is ordered.
    fn call(&mut self, body: impl FnOnce(&mut Tokens, Time, &mut Vec<Action>)) {
        let now = self.now;
        for pod in 0..self.ledgers.len() {
            let mut known = now;
            for (p, process) in self.processes.iter().enumerate() {
                let Some(since) = process.running_since.filter(|_| process.pod == pod) else {
                    continue;
                };
                let kernel = process.work.kernel;
                self.tokens.active(instant(now), name(p));
                if kernel > IN_FLIGHT {
                    let current = now - (now - since) % kernel;
                    known = known.min(current);
                    self.tokens
                        .unfinished(instant(now), name(p), Some(instant(current)));
                } else {
                    self.tokens.unfinished(instant(now), name(p), None);
                }
            }
            let ledger = &mut self.ledgers[pod];
            let mut busy = ledger.total;
            if ledger.running > 0 {
                busy += known.saturating_sub(ledger.since);
            }
            if busy > ledger.told {
                let id = PodId(u32::try_from(pod).unwrap());
                self.tokens.used(instant(now), id, Span(busy - ledger.told));
                ledger.told = busy;
            }
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
                self.processes[p].until = until.0;
                self.processes[p].contended = false;
                self.grants += 1;
                self.at(now + MESSAGE, Event::Opens(p));
            }
            Action::Extend { process, until } => {
                let p = process.0 as usize;
                assert!(until.0 > self.processes[p].until);
                self.processes[p].until = until.0;
            }
            Action::Close { process, .. } => {
                let p = process.0 as usize;
                // It may be giving its token back already.
                if !self.processes[p].closing {
                    self.processes[p].closing = true;
                    self.at(now + MESSAGE, Event::Closes(p));
                }
            }
            Action::Contended { process, contended } => {
                let p = process.0 as usize;
                let process = &mut self.processes[p];
                process.contended = contended;
                let idle = process.open && process.running_since.is_none();
                if contended && idle && !process.closing {
                    self.give_back(p);
                }
            }
        }
    }
}

/// A time of the machine on the clock of the scheduler.
const fn instant(at: u64) -> Time {
    Time(BEGIN + at)
}

fn name(process: usize) -> ProcessId {
    ProcessId(u32::try_from(process).unwrap())
}
