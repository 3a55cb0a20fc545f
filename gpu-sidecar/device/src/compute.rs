//! The SMs of one GPU or slice: whose kernels run, on how many, how fast.
//!
//! Without MPS one process runs at a time, in turns (time slices); its own streams share the SMs. With MPS all run
//! side by side, each within its active-thread percentage. Kernels that together ask for more SMs than there are run
//! slower in proportion (workloads §8).
//!
//! A kernel's work is its duration in fixed point, its rate a whole number of the same units per nanosecond: what
//! was done is subtracted exactly, however often the rate changes.

use std::collections::BTreeMap;

use crate::law::{FULL_SPEED, Law};
use crate::ledger::{Entry, Held, Ledger, ProcessId, WorkId};
use crate::{Span, Time};

/// How processes share the SMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// In turns of `slice`, each change of the process costing `switch`.
    TimeSlices {
        /// How long one runs while others wait.
        slice: Span,
        /// What the change costs.
        switch: Span,
    },
    /// Side by side, as under MPS.
    SideBySide,
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

#[derive(Clone, Debug)]
struct Running {
    id: WorkId,
    process: ProcessId,
    /// SMs it uses within its process's limit.
    sms: u32,
    /// Its speed on those, as a part of that on as many as it asks for: [`FULL_SPEED`] is 1.
    speed: u64,
    interference_millionths: u64,
    /// Nanoseconds at full speed, in fixed point.
    remaining: u128,
    rate: u64,
    millisms: u64,
    /// Since when its SMs are as many as they are.
    since: Time,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Compute {
    unit: u32,
    sms: u32,
    /// SMs of the whole GPU, of which a slice is a part: kernels' laws and demands are relative to them.
    sms_whole: u32,
    sharing: Sharing,
    /// SMs at most, by process.
    limits: BTreeMap<ProcessId, u32>,
    running: Vec<Running>,
    /// Whose turn it is, and since when; without MPS.
    turn: Option<(ProcessId, Time)>,
    now: Time,
}

impl Compute {
    /// `sms` SMs that nobody uses yet, of a GPU with `sms_whole`; `unit` is their number in the ledger.
    #[must_use]
    pub fn new(unit: u32, sms: u32, sms_whole: u32, sharing: Sharing) -> Self {
        let sharing = match sharing {
            // One of no length would pass for ever at one instant.
            Sharing::TimeSlices { slice, switch } => Sharing::TimeSlices {
                slice: slice.max(Span(1)),
                switch,
            },
            Sharing::SideBySide => sharing,
        };
        Self {
            unit,
            sms: sms.max(1),
            sms_whole: sms_whole.max(sms).max(1),
            sharing,
            limits: BTreeMap::new(),
            running: Vec::new(),
            turn: None,
            now: Time::ZERO,
        }
    }

    /// A process may run kernels from now on, on at most so many SMs at once.
    pub fn admit(&mut self, process: ProcessId, sms_max: u32) {
        self.limits.insert(process, sms_max.clamp(1, self.sms));
    }

    /// A process is gone, and its kernels with it. Call [`Compute::advance`] to that time before and
    /// [`Compute::share`] after.
    pub fn dismiss(&mut self, process: ProcessId, ledger: &mut Ledger) {
        for kernel in self
            .running
            .iter()
            .filter(|kernel| kernel.process == process)
        {
            self.write(kernel, ledger);
        }
        self.limits.remove(&process);
        self.running.retain(|kernel| kernel.process != process);
    }

    /// A kernel is there. Call [`Compute::advance`] to that time before and [`Compute::share`] after. One of a process
    /// that was not admitted, or that takes no time, has ended with the next [`Compute::advance`].
    pub fn start(&mut self, id: WorkId, process: ProcessId, kernel: &Kernel) {
        let asked = kernel.sms.clamp(1, self.sms_whole);
        let limit = self.limits.get(&process).copied();
        let sms = asked.min(limit.unwrap_or(self.sms));
        let fraction = u128::from(kernel.law.speed(sms, self.sms_whole)) * u128::from(FULL_SPEED)
            / u128::from(kernel.law.speed(asked, self.sms_whole).max(1));
        let duration = limit.map_or(Span::ZERO, |_| kernel.duration);
        self.running.push(Running {
            id,
            process,
            sms,
            speed: u64::try_from(fraction)
                .unwrap_or(FULL_SPEED)
                .clamp(1, FULL_SPEED),
            interference_millionths: u64::from(kernel.interference_millionths),
            remaining: u128::from(duration.0) * u128::from(FULL_SPEED),
            rate: 0,
            millisms: 0,
            since: self.now,
        });
    }

    /// When something changes by itself: a kernel ends, or a turn.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let ends = self.running.iter().filter_map(|kernel| self.end_of(kernel));
        ends.chain(self.turn_ends()).min()
    }

    /// Goes on to `to`, at most to [`Compute::next`]; kernels that have ended by then are added to `ended`. Who starts
    /// others at that time does so before [`Compute::share`]: between two kernels of a stream no turn passes. Returns whether
    /// that is to be called: a kernel has ended, or a turn.
    pub fn advance(&mut self, to: Time, ended: &mut Vec<WorkId>, ledger: &mut Ledger) -> bool {
        let turn_changes = self.turn_ends().is_some_and(|at| at <= to);
        let before = self.running.len();
        let elapsed = u128::from(to.since(self.now).0);
        self.now = self.now.max(to);
        for kernel in &mut self.running {
            let done = u128::from(kernel.rate) * elapsed;
            kernel.remaining = kernel.remaining.saturating_sub(done);
        }
        for kernel in self.running.iter().filter(|kernel| kernel.remaining == 0) {
            self.write(kernel, ledger);
            ended.push(kernel.id);
        }
        self.running.retain(|kernel| kernel.remaining > 0);
        turn_changes || self.running.len() < before
    }

