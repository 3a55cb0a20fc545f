//! Churn of functions beside many permanent ones: memory of Weir's programs, and their writes at rest.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, interval, sleep};

use crate::kubectl::{self, until};
use crate::options::Options;
use crate::world::{Function, NAMESPACE, OPTED_IN, SOON, WRITTEN_BY_WEIR, is_ready};

/// Number of permanent functions, each with one revision.
const KEPT: usize = 200;
/// Number of functions created at a time, after the previous ones are ready: a small node starts no more pods at once.
const BATCH: usize = 20;
/// Number of functions created, and deleted, per minute.
const A_MINUTE: u32 = 20;
/// Lifetime of a temporary function.
const LIFE: Duration = Duration::from_secs(60);
/// Time over which no object may be written at rest.
const REST: Duration = Duration::from_secs(60);
/// Interval between samples of memory; the kubelet's own figures are hardly newer.
const SAMPLE_PERIOD: Duration = Duration::from_secs(15);
/// Largest memory of a program of either role, in MiB.
const MIB_MAX: f64 = 40.0;
/// Memory is flat if its mean in the last fifth of the time is at most that in the second fifth, times this factor, plus
/// [`SLACK_MIB`].
const GROWTH_MAX: f64 = 1.1;
/// Growth of memory in MiB that does not count, since allocators take and return it.
const SLACK_MIB: f64 = 1.0;

/// Result of the soak.
#[derive(Debug)]
pub(crate) struct SoakResult {
    pub(crate) is_good: bool,
    pub(crate) note: String,
}

fn function(name: &str) -> Function<'_> {
    Function {
        name,
        takes: Duration::from_millis(5),
        concurrency: 1,
        weights: None,
        annotations: &OPTED_IN,
        traffic: None,
    }
}

/// Creates the permanent functions, checks for writes at rest, and churns others for `span`.
pub(crate) async fn check(options: &Options, span: Duration) -> anyhow::Result<SoakResult> {
    let begin = Instant::now();
    create_kept(options).await?;
    let created = begin.elapsed().as_secs_f64();
    // Work in progress ends first: the last functions scale to zero, and statuses are written.
    sleep(REST).await;
    let before = versions()?;
    sleep(REST).await;
    let after = versions()?;
    let written: Vec<_> = after
        .iter()
        .filter(|(name, version)| before.get(*name) != Some(version))
        .map(|(name, _)| name.clone())
        .collect();
    let churned = churn(options, span).await?;
    kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", "-l", "weir-check=soak"])?;
    let mut is_good = written.is_empty();
    let mut note = format!(
        "{KEPT} functions were ready and attached after {created:.0} s; at rest {} objects were written in {} s{}; {} more came and went",
        written.len(),
        REST.as_secs(),
        written
            .first()
            .map(|name| format!(", {name} first"))
            .unwrap_or_default(),
        churned.count
    );
    for (pod, samples) in &churned.memory {
        let fifth = samples.len() / 5;
        // Short-lived pods have too few samples.
        let Some(early) = samples.get(fifth..2 * fifth).filter(|it| !it.is_empty()) else {
            is_good = false;
            note += &format!("; {pod}: seen {} times only", samples.len());
            continue;
        };
        let (early, late) = (mean(early), mean(&samples[samples.len() - fifth..]));
        let most = samples.iter().copied().fold(0.0, f64::max);
        is_good &= most <= MIB_MAX && late <= GROWTH_MAX * early + SLACK_MIB;
        note += &format!("; {pod}: {early:.1} MiB, at the end {late:.1}, at most {most:.1}");
    }
    Ok(SoakResult { is_good, note })
}

async fn create_kept(options: &Options) -> anyhow::Result<()> {
    let names: Vec<_> = (0..KEPT)
        .map(|number| format!("kept-{number:03}"))
        .collect();
    for batch in names.chunks(BATCH) {
        let items: Vec<_> = batch.iter().map(|name| manifest(options, name)).collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        kubectl::run_with(&["apply", "-f", "-"], &list.to_string())?;
        let what = format!("{} to {} are ready", batch[0], batch[batch.len() - 1]);
        until(&what, 5 * SOON, || {
            let services = kubectl::list(&["ksvc", "-n", NAMESPACE, "-l", "weir-check=soak"])?;
            let ready = services.iter().filter(|service| is_ready(service)).count();
            let there = services.len();
            Ok(ready == there && there % BATCH == 0)
        })
        .await?;
    }
    until("all are attached", 5 * SOON, || {
        let slices = kubectl::list(&["endpointslices", "-n", NAMESPACE, "-l", WRITTEN_BY_WEIR])?;
        let name = |slice: &Value| slice["metadata"]["name"].as_str().map(str::to_owned);
        let kept = slices.iter().filter_map(name);
        Ok(kept.filter(|name| name.starts_with("kept-")).count() == KEPT)
    })
    .await
    .map(drop)
}

