//! The control API: slots, pods and events, in JSON.
//!
//! | request | response |
//! |---|---|
//! | `GET /v1/slots` | slots, and the state of NVML and MPS |
//! | `GET /v1/instances` | pods with processes, quotas, shares of the last ten seconds, waits, memory; refused pods |
//! | `GET /v1/instances/{id}` | one pod; its id is its name |
//! | `POST /v1/instances/{id}:evict`, `:restore` | moves the model to the host, and back: 202 with the number of the move; with `?wait=true` 200 at its end, with bytes and times; 409 with the reason. Body, if any: `{"drain_ms": …}` |
//! | `GET /v1/events` | one line for each event, past ones first, until the client disconnects |
//! | `GET /v1/events?after=N` | the last [`PAST_MAX`] of the past events after the one with this sequence number, then the end |
//! | `GET /healthz` | `ok` while the token service runs |
//!
//! An invalid request receives `{"error": …, "allowed": […]}`. Bounds: 64 connections, heads of 16 KiB, 16 concurrent requests
//! per HTTP/2 connection, [`EVENT_STREAMS_MAX`] event streams; a reader of events that is more than a ring of 1,024 events
//! behind, or reads nothing for 10 s, is disconnected with a last line that states the reason. The API is for the node alone:
//! it listens on loopback, and refuses browsers (requests with `Origin`).

use std::sync::Arc;
use std::time::Duration;

use agent_core::{DRAIN_MS, DRAIN_MS_MAX, MOVE_MAX};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, ORIGIN};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use protocol::message::Transfer;
use protocol::page::Residency;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use crate::events::{EVENTS_MAX, Event, Events};
use crate::http::{
    AnswerBody, Handler, Stream, StreamSender, answer, error_response, json as json_answer,
};
use crate::metrics::Metrics;
use crate::mps::{MpsEnvironment, has_room, variables};
use crate::node::{MpsState, NodeState, SlotState};
use crate::slot_history::{Busy, CELL_SECONDS};
use crate::state::{
    Command, Figures, OrderAnswer, PodFigures, PodKey, PodOrder, SlotKey, SlotKind, WAIT_BOUNDS_NS,
};

/// Maximum number of concurrent event streams.
pub(crate) const EVENT_STREAMS_MAX: usize = 16;
/// Maximum number of past events in a response to `?after=N`.
pub(crate) const PAST_MAX: usize = 100;
/// Capacity of the channel between the ring and a reader, in lines.
const LINES_AHEAD: usize = 16;
/// Time within which a reader has to receive a line.
const LINE_SPAN: Duration = Duration::from_secs(10);
/// Timeout for the service's answer at the beginning of a move.
const ANSWER_SPAN: Duration = Duration::from_secs(5);
/// Largest body of an order, in bytes.
const BODY_MAX: usize = 4_096;
/// Resources of the API, listed in error responses.
const RESOURCES: [&str; 8] = [
    "GET /v1/slots",
    "GET /v1/instances",
    "GET /v1/instances/{id}",
    "POST /v1/instances/{id}:evict",
    "POST /v1/instances/{id}:restore",
    "GET /v1/events",
    "GET /v1/events?after={sequence}",
    "GET /healthz",
];

/// Handler of the control API.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: Arc<Events>,
    /// Node's budget for models in host memory, in bytes, where there is one.
    pub(crate) host_memory: Option<u64>,
    /// Permits for event streams.
    pub(crate) streams: Arc<Semaphore>,
    /// Ends the event streams at shutdown.
    pub(crate) cancel: CancellationToken,
}

/// Handler of `/metrics`.
#[derive(Debug)]
pub(crate) struct Scrape(pub(crate) Arc<Metrics>);

impl Handler for Scrape {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<AnswerBody> {
        if request.uri().path() != "/metrics" {
            return error_response(StatusCode::NOT_FOUND, "no such resource", &["GET /metrics"]);
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return not_allowed("GET, HEAD", &["GET", "HEAD"]);
        }
        let metrics = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || metrics.text()).await {
            Ok(Ok(text)) => answer(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                text,
            ),
            Ok(Err(why)) => error_response(StatusCode::INTERNAL_SERVER_ERROR, &why, &[]),
            Err(error) => {
                error_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[])
            }
        }
    }
}

