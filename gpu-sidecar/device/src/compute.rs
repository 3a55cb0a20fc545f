//! The SMs of one GPU or slice: whose kernels run, on how many, how fast.
//!
//! The clients of an MPS server run side by side, each within its active-thread percentage. They are together one
//! participant in time slicing, and so is every process that is under no MPS server: one participant runs at a time, in
//! turns. With one that has work there are no turns. Kernels that together ask for more SMs than there are run slower in
//! proportion (workloads §8).
//!
//! A kernel's work is its duration in fixed point, its rate a whole number of the same units per nanosecond: what
//! was done is subtracted exactly, however often the rate changes.

use std::collections::BTreeMap;

use crate::ids::{IdMap, Slab};
use crate::law::{FULL_SPEED, Law};
use crate::ledger::{Entry, Held, Job, Ledger, ProcessId};
use crate::{Span, Time};

/// An MPS server (control daemon), whose clients run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MpsServer(pub u32);

/// How participants take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// How long one runs while others wait.
    pub slice: Span,
    /// What the change costs.
    pub switch: Span,
}

/// A kernel as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// How long it takes alone, on as many SMs as it asks for.
    pub duration: Span,
    /// SMs it can use, of a whole GPU.
    pub sms: u32,
    /// How its speed follows from fewer.
    pub law: Law,
    /// By how much each other process that runs beside it slows it down, in millionths (κ of workloads §8).
    pub interference_millionths: u32,
}

/// Who takes part in time slicing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Participant {
    Process(ProcessId),
    Server(MpsServer),
}

/// A process that may run kernels.
#[derive(Clone, Debug)]
struct Client {
    /// SMs at most.
    limit: u32,
    group: u32,
    /// What its kernels ask for together.
    asked: u64,
    kernels: u32,
    /// What the law of its last kernel said.
    memo: Option<(u32, Law, u64)>,
}

impl Client {
    /// What its kernels ask for, within its limit.
    fn wanted(&self) -> u64 {
        self.asked.min(self.limit.into())
    }
}

