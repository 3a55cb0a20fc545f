//! A program that keeps the GPU busy and stamps what it has waited for: what shares of time are measured with.
//!
//! It launches a batch of kernels after the other in one stream, or the same as a graph, through the driver as the server
//! does. A caller without pauses has two batches in flight, so that the device need not wait for it. Every kernel asks for
//! all SMs.
//!
//! Standard input is told, line by line:
//!
//! | line | what |
//! |---|---|
//! | `begin NS` | the measured span begins: `--once`, `--idle-from` count from here |
//! | `stop` | it prints its stamps and ends, whatever it waits for; so it does at the end of the input |
//!
//! Standard output tells, all stamps in ns of CLOCK_MONOTONIC:
//!
//! | line | what |
//! |---|---|
//! | `asking` | it has a context, and launches for the first time |
//! | `computing NS` | the first batch is done |
//! | `batch FROM TO` | from its first launch until its end is seen: without pauses, once the next is launched |
//! | `asked FROM TO` | launches took so long, [`BLOCKED`] at least each: it was kept waiting |
//! | `end LAUNCHES` | nothing follows |
//!
//! Exit codes as the server's.

use std::ffi::OsString;
use std::io::{BufRead as _, BufWriter, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Parser;
use kernels::{Launch, Law};
use rustix::time::{ClockId, clock_gettime};

use crate::failure::Failure;
use crate::gpu::{Gpu, Player};
use crate::models::Model;
use crate::units;

/// A launch that takes less was not kept waiting: the driver's own time.
pub const BLOCKED: Duration = Duration::from_micros(20);
/// Two waits with less between them are one.
const TOGETHER: Duration = Duration::from_micros(5);
/// Stamps of a kind, at most; what comes later is not stamped.
const STAMPS_MAX: usize = 1 << 20;
/// How often one that is idle looks whether it still is.
const IDLE_STEP: Duration = Duration::from_millis(1);
/// Kernels of a batch, at most.
const BATCH_MAX: u64 = 100_000;
/// The longest time that can be set.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Keep a GPU busy, and stamp what was waited for.
#[derive(Debug, Parser)]
#[command(name = "load")]
struct Arguments {
    /// How long a kernel takes alone on the whole GPU.
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = time)]
    kernel: Duration,
    /// Kernels of a batch.
    #[arg(long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u64).range(1..=BATCH_MAX))]
    batch: u64,
    /// A batch is one graph of its kernels in a row.
    #[arg(long)]
    graph: bool,
    /// A batch is what a request to this model launches, with its law and interference.
    #[arg(long, value_name = "NAME", value_parser = model)]
    model: Option<Model>,
    /// Waits for each batch, and then for this long.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    pause: Duration,
    /// Launches one kernel of this length as soon as the measured span has begun.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    once: Duration,
    /// Launches nothing from so long after the begin of the measured span …
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    idle_from: Duration,
    /// … for so long.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time)]
    idle_for: Duration,
}

fn time(text: &str) -> Result<Duration, String> {
    let time = units::nanoseconds(text).map(Duration::from_nanos);
    time.filter(|time| *time <= TIME_MAX)
        .ok_or_else(|| format!("a time as 250us or 1.5s, up to {TIME_MAX:?}, is needed"))
}

fn model(text: &str) -> Result<Model, String> {
    let names = || Model::names().collect::<Vec<_>>().join(", ");
    Model::named(text).ok_or_else(|| format!("one of {} is needed", names()))
}

/// Runs until it is told to stop. The first argument is the program's name.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nobody to tell if this fails.
            let _printed = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let shared = Arc::new(Shared::default());
    let (sender, told) = sync_channel(4);
    let worker = {
        let (shared, sender) = (Arc::clone(&shared), sender.clone());
        std::thread::Builder::new()
            .name("device".to_owned())
            .spawn(move || {
                let Err(failure) = Worker::new(arguments, &shared).and_then(|mut own| own.run());
                // It is received unless the program ends.
                let _ended = sender.send(Told::Failed(failure));
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
    end(&shared, &told)
}

fn fail(why: &str) -> ExitCode {
    // Nobody to tell if this fails.
    let _written = writeln!(std::io::stderr(), "load: {why}");
    ExitCode::FAILURE
}

enum Told {
    Stop,
    Failed(Failure),
}

fn listen(shared: &Shared, sender: &SyncSender<Told>) {
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
    // The program ends otherwise.
    let _ended = sender.send(Told::Stop);
}

/// Waits for the end; the worker may hang in the driver, and is left behind there.
fn end(shared: &Shared, told: &Receiver<Told>) -> ExitCode {
    match told.recv() {
        Ok(Told::Stop) => match shared.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        },
        Ok(Told::Failed(failure)) => fail(&failure.to_string()),
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

/// What the worker has stamped.
#[derive(Debug, Default)]
struct Stamps {
    batches: Vec<(u64, u64)>,
    asked: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Shared {
    /// When the measured span begins; 0: not yet.
    begin: AtomicU64,
    /// Since when the worker is in a launch; 0: in none.
    launching: AtomicU64,
    launches: AtomicU64,
    stamps: Mutex<Stamps>,
}

impl Shared {
    fn stamp(&self, does: impl FnOnce(&mut Stamps)) {
        does(&mut self.stamps.lock().unwrap_or_else(PoisonError::into_inner));
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

/// What says that a loop does not end by itself.
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
        let spin = |ns, law, interference_millionths| Launch::Spin {
            ns,
            law,
            interference_millionths,
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
        say("asking");
        // The batch that is in flight: its mark, and since when.
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
                    player.launch(&Launch::Spin {
                        ns,
                        law: Law::Linear,
                        interference_millionths: 0,
                    })
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

    fn launch(&self, does: impl FnOnce(&Player) -> Result<(), Failure>) -> Result<(), Failure> {
        let from = now();
        self.shared.launching.store(from, Ordering::Release);
        let done = does(&self.player);
        self.shared.launching.store(0, Ordering::Release);
        self.shared.launches.fetch_add(1, Ordering::Relaxed);
        self.shared.asked(from, now());
        done
    }

    /// Waits for a batch.
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
            say(&format!("computing {to}"));
        }
        Ok(())
    }
}

fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    // Whoever does not listen any more has ended it.
    let _unheard = writeln!(output, "{line}").and_then(|()| output.flush());
}

#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own, which has nothing else to do"
)]
fn rest(time: Duration) {
    std::thread::sleep(time);
}
