//! Sharing of the SMs of one GPU or slice: which kernels run, on how many SMs, and how fast.
//!
//! The clients of an MPS server run concurrently, each within its active-thread percentage. Together they are one participant in
//! time slicing, and so is every process without an MPS server: participants run one at a time, in turns. A single participant
//! with work runs without turns. Kernels that together need more SMs than there are run slower in proportion (workloads §8).
//!
//! A kernel's work is its duration in fixed point, and its rate is a whole number of the same units per nanosecond: completed
//! work is subtracted exactly, however often the rate changes.

use std::collections::BTreeMap;

use crate::ids::{IdMap, Slab};
use crate::law::{FULL_SPEED, Law};
use crate::ledger::{Entry, Job, Ledger, ProcessId, Resource};
use crate::{Span, Time};

/// Id of an MPS server (control daemon), whose clients run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MpsServer(pub u32);

/// Lengths of time slicing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// Length of a turn while others wait.
    pub slice: Span,
    /// Cost of switching to another participant.
    pub switch: Span,
}

/// Properties of a kernel in this model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// Duration alone, on as many SMs as it requests.
    pub duration: Span,
    /// Number of SMs that the kernel can use, on a whole GPU.
    pub sms: u32,
    /// Scaling law for fewer SMs.
    pub law: Law,
    /// Slowdown by each other process that runs concurrently, in millionths (κ of workloads §8).
    pub interference_millionths: u32,
}

/// Participant in time slicing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Participant {
    Process(ProcessId),
    Server(MpsServer),
}

/// Process that may run kernels.
#[derive(Clone, Debug)]
struct Client {
    /// Largest number of SMs at once.
    limit: u32,
    group: u32,
    /// Sum of the SMs requested by its kernels.
    requested: u64,
    kernels: u32,
    /// Requested SMs, law and speed of its last kernel.
    memo: Option<(u32, Law, u64)>,
}

impl Client {
    /// Returns the number of SMs that the client's kernels request, within its limit.
    fn wanted(&self) -> u64 {
        self.requested.min(self.limit.into())
    }
}

/// Clients and kernels of one [`Participant`].
#[derive(Clone, Debug)]
struct Group {
    participant: Participant,
    clients: u32,
    /// Number of clients with kernels.
    active: u32,
    /// Sum of the SMs that these clients request within their limits.
    wanted: u64,
    /// Slots of the group's kernels, in order of arrival.
    kernels: Vec<u32>,
}

/// Kernel that was started and has not ended.
#[derive(Clone, Debug)]
struct Running {
    job: Job,
    client: u32,
    /// Number of SMs that the kernel uses within its process's limit.
    sms: u32,
    /// Speed on these SMs relative to the requested ones; [`FULL_SPEED`] is 1.
    speed: u64,
    interference_millionths: u64,
    /// Remaining work at `updated`: nanoseconds at full speed, in fixed point.
    remaining: u128,
    updated: Time,
    rate: u64,
    /// End at this rate.
    ends: Time,
    millisms: u64,
    /// Time since which the kernel holds this number of SMs.
    since: Time,
}

impl Running {
    fn left(&self, now: Time) -> u128 {
        let done = u128::from(self.rate) * u128::from(now.since(self.updated).0);
        self.remaining.saturating_sub(done)
    }
}

/// SMs of one GPU or slice, and the kernels that share them; see the [module](self).
#[derive(Clone, Debug)]
pub struct Compute {
    unit: u32,
    sms: u32,
    /// SMs of the whole GPU of which a slice is a part; laws and requests of kernels are relative to them.
    sms_whole: u32,
    turns: Turns,
    clients: Slab<Client>,
    by_process: IdMap<ProcessId, u32>,
    groups: Slab<Group>,
    by_participant: BTreeMap<Participant, u32>,
    /// Participants with kernels, sorted.
    busy: Vec<(Participant, u32)>,
    kernels: Slab<Running>,
    running: usize,
    /// Participant whose turn it is, and the start of the turn.
    turn: Option<(Participant, Time)>,
    /// Slot of the group whose kernels have SMs.
    on: Option<u32>,
    now: Time,
    /// Time of the next change; [`Time::NEVER`] until the SMs are shared out again.
    next: Time,
}

