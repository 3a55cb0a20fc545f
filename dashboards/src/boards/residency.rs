//! Residency: models that leave their devices for the host and return.

use super::{own, quantile_by, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};

const OWN: &str = "gpu=~\"$gpu\",slot=~\"$slot\",namespace=~\"$namespace\"";
const BY: &str = "namespace, function, slot, gpu";
const LEGEND: &str = "{{namespace}}/{{function}} on {{slot}}";

/// Returns the dashboard `weir-residency`.
pub(super) fn board() -> Board {
    let sum = |metric: &str| format!("sum by ({BY}) ({})", own(metric, OWN));
    let sum_by = |label: &str, metric: &str| format!("sum by ({label}) ({})", own(metric, OWN));
    let rate = |metric: &str| rate_by(BY, metric, OWN);
    Board {
        uid: "weir-residency",
        title: "Weir / Residency of models",
        description: "Which models are on their devices, and what it takes them to leave and return.",
        variables: vec![
            Variable::all("gpu", "weir_gpu_residency"),
            Variable::all("slot", "weir_gpu_residency{gpu=~\"$gpu\"}"),
            Variable::all("namespace", "weir_gpu_residency"),
        ],
        rows: vec![
            Row {
                title: "Where models are",
                panels: vec![
                    Panel::new(Drawing::Stack, "Processes by the place of their model", Unit::Short,
                        "closing lasts for as long as work in flight; none: not known, or no model yet; faulted: the driver serves the process no more.")
                        .query(sum_by("state", "weir_gpu_residency"), "{{state}}").link("weir-slots"),
                    Panel::new(Drawing::Lines, "On the device", Unit::Bytes,
                        "Memory of processes whose model is on its device.")
                        .query(sum("weir_gpu_resident_bytes"), LEGEND).link("weir-slots"),
                    Panel::new(Drawing::Stack, "Stays on the device", Unit::Bytes,
                        "Memory that an eviction leaves there, by what holds it; context: the driver's own. Much of it: the eviction frees little.")
                        .query(sum_by("reason", "weir_gpu_fixed_bytes"), "{{reason}}").link("weir-function"),
                    Panel::new(Drawing::Stack, "Host memory for copies", Unit::Bytes,
                        "Bounded by node.host-memory, the pinned part by node.pinned-memory. Copies to and from pageable memory are several times slower.")
                        .query(sum_by("state", "weir_gpu_host_bytes"), "{{state}}").link("weir-health"),
                ],
            },
            Row {
                title: "Moves",
                panels: vec![
                    Panel::new(Drawing::Stack, "Evictions", Unit::PerSecond,
                        "By the reason for which they were begun.")
                        .query(rate_by("reason", "weir_gpu_evictions_total", OWN), "{{reason}}").link("weir-slots"),
                    Panel::new(Drawing::Stack, "Restores", Unit::PerSecond,
                        "failed: the device had no memory within two seconds, or the driver returned an error; the model stays on the host, and its requests wait.")
                        .query(rate_by("source, outcome", "weir_gpu_restores_total", OWN), "{{source}} {{outcome}}").link("weir-function"),
                    Panel::new(Drawing::Lines, "Eviction, p98", Unit::Seconds,
                        "Unchanged memory takes a hash and the release of its handles; changed memory is copied over the link first.")
                        .query(quantile_by(0.98, BY, "weir_gpu_evict_seconds", OWN), LEGEND).link("weir-slots"),
                    Panel::new(Drawing::Lines, "Restore, p98", Unit::Seconds,
                        "At least the size of the model by the rate of the link. Requests wait for it.")
                        .query(quantile_by(0.98, BY, "weir_gpu_restore_seconds", OWN), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Stack, "Released by evictions", Unit::Bytes,
                        "A second. copied: changed since the last copy. clean: the host had it already.")
                        .query(rate_by("state", "weir_gpu_evicted_bytes_total", OWN), "{{state}}").link("weir-slots"),
                    Panel::new(Drawing::Lines, "Filled by restores", Unit::Bytes,
                        "A second. Near the rate of the link for long: models are moved more than they compute.")
                        .query(rate("weir_gpu_restored_bytes_total"), LEGEND).link("weir-slots"),
                    Panel::new(Drawing::Lines, "Threads that had to wait", Unit::PerSecond,
                        "Uses of memory that was on the host. Many: the model leaves too early.")
                        .query(rate("weir_gpu_demand_waits_total"), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Stack, "Refused evictions", Unit::PerSecond,
                        "draining: work did not end in time. no-memory: node.host-memory is used up. exported, imported: memory is shared with another process. protocol: the pod runs an older library.")
                        .query(rate_by("reason", "weir_gpu_evict_refusals_total", OWN), "{{reason}}").link("weir-health"),
                    Panel::new(Drawing::Stack, "Faulted processes", Unit::PerSecond,
                        "Processes which were killed, so that their containers start again. sticky-error: the driver answers every call with an error. no-progress: work on the device has not gone on for five times as long as requests usually take.")
                        .query(rate_by("reason", "weir_gpu_faulted_processes_total", OWN), "{{reason}}").link("weir-health"),
                ],
            },
        ],
    }
}
