//! Functions whose models do not all fit the node's GPUs, which share them by leases.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::gpu::{agent_pages, pods};
use crate::kubectl::{self, until};
use crate::load::{Load, Outcome};
use crate::options::Options;
use crate::world::{Function, NAMESPACE, Overlay, SOON};

/// Objective of the functions.
const OBJECTIVE: Duration = Duration::from_millis(500);
/// Names of the functions, whose models do not fit the GPUs together.
const NAMES: [&str; 3] = ["first", "second", "third"];
/// Rate of requests to each function, per second.
const RATE: u32 = 2;
/// Duration of each part of the load.
const SPAN: Duration = Duration::from_secs(15);
/// Least share of requests in time while nothing is replaced, in percent.
const IN_TIME_MIN: f64 = 95.0;

/// Result of the check.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) is_good: bool,
    pub(crate) note: String,
    pub(crate) outcome: Outcome,
}

/// How the GPUs of the node are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Two GPUs, of which each holds one model, and on which one function computes at a time.
    InTurns,
    /// One GPU, which holds two models, and on which all whose models are there compute.
    AtOnce,
}

impl Sharing {
    /// Returns the number of instances of each function.
    const fn instances(self) -> usize {
        match self {
            // One at each GPU.
            Self::InTurns => 2,
            Self::AtOnce => 1,
        }
    }
}

fn function(name: &'static str, sharing: Sharing) -> Function<'static> {
    Function {
        name,
        takes: Duration::from_millis(20),
        concurrency: 1,
        // 44 MiB with what a request computes in. A load takes the node's processors, which hash and copy what a GPU would: of 128 MiB, which take 0.2 s,
        // these loads leave two of them nothing for anything else.
        weights: Some("32MiB"),
        annotations: match sharing {
            Sharing::InTurns => &[
                ("weir.dev/slo", "500ms"),
                ("weir.dev/gpu-memory", "200Mi"),
                ("autoscaling.knative.dev/min-scale", "2"),
                ("autoscaling.knative.dev/max-scale", "2"),
            ],
            Sharing::AtOnce => &[
                ("weir.dev/slo", "500ms"),
                ("weir.dev/isolation", "shared"),
                ("weir.dev/sm-percent", "33"),
                ("weir.dev/gpu-memory", "200Mi"),
                ("autoscaling.knative.dev/min-scale", "1"),
                ("autoscaling.knative.dev/max-scale", "1"),
            ],
        },
        traffic: None,
    }
}

/// Checks that three functions whose models do not all fit the GPUs answer all requests in time; that their requests wait for the next agent while the agents are
/// replaced; and that pods of theirs are replaced without a failed request.
pub(crate) async fn check(options: &Options, sharing: Sharing) -> anyhow::Result<Checked> {
    let overlay = Overlay::new(options, &options.images)?;
    let slots = match sharing {
        Sharing::InTurns => "[slots]\nkind = \"exclusive\"\nmemory = \"60Mi\"\n",
        Sharing::AtOnce => "[slots]\nmemory = \"100Mi\"\n",
    };
    overlay.replace("components/softgpu/agent.toml", "[slots]\n", slots)?;
    if sharing == Sharing::InTurns {
        overlay.replace(
            "components/softgpu/mps.toml",
            "[node]\n",
            "[slots]\nkind = \"exclusive\"\n\n[node]\n",
        )?;
        overlay.replace(
            "components/softgpu/mps.yaml",
            "--gpu, H100,",
            "--gpu, H100, --gpus, \"2\",",
        )?;
    }
    overlay.run("apply")?;
    replace_gpus().await?;
    let checked = exercise(options, sharing).await;
    for name in NAMES {
        kubectl::run(&[
            "-n",
            NAMESPACE,
            "delete",
            "ksvc",
            name,
            "--ignore-not-found",
        ])?;
    }
    until("their pods are gone", 2 * SOON, || {
        let left = NAMES.map(pods).into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(left.iter().all(Vec::is_empty))
    })
    .await?;
    checked
}

async fn exercise(options: &Options, sharing: Sharing) -> anyhow::Result<Checked> {
    let functions = NAMES.map(|name| function(name, sharing));
    for function in &functions {
        function.apply(options).await?;
    }
    let (mut parts, mut restores) = (Vec::new(), -returned()?);
    let mut forwards = 0.0;
    for part in ["undisturbed", "agents replaced", "a pod of each deleted"] {
        let loads: Vec<Load> = functions
            .iter()
            .map(|function| Ok(function.target(options)?.load_of(RATE)))
            .collect::<anyhow::Result<_>>()?;
        let begin = Instant::now();
        sleep(Duration::from_secs(3)).await;
        let disturbed = disturb(part, sharing.instances()).await;
        sleep(SPAN.saturating_sub(begin.elapsed())).await;
        let mut outcome = Outcome::default();
        for load in loads {
            outcome.0.extend(load.stop().await.0);
        }
        disturbed?;
        if parts.is_empty() {
            // Counters begin anew with the agents and pods that the other parts replace.
            (restores, forwards) = (restores + returned()?, forwarded()?);
        }
        parts.push((part, outcome));
    }
    let undisturbed = parts.first().map(|(_, outcome)| in_time(outcome));
    let undisturbed = undisturbed.unwrap_or_default();
    let each: Vec<_> = parts
        .iter()
        .map(|(part, outcome)| {
            let failed = outcome.failed().count();
            let count = outcome.0.len();
            format!(
                "{part}: {failed} of {count} failed, {:.1} % in time",
                in_time(outcome)
            )
        })
        .collect();
    Ok(Checked {
        is_good: restores > 0.0 && undisturbed >= IN_TIME_MIN,
        note: format!(
            "{}; undisturbed, models returned {restores} times and {forwards} requests were forwarded to the other instance",
            each.join("; ")
        ),
        outcome: Outcome(
            parts
                .into_iter()
                .flat_map(|(_, outcome)| outcome.0)
                .collect(),
        ),
    })
}

/// Replaces what a part of the check is about, and waits until each function has this many pods.
async fn disturb(part: &str, instances: usize) -> anyhow::Result<()> {
    match part {
        "agents replaced" => {
            let agents = ["daemonset/weir-agent", "-n", "weir-agent"];
            kubectl::run(&[&["rollout", "restart"][..], &agents].concat())?;
            kubectl::run(&[&["rollout", "status", "--timeout=120s"][..], &agents].concat())?;
        }
        "a pod of each deleted" => {
            for name in NAMES {
                let pod = pods(name)?.into_iter().next();
                let pod = pod.with_context(|| format!("{name} has no pod"))?;
                let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
                kubectl::run(&["-n", NAMESPACE, "delete", "pod", pod, "--wait=false"])?;
            }
            until("the pods of each are ready", SOON, || {
                let all = NAMES.map(pods).into_iter().collect::<Result<Vec<_>, _>>()?;
                Ok(all.iter().all(|pods| ready(pods) == instances))
            })
            .await?;
        }
        _ => {}
    }
    Ok(())
}

/// Returns how many pods are ready, and not about to end.
fn ready(pods: &[Value]) -> usize {
    let is_ready = |pod: &&Value| {
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|it| it["type"] == "Ready" && it["status"] == "True");
        pod["metadata"]["deletionTimestamp"].is_null() && ready.next().is_some()
    };
    pods.iter().filter(is_ready).count()
}

