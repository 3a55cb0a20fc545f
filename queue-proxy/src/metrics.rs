//! What is measured of requests: Knative's instruments, and Weir's own on revisions that have opted in.
//!
//! Knative's are OpenTelemetry instruments with its names, units, buckets and labels, exported as
//! `OBSERVABILITY_CONFIG` says. Weir's are counters of the Prometheus registry, served on 9091 whatever that
//! says.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::metrics::{Histogram, MeterProvider};
use opentelemetry::{InstrumentationScope, KeyValue};
use policy::Span;
use policy::slo::is_in_time;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use crate::admission::Admission;
use crate::config::Config;

/// Bounds of durations in seconds, as OpenTelemetry's HTTP conventions and Knative have them.
const DURATION_BOUNDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
/// Bounds of Weir's durations in seconds: a GPU function may take minutes.
const WEIR_DURATION_BOUNDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
/// Clients choose hosts, with their ports, and tags: so many different ones are told apart, the rest count as
/// [`OTHER`]. More pairs than OpenTelemetry's own limit of 2,000 go to its overflow series.
const VALUES_MAX: usize = 32;
const OTHER: &str = "_OTHER";
/// A longer one is none of a name: DNS allows no more.
const VALUE_BYTES_MAX: usize = 253;
/// Tags that Knative itself gives begin so.
const OWN_TAGS: &str = "kn:";
/// The scopes under which Knative's queue-proxy reports: dashboards select by them.
const SERVING_SCOPE: &str = "knative.dev/serving/pkg/queue";
const HTTP_SCOPE: &str = "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp";

/// How a request ended, for Weir's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered by the user container, whatever it said.
    Answered,
    /// The queue was full.
    Refused,
    /// It was late, and late requests are shed.
    Shed,
    /// A timeout ended it.
    Timeout,
    /// The user container could not be reached, or broke off.
    Failed,
    /// The client left.
    Cancelled,
    /// It could not be read.
    Malformed,
}

impl Outcome {
    const ALL: [Self; 7] = [
        Self::Answered,
        Self::Refused,
        Self::Shed,
        Self::Timeout,
        Self::Failed,
        Self::Cancelled,
        Self::Malformed,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Shed => "shed",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Malformed => "malformed",
        }
    }
}

/// Knative's instruments.
#[derive(Debug)]
pub(crate) struct ServingMetrics {
    server_duration: Histogram<f64>,
    server_request_size: Histogram<u64>,
    server_response_size: Histogram<u64>,
    client_duration: Histogram<f64>,
    client_request_size: Histogram<u64>,
    invocation_duration: Histogram<f64>,
    user_port: u16,
    hosts: Bounded,
    tags: Bounded,
}

/// What Knative's instruments want to know of a request.
#[derive(Debug, Clone)]
pub(crate) struct Measured<'a> {
    pub method: &'a http::Method,
    pub version: http::Version,
    pub host: &'a str,
    pub secure: bool,
    /// The value of `kn.route.tag`.
    pub tag: &'a str,
    pub status: u16,
    pub seconds: f64,
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// The user container's part, if it came to that.
    pub app: Option<MeasuredApp>,
}

/// The user container's part of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MeasuredApp {
    /// From dispatch to the head of the answer.
    pub head_seconds: f64,
    /// The status of its answer; `None`: there was none.
    pub status: Option<u16>,
    /// From dispatch to the end of the response.
    pub seconds: f64,
}

/// A bounded set of values that clients choose.
#[derive(Debug, Default)]
struct Bounded(Mutex<HashSet<Arc<str>>>);