/// What belongs to one [`Participant`].
#[derive(Clone, Debug)]
struct Group {
    participant: Participant,
    clients: u32,
    /// Clients that have kernels here.
    active: u32,
    /// What those want within their limits.
    wanted: u64,
    /// In the order in which they came.
    kernels: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Running {
    job: Job,
    client: u32,
    /// SMs it uses within its process's limit.
    sms: u32,
    /// Its speed on those, as a part of that on as many as it asks for: [`FULL_SPEED`] is 1.
    speed: u64,
    interference_millionths: u64,
    /// Nanoseconds at full speed, in fixed point, that were left at `updated`.
    remaining: u128,
    updated: Time,
    rate: u64,
    /// When it ends at this rate.
    ends: Time,
    millisms: u64,
    /// Since when its SMs are as many as they are.
    since: Time,
}

impl Running {
    fn left(&self, now: Time) -> u128 {
        let done = u128::from(self.rate) * u128::from(now.since(self.updated).0);
        self.remaining.saturating_sub(done)
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Compute {
    unit: u32,
    sms: u32,
    /// SMs of the whole GPU, of which a slice is a part: kernels' laws and demands are relative to them.
    sms_whole: u32,
    turns: Turns,
    clients: Slab<Client>,
    by_process: IdMap<ProcessId, u32>,
    groups: Slab<Group>,
    by_participant: BTreeMap<Participant, u32>,
    /// Those with kernels, in order.
    busy: Vec<(Participant, u32)>,
    kernels: Slab<Running>,
    running: usize,
    /// Whose turn it is, and since when.
    turn: Option<(Participant, Time)>,
    /// Whose kernels have SMs.
    on: Option<u32>,
    now: Time,
    /// When something changes by itself; never, until it is shared out anew.
    next: Time,
}

/// `a / b`, rounded up; a machine's own division where it suffices.
fn divided(a: u128, b: u64) -> Option<Span> {
    match u64::try_from(a) {
        Ok(a) => Some(Span(a.div_ceil(b))),
        Err(_) => u64::try_from(a.div_ceil(b.into())).ok().map(Span),
    }
}

impl Compute {
    /// `sms` SMs that nobody uses yet, of a GPU with `sms_whole`; `unit` is their number in the ledger.
    #[must_use]
    pub fn new(unit: u32, sms: u32, sms_whole: u32, turns: Turns) -> Self {
        Self {
            unit,
            sms: sms.max(1),
            sms_whole: sms_whole.max(sms).max(1),
            turns: Turns {
                // One of no length would pass for ever at one instant.
                slice: turns.slice.max(Span(1)),
                ..turns
            },
            clients: Slab::default(),
            by_process: IdMap::default(),
            groups: Slab::default(),
            by_participant: BTreeMap::new(),
            busy: Vec::new(),
            kernels: Slab::default(),
            running: 0,
            turn: None,
            on: None,
            now: Time::ZERO,
            next: Time::NEVER,
        }
    }

    /// A process may run kernels from now on, on at most so many SMs at once: beside the other clients of its MPS server,
    /// or in turns of its own. One that is there already stays as it is.
    pub fn admit(&mut self, process: ProcessId, sms_max: u32, mps: Option<MpsServer>) {
        if self.by_process.contains_key(&process) {
            return;
        }
        let participant = mps.map_or(Participant::Process(process), Participant::Server);
        let groups = &mut self.groups;
        let group = *self.by_participant.entry(participant).or_insert_with(|| {
            groups.insert(Group {
                participant,
                clients: 0,
                active: 0,
                wanted: 0,
                kernels: Vec::new(),
            })
        });
        if let Some(group) = self.groups.get_mut(group) {
            group.clients += 1;
        }
        let client = self.clients.insert(Client {
            limit: sms_max.clamp(1, self.sms),
            group,
            asked: 0,
            kernels: 0,
            memo: None,
        });
        self.by_process.insert(process, client);
    }

    /// SMs that a process may use at once.
    #[must_use]
    pub fn limit(&self, process: ProcessId) -> Option<u32> {
        let client = self.clients.get(*self.by_process.get(&process)?)?;
        Some(client.limit)
    }

    /// A process's kernels are dropped. Call [`Compute::advance`] to that time before and [`Compute::share`] after.
    pub fn stop(&mut self, process: ProcessId, ledger: &mut Ledger) {
        let Some(&at) = self.by_process.get(&process) else {
            return;
        };
        let Some(group) = self.clients.get(at).map(|client| client.group) else {
            return;
        };
        self.remove_where(group, ledger, |kernel| kernel.client == at, |_| {});
    }

    /// A process is gone, and its kernels with it. Call [`Compute::advance`] to that time before and
    /// [`Compute::share`] after.
    pub fn dismiss(&mut self, process: ProcessId, ledger: &mut Ledger) {
        self.stop(process, ledger);
        let Some(client) = self
            .by_process
            .remove(&process)
            .and_then(|at| self.clients.remove(at))
        else {
            return;
        };
        let Some(group) = self.groups.get_mut(client.group) else {
            return;
        };
        group.clients -= 1;
        if group.clients == 0 {
            self.by_participant.remove(&group.participant);
            self.groups.remove(client.group);
            self.on = self.on.filter(|&on| on != client.group);
        }
    }

    /// A kernel is there. Call [`Compute::advance`] to that time before and [`Compute::share`] after. Returns its place, for
    /// [`Compute::least_end`]; `None`, and nothing has changed, if the process was not admitted.
    pub fn start(&mut self, job: Job, kernel: &Kernel) -> Option<u32> {
        let at = *self.by_process.get(&job.process)?;
        let (sms, speed) = self.speed(at, kernel)?;
        let client = self.clients.get_mut(at)?;
        let wanted = client.wanted();
        client.asked += u64::from(sms);
        client.kernels += 1;
        let (more, is_first) = (client.wanted() - wanted, client.kernels == 1);
        let group_at = client.group;
        let place = self.kernels.insert(Running {
            job,
            client: at,
            sms,
            speed,
            interference_millionths: u64::from(kernel.interference_millionths),
            remaining: u128::from(kernel.duration.0) * u128::from(FULL_SPEED),
            updated: self.now,
            rate: 0,
            ends: Time::NEVER,
            millisms: 0,
            since: self.now,
        });
        let group = self.groups.get_mut(group_at)?;
        group.wanted += more;
        group.active += u32::from(is_first);
        group.kernels.push(place);
        self.running += 1;
        if group.kernels.len() == 1 {
            let entry = (group.participant, group_at);
            if let Err(place) = self.busy.binary_search(&entry) {
                self.busy.insert(place, entry);
            }
        }
        Some(place)
    }

    /// How long a kernel of a process takes if nothing else runs; no time if the process was not admitted.
    #[must_use]
    pub fn span_alone(&mut self, process: ProcessId, kernel: &Kernel) -> Span {
        let client = self.by_process.get(&process).copied();
        match client.and_then(|client| self.speed(client, kernel)) {
            None => Span::ZERO,
            Some((_, FULL_SPEED)) => kernel.duration,
            Some((_, speed)) => {
                let work = u128::from(kernel.duration.0) * u128::from(FULL_SPEED);
                divided(work, speed).unwrap_or(Span(u64::MAX))
            }
        }
    }

    /// The earliest time at which the kernel at this place, as [`Compute::start`] told it, can have ended, seen from `now`:
    /// when it ends if nothing else runs from now on.
    #[must_use]
    pub fn least_end(&self, place: u32, now: Time) -> Time {
        let Some(kernel) = self.kernels.get(place) else {
            return now;
        };
        if kernel.rate == kernel.speed {
            return kernel.ends;
        }
        let left = divided(kernel.left(now), kernel.speed);
        now.after(left.unwrap_or(Span(u64::MAX)))
    }

    /// SMs that a kernel uses, and its speed on them as a part of that on as many as it asks for.
    fn speed(&mut self, client: u32, kernel: &Kernel) -> Option<(u32, u64)> {
        let client = self.clients.get_mut(client)?;
        let asked = kernel.sms.clamp(1, self.sms_whole);
        let sms = asked.min(client.limit);
        if sms == asked {
            return Some((sms, FULL_SPEED));
        }
        if let Some((of, law, speed)) = client.memo
            && of == asked
            && law == kernel.law
        {
            return Some((sms, speed));
        }
        let fraction = u128::from(kernel.law.speed(sms, self.sms_whole)) * u128::from(FULL_SPEED)
            / u128::from(kernel.law.speed(asked, self.sms_whole).max(1));
        let speed = u64::try_from(fraction)
            .unwrap_or(FULL_SPEED)
            .clamp(1, FULL_SPEED);
        client.memo = Some((asked, kernel.law, speed));
        Some((sms, speed))
    }

    /// When something changes by itself: a kernel ends, or a turn.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        // What would end at the end of time does not end.
        (self.next < Time::NEVER).then_some(self.next)
    }

    /// Goes on to `to`, at most to [`Compute::next`]; kernels that have ended by then are added to `ended`. Who starts
    /// others at that time does so before [`Compute::share`]: between two kernels of a stream no turn passes. Returns whether
    /// that is to be called: a kernel has ended, or a turn.
    pub fn advance(&mut self, to: Time, ended: &mut Vec<Job>, ledger: &mut Ledger) -> bool {
        self.now = self.now.max(to);
        if self.next > self.now || self.next == Time::NEVER {
            return false;
        }
        self.next = Time::NEVER;
        if let Some(on) = self.on {
            let now = self.now;
            self.remove_where(
                on,
                ledger,
                |kernel| kernel.ends <= now,
                |job| ended.push(job),
            );
        }
        true
    }

    /// Takes kernels of a group out, and tells of each.
    fn remove_where(
        &mut self,
        at: u32,
        ledger: &mut Ledger,
        goes: impl Fn(&Running) -> bool,
        mut tell: impl FnMut(Job),
    ) {
        let Some(group) = self.groups.get_mut(at) else {
            return;
        };
        let before = group.kernels.len();
        group.kernels.retain(|&place| {
            let Some(kernel) = self.kernels.get(place).filter(|kernel| goes(kernel)) else {
                return true;
            };
            write(self.unit, self.now, kernel, ledger);
            tell(kernel.job);
            if let Some(client) = self.clients.get_mut(kernel.client) {
                let wanted = client.wanted();
                client.asked -= u64::from(kernel.sms);
                client.kernels -= 1;
                group.wanted -= wanted - client.wanted();
                group.active -= u32::from(client.kernels == 0);
            }
            self.kernels.remove(place);
            false
        });
        self.running -= before - group.kernels.len();
        if group.kernels.is_empty() {
            let entry = (group.participant, at);
            if let Ok(place) = self.busy.binary_search(&entry) {
                self.busy.remove(place);
            }
        }
    }

    /// How many kernels have been started and have not ended.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running
    }

