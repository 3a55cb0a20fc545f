//! What pods got in the last ten seconds, and what they got in all: from figures that are taken each second.
//!
//! Metrics count over all pods of a revision, those that are gone included, so that a counter never falls when a pod ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;

use crate::node::Node;
use crate::slot_history::{Busy, SlotHistory};
use crate::state::{Figures, Pod, PodCounters, PodFigures, ServiceHandle, SlotKey};
use crate::stop::Stop;

/// How often figures are taken.
const SAMPLE_SPAN: Duration = Duration::from_secs(1);
/// Samples that are kept of a pod: those of ten seconds.
const SAMPLES: usize = 11;
/// Sets of labels whose pods are gone, at most; of more, the one that has been gone for longest is forgotten.
const GONE_MAX: usize = 2_048;

/// By what metrics tell pods apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels {
    pub(crate) namespace: String,
    pub(crate) function: String,
    pub(crate) revision: String,
    pub(crate) variant: &'static str,
    /// The slot's name.
    pub(crate) slot: String,
    /// The UUID of its GPU.
    pub(crate) gpu: String,
    /// The pod's name, where metrics are by pod and it is there; `None`: all pods that share the other labels.
    pub(crate) pod: Option<String>,
}

impl Labels {
    /// Returns the labels of all pods that share these.
    pub(crate) fn without_pod(&self) -> Self {
        Self {
            pod: None,
            ..self.clone()
        }
    }
}

/// Shares of the last ten seconds, or of the time since the pod came.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(crate) struct Shares {
    /// Over how many seconds.
    pub(crate) seconds: f64,
    /// Of wall time, in which it wanted to compute; at most its limit.
    pub(crate) asked: f64,
    /// Of wall time, in which it had a token.
    pub(crate) given: f64,
    /// Of wall time, in which a kernel of it ran.
    pub(crate) used: f64,
    /// SMs that it used on average.
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

#[derive(Debug)]
struct Known {
    labels: Labels,
    counters: PodCounters,
    limit_ppm: u32,
    samples: VecDeque<Sample>,
}

#[derive(Debug, Default)]
struct State {
    known: BTreeMap<u64, Known>,
    gone: BTreeMap<Labels, PodCounters>,
    gone_order: VecDeque<Labels>,
    slots: SlotHistory,
}

/// All pods' samples and sums.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    state: Mutex<State>,
    /// Metrics are by pod.
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

/// A difference of two samples, as a share.
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

/// Adds one pod's counters to those of others.
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
    for (reason, count) in &own.refused_connections {
        let own = sum.refused_connections.entry(reason).or_default();
        *own = own.saturating_add(*count);
    }
}

impl Recent {
    /// Nothing is known. `is_by_pod`: pods that are there have labels of their own (`metrics.pods`).
    pub(crate) fn new(is_by_pod: bool) -> Self {
        Self {
            is_by_pod,
            ..Self::default()
        }
    }

    /// Whether pods that are there have labels of their own.
    pub(crate) const fn is_by_pod(&self) -> bool {
        self.is_by_pod
    }

    /// Takes figures each second until the agent ends.
    pub(crate) fn run(&self, stop: &Stop, service: &ServiceHandle, node: &Node) {
        while !stop.wait(SAMPLE_SPAN) {
            self.take(node, &service.refresh(), true);
        }
    }

    /// Takes figures: as a sample each second, or only into the sums.
    pub(crate) fn take(&self, node: &Node, figures: &Figures, is_sample: bool) {
        // The service has not published any.
        if figures.at_ns == 0 {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if is_sample {
            state.slots.take(figures);
        }
        for own in &figures.pods {
            let known = state.known.entry(own.pod.serial).or_insert_with(|| Known {
                labels: labels(node, &own.pod, self.is_by_pod),
                counters: PodCounters::default(),
                limit_ppm: 0,
                samples: VecDeque::new(),
            });
            known.counters = own.counters.clone();
            known.limit_ppm = own.pod.settings.quota_limit_ppm;
            let is_later = known
                .samples
                .back()
                .is_none_or(|last| last.at_ns < figures.at_ns);
            if is_later && (is_sample || known.samples.is_empty()) {
                known.samples.push_back(sample(figures.at_ns, own));
                while known.samples.len() > SAMPLES {
                    known.samples.pop_front();
                }
            }
        }
        let is_gone = |serial: &&u64| figures.pod(**serial).is_none();
        let gone: Vec<_> = state.known.keys().filter(is_gone).copied().collect();
        for serial in gone {
            if let Some(known) = state.known.remove(&serial) {
                state.retire(known);
            }
        }
    }

    /// What a pod got of late.
    pub(crate) fn shares(&self, serial: u64) -> Shares {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let known = state.known.get(&serial);
        known
            .map(|known| share(&known.samples, known.limit_ppm))
            .unwrap_or_default()
    }

    /// Returns how busy a slot was in the last five minutes.
    pub(crate) fn busy(&self, slot: SlotKey) -> Vec<Busy> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.slots.cells(slot)
    }

