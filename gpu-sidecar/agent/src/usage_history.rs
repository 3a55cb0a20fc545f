//! Usage of pods in the last ten seconds and in total, sampled from the service's figures each second.
//!
//! Totals are summed over all pods with the same labels, removed ones included, so that a counter never decreases when a pod
//! ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::node::Node;
use crate::slot_history::{Busy, SlotHistory};
use crate::state::{Figures, Pod, PodCounters, PodFigures, ServiceHandle, SlotKey};
use crate::stop::Stop;

/// Interval of the samples.
const SAMPLE_SPAN: Duration = Duration::from_secs(1);
/// Number of samples kept per pod: those of ten seconds.
const SAMPLES: usize = 11;
/// Maximum number of label sets of removed pods; beyond it, the set removed first is dropped.
const GONE_MAX: usize = 2_048;

/// Labels which distinguish pods in metrics.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels {
    pub(crate) namespace: String,
    pub(crate) function: String,
    pub(crate) revision: String,
    pub(crate) variant: &'static str,
    /// Name of the pod's slot.
    pub(crate) slot: String,
    /// UUID of the GPU of the slot.
    pub(crate) gpu: String,
    /// Name of the pod, where metrics are per pod and the pod is present; `None`: all pods with the same other labels.
    pub(crate) pod: Option<String>,
}

impl Labels {
    /// Returns these labels without the pod's name.
    pub(crate) fn without_pod(&self) -> Self {
        Self {
            pod: None,
            ..self.clone()
        }
    }
}

/// Shares of the last ten seconds, or of the time since the pod was added.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(crate) struct Shares {
    /// Length of the period, in seconds.
    pub(crate) seconds: f64,
    /// Share of wall time in which it had demand; at most its limit.
    pub(crate) asked: f64,
    /// Share of wall time in which it held a token.
    pub(crate) given: f64,
    /// Share of wall time in which at least one of its kernels ran.
    pub(crate) used: f64,
    /// Average number of SMs used.
    pub(crate) sms: f64,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    at_ns: u64,
    asked_ns: u64,
    given_ns: u64,
    used_ns: u64,
    used_sm_ns: u64,
}

/// Labels, latest counters and samples of a pod that is present.
#[derive(Debug)]
struct PodRecord {
    labels: Labels,
    counters: PodCounters,
    limit_ppm: u32,
    samples: VecDeque<Sample>,
}

#[derive(Debug, Default)]
struct State {
    /// Present pods by serial number.
    records: BTreeMap<u64, PodRecord>,
    /// Sums of removed pods by their labels, without the pod's name.
    gone: BTreeMap<Labels, PodCounters>,
    /// Labels in `gone`, those added first at the front.
    gone_order: VecDeque<Labels>,
    slots: SlotHistory,
}

/// Samples and totals of all pods, and the history of all slots.
#[derive(Debug, Default)]
pub(crate) struct UsageHistory {
    state: Mutex<State>,
    /// Whether metrics are per pod (`metrics.pods`).
    is_by_pod: bool,
}