/// Returns `a / b` rounded up; `None` on overflow. Uses 64-bit division where that suffices.
fn div_ceil(a: u128, b: u64) -> Option<Span> {
    match u64::try_from(a) {
        Ok(a) => Some(Span(a.div_ceil(b))),
        Err(_) => u64::try_from(a.div_ceil(b.into())).ok().map(Span),
    }
}

impl Compute {
    /// Creates `sms` idle SMs of a GPU with `sms_whole`; `unit` is their number in the ledger.
    #[must_use]
    pub fn new(unit: u32, sms: u32, sms_whole: u32, turns: Turns) -> Self {
        Self {
            unit,
            sms: sms.max(1),
            sms_whole: sms_whole.max(sms).max(1),
            turns: Turns {
                // Turns of length zero would alternate for ever within one instant.
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

    /// Admits a process, which may use at most `sms_max` SMs at once: concurrently with the other clients of its MPS server, or
    /// in turns of its own. Does nothing if the process was already admitted.
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
            requested: 0,
            kernels: 0,
            memo: None,
        });
        self.by_process.insert(process, client);
    }

    /// Returns the number of SMs that a process may use at once; `None` if it was not admitted.
    #[must_use]
    pub fn limit(&self, process: ProcessId) -> Option<u32> {
        let client = self.clients.get(*self.by_process.get(&process)?)?;
        Some(client.limit)
    }

    /// Drops the kernels of a process. [`Compute::advance`] must be called for the current time before, and [`Compute::share`]
    /// after.
    pub fn stop(&mut self, process: ProcessId, ledger: &mut Ledger) {
        let Some(&at) = self.by_process.get(&process) else {
            return;
        };
        let Some(group) = self.clients.get(at).map(|client| client.group) else {
            return;
        };
        self.remove_where(group, ledger, |kernel| kernel.client == at, |_| {});
    }

    /// Removes a process and its kernels. [`Compute::advance`] must be called for the current time before, and [`Compute::share`]
    /// after.
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