fn not_allowed(header: &'static str, allowed: &[&str]) -> Response<AnswerBody> {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    let mut response = error_response(status, "method not allowed", allowed);
    let header = HeaderValue::from_static(header);
    response.headers_mut().insert(ALLOW, header);
    response
}

/// Body of an order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderBody {
    /// Time for which work in flight is waited for, in milliseconds.
    #[serde(default = "drain_default")]
    drain_ms: u32,
}

const fn drain_default() -> u32 {
    DRAIN_MS
}

impl Handler for Control {
    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Response<AnswerBody> {
        if request.headers().contains_key(ORIGIN) {
            let why = "requests from browsers (with Origin) are refused";
            return error_response(StatusCode::FORBIDDEN, why, &[]);
        }
        let path = request.uri().path().to_owned();
        let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
        let order = path
            .strip_prefix("/v1/instances/")
            .and_then(|rest| rest.rsplit_once(':'))
            .and_then(|(id, verb)| match verb {
                "evict" => Some((id.to_owned(), PodOrder::Evict)),
                "restore" => Some((id.to_owned(), PodOrder::Restore)),
                _ => None,
            });
        if let Some((id, order)) = order {
            if request.method() != Method::POST {
                return not_allowed("POST", &["POST"]);
            }
            return self.order(&id, order, request).await;
        }
        let is_known = matches!(
            path.as_str(),
            "/v1/slots" | "/v1/instances" | "/v1/events" | "/healthz"
        ) || path
            .strip_prefix("/v1/instances/")
            .is_some_and(|id| !id.is_empty() && !id.contains(['/', ':']));
        if !is_known {
            return error_response(StatusCode::NOT_FOUND, "no such resource", &RESOURCES);
        }
        if !is_read {
            return not_allowed("GET, HEAD", &["GET", "HEAD"]);
        }
        match path.as_str() {
            "/healthz" if self.metrics.service.is_ended() => {
                let why = "the token service has ended";
                error_response(StatusCode::SERVICE_UNAVAILABLE, why, &[])
            }
            "/healthz" => answer(StatusCode::OK, "text/plain; charset=utf-8", "ok\n"),
            "/v1/events" => match request.uri().query().map(after) {
                None => self.stream(),
                Some(Some(sequence)) => self.past(sequence),
                Some(None) => {
                    let allowed = ["after={sequence}, a whole number"];
                    error_response(StatusCode::BAD_REQUEST, "no such query", &allowed)
                }
            },
            path => {
                let (own, path) = (Arc::clone(&self), path.to_owned());
                // Waiting for figures blocks for up to 50 ms.
                let response = tokio::task::spawn_blocking(move || own.query(&path)).await;
                response.unwrap_or_else(|error| {
                    error_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[])
                })
            }
        }
    }
}

impl Control {
    /// Answers a query for slots or instances. Waits for figures: not for async code.
    fn query(&self, path: &str) -> Response<AnswerBody> {
        let figures = self.metrics.service.refresh();
        let node = self.metrics.node.snapshot();
        match path.strip_prefix("/v1/instances") {
            None => {
                let busy = |slot| self.metrics.usage.busy(slot);
                let body = slots(&node, &figures, self.host_memory, busy);
                json_answer(StatusCode::OK, &body)
            }
            Some("") => {
                let mut pods = self.metrics.pods.lock();
                let served = pods.served.clone();
                let volumes = pods.refused_volumes().clone();
                // A refused volume has more details than its folder, which is about to be removed.
                let folders = pods
                    .refused
                    .iter()
                    .filter(|(id, _)| !volumes.contains_key(*id));
                let mut refused: Vec<_> = folders
                    .map(|(id, refused)| {
                        json!({"id": id, "reason": refused.reason, "text": refused.text})
                    })
                    .collect();
                refused.extend(volumes.iter().map(|(uid, refused)| {
                    let mut entry = json!(refused);
                    entry["id"] = json!(uid);
                    entry["reason"] = json!("volume");
                    entry
                }));
                drop(pods);
                let instances: Vec<_> = served
                    .iter()
                    .map(|pod| self.instance(&node, figures.pod(pod.serial), pod))
                    .collect();
                let body = json!({"instances": instances, "refused": refused});
                json_answer(StatusCode::OK, &body)
            }
            Some(id) => match self.find(id.trim_start_matches('/')) {
                Ok(pod) => {
                    let body = self.instance(&node, figures.pod(pod.serial), &pod);
                    json_answer(StatusCode::OK, &body)
                }
                Err(response) => response,
            },
        }
    }