fn ratio(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Returns the shares between the oldest and the newest sample.
fn share(samples: &VecDeque<Sample>, limit_ppm: u32) -> Shares {
    let (Some(first), Some(last)) = (samples.front(), samples.back()) else {
        return Shares::default();
    };
    let span = last.at_ns.saturating_sub(first.at_ns);
    let of = |get: fn(&Sample) -> u64| ratio(get(last).saturating_sub(get(first)), span);
    let limit = f64::from(limit_ppm) / 1e6;
    Shares {
        seconds: ratio(span, 1_000_000_000),
        asked: of(|own| own.asked_ns).min(limit),
        given: of(|own| own.given_ns),
        used: of(|own| own.used_ns),
        sms: of(|own| own.used_sm_ns),
    }
}

fn labels(node: &Node, pod: &Pod, is_by_pod: bool) -> Labels {
    let node = node.lock();
    let slot = node.slot(pod.slot).map(|own| Arc::clone(&own.slot));
    Labels {
        namespace: pod.namespace.clone(),
        function: pod.function.clone(),
        revision: pod.revision.clone(),
        variant: if pod.settings.is_pipeline {
            "pipeline"
        } else {
            "monolith"
        },
        slot: slot
            .as_ref()
            .map(|slot| slot.name.clone())
            .unwrap_or_default(),
        gpu: slot
            .map(|slot| slot.gpu_uuid().to_owned())
            .unwrap_or_default(),
        pod: is_by_pod.then(|| pod.pod_name.as_ref().unwrap_or(&pod.name).clone()),
    }
}

/// Adds the counters of one pod to a sum.
pub(crate) fn add(sum: &mut PodCounters, own: &PodCounters) {
    for (sum, own) in [
        (&mut sum.used_wall_ns, own.used_wall_ns),
        (&mut sum.used_sm_ns, own.used_sm_ns),
        (&mut sum.given_ns, own.given_ns),
        (&mut sum.asked_ns, own.asked_ns),
        (&mut sum.grants, own.grants),
        (&mut sum.overruns, own.overruns),
        (&mut sum.revoked_idle, own.revoked_idle),
        (&mut sum.revoked_unresponsive, own.revoked_unresponsive),
        (&mut sum.held_idle_ns, own.held_idle_ns),
        (&mut sum.charged_ns, own.charged_ns),
        (&mut sum.overrun_ns, own.overrun_ns),
        (&mut sum.launches, own.launches),
        (&mut sum.unknown_symbols, own.unknown_symbols),
        (&mut sum.ungated_ns, own.ungated_ns),
        (&mut sum.refused_allocations, own.refused_allocations),
        (&mut sum.bound_exceeded, own.bound_exceeded),
    ] {
        *sum = sum.saturating_add(own);
    }
    sum.waits.add(&own.waits);
    sum.moves.add(&own.moves);
    for (reason, count) in &own.refused_connections {
        let own = sum.refused_connections.entry(reason).or_default();
        *own = own.saturating_add(*count);
    }
    for (reason, count) in &own.faults {
        let own = sum.faults.entry(reason).or_default();
        *own = own.saturating_add(*count);
    }
}

impl UsageHistory {
    /// Creates an empty history. `is_by_pod`: present pods have the label `pod` (`metrics.pods`).
    pub(crate) fn new(is_by_pod: bool) -> Self {
        Self {
            is_by_pod,
            ..Self::default()
        }
    }

    /// Returns whether present pods have the label `pod`.
    pub(crate) const fn is_by_pod(&self) -> bool {
        self.is_by_pod
    }

    /// Samples figures each second until the agent ends.
    pub(crate) fn run(&self, stop: &Stop, service: &ServiceHandle, node: &Node) {
        while !stop.wait(SAMPLE_SPAN) {
            self.take(node, &service.refresh(), true);
        }
    }

    /// Adds figures to the totals, and with `is_sample` also to the samples of the last ten seconds.
    pub(crate) fn take(&self, node: &Node, figures: &Figures, is_sample: bool) {
        // The service has not published figures yet.
        if figures.at_ns == 0 {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if is_sample {
            state.slots.take(figures);
        }
        for own in &figures.pods {
            let record = state
                .records
                .entry(own.pod.serial)
                .or_insert_with(|| PodRecord {
                    labels: labels(node, &own.pod, self.is_by_pod),
                    counters: PodCounters::default(),
                    limit_ppm: 0,
                    samples: VecDeque::new(),
                });
            record.counters = own.counters.clone();
            record.limit_ppm = own.pod.settings.quota_limit_ppm;
            let is_later = record
                .samples
                .back()
                .is_none_or(|last| last.at_ns < figures.at_ns);
            if is_later && (is_sample || record.samples.is_empty()) {
                record.samples.push_back(sample(figures.at_ns, own));
                while record.samples.len() > SAMPLES {
                    record.samples.pop_front();
                }
            }
        }
        let is_gone = |serial: &&u64| figures.pod(**serial).is_none();
        let gone: Vec<_> = state.records.keys().filter(is_gone).copied().collect();
        for serial in gone {
            if let Some(record) = state.records.remove(&serial) {
                state.retire(record);
            }
        }
    }

    /// Returns the shares of a pod in the last ten seconds; all zero for an unknown pod.
    pub(crate) fn shares(&self, serial: u64) -> Shares {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let record = state.records.get(&serial);
        record
            .map(|record| share(&record.samples, record.limit_ppm))
            .unwrap_or_default()
    }

    /// Returns how busy a slot was in the last five minutes, one value per cell.
    pub(crate) fn busy(&self, slot: SlotKey) -> Vec<Busy> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.slots.cells(slot)
    }

    /// Returns the counters summed over all pods with the same labels. Removed pods are included, without their names; of their
    /// label sets only [`GONE_MAX`] are kept, and those added first are dropped.
    pub(crate) fn sums(&self) -> BTreeMap<Labels, PodCounters> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums = state.gone.clone();
        for record in state.records.values() {
            add(
                sums.entry(record.labels.clone()).or_default(),
                &record.counters,
            );
        }
        sums
    }

    /// Returns the labels of a present pod.
    pub(crate) fn labels(&self, serial: u64) -> Option<Labels> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state
            .records
            .get(&serial)
            .map(|record| record.labels.clone())
    }
}

