//! Every query of dashboards and rules, with Grafana's variables filled in, for a run against a real Prometheus.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::boards::boards;
use crate::rules::{alerts, records};

/// Each alert's expression without its filters, by the alert's name; generated from the rules.
const UNFILTERED: &str = include_str!("rules/unfiltered.json");

/// Values of Grafana's variables.
#[derive(Debug, Clone, Copy)]
pub struct Variables<'a> {
    /// Value of `$__rate_interval` and `$__interval`.
    pub interval: &'a str,
    /// Value of Grafana's variable `$__range`, as a duration.
    pub range: &'a str,
    /// Names and values of variables with one chosen value; all others match everything.
    pub chosen: &'a [(&'a str, &'a str)],
}

/// A query and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The file that contains it: `weir-fleet.json`, `weir-alerts.yaml` …
    pub file: String,
    /// The panel's title, `$variable`, or the rule's name.
    pub panel: String,
    /// The query with variables filled in.
    pub expr: String,
}

impl Variables<'_> {
    /// Returns a query with its variables filled in.
    #[must_use]
    pub fn fill(&self, query: &str) -> String {
        let mut text = query.to_owned();
        for (name, value) in [
            ("$__rate_interval", self.interval),
            ("$__interval", self.interval),
            ("$__range", self.range),
        ] {
            text = text.replace(name, value);
        }
        for (name, value) in self.chosen {
            text = text.replace(&format!("\"${name}\""), &format!("\"{value}\""));
        }
        let mut filled = String::new();
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("\"$") {
            let end = after.find('"').unwrap_or(after.len());
            filled.push_str(before);
            filled.push_str("\".*");
            rest = &after[end..];
        }
        filled.push_str(rest);
        filled
    }
}

/// Returns all queries: of panels, of variables, of recording rules, and of alerts without their filters.
///
/// # Panics
///
/// Panics if the committed table of alerts without filters is invalid, which a test excludes.
#[must_use]
pub fn queries(variables: &Variables<'_>) -> Vec<Query> {
    let mut all = Vec::new();
    let mut add = |file: &str, panel: &str, expr: &str| {
        all.push(Query {
            file: file.to_owned(),
            panel: panel.to_owned(),
            expr: variables.fill(expr),
        });
    };
    for board in boards() {
        let file = format!("{}.json", board.uid);
        let json = board.json();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for panel in list(&json["panels"]) {
            for target in list(&panel["targets"]) {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                add(&file, &text(&panel["title"]), &text(&target["expr"]));
            }
        }
        for variable in list(&json["templating"]["list"]) {
            let query = variable["query"]["query"].as_str().unwrap_or_default();
            let inner = query
                .strip_prefix("label_values(")
                .and_then(|it| it.strip_suffix(')'));
            if let Some((series, label)) = inner.and_then(|inner| inner.rsplit_once(", ")) {
                add(
                    &file,
                    &format!("${label}"),
                    &format!("group by ({label}) ({series})"),
                );
            }
        }
    }
    for rule in records().iter().flat_map(|group| &group.rules) {
        add("weir-recording.yaml", &rule.name, &rule.expr);
    }
    for (name, expr) in unfiltered() {
        add("weir-alerts.yaml", &name, &expr);
    }
    all
}

/// Returns each alert's expression without its filters, by the alert's name.
fn unfiltered() -> Vec<(String, String)> {
    let table: BTreeMap<String, String> =
        serde_json::from_str(UNFILTERED).expect("the table is written from the alerts");
    let known = alerts().into_iter().map(|alert| alert.name);
    known
        .filter_map(|name| Some((name.to_owned(), table.get(name)?.clone())))
        .collect()
}

/// Returns the table of alerts without filters, in its committed form.
///
/// # Panics
///
/// Panics if an alert's expression cannot be parsed.
#[cfg(feature = "promql")]
#[must_use]
pub fn unfiltered_table() -> String {
    let table: BTreeMap<_, _> = alerts()
        .into_iter()
        .map(|alert| {
            let expr = crate::promql::without_filters(&alert.expr);
            (alert.name, expr.expect("alerts can be parsed"))
        })
        .collect();
    format!("{:#}\n", serde_json::json!(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_variables_have_their_value_and_others_match_all() {
        let variables = Variables {
            interval: "5s",
            range: "1m",
            chosen: &[("function", "f")],
        };
        let query = "a{function=\"$function\",job=~\"$job\"}[$__rate_interval] b[$__range]";
        let filled = "a{function=\"f\",job=~\".*\"}[5s] b[1m]";
        assert_eq!(variables.fill(query), filled);
        let all = queries(&variables);
        assert!(all.len() > 150, "{}", all.len());
        assert!(all.iter().all(|query| !query.expr.contains('$')));
        assert_eq!(unfiltered().len(), alerts().len());
    }
}
