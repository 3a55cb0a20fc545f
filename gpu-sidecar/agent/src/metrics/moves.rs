//! Metrics of models that leave their devices and return.

use std::collections::BTreeMap;

use agent_core::MoveCounters;
use protocol::message::MOVE_REFUSALS;
use protocol::page::{FIXED_REASONS, Residency};

use super::{Metrics, Page, label_pairs, merged, number};
use crate::state::{Figures, PodCounters};
use crate::usage_history::Labels;

/// Locations of a model that a sample of `weir_gpu_residency` can have.
const LOCATIONS: [Residency; 7] = [
    Residency::None,
    Residency::Resident,
    Residency::Closing,
    Residency::Evicting,
    Residency::Host,
    Residency::Restoring,
    Residency::Faulted,
];

/// Values of the label `reason` of evictions: an order, or why another instance's lease needed the memory (M2.16), or its class of isolation.
const EVICTION_CAUSES: [&str; 7] = [
    "order",
    "duplicate",
    "light",
    "heavy",
    "lru",
    "moved",
    "class",
];

/// Adds the counters of moves.
pub(super) fn counters(page: &mut Page, sums: &BTreeMap<Labels, PodCounters>) {
    let with = |labels: &Labels, name: &'static str, value: &str| {
        let mut pairs = label_pairs(labels);
        pairs.push((name, value.to_owned()));
        pairs
    };
    let moves = || sums.iter().map(|(labels, own)| (labels, &own.moves));
    page.counter(
        "weir_gpu_evictions_total",
        "Evictions of models, by the reason for which they were begun.",
        moves().flat_map(|(labels, own)| {
            EVICTION_CAUSES.map(|cause| {
                let count = own.evicted_for.get(cause).copied().unwrap_or(0);
                (with(labels, "reason", cause), number(count))
            })
        }),
    );
    page.counter(
        "weir_gpu_evict_refusals_total",
        "Refused evictions of models.",
        moves().flat_map(|(labels, own)| {
            MOVE_REFUSALS.map(|refusal| {
                let count = own.refused.get(refusal.name()).copied().unwrap_or(0);
                (with(labels, "reason", refusal.name()), number(count))
            })
        }),
    );
    page.counter(
        "weir_gpu_restores_total",
        "Restores of models, by the place from which they came and how they ended.",
        moves().flat_map(|(labels, own)| {
            [("ok", own.restores), ("failed", own.restores_failed)].map(|(outcome, count)| {
                let mut pairs = with(labels, "source", "host");
                pairs.push(("outcome", outcome.to_owned()));
                (pairs, number(count))
            })
        }),
    );
    page.counter(
        "weir_gpu_evicted_bytes_total",
        "Device memory that evictions have released: copied to the host, or clean, since the host had it.",
        moves().flat_map(|(labels, own)| {
            [
                ("copied", own.evicted_copied_bytes),
                ("clean", own.evicted_clean_bytes),
            ]
            .map(|(state, bytes)| (with(labels, "state", state), number(bytes)))
        }),
    );
    type Get = fn(&MoveCounters) -> u64;
    let plain: [(&str, &str, Get); 2] = [
        (
            "weir_gpu_restored_bytes_total",
            "Device memory that restores have filled from the host.",
            |own| own.restored_bytes,
        ),
        (
            "weir_gpu_demand_waits_total",
            "Times at which a thread had to wait for the memory of its evicted process.",
            |own| own.demand_waits,
        ),
    ];
    for (name, help, get) in plain {
        let samples = moves().map(|(labels, own)| (label_pairs(labels), number(get(own))));
        page.counter(name, help, samples);
    }
    page.histogram(
        "weir_gpu_evict_seconds",
        "Time from the beginning of an eviction to its end.",
        moves().map(|(labels, own)| (label_pairs(labels), own.evict_times)),
    );
    page.histogram(
        "weir_gpu_restore_seconds",
        "Time from the beginning of a restore to its end.",
        moves().map(|(labels, own)| (label_pairs(labels), own.restore_times)),
    );
}

