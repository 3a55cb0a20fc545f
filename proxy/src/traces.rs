//! Spans of a request: W3C trace context in, four spans, W3C trace context out.
//!
//! | span | from | to |
//! |---|---|---|
//! | the method (server) | arrival | the end of the response |
//! | [`SpanNames::proxy`] | arrival | the end of the response |
//! | [`SpanNames::wait`] | arrival | a place at the upstream, where places are limited |
//! | `HTTP` and the method (client) | dispatch | the end of the answer |
//!
//! The server's span of a request that is held against an objective says what became of it: `weir.slo.objective` (s), `weir.slo.result`
//! (`in-time`, `missed`, `not-judged`), `weir.slo.reason` as in the metrics.

use std::net::SocketAddr;
use std::time::SystemTime;

use http::{HeaderMap, Method, Request};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceId, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use policy::slo::Verdict;
use tokio::time::Instant;

use crate::attainment::Judgement;

/// What clients say stands in spans up to this length.
const ATTRIBUTE_BYTES_MAX: usize = 256;

/// Where spans are begun.
#[derive(Debug)]
pub struct Traces {
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    names: SpanNames,
}

/// How a program names its spans.
#[derive(Debug, Clone, Copy)]
pub struct SpanNames {
    /// The instrumentation scope.
    pub scope: &'static str,
    /// The span of the whole way through the program.
    pub proxy: &'static str,
    /// The span of the wait for a place.
    pub wait: &'static str,
}

/// The names of a request's trace and of the span in it that is this program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceIds {
    trace: TraceId,
    span: SpanId,
}

impl TraceIds {
    /// Returns those that the request came with (`traceparent`, W3C Trace Context), where this program makes no spans.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        // By hand: it is done for every request that is observed, and the propagator allocates.
        let mut parts = headers.get("traceparent")?.to_str().ok()?.split('-');
        let (version, trace, span) = (parts.next()?, parts.next()?, parts.next()?);
        if (version.len(), trace.len(), span.len()) != (2, 32, 16) || version == "ff" {
            return None;
        }
        let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
        let is_valid = trace != TraceId::INVALID && span != SpanId::INVALID;
        is_valid.then_some(Self { trace, span })
    }

    fn within(context: &SpanContext) -> Option<Self> {
        context.is_valid().then(|| Self {
            trace: context.trace_id(),
            span: context.span_id(),
        })
    }

    /// Returns both as hexadecimal digits: of the trace, and of the span.
    #[must_use]
    pub fn texts(self) -> (String, String) {
        (self.trace.to_string(), self.span.to_string())
    }
}

/// The spans of one request. Their times are those of the monotonic clock, put onto the wall clock once at arrival: a step of the wall
/// clock meanwhile puts no span outside of its parent.
#[derive(Debug)]
pub struct Spans {
    arrival: Instant,
    /// The same on the wall clock.
    arrived_at: SystemTime,
    server: Span,
    proxy: Span,
    wait: Option<Span>,
    client: Option<Span>,
}

/// How a request ended, as far as its spans are concerned.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// When its response had been passed on.
    pub at: Instant,
    /// When the upstream's answer had come whole.
    pub upstream_at: Instant,
    /// The status that its client got, or would have got.
    pub status: u16,
    /// That of the upstream; `None`: none came.
    pub upstream_status: Option<u16>,
    /// What became of it, if it is held against an objective.
    pub judgement: Option<Judgement>,
}

impl Traces {
    /// Spans go to `provider` under these names.
    #[must_use]
    pub fn new(provider: &SdkTracerProvider, names: SpanNames) -> Self {
        Self {
            tracer: provider.tracer(names.scope),
            propagator: TraceContextPropagator::new(),
            names,
        }
    }

    /// A request came at `arrival`. `waits`: places at the upstream are limited.
    pub fn begin<B>(
        &self,
        request: &Request<B>,
        peer: &str,
        secure: bool,
        waits: bool,
        arrival: Instant,
    ) -> Spans {
        #[expect(
            clippy::disallowed_methods,
            reason = "spans are in the wall clock's time"
        )]
        let now = SystemTime::now();
        let arrived_at = now - arrival.elapsed();
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
            client: None,
        }
    }

    /// The upstream did not take the request at `now`: its time there ends, and it waits for another one.
    pub fn wait_again(&self, spans: &mut Spans, now: Instant) {
        let now = spans.time(now);
        if let Some(mut unanswered) = spans.client.take() {
            set_status(&mut unanswered, None, 400);
            unanswered.end_with_timestamp(now);
        }
        spans.wait = Some(self.child(self.names.wait, spans.server.span_context(), now));
    }

    /// The request goes to the upstream at this address with these headers, which from here on name the client span.
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
        let parent = Context::new().with_remote_span_context(spans.proxy.span_context().clone());
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

impl Spans {
    /// Returns the names of the trace and of the server's span.
    #[must_use]
    pub fn ids(&self) -> Option<TraceIds> {
        TraceIds::within(self.server.span_context())
    }

    fn time(&self, at: Instant) -> SystemTime {
        self.arrived_at + at.saturating_duration_since(self.arrival)
    }

    /// It has a place at the upstream, or will get none.
    fn admitted(&mut self, now: SystemTime) {
        if let Some(mut wait) = self.wait.take() {
            wait.end_with_timestamp(now);
        }
    }

    /// The response has ended.
    pub fn end(mut self, end: &End) {
        let at = self.time(end.at);
        self.admitted(at);
        let upstream_at = self.time(end.upstream_at);
        if let Some(mut client) = self.client.take() {
            set_status(&mut client, end.upstream_status, 400);
            client.end_with_timestamp(upstream_at);
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

/// Spans wait for their export by the thousand.
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
    fn names_of_a_trace_are_those_of_the_header_and_a_broken_one_has_none() {
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
}
