//! Rules for every dashboard: those of Grafana's dashboard linter, and that each query reads existing metrics.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use dashboards::boards::boards;
use dashboards::catalogue::{Kind, Metric, catalogue};
use dashboards::grafana::SCHEMA_VERSION;
use dashboards::promql::{Selector, selectors, with_variables};
use dashboards::rules::records;
use serde_json::Value;

const TYPES: [&str; 7] = [
    "timeseries",
    "stat",
    "table",
    "heatmap",
    "state-timeline",
    "text",
    "row",
];
/// Labels added by a scrape.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];
/// Panels that break a rule, with the reason.
const EXCEPTIONS: [(&str, &str, &str, &str); 7] = [
    (
        "counter",
        "weir-health",
        "Options that cannot be used",
        "it is set once, at the start of the process",
    ),
    (
        "rate-interval",
        "weir-function",
        "Why missed",
        "counts over the time that is shown",
    ),
    (
        "rate-interval",
        "weir-slots",
        "MPS restarts",
        "a restart is rare: it stays in sight for an hour",
    ),
    (
        "rate-interval",
        "weir-sharing",
        "Driver functions that the library does not know",
        "counts over the time that is shown",
    ),
    (
        "rate-interval",
        "weir-cost",
        "Used in the shown time",
        "counts over the time that is shown",
    ),
    (
        "job",
        "weir-health",
        "Targets down",
        "all of Weir's jobs, whichever are chosen",
    ),
    (
        "job",
        "weir-health",
        "Targets up, by job",
        "all of Weir's jobs, whichever are chosen",
    ),
];

struct Panel {
    board: &'static str,
    title: String,
    value: Value,
}

impl Panel {
    fn may_break(&self, rule: &str) -> bool {
        EXCEPTIONS.iter().any(|(own, board, title, _)| {
            *own == rule && *board == self.board && *title == self.title
        })
    }

    fn queries(&self) -> Vec<String> {
        let targets = self.value["targets"].as_array().unwrap().iter();
        targets
            .map(|target| target["expr"].as_str().unwrap().to_owned())
            .collect()
    }

    fn name(&self) -> String {
        format!("{}: {}", self.board, self.title)
    }
}

fn panels() -> Vec<Panel> {
    let mut all = Vec::new();
    for board in boards() {
        for value in board.json()["panels"].as_array().unwrap() {
            if value["type"] != "row" {
                all.push(Panel {
                    board: board.uid,
                    title: value["title"].as_str().unwrap().to_owned(),
                    value: value.clone(),
                });
            }
        }
    }
    all
}

/// Returns the catalogue's entries by the names of their series.
fn series() -> BTreeMap<String, Vec<Metric>> {
    let mut all: BTreeMap<String, Vec<Metric>> = BTreeMap::new();
    for metric in catalogue().unwrap() {
        let names = match metric.kind {
            Kind::Histogram => ["_bucket", "_sum", "_count"]
                .map(|end| format!("{}{end}", metric.name))
                .to_vec(),
            Kind::Counter | Kind::Gauge => vec![metric.name.clone()],
        };
        for name in names {
            all.entry(name).or_default().push(metric.clone());
        }
    }
    all
}

fn recorded() -> BTreeSet<String> {
    let groups = records();
    groups
        .into_iter()
        .flat_map(|group| group.rules)
        .map(|rule| rule.name)
        .collect()
}

#[test]
fn a_dashboard_is_stable_and_its_variables_are_those_of_the_linter() {
    let mut uids = BTreeSet::new();
    for board in boards() {
        assert!(uids.insert(board.uid), "{} is there twice", board.uid);
        let json = board.json();
        assert!(json["id"].is_null());
        assert_eq!(json["schemaVersion"], SCHEMA_VERSION);
        assert_eq!(json["editable"], false);
        assert!(!json["description"].as_str().unwrap().is_empty());
        assert!(
            !json.to_string().contains("://"),
            "{} names a host",
            board.uid
        );
        let variables = json["templating"]["list"].as_array().unwrap();
        let find = |name: &str| variables.iter().find(|own| own["name"] == name);
        assert_eq!(find("datasource").unwrap()["query"], "prometheus");
        for name in TARGET_LABELS {
            assert_eq!(find(name).unwrap()["includeAll"], true);
        }
        for variable in variables.iter().filter(|own| own["type"] == "query") {
            assert_eq!(variable["refresh"], 2, "{}", variable["name"]);
            let query = variable["query"]["query"].as_str().unwrap();
            let inner = query
                .strip_prefix("label_values(")
                .unwrap()
                .strip_suffix(')')
                .unwrap();
            let (own, label) = inner.rsplit_once(", ").unwrap();
            assert_eq!(label, variable["name"], "{query}");
            assert!(!selectors(&with_variables(own, "5m")).unwrap().is_empty());
        }
    }
}

