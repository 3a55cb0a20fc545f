//! The catalogue of metrics, `metrics.toml`, which is checked when it is read.

use std::collections::BTreeSet;

use serde::Deserialize;

/// The text of the catalogue.
const TEXT: &str = include_str!("../metrics.toml");

/// The labels that metrics of Weir may have (contracts §4).
pub const LABELS: [&str; 11] = [
    "namespace",
    "function",
    "revision",
    "variant",
    "slot",
    "gpu",
    "state",
    "reason",
    "outcome",
    "source",
    "version",
];

/// A program that exports metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Program {
    /// The sidecar, with metrics on port 9091.
    #[serde(rename = "queue-proxy")]
    QueueProxy,
    /// Role `data` of activator-ext, on port 9476.
    #[serde(rename = "activator-ext data")]
    ActivatorData,
    /// Role `control` of activator-ext, on port 9476.
    #[serde(rename = "activator-ext control")]
    ActivatorControl,
    /// The agent of a node, on port 9471.
    #[serde(rename = "agent")]
    Agent,
}

impl Program {
    /// All programs, in the order of the reference.
    pub const ALL: [Self; 4] = [
        Self::QueueProxy,
        Self::ActivatorData,
        Self::ActivatorControl,
        Self::Agent,
    ];

    /// Returns the name of the program in the catalogue.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueProxy => "queue-proxy",
            Self::ActivatorData => "activator-ext data",
            Self::ActivatorControl => "activator-ext control",
            Self::Agent => "agent",
        }
    }

    /// Returns the port on which the program exports metrics.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::QueueProxy => 9091,
            Self::ActivatorData | Self::ActivatorControl => 9476,
            Self::Agent => 9471,
        }
    }

    /// Returns the value of the label `job` that the program's PodMonitor sets.
    #[must_use]
    pub const fn job(self) -> &'static str {
        match self {
            Self::QueueProxy => "weir-system/weir-queue-proxy",
            Self::ActivatorData => "weir-system/weir-activator",
            Self::ActivatorControl => "weir-system/weir-control",
            Self::Agent => "weir-system/weir-agent",
        }
    }
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A value that only increases, from 0 at the start of its process.
    Counter,
    /// The current value of a quantity.
    Gauge,
    /// Numbers of observations by size.
    Histogram,
}

impl Kind {
    /// Returns the name of this type of metric in Prometheus' text format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One entry of the catalogue. A metric whose labels differ between programs has several entries.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Name of the metric, beginning with `weir_`.
    pub name: String,
    /// Type of the metric.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The unit of a sample, in words.
    pub unit: String,
    /// Names of all labels, without a histogram's `le`.
    pub labels: BTreeSet<String>,
    /// Programs that export the metric.
    pub programs: Vec<Program>,
    /// Whether the metric has the label `pod` if the agent's `metrics.pods` is on.
    #[serde(default)]
    pub pod: bool,
    /// Condition under which the metric is exported; `None`: always.
    pub only: Option<String>,
    /// The help text, one sentence.
    pub meaning: String,
    /// The most useful query of the metric.
    pub query: String,
}

/// The reason why the catalogue is invalid.
#[derive(Debug, thiserror::Error)]
#[error("dashboards/metrics.toml: {0}")]
pub struct CatalogueError(String);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    metric: Vec<Metric>,
}

/// Returns the entries of the catalogue, in their order.
///
/// # Errors
///
/// Fails if the file cannot be parsed, or breaks the rules for names and labels of contracts §4.
pub fn catalogue() -> Result<Vec<Metric>, CatalogueError> {
    parse(TEXT)
}

fn parse(text: &str) -> Result<Vec<Metric>, CatalogueError> {
    let file: File = toml::from_str(text).map_err(|error| CatalogueError(error.to_string()))?;
    for metric in &file.metric {
        check(metric).map_err(|why| CatalogueError(format!("{}: {why}", metric.name)))?;
        for other in &file.metric {
            if other.name != metric.name || std::ptr::eq(other, metric) {
                continue;
            }
            let is_same = other.kind == metric.kind
                && other.unit == metric.unit
                && other.meaning == metric.meaning;
            let is_apart = !other
                .programs
                .iter()
                .any(|program| metric.programs.contains(program));
            if !is_same || !is_apart {
                let why = "two entries differ in type, unit or meaning, or share a program";
                return Err(CatalogueError(format!("{}: {why}", metric.name)));
            }
        }
    }
    Ok(file.metric)
}

fn check(metric: &Metric) -> Result<(), String> {
    if !metric.name.starts_with("weir_") {
        return Err("the name must begin with weir_".to_owned());
    }
    if (metric.kind == Kind::Counter) != metric.name.ends_with("_total") {
        return Err("counters, and no other metrics, must end in _total".to_owned());
    }
    for label in &metric.labels {
        if !LABELS.contains(&label.as_str()) {
            return Err(format!("{label} is none of the allowed labels {LABELS:?}"));
        }
    }
    if metric.labels.contains("version") && metric.name != "weir_build_info" {
        return Err("version is allowed as a label of weir_build_info only".to_owned());
    }
    if metric.programs.is_empty() {
        return Err("no program is listed".to_owned());
    }
    if !metric.meaning.ends_with('.') {
        return Err("meaning must be a sentence that ends with a period".to_owned());
    }
    if !metric.query.contains(&metric.name) {
        return Err("the query does not use the metric".to_owned());
    }
    #[cfg(feature = "promql")]
    promql_parser::parser::parse(&metric.query)
        .map_err(|why| format!("the query cannot be parsed: {why}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[metric]]
name = "weir_x_total"
type = "counter"
unit = "x"
labels = ["function"]
programs = ["agent"]
meaning = "All x."
query = "rate(weir_x_total[5m])"
"#;

    #[test]
    fn the_catalogue_is_well_formed() {
        let all = catalogue().unwrap();
        assert!(all.len() > 80, "{}", all.len());
    }

    #[test]
    fn an_entry_that_breaks_a_rule_is_refused_by_name() {
        assert_eq!(parse(GOOD).unwrap().len(), 1);
        for (from, to, why) in [
            ("weir_x_total", "x_total", "weir_x"),
            ("\"counter\"", "\"gauge\"", "must end in _total"),
            ("\"function\"", "\"user\"", "user is none"),
            ("\"function\"", "\"version\"", "weir_build_info only"),
            ("\"agent\"", "", "no program"),
            ("All x.", "All x", "sentence"),
            (
                "rate(weir_x_total[5m])",
                "rate(weir_y_total[5m])",
                "does not use",
            ),
            ("[5m])\"", "[5m]\"", "cannot be parsed"),
            ("\"agent\"", "\"kubelet\"", "kubelet"),
            ("unit", "units", "units"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            let error = parse(&text).unwrap_err().to_string();
            let expected = if why == "weir_x" { "weir_" } else { why };
            assert!(error.contains(expected), "{text}\n{error}");
        }
        let other = GOOD.replace("All x.", "Some x.");
        assert!(parse(&format!("{GOOD}{other}")).is_err());
        let other = GOOD.replace("\"agent\"", "\"queue-proxy\"");
        assert_eq!(parse(&format!("{GOOD}{other}")).unwrap().len(), 2);
    }
}
