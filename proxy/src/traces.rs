//! Spans of a request, with propagation of the W3C trace context.
//!
//! | span | from | to |
//! |---|---|---|
//! | the method (server) | arrival | the end of the response |
//! | [`SpanNames::proxy`] | arrival | the end of the response |
//! | [`SpanNames::wait`] | arrival | dispatch, if slots at the upstream are limited |
//! | `weir.lease` | arrival, or the recall of the lease before | the lease of the instance's GPU, if it had none |
//! | `weir.load` | the begin of the model's load in that time | its end |
//! | `weir.forward` | dispatch to another instance | the end of its answer, or its refusal |
//! | `HTTP` and the method (client) | dispatch | the end of the answer |
//!
//! The server span of a request with an objective has the result as attributes: `weir.slo.objective` (s),
//! `weir.slo.result` (`in-time`, `missed`, `not-judged`), and `weir.slo.reason` as in the metrics.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, Method, Request};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use policy::slo::Verdict;
use tokio::time::Instant;

use crate::attainment::Judgement;
use crate::lease_wait::LeaseWait;

/// Largest size of span attributes that clients choose, in bytes.
const ATTRIBUTE_BYTES_MAX: usize = 256;

/// Factory of the spans of a program.
#[derive(Debug)]
pub struct Traces {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    names: SpanNames,
}

/// Names of a program's spans.
#[derive(Debug, Clone, Copy)]
pub struct SpanNames {
    /// Name of the instrumentation scope.
    pub scope: &'static str,
    /// Name of the span from arrival to the end of the response.
    pub proxy: &'static str,
    /// Name of the span of the wait for a slot at the upstream.
    pub wait: &'static str,
}

/// Identifiers of a request's trace and of this program's span in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceIds {
    trace: TraceId,
    span: SpanId,
    flags: TraceFlags,
}

impl TraceIds {
    /// Returns the identifiers that the request came with (`traceparent`, W3C Trace Context), for a program without spans
    /// of its own. Returns `None` without a valid header.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        // Parsed here, since this runs for every observed request and the propagator allocates.
        let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
        let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
        if (version.len(), trace.len(), span.len()) != (2, 32, 16) || version == "ff" {
            return None;
        }
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let is_valid = trace != TraceId::INVALID && span != SpanId::INVALID;
        let is_byte =
            |text: &&str| text.len() == 2 && text.bytes().all(|it| it.is_ascii_hexdigit());
        let flags = parts.next().filter(is_byte);
        let flags = flags.and_then(|flags| u8::from_str_radix(flags, 16).ok());
        let flags = TraceFlags::new(flags.unwrap_or_default());
        is_valid.then_some(Self { trace, span, flags })
    }

    fn within(context: &SpanContext) -> Option<Self> {
        context.is_valid().then(|| Self {
            trace: context.trace_id(),
            span: context.span_id(),
            flags: context.trace_flags(),
        })
    }

    /// Returns the identifiers of the trace and of the span, and the flags of W3C Trace Context; `None` if the trace is not sampled.
    #[must_use]
    pub fn sampled(self) -> Option<([u8; 16], [u8; 8], u8)> {
        let Self { trace, span, flags } = self;
        let bytes = || (trace.to_bytes(), span.to_bytes(), flags.to_u8());
        flags.is_sampled().then(bytes)
    }

    /// Returns the identifiers of the trace and of the span in hexadecimal.
    #[must_use]
    pub fn texts(self) -> (String, String) {
        (self.trace.to_string(), self.span.to_string())
    }
}

/// The spans of one request. Their times are measured with the monotonic clock, which is mapped to the wall clock once at
/// arrival, so that no step of the wall clock can move a span outside of its parent.
#[derive(Debug)]
pub struct Spans {
    arrival: Instant,
    /// Arrival on the wall clock.
    arrived_at: SystemTime,
    server: Span,
    proxy: Span,
    wait: Option<Span>,
    /// Begin of that span.
    waits_since: SystemTime,
    forward: Option<Span>,
    client: Option<Span>,
}

/// The end of a request, as recorded in its spans.
#[derive(Debug, Clone, Copy)]
pub struct RequestEnd {
    /// Time at which the response had been passed on.
    pub at: Instant,
    /// Time at which the upstream's answer had ended.
    pub upstream_at: Instant,
    /// Status that the client received, or would have received.
    pub status: u16,
    /// Status of the upstream's answer; `None` without an answer.
    pub upstream_status: Option<u16>,
    /// Result with respect to the objective; `None` without an objective.
    pub judgement: Option<Judgement>,
}

impl Traces {
    /// Creates a factory of spans with these names, which are exported by `provider`.
    #[must_use]
    pub fn new(provider: &SdkTracerProvider, names: SpanNames) -> Self {
        Self {
            tracer: provider.tracer(names.scope),
            propagator: TraceContextPropagator::new(),
            names,
        }
    }

