//! Routing: the decisions of activator-ext, and the revisions that it serves.

use super::{own, quantile_by, rate_by};
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};

const OWN: &str = "namespace=~\"$namespace\"";
const LEGEND: &str = "{{namespace}}/{{function}}";

/// Returns the dashboard `weir-routing`.
pub(super) fn board() -> Board {
    Board {
        uid: "weir-routing",
        title: "Weir / Routing",
        description: "Where activator-ext sends requests, what it holds, and what goes Knative's way.",
        variables: vec![Variable::all("namespace", super::REQUESTS)],
        rows: vec![
            Row {
                title: "Choices",
                panels: vec![
                    Panel::new(Drawing::Stack, "Requests bound to an instance, by reason", Unit::RequestsPerSecond,
                        "What routing decided by. Many late ones: capacity is short. See the descriptions in docs/activator-ext.md.")
                        .query(rate_by("reason", "weir_route_decisions_total", OWN), "{{reason}}").link("weir-function"),
                    Panel::new(Drawing::Lines, "Hold, p98", Unit::Seconds,
                        "Time from arrival to the choice of an instance. It counts against the objective.")
                        .query(quantile_by(0.98, "namespace, function", "weir_function_hold_seconds", OWN), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Lines, "Requests held", Unit::Short,
                        "Requests that wait for an instance. Growing while instances are ready: they are too few.")
                        .query(format!("sum by (namespace, function) ({})", own("weir_function_waiting", OWN)), LEGEND).link("weir-function"),
                    Panel::new(Drawing::Stack, "Instances by state", Unit::Short,
                        "ejected: an instance that did not answer gets no requests for a while. probing: it has yet to answer.")
                        .query(format!("sum by (state) (max by (namespace, function, state) ({}))", own("weir_instances", OWN)), "{{state}}").link("weir-function"),
                    Panel::new(Drawing::Lines, "Ejections", Unit::PerSecond,
                        "Ejected instances, by reason. Steady ejections of one function: its application fails or is too slow to connect.")
                        .query(rate_by("namespace, function, reason", "weir_ejections_total", OWN), "{{namespace}}/{{function}} {{reason}}").link("weir-function"),
                    Panel::new(Drawing::Lines, "Cold starts, p98", Unit::Seconds,
                        "Hold of requests that came while no instance served. Longer than the objective: keep one instance (autoscaling.knative.dev/min-scale).")
                        .query(quantile_by(0.98, "namespace, function", "weir_cold_start_seconds", OWN), LEGEND).link("weir-function"),
                ],
            },
            Row {
                title: "Attachment",
                panels: vec![
                    Panel::new(Drawing::States, "Revisions attached", Unit::Short,
                        "attached: requests come to activator-ext. away: they go Knative's way; the GpuFunction's condition Attached says why.")
                        .query(format!("max by (namespace, function, revision) ({})", own("weir_attached", OWN)), "{{namespace}}/{{revision}}").state("0", "away", "orange").state("1", "attached", "green").link("weir-health"),
                    Panel::new(Drawing::Stack, "Requests passed through, by reason", Unit::RequestsPerSecond,
                        "Requests that went to Knative's own activator unchanged: not counted for any objective.")
                        .query(rate_by("reason", "weir_passed_through_total", ""), "{{reason}}").link("weir-health"),
                    Panel::new(Drawing::Stack, "Reports to the autoscaler", Unit::PerSecond,
                        "failed or dropped: the autoscaler does not hear of demand, and scaling falls back to what it knew.")
                        .query(rate_by("outcome", "weir_autoscaler_reports_total", ""), "{{outcome}}").link("weir-health"),
                    Panel::new(Drawing::Stat, "Revisions served", Unit::Short,
                        "Revisions that activator-ext knows and serves.")
                        .query(format!("max({})", own("weir_revisions", "")), "revisions").link("weir-health"),
                ],
            },
        ],
    }
}
