//! Functions with a GPU: their shares of a slot, and the reasons of waiting ones.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::kubectl::{self, until};
use crate::load::Outcome;
use crate::options::Options;
use crate::world::{Function, NAMESPACE, SOON, messages};

/// Time over which shares are measured.
const MEASURED: Duration = Duration::from_secs(20);
/// Allowed error of a share, in percentage points.
const POINTS: f64 = 2.0;

/// Result of the check of GPU functions.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(crate) is_good: bool,
    pub(crate) note: String,
    /// Number of requests to an oversubscribed slot, some of which had to be refused.
    pub(crate) overloaded: usize,
    /// Requests while the agents were replaced.
    pub(crate) rolled: Outcome,
}

const ALWAYS: (&str, &str) = ("autoscaling.knative.dev/min-scale", "1");
const AT_MOST: (&str, &str) = ("autoscaling.knative.dev/max-scale", "1");
const SHARED: (&str, &str) = ("weir.dev/isolation", "shared");
const MEMORY: (&str, &str) = ("weir.dev/gpu-memory", "1Gi");

fn function(name: &'static str, annotations: &'static [(&str, &str)]) -> Function<'static> {
    Function {
        name,
        takes: Duration::from_millis(20),
        // Several at once, so that one is always ready to compute.
        concurrency: 8,
        annotations,
        weights: Some("16MiB"),
        traffic: None,
    }
}

/// Checks that two functions which always compute share a slot as requested, that one which fits nowhere waits with the
/// scheduler's reason, and one refused by the agent with the agent's.
pub(crate) async fn check(options: &Options) -> anyhow::Result<Shares> {
    let small = function(
        "tenth",
        &[
            ALWAYS,
            AT_MOST,
            SHARED,
            MEMORY,
            ("weir.dev/quota-request", "0.1"),
            ("weir.dev/quota-limit", "0.1"),
        ],
    );
    let large = function(
        "nine-tenths",
        &[
            ALWAYS,
            AT_MOST,
            SHARED,
            MEMORY,
            ("weir.dev/quota-request", "0.9"),
        ],
    );
    small.apply(options).await?;
    large.apply(options).await?;
    let loads = [small.target(options)?.load(), large.target(options)?.load()];
    sleep(Duration::from_secs(10)).await;
    let begin = (used()?, Instant::now());
    sleep(MEASURED).await;
    let end = (used()?, Instant::now());
    let seconds = (end.1 - begin.1).as_secs_f64();
    let share = |name: &str| {
        let of = |page: &BTreeMap<String, f64>| page.get(name).copied().unwrap_or_default();
        100.0 * (of(&end.0) - of(&begin.0)) / seconds
    };
    let shares = [share(small.name), share(large.name)];
    let mut overloaded = 0;
    for load in loads {
        overloaded += load.stop().await.0.len();
    }
    let unplaced = function(
        "unplaced",
        &[ALWAYS, SHARED, MEMORY, ("weir.dev/quota-request", "0.5")],
    );
    let unplaced = waits(options, &unplaced, "Insufficient weir.dev/plan-permille").await?;
    let refused = function("refused", &[ALWAYS, MEMORY]);
    let text = "isolation: strict and tenant need an exclusive slot";
    let refused = waits(options, &refused, text).await?;
    for name in [small.name, large.name] {
        kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", name])?;
    }
    until("their pods are gone", SOON, || {
        Ok(pods("tenth")?.is_empty() && pods("nine-tenths")?.is_empty())
    })
    .await?;
    let rolled = agents_are_replaced(options).await?;
    let failed = rolled.failed().count();
    let is_good =
        failed == 0 && (shares[0] - 10.0).abs() <= POINTS && (shares[1] - 90.0).abs() <= POINTS;
    Ok(Shares {
        is_good,
        note: format!(
            "{:.1} and {:.1} % of the slot's time for 10 and 90; Pending: {unplaced}; refused: {refused}; agents replaced under \
             load: {failed} of {} requests failed{}",
            shares[0],
            shares[1],
            rolled.0.len(),
            rolled
                .first_failure()
                .map(|why| format!(", the first: {why}"))
                .unwrap_or_default()
        ),
        overloaded,
        rolled,
    })
}