    /// Starts a kernel. [`Compute::advance`] must be called for the current time before, and [`Compute::share`] after. Returns
    /// its slot, for [`Compute::earliest_end`]; returns `None`, without effect, if the process was not admitted.
    pub fn start(&mut self, job: Job, kernel: &Kernel) -> Option<u32> {
        let at = *self.by_process.get(&job.process)?;
        let (sms, speed) = self.speed(at, kernel)?;
        let client = self.clients.get_mut(at)?;
        let wanted = client.wanted();
        client.requested += u64::from(sms);
        client.kernels += 1;
        let (more, is_first) = (client.wanted() - wanted, client.kernels == 1);
        let group_at = client.group;
        let slot = self.kernels.insert(Running {
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
        group.kernels.push(slot);
        self.running += 1;
        if group.kernels.len() == 1 {
            let entry = (group.participant, group_at);
            if let Err(position) = self.busy.binary_search(&entry) {
                self.busy.insert(position, entry);
            }
        }
        Some(slot)
    }

    /// Returns the duration of a kernel of a process if nothing else runs; zero if the process was not admitted.
    #[must_use]
    pub fn span_alone(&mut self, process: ProcessId, kernel: &Kernel) -> Span {
        let client = self.by_process.get(&process).copied();
        match client.and_then(|client| self.speed(client, kernel)) {
            None => Span::ZERO,
            Some((_, FULL_SPEED)) => kernel.duration,
            Some((_, speed)) => {
                let work = u128::from(kernel.duration.0) * u128::from(FULL_SPEED);
                div_ceil(work, speed).unwrap_or(Span(u64::MAX))
            }
        }
    }

    /// Returns the earliest possible end of the kernel in this slot, from [`Compute::start`], as seen from `now`: its end if
    /// nothing else runs from now on.
    #[must_use]
    pub fn earliest_end(&self, slot: u32, now: Time) -> Time {
        let Some(kernel) = self.kernels.get(slot) else {
            return now;
        };
        if kernel.rate == kernel.speed {
            return kernel.ends;
        }
        let left = div_ceil(kernel.left(now), kernel.speed);
        now.after(left.unwrap_or(Span(u64::MAX)))
    }

    /// Returns the number of SMs that a kernel uses, and its speed on them relative to the requested ones.
    fn speed(&mut self, client: u32, kernel: &Kernel) -> Option<(u32, u64)> {
        let client = self.clients.get_mut(client)?;
        let requested = kernel.sms.clamp(1, self.sms_whole);
        let sms = requested.min(client.limit);
        if sms == requested {
            return Some((sms, FULL_SPEED));
        }
        if let Some((of, law, speed)) = client.memo
            && of == requested
            && law == kernel.law
        {
            return Some((sms, speed));
        }
        let fraction = u128::from(kernel.law.speed(sms, self.sms_whole)) * u128::from(FULL_SPEED)
            / u128::from(kernel.law.speed(requested, self.sms_whole).max(1));
        let speed = u64::try_from(fraction)
            .unwrap_or(FULL_SPEED)
            .clamp(1, FULL_SPEED);
        client.memo = Some((requested, kernel.law, speed));
        Some((sms, speed))
    }

    /// Returns the time of the next change without further calls, the end of a kernel or of a turn; `None` if there is none.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        // Kernels that would end at the end of time never end.
        (self.next < Time::NEVER).then_some(self.next)
    }

    /// Advances the time to `to`, at most to [`Compute::next`]. Kernels that end by then are appended to `ended`. Returns whether
    /// [`Compute::share`] has to be called, because a kernel or a turn has ended. Kernels that follow at the same time are to be
    /// started before that call, so that no turn passes between two kernels of a stream.
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

    /// Removes the kernels of a group that match, and reports each.
    fn remove_where(
        &mut self,
        at: u32,
        ledger: &mut Ledger,
        matches: impl Fn(&Running) -> bool,
        mut report: impl FnMut(Job),
    ) {
        let Some(group) = self.groups.get_mut(at) else {
            return;
        };
        let before = group.kernels.len();
        group.kernels.retain(|&slot| {
            let Some(kernel) = self.kernels.get(slot).filter(|kernel| matches(kernel)) else {
                return true;
            };
            write(self.unit, self.now, kernel, ledger);
            report(kernel.job);
            if let Some(client) = self.clients.get_mut(kernel.client) {
                let wanted = client.wanted();
                client.requested -= u64::from(kernel.sms);
                client.kernels -= 1;
                group.wanted -= wanted - client.wanted();
                group.active -= u32::from(client.kernels == 0);
            }
            self.kernels.remove(slot);
            false
        });
        self.running -= before - group.kernels.len();
        if group.kernels.is_empty() {
            let entry = (group.participant, at);
            if let Ok(position) = self.busy.binary_search(&entry) {
                self.busy.remove(position);
            }
        }
    }

    /// Returns the number of kernels that were started and have not ended.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running
    }

    /// Returns the group of a participant with kernels.
    fn busy_group(&self, participant: Participant) -> Option<u32> {
        let by_participant = |entry: &(Participant, u32)| entry.0.cmp(&participant);
        let position = self.busy.binary_search_by(by_participant).ok()?;
        Some(self.busy[position].1)
    }