impl Bounded {
    fn intern(&self, value: &str) -> Arc<str> {
        if value.len() > VALUE_BYTES_MAX {
            return OTHER.into();
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.get(value) {
            return Arc::clone(value);
        }
        if known.len() >= VALUES_MAX {
            return OTHER.into();
        }
        let value: Arc<str> = value.into();
        known.insert(Arc::clone(&value));
        value
    }
}

impl ServingMetrics {
    /// The instruments of this process. `admission`: the gate whose load is reported.
    pub(crate) fn new(
        provider: &impl MeterProvider,
        user_port: u16,
        admission: Option<&Arc<Admission>>,
    ) -> Self {
        let meter = provider.meter_with_scope(
            InstrumentationScope::builder(HTTP_SCOPE)
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        );
        let duration = |name, text| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(text)
                .with_boundaries(DURATION_BOUNDS.to_vec())
                .build()
        };
        let size = |name, text| {
            meter
                .u64_histogram(name)
                .with_unit("By")
                .with_description(text)
                .build()
        };
        let serving = provider.meter(SERVING_SCOPE);
        if let Some(admission) = admission {
            let admission = Arc::clone(admission);
            serving
                .u64_observable_gauge("kn.serving.queue.depth")
                .with_unit("{request}")
                .with_description("Number of current requests in the queue")
                .with_callback(move |gauge| {
                    let (running, waiting) = admission.load();
                    gauge.observe(u64::from(running) + waiting as u64, &[]);
                })
                .build();
        }
        Self {
            server_duration: duration(
                "http.server.request.duration",
                "Duration of HTTP server requests.",
            ),
            server_request_size: size(
                "http.server.request.body.size",
                "Size of HTTP server request bodies.",
            ),
            server_response_size: size(
                "http.server.response.body.size",
                "Size of HTTP server response bodies.",
            ),
            client_duration: duration(
                "http.client.request.duration",
                "Duration of HTTP client requests.",
            ),
            client_request_size: size(
                "http.client.request.body.size",
                "Size of HTTP client request bodies.",
            ),
            invocation_duration: serving
                .f64_histogram("kn.serving.invocation.duration")
                .with_unit("s")
                .with_description("The duration of task execution")
                .with_boundaries(DURATION_BOUNDS.to_vec())
                .build(),
            user_port,
            hosts: Bounded::default(),
            tags: Bounded::default(),
        }
    }

    /// A request has ended.
    pub(crate) fn record(&self, measured: &Measured<'_>) {
        let host = self.hosts.intern(measured.host);
        let (host, port) = split_host(&host);
        let tag = match measured.tag {
            "kn:disabled" | "kn:default" | "kn:undefined" => measured.tag.into(),
            // Who makes up another such tag is not to be taken for Knative.
            tag if tag.starts_with(OWN_TAGS) => OTHER.into(),
            tag => self.tags.intern(tag),
        };
        let mut server = vec![
            KeyValue::new("http.request.method", method_name(measured.method)),
            KeyValue::new("http.response.status_code", i64::from(measured.status)),
            KeyValue::new("kn.route.tag", tag),
            KeyValue::new("network.protocol.name", "http"),
            KeyValue::new("network.protocol.version", version_name(measured.version)),
            KeyValue::new("url.scheme", if measured.secure { "https" } else { "http" }),
        ];
        let mut client = measured.app.is_some().then(|| server.clone());
        server.push(KeyValue::new("server.address", host.to_owned()));
        let default_port = if measured.secure { 443 } else { 80 };
        if let Some(port) = port.filter(|&port| port != default_port) {
            server.push(KeyValue::new("server.port", i64::from(port)));
        }
        self.server_duration.record(measured.seconds, &server);
        self.server_request_size
            .record(measured.request_bytes, &server);
        self.server_response_size
            .record(measured.response_bytes, &server);
        if let (Some(client), Some(app)) = (&mut client, measured.app) {
            client[1] = match app.status {
                Some(status) => KeyValue::new("http.response.status_code", i64::from(status)),
                None => KeyValue::new("error.type", OTHER),
            };
            client[5] = KeyValue::new("url.scheme", "http");
            client.push(KeyValue::new("server.address", "127.0.0.1"));
            client.push(KeyValue::new("server.port", i64::from(self.user_port)));
            self.client_duration.record(app.head_seconds, client);
            self.client_request_size
                .record(measured.request_bytes, client);
            let status = KeyValue::new("http.response.status_code", i64::from(measured.status));
            self.invocation_duration.record(app.seconds, &[status]);
        }
    }
}