/// Sums over processes with equal labels.
#[derive(Debug, Clone, Default)]
struct Gauges {
    resident_bytes: u64,
    pinned_bytes: u64,
    pageable_bytes: u64,
    /// Bytes by the reason of the same place in [`FIXED_REASONS`].
    fixed_bytes: [u64; FIXED_REASONS.len()],
    /// Number of processes by location, in the order of [`LOCATIONS`].
    locations: [u64; LOCATIONS.len()],
}

impl Gauges {
    fn add(&mut self, own: &Self) {
        self.resident_bytes = self.resident_bytes.saturating_add(own.resident_bytes);
        self.pinned_bytes += own.pinned_bytes;
        self.pageable_bytes += own.pageable_bytes;
        self.add_fixed(&own.fixed_bytes);
        for (sum, own) in self.locations.iter_mut().zip(own.locations) {
            *sum += own;
        }
    }

    fn add_fixed(&mut self, own: &[u64; FIXED_REASONS.len()]) {
        for (sum, own) in self.fixed_bytes.iter_mut().zip(own) {
            *sum = sum.saturating_add(*own);
        }
    }
}

impl Metrics {
    /// Adds the gauges of the locations of models.
    pub(super) fn locations(&self, page: &mut Page, figures: &Figures) {
        let mut sums: BTreeMap<Labels, Gauges> = BTreeMap::new();
        for own in &figures.pods {
            let Some(labels) = self.usage.labels(own.pod.serial) else {
                continue;
            };
            let sum = sums.entry(labels).or_default();
            for process in &own.processes {
                if !process.is_away {
                    // A process states what it likes.
                    sum.resident_bytes = sum.resident_bytes.saturating_add(process.bytes_used);
                }
                sum.pinned_bytes += process.pinned_bytes;
                sum.pageable_bytes += process.host_bytes.saturating_sub(process.pinned_bytes);
                sum.add_fixed(&process.fixed);
                let mut places = LOCATIONS.iter();
                if let Some(place) = places.position(|place| place.name() == process.residency) {
                    sum.locations[place] += 1;
                }
            }
        }
        let sums = merged(&sums, Gauges::add);
        let resident = sums
            .iter()
            .map(|(labels, own)| (label_pairs(labels), number(own.resident_bytes)));
        page.gauge(
            "weir_gpu_resident_bytes",
            "Device memory of processes whose model is on its device.",
            resident,
        );
        let fixed = sums.iter().flat_map(|(labels, own)| {
            let reasons = FIXED_REASONS.into_iter().zip(own.fixed_bytes);
            reasons.map(|(reason, bytes)| {
                let mut pairs = label_pairs(labels);
                pairs.push(("reason", reason.to_owned()));
                (pairs, number(bytes))
            })
        });
        page.gauge(
            "weir_gpu_fixed_bytes",
            "Device memory that stays when a model leaves, by what holds it.",
            fixed,
        );
        let host = sums.iter().flat_map(|(labels, own)| {
            [
                ("pinned", own.pinned_bytes),
                ("pageable", own.pageable_bytes),
            ]
            .map(|(state, bytes)| {
                let mut pairs = label_pairs(labels);
                pairs.push(("state", state.to_owned()));
                (pairs, number(bytes))
            })
        });
        page.gauge(
            "weir_gpu_host_bytes",
            "Host memory given to processes for copies of their device memory; pinned: it may be registered with the driver.",
            host,
        );
        let locations = sums.iter().flat_map(|(labels, own)| {
            let places = LOCATIONS.into_iter().zip(own.locations);
            places.map(|(place, count)| {
                let mut pairs = label_pairs(labels);
                pairs.push(("state", place.name().to_owned()));
                (pairs, number(count))
            })
        });
        page.gauge(
            "weir_gpu_residency",
            "Processes by the location of their model.",
            locations,
        );
    }
}
