//! Measures the memory that a queue-proxy holds for clients that do not read, and for user containers that do not read: Weir's,
//! and Knative's own if `KNATIVE_QUEUE_PROXY` names it.
//!
//! `cargo run --release -p tests --bin slow-readers -- [--attacks A,B] [--seconds S] [--weir BINARY]`
//!
//! Memory is the resident memory of the proxy's process, sampled throughout the attack; the kernel's memory for all sockets of
//! this network namespace, those of the attackers and the user container included, is listed beside it. Meanwhile a reading
//! client sends one small request after the other, and a second one does the same directly to the user container: its answer
//! times are not caused by the proxy. Knative's own listens on all interfaces: if another queue-proxy runs, start this within
//! `unshare --net sh -c 'ip link set lo up && exec …'`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

mod app;
mod attack;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use tests::client::Client;
use tests::proxy::Builder;
use tokio::time::Instant;

use crate::attack::Attack;

const USAGE: &str = "usage: slow-readers [--attacks A,B] [--readers N] [--seconds S] [--weir BINARY]\n\
    --attacks A,B  of readers, windows, stalled, trickle, uploads, uploads2, tunnels (all)\n\
    --readers N    connections of an HTTP/1 attack, 1 to 10000 (1000); HTTP/2 attacks have 20 of 100 streams\n\
    --seconds S    how long each attack lasts, 1 to 60 (10)\n\
    --weir BINARY  the queue-proxy to measure (the build beside this program)\n\
    KNATIVE_QUEUE_PROXY names Knative's own, to be measured too";
/// Interval between samples of memory, and pause of the reading client.
const PERIOD: Duration = Duration::from_millis(20);
/// Time after which memory must be released.
const BACK: Duration = Duration::from_secs(5);
const MEBIBYTE: f64 = 1_048_576.0;

struct Options {
    attacks: Vec<Attack>,
    readers: usize,
    span: Duration,
    weir: PathBuf,
}

/// Figures of one attack. Memory in bytes.
#[derive(Debug, Default)]
struct AttackFigures {
    before: usize,
    peak: usize,
    after: usize,
    /// Peak of the kernel's memory for sockets.
    kernel: usize,
    /// Slowest answer to the reading client.
    slowest: Duration,
    /// Number of answers to the reading client.
    answers: usize,
    /// Slowest answer to the client without the proxy.
    slowest_direct: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let done = if arguments == [app::ROLE] {
        app::run().await
    } else {
        let Some(options) = parse(&arguments) else {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        };
        run(&options).await
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slow-readers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Options> {
    let beside = std::env::current_exe().ok()?.with_file_name("queue-proxy");
    let mut options = Options {
        attacks: Attack::ALL.to_vec(),
        readers: 1_000,
        span: Duration::from_secs(10),
        weir: beside,
    };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--attacks" => {
                options.attacks = value.split(',').map(Attack::named).collect::<Option<_>>()?;
            }
            "--readers" => {
                options.readers = value.parse().ok().filter(|n| (1..=10_000).contains(n))?;
            }
            "--seconds" => {
                let seconds = value.parse().ok().filter(|s| (1..=60).contains(s))?;
                options.span = Duration::from_secs(seconds);
            }
            "--weir" => options.weir = value.into(),
            _ => return None,
        }
    }
    Some(options)
}

async fn run(options: &Options) -> anyhow::Result<()> {
    anyhow::ensure!(
        options.weir.is_file(),
        "{} is not a file: cargo build --profile dist -p queue-proxy, or --weir",
        options.weir.display()
    );
    let mut binaries = vec![("Weir", options.weir.clone())];
    if let Some(binary) = std::env::var_os(peers::knative::QUEUE_PROXY_VARIABLE) {
        binaries.push(("Knative", binary.into()));
    }
    println!(
        "| attack | proxy | MiB before | MiB at most | MiB {} s after | kernel MiB at most | slowest other answer ms | without the proxy ms | other answers |",
        BACK.as_secs()
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    for attack in &options.attacks {
        for (name, binary) in &binaries {
            let shown = measure(options, *attack, binary)
                .await
                .with_context(|| format!("{} against {name}", attack.name()))?;
            let mebibytes = |bytes: usize| bytes as f64 / MEBIBYTE;
            println!(
                "| {} | {name} | {:.1} | {:.1} | {:.1} | {:.0} | {:.0} | {:.0} | {} |",
                attack.name(),
                mebibytes(shown.before),
                mebibytes(shown.peak),
                mebibytes(shown.after),
                mebibytes(shown.kernel),
                shown.slowest.as_secs_f64() * 1e3,
                shown.slowest_direct.as_secs_f64() * 1e3,
                shown.answers,
            );
        }
    }
    Ok(())
}

async fn measure(
    options: &Options,
    attack: Attack,
    binary: &Path,
) -> anyhow::Result<AttackFigures> {
    let app = app::App::start().await?;
    let binary = binary.to_str().context("the path is not UTF-8")?;
    let proxy = Builder::new(binary, app.port).start().await;
    for _ in 0..20 {
        answer(proxy.address()).await?;
    }
    let mut shown = AttackFigures {
        before: proxy.resident_bytes(),
        ..AttackFigures::default()
    };
    let begin = Instant::now();
    let address = proxy.address();
    let is_over = Arc::<AtomicBool>::default();
    // In threads of their own, so that they do not wait for the attackers' tasks.
    let app_address = SocketAddr::from((Ipv4Addr::LOCALHOST, app.port));
    let [client, direct] = [address, app_address].map(|server| {
        let is_over = Arc::clone(&is_over);
        std::thread::spawn(move || client(server, &is_over))
    });
    let attackers = tokio::spawn(attack.begin(address, options.readers));
    while begin.elapsed() < options.span || !attackers.is_finished() {
        shown.peak = shown.peak.max(proxy.resident_bytes());
        shown.kernel = shown.kernel.max(kernel_bytes());
        tokio::time::sleep(PERIOD).await;
    }
    is_over.store(true, Ordering::Relaxed);
    let answers = tokio::task::spawn_blocking(|| (client.join(), direct.join())).await?;
    let (Ok(answers), Ok(direct)) = answers else {
        anyhow::bail!("a client that reads has panicked");
    };
    (shown.answers, shown.slowest) = answers?;
    (_, shown.slowest_direct) = direct?;
    drop(attackers.await??);
    tokio::time::sleep(BACK).await;
    shown.after = proxy.resident_bytes();
    answer(proxy.address()).await?;
    Ok(shown)
}

/// Sends one request after the other until `is_over`; returns the number of answers and the slowest.
#[tokio::main(flavor = "current_thread")]
async fn client(server: SocketAddr, is_over: &AtomicBool) -> anyhow::Result<(usize, Duration)> {
    let (mut answers, mut slowest) = (0, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        let begin = Instant::now();
        answer(server).await?;
        slowest = slowest.max(begin.elapsed());
        answers += 1;
        tokio::time::sleep(PERIOD).await;
    }
    Ok((answers, slowest))
}

/// Sends one request on a connection of its own and reads its answer.
async fn answer(server: SocketAddr) -> anyhow::Result<()> {
    let answer = Client::connect(server).await.get("/1000").await;
    anyhow::ensure!(answer.status() == 200, "status {}", answer.status());
    anyhow::ensure!(answer.body.len() == 1_000, "{} bytes", answer.body.len());
    Ok(())
}

/// Returns the kernel's memory for TCP sockets of this network namespace, in bytes; 0 if it is not reported.
fn kernel_bytes() -> usize {
    let text = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("TCP:"));
    let pages = line.and_then(|line| line.rsplit(' ').next()?.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}
