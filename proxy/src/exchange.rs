//! Observation of one request: metrics, spans and the request log, all written when the request has ended.
//!
//! An [`Exchange`] is shared by all parts that serve the request, and is recorded when the last reference is dropped:
//! when the response has been passed on, when its tunnel closes, or when its client leaves. A request that is not
//! observed has no exchange, and no cost.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Uri, Version};
use policy::slo::{Ending, Parts, StartMargin};
use tokio::time::Instant;

use crate::attainment::Judgement;
use crate::connection::Client;
use crate::headers;
use crate::instruments::{HttpInstruments, Measurement, UpstreamMeasurement};
use crate::lease_wait::LeaseWait;
use crate::outcome::Outcome;
use crate::request_log::RequestLog;
use crate::template::Record;
use crate::tls::Negotiated;
use crate::traces::{RequestEnd, Spans, TraceIds, Traces};

/// Status recorded for a request whose client left before an answer: nginx's, which most tools understand.
const CLIENT_CLOSED_REQUEST: u16 = 499;
const SWITCHING_PROTOCOLS: u16 = 101;
/// Status recorded for a response that broke off, as under Knative.
const BROKEN_OFF: u16 = 500;

/// Measurements of an ended request that was not a probe.
#[derive(Debug, Clone, Copy)]
pub struct RequestSummary {
    /// How the request ended.
    pub outcome: Outcome,
    /// Status that the client received, or would have received.
    pub status: u16,
    /// Time from arrival to the end of the response.
    pub response: Duration,
    /// Time for which earlier hops of Weir held the request.
    pub held: Duration,
    /// Time from arrival to dispatch, and from dispatch to the end of the upstream's answer; `None` if the request was not
    /// dispatched.
    pub dispatched: Option<(Duration, Duration)>,
    /// Time by which the dispatch preceded or followed the latest start time; `None` if the request has none or was not
    /// dispatched.
    pub margin: Option<StartMargin>,
    /// Wait of the instance for its lease; `None` if it held it, or needs none.
    pub lease_wait: Option<LeaseWait>,
    /// Breakdown of the request's time, as far as this hop can measure it.
    pub parts: Parts,
    /// Trace and span of the request; `None` if it is not traced.
    pub trace: Option<TraceIds>,
}

impl RequestSummary {
    /// Returns how the request ended, in the terms of its objective.
    #[must_use]
    pub const fn ending(&self) -> Ending {
        match self.outcome {
            Outcome::Answered => Ending::Answered {
                status: self.status,
            },
            Outcome::Refused => Ending::Refused,
            Outcome::Shed => Ending::Shed,
            Outcome::Timeout => Ending::Timeout,
            Outcome::Failed => Ending::Failed,
            // It is judged where it ran.
            Outcome::Cancelled | Outcome::Forwarded => Ending::Left,
            Outcome::Malformed => Ending::Malformed,
        }
    }

    /// Returns the time from the request's arrival at the first hop of Weir to its end.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.response + self.held
    }
}

/// Sink for the summaries of ended requests.
pub trait Recorder: fmt::Debug + Send + Sync {
    /// Records a request. Returns how it compares with its objective, or `None` if it has no objective.
    fn record(&self, ended: &RequestSummary) -> Option<Judgement>;
}

/// Destinations of the observations of requests; one for each program.
#[derive(Debug, Default)]
pub struct Observer {
    /// OpenTelemetry's instruments, if Knative's configuration enables request metrics.
    pub http: Option<Arc<HttpInstruments>>,
    /// Weir's own metrics of the program.
    pub recorder: Option<Arc<dyn Recorder>>,
    /// Spans of requests, if tracing is enabled.
    pub traces: Option<Arc<Traces>>,
    /// Request log, if it is enabled.
    pub log: Option<RequestLog>,
}

