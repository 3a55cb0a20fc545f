//! Measures proxies in front of the same user container, in turn, in one run: Weir's queue-proxy without and with deadlines,
//! nginx and HAProxy if installed, and Knative's own if `KNATIVE_QUEUE_PROXY` names it.
//!
//! `cargo run --release -p tests --bin proxy-bench -- [--rounds N] [--seconds S] [--weir BINARY] [--before BINARY]`
//!
//! With `--before`, an earlier build is compared with this one instead: the two in turn, at saturation alone.
//!
//! Every figure is the median over the rounds. Load, proxies and user container share the machine, so absolute figures drift;
//! ratios within a run count.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use tests::bench::figures::{
    CLIENTS, Figures, LoadFigures, PROTOCOLS, RATE, cell, measure, median, open_rate, saturate,
    title,
};
use tests::bench::load::Protocol;
use tests::bench::process::Kind;
use tests::bench::quota::Quota;
use tests::bench::{app, load, process};

const USAGE: &str = "usage: proxy-bench [--rounds N] [--seconds S] [--weir BINARY] [--before BINARY]\n\
    --rounds N     how often each proxy has its turn, 1 to 99 (3)\n\
    --seconds S    how long each load lasts, 1 to 60 (2)\n\
    --weir BINARY  the queue-proxy to measure (the release build beside this program)\n\
    --before BINARY  an earlier build: only the two are measured, in turn, at saturation, and their ratio is printed\n\
    KNATIVE_QUEUE_PROXY names Knative's own, to be measured too";
/// Number of connections with a request in flight, for the resident memory.
const BUSY: usize = 1_000;
/// CPU limit of the sidecar in a cluster: 100m.
const QUOTA_PERCENT: u32 = 10;
const BODIES: [usize; 3] = [0, 64 * 1024, 1024 * 1024];

struct Options {
    rounds: usize,
    span: Duration,
    weir: PathBuf,
    before: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [role, port] = &arguments[..]
        && role == app::ROLE
        && let Ok(port) = port.parse()
    {
        return app::run(port).await;
    }
    let Some(options) = parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let done = match &options.before {
        Some(before) => compare(&options, before).await,
        None => bench(&options).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("proxy-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Options> {
    let beside = std::env::current_exe().ok()?.with_file_name("queue-proxy");
    let mut options = Options {
        rounds: 3,
        span: Duration::from_secs(2),
        weir: beside,
        before: None,
    };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--rounds" => options.rounds = value.parse().ok().filter(|n| (1..100).contains(n))?,
            "--seconds" => {
                let seconds = value.parse().ok().filter(|s| (1..=60).contains(s))?;
                options.span = Duration::from_secs(seconds);
            }
            "--weir" => options.weir = value.into(),
            "--before" => options.before = Some(value.into()),
            _ => return None,
        }
    }
    Some(options)
}

fn ensure_file(path: &Path, option: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        path.is_file(),
        "{} is not a file: cargo build --profile dist -p queue-proxy, or {option}",
        path.display()
    );
    Ok(())
}

/// Measures two builds in turn, at saturation, and prints the CPU time of each request.
async fn compare(options: &Options, before: &Path) -> anyhow::Result<()> {
    ensure_file(&options.weir, "--weir")?;
    ensure_file(before, "--before")?;
    let app = process::App::start().await?;
    let mut micros: Figures<f64> = BTreeMap::new();
    for round in 1..=options.rounds {
        // Alternates, so that neither build always runs after the other.
        let order = if round % 2 == 0 { [1, 0] } else { [0, 1] };
        for at in order {
            eprintln!("round {round}: {}", ["before", "now"][at]);
            let binary = [before, &options.weir][at];
            let kind = Kind::Weir(binary.to_owned(), false);
            let running = kind.start(app.port, None).await?;
            for protocol in PROTOCOLS {
                for bytes in BODIES {
                    let (cpu_us, ..) = saturate(&running, protocol, bytes, options.span).await?;
                    let title = title(protocol, bytes);
                    micros.entry((at, title)).or_default().push(cpu_us);
                }
            }
        }
    }
    println!(
        "{}; {} rounds of {} s in turn, {CLIENTS} clients; CPU µs a request: median (least – most)\n",
        process::machine(),
        options.rounds,
        options.span.as_secs()
    );
    println!("| load | before | now | now / before, median of the rounds |");
    println!("|---|---:|---:|---:|");
    for protocol in PROTOCOLS {
        for bytes in BODIES {
            let title = title(protocol, bytes);
            let [before, now] = [0, 1].map(|at| micros.get(&(at, title.clone())));
            let ratios = before.zip(now).map(|(before, now)| {
                let pairs = before.iter().zip(now);
                pairs.map(|(before, now)| now / before).collect::<Vec<_>>()
            });
            println!(
                "| {title} | {} | {} | {} |",
                spread(before),
                spread(now),
                cell(median(ratios.as_ref(), |ratio| *ratio), 3)
            );
        }
    }
    Ok(())
}

