//! Measures activator-ext beside other proxies in front of the same pod, in turn, in one run: Weir's own queue-proxy with
//! deadlines, nginx if installed, Envoy if `ENVOY` names it, and Knative's activator if `KNATIVE_ACTIVATOR` names it (in a
//! network namespace, with activator-ext in another one for comparison); and the cost of waiting requests.
//!
//! `cargo run --profile dist -p tests --bin activator-bench -- [--rounds N] [--seconds S] [--binaries FOLDER]`
//!
//! The pod is one process that answers at once. Every figure is the median over the rounds. Load, proxies and pod share the
//! machine, so absolute figures drift; ratios within a run count.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod waiting;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use peers::knative::ACTIVATOR_VARIABLE;
use peers::network::Network;
use tests::bench::figures::{
    CLIENTS, Figures, LoadFigures, PROTOCOLS, RATE, cell, measure, median, title,
};
use tests::bench::process::{Kind, is_installed};
use tests::bench::{app, process};

const USAGE: &str = "usage: activator-bench [--rounds N] [--seconds S] [--binaries FOLDER]\n\
    --rounds N         how often each proxy has its turn, 1 to 99 (3)\n\
    --seconds S        how long each load lasts, 1 to 60 (2)\n\
    --binaries FOLDER  where activator-ext and queue-proxy are (beside this program)\n\
    ENVOY and KNATIVE_ACTIVATOR name programs to be measured too; Knative's needs root";
const BODIES: [usize; 2] = [0, 64 * 1024];

struct Options {
    rounds: usize,
    span: Duration,
    binaries: PathBuf,
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
    match bench(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("activator-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Options> {
    let own = std::env::current_exe().ok()?;
    let mut options = Options {
        rounds: 3,
        span: Duration::from_secs(2),
        binaries: own.parent()?.to_owned(),
    };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--rounds" => options.rounds = value.parse().ok().filter(|n| (1..100).contains(n))?,
            "--seconds" => {
                let seconds = value.parse().ok().filter(|s| (1..=60).contains(s))?;
                options.span = Duration::from_secs(seconds);
            }
            "--binaries" => options.binaries = value.into(),
            _ => return None,
        }
    }
    Some(options)
}

async fn bench(options: &Options) -> anyhow::Result<()> {
    let binary = |name: &str| {
        let path = options.binaries.join(name);
        anyhow::ensure!(
            path.is_file(),
            "{} is not a file: cargo build --profile dist -p activator-ext -p queue-proxy, or --binaries",
            path.display()
        );
        Ok(path)
    };
    let activator = binary("activator-ext")?;
    let mut kinds = vec![
        Kind::Direct,
        Kind::Activator(activator.clone()),
        Kind::Weir(binary("queue-proxy")?, true),
    ];
    if is_installed("nginx") {
        kinds.push(Kind::Nginx);
    }
    if let Some(envoy) = std::env::var_os("ENVOY") {
        kinds.push(Kind::Envoy(envoy.into()));
    }
    if let Some(knative) = std::env::var_os(ACTIVATOR_VARIABLE) {
        match Network::new(&[]) {
            Ok(_possible) => {
                kinds.push(Kind::ActivatorInNetwork(activator.clone()));
                kinds.push(Kind::KnativeActivator(knative.into()));
            }
            Err(error) => println!("Knative's activator is not measured: {error}\n"),
        }
    }
    let pod = process::App::start().await?;
    let mut shown: Figures<LoadFigures> = BTreeMap::new();
    let mut idle: Figures<f64> = BTreeMap::new();
    for round in 1..=options.rounds {
        for (at, kind) in kinds.iter().enumerate() {
            eprintln!("round {round}: {}", kind.name());
            let running = kind
                .start(pod.port, None)
                .await
                .with_context(|| kind.name().to_owned())?;
            let resident = running.resident_mebibytes();
            idle.entry((at, String::new())).or_default().push(resident);
            for protocol in PROTOCOLS {
                for bytes in BODIES {
                    let figures = measure(&running, protocol, bytes, options.span).await?;
                    let title = title(protocol, bytes);
                    shown.entry((at, title)).or_default().push(figures);
                }
            }
        }
    }
    print(options, &kinds, &shown, &idle);
    for protocol in PROTOCOLS {
        eprintln!("requests that wait");
        println!(
            "{}",
            waiting::measure(&activator, pod.port, protocol).await?
        );
    }
    Ok(())
}

fn print(options: &Options, kinds: &[Kind], shown: &Figures<LoadFigures>, idle: &Figures<f64>) {
    println!(
        "{}; {} rounds of {} s, medians; {CLIENTS} clients at saturation, {RATE} requests/s in the open loop\n",
        process::machine(),
        options.rounds,
        options.span.as_secs()
    );
    let is_own = |kind: &Kind| matches!(kind, Kind::Activator(_));
    let own = kinds.iter().position(is_own).unwrap_or_default();
    for protocol in PROTOCOLS {
        for bytes in BODIES {
            let title = title(protocol, bytes);
            println!(
                "| {title} | CPU µs/request | of activator-ext's | requests/s | added p50 µs, saturated | added p99 | added p50 µs, {RATE}/s | added p99 |"
            );
            println!("|---|---:|---:|---:|---:|---:|---:|---:|");
            let figure = |at: usize, figure: fn(&LoadFigures) -> f64| {
                median(shown.get(&(at, title.clone())), figure)
            };
            for (at, kind) in kinds.iter().enumerate() {
                let is_direct = matches!(kind, Kind::Direct);
                let added = |value: fn(&LoadFigures) -> f64| {
                    let direct = figure(0, value).filter(|_| !is_direct).unwrap_or_default();
                    cell(figure(at, value).map(|value| value - direct), 0)
                };
                let cpu = figure(at, |it| it.cpu_us).filter(|_| !is_direct);
                let ratio = cpu
                    .zip(figure(own, |it| it.cpu_us))
                    .map(|(cpu, own)| cpu / own);
                println!(
                    "| {} | {} | {} | {} | {} | {} | {} | {} |",
                    kind.name(),
                    cell(cpu, 1),
                    cell(ratio, 2),
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
    println!("| process | resident MiB, idle |");
    println!("|---|---:|");
    for (at, kind) in kinds.iter().enumerate() {
        if !matches!(kind, Kind::Direct) {
            let resident = median(idle.get(&(at, String::new())), |value| *value);
            println!("| {} | {} |", kind.name(), cell(resident, 1));
        }
    }
    println!();
}
