//! Sends a workload at its own times, whatever has been answered so far (open loop).

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use indicatif::ProgressBar;
use tokio::task::JoinSet;
use tokio::time::Instant;

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
    address: SocketAddr,
    workload: &Workload,
    progress: &ProgressBar,
) -> Vec<Answer> {
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
        let client = client.clone();
        pending.spawn(async move {
            let outcome = tokio::time::timeout(PATIENCE, send(client, address, body, budget)).await;
            Answer {
                request: at,
                outcome: outcome.ok().flatten(),
                latency: due.elapsed(),
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
    progress: &ProgressBar,
) {
    // A task that broke off leaves its request without an answer, which the report counts.
    if let Ok(answer) = answer {
        answers.push(answer);
        progress.inc(1);
    }
}

async fn send(
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    body: String,
    budget_ms: u64,
) -> Option<Outcome> {
    let request = Request::post(format!("http://{address}/infer"))
        .header("Content-Type", "application/json")
        .header("Weir-Budget-Ms", budget_ms.to_string())
        .body(Full::from(body))
        .ok()?;
    let response = client.request(request).await.ok()?;
    let outcome = match response.status().as_u16() {
        200 => Outcome::Served,
        503 if response.headers().contains_key("x-envoy-ratelimited") => Outcome::Shed,
        503 => Outcome::Refused,
        other => Outcome::Other(other),
    };
    response.into_body().collect().await.ok()?;
    Some(outcome)
}
