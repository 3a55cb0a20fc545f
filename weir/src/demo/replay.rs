//! Sends a workload at its due times, independent of earlier answers (open loop).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::progress::Progress;
use super::workload::Workload;

/// Delay from the call to the first due time, so that the first request is not sent late.
const LEAD: Duration = Duration::from_millis(20);
/// Time after which a request without a complete answer is lost.
const PATIENCE: Duration = Duration::from_secs(120);

/// Result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Index of the request in the workload.
    pub(crate) request: usize,
    /// Kind of the answer; `None` if no complete answer arrived.
    pub(crate) outcome: Option<Outcome>,
    /// Latency of the request: the time from its due time to the last byte of the answer.
    pub(crate) latency: Duration,
    /// Details of the exchange; `None` if it was only simulated.
    pub(crate) exchange: Option<Exchange>,
}

/// A request's exchange with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// Time at which the request was sent.
    pub(crate) sent: Instant,
    /// Time of the answer's last byte.
    pub(crate) ended: Instant,
    /// Computation as reported by the model-server; only with [`Outcome::Served`].
    pub(crate) computed: Option<Computed>,
    /// Whether the request reached a pod: the activator then reports its hold time.
    pub(crate) is_from_pod: bool,
}

/// A model-server's report on a request, times in ns of the machine's `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Computed {
    /// PID of the server.
    pub(crate) pid: u32,
    /// Time at which the request was read completely.
    pub(crate) read_ns: u64,
    /// Time at which the request's answer was made.
    pub(crate) answered_ns: u64,
}

/// Destination of requests: an address, and headers for it.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Address of the listener.
    pub(crate) address: SocketAddr,
    /// Headers added to each request.
    pub(crate) headers: http::HeaderMap,
}

impl From<SocketAddr> for Target {
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            headers: http::HeaderMap::new(),
        }
    }
}

/// Answer to a request.
#[derive(Debug)]
struct Reply {
    outcome: Outcome,
    computed: Option<Computed>,
    is_from_pod: bool,
}

/// Meaning of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered 200 by the application.
    Served,
    /// Answered 503: the queue is full.
    Refused,
    /// Answered 503: the deadline cannot be met.
    Shed,
    /// Answered with any other status.
    Other(u16),
}

/// Sends every request at its due time and awaits all answers.
pub(crate) async fn replay(
    target: impl Into<Target>,
    workload: &Workload,
    progress: &Progress,
) -> Vec<Answer> {
    let target = Arc::new(target.into());
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(usize::MAX)
        // A lost answer is counted as lost; the request is not repeated.
        .retry_canceled_requests(false)
        .build_http();
    let begin = Instant::now() + LEAD;
    let mut pending = JoinSet::new();
    let mut answers = Vec::with_capacity(workload.requests.len());
    for (at, request) in workload.requests.iter().enumerate() {
        let due = begin + request.arrival;
        loop {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => break,
                Some(answer) = pending.join_next() => collect(answer, &mut answers, progress),
            }
        }
        let (body, budget) = (request.body(), request.budget_ms());
        let (client, target) = (client.clone(), Arc::clone(&target));
        pending.spawn(async move {
            let sent = Instant::now();
            let reply = tokio::time::timeout(PATIENCE, send(client, &target, body, budget)).await;
            let reply = reply.ok().flatten();
            let ended = Instant::now();
            Answer {
                request: at,
                outcome: reply.as_ref().map(|reply| reply.outcome),
                latency: ended.saturating_duration_since(due),
                exchange: Some(Exchange {
                    sent,
                    ended,
                    computed: reply.as_ref().and_then(|reply| reply.computed),
                    is_from_pod: reply.is_some_and(|reply| reply.is_from_pod),
                }),
            }
        });
    }
    while let Some(answer) = pending.join_next().await {
        collect(answer, &mut answers, progress);
    }
    answers
}

fn collect(
    answer: Result<Answer, tokio::task::JoinError>,
    answers: &mut Vec<Answer>,
    progress: &Progress,
) {
    // A panicked task leaves its request without an answer, which the report counts.
    if let Ok(answer) = answer {
        answers.push(answer);
        progress.advance();
    }
}

async fn send(
    client: Client<HttpConnector, Full<Bytes>>,
    target: &Target,
    body: String,
    budget_ms: u64,
) -> Option<Reply> {
    let mut request = Request::post(format!("http://{}/infer", target.address))
        .header("Content-Type", "application/json")
        .header("Weir-Budget-Ms", budget_ms.to_string())
        .body(Full::from(body))
        .ok()?;
    for (name, value) in &target.headers {
        request.headers_mut().insert(name, value.clone());
    }
    let response = client.request(request).await.ok()?;
    let outcome = match response.status().as_u16() {
        200 => Outcome::Served,
        503 if response.headers().contains_key("x-envoy-ratelimited") => Outcome::Shed,
        503 => Outcome::Refused,
        other => Outcome::Other(other),
    };
    let timings = response.headers().get_all("server-timing").iter();
    let is_from_pod = timings
        .filter_map(|timing| timing.to_str().ok())
        .any(|timing| timing.starts_with("hold"));
    let body = response.into_body().collect().await.ok()?.to_bytes();
    let computed = (outcome == Outcome::Served).then(|| serde_json::from_slice(&body).ok());
    Some(Reply {
        outcome,
        computed: computed.flatten(),
        is_from_pod,
    })
}
