//! Cost of requests that wait for an instance, and their order of dispatch.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use peers::revision::Revision;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tests::bench::load::{HOST, Protocol};
use tests::bench::process::activator_of;
use tests::metrics::Metrics;
use tests::procfs::resident_bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Number of waiting requests.
const WAITING: usize = 10_000;
/// Budget of the last waiting request, in ms.
const BUDGET_MS: usize = 1_000_000;
/// Number of streams of a connection.
const STREAMS: usize = 250;
/// Number of files of either process besides the requests' sockets.
const OTHER_FILES: u64 = 500;
/// Longest wait for any condition.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longest time until freed memory is returned to the system.
const SETTLED: Duration = Duration::from_secs(15);

/// Measures one protocol and returns the result as a line of text.
pub(crate) async fn measure(binary: &Path, pod: u16, protocol: Protocol) -> anyhow::Result<String> {
    let files = getrlimit(Resource::Nofile);
    let needed = WAITING as u64 + OTHER_FILES;
    if files.current.is_some_and(|current| current < needed) {
        let raised = Rlimit {
            current: Some(needed),
            maximum: files.maximum.map(|maximum| maximum.max(needed)),
        };
        setrlimit(Resource::Nofile, raised).context("10,000 connections are not allowed here")?;
    }
    let ip = IpAddr::V4(Ipv4Addr::new(127, 0, 9, 2));
    let folder = TempDir::new()?;
    let mut revision = Revision::new("bench-00001").annotate("weir.dev/slo", "1h");
    revision.timeout_secs = 3_600;
    fs::write(folder.path().join("bench.json"), revision.manifest())?;
    let mut child = activator_of(binary, ip, folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().context("a process")?;
    let address = SocketAddr::new(ip, 8012);
    let begin = Instant::now();
    while TcpStream::connect(address).await.is_err() {
        ensure!(begin.elapsed() < PATIENCE, "activator-ext does not listen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let resident = || {
        let bytes = resident_bytes(pid).context("activator-ext has ended")?;
        Ok::<_, anyhow::Error>(bytes as f64 / 1024.0)
    };
    let idle = resident()?;
    let mut answers = JoinSet::new();
    let mut connection = None;
    for number in 0..WAITING {
        // Each is due a tenth of a second before the previous one.
        let budget = BUDGET_MS + 100 * (WAITING - number);
        match protocol {
            Protocol::Http1 => {
                let mut stream = TcpStream::connect(address).await?;
                let head = format!(
                    "GET /turn HTTP/1.1\r\nHost: {HOST}\r\nWeir-Budget-Ms: {budget}\r\nConnection: close\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await?;
                answers.spawn(async move {
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).await?;
                    let (_, turn) = answer.rsplit_once("\r\n").context("an answer")?;
                    Ok::<_, anyhow::Error>((number, turn.parse::<u64>()?))
                });
            }
            Protocol::Http2 => {
                if number % STREAMS == 0 {
                    connection = Some(connect(address).await?);
                }
                let sender = connection.clone().context("a connection")?;
                answers.spawn(turn(sender, number, budget));
            }
        }
        until_waiting(ip, number + 1).await?;
    }
    let full = resident()?;
    revision.pods = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, pod))];
    let fresh = folder.path().join("fresh");
    fs::write(&fresh, revision.manifest())?;
    fs::rename(&fresh, folder.path().join("bench.json"))?;
    let mut turns = vec![0; WAITING];
    let all = async {
        while let Some(answer) = answers.join_next().await {
            let (number, turn) = answer??;
            turns[number] = turn;
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::time::timeout(PATIENCE, all).await??;
    drop(connection);
    let inversions = turns.windows(2).filter(|pair| pair[0] < pair[1]).count();
    let begin = Instant::now();
    let mut after = resident()?;
    while begin.elapsed() < SETTLED {
        tokio::time::sleep(Duration::from_millis(200)).await;
        after = after.min(resident()?);
    }
    child.kill().await?;
    let name = match protocol {
        Protocol::Http1 => "HTTP/1.1",
        Protocol::Http2 => "h2c",
    };
    Ok(format!(
        "{WAITING} requests wait over {name}: {:.1} KiB each; {inversions} of them went before the next, which was due earlier; resident \
         {:.1} MiB before, {:.1} with them, {:.1} after they left ({:.2} ×)",
        (full - idle) / WAITING as f64,
        idle / 1024.0,
        full / 1024.0,
        after / 1024.0,
        after / idle,
    ))
}

async fn connect(address: SocketAddr) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn turn(
    mut sender: SendRequest<Empty<Bytes>>,
    number: usize,
    budget: usize,
) -> anyhow::Result<(usize, u64)> {
    let request = Request::get(format!("http://{HOST}/turn"))
        .header("Weir-Budget-Ms", budget)
        .body(Empty::new())?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    let body = response.into_body().collect().await?.to_bytes();
    let turn = std::str::from_utf8(&body)?.parse()?;
    Ok((number, turn))
}

/// Waits until this many requests wait.
async fn until_waiting(ip: IpAddr, count: usize) -> anyhow::Result<()> {
    // Scraping after each request would take longer than the requests.
    if !count.is_multiple_of(100) && count < WAITING {
        tokio::task::yield_now().await;
        return Ok(());
    }
    let begin = Instant::now();
    loop {
        let page = Metrics::scrape(SocketAddr::new(ip, 9476)).await;
        if page.value("weir_function_waiting", &[]) == Some(count as f64) {
            return Ok(());
        }
        ensure!(
            begin.elapsed() < PATIENCE,
            "not {count} requests wait: {}",
            page.text()
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
