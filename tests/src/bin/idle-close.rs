//! Counts results of requests in front of an application that closes idle connections: with Weir's queue-proxy, any other build
//! of it, and Knative's own if `KNATIVE_QUEUE_PROXY` names it, in turn, in one run.
//!
//! `cargo run --release -p tests --bin idle-close -- [--requests N] [--clients N] [--seed N] [--weir BINARY]...`
//!
//! After each answer the application closes the connection if nothing arrives within a random time, and clients pause for as
//! long, so requests often meet a connection that is just being closed. Each request has an id, which the application counts once
//! it has read the request completely: none may be executed twice.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program"
)]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use testing::Random;
use tests::client::Client;
use tests::message::{Kind, read_body, read_head};
use tests::metrics::Metrics;
use tests::proxy::Builder;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const USAGE: &str = "usage: idle-close [--requests N] [--clients N] [--seed N] [--weir BINARY]...\n\
    --requests N   requests of each method, 1 to 1000000 (22000)\n\
    --clients N    connections that send them, 1 to 1000 (32)\n\
    --seed N       of pauses and idle times (1)\n\
    --weir BINARY  a queue-proxy to try, may be repeated (the build beside this program)\n\
    KNATIVE_QUEUE_PROXY names Knative's own, to be tried too";
/// Longest idle time at the application, and longest pause of a client.
const IDLE_MAX: Duration = Duration::from_millis(20);
/// Longest time of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

struct Options {
    requests: usize,
    clients: usize,
    seed: u64,
    weir: Vec<PathBuf>,
}

/// Returns a random time from zero to [`IDLE_MAX`].
fn random_pause(random: &mut Random) -> Duration {
    IDLE_MAX.mul_f64(random.unit())
}

/// Number of executions of each request, by its id.
type Executed = Arc<Vec<AtomicU8>>;

/// Results of all requests of one method.
#[derive(Default)]
struct Tally {
    /// Number of answers by status; 0 for none.
    statuses: BTreeMap<u16, usize>,
    executed_twice: usize,
    /// Number of requests answered 200 and not executed.
    invented: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let Some(options) = parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&options).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "idle-close: a request was executed twice, or answered without being executed"
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("idle-close: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(arguments: &[String]) -> Option<Options> {
    let mut options = Options {
        requests: 22_000,
        clients: 32,
        seed: 1,
        weir: Vec::new(),
    };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        let number = |max: usize| value.parse().ok().filter(|n| (1..=max).contains(n));
        match name.as_str() {
            "--requests" => options.requests = number(1_000_000)?,
            "--clients" => options.clients = number(1_000)?,
            "--seed" => options.seed = value.parse().ok()?,
            "--weir" => options.weir.push(value.into()),
            _ => return None,
        }
    }
    if options.weir.is_empty() {
        let beside = std::env::current_exe().ok()?;
        options.weir.push(beside.with_file_name("queue-proxy"));
    }
    Some(options)
}

