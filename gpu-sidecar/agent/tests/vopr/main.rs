//! A node in virtual time under faults: the agent's service and the gates of the preload library, as they are, on `device`'s GPU.
//!
//! ```sh
//! cargo test -p gpu-sidecar --test vopr                                     # 20 s
//! cargo test --release -p gpu-sidecar --test vopr -- --seconds 3600         # more seeds; `--first N`: from this one
//! cargo test --release -p gpu-sidecar --test vopr -- --seed 7               # one seed again; `--shown N` events before a failure
//! ```
//!
//! A run follows from its seed: pods and programs, and which faults occur, at random times. After the faults everything is repaired,
//! models must return, and every process must be served and launch again. A failure is made smaller and printed as a plan for `named.rs`, with its last
//! events. Checked after every event (`checks`, `moves`): invariants 2, 5, 6, 7, 18, 19 and 20, claims, heartbeats, answers to orders of operators, where
//! models are, and that nothing spins.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | what a seed simulates |
//! | `world` | the event loop, processes and devices |
//! | `connections`, `agent` | messages between processes and agent; the agent's events and actions |
//! | `threads`, `process` | threads of a process around the library's state |
//! | `moves` | orders of operators, and models which move between device and host |
//! | `queues` | pods on exclusive slots: requests, leases, and queues as queue-proxy's |
//! | `node`, `gpu` | the agent's side, and the device |
//! | `faults` | faults, repairs and processes that lie |
//! | `checks`, `named` | invariants; runs which have failed once |

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a test's report")]

mod agent;
mod checks;
mod connections;
mod faults;
mod gpu;
mod moves;
mod named;
mod node;
mod plan;
mod process;
mod queues;
mod threads;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use checks::Failure;
use plan::Plan;
use world::Summary;

/// Time without an argument, in seconds.
const SECONDS_DEFAULT: u64 = 20;
/// Number of events shown after a failure, without an argument.
const SHOWN_DEFAULT: usize = 50;
/// Largest number of attempts to make a failing plan smaller.
const ATTEMPTS_MAX: u32 = 200;

struct Arguments {
    seed: Option<u64>,
    seconds: u64,
    first: u64,
    seeds: u64,
    shown: usize,
}

/// Reads the arguments; those of the test harness of other tests are ignored. `None`: no test was asked for.
fn arguments() -> Result<Option<Arguments>, String> {
    let mut own = Arguments {
        seed: None,
        seconds: SECONDS_DEFAULT,
        first: 1,
        seeds: u64::MAX,
        shown: SHOWN_DEFAULT,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let (word, attached) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                (name.to_owned(), Some(value.to_owned()))
            }
            _ => (word, None),
        };
        let mut number = || {
            let value = attached.clone().or_else(|| words.next());
            let value = value.unwrap_or_default();
            let parsed = value.parse::<u64>();
            parsed.map_err(|_| format!("vopr: {word} {value}: a number is required"))
        };
        match word.as_str() {
            "--seed" => own.seed = Some(number()?),
            "--seconds" => own.seconds = number()?,
            "--first" => own.first = number()?,
            "--seeds" => own.seeds = number()?,
            "--shown" => own.shown = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--list" => return Ok(None),
            "--skip" | "--test-threads" | "--format" | "--color" => {
                let _value = attached.or_else(|| words.next());
            }
            "--nocapture" | "--no-capture" | "--quiet" | "-q" | "--exact" | "--ignored"
            | "--include-ignored" | "--test" | "--bench" | "--show-output" => {}
            other if other.starts_with('-') => {
                return Err(format!(
                    "vopr: {other} is not known; --seed N, --seconds S, --first N, --seeds N and --shown N are"
                ));
            }
            filter if "vopr".contains(filter) => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(own))
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(Some(arguments)) => arguments,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    for (name, plan) in named::named() {
        if let Err(failure) = world::run(&plan) {
            eprintln!("named run {name:?} fails again");
            return report(&plan, &failure, arguments.shown);
        }
    }
    if let Some(seed) = arguments.seed {
        let plan = Plan::of(seed);
        println!("{plan}");
        return match world::run(&plan) {
            Ok(summary) => {
                println!("{summary:?}");
                ExitCode::SUCCESS
            }
            Err(failure) => report(&plan, &failure, arguments.shown),
        };
    }
    let begin = Instant::now();
    let until = begin + Duration::from_secs(arguments.seconds);
    let mut all = Summary::default();
    let mut seeds = 0_u64;
    while Instant::now() < until && seeds < arguments.seeds {
        let plan = Plan::of(arguments.first + seeds);
        match world::run(&plan) {
            Ok(summary) => {
                all.events += summary.events;
                all.ns += summary.ns;
                all.grants += summary.grants;
                all.launches += summary.launches;
                all.moves += summary.moves;
                all.requests += summary.requests;
                all.forwarded += summary.forwarded;
            }
            Err(failure) => return report(&plan, &failure, arguments.shown),
        }
        seeds += 1;
    }
    let seconds = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    let (rate, span) = (all.events as f64 / seconds, all.ns as f64 / 1e9);
    println!(
        "{seeds} seeds from {}: {span:.0} s of virtual time, {} events ({rate:.0}/s), {} grants, {} launches, {} ordered moves, {} requests under leases, {} of them forwarded",
        arguments.first,
        all.events,
        all.grants,
        all.launches,
        all.moves,
        all.requests,
        all.forwarded
    );
    ExitCode::SUCCESS
}

/// Makes a failing plan smaller, and prints it with its last events.
fn report(plan: &Plan, failure: &Failure, shown: usize) -> ExitCode {
    let commit = option_env!("WEIR_COMMIT").unwrap_or(env!("CARGO_PKG_VERSION"));
    eprintln!("seed {} (commit {commit}): {failure}", plan.seed);
    let (mut plan, mut failure) = (plan.clone(), failure.clone());
    let mut attempts = 0;
    'smaller: loop {
        for smaller in plan.smaller() {
            attempts += 1;
            if attempts > ATTEMPTS_MAX {
                break 'smaller;
            }
            if let Err(other) = world::run(&smaller)
                && other.check == failure.check
            {
                (plan, failure) = (smaller, other);
                continue 'smaller;
            }
        }
        break;
    }
    for line in world::trace(&plan, shown) {
        eprintln!("{line}");
    }
    eprintln!("{failure}\nfor named.rs: {plan}");
    ExitCode::FAILURE
}
