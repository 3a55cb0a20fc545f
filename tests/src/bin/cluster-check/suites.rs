//! Compares results of Knative's own tests with Weir's queue-proxy in every pod, as in component `cluster-wide-queue-proxy`, and
//! with Knative's.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::time::sleep;

use crate::kubectl;
use crate::options::Options;

/// Time in which Knative replaces the pods of all revisions after a change of the image.
const SETTLING: Duration = Duration::from_secs(20);
const KEY: &str = "queue-sidecar-image";

/// Results of Knative's own tests with Weir's queue-proxy, compared to those with Knative's.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// Whether every test that passes with Knative's queue-proxy passes with Weir's.
    pub(crate) is_good: bool,
    /// Numbers of tests with each result, and the names of those that pass no more.
    pub(crate) note: String,
}

/// Names of tests by result.
#[derive(Debug, Default)]
struct Results {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// Runs the tests of Knative that `command` starts, with Knative's queue-proxy and then with Weir's, and compares the results.
pub(crate) async fn check(options: &Options, command: &str) -> anyhow::Result<Comparison> {
    let stock = run(command)?;
    ensure!(
        !stock.passed.is_empty(),
        "{command:?}: no test has passed with Knative's own"
    );
    let before = set_image(Some(&options.image("queue-proxy")))?;
    sleep(SETTLING).await;
    let own = run(command);
    set_image(before.as_deref())?;
    sleep(SETTLING).await;
    let own = own?;
    let lost: Vec<_> = stock.passed.difference(&own.passed).cloned().collect();
    let mut note = format!(
        "{} tests pass and {} fail with Weir's queue-proxy in every pod, {} and {} with Knative's",
        own.passed.len(),
        own.failed.len(),
        stock.passed.len(),
        stock.failed.len()
    );
    if !lost.is_empty() {
        note += &format!("; no more: {}", lost.join(", "));
    }
    Ok(Comparison {
        is_good: lost.is_empty(),
        note,
    })
}

/// Sets the image of pods' queue-proxy; returns the previous one.
fn set_image(image: Option<&str>) -> anyhow::Result<Option<String>> {
    const MAP: [&str; 4] = ["-n", "knative-serving", "configmap", "config-deployment"];
    let map = kubectl::get(&MAP)?.context("ConfigMap config-deployment is missing")?;
    let patch = json!({"data": {KEY: image}}).to_string();
    kubectl::run(&[&["patch"][..], &MAP, &["--type=merge", "-p", &patch]].concat())?;
    Ok(map["data"][KEY].as_str().map(str::to_owned))
}

/// Runs the command and parses its lines; the exit code adds nothing to them.
fn run(command: &str) -> anyhow::Result<Results> {
    let output = Command::new("sh").args(["-c", command]).output()?;
    let mut results = Results::default();
    let mut lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines.push_str(&String::from_utf8_lossy(&output.stderr));
    for line in lines.lines() {
        // As `go test -v` prints: `--- PASS: TestName (0.01s)`, subtests indented.
        let Some((what, rest)) = line
            .trim()
            .strip_prefix("--- ")
            .and_then(|it| it.split_once(": "))
        else {
            continue;
        };
        let name = rest.split(' ').next().unwrap_or_default().to_owned();
        match what {
            "PASS" => drop(results.passed.insert(name)),
            "FAIL" => drop(results.failed.insert(name)),
            _ => {}
        }
    }
    Ok(results)
}
