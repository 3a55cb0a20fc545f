//! The files that are written from this crate, and whether they are as they should be.

use std::fs;
use std::io;
use std::path::Path;

use crate::catalogue::{CatalogueError, catalogue};
use crate::rules::{Alert, alerts, alerts_file, records_file, tests_file};
use crate::{boards, objects, queries, reference};

/// Alerts with long windows, and by how many minutes their tests step: the others step by one.
const LONG: [(&str, u32); 4] = [
    ("WeirObjectiveBurns", 5),
    ("WeirObjectiveMissedByFewRequests", 5),
    ("WeirObjectiveBurnsSlowly", 30),
    ("WeirObjectiveBudgetSpent", 30),
];
/// The rule files, as their tests name them.
const RULE_FILES: [&str; 2] = ["weir-recording.yaml", "weir-alerts.yaml"];

/// A file, by its path in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its path from the repository's root.
    pub path: String,
    /// What it holds.
    pub text: String,
}

/// Returns the steps of an alert's tests, in minutes.
#[must_use]
pub fn test_step(alert: &Alert) -> u32 {
    let own = LONG.iter().find(|(name, _)| *name == alert.name);
    own.map_or(1, |(_, minutes)| *minutes)
}

/// Returns all files.
///
/// # Errors
/// The catalogue cannot be used.
pub fn outputs() -> Result<Vec<Output>, CatalogueError> {
    let catalogue = catalogue()?;
    let alerts = alerts();
    let tests = |minutes: u32| {
        let own: Vec<_> = alerts
            .iter()
            .filter(|own| test_step(own) == minutes)
            .collect();
        tests_file(&own, &RULE_FILES, minutes)
    };
    let mut all: Vec<(String, String)> = vec![
        (
            "docs/metrics.md".to_owned(),
            reference::markdown(&catalogue),
        ),
        (
            "dashboards/rules/weir-recording.yaml".to_owned(),
            records_file(),
        ),
        (
            "dashboards/rules/weir-alerts.yaml".to_owned(),
            alerts_file(&alerts),
        ),
        (
            "dashboards/rules/weir-alerts_test.yaml".to_owned(),
            tests(1),
        ),
        (
            "dashboards/rules/weir-alerts-5m_test.yaml".to_owned(),
            tests(5),
        ),
        (
            "dashboards/rules/weir-alerts-30m_test.yaml".to_owned(),
            tests(30),
        ),
        (
            "dashboards/src/rules/unfiltered.json".to_owned(),
            queries::unfiltered_table(),
        ),
        (
            "dashboards/kustomization.yaml".to_owned(),
            objects::config_maps(),
        ),
        (
            "dashboards/provisioning/dashboards/weir.yaml".to_owned(),
            objects::provider(),
        ),
        (
            "manifests/components/monitoring/monitors.yaml".to_owned(),
            objects::monitors(&catalogue),
        ),
        (
            "manifests/components/monitoring/rules.yaml".to_owned(),
            objects::prometheus_rules(),
        ),
        (
            "manifests/components/grafana-operator/dashboards.yaml".to_owned(),
            objects::grafana_operator(),
        ),
    ];
    for board in boards::boards() {
        let path = format!("dashboards/{}/{}.json", objects::PROVISIONED, board.uid);
        all.push((path, format!("{:#}\n", board.json())));
    }
    Ok(all
        .into_iter()
        .map(|(path, text)| Output { path, text })
        .collect())
}

/// Writes all files under `root`. Returns the paths of those that have changed.
///
/// # Errors
/// A file that cannot be written, with its path.
pub fn write(root: &Path, outputs: &[Output]) -> io::Result<Vec<String>> {
    let mut changed = Vec::new();
    for output in outputs {
        let path = root.join(&output.path);
        if fs::read_to_string(&path).is_ok_and(|text| text == output.text) {
            continue;
        }
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", output.path));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(named)?;
        }
        fs::write(&path, &output.text).map_err(named)?;
        changed.push(output.path.clone());
    }
    Ok(changed)
}

/// Returns what is not as it should be under `root`, a sentence each: files that differ or are missing, and dashboards and rules that
/// nothing writes.
#[must_use]
pub fn differences(root: &Path, outputs: &[Output]) -> Vec<String> {
    let mut all = Vec::new();
    for output in outputs {
        match fs::read_to_string(root.join(&output.path)) {
            Ok(text) if text == output.text => {}
            Ok(text) => {
                let same = text
                    .bytes()
                    .zip(output.text.bytes())
                    .take_while(|(a, b)| a == b);
                let line = 1 + same.filter(|(byte, _)| *byte == b'\n').count();
                all.push(format!(
                    "{}:{line} is not what the source says",
                    output.path
                ));
            }
            Err(error) => all.push(format!("{}: {error}", output.path)),
        }
    }
    for folder in [
        "dashboards/rules".to_owned(),
        format!("dashboards/{}", objects::PROVISIONED),
    ] {
        let Ok(entries) = fs::read_dir(root.join(&folder)) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if !outputs.iter().any(|output| output.path == path) {
                all.push(format!("{path} is written by nothing"));
            }
        }
    }
    all
}