/// Methods of the conventions' list; clients choose any other.
fn method_name(method: &http::Method) -> &'static str {
    match method.as_str() {
        "CONNECT" => "CONNECT",
        "DELETE" => "DELETE",
        "GET" => "GET",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        "POST" => "POST",
        "PUT" => "PUT",
        "TRACE" => "TRACE",
        _ => OTHER,
    }
}

fn version_name(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "1.0",
        http::Version::HTTP_2 => "2.0",
        _ => "1.1",
    }
}

/// A `Host` in its parts.
fn split_host(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name.trim_matches(['[', ']']), port.parse().ok())
        }
        _ => (host.trim_matches(['[', ']']), None),
    }
}

/// Weir's own metrics.
#[derive(Debug)]
pub(crate) struct WeirMetrics {
    requests: [IntCounter; Outcome::ALL.len()],
    /// With the objective.
    in_time: Option<(IntCounter, Span)>,
    wait: prometheus::Histogram,
    execution: prometheus::Histogram,
    response: prometheus::Histogram,
    running: IntGauge,
    waiting: IntGauge,
    dispatches: IntCounterVec,
    unusable_headers: IntCounter,
    retries: IntCounter,
    through_activator: IntCounter,
    disbelieved_probes: IntCounter,
    certificate_failures: IntCounter,
    dropped_lines: IntCounter,
    registry: Registry,
}

/// What is counted elsewhere, since the start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Totals {
    /// Deadline headers that could not be used.
    pub unusable_headers: u64,
    /// Requests sent to the user container a second time.
    pub retries: u64,
    /// Requests that came through the activator.
    pub through_activator: u64,
    /// `K-Kubelet-Probe` headers from elsewhere than the node.
    pub disbelieved_probes: u64,
    /// Certificates that could not be used when they changed.
    pub certificate_failures: u64,
    /// Lines that standard output did not take in time.
    pub dropped_lines: u64,
}

