//! Weir's own metrics of a revision that has opted in: counters of the Prometheus registry, served on 9091 whatever
//! `OBSERVABILITY_CONFIG` says; and the two of Knative's instruments that are the queue-proxy's alone.

use std::sync::Arc;

use opentelemetry::metrics::{Histogram, MeterProvider};
use policy::gate::DispatchReason;
use policy::slo::StartMargin;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};
use proxy::attainment::{Attainment, Judgement};
use proxy::exchange::{Recorder, RequestSummary};
use proxy::instruments::DURATION_BOUNDS;
use proxy::outcome::Outcome;
use proxy::process_metrics::ProcessMetrics;

use crate::admission::Admission;
use crate::config::Config;

/// Bounds of Weir's durations in seconds: a GPU function may take minutes.
const WEIR_DURATION_BOUNDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
/// Bounds of the time between a dispatch and the latest start time, in seconds.
const MARGIN_BOUNDS: [f64; 13] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];
/// The scope under which Knative's queue-proxy reports: dashboards select by it.
const SERVING_SCOPE: &str = "knative.dev/serving/pkg/queue";

/// Reports the gate's load as Knative's instrument does.
pub(crate) fn observe_depth(provider: &impl MeterProvider, admission: &Arc<Admission>) {
    let admission = Arc::clone(admission);
    provider
        .meter(SERVING_SCOPE)
        .u64_observable_gauge("kn.serving.queue.depth")
        .with_unit("{request}")
        .with_description("Number of current requests in the queue")
        .with_callback(move |gauge| {
            let (running, waiting) = admission.load();
            gauge.observe(u64::from(running) + waiting as u64, &[]);
        })
        .build();
}

/// Returns Knative's instrument of the time at the user container.
pub(crate) fn invocation_duration(provider: &impl MeterProvider) -> Histogram<f64> {
    provider
        .meter(SERVING_SCOPE)
        .f64_histogram("kn.serving.invocation.duration")
        .with_unit("s")
        .with_description("The duration of task execution")
        .with_boundaries(DURATION_BOUNDS.to_vec())
        .build()
}

/// Weir's own metrics.
#[derive(Debug)]
pub(crate) struct WeirMetrics {
    requests: [IntCounter; Outcome::ALL.len()],
    objective: Option<Attainment>,
    slack: prometheus::Histogram,
    lateness: prometheus::Histogram,
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
    process: ProcessMetrics,
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
            ("variant", options.variant.name()),
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
        let histogram_of = |name, help, bounds: &[f64]| {
            let opts = HistogramOpts::from(opts(name, help)).buckets(bounds.to_vec());
            let histogram = HistogramVec::new(opts, &[])?;
            registry.register(Box::new(histogram.clone()))?;
            histogram.get_metric_with_label_values::<&str>(&[])
        };
        let histogram = |name, help| histogram_of(name, help, &WEIR_DURATION_BOUNDS);
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
        let objective = if let Some(slo) = options.slo {
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
            let missed = vec(
                "weir_requests_missed_total",
                "Requests that missed the objective, by why.",
                "reason",
            )?;
            let revision = format!("{}/{}", config.namespace, config.revision);
            Some(Attainment::new(slo.into(), revision, in_time, |reason| {
                missed.with_label_values(&[reason.name()])
            }))
        } else {
            None
        };
        let process = ProcessMetrics::register(&registry)?;
        let dispatches = vec(
            "weir_dispatches_total",
            "Requests dispatched, by why it was their turn.",
            "reason",
        )?;
        for reason in DispatchReason::ALL {
            dispatches.with_label_values(&[reason.name()]);
        }
        counter(
            "weir_option_problems_total",
            "Options of Weir that cannot be used; the log says which.",
        )?
        .inc_by(options.problems.len() as u64);
        Ok(Self {
            requests: Outcome::ALL.map(|outcome| requests.with_label_values(&[outcome.name()])),
            objective,
            slack: histogram_of(
                "weir_dispatch_slack_seconds",
                "Time from dispatch to the latest start time, of requests dispatched before it.",
                &MARGIN_BOUNDS,
            )?,
            lateness: histogram_of(
                "weir_dispatch_lateness_seconds",
                "Time from the latest start time to dispatch, of requests dispatched after it.",
                &MARGIN_BOUNDS,
            )?,
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
            dispatches,
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
                "Changed certificates and authorities that could not be used.",
            )?,
            dropped_lines: counter(
                "weir_log_lines_dropped_total",
                "Lines that standard output did not take in time.",
            )?,
            process,
            registry,
        })
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
                let counter = self.dispatches.with_label_values(&[reason.name()]);
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
        self.process.refresh();
        self.registry.gather()
    }
}

impl Recorder for WeirMetrics {
    fn record(&self, ended: &RequestSummary) -> Option<Judgement> {
        self.requests[ended.outcome as usize].inc();
        self.response.observe(ended.response.as_secs_f64());
        if let Some((wait, execution)) = ended.dispatched {
            self.wait.observe(wait.as_secs_f64());
            self.execution.observe(execution.as_secs_f64());
        }
        match ended.margin {
            Some(StartMargin::Slack(slack)) => self.slack.observe(slack.as_secs_f64()),
            Some(StartMargin::Lateness(late)) => self.lateness.observe(late.as_secs_f64()),
            None => {}
        }
        self.objective.as_ref().map(|own| own.record(ended))
    }
}