fn manifest(options: &Options, name: &str) -> Value {
    let mut manifest = function(name).manifest(options);
    manifest["metadata"]["labels"] = json!({"weir-check": "soak"});
    manifest["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/window"] =
        json!("6s");
    manifest
}

/// Returns the versions of the objects written by role `control`, by kind, namespace and name, without functions with requests in
/// the last hour: their share in time changes as old requests expire.
fn versions() -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let lists: [&[&str]; 6] = [
        &["endpointslices", "-A", "-l", WRITTEN_BY_WEIR],
        &["gpufunctions", "-A"],
        &["secrets", "-n", "weir-system"],
        &["configmaps", "-n", "weir-system"],
        &["mutatingwebhookconfigurations"],
        &["validatingwebhookconfigurations"],
    ];
    for arguments in lists {
        for object in kubectl::list(arguments)? {
            let of = |pointer: &str| {
                let value = object.pointer(pointer).and_then(Value::as_str);
                value.unwrap_or_default().to_owned()
            };
            let (kind, name) = (of("/kind"), of("/metadata/name"));
            let is_own = match kind.as_str() {
                "GpuFunction" => name.starts_with("kept-"),
                "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => name == "weir",
                _ => true,
            };
            if is_own {
                let key = format!("{kind} {}/{name}", of("/metadata/namespace"));
                found.insert(key, of("/metadata/resourceVersion"));
            }
        }
    }
    ensure!(found.len() > KEPT, "only {} objects of Weir's", found.len());
    Ok(found)
}

#[derive(Debug, Default)]
struct ChurnResult {
    count: u32,
    /// MiB of each pod of Weir's roles, in the order of time.
    memory: BTreeMap<String, Vec<f64>>,
}

/// Creates and deletes functions for `span`.
async fn churn(options: &Options, span: Duration) -> anyhow::Result<ChurnResult> {
    let end = Instant::now() + span;
    let mut churned = ChurnResult::default();
    let mut living: VecDeque<(String, Instant)> = VecDeque::new();
    let mut next_sample = Instant::now();
    let mut tick = interval(Duration::from_secs(60) / A_MINUTE);
    while Instant::now() < end {
        tick.tick().await;
        let name = format!("passing-{}", churned.count);
        let manifest = manifest(options, &name).to_string();
        kubectl::run_with(&["apply", "-f", "-"], &manifest)?;
        churned.count += 1;
        living.push_back((name, Instant::now()));
        while let Some((name, _)) = living.front().filter(|(_, born)| born.elapsed() > LIFE) {
            kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", name, "--wait=false"])?;
            living.pop_front();
        }
        if next_sample <= Instant::now() {
            next_sample = Instant::now() + SAMPLE_PERIOD;
            for (pod, mib) in memory()? {
                churned.memory.entry(pod).or_default().push(mib);
            }
        }
    }
    ensure!(churned.memory.len() >= 2, "no kubelet reports Weir's pods");
    Ok(churned)
}

/// Returns the memory of the pods of Weir's two roles by their kubelets, in MiB.
fn memory() -> anyhow::Result<BTreeMap<String, f64>> {
    let mut found = BTreeMap::new();
    for node in kubectl::list(&["nodes"])? {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/nodes/{name}/proxy/stats/summary");
        let text = kubectl::run(&["get", "--raw", &path])?;
        let summary: Value = serde_json::from_str(&text).context("the kubelet's statistics")?;
        for pod in summary["pods"].as_array().into_iter().flatten() {
            let name = pod["podRef"]["name"].as_str().unwrap_or_default();
            let is_own = ["weir-control-", "weir-activator-"]
                .iter()
                .any(|prefix| name.starts_with(prefix));
            let containers = pod["containers"].as_array().into_iter().flatten();
            let bytes: f64 = containers
                .filter_map(|it| it["memory"]["workingSetBytes"].as_f64())
                .sum();
            if is_own && bytes > 0.0 {
                found.insert(name.to_owned(), bytes / f64::from(1_u32 << 20));
            }
        }
    }
    Ok(found)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}