/// Replaces all agents while a function computes; the daemons and processes continue.
async fn agents_are_replaced(options: &Options) -> anyhow::Result<Outcome> {
    let function = Function {
        takes: Duration::from_millis(5),
        ..function(
            "rolled",
            &[
                ALWAYS,
                AT_MOST,
                SHARED,
                MEMORY,
                ("weir.dev/quota-request", "0.6"),
            ],
        )
    };
    function.apply(options).await?;
    let load = function.target(options)?.load();
    sleep(Duration::from_secs(3)).await;
    let agents = ["daemonset/weir-agent", "-n", "weir-agent"];
    kubectl::run(&[&["rollout", "restart"][..], &agents].concat())?;
    kubectl::run(&[&["rollout", "status", "--timeout=120s"][..], &agents].concat())?;
    sleep(Duration::from_secs(5)).await;
    let outcome = load.stop().await;
    kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", function.name])?;
    until("its pod is gone", SOON, || {
        Ok(pods(function.name)?.is_empty())
    })
    .await?;
    Ok(outcome)
}

/// Returns the pods of a Service of the checks.
pub(crate) fn pods(service: &str) -> anyhow::Result<Vec<Value>> {
    let label = format!("serving.knative.dev/service={service}");
    kubectl::list(&["pods", "-n", NAMESPACE, "-l", &label])
}

/// Creates a function and waits until an event about one of its pods contains this text; returns the event's whole text.
async fn waits(options: &Options, function: &Function<'_>, text: &str) -> anyhow::Result<String> {
    let manifest = function.manifest(options).to_string();
    kubectl::run_with(&["apply", "-f", "-"], &manifest)?;
    let mut found = String::new();
    let what = format!("an event about {}: {text}", function.name);
    until(&what, SOON, || {
        let mut messages = messages("pods", function.name)?.into_iter();
        let message = messages.find(|message| message.contains(text));
        found = message.unwrap_or_default();
        Ok(!found.is_empty())
    })
    .await?;
    kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", function.name])?;
    until("its pods are gone", SOON, || {
        Ok(pods(function.name)?.is_empty())
    })
    .await?;
    Ok(found)
}

/// Returns the seconds for which the GPUs have computed for each function, over all agents.
fn used() -> anyhow::Result<BTreeMap<String, f64>> {
    let mut used = BTreeMap::new();
    for page in agent_pages()? {
        let lines = page
            .lines()
            .filter(|line| line.starts_with("weir_gpu_used_seconds_total{"));
        for line in lines {
            let (labels, value) = line.rsplit_once(' ').context("a value")?;
            let function = labels.split("function=\"").nth(1).unwrap_or_default();
            let function = function.split('"').next().unwrap_or_default();
            *used.entry(function.to_owned()).or_insert(0.0) += value.parse::<f64>()?;
        }
    }
    Ok(used)
}

/// Returns the metrics page of each agent.
pub(crate) fn agent_pages() -> anyhow::Result<Vec<String>> {
    let agents = [
        "pods",
        "-n",
        "weir-agent",
        "-l",
        "app.kubernetes.io/name=weir-agent",
    ];
    let agents = kubectl::list(&agents)?;
    ensure!(!agents.is_empty(), "no agent runs");
    let page = |agent: &Value| {
        let name = agent["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/weir-agent/pods/{name}:9471/proxy/metrics");
        kubectl::run(&["get", "--raw", &path])
    };
    agents.iter().map(page).collect()
}

/// Returns the container environment which makes model-server compute on a GPU for this time per request, with weights of this size.
pub(crate) fn environment(takes: Duration, concurrency: u32, weights: &str) -> Vec<Value> {
    let kernels = format!("{}x5ms", takes.as_millis().div_ceil(5));
    vec![
        json!({"name": "MODEL_DEVICE", "value": "gpu"}),
        json!({"name": "MODEL_KERNELS", "value": kernels}),
        json!({"name": "MODEL_WEIGHTS", "value": weights}),
        json!({"name": "MODEL_CONCURRENCY", "value": concurrency.clamp(1, 128).to_string()}),
    ]
}
