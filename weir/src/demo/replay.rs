//! Sends a workload at its own times, whatever has been answered so far (open loop).

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

/// Requests begin this long after the call, so that the first is not late.
const LEAD: Duration = Duration::from_millis(20);
/// A request without an answer after this time has none.
const PATIENCE: Duration = Duration::from_secs(120);

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Which request of the workload.
    pub(crate) request: usize,
    /// What was answered; `None`: no whole answer came.
    pub(crate) outcome: Option<Outcome>,
    /// From the time it was due to be sent to the last byte of its answer.
    pub(crate) latency: Duration,
    /// What else was seen of it; `None` where it was only simulated.
    pub(crate) exchange: Option<Exchange>,
}

/// A request's exchange with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// When it was sent.
    pub(crate) sent: Instant,
    /// When the last byte of its answer came.
    pub(crate) ended: Instant,
    /// What the model-server says of its computation; only with [`Outcome::Served`].
    pub(crate) computed: Option<Computed>,
    /// It had reached a pod: the activator says how long it was held before.
    pub(crate) is_from_pod: bool,
}

/// What a model-server says of a request, times in ns of the machine's `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Computed {
    /// The server's process.
    pub(crate) pid: u32,
    /// When the request was read whole.
    pub(crate) read_ns: u64,
    /// When its answer was made.
    pub(crate) answered_ns: u64,
}

/// Where requests go.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// The listener.
    pub(crate) address: SocketAddr,
    /// What each request names besides its own headers.
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

/// What came back for a request.
#[derive(Debug)]
struct Reply {
    outcome: Outcome,
    computed: Option<Computed>,
    is_from_pod: bool,
}

/// An answer's meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// 200.
    Served,
    /// 503: the queue is full.
    Refused,
    /// 503: the deadline cannot be met.
    Shed,
    /// Anything else.
    Other(u16),
}

/// Sends every request and awaits every answer.
pub(crate) async fn replay(
    target: impl Into<Target>,
    workload: &Workload,
    progress: &Progress,
) -> Vec<Answer> {
    let target = Arc::new(target.into());
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(usize::MAX)
        // An answer that is lost is counted, not asked for again.
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
    // A task that broke off leaves its request without an answer, which the report counts.
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