    /// Returns what pods have got in all by their labels, those that are gone included.
    pub(crate) fn sums(&self) -> BTreeMap<Labels, PodCounters> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sums = state.gone.clone();
        for known in state.known.values() {
            add(
                sums.entry(known.labels.clone()).or_default(),
                &known.counters,
            );
        }
        sums
    }

    /// The labels of a pod.
    pub(crate) fn labels(&self, serial: u64) -> Option<Labels> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.known.get(&serial).map(|known| known.labels.clone())
    }
}

impl State {
    fn retire(&mut self, mut known: Known) {
        // What it counted goes on in the sum of all that are gone.
        known.labels.pod = None;
        if !self.gone.contains_key(&known.labels) {
            self.gone_order.push_back(known.labels.clone());
        }
        add(self.gone.entry(known.labels).or_default(), &known.counters);
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
        let (node, recent) = (node(), Recent::default());
        let one = pod(0, "a");
        for second in 1..=20_u64 {
            let mut figures = figures_of(second * 1_000_000_000, &[&one]);
            let counters = &mut figures.pods[0].counters;
            // Nothing in the first ten seconds, then a half of them.
            let busy = second.saturating_sub(10) * 1_000_000_000;
            counters.used_wall_ns = busy / 2;
            counters.used_sm_ns = busy * 33;
            counters.asked_ns = busy;
            counters.given_ns = busy * 6 / 10;
            recent.take(&node, &figures, true);
        }
        let shares = recent.shares(one.serial);
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-9;
        assert!(near(shares.seconds, 10.0), "{shares:?}");
        assert!(
            near(shares.used, 0.5) && near(shares.given, 0.6),
            "{shares:?}"
        );
        assert!(near(shares.sms, 33.0), "{shares:?}");
        // It wanted all, and may have 80 %.
        assert!(near(shares.asked, 0.8), "{shares:?}");
        assert_eq!(recent.shares(99), Shares::default());
    }

    #[test]
    fn counters_go_on_when_pods_end() {
        let (node, recent) = (node(), Recent::default());
        let (one, other) = (pod(0, "a"), pod(1, "a"));
        let mut figures = figures_of(1, &[&one, &other]);
        figures.pods[0].counters.launches = 5;
        figures.pods[1].counters.launches = 7;
        recent.take(&node, &figures, false);
        let launches = || {
            recent
                .sums()
                .values()
                .map(|sum| sum.launches)
                .collect::<Vec<_>>()
        };
        assert_eq!(launches(), [12]);
        let mut figures = figures_of(2, &[&other]);
        figures.pods[0].counters.launches = 8;
        recent.take(&node, &figures, false);
        assert_eq!(launches(), [13]);
        // What was never published says nothing about who is there.
        recent.take(&node, &Figures::none(), false);
        assert_eq!(launches(), [13]);
        recent.take(&node, &figures_of(3, &[]), false);
        assert_eq!(launches(), [13]);
    }

    #[test]
    fn by_pod_a_pod_that_ends_goes_on_in_the_sum_of_those_that_are_gone() {
        let (node, recent) = (node(), Recent::new(true));
        let (one, other) = (pod(0, "a"), pod(1, "a"));
        let mut figures = figures_of(1, &[&one, &other]);
        figures.pods[0].counters.launches = 5;
        figures.pods[1].counters.launches = 7;
        recent.take(&node, &figures, false);
        let launches = || {
            let sums = recent.sums().into_iter();
            sums.map(|(labels, sum)| (labels.pod, sum.launches))
                .collect::<Vec<_>>()
        };
        let named = |name: &str| Some(name.to_owned());
        assert_eq!(launches(), [(named("a-0"), 5), (named("a-1"), 7)]);
        recent.take(&node, &figures_of(2, &[&other]), false);
        assert_eq!(launches(), [(None, 5), (named("a-1"), 0)]);
    }

    #[test]
    fn revisions_that_are_gone_are_bounded() {
        let (node, recent) = (node(), Recent::default());
        for number in 0..u32::try_from(GONE_MAX).unwrap() + 5 {
            let mut own = (*pod(number, "r")).clone();
            own.revision = format!("r-{number}");
            let figures = figures_of(u64::from(number) + 1, &[&Arc::new(own)]);
            recent.take(&node, &figures, false);
        }
        recent.take(&node, &figures_of(u64::MAX, &[]), false);
        assert_eq!(recent.sums().len(), GONE_MAX);
    }
}
