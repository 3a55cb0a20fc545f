//! Weir's metrics of functions (contracts §4), exported on port 9476.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use policy::Span;
use policy::routing::{EjectReason, RouteReason};
use policy::slo::MissReason;
use prometheus::proto::MetricFamily;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};
use proxy::attainment::{Attainment, Judgement};
use proxy::exchange::{Recorder, RequestSummary};
use proxy::outcome::Outcome;
use proxy::process_metrics::ProcessMetrics;

use crate::autoscaler::Reports;
use crate::source::SourceFailures;
use crate::view::Revision;

/// Bucket bounds of durations in seconds: a GPU function may take minutes, and a cold start as long.
const DURATION_BOUNDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
const REVISION_LABELS: [&str; 3] = ["namespace", "function", "revision"];

/// The reason why a request was passed to Knative's own activator unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassReason {
    /// The first view of the cluster is not complete yet.
    ViewIncomplete,
    /// The revision is not in the view.
    UnknownRevision,
    /// The revision has no annotation of Weir.
    NotOptedIn,
    /// The request names a tag, and its revision's function has other revisions: the request must stay with the tagged
    /// one.
    Tagged,
    /// This program is disabled by `WEIR_DISABLED`.
    Disabled,
}

impl PassReason {
    const ALL: [Self; 5] = [
        Self::ViewIncomplete,
        Self::UnknownRevision,
        Self::NotOptedIn,
        Self::Tagged,
        Self::Disabled,
    ];

    /// Returns the error text for a client where there is no other activator to pass the request to.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::ViewIncomplete => "the view of the cluster is not complete yet",
            Self::UnknownRevision => "revision not found",
            Self::NotOptedIn => "the revision has no annotation of Weir",
            Self::Tagged => "a tagged request stays with its revision, whose function has others",
            Self::Disabled => "WEIR_DISABLED is set",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ViewIncomplete => "view-incomplete",
            Self::UnknownRevision => "unknown-revision",
            Self::NotOptedIn => "not-opted-in",
            Self::Tagged => "tagged",
            Self::Disabled => "disabled",
        }
    }
}

/// All metrics of the process.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    in_time: IntCounterVec,
    missed: IntCounterVec,
    hold: HistogramVec,
    cold_start: HistogramVec,
    waiting: IntGaugeVec,
    instances: IntGaugeVec,
    decisions: IntCounterVec,
    ejections: IntCounterVec,
    objective: GaugeVec,
    objective_ratio: GaugeVec,
    passed: [IntCounter; PassReason::ALL.len()],
    reports: IntCounterVec,
    view_failures: IntCounterVec,
    certificate_failures: IntCounter,
    dropped_lines: IntCounter,
    revisions: IntGauge,
    process: ProcessMetrics,
}

/// The counters of one revision's requests.
#[derive(Debug)]
pub(crate) struct RevisionMetrics {
    requests: [IntCounter; Outcome::ALL.len()],
    objective: Option<Attainment>,
    hold: Histogram,
    cold_start: Histogram,
}

/// The process's figures at the time of a scrape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessFigures<'a> {
    /// Number of revisions served by this process.
    pub(crate) revisions: usize,
    /// Counts of reports to the autoscaler.
    pub(crate) reports: &'a Reports,
    /// Counts of failures at the source of views.
    pub(crate) failed: &'a SourceFailures,
    /// Number of changed certificates and authorities that could not be loaded.
    pub(crate) certificate_failures: u64,
}

/// A function's figures at the time of a scrape.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionFigures<'a> {
    /// The labels `namespace` and `function`.
    pub(crate) labels: [&'a str; 2],
    /// Number of waiting requests.
    pub(crate) waiting: usize,
    /// Numbers of instances that serve, are ejected, and have not answered yet.
    pub(crate) instances: [usize; 3],
    /// Numbers of bound requests since the last scrape, by [`RouteReason`].
    pub(crate) decisions: [u64; RouteReason::ALL.len()],
    /// Numbers of ejections since the last scrape, by [`EjectReason`].
    pub(crate) ejections: [u64; EjectReason::ALL.len()],
}

