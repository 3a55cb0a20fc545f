//! Weir's own metrics of a revision that has opted in, served to Prometheus on port 9091 regardless of
//! `OBSERVABILITY_CONFIG`, and the two of Knative's instruments that only the queue-proxy has.

use std::sync::Arc;

use opentelemetry::metrics::{Histogram, MeterProvider};
use policy::gate::DispatchReason;
use policy::slo::StartMargin;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};
use protocol::queue::LoadSource;
use proxy::attainment::{Attainment, Judgement};
use proxy::exchange::{Recorder, RequestSummary};
use proxy::instruments::DURATION_BOUNDS;
use proxy::outcome::Outcome;
use proxy::process_metrics::ProcessMetrics;

use crate::admission::Admission;
use crate::config::Config;

/// Bucket bounds of Weir's durations, in seconds. A GPU function may take minutes.
const WEIR_DURATION_BOUNDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
/// Bucket bounds of the time between a dispatch and the latest start time, in seconds.
const MARGIN_BOUNDS: [f64; 13] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0,
];
/// Bucket bounds of the parts of a wait, in seconds: few, since each pod has them.
const WAIT_PART_BOUNDS: [f64; 7] = [0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0];
/// Instrumentation scope of Knative's queue-proxy, by which dashboards select.
const SERVING_SCOPE: &str = "knative.dev/serving/pkg/queue";

/// Registers Knative's instrument of the queue depth: running and waiting requests.
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

/// Creates Knative's instrument of the time at the user container.
pub(crate) fn invocation_duration(provider: &impl MeterProvider) -> Histogram<f64> {
    provider
        .meter(SERVING_SCOPE)
        .f64_histogram("kn.serving.invocation.duration")
        .with_unit("s")
        .with_description("The duration of task execution")
        .with_boundaries(DURATION_BOUNDS.to_vec())
        .build()
}

/// Weir's own metrics of a revision.
#[derive(Debug)]
pub(crate) struct WeirMetrics {
    requests: [IntCounter; Outcome::ALL.len()],
    objective: Option<Attainment>,
    slack: prometheus::Histogram,
    lateness: prometheus::Histogram,
    wait: prometheus::Histogram,
    lease_wait: prometheus::Histogram,
    load_wait: HistogramVec,
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

/// Totals since the start that other modules count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Totals {
    /// Number of unusable deadline headers.
    pub unusable_headers: u64,
    /// Number of requests that were retried at the user container.
    pub retries: u64,
    /// Number of requests that came through the activator.
    pub through_activator: u64,
    /// Number of `K-Kubelet-Probe` headers from peers other than the node.
    pub disbelieved_probes: u64,
    /// Number of failed certificate reloads.
    pub certificate_failures: u64,
    /// Number of log lines dropped because standard output was blocked.
    pub dropped_lines: u64,
}

impl WeirMetrics {
    /// Creates the metrics of a revision, in a registry of their own.
    ///
    /// # Errors
    /// Returns an error if a label is not valid for Prometheus: the namespace, revision and function are labels.
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
            "Requests that have ended, by outcome.",
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
                "The share of requests to be answered within the objective.",
                options.slo_percentile / 100.0,
            )?;
            let in_time = counter(
                "weir_requests_in_time_total",
                "Requests answered without a server error within the objective.",
            )?;
            let missed = vec(
                "weir_requests_missed_total",
                "Requests that missed the objective, by reason.",
                "reason",
            )?;
            let revision = format!("{}/{}", config.namespace, config.revision);
            Some(Attainment::new(slo.into(), revision, in_time, |reason| {
                missed.with_label_values(&[reason.name()])
            }))
        } else {
            None
        };
        let load_wait = HistogramVec::new(
            HistogramOpts::from(opts(
                "weir_load_wait_seconds",
                "Part of the wait in which the pod's model was loaded, by where it came from.",
            ))
            .buckets(WAIT_PART_BOUNDS.to_vec()),
            &["source"],
        )?;
        registry.register(Box::new(load_wait.clone()))?;
        load_wait.with_label_values(&[LoadSource::Host.name()]);
        let process = ProcessMetrics::register(&registry)?;
        let dispatches = vec(
            "weir_dispatches_total",
            "Requests dispatched, by reason.",
            "reason",
        )?;
        for reason in DispatchReason::ALL {
            dispatches.with_label_values(&[reason.name()]);
        }
        counter(
            "weir_option_problems_total",
            "Options of Weir that cannot be used; the log names them.",
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
            lease_wait: histogram_of(
                "weir_lease_wait_seconds",
                "Part of the wait in which the pod had no lease of its GPU and its model was not loaded, of requests that waited for one.",
                &WAIT_PART_BOUNDS,
            )?,
            load_wait,
            execution: histogram(
                "weir_execution_seconds",
                "Time from dispatch to the end of the response.",
            )?,
            response: histogram(
                "weir_response_seconds",
                "Time from arrival to the end of the response.",
            )?,
            running: gauge("weir_requests_running", "Requests at the user container.")?,
            waiting: gauge(
                "weir_requests_waiting",
                "Requests that wait for a slot at the user container.",
            )?,
            dispatches,
            unusable_headers: counter(
                "weir_unusable_deadline_headers_total",
                "Deadline headers that could not be used.",
            )?,
            retries: counter(
                "weir_upstream_retries_total",
                "Requests sent again on a new connection, since the user container closed the first without a response.",
            )?,
            through_activator: counter(
                "weir_requests_through_activator_total",
                "Requests that came through Knative's activator, where they may have waited unseen by this pod.",
            )?,
            disbelieved_probes: counter(
                "weir_disbelieved_kubelet_probes_total",
                "K-Kubelet-Probe headers that did not come from the node; such requests do not bypass the gate.",
            )?,
            certificate_failures: counter(
                "weir_certificate_reload_failures_total",
                "Changed certificates and authorities that could not be used.",
            )?,
            dropped_lines: counter(
                "weir_log_lines_dropped_total",
                "Log lines dropped because standard output did not accept them in time.",
            )?,
            process,
            registry,
        })
    }

    /// Returns the number of judged requests since the process started, and that of those in time.
    pub(crate) fn outcomes(&self) -> (u64, u64) {
        self.objective.as_ref().map_or((0, 0), |own| {
            let in_time = own.in_time();
            (in_time + own.missed(), in_time)
        })
    }

    /// Returns all metric families, after updating those of the gate and of `totals`.
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
        if ended.outcome == Outcome::Forwarded {
            return None;
        }
        self.response.observe(ended.response.as_secs_f64());
        if let Some((wait, execution)) = ended.dispatched {
            self.wait.observe(wait.as_secs_f64());
            self.execution.observe(execution.as_secs_f64());
        }
        if let Some((waited, _)) = ended.lease_wait.as_ref().zip(ended.dispatched) {
            self.lease_wait.observe(waited.parts().0.as_secs_f64());
            if let Some((_, load, source)) = waited.load {
                let of_source = self.load_wait.with_label_values(&[source]);
                of_source.observe(load.as_secs_f64());
            }
        }
        match ended.margin {
            Some(StartMargin::Slack(slack)) => self.slack.observe(slack.as_secs_f64()),
            Some(StartMargin::Lateness(late)) => self.lateness.observe(late.as_secs_f64()),
            None => {}
        }
        self.objective.as_ref().map(|own| own.record(ended))
    }
}
