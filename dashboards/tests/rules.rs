//! Rules and alerts: their form, their runbooks, and whether promtool's tests detect a change of any threshold.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "reports skipped checks")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use dashboards::catalogue::{Kind, catalogue};
use dashboards::outputs::{differences, outputs, test_step, write};
use dashboards::promql::{mutants, selectors, without_filters};
use dashboards::promtool;
use dashboards::rules::{
    Alert, RecordGroup, Severity, alerts, alerts_file, records, records_yaml, tests_file,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// Returns whether promtool is installed. Tests that need it are skipped otherwise, with a message.
fn has_promtool() -> bool {
    let is_there = promtool::is_installed();
    if !is_there {
        eprintln!("{}", promtool::MISSING);
    }
    is_there
}

fn promtool(folder: &Path, arguments: &[&str]) -> (bool, String) {
    promtool::run(folder, arguments, "").unwrap()
}

#[test]
fn the_committed_files_are_those_that_the_source_writes() {
    let outputs = outputs().unwrap();
    assert_eq!(
        differences(&root(), &outputs),
        [""; 0],
        "run: cargo run -p dashboards -- write"
    );
}

#[test]
fn a_difference_is_named_with_its_line_and_write_repairs_it() {
    let (folder, outputs) = (tempfile::tempdir().unwrap(), outputs().unwrap());
    assert_eq!(differences(folder.path(), &outputs).len(), outputs.len());
    assert_eq!(write(folder.path(), &outputs).unwrap().len(), outputs.len());
    assert_eq!(differences(folder.path(), &outputs), [""; 0]);
    let rules = folder.path().join("dashboards/rules/weir-alerts.yaml");
    let text = fs::read_to_string(&rules).unwrap();
    fs::write(&rules, text.replacen("for: 2m", "for: 3m", 1)).unwrap();
    fs::write(folder.path().join("dashboards/rules/own.yaml"), "").unwrap();
    let differing = differences(folder.path(), &outputs);
    let line = 1 + text
        .lines()
        .position(|line| line.contains("for: 2m"))
        .unwrap();
    assert_eq!(
        differing,
        [
            format!("dashboards/rules/weir-alerts.yaml:{line} differs from the generated file"),
            "dashboards/rules/own.yaml is not a generated file".to_owned(),
        ]
    );
    assert_eq!(
        write(folder.path(), &outputs).unwrap(),
        ["dashboards/rules/weir-alerts.yaml"]
    );
}

#[test]
fn recorded_names_have_level_metric_and_operation_and_alerts_a_summary_with_numbers() {
    for rule in records().iter().flat_map(|group| &group.rules) {
        let parts: Vec<_> = rule.name.split(':').collect();
        assert!(
            parts.len() == 3 && parts[1].starts_with("weir_"),
            "{}",
            rule.name
        );
        assert!(selectors(&rule.expr).is_ok(), "{}", rule.name);
    }
    let mut names = BTreeSet::new();
    for alert in alerts() {
        assert!(names.insert(alert.name), "{} is there twice", alert.name);
        assert!(alert.name.starts_with("Weir"), "{}", alert.name);
        assert!(alert.hold.ends_with(['s', 'm']), "{}", alert.name);
        let is_general = alert.severity == Severity::None;
        assert!(
            is_general || alert.summary.contains("{{ $"),
            "{}",
            alert.name
        );
        let firing = alert
            .cases
            .iter()
            .filter(|case| !case.firing.is_empty())
            .count();
        assert!(firing > 0, "{} never fires", alert.name);
        assert!(
            alert.fires_without_data || firing < alert.cases.len(),
            "{} is never silent",
            alert.name
        );
    }
}

#[test]
fn rules_read_existing_metrics() {
    let recorded: BTreeSet<_> = records()
        .into_iter()
        .flat_map(|group| group.rules)
        .map(|rule| rule.name)
        .collect();
    let catalogue = catalogue().unwrap();
    let alerts = alerts();
    let expressions = records()
        .into_iter()
        .flat_map(|group| group.rules)
        .map(|rule| (rule.name, rule.expr));
    let expressions = expressions.chain(
        alerts
            .iter()
            .map(|alert| (alert.name.to_owned(), alert.expr.clone())),
    );
    for (name, expr) in expressions {
        for own in selectors(&expr).unwrap() {
            if recorded.contains(&own.name) || own.name == "up" {
                continue;
            }
            let metric = catalogue.iter().find(|metric| metric.name == own.name);
            let metric =
                metric.unwrap_or_else(|| panic!("{name}: {} is in no catalogue", own.name));
            let is_rate = matches!(own.function, Some("rate" | "increase"));
            let is_counter = metric.kind == Kind::Counter;
            // The number of invalid options is set once, at the start.
            assert!(
                is_counter == is_rate || own.name == "weir_option_problems_total",
                "{name}: {}",
                own.name
            );
        }
        assert!(
            selectors(&without_filters(&expr).unwrap()).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn each_alert_has_a_runbook_and_each_runbook_an_alert() {
    let folder = root().join("docs/runbooks");
    let mut found: BTreeSet<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(found.remove("README.md"), "docs/runbooks/README.md");
    for alert in alerts() {
        let name = format!("{}.md", alert.name);
        assert!(found.remove(&name), "docs/runbooks/{name} is missing");
        let text = fs::read_to_string(folder.join(&name)).unwrap();
        let mut is_code = false;
        let headings: Vec<_> = text
            .lines()
            .filter(|line| {
                is_code ^= line.starts_with("```");
                !is_code && line.starts_with('#')
            })
            .collect();
        let expected = [
            format!("# {}", alert.name),
            "## Meaning".to_owned(),
            "## Impact".to_owned(),
            "## Look".to_owned(),
            "## Causes and remedies".to_owned(),
            "## When to silence".to_owned(),
        ];
        assert_eq!(headings, expected, "{name}");
        let index = fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(
            index.contains(&format!("({name})")),
            "README.md does not list {name}"
        );
    }
    assert_eq!(found, BTreeSet::new(), "runbooks without an alert");
}

#[test]
fn promtool_accepts_the_rules_and_each_alert_fires_and_is_silent_as_expected() {
    if !has_promtool() {
        return;
    }
    let folder = root().join("dashboards/rules");
    let (is_right, text) = promtool(
        &folder,
        &["check", "rules", "weir-recording.yaml", "weir-alerts.yaml"],
    );
    assert!(is_right, "{text}");
    let mut tests: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with("_test.yaml"))
        .collect();
    tests.sort();
    assert_eq!(tests.len(), 3);
    for name in tests {
        let (is_right, text) = promtool(&folder, &["test", "rules", &name]);
        assert!(is_right, "{name}\n{text}");
    }
}

/// Returns the recording rules that an expression needs, including those needed by others.
fn needed(expr: &str) -> Vec<RecordGroup> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut wanted: Vec<String> = vec![expr.to_owned()];
    while let Some(expr) = wanted.pop() {
        for own in selectors(&expr).unwrap() {
            for rule in records().into_iter().flat_map(|group| group.rules) {
                if rule.name == own.name && names.insert(rule.name) {
                    wanted.push(rule.expr);
                }
            }
        }
    }
    let mut groups = records();
    for group in &mut groups {
        group.rules.retain(|rule| names.contains(&rule.name));
    }
    groups.retain(|group| !group.rules.is_empty());
    groups
}

/// Returns whether an alert's own tests pass with this expression and these recording rules.
fn passes(alert: &Alert, expr: &str, groups: &[RecordGroup]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let changed = Alert {
        expr: expr.to_owned(),
        ..alert.clone()
    };
    let rules = if groups.is_empty() {
        "groups: []\n".to_owned()
    } else {
        records_yaml(groups, "")
    };
    fs::write(folder.path().join("records.yaml"), rules).unwrap();
    fs::write(folder.path().join("alerts.yaml"), alerts_file(&[changed])).unwrap();
    let tests = tests_file(&[alert], &["records.yaml", "alerts.yaml"], test_step(alert));
    // promtool rejects an order that names missing groups.
    let lines = tests
        .lines()
        .filter(|line| !line.starts_with("group_eval_order"));
    let names: Vec<_> = groups
        .iter()
        .map(|group| group.name)
        .chain(["weir-alerts"])
        .collect();
    let tests = lines.fold(String::new(), |text, line| text + line + "\n");
    let tests = tests.replacen(
        "tests:",
        &format!("group_eval_order: [{}]\ntests:", names.join(", ")),
        1,
    );
    fs::write(folder.path().join("own_test.yaml"), tests).unwrap();
    promtool(folder.path(), &["test", "rules", "own_test.yaml"]).0
}

/// Returns copies of the groups, each with one threshold of burn rates increased or decreased.
fn thresholds(groups: &[RecordGroup]) -> Vec<Vec<RecordGroup>> {
    let mut all = Vec::new();
    for factor in ["1.5", "0.5"] {
        let mut changed = groups.to_vec();
        let mut is_there = false;
        for rule in changed.iter_mut().flat_map(|group| &mut group.rules) {
            if rule.name.contains(":weir_slo_threshold:") {
                rule.expr = format!("{factor} * ({})", rule.expr);
                is_there = true;
            }
        }
        if is_there {
            all.push(changed);
        }
    }
    all
}

#[test]
fn a_change_of_any_threshold_or_comparison_fails_a_test() {
    if !has_promtool() {
        return;
    }
    let alerts = alerts();
    let halves: Vec<Vec<&Alert>> = (0..2)
        .map(|half| alerts.iter().skip(half).step_by(2).collect())
        .collect();
    let survivors = thread::scope(|scope| {
        let run = |own: &Vec<&Alert>| {
            let mut survivors = Vec::new();
            for alert in own {
                let groups = needed(&alert.expr);
                assert!(passes(alert, &alert.expr, &groups), "{}", alert.name);
                for expr in mutants(&alert.expr).unwrap() {
                    if passes(alert, &expr, &groups) {
                        survivors.push(format!("{}: {expr}", alert.name));
                    }
                }
                for changed in thresholds(&groups) {
                    if passes(alert, &alert.expr, &changed) {
                        survivors.push(format!("{}: a threshold", alert.name));
                    }
                }
            }
            survivors
        };
        let running: Vec<_> = halves
            .iter()
            .map(|own| scope.spawn(move || run(own)))
            .collect();
        running
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(survivors, [""; 0], "changes not detected by any test");
}
