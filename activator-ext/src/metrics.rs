//! Weir's metrics of functions (design 4.4), served on 9476.

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

/// Bounds of durations in seconds: a GPU function may take minutes, and a cold start as long.
const DURATION_BOUNDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];
const REVISION_LABELS: [&str; 3] = ["namespace", "function", "revision"];

/// Why a request went to Knative's own activator unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassReason {
    /// What there is in the cluster is not known yet.
    ViewIncomplete,
    /// The revision is not known.
    UnknownRevision,
    /// The revision has no annotation of Weir.
    NotOptedIn,
    /// The request names a tag, and its revision's function has others: it must stay with the tagged one.
    Tagged,
    /// All of it is switched off.
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

    /// Returns why the request is not served here, where there is no other activator to which it could go.
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

/// Counts the requests of one revision.
#[derive(Debug)]
pub(crate) struct RevisionMetrics {
    requests: [IntCounter; Outcome::ALL.len()],
    objective: Option<Attainment>,
    hold: Histogram,
    cold_start: Histogram,
}

/// The process's figures as they stand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessFigures<'a> {
    /// Revisions that are served here.
    pub(crate) revisions: usize,
    /// What became of reports.
    pub(crate) reports: &'a Reports,
    /// What went wrong at the view's source.
    pub(crate) failed: &'a SourceFailures,
    /// Changed certificates and authorities that could not be used.
    pub(crate) certificate_failures: u64,
}

/// A function's figures as they stand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionFigures<'a> {
    /// The labels `namespace` and `function`.
    pub(crate) labels: [&'a str; 2],
    /// Requests that wait.
    pub(crate) waiting: usize,
    /// Instances that serve, are ejected, and have yet to answer.
    pub(crate) instances: [usize; 3],
    /// By [`RouteReason`].
    pub(crate) decisions: [u64; RouteReason::ALL.len()],
    /// By [`EjectReason`].
    pub(crate) ejections: [u64; EjectReason::ALL.len()],
}

impl Metrics {
    /// No request has come.
    ///
    /// # Errors
    /// None: all names are those of constants.
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
            "Requests that went to Knative's own activator unchanged, by why.",
            &["reason"],
        )?;
        let process = ProcessMetrics::register(&registry)?;
        let revisions = IntGauge::new("weir_revisions", "Revisions that are served here.")?;
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
                "The part of requests to be answered within the objective.",
            ),
            &REVISION_LABELS,
        )?;
        registry.register(Box::new(objective_ratio.clone()))?;
        Ok(Self {
            requests: counter(
                "weir_function_requests_total",
                "Requests that have ended, by how.",
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
                "Requests that missed the objective, by why.",
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
                "The same of requests that came while no instance served.",
            )?,
            waiting: gauge(
                "weir_function_waiting",
                "Requests that wait for an instance.",
                &function,
            )?,
            instances: gauge(
                "weir_instances",
                "Instances, by whether they serve.",
                &with("state"),
            )?,
            decisions: counter(
                "weir_route_decisions_total",
                "Requests that got an instance, by why it was their turn.",
                &with("reason"),
            )?,
            ejections: counter(
                "weir_ejections_total",
                "Instances that got no more requests for a while, by why.",
                &with("reason"),
            )?,
            objective,
            objective_ratio,
            passed: PassReason::ALL.map(|reason| passed.with_label_values(&[reason.name()])),
            view_failures: counter(
                "weir_view_failures_total",
                "What kept the view of the cluster as it was: a source that could not be read, an object that cannot be used.",
                &["reason"],
            )?,
            reports: counter(
                "weir_autoscaler_reports_total",
                "Reports to the autoscaler, by what became of them.",
                &["outcome"],
            )?,
            certificate_failures: single(
                "weir_certificate_reload_failures_total",
                "Changed certificates and authorities that could not be used.",
            )?,
            dropped_lines: single(
                "weir_log_lines_dropped_total",
                "Lines that standard output did not take in time.",
            )?,
            revisions,
            process,
            registry,
        })
    }

    /// Returns the counters of a revision, which are exported from now on, at 0. Those of a revision that is exported already under
    /// the same labels go on.
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

    /// A revision is gone, and with it its series.
    pub(crate) fn forget(&self, revision: &Revision) {
        let name = &revision.name;
        let labels = [&*name.namespace, revision.label(), &*name.name];
        let [namespace, function, own] = labels;
        for outcome in Outcome::ALL {
            // One that is not there need not be removed.
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

    /// A request goes to Knative's own activator.
    pub(crate) fn pass(&self, reason: PassReason) {
        self.passed[reason as usize].inc();
    }

    /// All families, with what is read off functions now.
    /// `functions` hands the figures of each function to what it is given.
    pub(crate) fn gather(
        &self,
        functions: impl FnOnce(&mut dyn FnMut(FunctionFigures<'_>)),
        process: &ProcessFigures<'_>,
    ) -> Vec<MetricFamily> {
        // A function that is gone has no figures.
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
    /// A request got an instance after it was held for so long. `is_cold`: none served when it came.
    pub(crate) fn hold(&self, held: Span, is_cold: bool) {
        self.hold.observe(held.as_secs_f64());
        if is_cold {
            self.cold_start.observe(held.as_secs_f64());
        }
    }
}

/// Requests that count for an objective.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Judged {
    /// All of them.
    pub(crate) all: u64,
    /// Those that were answered in time.
    pub(crate) in_time: u64,
}

impl RevisionMetrics {
    /// Returns how many requests have counted for the objective; none without one.
    pub(crate) fn judged(&self) -> Judged {
        let Some(own) = &self.objective else {
            return Judged::default();
        };
        let in_time = own.in_time();
        Judged {
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