    /// The group of a participant that has work.
    fn busy_group(&self, participant: Participant) -> Option<u32> {
        let by_participant = |entry: &(Participant, u32)| entry.0.cmp(&participant);
        let place = self.busy.binary_search_by(by_participant).ok()?;
        Some(self.busy[place].1)
    }

    /// When the turn passes on or, just after a change, begins; never, if neither is to come.
    fn turn_ends(&self) -> Time {
        let Some((participant, since)) = self.turn else {
            return Time::NEVER;
        };
        if since > self.now {
            return since;
        }
        if self.busy.iter().all(|(other, _)| *other == participant) {
            return Time::NEVER;
        }
        since.after(self.turns.slice).max(self.now)
    }

    /// The next participant with work behind the one whose turn it was, in their order.
    fn next_turn(&self, after: Option<Participant>) -> Option<Participant> {
        let behind = after.map_or(0, |after| {
            self.busy.partition_point(|(other, _)| *other <= after)
        });
        let next = self.busy.get(behind).or_else(|| self.busy.first());
        next.map(|(participant, _)| *participant)
    }

    /// Lets the turn pass on where it is time.
    fn pass_turn(&mut self) {
        let Some((participant, since)) = self.turn else {
            self.turn = self
                .next_turn(None)
                .map(|participant| (participant, self.now));
            return;
        };
        let is_over = since <= self.now && since.after(self.turns.slice) <= self.now;
        if !is_over && self.busy_group(participant).is_some() {
            return;
        }
        if let Some(next) = self.next_turn(Some(participant)) {
            let begins = if next == participant {
                self.now
            } else {
                self.now.after(self.turns.switch)
            };
            self.turn = Some((next, begins));
        }
    }