    /// Begins the spans of a request that came at `arrival`. `waits` states whether slots at the upstream are limited.
    pub fn begin<B>(
        &self,
        request: &Request<B>,
        peer: &str,
        secure: bool,
        waits: bool,
        arrival: Instant,
    ) -> Spans {
        let arrived_at = wall_clock(arrival);
        let headers = request.headers();
        let remote = self
            .propagator
            .extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let text = |name: &str| {
            let value = headers.get(name).and_then(|value| value.to_str().ok());
            shortened(value.unwrap_or_default())
        };
        let attributes = vec![
            KeyValue::new("http.request.method", shortened(request.method().as_str())),
            KeyValue::new("url.scheme", if secure { "https" } else { "http" }),
            KeyValue::new("url.path", shortened(request.uri().path())),
            KeyValue::new("server.address", text("host")),
            KeyValue::new("user_agent.original", text("user-agent")),
            KeyValue::new("network.peer.address", peer.to_owned()),
            KeyValue::new("network.protocol.version", version(request.version())),
        ];
        let server = self
            .tracer
            .span_builder(shortened(request.method().as_str()))
            .with_kind(SpanKind::Server)
            .with_attributes(attributes)
            .with_start_time(arrived_at)
            .start_with_context(&self.tracer, &remote);
        let child = |name| self.child(name, server.span_context(), arrived_at);
        let proxy = child(self.names.proxy);
        let wait = waits.then(|| child(self.names.wait));
        Spans {
            arrival,
            arrived_at,
            server,
            proxy,
            wait,
            waits_since: arrived_at,
            forward: None,
            client: None,
        }
    }

    /// Adds the spans of a wait for the lease, inside that of the whole wait.
    pub fn lease(&self, spans: &Spans, wait: &LeaseWait) {
        let Some(parent) = &spans.wait else {
            return;
        };
        // A request that is back from another instance waits anew.
        let since = spans.time(wait.since).max(spans.waits_since);
        let mut lease = self.child("weir.lease", parent.span_context(), since);
        if let Some((begun, duration, source)) = wait.load {
            let begun_at = spans.time(begun).max(since);
            let mut load = self.child("weir.load", lease.span_context(), begun_at);
            load.set_attribute(KeyValue::new("weir.load.source", source));
            load.end_with_timestamp(spans.time(begun + duration).max(begun_at));
        }
        lease.end_with_timestamp(spans.time(wait.since + wait.duration).max(since));
    }

    /// Begins the span of a request's way to another instance, which contains the client span.
    pub fn forward(&self, spans: &mut Spans, now: Instant) {
        let now = spans.time(now);
        spans.admitted(now);
        let forward = self.child("weir.forward", spans.proxy.span_context(), now);
        spans.forward = Some(forward);
    }

    /// Ends the client span of an upstream that did not accept the request, and begins another wait.
    pub fn wait_again(&self, spans: &mut Spans, now: Instant) {
        let now = spans.time(now);
        if let Some(mut unanswered) = spans.client.take() {
            set_status(&mut unanswered, None, 400);
            unanswered.end_with_timestamp(now);
        }
        if let Some(mut forward) = spans.forward.take() {
            forward.end_with_timestamp(now);
        }
        spans.wait = Some(self.child(self.names.wait, spans.server.span_context(), now));
        spans.waits_since = now;
    }

    /// Ends the wait and begins the client span of the upstream at this address. The trace context in `headers` is
    /// replaced by that of the client span.
    pub fn dispatch(
        &self,
        spans: &mut Spans,
        now: Instant,
        upstream: SocketAddr,
        method: &Method,
        headers: &mut HeaderMap,
    ) {
        let now = spans.time(now);
        spans.admitted(now);
        let parent = spans.forward.as_ref().unwrap_or(&spans.proxy);
        let parent = Context::new().with_remote_span_context(parent.span_context().clone());
        let client = self
            .tracer
            .span_builder(format!("HTTP {}", shortened(method.as_str())))
            .with_kind(SpanKind::Client)
            .with_attributes([
                KeyValue::new("http.request.method", shortened(method.as_str())),
                KeyValue::new("server.address", upstream.ip().to_string()),
                KeyValue::new("server.port", i64::from(upstream.port())),
            ])
            .with_start_time(now)
            .start_with_context(&self.tracer, &parent);
        let outgoing = Context::new().with_remote_span_context(client.span_context().clone());
        self.propagator
            .inject_context(&outgoing, &mut HeaderInjector(headers));
        if client.span_context().trace_state().header().is_empty() {
            headers.remove("tracestate");
        }
        spans.client = Some(client);
    }

    fn child(&self, name: &'static str, parent: &SpanContext, start: SystemTime) -> Span {
        let parent = Context::new().with_remote_span_context(parent.clone());
        self.tracer
            .span_builder(name)
            .with_start_time(start)
            .start_with_context(&self.tracer, &parent)
    }
}

