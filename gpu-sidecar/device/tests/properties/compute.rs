//! The SMs of one GPU against a reference model which recomputes everything at every step.

use device::compute::{Compute, Kernel, MpsServer, Turns};
use device::law::{FULL_SPEED, Law};
use device::ledger::{Entry, Job, Ledger, ProcessId, Resource, WorkId};
use device::{Span, Time};
use proptest::prelude::*;

const SMS: u32 = 56;
const WHOLE: u32 = 108;
const TURNS: Turns = Turns {
    slice: Span(2_000),
    switch: Span(300),
};
/// MPS server and SM limit of each process.
const PROCESSES: [(Option<u32>, u32); 6] = [
    (None, 56),
    (Some(0), 10),
    (Some(0), 40),
    (Some(0), 56),
    (Some(1), 28),
    (None, 56),
];

#[derive(Clone, Debug)]
enum Step {
    Start { process: usize, kernel: Kernel },
    Stop { process: usize },
    Pass { nanos: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let law = prop_oneof![
        Just(Law::Linear),
        Just(Law::Knee { at: 0.3 }),
        Just(Law::Power { exponent: 0.6 }),
    ];
    let kernel =
        (0..5_000_u64, 0..120_u32, law, 0..3_u32).prop_map(|(nanos, sms, law, tenths)| Kernel {
            duration: Span(nanos),
            sms,
            law,
            interference_millionths: tenths * 100_000,
        });
    prop_oneof![
        6 => (0..6_usize, kernel).prop_map(|(process, kernel)| Step::Start { process, kernel }),
        1 => (0..6_usize).prop_map(|process| Step::Stop { process }),
        6 => (0..4_000_u64).prop_map(|nanos| Step::Pass { nanos }),
    ]
}

/// Order of turns: processes without MPS before servers, each by number.
type Participant = (bool, u32);

fn participant(process: usize) -> Participant {
    match PROCESSES[process].0 {
        None => (false, u32::try_from(process).unwrap()),
        Some(server) => (true, server),
    }
}

#[derive(Clone, Debug)]
struct Running {
    work: u64,
    process: usize,
    sms: u64,
    speed: u128,
    interference: u128,
    remaining: u128,
    rate: u128,
    millisms: u64,
}

#[derive(Default)]
struct Naive {
    now: u64,
    running: Vec<Running>,
    turn: Option<(Participant, u64)>,
    ended: Vec<(u64, u64)>,
    /// Entries of the ledger: work, thousandths of SMs, start and end.
    held: Vec<(u64, u64, u64, u64)>,
}

impl Naive {
    fn start(&mut self, work: u64, process: usize, kernel: &Kernel) {
        let asked = kernel.sms.clamp(1, WHOLE);
        let sms = asked.min(PROCESSES[process].1);
        let speed = if sms == asked {
            u128::from(FULL_SPEED)
        } else {
            let speed = |sms| u128::from(kernel.law.speed(sms, WHOLE));
            (speed(sms) * u128::from(FULL_SPEED) / speed(asked)).clamp(1, FULL_SPEED.into())
        };
        self.running.push(Running {
            work,
            process,
            sms: sms.into(),
            speed,
            interference: kernel.interference_millionths.into(),
            remaining: u128::from(kernel.duration.0) * u128::from(FULL_SPEED),
            rate: 0,
            millisms: 0,
        });
        self.share();
    }

    fn stop(&mut self, process: usize) {
        self.running.retain(|kernel| kernel.process != process);
        self.share();
    }

    fn is_on(&self, kernel: &Running) -> bool {
        let its = participant(kernel.process);
        self.turn
            .is_some_and(|(turn, since)| turn == its && since <= self.now)
    }

    fn pass_turn(&mut self) {
        let mut with_work: Vec<_> = self
            .running
            .iter()
            .map(|kernel| participant(kernel.process))
            .collect();
        with_work.sort_unstable();
        let Some(&first) = with_work.first() else {
            return;
        };
        self.turn = match self.turn {
            None => Some((first, self.now)),
            Some((turn, since)) => {
                let is_over = since <= self.now && since + TURNS.slice.0 <= self.now;
                if is_over || !with_work.contains(&turn) {
                    let behind = with_work.iter().find(|other| **other > turn);
                    let next = *behind.unwrap_or(&first);
                    let switch = if next == turn { 0 } else { TURNS.switch.0 };
                    Some((next, self.now + switch))
                } else {
                    Some((turn, since))
                }
            }
        };
    }

