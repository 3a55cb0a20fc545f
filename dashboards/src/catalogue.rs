//! The catalogue of metrics: `metrics.toml`, checked as it is read.

use std::collections::BTreeSet;

use serde::Deserialize;

/// The text of the catalogue.
const TEXT: &str = include_str!("../metrics.toml");

/// The labels that metrics of Weir may have (design 4.4).
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

/// A program with a page of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum Program {
    /// The sidecar, on 9091.
    #[serde(rename = "queue-proxy")]
    QueueProxy,
    /// activator-ext's role `data`, on 9476.
    #[serde(rename = "activator-ext data")]
    ActivatorData,
    /// activator-ext's role `control`, on 9476.
    #[serde(rename = "activator-ext control")]
    ActivatorControl,
    /// The agent of a node, on 9471.
    #[serde(rename = "agent")]
    Agent,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::QueueProxy,
        Self::ActivatorData,
        Self::ActivatorControl,
        Self::Agent,
    ];

    /// Returns its name, as in the catalogue.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueProxy => "queue-proxy",
            Self::ActivatorData => "activator-ext data",
            Self::ActivatorControl => "activator-ext control",
            Self::Agent => "agent",
        }
    }

    /// Returns the port of its page.
    #[must_use]
    pub const fn port(self) -> u16 {
        match self {
            Self::QueueProxy => 9091,
            Self::ActivatorData | Self::ActivatorControl => 9476,
            Self::Agent => 9471,
        }
    }

    /// Returns the label `job` that its PodMonitor gives.
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

/// A metric's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It only rises, from 0 at the start of its process.
    Counter,
    /// A value of now.
    Gauge,
    /// Observations by size.
    Histogram,
}

impl Kind {
    /// Returns its name in the text format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One entry of the catalogue. A metric whose labels differ between programs has several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// The unit of a sample, in words.
    pub unit: String,
    /// All labels, without a histogram's `le`.
    pub labels: BTreeSet<String>,
    /// Which programs export it.
    pub programs: Vec<Program>,
    /// It has the label `pod` where the agent's `metrics.pods` is on.
    #[serde(default)]
    pub pod: bool,
    /// When it is exported; `None`: always.
    pub only: Option<String>,
    /// The help text.
    pub meaning: String,
    /// The query that people want.
    pub query: String,
}

/// The catalogue cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("dashboards/metrics.toml: {0}")]
pub struct CatalogueError(String);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    metric: Vec<Metric>,
}

/// Returns the catalogue, in its order.
///
/// # Errors
/// It cannot be read, or breaks the rules for names and labels of design 4.4.
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
        return Err("the name does not begin with weir_".to_owned());
    }
    if (metric.kind == Kind::Counter) != metric.name.ends_with("_total") {
        return Err("counters and nothing else end in _total".to_owned());
    }
    for label in &metric.labels {
        if !LABELS.contains(&label.as_str()) {
            return Err(format!("{label} is none of the labels {LABELS:?}"));
        }
    }
    if metric.labels.contains("version") && metric.name != "weir_build_info" {
        return Err("version is a label of weir_build_info alone".to_owned());
    }
    if metric.programs.is_empty() {
        return Err("no program exports it".to_owned());
    }
    if !metric.meaning.ends_with('.') {
        return Err("meaning is a sentence".to_owned());
    }
    if !metric.query.contains(&metric.name) {
        return Err("the query does not use it".to_owned());
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
            ("\"counter\"", "\"gauge\"", "end in _total"),
            ("\"function\"", "\"user\"", "user is none"),
            ("\"function\"", "\"version\"", "weir_build_info alone"),
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