/// Returns the share of requests answered within the objective, in percent.
fn in_time(outcome: &Outcome) -> f64 {
    let in_time = |answer: &&crate::load::Answer| answer.result.is_ok() && answer.took <= OBJECTIVE;
    let share = |count: usize| u32::try_from(count).map_or(0.0, f64::from);
    100.0 * share(outcome.0.iter().filter(in_time).count()) / share(outcome.0.len())
}

/// Replaces the software GPUs and the MPS daemons, as their DaemonSet does not by itself, and then the agents, which find GPUs as they start; no pod may
/// use them.
pub(crate) async fn replace_gpus() -> anyhow::Result<()> {
    let daemons = ["-n", "weir-agent", "-l", "app.kubernetes.io/name=weir-mps"];
    kubectl::run(&[&["delete", "pods"][..], &daemons].concat())?;
    rolled_out("weir-mps").await?;
    kubectl::run(&[
        "-n",
        "weir-agent",
        "rollout",
        "restart",
        "daemonset/weir-agent",
    ])?;
    rolled_out("weir-agent").await
}

/// Waits until all pods of a DaemonSet of the agents' are of its newest version, and ready.
async fn rolled_out(name: &str) -> anyhow::Result<()> {
    let set = format!("daemonset/{name}");
    until(&format!("{set} is ready"), SOON, || {
        let set = kubectl::get(&[&set, "-n", "weir-agent"])?.unwrap_or_default();
        let status = &set["status"];
        let is_new = status["observedGeneration"] == set["metadata"]["generation"];
        let wanted = &status["desiredNumberScheduled"];
        Ok(is_new
            && &status["updatedNumberScheduled"] == wanted
            && &status["numberReady"] == wanted)
    })
    .await
    .map(drop)
}

/// Returns how often a model has returned to a GPU since the agents began.
fn returned() -> anyhow::Result<f64> {
    let pages = agent_pages()?;
    let each = pages
        .iter()
        .map(|page| sum(page, "weir_gpu_restores_total", ""));
    Ok(each.sum())
}

/// Returns how many requests the functions' pods have forwarded.
fn forwarded() -> anyhow::Result<f64> {
    let mut total = 0.0;
    for pod in NAMES
        .map(pods)
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?
        .concat()
    {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}:9091/proxy/metrics");
        // A pod that has just ended has no page.
        let page = kubectl::run(&["get", "--raw", &path]).unwrap_or_default();
        total += sum(&page, "weir_requests_total", "outcome=\"forwarded\"");
    }
    Ok(total)
}

/// Returns the sum of a metric's values with a label.
fn sum(page: &str, metric: &str, label: &str) -> f64 {
    let own = page.lines().filter(|line| {
        line.strip_prefix(metric)
            .is_some_and(|rest| rest.starts_with('{') && rest.contains(label))
    });
    own.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
