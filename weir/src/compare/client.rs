//! Sends requests at their due times, independent of earlier answers (open loop).

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::Planned;

/// Delay from the call to the first due time, so that the first request is not sent late.
const LEAD: Duration = Duration::from_millis(20);
/// Least time after which a request without a complete answer is lost; twice its objective where that is longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest part of a 503's body that is inspected, in bytes.
const TEXT_MAX: usize = 64 * 1024;
/// Body text of the queue-proxy's 503, as of Knative's, when its queue is full.
const QUEUE_FULL: &[u8] = b"pending request queue full";
/// Response header which marks requests shed because they could no longer meet their deadline.
const SHED: &str = "x-envoy-ratelimited";

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Answered by the server with this status, no server error.
    Served(StatusCode),
    /// Answered 503 because the queue was full.
    Refused,
    /// Answered 503 because the request could no longer be in time.
    Shed,
    /// Answered with a server error, or by a proxy that could not reach the server.
    Failed(StatusCode),
    /// No complete answer within a minute, or within twice the objective where that is longer.
    Lost,
}

/// A sent request and its outcome.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// Time at which the request is due, since the begin of the round.
    pub(super) due: Duration,
    /// Delay from the due time to the actual sending.
    pub(super) sent_late: Duration,
    /// Time from the due time to the last byte of the answer.
    pub(super) latency: Duration,
    pub(super) outcome: Outcome,
    /// Latency objective of this request.
    pub(super) slo: Duration,
}

impl Answer {
    /// Returns whether the request was answered without a server error within its objective.
    pub(super) fn is_in_time(&self) -> bool {
        matches!(self.outcome, Outcome::Served(_)) && self.latency <= self.slo
    }
}

/// Open-loop client for one address.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
    /// `Host` header of the requests.
    host: HeaderValue,
    slo: Duration,
}

impl Sender {
    pub(super) fn new(address: SocketAddr, host: HeaderValue, slo: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            client: Client::builder(TokioExecutor::new())
                .pool_max_idle_per_host(usize::MAX)
                // A lost answer is counted as lost; the request is not repeated.
                .retry_canceled_requests(false)
                .build(connector),
            address,
            host,
            slo,
        }
    }

    /// Sends every request at its due time and awaits all answers; calls `answered` after each.
    pub(super) async fn replay(
        &self,
        requests: &[Planned],
        mut answered: impl FnMut(),
    ) -> Vec<Answer> {
        let begin = Instant::now() + LEAD;
        let mut pending = JoinSet::new();
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let due = begin + request.at;
            loop {
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(due) => break,
                    Some(answer) = pending.join_next() => {
                        answers.extend(answer.ok());
                        answered();
                    }
                }
            }
            let (own, planned) = (self.clone(), request.clone());
            pending.spawn(async move {
                let sent = Instant::now();
                let slo = planned.slo.unwrap_or(own.slo);
                let patience = PATIENCE.max(slo * 2);
                let outcome = tokio::time::timeout(patience, own.send(&planned)).await;
                Answer {
                    due: planned.at,
                    sent_late: sent.saturating_duration_since(due),
                    latency: Instant::now().saturating_duration_since(due),
                    outcome: outcome.ok().flatten().unwrap_or(Outcome::Lost),
                    slo,
                }
            });
        }
        while let Some(answer) = pending.join_next().await {
            answers.extend(answer.ok());
            answered();
        }
        answers
    }

    /// Sends one request and returns its outcome; `None` if no complete answer arrived.
    pub(super) async fn send(&self, planned: &Planned) -> Option<Outcome> {
        self.ask(planned).await.ok()
    }

    /// Sends one request and returns its outcome.
    ///
    /// # Errors
    /// The reason why no complete answer arrived.
    pub(super) async fn ask(&self, planned: &Planned) -> anyhow::Result<Outcome> {
        let template = &planned.template;
        let mut request = Request::builder()
            .method(&template.method)
            .uri(format!("http://{}{}", self.address, template.path))
            .body(Full::from(template.body.clone()))?;
        let headers = request.headers_mut();
        headers.extend(template.headers.clone());
        if !template.headers.contains_key(header::HOST) {
            headers.insert(header::HOST, self.host.clone());
        }
        if let Some(slo) = planned.slo {
            headers.insert("weir-budget-ms", HeaderValue::from(millis(slo)));
        }
        let response = self.client.request(request).await?;
        let status = response.status();
        let is_shed = response.headers().contains_key(SHED);
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame?.into_data()
                && status == StatusCode::SERVICE_UNAVAILABLE
                && text.len() < TEXT_MAX
            {
                text.extend_from_slice(&data);
            }
        }
        Ok(match status {
            StatusCode::SERVICE_UNAVAILABLE if is_shed => Outcome::Shed,
            StatusCode::SERVICE_UNAVAILABLE if text.trim_ascii_end() == QUEUE_FULL => {
                Outcome::Refused
            }
            status if status.is_server_error() => Outcome::Failed(status),
            status => Outcome::Served(status),
        })
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).map_or(u64::MAX, |ms| ms.max(1))
}