    /// Gives every kernel its SMs and its rate, from now on. To be called once whenever something has changed.
    pub fn share(&mut self, ledger: &mut Ledger) {
        self.pass_turn();
        let on = self
            .turn
            .filter(|(_, since)| *since <= self.now)
            .and_then(|(participant, _)| self.busy_group(participant));
        if self.on != on {
            if let Some(group) = self.on.and_then(|before| self.groups.get(before)) {
                for &place in &group.kernels {
                    if let Some(kernel) = self.kernels.get_mut(place) {
                        give(self.unit, self.now, kernel, (0, 0), ledger);
                    }
                }
            }
            self.on = on;
        }
        let first = self.share_group(ledger);
        self.next = first.min(self.turn_ends());
    }

    /// Shares the SMs out among the kernels of the group whose turn it is; when the first of them ends.
    fn share_group(&mut self, ledger: &mut Ledger) -> Time {
        let Some(group) = self.on.and_then(|on| self.groups.get(on)) else {
            return Time::NEVER;
        };
        let there = u64::from(self.sms).min(group.wanted);
        let others = u64::from(group.active.saturating_sub(1));
        let mut first = Time::NEVER;
        for &place in &group.kernels {
            let Some(kernel) = self.kernels.get_mut(place) else {
                continue;
            };
            let Some(client) = self.clients.get(kernel.client) else {
                continue;
            };
            let slowed = 1_000_000 + u128::from(kernel.interference_millionths * others);
            let is_full =
                client.asked == client.wanted() && there == group.wanted && slowed == 1_000_000;
            let share = if is_full {
                (kernel.speed, u64::from(kernel.sms) * 1_000)
            } else {
                // SMs within the process's limit, then within the device.
                let part = u128::from(client.wanted()) * u128::from(there);
                let whole = u128::from(client.asked) * u128::from(group.wanted);
                let rate = u128::from(kernel.speed) * part * 1_000_000 / (whole * slowed);
                let millisms = u128::from(kernel.sms) * 1_000 * part / whole;
                (
                    u64::try_from(rate).unwrap_or(FULL_SPEED).max(1),
                    u64::try_from(millisms).unwrap_or(u64::MAX),
                )
            };
            give(self.unit, self.now, kernel, share, ledger);
            first = first.min(kernel.ends);
        }
        first
    }

    /// Writes down what is held at this moment, up to it. Call [`Compute::advance`] to that time before.
    pub fn write_all(&mut self, ledger: &mut Ledger) {
        let Some(group) = self.on.and_then(|on| self.groups.get(on)) else {
            return;
        };
        for &place in &group.kernels {
            if let Some(kernel) = self.kernels.get_mut(place) {
                write(self.unit, self.now, kernel, ledger);
                kernel.since = self.now;
            }
        }
    }
}

/// Gives a kernel its rate and its SMs from now on.
fn give(unit: u32, now: Time, kernel: &mut Running, share: (u64, u64), ledger: &mut Ledger) {
    let (rate, millisms) = share;
    if kernel.rate != rate {
        kernel.remaining = kernel.left(now);
        (kernel.updated, kernel.rate) = (now, rate);
        kernel.ends = match rate {
            0 => Time::NEVER,
            _ => divided(kernel.remaining, rate).map_or(Time::NEVER, |left| now.after(left)),
        };
    }
    if kernel.millisms != millisms {
        write(unit, now, kernel, ledger);
        (kernel.millisms, kernel.since) = (millisms, now);
    }
}

/// Writes down what a kernel has held until now.
fn write(unit: u32, now: Time, kernel: &Running, ledger: &mut Ledger) {
    ledger.add(Entry {
        held: Held::Sms { unit },
        process: kernel.job.process,
        work: Some(kernel.job.work),
        amount: kernel.millisms,
        from: kernel.since,
        to: now,
    });
}