    /// How many kernels have been started and have not ended.
    #[must_use]
    pub const fn running(&self) -> usize {
        self.running.len()
    }

    fn end_of(&self, kernel: &Running) -> Option<Time> {
        if kernel.remaining == 0 {
            return Some(self.now);
        }
        if kernel.rate == 0 {
            return None;
        }
        let left = kernel.remaining.div_ceil(u128::from(kernel.rate));
        let end = self.now.after(Span(u64::try_from(left).ok()?));
        // What would end at the end of time does not end.
        (end < Time::NEVER).then_some(end)
    }

    /// When the turn passes on or, just after a change, begins; `None` if neither is to come.
    fn turn_ends(&self) -> Option<Time> {
        let Sharing::TimeSlices { slice, .. } = self.sharing else {
            return None;
        };
        let (process, since) = self.turn?;
        if since > self.now {
            return Some(since);
        }
        let others_wait = self.running.iter().any(|kernel| kernel.process != process);
        others_wait.then(|| since.after(slice).max(self.now))
    }

    /// The next process with work behind the one whose turn it was, in the order of their numbers.
    fn next_turn(&self, after: Option<ProcessId>) -> Option<ProcessId> {
        let behind = self
            .running
            .iter()
            .map(|kernel| kernel.process)
            .filter(|&process| Some(process) > after);
        behind
            .min()
            .or_else(|| self.running.iter().map(|kernel| kernel.process).min())
    }

    /// Lets the turn pass on where it is time.
    fn pass_turn(&mut self, slice: Span, switch: Span) {
        let has_work = |process| self.running.iter().any(|kernel| kernel.process == process);
        match self.turn {
            _ if self.running.is_empty() => {}
            None => self.turn = self.next_turn(None).map(|process| (process, self.now)),
            Some((process, since)) => {
                let is_over = since <= self.now && since.after(slice) <= self.now;
                if (is_over || !has_work(process))
                    && let Some(next) = self.next_turn(Some(process))
                {
                    let begins = if next == process {
                        self.now
                    } else {
                        self.now.after(switch)
                    };
                    self.turn = Some((next, begins));
                }
            }
        }
    }

    /// Gives every kernel its SMs and its rate, from now on. To be called once whenever something has changed.
    pub fn share(&mut self, ledger: &mut Ledger) {
        let turn = match self.sharing {
            Sharing::SideBySide => None,
            Sharing::TimeSlices { slice, switch } => {
                self.pass_turn(slice, switch);
                self.turn
            }
        };
        let is_on = |kernel: &Running| match (self.sharing, turn) {
            (Sharing::SideBySide, _) => true,
            (_, Some((process, since))) => kernel.process == process && since <= self.now,
            (_, None) => false,
        };
        // What each process's kernels ask for together, and what of it lies within its limit.
        let mut asked: BTreeMap<ProcessId, u64> = BTreeMap::new();
        for kernel in self.running.iter().filter(|kernel| is_on(kernel)) {
            *asked.entry(kernel.process).or_default() += u64::from(kernel.sms);
        }
        let within = |process: &ProcessId, asked: u64| {
            let limit = self.limits.get(process).copied().unwrap_or(self.sms);
            asked.min(u64::from(limit))
        };
        let wanted: u64 = asked
            .iter()
            .map(|(process, asked)| within(process, *asked))
            .sum();
        let there = u64::from(self.sms).min(wanted);
        let others = (asked.len() as u64).saturating_sub(1);
        let shares: Vec<_> = self
            .running
            .iter()
            .map(|kernel| {
                if !is_on(kernel) {
                    return (0, 0);
                }
                let of_process = asked[&kernel.process];
                // SMs within the process's limit, then within the device.
                let part = u128::from(within(&kernel.process, of_process)) * u128::from(there);
                let whole = u128::from(of_process) * u128::from(wanted);
                let slowed = 1_000_000 + u128::from(kernel.interference_millionths * others);
                let rate = u128::from(kernel.speed) * part * 1_000_000 / (whole * slowed);
                let millisms = u128::from(kernel.sms) * 1_000 * part / whole;
                (
                    u64::try_from(rate).unwrap_or(FULL_SPEED).max(1),
                    u64::try_from(millisms).unwrap_or(u64::MAX),
                )
            })
            .collect();
        for (at, (rate, millisms)) in shares.into_iter().enumerate() {
            if self.running[at].millisms != millisms {
                self.write(&self.running[at], ledger);
                (self.running[at].millisms, self.running[at].since) = (millisms, self.now);
            }
            self.running[at].rate = rate;
        }
    }

    /// Writes down what is held at this moment, up to it.
    pub fn write_all(&mut self, ledger: &mut Ledger) {
        for at in 0..self.running.len() {
            self.write(&self.running[at], ledger);
            self.running[at].since = self.now;
        }
    }

    /// Writes down what a kernel has held until now.
    fn write(&self, kernel: &Running, ledger: &mut Ledger) {
        ledger.add(Entry {
            held: Held::Sms { unit: self.unit },
            process: kernel.process,
            work: Some(kernel.id),
            amount: kernel.millisms,
            from: kernel.since,
            to: self.now,
        });
    }
}