impl State {
    fn retire(&mut self, mut record: PodRecord) {
        // Its counts stay in the sum of the removed pods.
        record.labels.pod = None;
        if !self.gone.contains_key(&record.labels) {
            self.gone_order.push_back(record.labels.clone());
        }
        add(
            self.gone.entry(record.labels).or_default(),
            &record.counters,
        );
        while self.gone_order.len() > GONE_MAX {
            if let Some(oldest) = self.gone_order.pop_front() {
                self.gone.remove(&oldest);
            }
        }
    }
}

fn sample(at_ns: u64, own: &PodFigures) -> Sample {
    Sample {
        at_ns,
        asked_ns: own.counters.asked_ns,
        given_ns: own.counters.given_ns,
        used_ns: own.counters.used_wall_ns,
        used_sm_ns: own.counters.used_sm_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{figures_of, pod, slot};

    fn node() -> Node {
        let node = Node::default();
        let added = node.lock().add(0, |key| slot(key.0));
        assert!(added.is_some());
        node
    }

    #[test]
    fn shares_are_those_of_the_last_ten_seconds() {
        let (node, usage) = (node(), UsageHistory::default());
        let one = pod(0, "a");
        for second in 1..=20_u64 {
            let mut figures = figures_of(second * 1_000_000_000, &[&one]);
            let counters = &mut figures.pods[0].counters;
            // Idle for the first ten seconds, then busy with a half.
            let busy = second.saturating_sub(10) * 1_000_000_000;
            counters.used_wall_ns = busy / 2;
            counters.used_sm_ns = busy * 33;
            counters.asked_ns = busy;
            counters.given_ns = busy * 6 / 10;
            usage.take(&node, &figures, true);
        }
        let shares = usage.shares(one.serial);
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert!(near(shares.seconds, 10.0), "{shares:?}");
        assert!(
            near(shares.used, 0.5) && near(shares.given, 0.6),
            "{shares:?}"
        );
        assert!(near(shares.sms, 33.0), "{shares:?}");
        // Its demand is 100 %, its limit 80 %.
        assert!(near(shares.asked, 0.8), "{shares:?}");
        assert_eq!(usage.shares(99), Shares::default());
    }

    #[test]
    fn totals_include_removed_pods() {
        let (node, usage) = (node(), UsageHistory::default());
        let (one, other) = (pod(0, "a"), pod(1, "a"));
        let mut figures = figures_of(1, &[&one, &other]);
        figures.pods[0].counters.launches = 5;
        figures.pods[1].counters.launches = 7;
        usage.take(&node, &figures, false);
        let launches = || {
            usage
                .sums()
                .values()
                .map(|sum| sum.launches)
                .collect::<Vec<_>>()
        };
        assert_eq!(launches(), [12]);
        let mut figures = figures_of(2, &[&other]);
        figures.pods[0].counters.launches = 8;
        usage.take(&node, &figures, false);
        assert_eq!(launches(), [13]);
        // Figures from before the first publication do not remove pods.
        usage.take(&node, &Figures::none(), false);
        assert_eq!(launches(), [13]);
        usage.take(&node, &figures_of(3, &[]), false);
        assert_eq!(launches(), [13]);
    }

    #[test]
    fn per_pod_totals_of_a_removed_pod_move_to_the_sum_without_pod() {
        let (node, usage) = (node(), UsageHistory::new(true));
        let (one, other) = (pod(0, "a"), pod(1, "a"));
        let mut figures = figures_of(1, &[&one, &other]);
        figures.pods[0].counters.launches = 5;
        figures.pods[1].counters.launches = 7;
        usage.take(&node, &figures, false);
        let launches = || {
            let sums = usage.sums().into_iter();
            sums.map(|(labels, sum)| (labels.pod, sum.launches))
                .collect::<Vec<_>>()
        };
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(launches(), [(named("a-0"), 5), (named("a-1"), 7)]);
        usage.take(&node, &figures_of(2, &[&other]), false);
        assert_eq!(launches(), [(None, 5), (named("a-1"), 0)]);
    }

    #[test]
    fn the_number_of_removed_label_sets_is_bounded() {
        let (node, usage) = (node(), UsageHistory::default());
        for number in 0..u32::try_from(GONE_MAX).unwrap() + 5 {
            let mut own = (*pod(number, "r")).clone();
            own.revision = format!("r-{number}");
            let figures = figures_of(u64::from(number) + 1, &[&Arc::new(own)]);
            usage.take(&node, &figures, false);
        }
        usage.take(&node, &figures_of(u64::MAX, &[]), false);
        assert_eq!(usage.sums().len(), GONE_MAX);
    }
}
