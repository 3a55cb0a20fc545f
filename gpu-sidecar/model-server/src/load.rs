//! A load generator that keeps the GPU busy and records its waiting times, for measurements of time shares.
//!
//! It launches batches of kernels in one stream, one after the other, or as graphs, through the driver as the server does.
//! Without pauses, two batches are in flight, so that the device never waits for the program. Every kernel occupies all SMs.
//!
//! Standard input controls it, line by line:
//!
//! | line | meaning |
//! |---|---|
//! | `begin NS` | start of the measured span, from which `--once` and `--idle-from` count |
//! | `stop` | prints the time stamps and ends, whatever it waits for; so does the end of the input |
//!
//! Standard output reports, with all time stamps in ns of CLOCK_MONOTONIC:
//!
//! | line | meaning |
//! |---|---|
//! | `asking` | it has a context, and launches for the first time |
//! | `computing NS` | the first batch is done |
//! | `batch FROM TO` | from a batch's first launch until its end is observed: without pauses, after the launch of the next batch |
//! | `asked FROM TO` | launches took this long, at least [`BLOCKED`] each: the program was kept waiting |
//! | `end LAUNCHES` | nothing follows |
//!
//! Exit codes as for the server.

use std::ffi::OsString;
use std::io::{BufRead as _, BufWriter, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use kernels::{Busy, Launch, Law};
use rustix::time::{ClockId, clock_gettime};

use crate::failure::Failure;
use crate::gpu::{Gpu, Player};
use crate::models::Model;
use crate::units;

/// Shortest launch that counts as kept waiting; a shorter one is the driver's own time.
pub const BLOCKED: Duration = Duration::from_micros(20);
/// Largest gap between two waits that count as one.
const TOGETHER: Duration = Duration::from_micros(5);
/// Maximum number of recorded time stamps of each kind; later ones are dropped.
const STAMPS_MAX: usize = 1 << 20;
/// Interval of the checks for the end of an idle phase.
const IDLE_STEP: Duration = Duration::from_millis(1);
/// Maximum number of kernels per batch.
const BATCH_MAX: u64 = 100_000;
/// Longest time in an option.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Keep a GPU busy and record waiting times
#[derive(Debug, Parser)]
#[command(name = "load")]
struct Arguments {
    /// Time of a kernel running alone on the whole GPU
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = time)]
    kernel: Duration,
    /// Number of kernels per batch
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=BATCH_MAX))]
    batch: u64,
    /// Launch each batch as one graph of its kernels in sequence
    #[arg(long)]
    graph: bool,
    /// Launch the kernels of a request to this model as a batch, with its law and interference
    #[arg(long, value_name = "NAME", value_parser = model)]
    model: Option<Model>,
    /// Wait for each batch, and then for this long
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    pause: Duration,
    /// Launch one kernel of this length at the start of the measured span
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    once: Duration,
    /// Start of the idle phase, counted from the start of the measured span
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    idle_from: Duration,
    /// Length of the idle phase
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    idle_for: Duration,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = units::nanoseconds(text).map(Duration::from_nanos);
    time.filter(|time| *time <= TIME_MAX)
        .ok_or_else(|| format!("allowed: a time such as 250us or 1.5s, up to {TIME_MAX:?}"))
}

fn model(text: &str) -> Result<Model, String> {
    let names = || Model::names().collect::<Vec<_>>().join(", ");
    Model::named(text).ok_or_else(|| format!("allowed: one of {}", names()))
}

/// Runs the load until `stop` or the end of the input, and returns the exit code. The first argument is the program's name.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // A closed standard error is ignored.
            let _printed = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let shared = Arc::new(Shared::default());
    let (sender, stop_reasons) = sync_channel(4);
    let worker = {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        std::thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || {
                let Err(failure) = Worker::new(arguments, &shared).and_then(|mut own| own.run());
                // Received unless the program ends first.
                let _ended = sender.send(StopReason::Failed(failure));
            })
    };
    let reader = {
        let shared = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("input".to_owned())
            .spawn(move || listen(&shared, &sender))
    };
    if worker.is_err() || reader.is_err() {
        return fail("cannot start a thread");
    }
    end(&shared, &stop_reasons)
}

fn fail(why: &str) -> ExitCode {
    // A closed standard error is ignored.
    let _written = writeln!(std::io::stderr(), "load: {why}");
    ExitCode::FAILURE
}

enum StopReason {
    Stop,
    Failed(Failure),
}

fn listen(shared: &Shared, sender: &SyncSender<StopReason>) {
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else {
            break;
        };
        if let Some(begin) = line.strip_prefix("begin ") {
            shared
                .begin
                .store(begin.parse().unwrap_or(0), Ordering::Release);
        } else {
            break;
        }
    }
    // Fails when the program ends otherwise.
    let _ended = sender.send(StopReason::Stop);
}

/// Waits for the end and prints the time stamps; abandons a worker that hangs in the driver.
fn end(shared: &Shared, stop_reasons: &Receiver<StopReason>) -> ExitCode {
    match stop_reasons.recv() {
        Ok(StopReason::Stop) => match shared.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        },
        Ok(StopReason::Failed(failure)) => fail(&failure.to_string()),
        Err(_) => fail(&Failure::Worker.to_string()),
    }
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Time stamps recorded by the worker: start and end, in ns.
#[derive(Debug, Default)]
struct Stamps {
    /// Start and observed end of each batch.
    batches: Vec<(u64, u64)>,
    /// Start and end of each wait in a launch.
    asked: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Start of the measured span, in ns; 0: not started.
    begin: AtomicU64,
    /// Start of the current launch, in ns; 0: none.
    launching: AtomicU64,
    launches: AtomicU64,
    stamps: Mutex<Stamps>,
}

