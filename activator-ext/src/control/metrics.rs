//! The metrics of role `control`, exported on port 9476.

use prometheus::proto::MetricFamily;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proxy::process_metrics::ProcessMetrics;

use super::webhook::Outcome;
use crate::view::RevisionName;

/// All metrics of the process.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Registry,
    process: ProcessMetrics,
    attached: IntGaugeVec,
    leader: IntGauge,
    reconciles: IntCounterVec,
    failures: IntCounter,
    webhooks: HistogramVec,
    /// The label `function` of each exported revision.
    labels: Arc<Mutex<HashMap<RevisionName, String>>>,
}

impl Metrics {
    /// Returns the metrics, all of them zero. Fails if a name is invalid or registered twice.
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let metrics = Self {
            process: ProcessMetrics::register(&registry)?,
            registry,
            attached: IntGaugeVec::new(
                Opts::new(
                    "weir_attached",
                    "1: a revision's requests come to activator-ext; 0: they take Knative's own path.",
                ),
                &["namespace", "function", "revision"],
            )?,
            leader: IntGauge::new("weir_control_leader", "1: this process leads.")?,
            reconciles: IntCounterVec::new(
                Opts::new(
                    "weir_control_reconciles_total",
                    "Reconciliations of revisions, by outcome.",
                ),
                &["outcome"],
            )?,
            failures: IntCounter::new(
                "weir_control_watch_failures_total",
                "Failed watches of the Kubernetes API.",
            )?,
            webhooks: HistogramVec::new(
                HistogramOpts::new(
                    "weir_control_webhook_seconds",
                    "Time to answer a webhook request, from its complete body to the response.",
                )
                .buckets(vec![
                    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25,
                ]),
                &["source", "outcome"],
            )?,
            labels: Arc::default(),
        };
        metrics
            .registry
            .register(Box::new(metrics.attached.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.leader.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.reconciles.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.failures.clone()))?;
        metrics
            .registry
            .register(Box::new(metrics.webhooks.clone()))?;
        for source in ["template", "pod"] {
            for outcome in Outcome::ALL {
                metrics
                    .webhooks
                    .with_label_values(&[source, outcome.name()]);
            }
        }
        for outcome in ["done", "failed"] {
            metrics.reconciles.with_label_values(&[outcome]);
        }
        Ok(metrics)
    }

    /// Counts a reconciliation by its outcome.
    pub(crate) fn reconciles(&self, outcome: &str) {
        self.reconciles.with_label_values(&[outcome]).inc();
    }

    /// Counts an answer to the API server and its duration; `source` is `template` or `pod`.
    pub(crate) fn webhook(&self, source: &str, outcome: Outcome, took: Duration) {
        let observed = self.webhooks.with_label_values(&[source, outcome.name()]);
        observed.observe(took.as_secs_f64());
    }

    /// Exports whether an opted-in revision is attached.
    pub(crate) fn attached(&self, name: &RevisionName, label: &str, is_attached: bool) {
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let before = labels.insert(name.clone(), label.to_owned());
        if let Some(before) = before.filter(|before| before != label) {
            self.remove(name, &before);
        }
        let gauge = [&*name.namespace, label, &name.name];
        self.attached
            .with_label_values(&gauge)
            .set(i64::from(is_attached));
    }

    /// Removes the metrics of a revision that was deleted or has opted out.
    pub(crate) fn forget(&self, name: &RevisionName) {
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = labels.remove(name) {
            self.remove(name, &label);
        }
    }

    fn remove(&self, name: &RevisionName, label: &str) {
        // A series that was never exported is no error.
        let _removed = self
            .attached
            .remove_label_values(&[&name.namespace, label, &name.name]);
    }

    /// Returns all metrics with their current values.
    pub(crate) fn gather(&self, is_leader: bool, watch_failures: u64) -> Vec<MetricFamily> {
        self.leader.set(i64::from(is_leader));
        self.failures
            .inc_by(watch_failures.saturating_sub(self.failures.get()));
        self.process.refresh();
        self.registry.gather()
    }
}
