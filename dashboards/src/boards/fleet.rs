//! All functions: which of them keep their objectives, and why others do not.

use super::own;
use crate::grafana::{Board, Drawing, Panel, Row, Unit, Variable};

const JUDGED: &str =
    "namespace_function:weir_requests_judged:increase1h{namespace=~\"$namespace\"}";
const MISSED: &str =
    "namespace_function:weir_requests_missed:increase1h{namespace=~\"$namespace\"}";
const BUDGET: &str = "namespace_function:weir_slo_budget:ratio{namespace=~\"$namespace\"}";

/// Returns the dashboard `weir-fleet`.
pub(super) fn board() -> Board {
    // A percentile of fewer requests than this is the slowest one.
    let enough = format!("({JUDGED} >= on (namespace, function) 1 / {BUDGET})");
    let keeping = format!(
        "count(({MISSED} / {JUDGED} <= on (namespace, function) {BUDGET}) and on (namespace, function) {enough}) or vector(0)"
    );
    let of_enough = format!("count({enough})");
    let in_time = format!("1 - sum({MISSED}) / sum({JUDGED})");
    let burn = format!("({MISSED} / ({JUDGED} > 0)) / on (namespace, function) {BUDGET}");
    Board {
        uid: "weir-fleet",
        title: "Weir / All functions",
        description: "Which functions keep their latency objectives, which do not, and why.",
        variables: vec![Variable::all("namespace", super::REQUESTS)],
        rows: vec![
            Row {
                title: "Objectives, last hour",
                panels: vec![
                    Panel::new(Drawing::Stat, "Requests in time", Unit::Ratio,
                        "Judged requests that met their objective, over all functions. If it falls, see below which function and which reason.")
                        .query(&in_time, "in time").base("red").threshold(0.9, "orange").threshold(0.98, "green").link("weir-function"),
                    Panel::new(Drawing::Stat, "Functions that keep their objective", Unit::Ratio,
                        "Share of functions whose requests in time are at least their percentile. It is another measure than requests in time, and the two are never compared: one busy function may hide many slow ones. Functions with too few requests are left out.")
                        .query(format!("({keeping}) / {of_enough}"), "keeping").base("red").threshold(0.9, "orange").threshold(0.98, "green").link("weir-function"),
                    Panel::new(Drawing::Stat, "Functions with too few requests", Unit::Short,
                        "Functions with fewer judged requests in the last hour than 1/(1 - p): one miss would break their objective, so they are not counted as keeping or breaking it.")
                        .query(format!("count({JUDGED} < on (namespace, function) 1 / {BUDGET}) or vector(0)"), "too few").link("weir-function"),
                    Panel::new(Drawing::Stat, "Functions with an objective", Unit::Short,
                        "Functions whose revisions carry weir.dev/slo. None: no function has opted in, or no target is scraped.")
                        .query(format!("count({BUDGET})"), "functions").link("weir-health"),
                    Panel::new(Drawing::Lines, "Both measures", Unit::Ratio,
                        "Requests in time, and functions that keep their objective. Look at the reasons when either falls.")
                        .query(&in_time, "requests in time").query(format!("({keeping}) / {of_enough}"), "functions that keep it").link("weir-function"),
                    Panel::new(Drawing::Lines, "Budget burn", Unit::Short,
                        "How many times faster than allowed a function misses: at 1 it uses up exactly its budget; the alerts page at 14.4 over an hour. The ten worst.")
                        .query(format!("topk(10, {burn})"), "{{namespace}}/{{function}}").threshold(1.0, "orange").threshold(14.4, "red").link("weir-function"),
                ],
            },
            Row {
                title: "Where and why",
                panels: vec![
                    Panel::new(Drawing::Table, "The ten worst", Unit::Short,
                        "Functions that burn their budget fastest, over the last hour. Open weir-function with the name of one.")
                        .query(format!("topk(10, {burn})"), "").link("weir-function"),
                    Panel::new(Drawing::Stack, "Misses by reason", Unit::Short,
                        "Judged requests of the last five minutes that missed their objective. queue: more instances or a shorter queue; cold-start: keep instances warm; execution: the objective is below what the function needs, or its share of the GPU is too small; refused and shed: more load than there is capacity; failed: the application.")
                        .query("sum by (reason) (namespace_function_reason:weir_requests_missed:increase5m{namespace=~\"$namespace\"})", "{{reason}}").link("weir-function"),
                    Panel::new(Drawing::Stack, "Requests that pods have ended, by outcome", Unit::RequestsPerSecond,
                        "All requests that reached a pod, with an objective or without. Refused and shed ones mean that there is more load than capacity.")
                        .query(super::rate_by("outcome", "weir_requests_total", "namespace=~\"$namespace\""), "{{outcome}}").link("weir-function"),
                    Panel::new(Drawing::Lines, "Requests that wait", Unit::Short,
                        "Requests in the queues of pods, and in activator-ext. A queue that does not empty is load above capacity, or a scale-out that does not come.")
                        .query(format!("sum({})", own("weir_requests_waiting", "namespace=~\"$namespace\"")), "at pods")
                        .query(format!("sum({})", own("weir_function_waiting", "namespace=~\"$namespace\"")), "in activator-ext").link("weir-routing"),
                ],
            },
        ],
    }
}