    /// Returns the pod with this id, or the error response.
    #[expect(clippy::result_large_err, reason = "the error is a whole response")]
    fn find(&self, id: &str) -> Result<Arc<crate::state::Pod>, Response<AnswerBody>> {
        let pods = self.metrics.pods.lock();
        if let Some(pod) = pods.served.iter().find(|pod| pod.name == id) {
            return Ok(Arc::clone(pod));
        }
        if let Some(refused) = pods.refused.get(id) {
            let body = json!({
                "error": "the instance is refused", "reason": refused.reason, "text": refused.text, "allowed": [],
            });
            return Err(json_answer(StatusCode::NOT_FOUND, &body));
        }
        // Bounded, so that the response stays readable.
        let allowed: Vec<_> = pods
            .served
            .iter()
            .take(64)
            .map(|pod| pod.name.as_str())
            .collect();
        Err(error_response(
            StatusCode::NOT_FOUND,
            "no such instance",
            &allowed,
        ))
    }

    fn instance(
        &self,
        node: &NodeState,
        figures: Option<&PodFigures>,
        pod: &crate::state::Pod,
    ) -> Value {
        let slot = node.slot(pod.slot);
        let settings = &pod.settings;
        let environment = slot.and_then(|own| MpsEnvironment::of(&own.slot, settings));
        let variables = environment.map(|environment| {
            let variables = variables(&environment).into_iter();
            variables
                .map(|(name, value)| (name.to_owned(), Value::from(value)))
                .collect::<serde_json::Map<_, _>>()
        });
        let mut body = json!({
            "id": pod.name,
            "namespace": pod.namespace,
            "function": pod.function,
            "revision": pod.revision,
            "uid": pod.uid,
            "slot": slot.map(|own| own.slot.name.as_str()),
            "gpu": slot.map(|own| own.slot.gpu_uuid()),
            "slot_lost": slot.and_then(|own| own.lost.as_deref()),
            "isolation": settings.isolation.name(),
            "evict": settings.evict.name(),
            "variant": if settings.is_pipeline { "pipeline" } else { "monolith" },
            "sm_percent": f64::from(settings.sm_hundredths) / 100.0,
            "quota_request": f64::from(settings.quota_request_ppm) / 1e6,
            "quota_limit": f64::from(settings.quota_limit_ppm) / 1e6,
            "shares": self.metrics.usage.shares(pod.serial),
            "mps": slot.map(|own| &own.mps),
            "environment": variables,
        });
        if let (Value::Object(body), Some(figures)) = (&mut body, figures) {
            let waits = &figures.counters.waits;
            let bounds = WAIT_BOUNDS_NS
                .iter()
                .map(|ns| Some(seconds(*ns)))
                .chain([None]);
            let buckets: Vec<_> = bounds
                .zip(waits.counts)
                .filter(|(_, count)| *count > 0)
                .map(|(bound, count)| json!({"up_to_seconds": bound, "count": count}))
                .collect();
            let more = json!({
                "token": {
                    "held": figures.has_token,
                    "waiting": figures.is_waiting,
                    "grants": figures.counters.grants,
                    "overruns": figures.counters.overruns,
                    "overrun_seconds": seconds(figures.counters.overrun_ns),
                    "revoked": {
                        "idle": figures.counters.revoked_idle,
                        "unresponsive": figures.counters.revoked_unresponsive,
                    },
                    "held_idle_seconds": seconds(figures.counters.held_idle_ns),
                    "charged_seconds": seconds(figures.counters.charged_ns),
                    "debt_seconds": seconds(figures.debt_ns),
                },
                "lease": {
                    "queue": figures.lease.has_queue,
                    "holder": figures.lease.is_holder,
                    "load_seconds": seconds(figures.lease.load_ns),
                    "execution_seconds": seconds(figures.lease.execution_ns),
                    "siblings": {
                        "named": figures.lease.siblings_named,
                        "returned": figures.lease.siblings_returned,
                    },
                },
                "waits": {"count": waits.count(), "sum_seconds": seconds(waits.sum_ns), "buckets": buckets},
                "used_seconds": seconds(figures.counters.used_wall_ns),
                "used_sm_seconds": seconds(figures.counters.used_sm_ns),
                "given_seconds": seconds(figures.counters.given_ns),
                "asked_seconds": seconds(figures.counters.asked_ns),
                "ungated_seconds": seconds(figures.counters.ungated_ns),
                "launches": figures.counters.launches,
                "unknown_symbols": figures.counters.unknown_symbols,
                "memory": {
                    "used_bytes": figures.memory_used,
                    "limit_bytes": figures.memory_limit,
                    "refused_allocations": figures.counters.refused_allocations,
                },
                "moves": figures.counters.moves,
                "refused_connections": figures.counters.refused_connections,
                "faulted_processes": figures.counters.faults,
                "silent_processes": figures.silent_processes,
                "processes": figures.processes,
            });
            if let Value::Object(more) = more {
                body.extend(more);
            }
        }
        body
    }