/// Formats a median with the least and the greatest value.
fn spread(values: Option<&Vec<f64>>) -> String {
    let bound = |pick: fn(f64, f64) -> f64| values?.iter().copied().reduce(pick);
    format!(
        "{} ({} – {})",
        cell(median(values, |value| *value), 1),
        cell(bound(f64::min), 1),
        cell(bound(f64::max), 1)
    )
}

async fn bench(options: &Options) -> anyhow::Result<()> {
    ensure_file(&options.weir, "--weir")?;
    let kinds = process::available(&options.weir);
    let app = process::App::start().await?;
    let mut shown: Figures<LoadFigures> = BTreeMap::new();
    let mut quota: Figures<LoadFigures> = BTreeMap::new();
    let mut single: Figures<f64> = BTreeMap::new();
    for round in 1..=options.rounds {
        for (at, kind) in kinds.iter().enumerate() {
            eprintln!("round {round}: {}", kind.name());
            let running = kind
                .start(app.port, None)
                .await
                .with_context(|| kind.name().to_owned())?;
            let mut note = |what: &str, value: f64| {
                single.entry((at, what.to_owned())).or_default().push(value);
            };
            note("start", running.started_in.as_secs_f64() * 1e3);
            note("idle", running.resident_mebibytes());
            for protocol in PROTOCOLS {
                for bytes in BODIES {
                    let figures = measure(&running, protocol, bytes, options.span).await?;
                    shown
                        .entry((at, title(protocol, bytes)))
                        .or_default()
                        .push(figures);
                }
            }
            let busy = load::hold(running.address, BUSY).await?;
            note("busy", running.resident_mebibytes());
            drop(busy);
            drop(running);
            if matches!(kind, Kind::Direct) {
                continue;
            }
            if let Some(group) = Quota::new(QUOTA_PERCENT) {
                let running = kind.start(app.port, Some(&group)).await?;
                let figures = measure(&running, Protocol::Http1, 0, options.span).await?;
                quota
                    .entry((at, "quota".to_owned()))
                    .or_default()
                    .push(figures);
            }
        }
    }
    print(options, &kinds, &shown, &quota, &single);
    Ok(())
}

fn print(
    options: &Options,
    kinds: &[Kind],
    shown: &Figures<LoadFigures>,
    quota: &Figures<LoadFigures>,
    single: &Figures<f64>,
) {
    println!(
        "{}; {} rounds of {} s, medians; {CLIENTS} clients at saturation, {RATE} requests/s in the open loop\n",
        process::machine(),
        options.rounds,
        options.span.as_secs()
    );
    for protocol in PROTOCOLS {
        for bytes in BODIES {
            let title = title(protocol, bytes);
            let per_second = open_rate(bytes);
            println!(
                "| {title} | CPU µs/request | requests/s | added p50 µs, saturated | added p99 | added p50 µs, {per_second}/s | added p99 |"
            );
            println!("|---|---:|---:|---:|---:|---:|---:|");
            let figure = |at: usize, figure: fn(&LoadFigures) -> f64| {
                median(shown.get(&(at, title.clone())), figure)
            };
            for (at, kind) in kinds.iter().enumerate() {
                let is_direct = matches!(kind, Kind::Direct);
                let added = |value: fn(&LoadFigures) -> f64| {
                    let direct = figure(0, value).filter(|_| !is_direct).unwrap_or_default();
                    cell(figure(at, value).map(|value| value - direct), 0)
                };
                println!(
                    "| {} | {} | {} | {} | {} | {} | {} |",
                    kind.name(),
                    cell(figure(at, |it| it.cpu_us).filter(|_| !is_direct), 1),
                    cell(figure(at, |it| it.rate), 0),
                    added(|it| it.saturated.p50_us),
                    added(|it| it.saturated.p99_us),
                    added(|it| it.open.p50_us),
                    added(|it| it.open.p99_us),
                );
            }
            println!();
        }
    }
    println!(
        "| process | resident MiB, idle | resident MiB, {BUSY} busy | start to ready ms | requests/s at a CPU quota of 100m | p99 ms there, {RATE}/s |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for (at, kind) in kinds.iter().enumerate() {
        if matches!(kind, Kind::Direct) {
            continue;
        }
        let of = |what: &str| median(single.get(&(at, what.to_owned())), |value| *value);
        let limited =
            |figure: fn(&LoadFigures) -> f64| median(quota.get(&(at, "quota".to_owned())), figure);
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            kind.name(),
            cell(of("idle"), 1),
            cell(of("busy"), 1),
            cell(of("start"), 1),
            cell(limited(|it| it.rate), 0),
            cell(limited(|it| it.open.p99_us / 1e3), 1),
        );
    }
    if quota.is_empty() {
        println!("\nNo CPU quota can be set: this process may not write control groups.");
    }
}