impl Metrics {
    /// Returns the metrics, all of them zero.
    ///
    /// # Errors
    ///
    /// Never fails in practice: all names are constants.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            let vec = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let histogram = |name: &str, help: &str| {
            let opts = HistogramOpts::new(name, help).buckets(DURATION_BOUNDS.to_vec());
            let vec = HistogramVec::new(opts, &REVISION_LABELS)?;
            registry.register(Box::new(vec.clone()))?;
            Ok::<_, prometheus::Error>(vec)
        };
        let single = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let function = ["namespace", "function"];
        let with = |label| [function[0], function[1], label];
        let passed = counter(
            "weir_passed_through_total",
            "Requests passed unchanged to Knative's own activator, by reason.",
            &["reason"],
        )?;
        let process = ProcessMetrics::register(&registry)?;
        let revisions = IntGauge::new("weir_revisions", "Revisions that this process serves.")?;
        registry.register(Box::new(revisions.clone()))?;
        let objective = GaugeVec::new(
            Opts::new(
                "weir_slo_objective_seconds",
                "The latency objective of weir.dev/slo.",
            ),
            &REVISION_LABELS,
        )?;
        registry.register(Box::new(objective.clone()))?;
        let objective_ratio = GaugeVec::new(
            Opts::new(
                "weir_slo_objective_ratio",
                "The share of requests to be answered within the objective.",
            ),
            &REVISION_LABELS,
        )?;
        registry.register(Box::new(objective_ratio.clone()))?;
        Ok(Self {
            requests: counter(
                "weir_function_requests_total",
                "Requests that have ended, by outcome.",
                &[
                    REVISION_LABELS[0],
                    REVISION_LABELS[1],
                    REVISION_LABELS[2],
                    "outcome",
                ],
            )?,
            in_time: counter(
                "weir_function_requests_in_time_total",
                "Requests answered without a server error within the objective.",
                &REVISION_LABELS,
            )?,
            missed: counter(
                "weir_function_requests_missed_total",
                "Requests that missed the objective, by reason.",
                &[
                    REVISION_LABELS[0],
                    REVISION_LABELS[1],
                    REVISION_LABELS[2],
                    "reason",
                ],
            )?,
            hold: histogram(
                "weir_function_hold_seconds",
                "Time from arrival to the choice of an instance, of requests that got one.",
            )?,
            cold_start: histogram(
                "weir_cold_start_seconds",
                "Time from arrival to the choice of an instance, of requests that arrived while no instance served.",
            )?,
            waiting: gauge(
                "weir_function_waiting",
                "Requests that wait for an instance.",
                &function,
            )?,
            instances: gauge("weir_instances", "Instances, by state.", &with("state"))?,
            decisions: counter(
                "weir_route_decisions_total",
                "Requests assigned to an instance, by reason.",
                &with("reason"),
            )?,
            ejections: counter(
                "weir_ejections_total",
                "Instances ejected for a while, by reason.",
                &with("reason"),
            )?,
            objective,
            objective_ratio,
            passed: PassReason::ALL.map(|reason| passed.with_label_values(&[reason.name()])),
            view_failures: counter(
                "weir_view_failures_total",
                "Failures that left the view of the cluster unchanged: an unreachable source, or an unusable object.",
                &["reason"],
            )?,
            reports: counter(
                "weir_autoscaler_reports_total",
                "Reports to the autoscaler, by outcome.",
                &["outcome"],
            )?,
            certificate_failures: single(
                "weir_certificate_reload_failures_total",
                "Changed certificates and authorities that could not be used.",
            )?,
            dropped_lines: single(
                "weir_log_lines_dropped_total",
                "Log lines dropped because standard output did not accept them in time.",
            )?,
            revisions,
            process,
            registry,
        })
    }

    /// Returns the counters of a revision, which are exported from now on. They start at 0, or continue if the revision
    /// has been exported with the same labels.
    #[must_use]
    pub(crate) fn revision(&self, revision: &Revision) -> Arc<RevisionMetrics> {
        let name = &revision.name;
        let labels = [&*name.namespace, revision.label(), &*name.name];
        let [namespace, function, own] = labels;
        let slo = revision.settings.slo;
        if let Some(slo) = slo {
            self.objective
                .with_label_values(&labels)
                .set(slo.as_secs_f64());
            self.objective_ratio
                .with_label_values(&labels)
                .set(revision.settings.slo_percentile / 100.0);
        }
        Arc::new(RevisionMetrics {
            requests: Outcome::ALL.map(|outcome| {
                self.requests
                    .with_label_values(&[namespace, function, own, outcome.name()])
            }),
            objective: slo.map(|slo| {
                let revision = format!("{}/{}", name.namespace, name.name);
                let in_time = self.in_time.with_label_values(&labels);
                Attainment::new(slo.into(), revision, in_time, |reason| {
                    let labels = [namespace, function, own, reason.name()];
                    self.missed.with_label_values(&labels)
                })
            }),
            hold: self.hold.with_label_values(&labels),
            cold_start: self.cold_start.with_label_values(&labels),
        })
    }

    /// Removes the series of a revision that was deleted.
    pub(crate) fn forget(&self, revision: &Revision) {
        let name = &revision.name;
        let labels = [&*name.namespace, revision.label(), &*name.name];
        let [namespace, function, own] = labels;
        for outcome in Outcome::ALL {
            // A series that does not exist is no error.
            let _removed =
                self.requests
                    .remove_label_values(&[namespace, function, own, outcome.name()]);
        }
        for reason in MissReason::ALL {
            let labels = [namespace, function, own, reason.name()];
            let _removed = self.missed.remove_label_values(&labels);
        }
        let _removed = self.in_time.remove_label_values(&labels);
        let _removed = self.hold.remove_label_values(&labels);
        let _removed = self.cold_start.remove_label_values(&labels);
        let _removed = self.objective.remove_label_values(&labels);
        let _removed = self.objective_ratio.remove_label_values(&labels);
    }

    /// Counts a request that is passed to Knative's own activator.
    pub(crate) fn pass(&self, reason: PassReason) {
        self.passed[reason as usize].inc();
    }

    /// Returns all metric families, with the current figures of functions. `functions` calls its argument with the
    /// figures of each function.
    pub(crate) fn gather(
        &self,
        functions: impl FnOnce(&mut dyn FnMut(FunctionFigures<'_>)),
        process: &ProcessFigures<'_>,
    ) -> Vec<MetricFamily> {
        // Series of deleted functions are dropped.
        self.waiting.reset();
        self.instances.reset();
        functions(&mut |figures| {
            let [namespace, function] = figures.labels;
            let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
            self.waiting
                .with_label_values(&[namespace, function])
                .add(signed(figures.waiting));
            for (state, count) in ["ready", "ejected", "probing"]
                .iter()
                .zip(figures.instances)
            {
                self.instances
                    .with_label_values(&[namespace, function, *state])
                    .add(signed(count));
            }
            for (reason, count) in RouteReason::ALL.iter().zip(figures.decisions) {
                let labels = [namespace, function, reason.name()];
                self.decisions.with_label_values(&labels).inc_by(count);
            }
            for (reason, count) in EjectReason::ALL.iter().zip(figures.ejections) {
                let labels = [namespace, function, reason.name()];
                self.ejections.with_label_values(&labels).inc_by(count);
            }
        });
        self.revisions
            .set(i64::try_from(process.revisions).unwrap_or(i64::MAX));
        for (outcome, count) in [
            ("sent", &process.reports.sent),
            ("dropped", &process.reports.dropped),
            ("failed", &process.reports.failures),
        ] {
            let counter = self.reports.with_label_values(&[outcome]);
            raise(&counter, count.load(Ordering::Relaxed));
        }
        for (reason, count) in [
            ("unreachable", &process.failed.unreachable),
            ("unusable", &process.failed.unusable),
        ] {
            let counter = self.view_failures.with_label_values(&[reason]);
            raise(&counter, count.load(Ordering::Relaxed));
        }
        raise(&self.certificate_failures, process.certificate_failures);
        raise(&self.dropped_lines, proxy::lines::stdout().dropped());
        self.process.refresh();
        self.registry.gather()
    }
}

fn raise(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

impl RevisionMetrics {
    /// Records the time for which a request was held until it got an instance. `is_cold`: no instance served when it
    /// arrived.
    pub(crate) fn hold(&self, held: Span, is_cold: bool) {
        self.hold.observe(held.as_secs_f64());
        if is_cold {
            self.cold_start.observe(held.as_secs_f64());
        }
    }
}

/// The numbers of requests that are judged by an objective.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JudgedCounts {
    /// Number of judged requests.
    pub(crate) all: u64,
    /// Number of requests answered in time.
    pub(crate) in_time: u64,
}

impl RevisionMetrics {
    /// Returns the numbers of requests judged by the objective; zero without an objective.
    pub(crate) fn judged(&self) -> JudgedCounts {
        let Some(own) = &self.objective else {
            return JudgedCounts::default();
        };
        let in_time = own.in_time();
        JudgedCounts {
            all: in_time + own.missed(),
            in_time,
        }
    }
}

impl Recorder for RevisionMetrics {
    fn record(&self, ended: &RequestSummary) -> Option<Judgement> {
        self.requests[ended.outcome as usize].inc();
        self.objective.as_ref().map(|own| own.record(ended))
    }
}