    /// Sends an operator's order to the service and waits for its answer.
    async fn order(
        &self,
        id: &str,
        order: PodOrder,
        request: Request<Incoming>,
    ) -> Response<AnswerBody> {
        let waits = match request.uri().query() {
            None | Some("wait=false") => false,
            Some("wait=true") => true,
            Some(_) => {
                let allowed = ["wait=true", "wait=false"];
                return error_response(StatusCode::BAD_REQUEST, "no such query", &allowed);
            }
        };
        let drain_ms = match drain(request).await {
            Ok(drain_ms) => drain_ms,
            Err(why) => {
                let allowed = [format!(
                    r#"no body, or {{"drain_ms": N}} with N from 0 to {DRAIN_MS_MAX}"#
                )];
                let allowed = allowed.each_ref().map(String::as_str);
                return error_response(StatusCode::BAD_REQUEST, &why, &allowed);
            }
        };
        let key: PodKey = match self.find(id) {
            Ok(pod) => pod.key,
            Err(response) => return response,
        };
        let (sender, answered) = oneshot::channel();
        let command = Command::Move {
            pod: key,
            order,
            drain_ms,
            waits,
            answer: sender,
        };
        if let Err(error) = self.metrics.service.try_send(command) {
            return error_response(StatusCode::SERVICE_UNAVAILABLE, &error.to_string(), &[]);
        }
        let span = if waits {
            // It may join a move with a longer drain than its own.
            MOVE_MAX + Duration::from_millis(DRAIN_MS_MAX.into()) + ANSWER_SPAN
        } else {
            ANSWER_SPAN
        };
        match tokio::time::timeout(span, answered).await {
            Ok(Ok(OrderAnswer::Accepted { seq })) => {
                json_answer(StatusCode::ACCEPTED, &json!({"seq": seq}))
            }
            Ok(Ok(OrderAnswer::Done {
                seq,
                residency,
                transfer,
            })) => json_answer(StatusCode::OK, &moved(seq, residency, &transfer)),
            Ok(Ok(OrderAnswer::Refused(refusal))) => {
                let body = json!({"reason": refusal.name(), "text": refusal.text()});
                json_answer(StatusCode::CONFLICT, &body)
            }
            Ok(Err(_)) | Err(_) => {
                let why = "the token service does not respond";
                error_response(StatusCode::SERVICE_UNAVAILABLE, why, &[])
            }
        }
    }