    fn share(&mut self) {
        self.pass_turn();
        let on: Vec<_> = self
            .running
            .iter()
            .filter(|kernel| self.is_on(kernel))
            .cloned()
            .collect();
        let asked = |process| -> u64 {
            let its = on.iter().filter(|kernel| kernel.process == process);
            its.map(|kernel| kernel.sms).sum()
        };
        let within = |process: usize| asked(process).min(PROCESSES[process].1.into());
        let wanted: u64 = (0..PROCESSES.len()).map(within).sum();
        let there = wanted.min(SMS.into());
        let others = (0..PROCESSES.len())
            .filter(|&process| asked(process) > 0)
            .count();
        let others = others.saturating_sub(1) as u128;
        let shares: Vec<_> = self
            .running
            .iter()
            .map(|kernel| {
                if !self.is_on(kernel) {
                    return (0, 0);
                }
                let part = u128::from(within(kernel.process)) * u128::from(there);
                let whole = u128::from(asked(kernel.process)) * u128::from(wanted);
                let slowed = 1_000_000 + kernel.interference * others;
                let rate = kernel.speed * part * 1_000_000 / (whole * slowed);
                let millisms = u128::from(kernel.sms) * 1_000 * part / whole;
                (rate.max(1), u64::try_from(millisms).unwrap())
            })
            .collect();
        for (kernel, (rate, millisms)) in self.running.iter_mut().zip(shares) {
            (kernel.rate, kernel.millisms) = (rate, millisms);
        }
    }

    fn next(&self) -> Option<u64> {
        let on = self.running.iter().filter(|kernel| kernel.rate > 0);
        let ends = on.map(|kernel| {
            self.now + u64::try_from(kernel.remaining.div_ceil(kernel.rate)).unwrap()
        });
        let turn = self.turn.and_then(|(turn, since)| {
            if since > self.now {
                return Some(since);
            }
            let is_other = |kernel: &Running| participant(kernel.process) != turn;
            let others_wait = self.running.iter().any(is_other);
            others_wait.then(|| (since + TURNS.slice.0).max(self.now))
        });
        ends.chain(turn).min()
    }

    fn pass(&mut self, to: u64) {
        while let Some(next) = self.next().filter(|next| *next <= to) {
            self.go(next);
            let (now, ended) = (self.now, &mut self.ended);
            self.running.retain(|kernel| {
                let is_over = kernel.remaining == 0 && kernel.rate > 0;
                if is_over {
                    ended.push((now, kernel.work));
                }
                !is_over
            });
            self.share();
        }
        self.go(to);
    }

    fn go(&mut self, to: u64) {
        for kernel in &mut self.running {
            let done = kernel.rate * u128::from(to - self.now);
            kernel.remaining = kernel.remaining.saturating_sub(done);
            if kernel.millisms > 0 && to > self.now {
                self.held.push((kernel.work, kernel.millisms, self.now, to));
            }
        }
        self.now = to;
    }
}

fn job(work: u64, process: usize) -> Job {
    Job {
        work: WorkId {
            command: work,
            node: 0,
        },
        process: ProcessId(u32::try_from(process).unwrap()),
        tag: 7,
    }
}

struct Real {
    compute: Compute,
    ledger: Ledger,
    now: Time,
    ended: Vec<(u64, u64)>,
}

impl Real {
    fn pass(&mut self, to: Time) {
        let mut ended = Vec::new();
        while let Some(next) = self.compute.next().filter(|next| *next <= to) {
            self.compute.advance(next, &mut ended, &mut self.ledger);
            self.compute.share(&mut self.ledger);
            self.ended
                .extend(ended.drain(..).map(|job| (next.0, job.work.command)));
        }
        self.compute.advance(to, &mut ended, &mut self.ledger);
        assert_eq!(ended, []);
        self.now = to;
    }
}

/// Merges adjacent entries of equal amount, sorted by work and start.
fn joined(mut lines: Vec<(u64, u64, u64, u64)>) -> Vec<(u64, u64, u64, u64)> {
    lines.sort_by_key(|line| (line.0, line.2));
    lines.dedup_by(|later, line| {
        let continues = later.0 == line.0 && later.1 == line.1 && later.2 == line.3;
        if continues {
            line.3 = later.3;
        }
        continues
    });
    lines
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn sms_are_shared_as_in_the_naive_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut naive = Naive::default();
        let mut real = Real {
            compute: Compute::new(0, SMS, WHOLE, TURNS),
            ledger: Ledger::default(),
            now: Time::ZERO,
            ended: Vec::new(),
        };
        for (process, (server, limit)) in PROCESSES.into_iter().enumerate() {
            real.compute.admit(job(0, process).process, limit, server.map(MpsServer));
        }
        for (work, step) in (0..).zip(steps.into_iter().chain([Step::Pass { nanos: 100_000_000 }])) {
            match step {
                Step::Start { process, kernel } => {
                    naive.start(work, process, &kernel);
                    prop_assert!(real.compute.start(job(work, process), &kernel).is_some());
                    real.compute.share(&mut real.ledger);
                }
                Step::Stop { process } => {
                    naive.stop(process);
                    real.compute.stop(job(0, process).process, &mut real.ledger);
                    real.compute.share(&mut real.ledger);
                }
                Step::Pass { nanos } => {
                    naive.pass(naive.now + nanos);
                    real.pass(real.now.after(Span(nanos)));
                }
            }
            prop_assert_eq!(real.compute.running(), naive.running.len());
        }
        prop_assert_eq!(naive.running.len(), 0);
        prop_assert_eq!(&real.ended, &naive.ended);
        let line = |entry: &Entry| {
            assert_eq!(entry.resource, Resource::Sms { unit: 0 });
            (entry.work.unwrap().command, entry.amount, entry.from.0, entry.to.0)
        };
        let held = real.ledger.take().iter().map(line).collect();
        prop_assert_eq!(joined(held), joined(naive.held));
    }
}
