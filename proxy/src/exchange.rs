//! One request as it is observed: metrics, spans and the request log, all written when it has ended.
//!
//! An [`Exchange`] is held by all that serves the request, and ends when the last of them lets it go: when the
//! response has been passed on, when its tunnel closes, or when its client leaves. A request that nobody
//! observes has none, and costs nothing.

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
use crate::outcome::Outcome;
use crate::request_log::RequestLog;
use crate::template::Record;
use crate::tls::Negotiated;
use crate::traces::{End, Spans, TraceIds, Traces};

/// The status of a request whose client left before an answer: nginx's, understood by most tools.
const CLIENT_CLOSED_REQUEST: u16 = 499;
/// The status of a response behind which there is a tunnel.
const SWITCHING_PROTOCOLS: u16 = 101;
/// The status of a response that broke off, as Knative records it.
const BROKEN_OFF: u16 = 500;

/// A request that has ended and was no probe.
#[derive(Debug, Clone, Copy)]
pub struct RequestSummary {
    /// How it ended.
    pub outcome: Outcome,
    /// The status that its client got, or would have got.
    pub status: u16,
    /// From arrival to the end of the response.
    pub response: Duration,
    /// How long earlier hops of Weir had held it.
    pub held: Duration,
    /// From arrival to dispatch, and from dispatch to the end of the upstream's answer; `None`: it was not dispatched.
    pub dispatched: Option<(Duration, Duration)>,
    /// How long before or after its latest start time it was dispatched; `None`: it has none, or was not dispatched.
    pub margin: Option<StartMargin>,
    /// What its time went to, as far as this hop knows.
    pub parts: Parts,
    /// Its trace, if it has one.
    pub trace: Option<TraceIds>,
}

impl RequestSummary {
    /// Returns how it ended, as far as its objective is concerned.
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
            Outcome::Cancelled => Ending::Left,
            Outcome::Malformed => Ending::Malformed,
        }
    }

    /// Returns the time from its first arrival in Weir to its end.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.response + self.held
    }
}

/// Counts requests that have ended.
pub trait Recorder: fmt::Debug + Send + Sync {
    /// Counts one. Returns what became of it, if it is held against an objective.
    fn record(&self, ended: &RequestSummary) -> Option<Judgement>;
}

/// What is done with requests that have ended.
#[derive(Debug, Default)]
pub struct Observer {
    /// OpenTelemetry's instruments, where Knative asks for them.
    pub http: Option<Arc<HttpInstruments>>,
    /// The program's own metrics.
    pub recorder: Option<Arc<dyn Recorder>>,
    pub traces: Option<Arc<Traces>>,
    pub log: Option<RequestLog>,
}

/// See the [module](self).
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
    /// Those of the request, where they are logged.
    trailers: Option<HeaderMap>,
    spans: Option<Spans>,
    trace: Option<TraceIds>,
    status: Option<u16>,
    outcome: Option<Outcome>,
    /// When the response had been passed on whole.
    completed: Option<Instant>,
    held: Duration,
    /// It came while no instance served.
    is_cold: bool,
    margin: Option<StartMargin>,
    dispatched: Option<(Instant, SocketAddr)>,
    /// Time in the queue of the instance, and for which its model was loaded, as its queue-proxy reports them.
    upstream_parts: (Duration, Duration),
    upstream_head: Option<(Instant, u16)>,
    upstream_end: Option<Instant>,
}

/// What is kept of a request's head, where it is needed at the end.
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
    /// Nobody wants to know of any request.
    const fn is_idle(&self) -> bool {
        self.http.is_none()
            && self.recorder.is_none()
            && self.traces.is_none()
            && self.log.is_none()
    }

    /// A request has come; `None` if nobody wants to know of it.
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
            // Only the recorder asks for it.
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
                upstream_parts: (Duration::ZERO, Duration::ZERO),
                upstream_head: None,
                upstream_end: None,
            }),
        }))
    }
}

/// The few headers that metrics speak of.
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
    /// Bytes of the request's body have been read.
    pub fn add_request_bytes(&self, bytes: usize) {
        self.request_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Trailers have come behind the request's body.
    pub fn note_request_trailers(&self, trailers: &HeaderMap) {
        if self.observer.log.is_some() {
            self.lock().trailers = Some(trailers.clone());
        }
    }

    /// Bytes of the response's body are passed on.
    pub fn add_response_bytes(&self, bytes: usize) {
        self.response_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The request goes to the upstream at this address, with these headers.
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

    /// The upstream at which it was did not take it: it waits for another one.
    pub fn wait_again(&self, now: Instant) {
        let mut state = self.lock();
        if let (Some(traces), Some(spans)) = (&self.observer.traces, &mut state.spans) {
            traces.wait_again(spans, now);
        }
    }

    /// Earlier hops of Weir held it for so long.
    pub fn note_held(&self, held: Duration) {
        self.lock().held = held;
    }

    /// It came while no instance served.
    pub fn note_cold_start(&self) {
        self.lock().is_cold = true;
    }

    /// It is dispatched so long before or after its latest start time.
    pub fn note_margin(&self, margin: StartMargin) {
        self.lock().margin = Some(margin);
    }

    /// The next hop of Weir held it in its queue for `queue`, and its model was loaded for `load`.
    pub fn note_upstream_parts(&self, queue: Duration, load: Duration) {
        self.lock().upstream_parts = (queue, load);
    }

    /// The head of the upstream's answer has come.
    pub fn upstream_answered(&self, status: u16) {
        self.lock().upstream_head = Some((Instant::now(), status));
    }

    /// The upstream has said all.
    pub fn upstream_ended(&self) {
        self.lock().upstream_end = Some(Instant::now());
    }

    /// How it ends, if nothing better is known later.
    pub fn note(&self, outcome: Outcome) {
        self.lock().outcome.get_or_insert(outcome);
    }

    /// The head of the response goes to the client.
    pub fn answer(&self, status: u16) {
        self.lock().status = Some(status);
    }

    /// The response has been passed on whole.
    pub fn complete(&self) {
        self.lock().completed.get_or_insert_with(Instant::now);
    }

    /// The response broke off for another reason than that the client left.
    pub fn break_off(&self) {
        let mut state = self.lock();
        state.status = Some(BROKEN_OFF);
        state.outcome.get_or_insert(Outcome::Failed);
        state.completed.get_or_insert_with(Instant::now);
    }

    /// Returns the names of its trace and of its span in this program, if it has one: for lines in the log.
    #[must_use]
    pub fn trace(&self) -> Option<TraceIds> {
        self.lock().trace
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns what a request's time went to: `response` is all of it here, `dispatched` as in [`RequestSummary`].
    fn parts(&self, response: Duration, dispatched: Option<(Duration, Duration)>) -> Parts {
        let (wait, at_upstream) = dispatched.unwrap_or((response, Duration::ZERO));
        let (cold_start, wait) = if self.is_cold {
            (wait, Duration::ZERO)
        } else {
            (Duration::ZERO, wait)
        };
        // What another process reports is at most what was measured here.
        let queue = self.upstream_parts.0.min(at_upstream);
        let load = self.upstream_parts.1.min(at_upstream - queue);
        Parts {
            cold_start: cold_start.into(),
            queue: (wait + self.held + queue).into(),
            load: load.into(),
            execution: (at_upstream - queue - load).into(),
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
        // Before its last byte is on its way, so that a span of this hop ends within that of the hop before. A tunnel only begins with
        // its response.
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
                parts: state.parts(response, dispatched),
                trace: state.trace,
            })
        });
        if let Some(spans) = state.spans.take() {
            spans.end(&End {
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