impl WeirMetrics {
    /// The metrics of a revision that has opted in, in a registry of their own.
    ///
    /// # Errors
    /// A name or label that Prometheus does not allow: the namespace, revision and function are labels.
    pub(crate) fn new(config: &Config) -> Result<Self, prometheus::Error> {
        let options = &config.options;
        let labels = [
            ("namespace", config.namespace.as_str()),
            ("function", config.function()),
            ("revision", &config.revision),
            ("variant", options.variant.as_deref().unwrap_or("monolith")),
        ];
        let registry = Registry::new();
        let opts = |name: &str, help: &str| {
            labels
                .iter()
                .fold(Opts::new(name, help), |opts, (key, value)| {
                    opts.const_label(*key, *value)
                })
        };
        let counter = |name, help| {
            let counter = IntCounter::with_opts(opts(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name, help| {
            let gauge = IntGauge::with_opts(opts(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let value = |name, help, value| {
            let gauge = prometheus::Gauge::with_opts(opts(name, help))?;
            gauge.set(value);
            registry.register(Box::new(gauge))
        };
        let histogram = |name, help| {
            let opts = HistogramOpts::from(opts(name, help)).buckets(WEIR_DURATION_BOUNDS.to_vec());
            let histogram = HistogramVec::new(opts, &[])?;
            registry.register(Box::new(histogram.clone()))?;
            histogram.get_metric_with_label_values::<&str>(&[])
        };
        let vec = |name, help, label| {
            let vec = IntCounterVec::new(opts(name, help), &[label])?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let requests = vec(
            "weir_requests_total",
            "Requests that have ended, by how.",
            "outcome",
        )?;
        let in_time = if let Some(slo) = options.slo {
            value(
                "weir_slo_objective_seconds",
                "The latency objective of weir.dev/slo.",
                slo.as_secs_f64(),
            )?;
            value(
                "weir_slo_objective_ratio",
                "The part of requests to be answered within the objective.",
                options.slo_percentile / 100.0,
            )?;
            let in_time = counter(
                "weir_requests_in_time_total",
                "Requests answered without a server error within the objective.",
            )?;
            Some((in_time, slo.into()))
        } else {
            None
        };
        counter(
            "weir_option_problems_total",
            "Options of Weir that cannot be used; the log says which.",
        )?
        .inc_by(options.problems.len() as u64);
        Ok(Self {
            requests: Outcome::ALL.map(|outcome| requests.with_label_values(&[outcome.name()])),
            in_time,
            wait: histogram(
                "weir_queue_wait_seconds",
                "Time from arrival to dispatch, of requests that were dispatched.",
            )?,
            execution: histogram(
                "weir_execution_seconds",
                "Time from dispatch to the end of the response.",
            )?,
            response: histogram(
                "weir_response_seconds",
                "Time from arrival to the end of the response.",
            )?,
            running: gauge("weir_requests_running", "Requests at the user container.")?,
            waiting: gauge("weir_requests_waiting", "Requests that wait for a place.")?,
            dispatches: vec(
                "weir_dispatches_total",
                "Requests dispatched, by why it was their turn.",
                "reason",
            )?,
            unusable_headers: counter(
                "weir_unusable_deadline_headers_total",
                "Deadline headers that could not be used.",
            )?,
            retries: counter(
                "weir_upstream_retries_total",
                "Requests sent once more on a new connection, since the user container closed theirs without an answer.",
            )?,
            through_activator: counter(
                "weir_requests_through_activator_total",
                "Requests that came through Knative's activator, where they may have waited unseen by this pod.",
            )?,
            disbelieved_probes: counter(
                "weir_disbelieved_kubelet_probes_total",
                "K-Kubelet-Probe headers from elsewhere than the node, which bypass nothing.",
            )?,
            certificate_failures: counter(
                "weir_certificate_reload_failures_total",
                "Changed certificates that could not be used.",
            )?,
            dropped_lines: counter(
                "weir_log_lines_dropped_total",
                "Lines that standard output did not take in time.",
            )?,
            registry,
        })
    }

    /// A request has ended. Times are from its arrival; `dispatched` and `ended` of the user container.
    pub(crate) fn record(
        &self,
        outcome: Outcome,
        status: u16,
        response: std::time::Duration,
        app: Option<(std::time::Duration, std::time::Duration)>,
    ) {
        self.requests[outcome as usize].inc();
        self.response.observe(response.as_secs_f64());
        if let Some((wait, execution)) = app {
            self.wait.observe(wait.as_secs_f64());
            self.execution.observe(execution.as_secs_f64());
        }
        if let Some((in_time, objective)) = &self.in_time
            && outcome == Outcome::Answered
            && is_in_time(*objective, response.into(), status)
        {
            in_time.inc();
        }
    }

    /// All families, with what is read off the gate now.
    pub(crate) fn gather(
        &self,
        admission: Option<&Arc<Admission>>,
        totals: &Totals,
    ) -> Vec<prometheus::proto::MetricFamily> {
        if let Some(admission) = admission {
            let (running, waiting) = admission.load();
            self.running.set(running.into());
            self.waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
            for (reason, count) in admission.dispatches() {
                let counter = self.dispatches.with_label_values(&[reason]);
                counter.inc_by(count.saturating_sub(counter.get()));
            }
        }
        for (counter, total) in [
            (&self.unusable_headers, totals.unusable_headers),
            (&self.retries, totals.retries),
            (&self.through_activator, totals.through_activator),
            (&self.disbelieved_probes, totals.disbelieved_probes),
            (&self.certificate_failures, totals.certificate_failures),
            (&self.dropped_lines, totals.dropped_lines),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        self.registry.gather()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_divided() {
        assert_eq!(split_host("a.example:8012"), ("a.example", Some(8012)));
        assert_eq!(split_host("a.example"), ("a.example", None));
        assert_eq!(split_host("[::1]:80"), ("::1", Some(80)));
        assert_eq!(split_host("[::1]"), ("::1", None));
        assert_eq!(split_host("a:b:c"), ("a:b:c", None));
    }

    #[test]
    fn values_that_clients_choose_are_bounded() {
        let bounded = Bounded::default();
        for n in 0..VALUES_MAX {
            assert_eq!(*bounded.intern(&n.to_string()), *n.to_string());
        }
        assert_eq!(&*bounded.intern("another"), OTHER);
        assert_eq!(&*bounded.intern("3"), "3");
    }

    #[test]
    fn outcomes_stand_where_their_numbers_say() {
        for (at, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, at);
        }
    }
}
