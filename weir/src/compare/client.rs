//! Sends requests when they are due, whatever has been answered so far (open loop).

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

/// Requests begin this long after the call, so that the first is not late.
const LEAD: Duration = Duration::from_millis(20);
/// A request without an answer after this time, and after twice its objective, has none.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of an answer 503, what is looked at.
const TEXT_MAX: usize = 64 * 1024;
/// What the queue-proxy says, as Knative's does, when its queue is full.
const QUEUE_FULL: &[u8] = b"pending request queue full";
/// The header of an answer to a request that could not be in time any more.
const SHED: &str = "x-envoy-ratelimited";

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Answered by the server without a server error.
    Served(StatusCode),
    /// 503: the queue was full.
    Refused,
    /// 503: it could not be in time any more.
    Shed,
    /// A server error, or a proxy's that could not reach the server.
    Failed(StatusCode),
    /// No whole answer within a minute, or within twice the objective where that is longer.
    Lost,
}

/// A request and what became of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// When it was due, from the begin of its round.
    pub(super) due: Duration,
    /// How long after that it was sent.
    pub(super) sent_late: Duration,
    /// From when it was due to the last byte of its answer.
    pub(super) latency: Duration,
    pub(super) outcome: Outcome,
    /// How long it may take.
    pub(super) slo: Duration,
}

impl Answer {
    /// Answered without a server error within its objective.
    pub(super) fn is_in_time(&self) -> bool {
        matches!(self.outcome, Outcome::Served(_)) && self.latency <= self.slo
    }
}

/// What sends requests to one address.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    client: Client<HttpConnector, Full<Bytes>>,
    /// Where requests go.
    address: SocketAddr,
    /// The server's name, as requests name it.
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
                // An answer that is lost is counted, not asked for again.
                .retry_canceled_requests(false)
                .build(connector),
            address,
            host,
            slo,
        }
    }

    /// Sends every request when it is due and awaits every answer; `answered` is called after each.
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

    /// Sends one request; none: no whole answer came.
    pub(super) async fn send(&self, planned: &Planned) -> Option<Outcome> {
        self.ask(planned).await.ok()
    }

    /// Sends one request, and returns what became of it, or why no whole answer came.
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
