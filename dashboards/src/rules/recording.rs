//! Recording rules: which of the two counts of a function's requests is used, for each window of the alerts.

use super::{Record, RecordGroup};

/// Windows of the paging alerts and of the dashboards.
const SHORT: [&str; 4] = ["5m", "30m", "1h", "6h"];
/// Windows of the other alerts, which are long and so are evaluated less often.
const LONG: [&str; 3] = ["2h", "1d", "3d"];
/// Burn rates of the alerts, as multiples of the rate that uses up the error budget exactly: as a number, and as a part of
/// a metric's name.
pub(super) const BURNS: [(&str, &str); 4] = [
    ("14.4", "burn14d4"),
    ("6", "burn6"),
    ("3", "burn3"),
    ("1", "burn1"),
];

/// Ratio of activator-ext's count to that of the pods from which activator-ext's is used; below it, it was in the path
/// for a part of the window only.
const IN_PATH: &str = "0.9";

/// Returns activator-ext's count of judged requests where it is used: where it includes as many requests as the pods',
/// or nearly.
fn in_path(of_function: &str, of_pods: &str) -> String {
    format!("({of_function} > 0 unless {IN_PATH} * {of_pods} > {of_function})")
}

/// Returns a query of the requests that missed or were in time (`what`: `missed`, `in_time`) over `window`, summed by
/// `labels` in addition to namespace and function. It uses the counts of activator-ext where that is in the path, and
/// otherwise those of the function's pods. The two are never added.
#[must_use]
pub fn chosen(labels: &str, what: &str, window: &str, matchers: &str) -> String {
    let comma = if labels.is_empty() { "" } else { ", " };
    let by = format!("namespace, function{comma}{labels}");
    let sum = |by: &str, metric: &str| {
        format!("sum by ({by}) (increase({metric}{{{matchers}}}[{window}]))")
    };
    let own = "namespace, function";
    let judged = |prefix: &str| {
        format!(
            "({} + {})",
            sum(own, &format!("weir_{prefix}requests_in_time_total")),
            sum(own, &format!("weir_{prefix}requests_missed_total"))
        )
    };
    let in_path = in_path(&judged("function_"), &judged(""));
    let of_function = sum(&by, &format!("weir_function_requests_{what}_total"));
    let of_pods = sum(&by, &format!("weir_requests_{what}_total"));
    format!("(({of_function} and on ({own}) {in_path}) or on ({own}) {of_pods})")
}

fn record(name: impl Into<String>, expr: impl Into<String>) -> Record {
    Record {
        name: name.into(),
        expr: expr.into(),
    }
}

/// Returns the rules that count requests over a window.
fn counts(window: &str) -> Vec<Record> {
    let own = "namespace_function";
    let of = |metric: &str| format!("sum by (namespace, function) (increase({metric}[{window}]))");
    let judged = |prefix: &str| {
        format!(
            "{} + {}",
            of(&format!("weir_{prefix}requests_in_time_total")),
            of(&format!("weir_{prefix}requests_missed_total"))
        )
    };
    let of_function = format!("{own}:weir_function_requests_judged:increase{window}");
    let of_pods = format!("{own}:weir_pod_requests_judged:increase{window}");
    let in_path = in_path(&of_function, &of_pods);
    let missed = |by: &str| {
        let sum = |metric: &str| format!("sum by ({by}) (increase({metric}[{window}]))");
        format!(
            "({} and on (namespace, function) {in_path}) or on (namespace, function) {}",
            sum("weir_function_requests_missed_total"),
            sum("weir_requests_missed_total")
        )
    };
    let mut rules = vec![
        record(&of_function, judged("function_")),
        record(&of_pods, judged("")),
        record(
            format!("{own}:weir_requests_judged:increase{window}"),
            format!("{in_path} or {of_pods}"),
        ),
        record(
            format!("{own}:weir_requests_missed:increase{window}"),
            missed("namespace, function"),
        ),
    ];
    if window == "5m" {
        rules.push(record(
            format!("{own}_reason:weir_requests_missed:increase{window}"),
            missed("namespace, function, reason"),
        ));
        // Requests of functions without an objective are not judged.
        let ended_by_function =
            |metric: &str| format!("sum by (namespace, function) (increase({metric}[{window}]))");
        let in_path = self::in_path(
            &ended_by_function("weir_function_requests_total"),
            &ended_by_function("weir_requests_total"),
        );
        let ended = |metric: &str| {
            format!("sum by (namespace, function, outcome) (increase({metric}[{window}]))")
        };
        rules.push(record(
            format!("{own}_outcome:weir_requests:increase{window}"),
            format!(
                "({0} and on (namespace, function) {in_path}) or on (namespace, function) {1}",
                ended("weir_function_requests_total"),
                ended("weir_requests_total")
            ),
        ));
    }
    rules
}

/// Returns all groups of recording rules.
pub(super) fn groups() -> Vec<RecordGroup> {
    let budget = "namespace_function:weir_slo_budget:ratio";
    let mut short = vec![record(
        budget,
        "1 - max by (namespace, function) (weir_slo_objective_ratio)",
    )];
    for (factor, name) in BURNS {
        // At most halfway between the budget and 1, since 14.4 times a budget above 7 % cannot be reached.
        short.push(record(
            format!("namespace_function:weir_slo_threshold:{name}"),
            format!("({factor} * {budget} < (1 + {budget}) / 2) or (1 + {budget}) / 2"),
        ));
    }
    short.extend(SHORT.iter().flat_map(|window| counts(window)));
    vec![
        RecordGroup {
            name: "weir-requests",
            interval: "30s",
            rules: short,
        },
        RecordGroup {
            name: "weir-requests-long",
            // Prometheus uses a sample for five minutes.
            interval: "2m",
            rules: LONG.iter().flat_map(|window| counts(window)).collect(),
        },
    ]
}