/// The observation of one request. See the [module](self).
#[derive(Debug)]
pub struct Exchange {
    observer: Arc<Observer>,
    arrival: Instant,
    is_probe: bool,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fields: Option<RequestFields>,
    /// Trailers of the request, if requests are logged.
    trailers: Option<HeaderMap>,
    spans: Option<Spans>,
    trace: Option<TraceIds>,
    status: Option<u16>,
    outcome: Option<Outcome>,
    /// Time at which the whole response had been passed on.
    completed: Option<Instant>,
    held: Duration,
    /// Whether the request arrived while no instance was serving.
    is_cold: bool,
    margin: Option<StartMargin>,
    dispatched: Option<(Instant, SocketAddr)>,
    /// Wait of the instance for its lease.
    lease: Option<LeaseWait>,
    /// Queueing time at the instance, its wait for the lease, and loading time of its model, as reported by its queue-proxy.
    upstream_parts: [Duration; 3],
    upstream_head: Option<(Instant, u16)>,
    upstream_end: Option<Instant>,
}

/// Fields of a request's head that are kept for metrics and the log.
#[derive(Debug)]
struct RequestFields {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    peer: SocketAddr,
    tls: Option<Arc<Negotiated>>,
}

impl Observer {
    /// Returns whether no request is observed.
    const fn is_idle(&self) -> bool {
        self.http.is_none()
            && self.recorder.is_none()
            && self.traces.is_none()
            && self.log.is_none()
    }

    /// Begins the observation of a request that came at `arrival`. `waits` states whether the number of slots at the
    /// upstream is limited. Returns `None` if the request is not observed.
    pub fn begin<B>(
        self: &Arc<Self>,
        request: &Request<B>,
        client: &Client,
        arrival: Instant,
        is_probe: impl FnOnce() -> bool,
        waits: bool,
    ) -> Option<Arc<Exchange>> {
        if self.is_idle() {
            return None;
        }
        let is_probe = is_probe();
        let logs = self.log.as_ref().is_some_and(|log| log.probes || !is_probe);
        let measures = self.http.is_some() && !is_probe;
        let traces = self.traces.as_ref().filter(|_| !is_probe);
        if !logs && !measures && traces.is_none() && (self.recorder.is_none() || is_probe) {
            return None;
        }
        let fields = (logs || measures).then(|| RequestFields {
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            headers: if logs {
                request.headers().clone()
            } else {
                measured_headers(request.headers())
            },
            peer: client.peer,
            tls: client.tls.clone(),
        });
        let spans = traces.map(|traces| {
            let peer = client.peer.ip().to_string();
            traces.begin(request, &peer, client.tls.is_some(), waits, arrival)
        });
        let trace = match &spans {
            Some(spans) => spans.ids(),
            // The recorder uses it then, and what states the trace of a request to others.
            None if self.recorder.is_some() => TraceIds::of(request.headers()),
            None => None,
        };
        Some(Arc::new(Exchange {
            observer: Arc::clone(self),
            arrival,
            is_probe,
            request_bytes: AtomicU64::new(0),
            response_bytes: AtomicU64::new(0),
            state: Mutex::new(State {
                fields,
                trailers: None,
                spans,
                trace,
                status: None,
                outcome: None,
                completed: None,
                held: Duration::ZERO,
                is_cold: false,
                margin: None,
                dispatched: None,
                lease: None,
                upstream_parts: [Duration::ZERO; 3],
                upstream_head: None,
                upstream_end: None,
            }),
        }))
    }
}

/// Returns the headers that the labels of metrics are made of.
fn measured_headers(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for name in [
        http::header::HOST,
        headers::SERVING_TAG,
        headers::SERVING_DEFAULT_ROUTE,
    ] {
        if let Some(value) = headers.get(&name) {
            kept.insert(name, value.clone());
        }
    }
    kept
}