    /// Returns the time at which the turn passes or, just after a switch, begins; [`Time::NEVER`] if neither is due.
    fn turn_end(&self) -> Time {
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

    /// Returns the participant with work which follows the given one, cyclically.
    fn next_turn(&self, after: Option<Participant>) -> Option<Participant> {
        let behind = after.map_or(0, |after| {
            self.busy.partition_point(|(other, _)| *other <= after)
        });
        let next = self.busy.get(behind).or_else(|| self.busy.first());
        next.map(|(participant, _)| *participant)
    }

    /// Passes the turn if it is over.
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

    /// Assigns every kernel its SMs and its rate from now on. To be called once after any change.
    pub fn share(&mut self, ledger: &mut Ledger) {
        self.pass_turn();
        let on = self
            .turn
            .filter(|(_, since)| *since <= self.now)
            .and_then(|(participant, _)| self.busy_group(participant));
        if self.on != on {
            if let Some(group) = self.on.and_then(|before| self.groups.get(before)) {
                for &slot in &group.kernels {
                    if let Some(kernel) = self.kernels.get_mut(slot) {
                        set_share(self.unit, self.now, kernel, (0, 0), ledger);
                    }
                }
            }
            self.on = on;
        }
        let first = self.share_group(ledger);
        self.next = first.min(self.turn_end());
    }

    /// Shares the SMs out among the kernels of the current group. Returns the earliest of their ends.
    fn share_group(&mut self, ledger: &mut Ledger) -> Time {
        let Some(group) = self.on.and_then(|on| self.groups.get(on)) else {
            return Time::NEVER;
        };
        let available = u64::from(self.sms).min(group.wanted);
        let others = u64::from(group.active.saturating_sub(1));
        let mut first = Time::NEVER;
        for &slot in &group.kernels {
            let Some(kernel) = self.kernels.get_mut(slot) else {
                continue;
            };
            let Some(client) = self.clients.get(kernel.client) else {
                continue;
            };
            let slowed = 1_000_000 + u128::from(kernel.interference_millionths * others);
            let is_full = client.requested == client.wanted()
                && available == group.wanted
                && slowed == 1_000_000;
            let share = if is_full {
                (kernel.speed, u64::from(kernel.sms) * 1_000)
            } else {
                // SMs within the process's limit, then within the device.
                let part = u128::from(client.wanted()) * u128::from(available);
                let whole = u128::from(client.requested) * u128::from(group.wanted);
                let rate = u128::from(kernel.speed) * part * 1_000_000 / (whole * slowed);
                let millisms = u128::from(kernel.sms) * 1_000 * part / whole;
                (
                    u64::try_from(rate).unwrap_or(FULL_SPEED).max(1),
                    u64::try_from(millisms).unwrap_or(u64::MAX),
                )
            };
            set_share(self.unit, self.now, kernel, share, ledger);
            first = first.min(kernel.ends);
        }
        first
    }

    /// Adds ledger entries for all SMs held now, ending now. [`Compute::advance`] must be called for the current time before.
    pub fn write_all(&mut self, ledger: &mut Ledger) {
        let Some(group) = self.on.and_then(|on| self.groups.get(on)) else {
            return;
        };
        for &slot in &group.kernels {
            if let Some(kernel) = self.kernels.get_mut(slot) {
                write(self.unit, self.now, kernel, ledger);
                kernel.since = self.now;
            }
        }
    }
}

/// Sets a kernel's rate and SMs from now on.
fn set_share(unit: u32, now: Time, kernel: &mut Running, share: (u64, u64), ledger: &mut Ledger) {
    let (rate, millisms) = share;
    if kernel.rate != rate {
        kernel.remaining = kernel.left(now);
        (kernel.updated, kernel.rate) = (now, rate);
        kernel.ends = match rate {
            0 => Time::NEVER,
            _ => div_ceil(kernel.remaining, rate).map_or(Time::NEVER, |left| now.after(left)),
        };
    }
    if kernel.millisms != millisms {
        write(unit, now, kernel, ledger);
        (kernel.millisms, kernel.since) = (millisms, now);
    }
}

/// Adds a ledger entry for the SMs that a kernel has held until now.
fn write(unit: u32, now: Time, kernel: &Running, ledger: &mut Ledger) {
    ledger.add(Entry {
        resource: Resource::Sms { unit },
        process: kernel.job.process,
        work: Some(kernel.job.work),
        amount: kernel.millisms,
        from: kernel.since,
        to: now,
    });
}