/// Longest time between the readings of both clocks that shifts the spans of a request by nothing of interest.
const APART_MAX: Duration = Duration::from_micros(10);
/// Number of readings of both clocks.
const READINGS_MAX: u32 = 4;

/// Returns a time of the past in the wall clock's time. A thread may be preempted between its readings of the two clocks, which would shift the request's
/// spans beyond those of the programs before and behind it: the closest of some readings counts.
#[expect(
    clippy::disallowed_methods,
    reason = "spans are in the wall clock's time"
)]
fn wall_clock(past: Instant) -> SystemTime {
    let read = || {
        let before = Instant::now();
        let wall = SystemTime::now();
        (
            before.elapsed(),
            wall - before.saturating_duration_since(past),
        )
    };
    let (mut apart, mut wall) = read();
    for _again in 1..READINGS_MAX {
        if apart <= APART_MAX {
            break;
        }
        (apart, wall) = (apart, wall).min(read());
    }
    wall
}

impl Spans {
    /// Returns the identifiers of the trace and of the server span.
    #[must_use]
    pub fn ids(&self) -> Option<TraceIds> {
        TraceIds::within(self.server.span_context())
    }

    fn time(&self, at: Instant) -> SystemTime {
        self.arrived_at + at.saturating_duration_since(self.arrival)
    }

    /// Ends the wait, since the request has a slot at the upstream or will not get one.
    fn admitted(&mut self, now: SystemTime) {
        if let Some(mut wait) = self.wait.take() {
            wait.end_with_timestamp(now);
        }
    }

    /// Ends all spans of the request, with its status and its result with respect to the objective.
    pub fn end(mut self, end: &RequestEnd) {
        let at = self.time(end.at);
        self.admitted(at);
        let upstream_at = self.time(end.upstream_at);
        if let Some(mut client) = self.client.take() {
            set_status(&mut client, end.upstream_status, 400);
            client.end_with_timestamp(upstream_at);
        }
        if let Some(mut forward) = self.forward.take() {
            forward.end_with_timestamp(upstream_at);
        }
        self.proxy.end_with_timestamp(at);
        set_status(&mut self.server, Some(end.status), 500);
        if let Some(Judgement { objective, verdict }) = end.judgement {
            let (result, reason) = match verdict {
                Verdict::InTime => ("in-time", None),
                Verdict::Missed(reason) => ("missed", Some(reason)),
                Verdict::NotJudged => ("not-judged", None),
            };
            self.server.set_attributes([
                KeyValue::new("weir.slo.objective", objective.as_secs_f64()),
                KeyValue::new("weir.slo.result", result),
            ]);
            if let Some(reason) = reason {
                self.server
                    .set_attribute(KeyValue::new("weir.slo.reason", reason.name()));
            }
        }
        self.server.end_with_timestamp(at);
    }
}

/// Truncates an attribute, since thousands of spans wait for their export.
fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(ATTRIBUTE_BYTES_MAX)].to_owned()
}

fn set_status(span: &mut Span, status: Option<u16>, error_from: u16) {
    if let Some(status) = status {
        span.set_attribute(KeyValue::new(
            "http.response.status_code",
            i64::from(status),
        ));
    }
    if status.is_none_or(|status| status >= error_from) {
        span.set_status(Status::error(""));
    }
}

fn version(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "1.0",
        http::Version::HTTP_2 => "2.0",
        _ => "1.1",
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "spans are in the wall clock's time"
    )]
    fn times_of_both_clocks_are_as_far_in_the_past() {
        let since = SystemTime::now();
        let past = Instant::now() - Duration::from_secs(5);
        let wall = wall_clock(past);
        let until = SystemTime::now();
        let passed = Duration::from_secs(5);
        assert!(
            since <= wall + passed + Duration::from_millis(1),
            "{wall:?}"
        );
        assert!(
            wall + passed <= until + Duration::from_millis(1),
            "{wall:?}"
        );
    }

    #[test]
    fn trace_identifiers_are_read_from_valid_headers_only() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(text));
            TraceIds::of(&headers).map(TraceIds::texts)
        };
        let (trace, span) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let both = Some((trace.to_owned(), span.to_owned()));
        assert_eq!(
            of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
            both
        );
        assert_eq!(TraceIds::of(&HeaderMap::new()), None);
        for broken in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c8031xx-b7ad6b7169203331-00",
            "00-00000000000000000000000000000000-b7ad6b7169203331-00",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-00",
        ] {
            assert_eq!(of(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_trace_is_sampled_if_its_flags_say_so() {
        for (flags, sampled) in [
            ("-01", Some(1)),
            ("-ff", Some(0xff)),
            ("-00", None),
            ("-02", None),
            ("-+1", None),
            ("-1", None),
            ("", None),
        ] {
            let text = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331{flags}");
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_str(&text).unwrap());
            let ids = TraceIds::of(&headers).unwrap().sampled();
            assert_eq!(ids.map(|(_, _, flags)| flags), sampled, "{text}");
        }
    }
}