    /// Returns the last [`PAST_MAX`] events in the ring after this sequence number.
    fn past(&self, sequence: u64) -> Response<AnswerBody> {
        let later = self.events.later(sequence, PAST_MAX);
        let lines: Vec<u8> = later.iter().flat_map(|event| line(&**event)).collect();
        answer(StatusCode::OK, "application/x-ndjson", lines)
    }

    /// Returns a stream of the past events and all later ones, or an error when too many streams are open.
    fn stream(&self) -> Response<AnswerBody> {
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            let why = format!("too many event streams: at most {EVENT_STREAMS_MAX} are allowed");
            return error_response(StatusCode::SERVICE_UNAVAILABLE, &why, &[]);
        };
        let (past, receiver) = self.events.subscribe();
        let (sender, stream) = Stream::new(LINES_AHEAD);
        let cancel = self.cancel.clone();
        tokio::spawn(async move {
            let _permit = permit;
            tokio::select! {
                () = pump(past, receiver, sender) => {}
                () = cancel.cancelled() => {}
            }
        });
        let mut response = Response::new(stream.boxed_unsync());
        let kind = HeaderValue::from_static("application/x-ndjson");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// Parses the sequence number in `after=N`.
fn after(query: &str) -> Option<u64> {
    query.strip_prefix("after=")?.parse().ok()
}

fn line(event: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(event).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// Forwards events until the reader disconnects or is too slow.
async fn pump(
    past: Vec<Arc<Event>>,
    mut receiver: tokio::sync::broadcast::Receiver<Arc<Event>>,
    sender: StreamSender,
) {
    let StreamSender { parts, last } = sender;
    let send = async |event: &Arc<Event>| {
        let outcome = parts.send_timeout(line(&**event), LINE_SPAN).await;
        outcome.map_err(|error| {
            matches!(
                error,
                tokio::sync::mpsc::error::SendTimeoutError::Timeout(_)
            )
        })
    };
    let disconnect = |why: String| {
        let _gone = last.send(line(&json!({"error": why, "allowed": []})));
    };
    let slow = || {
        let seconds = LINE_SPAN.as_secs();
        format!("the reader received nothing for {seconds} s and is disconnected; reconnect")
    };
    for event in &past {
        match send(event).await {
            Ok(()) => {}
            Err(true) => return disconnect(slow()),
            Err(false) => return,
        }
    }
    loop {
        let received = tokio::select! {
            received = receiver.recv() => received,
            () = parts.closed() => return,
        };
        match received {
            Ok(event) => match send(&event).await {
                Ok(()) => {}
                Err(true) => return disconnect(slow()),
                Err(false) => return,
            },
            Err(RecvError::Lagged(_)) => {
                return disconnect(format!(
                    "the reader is more than {EVENTS_MAX} events behind and is disconnected; reconnect"
                ));
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Returns the time for the drain in the body of an order, in milliseconds, or what is wrong with the body.
async fn drain(request: Request<Incoming>) -> Result<u32, String> {
    let body = Limited::new(request.into_body(), BODY_MAX).collect();
    let body = body.await.map_err(|error| error.to_string())?.to_bytes();
    if body.is_empty() {
        return Ok(DRAIN_MS);
    }
    let body: OrderBody = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
    if body.drain_ms > DRAIN_MS_MAX {
        return Err(format!("drain_ms: {} is too long", body.drain_ms));
    }
    Ok(body.drain_ms)
}

/// Returns the answer to an order that was carried out.
fn moved(seq: u64, residency: Residency, transfer: &Transfer) -> Value {
    let ms = |ns: u64| Duration::from_nanos(ns).as_secs_f64() * 1e3;
    json!({
        "seq": seq,
        "state": residency.name(),
        "bytes": transfer.bytes,
        "copied_bytes": transfer.copied_bytes,
        "ms": {
            "drain": ms(transfer.drain_ns),
            "hash": ms(transfer.hash_ns),
            "copy": ms(transfer.copy_ns),
            "unmap": ms(transfer.unmap_ns),
            "map": ms(transfer.map_ns),
            "total": ms(transfer.total_ns),
        },
    })
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

fn slots(
    node: &NodeState,
    figures: &Figures,
    host_memory: Option<u64>,
    busy: impl Fn(SlotKey) -> Vec<Busy>,
) -> Value {
    let slot = |own: &SlotState| {
        let clients = match &own.mps {
            MpsState::Up { clients, .. } => clients.len(),
            _ => 0,
        };
        let figures = figures.slot(own.slot.key);
        let measured = figures.and_then(|figures| figures.context_residue);
        let figures = figures.map(|figures| {
            json!({
                "held": f64::from(figures.held_hundredths) / 1e4,
                "holders": figures.holders,
                "waiters": figures.waiters,
                "grants": figures.grants,
                "busy_seconds": seconds(figures.busy_ns),
                "idle_while_waiting_seconds": seconds(figures.idle_while_waiting_ns),
                "processes": figures.processes,
            })
        });
        json!({
            "slot": own.slot.name,
            "uuid": own.slot.uuid,
            "gpu": own.slot.gpu_uuid(),
            "product": own.slot.product,
            "kind": own.slot.kind,
            "lost": own.lost,
            "losses": own.losses,
            "sms": own.slot.sms,
            "memory_bytes": own.slot.memory_bytes,
            "memory_used_bytes": own.memory_used,
            "seats": own.slot.seats,
            // Limit of the sum of the requests of its pods: SMs × guaranteed time.
            "plan_permille": (own.slot.kind == SlotKind::Mps).then_some(node.plan.0 * 10),
            "context_residue_bytes": own.slot.context_residue.or(measured),
            "compute_capability": own.slot.compute_capability.map(|(major, minor)| format!("{major}.{minor}")),
            "mig": own.slot.mig,
            "mps": {
                "state": own.mps,
                "restarts": own.mps_restarts,
                "client_limit": own.slot.client_limit,
                "client_limit_reached": has_room(&own.slot, clients).err(),
                "pipe_directory": own.slot.mps_pipe,
            },
            "tokens": figures,
            "recent": {"cell_seconds": CELL_SECONDS, "busy_percent": busy(own.slot.key)},
        })
    };
    json!({
        "driver": node.driver,
        "nvml_problem": node.nvml_problem,
        // `null` without a budget.
        "host_memory_bytes": host_memory,
        "slots": node.slots.iter().map(slot).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventKind;

    async fn lines(mut stream: Stream) -> Vec<Value> {
        let mut lines = Vec::new();
        while let Some(frame) = stream.frame().await {
            let Ok(data) = frame.map(|frame| frame.into_data().unwrap_or_default());
            lines.push(serde_json::from_slice(&data).unwrap());
        }
        lines
    }

    #[tokio::test]
    async fn a_slow_reader_is_disconnected_with_a_last_line() {
        let events = Events::default();
        events.record(EventKind::AgentStarted, "", "", "past");
        let (past, receiver) = events.subscribe();
        let (sender, stream) = Stream::new(LINES_AHEAD);
        let pumping = tokio::spawn(pump(past, receiver, sender));
        // On one thread the pump cannot run meanwhile.
        for number in 0..EVENTS_MAX + 2 * LINES_AHEAD {
            events.record(EventKind::PodAdded, "", "", number.to_string());
        }
        let lines = lines(stream).await;
        pumping.await.unwrap();
        assert_eq!(lines[0]["text"], "past");
        let last = lines.last().unwrap();
        assert_eq!(
            last["error"],
            "the reader is more than 1024 events behind and is disconnected; reconnect"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_reader_is_disconnected_with_a_last_line() {
        let events = Events::default();
        for number in 0..LINES_AHEAD + 1 {
            events.record(EventKind::PodAdded, "", "", number.to_string());
        }
        let (past, receiver) = events.subscribe();
        let (sender, stream) = Stream::new(LINES_AHEAD);
        pump(past, receiver, sender).await;
        let lines = lines(stream).await;
        assert_eq!(lines.len(), LINES_AHEAD + 1);
        let last = lines.last().unwrap();
        assert_eq!(
            last["error"],
            "the reader received nothing for 10 s and is disconnected; reconnect"
        );
    }
}
