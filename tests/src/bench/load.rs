//! Load clients: closed loop, or open loop at a rate.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// `Host` of all requests, by which activators identify the revision.
pub const HOST: &str = "bench-00001.default.svc.cluster.local";
/// Number of connections shared by HTTP/2 streams.
const HTTP2_CONNECTIONS: usize = 4;
/// Number of connections opened before an open loop.
const OPEN_AT_RATE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Latency of all requests of a load, from their due times.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Latency {
    fn of(mut spans: Vec<Duration>) -> anyhow::Result<Self> {
        spans.sort_unstable();
        let micros = |percent: usize| {
            let index = (spans.len() * percent / 100).min(spans.len().saturating_sub(1));
            let span = spans.get(index).context("no request was answered")?;
            Ok::<_, anyhow::Error>(span.as_secs_f64() * 1e6)
        };
        Ok(Self {
            p50_us: micros(50)?,
            p99_us: micros(99)?,
        })
    }
}

/// A client with one request at a time.
enum Client {
    Http1(TcpStream, Vec<u8>),
    Http2(SendRequest<Empty<Bytes>>),
}

impl Client {
    async fn connect(address: SocketAddr, protocol: Protocol) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        if protocol == Protocol::Http1 {
            return Ok(Self::Http1(stream, Vec::with_capacity(128 * 1024)));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(1 << 24)
            .handshake(TokioIo::new(stream))
            .await?;
        tokio::spawn(connection);
        Ok(Self::Http2(sender))
    }

    /// Connects `count` clients, which share connections if the protocol allows it.
    async fn several(
        address: SocketAddr,
        protocol: Protocol,
        count: usize,
    ) -> anyhow::Result<Vec<Self>> {
        let mut clients: Vec<Self> = Vec::with_capacity(count);
        for n in 0..count {
            let shared = clients
                .get(n % HTTP2_CONNECTIONS)
                .and_then(|client| match client {
                    Self::Http2(sender) => Some(Self::Http2(sender.clone())),
                    Self::Http1(..) => None,
                });
            clients.push(match shared {
                Some(client) => client,
                None => Self::connect(address, protocol).await?,
            });
        }
        Ok(clients)
    }

    async fn get(&mut self, bytes: usize) -> anyhow::Result<()> {
        match self {
            Self::Http1(stream, buffer) => {
                let request = format!("GET /{bytes} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
                stream.write_all(request.as_bytes()).await?;
                read_response(stream, buffer, bytes).await
            }
            Self::Http2(sender) => {
                let request = Request::get(format!("http://{HOST}/{bytes}"));
                let response = sender.send_request(request.body(Empty::new())?).await?;
                anyhow::ensure!(response.status() == 200, "{}", response.status());
                let body = response.into_body().collect().await?.to_bytes();
                anyhow::ensure!(body.len() == bytes, "{} bytes", body.len());
                Ok(())
            }
        }
    }
}

async fn read_response(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    bytes: usize,
) -> anyhow::Result<()> {
    buffer.clear();
    let mut length = None;
    loop {
        if stream.read_buf(buffer).await? == 0 {
            bail!("the proxy closed a connection");
        }
        if length.is_none()
            && let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n")
        {
            anyhow::ensure!(
                buffer.starts_with(b"HTTP/1.1 200"),
                "{}",
                String::from_utf8_lossy(&buffer[..end])
            );
            length = Some(end + 4 + bytes);
        }
        if length.is_some_and(|length| buffer.len() >= length) {
            return Ok(());
        }
    }
}

/// Keeps one request of each of `clients` in flight during `span`. Returns the number of answers and the latencies.
pub async fn saturate(
    address: SocketAddr,
    protocol: Protocol,
    bytes: usize,
    clients: usize,
    span: Duration,
) -> anyhow::Result<(u64, Latency)> {
    let until = Instant::now() + span;
    let mut tasks = JoinSet::new();
    for mut client in Client::several(address, protocol, clients).await? {
        tasks.spawn(async move {
            let mut spans = Vec::with_capacity(1 << 16);
            while Instant::now() < until {
                let begin = Instant::now();
                client.get(bytes).await?;
                spans.push(begin.elapsed());
            }
            Ok::<_, anyhow::Error>(spans)
        });
    }
    let mut spans = Vec::new();
    while let Some(task) = tasks.join_next().await {
        spans.extend(task??);
    }
    Ok((spans.len() as u64, Latency::of(spans)?))
}

/// Sends `rate` requests a second, independent of earlier answers.
pub async fn at_rate(
    address: SocketAddr,
    protocol: Protocol,
    bytes: usize,
    rate: u32,
    span: Duration,
) -> anyhow::Result<Latency> {
    let idle = Client::several(address, protocol, OPEN_AT_RATE).await?;
    let idle = Arc::new(Mutex::new(VecDeque::from(idle)));
    let lock = |idle: &Mutex<VecDeque<Client>>, client| {
        let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
        match client {
            Some(client) => {
                idle.push_back(client);
                None
            }
            None => idle.pop_front(),
        }
    };
    let gap = Duration::from_secs(1) / rate;
    let mut tick = tokio::time::interval(gap);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut tasks = JoinSet::new();
    for _ in 0..span.as_secs() * u64::from(rate) {
        let due = tick.tick().await;
        let idle = Arc::clone(&idle);
        tasks.spawn(async move {
            let mut client = match lock(&idle, None) {
                Some(client) => client,
                None => Client::connect(address, protocol).await?,
            };
            client.get(bytes).await?;
            let span = due.elapsed();
            lock(&idle, Some(client));
            Ok::<_, anyhow::Error>(span)
        });
    }
    let mut spans = Vec::new();
    while let Some(task) = tasks.join_next().await {
        spans.push(task??);
    }
    Latency::of(spans)
}

/// Returns connections with a request to `/hold` in flight on each.
pub async fn hold(address: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    let mut held = Vec::with_capacity(count);
    for _ in 0..count {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(format!("GET /hold HTTP/1.1\r\nHost: {HOST}\r\n\r\n").as_bytes())
            .await?;
        held.push(stream);
    }
    tokio::time::sleep(super::app::HOLD / 3).await;
    Ok(held)
}
