//! Measures the cost of the live page for role `control`: its CPU time with a reader of the stream and without one, with a given
//! number of functions.
//!
//! `cargo run --profile dist -p tests --bin live-bench -- [--functions N] [--seconds S]`
//!
//! A pod of role `data` describes the functions, and the node's agent eight slots, both over TLS as in a cluster; their CPU time
//! is not counted. The election, the probes and the webhooks run in both cases: the difference counts.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a command-line program"
)]

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use mutual_tls::{Identity, name_of};
use serde_json::{Value, json};
use tests::client::Client;
use tests::control::{Cluster, resource};
use tests::programs;
use tests::proxy::fresh_address;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

const USAGE: &str = "usage: live-bench [--functions N] [--seconds S]\n\
    --functions N  functions that are described, 1 to 2000 (500)\n\
    --seconds S    how long each of the two measurements lasts, 5 to 600 (60)";
/// Name of the program, in the folder of this one.
const CONTROL: &str = "activator-ext-under-test";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (mut functions, mut seconds) = (500, 60);
    for pair in arguments.chunks(2) {
        let number = |range: std::ops::RangeInclusive<u64>| {
            let number = pair.get(1)?.parse().ok()?;
            range.contains(&number).then_some(number)
        };
        let taken = match &*pair[0] {
            "--functions" => number(1..=2_000).map(|own| functions = own),
            "--seconds" => number(5..=600).map(|own| seconds = own),
            _ => None,
        };
        if taken.is_none() {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    bench(functions, Duration::from_secs(seconds)).await;
    ExitCode::SUCCESS
}

async fn bench(functions: u64, span: Duration) {
    let cluster = Cluster::start(Duration::from_millis(30)).await;
    let pod = cluster.add_pod("data-0").await;
    let agent = fresh_address();
    let empty = json!({"metadata": {"namespace": "weir-agent", "name": "weir-certificates"}});
    cluster.api.apply(&resource("secrets"), empty);
    let agent_pod = json!({
        "metadata": {
            "namespace": "weir-agent", "name": "weir-agent-x", "labels": {"app.kubernetes.io/name": "weir-agent"},
        },
        "spec": {"nodeName": "node-1"}, "status": {"podIP": agent},
    });
    cluster.api.apply(&resource("pods"), agent_pod);
    let binary = std::env::current_exe().unwrap().with_file_name(CONTROL);
    let control = cluster.control(binary.to_str().unwrap(), "weir-control-0");
    let answer = describe(functions).to_string();
    let bytes = answer.len();
    let data = SocketAddr::new(pod.ip, 9475);
    programs::serve(&cluster, "knative-serving", data, move |_| answer.clone()).await;
    let slots: Vec<_> = (0..8).map(slot).collect();
    let slots = json!({ "slots": slots }).to_string();
    let at = SocketAddr::new(agent, 9470);
    let events = |target: &str| target.starts_with("/v1/events");
    programs::serve(&cluster, "weir-agent", at, move |target| {
        if events(target) {
            String::new()
        } else {
            slots.clone()
        }
    })
    .await;
    let without = cpu_seconds(control.ip, span).await;
    let stream = read(&cluster, control.ip, span).await;
    let with = cpu_seconds(control.ip, span).await;
    let (received, events) = stream.await.unwrap();
    let percent = |cpu: f64| 100.0 * cpu / span.as_secs_f64();
    println!(
        "{functions} functions ({bytes} bytes a second from role data), {} s each: {:.3} % of a core without a reader, {:.3} % with one, \
         {:.3} % for the page ({events} events, {} bytes each)",
        span.as_secs(),
        percent(without),
        percent(with),
        percent(with - without),
        received / events.max(1),
    );
}

/// Follows the stream for `span` as a client of role `control`, which needs no token. The task returns the received bytes and
/// events.
async fn read(
    cluster: &Cluster,
    ip: IpAddr,
    span: Duration,
) -> tokio::task::JoinHandle<(usize, usize)> {
    let identity = Arc::<Identity>::default();
    identity
        .set(programs::pem(cluster, "weir-system").unwrap())
        .unwrap();
    let stream = TcpStream::connect((ip, 9475)).await.unwrap();
    let mut stream = identity.connect(stream, &name_of("control")).await.unwrap();
    let request = format!(
        "GET /live/stream HTTP/1.1\r\nHost: {}\r\n\r\n",
        name_of("control")
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let end = Instant::now() + Duration::from_secs(3);
    let mut chunk = vec![0; 1 << 20];
    // The first events are not of the steady state.
    while Instant::now() < end {
        let bytes = stream.read(&mut chunk).await.unwrap();
        assert!(bytes > 0, "the stream has ended");
    }
    tokio::spawn(async move {
        let (mut received, mut events) = (0, 0);
        let end = Instant::now() + span;
        while let Ok(Ok(bytes @ 1..)) = tokio::time::timeout_at(end, stream.read(&mut chunk)).await
        {
            received += bytes;
            // An event split between two chunks is missed; there are few.
            events += chunk[..bytes]
                .windows(6)
                .filter(|own| own == b"data: ")
                .count();
        }
        (received, events)
    })
}

fn describe(functions: u64) -> Value {
    let functions = (0..functions).map(|number| {
        json!({
            "namespace": format!("team-{}", number % 20), "function": format!("function-{number}"), "version": "", "waiting": number % 7,
            "waiting_by_slack": [number % 2, number % 3, 1, 0, 0], "waiting_max": 100, "ejected": 0,
            "variants": [{
                "revision": format!("function-{number}-00001"), "objective_ms": 200, "percentile": 98.0, "judged": number * 1_000, "in_time": number * 990,
            }],
            "instances": [
                {"address": format!("10.0.{}.{}:8012", number / 200, number % 200), "revision": format!("function-{number}-00001"), "requests": 1, "ejected": false},
                {"address": format!("10.1.{}.{}:8012", number / 200, number % 200), "revision": format!("function-{number}-00001"), "requests": 0, "ejected": false},
            ],
        })
    });
    json!({ "functions": functions.collect::<Vec<_>>() })
}

fn slot(number: u64) -> Value {
    json!({
        "slot": number.to_string(), "product": "NVIDIA H100 80GB HBM3", "kind": "mps", "lost": null, "tokens": {"holders": 1, "waiters": 2},
        "recent": {"cell_seconds": 5, "busy_percent": vec![number * 10; 60]},
    })
}

/// Returns the CPU time that the program at this address spends within `span`, in s.
async fn cpu_seconds(ip: IpAddr, span: Duration) -> f64 {
    let now = async || {
        let page = Client::connect((ip, 9476).into())
            .await
            .get("/metrics")
            .await;
        let page = page.text();
        let line = page
            .lines()
            .find(|line| line.starts_with("weir_process_cpu_seconds_total"))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let before = now().await;
    tokio::time::sleep(span).await;
    now().await - before
}