impl Shared {
    fn stamp(&self, record: impl FnOnce(&mut Stamps)) {
        record(&mut self.stamps.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn asked(&self, from: u64, to: u64) {
        if to - from < nanoseconds(BLOCKED) {
            return;
        }
        self.stamp(|stamps| {
            if let Some(last) = stamps.asked.last_mut()
                && from.saturating_sub(last.1) < nanoseconds(TOGETHER)
            {
                last.1 = to;
            } else if stamps.asked.len() < STAMPS_MAX {
                stamps.asked.push((from, to));
            }
        });
    }

    fn print(&self) -> std::io::Result<()> {
        let since = self.launching.load(Ordering::Acquire);
        if since > 0 {
            self.asked(since, now().max(since));
        }
        let stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        let mut output = BufWriter::new(std::io::stdout().lock());
        for (from, to) in &stamps.batches {
            writeln!(output, "batch {from} {to}")?;
        }
        for (from, to) in &stamps.asked {
            writeln!(output, "asked {from} {to}")?;
        }
        writeln!(output, "end {}", self.launches.load(Ordering::Relaxed))?;
        output.flush()
    }
}

/// Uninhabited result of a loop that ends only with an error.
enum Never {}

struct Worker<'a> {
    shared: &'a Shared,
    player: Player,
    spins: Vec<Launch>,
    has_graph: bool,
    once: Duration,
    pause: Duration,
    idle: (u64, u64),
}

impl<'a> Worker<'a> {
    fn new(arguments: Arguments, shared: &'a Shared) -> Result<Self, Failure> {
        let Arguments {
            kernel,
            batch,
            graph,
            model,
            pause,
            once,
            idle_from,
            idle_for,
        } = arguments;
        let spin = |ns, law, interference_millionths| {
            Launch::Spin(Busy {
                ns,
                law,
                interference_millionths,
            })
        };
        let spins: Vec<_> = match model {
            Some(model) => {
                let groups = model.kernels.iter();
                let each = |group: &crate::models::Group| {
                    let count = usize::try_from(group.count).unwrap_or(usize::MAX);
                    let own = spin(group.ns, model.law, model.interference_millionths);
                    std::iter::repeat_n(own, count)
                };
                groups.flat_map(each).collect()
            }
            None => {
                let count = usize::try_from(batch).unwrap_or(usize::MAX);
                vec![spin(nanoseconds(kernel), Law::Linear, 0); count]
            }
        };
        let mut player = Player::new(Gpu::open(0)?)?;
        if graph {
            player.record(&spins)?;
        }
        let idle_from = nanoseconds(idle_from);
        Ok(Self {
            shared,
            player,
            spins,
            has_graph: graph,
            once,
            pause,
            idle: (idle_from, idle_from + nanoseconds(idle_for)),
        })
    }

    fn run(&mut self) -> Result<Never, Failure> {
        print_line("asking");
        // The batch in flight: its mark and its start.
        let mut pending: Option<(usize, u64)> = None;
        for number in 0.. {
            let begun = self.shared.begin.load(Ordering::Acquire);
            let since = now().checked_sub(begun).filter(|_| begun > 0);
            let is_idle = since.is_some_and(|own| own >= self.idle.0 && own < self.idle.1);
            if is_idle {
                if let Some(batch) = pending.take() {
                    self.finish(batch)?;
                }
                rest(IDLE_STEP);
                continue;
            }
            let from = now();
            if since.is_some() && !self.once.is_zero() {
                let ns = nanoseconds(std::mem::take(&mut self.once));
                self.launch(|player| {
                    player.launch(&Launch::Spin(Busy {
                        ns,
                        law: Law::Linear,
                        interference_millionths: 0,
                    }))
                })?;
            } else if self.has_graph {
                self.launch(Player::launch_graph)?;
            } else {
                for spin in &self.spins {
                    self.launch(|player| player.launch(spin))?;
                }
            }
            self.player.mark(number)?;
            if let Some(batch) = pending.replace((number, from)) {
                self.finish(batch)?;
            }
            if !self.pause.is_zero()
                && let Some(batch) = pending.take()
            {
                self.finish(batch)?;
                rest(self.pause);
            }
        }
        Err(Failure::Worker)
    }

    fn launch(&self, launch: impl FnOnce(&Player) -> Result<(), Failure>) -> Result<(), Failure> {
        let from = now();
        self.shared.launching.store(from, Ordering::Release);
        let done = launch(&self.player);
        self.shared.launching.store(0, Ordering::Release);
        self.shared.launches.fetch_add(1, Ordering::Relaxed);
        self.shared.asked(from, now());
        done
    }

    /// Waits for a batch and records its time stamps.
    fn finish(&self, (number, from): (usize, u64)) -> Result<(), Failure> {
        self.player.await_mark(number)?;
        let to = now();
        let mut is_first = false;
        self.shared.stamp(|stamps| {
            is_first = stamps.batches.is_empty();
            if stamps.batches.len() < STAMPS_MAX {
                stamps.batches.push((from, to));
            }
        });
        if is_first {
            print_line(&format!("computing {to}"));
        }
        Ok(())
    }
}

fn print_line(line: &str) {
    let mut output = std::io::stdout().lock();
    // A closed standard output is ignored.
    let _closed = writeln!(output, "{line}").and_then(|()| output.flush());
}

#[expect(
    clippy::disallowed_methods,
    reason = "a separate thread, without other work"
)]
fn rest(time: Duration) {
    std::thread::sleep(time);
}