async fn run(options: &Options) -> anyhow::Result<bool> {
    let mut binaries = options.weir.clone();
    binaries.extend(std::env::var_os(peers::knative::QUEUE_PROXY_VARIABLE).map(PathBuf::from));
    for binary in &binaries {
        ensure!(
            binary.is_file(),
            "{} is not a file: cargo build --profile dist -p queue-proxy, or --weir",
            binary.display()
        );
    }
    println!(
        "{} requests of each method, {} clients; idle connections are closed after 0 to {} ms\n",
        options.requests,
        options.clients,
        IDLE_MAX.as_millis()
    );
    println!("| queue-proxy | method | 200 | 502 | other | executed twice | sent again |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    let mut is_well = true;
    for (n, binary) in binaries.iter().enumerate() {
        let name = binary.to_str().context("a path of UTF-8")?;
        for method in ["GET", "POST"] {
            let (tally, retries) = measure(name, method, options).await?;
            let answered = |status| tally.statuses.get(&status).copied().unwrap_or_default();
            println!(
                "| {name} | {method} | {} | {} | {} | {} | {} |",
                answered(200),
                answered(502),
                options.requests - answered(200) - answered(502),
                tally.executed_twice,
                retries.map_or_else(|| "–".to_owned(), |n| n.to_string()),
            );
            // Knative's results are shown, but not judged.
            is_well &=
                n >= options.weir.len() || (tally.executed_twice == 0 && tally.invented == 0);
        }
    }
    Ok(is_well)
}

/// Sends all requests of a method through a proxy of its own; returns the number of retries that the proxy reports, if any.
async fn measure(
    binary: &str,
    method: &'static str,
    options: &Options,
) -> anyhow::Result<(Tally, Option<f64>)> {
    let executed: Executed = Arc::new((0..options.requests).map(|_| AtomicU8::new(0)).collect());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let app = tokio::spawn(serve(listener, Arc::clone(&executed), options.seed));
    // Enables Weir's metrics and changes nothing else.
    let proxy = Builder::new(binary, port).set("WEIR_MID_STREAM_TIMEOUT", "text");
    let proxy = proxy.start().await;
    let next = Arc::<AtomicUsize>::default();
    let statuses = Arc::<Mutex<Vec<u16>>>::new(Mutex::new(vec![0; options.requests]));
    let mut clients = JoinSet::new();
    for client in 0..options.clients {
        let random = Random(options.seed.wrapping_mul(1_000).wrapping_add(client as u64));
        clients.spawn(send_all(
            proxy.address(),
            method,
            random,
            Arc::clone(&next),
            Arc::clone(&statuses),
        ));
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let metrics = if TcpStream::connect(proxy.at(9091)).await.is_ok() {
        Metrics::scrape(proxy.at(9091)).await
    } else {
        Metrics::default()
    };
    app.abort();
    let mut tally = Tally::default();
    let statuses = statuses.lock().unwrap_or_else(PoisonError::into_inner);
    for (status, executed) in statuses.iter().zip(&*executed) {
        let executed = executed.load(Ordering::Relaxed);
        *tally.statuses.entry(*status).or_default() += 1;
        tally.executed_twice += usize::from(executed > 1);
        tally.invented += usize::from(*status == 200 && executed == 0);
    }
    Ok((tally, metrics.value("weir_upstream_retries_total", &[])))
}

/// Sends requests, one after the other, until all have been sent.
async fn send_all(
    proxy: SocketAddr,
    method: &str,
    mut random: Random,
    next: Arc<AtomicUsize>,
    statuses: Arc<Mutex<Vec<u16>>>,
) -> anyhow::Result<()> {
    let mut client = Client::connect(proxy).await;
    loop {
        let id = next.fetch_add(1, Ordering::Relaxed);
        let body = if method == "POST" { "hello" } else { "" };
        let request = format!(
            "{method} /{id} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if id
            >= statuses
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len()
        {
            return Ok(());
        }
        let answered = async {
            client.try_send(&request).await?;
            client.try_response().await
        };
        let answer = tokio::time::timeout(PATIENCE, answered)
            .await
            .with_context(|| format!("no answer to {method} /{id} within {PATIENCE:?}"))?;
        match answer {
            Ok(answer) => {
                let mut statuses = statuses.lock().unwrap_or_else(PoisonError::into_inner);
                statuses[id] = answer.status();
            }
            // The missing answer is counted as status 0.
            Err(_) => client = Client::connect(proxy).await,
        }
        tokio::time::sleep(random_pause(&mut random)).await;
    }
}

/// Serves the application's connections.
async fn serve(listener: TcpListener, executed: Executed, seed: u64) {
    let mut connections = JoinSet::new();
    let mut number = seed;
    while let Ok((stream, _)) = listener.accept().await {
        number = number.wrapping_add(1);
        connections.spawn(answer_all(stream, Arc::clone(&executed), Random(number)));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer_all(mut stream: TcpStream, executed: Executed, mut random: Random) {
    let (reader, mut writer) = stream.split();
    let mut reader = BufReader::new(reader);
    // A new connection is not idle: a client which connects has something to send.
    let mut idle = PATIENCE;
    while let Ok(Ok(Some(mut request))) = tokio::time::timeout(idle, read_head(&mut reader)).await
        && read_body(&mut reader, &mut request, Kind::Request)
            .await
            .is_ok()
    {
        let id = request.target().trim_start_matches('/').parse::<usize>();
        if let Some(executed) = id.ok().and_then(|id| executed.get(id)) {
            executed.fetch_add(1, Ordering::Relaxed);
        }
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        if writer.write_all(answer).await.is_err() {
            return;
        }
        idle = random_pause(&mut random);
    }
}
