//! Recording rules and alerts, with the cases by which `promtool test rules` checks each alert.

mod recording;
mod slo;
mod symptoms;

use std::fmt::Write as _;

pub use recording::chosen;

/// A recording rule: a name and an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Name of the recorded series: `level:metric:operation`.
    pub name: String,
    /// PromQL expression of the recorded value.
    pub expr: String,
}

/// A group of recording rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordGroup {
    /// Name of the group.
    pub name: &'static str,
    /// Period of evaluation, in Prometheus' notation of durations.
    pub interval: &'static str,
    /// Rules in the order of their evaluation.
    pub rules: Vec<Record>,
}

/// The urgency of an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Pages the engineer on call.
    Page,
    /// Is handled on a working day.
    Ticket,
    /// Needs no handling: shows that alerts are delivered.
    None,
}

impl Severity {
    /// Returns the value of the label `severity`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Ticket => "ticket",
            Self::None => "none",
        }
    }
}

/// An alert with its tests.
#[derive(Debug, Clone)]
pub struct Alert {
    /// Name of the alert and of its runbook.
    pub name: &'static str,
    /// The PromQL expression that is true while the alert is active.
    pub expr: String,
    /// Time for which the expression must hold before the alert fires.
    pub hold: &'static str,
    /// Urgency of the alert.
    pub severity: Severity,
    /// Template of the text that describes the event, with numbers.
    pub summary: &'static str,
    /// Tests of the alert.
    pub cases: Vec<Case>,
    /// Whether the alert fires without data as well.
    pub fires_without_data: bool,
}

/// A test of an alert: series, and the alerts expected to fire.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name of the test, which states what it shows.
    pub name: String,
    /// Series and their values in promtool's notation, one step apart.
    pub series: Vec<(String, String)>,
    /// Time of the evaluation, in Prometheus' notation of durations.
    pub at: &'static str,
    /// Alerts expected to fire at that time.
    pub firing: Vec<Firing>,
}

/// An alert expected to fire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firing {
    /// Labels of the alert in addition to `severity`.
    pub labels: Vec<(&'static str, &'static str)>,
    /// Summary with its template filled in.
    pub summary: String,
}

impl Case {
    fn new(name: impl Into<String>, at: &'static str, series: &[(&str, &str)]) -> Self {
        let owned = |(series, values): &(&str, &str)| ((*series).to_owned(), (*values).to_owned());
        Self {
            name: name.into(),
            series: series.iter().map(owned).collect(),
            at,
            firing: Vec::new(),
        }
    }

    fn fires(
        mut self,
        labels: &[(&'static str, &'static str)],
        summary: impl Into<String>,
    ) -> Self {
        self.firing.push(Firing {
            labels: labels.to_vec(),
            summary: summary.into(),
        });
        self
    }
}

/// Returns the groups of recording rules.
#[must_use]
pub fn records() -> Vec<RecordGroup> {
    recording::groups()
}

/// Returns all alerts: of objectives, then of symptoms.
#[must_use]
pub fn alerts() -> Vec<Alert> {
    let mut all = slo::alerts();
    all.extend(symptoms::alerts());
    all
}

/// Name of the group of all alerts.
const ALERT_GROUP: &str = "weir-alerts";
/// First line of each generated file.
const WRITTEN: &str = "# Written by `cargo run -p dashboards -- write`.\n";

/// Returns a text as a one-line YAML string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns the recording rules as YAML, with each line prefixed by `indent`.
#[must_use]
pub fn records_yaml(groups: &[RecordGroup], indent: &str) -> String {
    let mut text = format!("{indent}groups:\n");
    for group in groups {
        let (name, interval) = (group.name, group.interval);
        let _infallible = writeln!(
            text,
            "{indent}- name: {name}\n{indent}  interval: {interval}\n{indent}  rules:"
        );
        for rule in &group.rules {
            let (name, expr) = (&rule.name, quoted(&rule.expr));
            let _infallible =
                writeln!(text, "{indent}  - record: {name}\n{indent}    expr: {expr}");
        }
    }
    text
}

/// Returns alerts as one group of a rule file, with each line prefixed by `indent`.
#[must_use]
pub fn alerts_yaml(alerts: &[Alert], indent: &str) -> String {
    let mut text = format!("{indent}groups:\n{indent}- name: {ALERT_GROUP}\n{indent}  rules:\n");
    for alert in alerts {
        let Alert {
            name,
            expr,
            hold,
            severity,
            summary,
            ..
        } = alert;
        let (severity, expr, summary) = (severity.name(), quoted(expr), quoted(summary));
        let _infallible = writeln!(
            text,
            "{indent}  - alert: {name}\n\
             {indent}    expr: {expr}\n\
             {indent}    for: {hold}\n\
             {indent}    labels: {{ severity: {severity} }}\n\
             {indent}    annotations:\n\
             {indent}      summary: {summary}\n\
             {indent}      runbook: docs/runbooks/{name}.md"
        );
    }
    text
}

/// Returns the rule file with the recording rules.
#[must_use]
pub fn records_file() -> String {
    format!("{WRITTEN}{}", records_yaml(&records(), ""))
}

/// Returns the rule file with the alerts.
#[must_use]
pub fn alerts_file(alerts: &[Alert]) -> String {
    format!("{WRITTEN}{}", alerts_yaml(alerts, ""))
}

/// Returns promtool's tests of these alerts, for rule files of these names. Series have a step of `minutes`, and rules
/// are evaluated as often.
#[must_use]
pub fn tests_file(alerts: &[&Alert], rule_files: &[&str], minutes: u32) -> String {
    let mut text = WRITTEN.to_owned();
    let groups: Vec<_> = records().iter().map(|group| group.name).collect();
    let files: Vec<_> = rule_files.iter().map(|file| quoted(file)).collect();
    let _infallible = writeln!(
        text,
        "rule_files: [{}]\nevaluation_interval: {minutes}m\ngroup_eval_order: [{}, {ALERT_GROUP}]\ntests:",
        files.join(", "),
        groups.join(", ")
    );
    for alert in alerts {
        let mut cases = alert.cases.clone();
        if !alert.fires_without_data {
            cases.push(Case::new("is silent without data", "30m", &[]));
        }
        for case in cases {
            let title = quoted(&format!("{} {}", alert.name, case.name));
            let _infallible = writeln!(
                text,
                "- name: {title}\n  interval: {minutes}m\n  input_series:{}",
                if case.series.is_empty() { " []" } else { "" }
            );
            for (series, values) in &case.series {
                let (series, values) = (quoted(series), quoted(values));
                let _infallible = writeln!(text, "  - {{ series: {series}, values: {values} }}");
            }
            let _infallible = writeln!(
                text,
                "  alert_rule_test:\n  - alertname: {}\n    eval_time: {}",
                alert.name, case.at
            );
            if case.firing.is_empty() {
                text.push_str("    exp_alerts: []\n");
                continue;
            }
            text.push_str("    exp_alerts:\n");
            for firing in &case.firing {
                let mut labels = format!("severity: {}", alert.severity.name());
                for (name, value) in &firing.labels {
                    let _infallible = write!(labels, ", {name}: {}", quoted(value));
                }
                let summary = quoted(&firing.summary);
                let _infallible = writeln!(
                    text,
                    "    - exp_labels: {{ {labels} }}\n      exp_annotations: {{ summary: {summary}, runbook: docs/runbooks/{}.md }}",
                    alert.name
                );
            }
        }
    }
    text
}