impl Exchange {
    /// Adds bytes that were read of the request's body.
    pub fn add_request_bytes(&self, bytes: usize) {
        self.request_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes the trailers of the request, if requests are logged.
    pub fn note_request_trailers(&self, trailers: &HeaderMap) {
        if self.observer.log.is_some() {
            self.lock().trailers = Some(trailers.clone());
        }
    }

    /// Adds bytes that were passed on of the response's body.
    pub fn add_response_bytes(&self, bytes: usize) {
        self.response_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes the dispatch to the upstream at this address, and adds the trace context to `headers`.
    pub fn dispatch(
        &self,
        now: Instant,
        upstream: SocketAddr,
        method: &Method,
        headers: &mut HeaderMap,
    ) {
        let mut state = self.lock();
        state.dispatched = Some((now, upstream));
        if let (Some(traces), Some(spans)) = (&self.observer.traces, &mut state.spans) {
            traces.dispatch(spans, now, upstream, method, headers);
        }
    }

    /// Notes that the request is to go to another instance, before its dispatch there.
    pub fn forward(&self, now: Instant) {
        let mut state = self.lock();
        if let (Some(traces), Some(spans)) = (&self.observer.traces, &mut state.spans) {
            traces.forward(spans, now);
        }
    }

    /// Notes that the upstream did not accept the request, which waits for another upstream.
    pub fn wait_again(&self, now: Instant) {
        let mut state = self.lock();
        if let (Some(traces), Some(spans)) = (&self.observer.traces, &mut state.spans) {
            traces.wait_again(spans, now);
        }
    }

    /// Notes the time for which earlier hops of Weir held the request.
    pub fn note_held(&self, held: Duration) {
        self.lock().held = held;
    }

    /// Notes that the request arrived while no instance was serving.
    pub fn note_cold_start(&self) {
        self.lock().is_cold = true;
    }

    /// Notes the time by which the dispatch preceded or followed the latest start time.
    pub fn note_margin(&self, margin: StartMargin) {
        self.lock().margin = Some(margin);
    }

    /// Notes the times reported by the next hop of Weir: `queue` in its queue, `lease` for the lease, and `load` for loading the model.
    pub fn note_upstream_parts(&self, queue: Duration, lease: Duration, load: Duration) {
        self.lock().upstream_parts = [queue, lease, load];
    }

    /// Notes the part of the request's wait in which the instance had no lease.
    pub fn note_lease(&self, wait: LeaseWait) {
        let mut state = self.lock();
        state.lease = Some(wait);
        if let (Some(traces), Some(spans)) = (&self.observer.traces, &state.spans) {
            traces.lease(spans, &wait);
        }
    }

    /// Notes the arrival of the head of the upstream's answer.
    pub fn upstream_answered(&self, status: u16) {
        self.lock().upstream_head = Some((Instant::now(), status));
    }

    /// Notes the end of the upstream's answer.
    pub fn upstream_ended(&self) {
        self.lock().upstream_end = Some(Instant::now());
    }

    /// Notes how the request ends. The first call wins.
    pub fn note(&self, outcome: Outcome) {
        self.lock().outcome.get_or_insert(outcome);
    }

    /// Notes the status of the response to the client.
    pub fn answer(&self, status: u16) {
        self.lock().status = Some(status);
    }

    /// Notes that the whole response has been passed on. The first call wins.
    pub fn complete(&self) {
        self.lock().completed.get_or_insert_with(Instant::now);
    }

    /// Notes that the response broke off for another reason than that the client left.
    pub fn break_off(&self) {
        let mut state = self.lock();
        state.status = Some(BROKEN_OFF);
        state.outcome.get_or_insert(Outcome::Failed);
        state.completed.get_or_insert_with(Instant::now);
    }

    /// Returns the identifiers of the request's trace and of its span in this program, if it is traced.
    #[must_use]
    pub fn trace(&self) -> Option<TraceIds> {
        self.lock().trace
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the breakdown of a request's time; `response` and `dispatched` are as in [`RequestSummary`].
    fn parts(&self, response: Duration, dispatched: Option<(Duration, Duration)>) -> Parts {
        let (wait, at_upstream) = dispatched.unwrap_or((response, Duration::ZERO));
        let (cold_start, wait) = if self.is_cold {
            (wait, Duration::ZERO)
        } else {
            (Duration::ZERO, wait)
        };
        // Times reported by another process are capped by those measured here.
        let capped = |whole: &mut Duration, part: Duration| {
            let part = part.min(*whole);
            *whole -= part;
            part
        };
        let (mut queue, mut execution) = (wait, at_upstream);
        let own = self.lease.as_ref().map(LeaseWait::parts);
        let (own_lease, own_load) = own.unwrap_or_default();
        let mut load = capped(&mut queue, own_load);
        let mut lease = capped(&mut queue, own_lease);
        let [queue_there, lease_there, load_there] = self.upstream_parts;
        queue += capped(&mut execution, queue_there);
        lease += capped(&mut execution, lease_there);
        load += capped(&mut execution, load_there);
        Parts {
            cold_start: cold_start.into(),
            queue: (queue + self.held).into(),
            lease: lease.into(),
            load: load.into(),
            execution: execution.into(),
            ..Parts::default()
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let now = Instant::now();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (status, outcome) = match state.status {
            Some(status) if state.completed.is_some() => {
                (status, state.outcome.unwrap_or(Outcome::Answered))
            }
            _ => (CLIENT_CLOSED_REQUEST, Outcome::Cancelled),
        };
        // The end is noted before the last byte is sent, so that a span of this hop ends within that of the previous hop.
        // For a tunnel the response is only the beginning.
        let completed = state.completed.filter(|_| status != SWITCHING_PROTOCOLS);
        let end = completed.unwrap_or(now);
        let response = end.saturating_duration_since(self.arrival);
        let upstream_status = state.upstream_head.map(|(_, status)| status);
        let upstream_end = state.upstream_end.map_or(end, |at| at.min(end));
        let observer = &self.observer;
        let recorder = observer.recorder.as_ref().filter(|_| !self.is_probe);
        let judgement = recorder.and_then(|recorder| {
            let dispatched = state.dispatched.map(|(dispatched, _)| {
                (
                    dispatched.saturating_duration_since(self.arrival),
                    upstream_end.saturating_duration_since(dispatched),
                )
            });
            recorder.record(&RequestSummary {
                outcome,
                status,
                response,
                held: state.held,
                dispatched,
                margin: state.margin,
                lease_wait: state.lease,
                parts: state.parts(response, dispatched),
                trace: state.trace,
            })
        });
        if let Some(spans) = state.spans.take() {
            spans.end(&RequestEnd {
                at: end,
                upstream_at: upstream_end,
                status,
                upstream_status,
                judgement,
            });
        }
        let Some(fields) = state.fields.take() else {
            return;
        };
        let request_bytes = self.request_bytes.load(Ordering::Relaxed);
        let response_bytes = self.response_bytes.load(Ordering::Relaxed);
        if let Some(http) = observer.http.as_ref().filter(|_| !self.is_probe) {
            let authority = fields.uri.authority().map(http::uri::Authority::as_str);
            http.record(&Measurement {
                method: &fields.method,
                version: fields.version,
                host: authority
                    .or_else(|| fields.headers.get(http::header::HOST)?.to_str().ok())
                    .unwrap_or_default(),
                secure: fields.tls.is_some(),
                tag: headers::route_tag(&fields.headers),
                status,
                seconds: response.as_secs_f64(),
                request_bytes,
                response_bytes,
                upstream: state.dispatched.map(|(dispatched, address)| {
                    let until =
                        |end: Instant| end.saturating_duration_since(dispatched).as_secs_f64();
                    UpstreamMeasurement {
                        address,
                        head_seconds: until(state.upstream_head.map_or(end, |(at, _)| at.min(end))),
                        status: upstream_status,
                        seconds: until(upstream_end),
                    }
                }),
            });
        }
        if let Some(log) = observer
            .log
            .as_ref()
            .filter(|log| log.probes || !self.is_probe)
        {
            log.write(&Record {
                method: fields.method,
                uri: fields.uri,
                version: fields.version,
                headers: fields.headers,
                trailers: state.trailers.take().unwrap_or_default(),
                body_bytes: request_bytes,
                tls: fields.tls,
                remote_address: fields.peer.to_string(),
                code: status,
                size: response_bytes,
                latency_seconds: response.as_secs_f64(),
            });
        }
    }
}