#[test]
fn a_panel_describes_what_it_shows_and_what_to_do() {
    let uids: BTreeSet<_> = boards().iter().map(|board| board.uid).collect();
    let mut seen = BTreeSet::new();
    for panel in panels() {
        let (name, value) = (panel.name(), &panel.value);
        assert!(seen.insert(name.clone()), "{name} is there twice");
        assert!(TYPES.contains(&value["type"].as_str().unwrap()), "{name}");
        assert_eq!(value["datasource"]["uid"], "${datasource}", "{name}");
        let description = value["description"].as_str().unwrap();
        assert!(
            description.len() >= 40 && description.ends_with('.'),
            "{name}: {description}"
        );
        let defaults = &value["fieldConfig"]["defaults"];
        assert!(!defaults["unit"].as_str().unwrap().is_empty(), "{name}");
        assert!(
            !defaults["thresholds"]["steps"]
                .as_array()
                .unwrap()
                .is_empty(),
            "{name}"
        );
        let url = value["links"][0]["url"].as_str().unwrap();
        let target = url.strip_prefix("/d/").unwrap().split('?').next().unwrap();
        assert!(uids.contains(target), "{name} leads to {target}");
        assert_ne!(target, panel.board, "{name} leads to itself");
        for target in value["targets"].as_array().unwrap() {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{name}");
        }
        assert!(!panel.queries().is_empty(), "{name} has no query");
    }
    assert!(seen.len() >= 60, "{}", seen.len());
}

#[test]
fn panels_do_not_overlap() {
    for board in boards() {
        let mut taken = BTreeSet::new();
        for panel in board.json()["panels"].as_array().unwrap() {
            let of = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(of("x") + of("w") <= 24, "{}: {}", board.uid, panel["title"]);
            for x in of("x")..of("x") + of("w") {
                for y in of("y")..of("y") + of("h") {
                    assert!(taken.insert((x, y)), "{}: {}", board.uid, panel["title"]);
                }
            }
        }
    }
}

fn check_selector(panel: &Panel, own: &Selector, series: &BTreeMap<String, Vec<Metric>>) {
    let name = panel.name();
    let has = |label: &str| own.matchers.iter().any(|(key, _)| key == label);
    if own.name != "up" {
        let metrics = series.get(&own.name);
        let metrics = metrics.unwrap_or_else(|| panic!("{name}: {} is in no catalogue", own.name));
        for (label, _) in &own.matchers {
            let is_known = TARGET_LABELS.contains(&label.as_str())
                || label == "le"
                || metrics.iter().any(|metric| metric.labels.contains(label));
            assert!(is_known, "{name}: {} has no label {label}", own.name);
        }
        let is_counter = metrics[0].kind != Kind::Gauge;
        let is_rate = matches!(own.function, Some("rate" | "irate" | "increase"));
        assert!(
            is_counter == is_rate || panel.may_break("counter"),
            "{name}: {} is read by {:?}",
            own.name,
            own.function
        );
    }
    if !panel.may_break("job") {
        for label in TARGET_LABELS {
            assert!(has(label), "{name}: {} does not match {label}", own.name);
        }
    }
}

#[test]
fn every_query_reads_metrics_of_the_catalogue_as_their_type_requires() {
    let (series, recorded) = (series(), recorded());
    let mut read = BTreeSet::new();
    for panel in panels() {
        for query in panel.queries() {
            let text = with_variables(&query, "5m");
            let found =
                selectors(&text).unwrap_or_else(|why| panic!("{}: {why}\n{text}", panel.name()));
            assert!(!found.is_empty(), "{}", panel.name());
            for own in &found {
                read.insert(own.name.clone());
                // Recorded series are sums over targets, without the label `job`.
                if recorded.contains(&own.name) {
                    continue;
                }
                check_selector(&panel, own, &series);
            }
            for range in query.split('[').skip(1) {
                let range = range.split(']').next().unwrap();
                let is_right = range == "$__rate_interval" || panel.may_break("rate-interval");
                assert!(is_right, "{}: [{range}]", panel.name());
            }
        }
    }
    let unread: Vec<_> = catalogue()
        .unwrap()
        .into_iter()
        .filter(|metric| !read.iter().any(|name| name.starts_with(&metric.name)))
        .map(|metric| metric.name)
        .filter(|name| !NOT_SHOWN.iter().any(|(own, _)| own == name))
        // Series read by recording rules.
        .filter(|name| {
            !records()
                .iter()
                .flat_map(|group| &group.rules)
                .any(|rule| rule.expr.contains(name))
        })
        .collect();
    assert_eq!(unread, [""; 0], "these are exported and shown nowhere");
}

/// Metrics that no panel shows, with the reason.
const NOT_SHOWN: [(&str, &str); 9] = [
    (
        "weir_gpu_asked_seconds_total",
        "the share of the last ten seconds is shown",
    ),
    (
        "weir_requests_through_activator_total",
        "says how exact a pod's own account is",
    ),
    (
        "weir_disbelieved_kubelet_probes_total",
        "for the search after a failing probe",
    ),
    (
        "weir_gpu_token_grants_total",
        "of interest to developers of the scheduler",
    ),
    (
        "weir_gpu_slot_token_grants_total",
        "of interest to developers of the scheduler",
    ),
    (
        "weir_gpu_agent_token_grants_total",
        "of interest to developers of the scheduler",
    ),
    (
        "weir_gpu_agent_service_wakeups_total",
        "of interest to developers of the scheduler",
    ),
    ("weir_gpu_token_overruns_total", "its seconds are shown"),
    ("weir_gpu_slot_losses_total", "the state over time is shown"),
];

#[test]
fn every_exception_is_needed() {
    let panels = panels();
    for (_, board, title, reason) in EXCEPTIONS {
        assert!(!reason.is_empty());
        let is_there = panels
            .iter()
            .any(|panel| panel.board == board && panel.title == title);
        assert!(is_there, "{board}: {title}");
    }
}
