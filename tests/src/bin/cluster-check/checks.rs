//! The checks, in their order. Each leaves the cluster in a state in which any other can follow.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::full_node::{self, Sharing};
use crate::kubectl::{self, until};
use crate::load::{Outcome, Target};
use crate::options::Options;
use crate::world::{
    Function, NAMESPACE, OPTED_IN, Overlay, SOON, attached, create_namespace, detached,
    differences, left_behind, messages, owners, snapshot,
};
use crate::{gpu, soak, suites};

/// Names of the checks, in their order.
pub(crate) const NAMES: [&str; 16] = [
    "install",
    "attach-detach",
    "roll-out",
    "scale",
    "kill",
    "api-outage",
    "traffic-split",
    "gpu-function",
    "full-node",
    "shared-node",
    "internal-tls",
    "wrong-annotations",
    "suites",
    "soak",
    "upgrade",
    "uninstall",
];

/// Result of a check.
#[derive(Debug)]
pub(crate) struct Finding {
    /// Whether the check passed; `None` if it was skipped.
    pub(crate) passed: Option<bool>,
    pub(crate) requests: usize,
    pub(crate) failed: usize,
    pub(crate) note: String,
}

/// State that is kept between checks.
#[derive(Debug)]
pub(crate) struct Checks {
    options: Options,
    overlay: Overlay,
    /// Knative's objects before Weir's installation.
    before: BTreeMap<String, Value>,
    is_installed: bool,
}

/// Function under load in most checks, with a constant two pods.
const STEADY: Function<'static> = Function {
    name: "steady",
    takes: Duration::from_millis(20),
    concurrency: 10,
    weights: None,
    annotations: &[],
    traffic: None,
};
/// Annotations that are refused, each with the begin of the refusal's text.
const WRONG: [(&[(&str, &str)], &str); 6] = [
    (&[("weir.dev/slo", "soon")], "weir.dev/slo=\"soon\": "),
    (
        &[("weir.dev/late", "never")],
        "weir.dev/late=\"never\": allowed: serve, shed",
    ),
    (
        &[("weir.dev/color", "red")],
        "weir.dev/color=\"red\": is not a known key; allowed: ",
    ),
    (
        &[("weir.dev/queue-depth", "0")],
        "weir.dev/queue-depth=\"0\": allowed: a whole number from 1 to 10000",
    ),
    (
        &[("weir.dev/sm-percent", "50")],
        "weir.dev/sm-percent: allowed only with weir.dev/isolation=\"shared\"",
    ),
    (
        &[
            ("weir.dev/evict", "never"),
            ("weir.dev/isolation", "strict"),
        ],
        "weir.dev/evict",
    ),
];
const KEPT: [(&str, &str); 2] = [
    ("autoscaling.knative.dev/min-scale", "2"),
    ("autoscaling.knative.dev/max-scale", "4"),
];

fn steady(is_opted_in: bool) -> Vec<(&'static str, &'static str)> {
    let opted_in = is_opted_in.then_some(OPTED_IN).into_iter().flatten();
    KEPT.into_iter().chain(opted_in).collect()
}

fn not_tried(note: &str) -> anyhow::Result<Finding> {
    Ok(Finding {
        passed: None,
        requests: 0,
        failed: 0,
        note: note.to_owned(),
    })
}

/// Returns a finding which passes if no request failed.
fn none_failed(outcome: &Outcome, note: String) -> Finding {
    let failed = outcome.failed().count();
    let first = outcome
        .first_failure()
        .map(|why| format!("; the first failure: {why}"));
    Finding {
        passed: Some(failed == 0),
        requests: outcome.0.len(),
        failed,
        note: note + &first.unwrap_or_default(),
    }
}

impl Checks {
    pub(crate) fn new(options: Options) -> anyhow::Result<Self> {
        Ok(Self {
            overlay: Overlay::new(&options, &options.images)?,
            before: stock()?,
            options,
            is_installed: false,
        })
    }

    /// Runs one check by its name.
    pub(crate) async fn run(&mut self, name: &str) -> anyhow::Result<Finding> {
        if name != "install" && !self.is_installed {
            self.install().await?;
        }
        match name {
            "install" => self.install().await,
            "attach-detach" => self.attach_detach().await,
            "roll-out" => self.roll_out().await,
            "scale" => self.scale().await,
            "kill" => self.kill().await,
            "api-outage" => self.api_outage().await,
            "traffic-split" => self.traffic_split().await,
            "gpu-function" => self.gpu_function().await,
            "full-node" => self.full_node(Sharing::InTurns).await,
            "shared-node" => self.full_node(Sharing::AtOnce).await,
            "internal-tls" => self.internal_tls().await,
            "wrong-annotations" => self.wrong_annotations().await,
            "suites" => self.suites().await,
            "soak" => self.soak().await,
            "upgrade" => self.upgrade().await,
            _ => self.uninstall().await,
        }
    }

    fn target(&self) -> anyhow::Result<Target> {
        STEADY.target(&self.options)
    }

    /// Installs Weir beside a running function, and opts that in.
    async fn install(&mut self) -> anyhow::Result<Finding> {
        create_namespace().await?;
        let stock = Function {
            annotations: &KEPT,
            ..STEADY
        };
        stock.apply(&self.options).await?;
        let load = self.target()?.load();
        sleep(Duration::from_secs(2)).await;
        let begin = Instant::now();
        self.overlay.run("apply")?;
        self.rolled_out().await?;
        let annotations = steady(true);
        Function {
            annotations: &annotations,
            ..STEADY
        }
        .apply(&self.options)
        .await?;
        let revision = STEADY.revision()?;
        attached(&revision).await?;
        self.is_installed = true;
        let image = self.options.image("queue-proxy");
        for pod in pods(&revision)? {
            let mut containers = pod["spec"]["containers"].as_array().into_iter().flatten();
            let is_ours = containers.any(|it| it["name"] == "queue-proxy" && it["image"] == image);
            ensure!(is_ours, "a pod of {revision} does not run {image}");
        }
        let took = begin.elapsed().as_secs_f64();
        sleep(Duration::from_secs(3)).await;
        Ok(none_failed(
            &load.stop().await,
            format!("{revision} was attached {took:.1} s after kubectl apply"),
        ))
    }

    async fn rolled_out(&self) -> anyhow::Result<()> {
        for (namespace, name) in [
            ("knative-serving", "weir-activator"),
            ("weir-system", "weir-control"),
        ] {
            let deployment = format!("deployment/{name}");
            kubectl::run(&[
                "-n",
                namespace,
                "rollout",
                "status",
                &deployment,
                "--timeout=120s",
            ])?;
        }
        if self.options.overlay == "softgpu" {
            let agents = [
                "-n",
                "weir-agent",
                "rollout",
                "status",
                "daemonset/weir-agent",
            ];
            kubectl::run(&[&agents[..], &["--timeout=120s"]].concat())?;
        }
        Ok(())
    }

    async fn attach_detach(&self) -> anyhow::Result<Finding> {
        let revision = STEADY.revision()?;
        attached(&revision).await?;
        let load = self.target()?.load();
        let mut times = Vec::new();
        let key = format!("{NAMESPACE}.{revision}");
        for _ in 0..3 {
            sleep(Duration::from_secs(2)).await;
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"namespace": "weir-system", "name": "weir-detached"}, "data": {&key: ""},
            });
            kubectl::run_with(&["apply", "-f", "-"], &map.to_string())?;
            times.push(detached(&revision).await?);
            sleep(Duration::from_secs(2)).await;
            kubectl::run(&["-n", "weir-system", "delete", "configmap", "weir-detached"])?;
            times.push(attached(&revision).await?);
        }
        let longest = times
            .iter()
            .max()
            .copied()
            .unwrap_or_default()
            .as_secs_f64();
        Ok(none_failed(
            &load.stop().await,
            format!("{} changes, {longest:.1} s at most", times.len()),
        ))
    }

    async fn roll_out(&self) -> anyhow::Result<Finding> {
        let revision = STEADY.revision()?;
        let load = self.target()?.load();
        for (namespace, name) in [
            ("knative-serving", "weir-activator"),
            ("weir-system", "weir-control"),
        ] {
            sleep(Duration::from_secs(3)).await;
            let deployment = format!("deployment/{name}");
            kubectl::run(&["-n", namespace, "rollout", "restart", &deployment])?;
            self.rolled_out().await?;
            attached(&revision).await?;
        }
        // Checks that Knative's own Deployment does not differ afterwards.
        sleep(Duration::from_secs(3)).await;
        kubectl::run(&[
            "-n",
            "knative-serving",
            "delete",
            "pod",
            "-l",
            "app=activator",
        ])?;
        kubectl::run(&[
            "-n",
            "knative-serving",
            "rollout",
            "status",
            "deployment/activator",
            "--timeout=120s",
        ])?;
        sleep(Duration::from_secs(5)).await;
        Ok(none_failed(
            &load.stop().await,
            "data, control and Knative's activator were replaced".to_owned(),
        ))
    }

    async fn scale(&self) -> anyhow::Result<Finding> {
        let annotations = [
            OPTED_IN.as_slice(),
            &[
                ("autoscaling.knative.dev/max-scale", "3"),
                ("autoscaling.knative.dev/target", "8"),
                ("autoscaling.knative.dev/metric", "concurrency"),
            ],
        ]
        .concat();
        let function = Function {
            name: "scaled",
            takes: Duration::from_millis(500),
            concurrency: 10,
            weights: None,
            annotations: &annotations,
            traffic: None,
        };
        function.apply(&self.options).await?;
        let revision = function.revision()?;
        attached(&revision).await?;
        until("it is at zero", SOON, || Ok(pods(&revision)?.is_empty())).await?;
        let target = function.target(&self.options)?;
        let first = target.request().await;
        let load = target.load();
        until("there are three pods", SOON, || {
            Ok(ready_pods(&revision)? == 3)
        })
        .await?;
        sleep(Duration::from_secs(10)).await;
        let outcome = load.stop().await;
        let down = until("it is at zero again", SOON, || {
            Ok(pods(&revision)?.is_empty())
        })
        .await?;
        kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", "scaled"])?;
        let mut finding = none_failed(
            &outcome,
            format!(
                "the first answer from zero took {:.1} s; three pods; back at zero after {:.0} s",
                first.took.as_secs_f64(),
                down.as_secs_f64()
            ),
        );
        if let Err(why) = first.result {
            finding.passed = Some(false);
            finding.note = format!("the first request from zero failed: {why}");
        }
        Ok(finding)
    }

    async fn kill(&self) -> anyhow::Result<Finding> {
        let revision = STEADY.revision()?;
        attached(&revision).await?;
        let load = self.target()?.load();
        sleep(Duration::from_secs(2)).await;
        let killed = kill_owner(&revision)?;
        sleep(Duration::from_secs(10)).await;
        let outcome = load.stop().await;
        let late = outcome.failed_after(killed + Duration::from_secs(3));
        let (requests, failed) = (outcome.0.len(), outcome.failed().count());

        // Both at once, with no new pod before Knative serves.
        let load = self.target()?.load();
        let replicas = |count: &str| {
            let count = format!("--replicas={count}");
            kubectl::run(&[
                "-n",
                "knative-serving",
                "scale",
                "deployment/weir-activator",
                &count,
            ])
        };
        replicas("1")?;
        sleep(Duration::from_secs(8)).await;
        kubectl::run(&[
            "-n",
            "knative-serving",
            "scale",
            "deployment/weir-activator",
            "--replicas=0",
        ])?;
        let pods = [
            "-n",
            "knative-serving",
            "delete",
            "pod",
            "--force",
            "--grace-period=0",
        ];
        kubectl::run(&[&pods[..], &["-l", "app.kubernetes.io/name=weir-activator"]].concat())?;
        let killed = Instant::now();
        detached(&revision).await?;
        let took = killed.elapsed().as_secs_f64();
        sleep(Duration::from_secs(5)).await;
        let outcome = load.stop().await;
        let later = outcome.failed_after(killed + Duration::from_secs(10));
        replicas("2")?;
        self.rolled_out().await?;
        attached(&revision).await?;
        Ok(Finding {
            passed: Some(late == 0 && later == 0),
            requests: requests + outcome.0.len(),
            failed: late + later,
            note: format!(
                "one of two killed: {failed} failed, {late} of those that began 3 s later; the only one killed: detached after \
                 {took:.1} s, {} failed, {later} of those that began 10 s later",
                outcome.failed().count()
            ),
        })
    }

    async fn api_outage(&self) -> anyhow::Result<Finding> {
        let Some((stop, start)) = &self.options.api else {
            return not_tried("--api-stop and --api-start are not given");
        };
        let revision = STEADY.revision()?;
        attached(&revision).await?;
        let load = self.target()?.load();
        sleep(Duration::from_secs(2)).await;
        shell(stop)?;
        sleep(Duration::from_secs(60)).await;
        let back = Instant::now();
        let started = shell(start);
        sleep(Duration::from_secs(5)).await;
        let outcome = load.stop().await;
        started?;
        self.settled().await?;
        attached(&revision).await?;
        // A node without recent heartbeats may count as gone for a moment, and with it the gateway.
        let after = outcome.failed_after(back);
        let failed = outcome.failed().count() - after;
        let first = outcome.first_failure().unwrap_or("none failed");
        Ok(Finding {
            passed: Some(failed == 0),
            requests: outcome.0.len(),
            failed,
            note: format!(
                "the API server was stopped for 60 s; {after} failed after it was back; the first failure: {first}"
            ),
        })
    }

    /// Waits until Knative accepts a Service ten times in a row: nodes may count as gone for a while after an outage of the API.
    async fn settled(&self) -> anyhow::Result<()> {
        let manifest = STEADY.manifest(&self.options).to_string();
        let mut in_a_row = 0;
        let what = "Knative takes Services again";
        until(what, 5 * SOON, || {
            let taken = kubectl::run_with(&["apply", "--dry-run=server", "-f", "-"], &manifest);
            in_a_row = if taken.is_ok() { in_a_row + 1 } else { 0 };
            Ok(in_a_row == 10)
        })
        .await
        .map(drop)
    }

    async fn traffic_split(&self) -> anyhow::Result<Finding> {
        let function = |takes: u64, traffic: Option<Value>| Function {
            name: "split",
            takes: Duration::from_millis(takes),
            concurrency: 10,
            weights: None,
            annotations: &[
                ("weir.dev/slo", "2s"),
                ("autoscaling.knative.dev/min-scale", "1"),
                ("features.knative.dev/queueproxy-podinfo", "enabled"),
            ],
            traffic,
        };
        function(5, None).apply(&self.options).await?;
        let old = function(5, None).revision()?;
        attached(&old).await?;
        // The second revision differs by its request time alone, and gets a tenth.
        let split = json!([
            {"revisionName": old, "percent": 90},
            {"latestRevision": true, "percent": 10},
            {"revisionName": old, "tag": "old", "percent": 0},
        ]);
        let canary = function(6, Some(split));
        canary.apply(&self.options).await?;
        let new = canary.revision()?;
        attached(&new).await?;
        sleep(Duration::from_secs(3)).await;
        let target = canary.target(&self.options)?;
        let counts = || -> anyhow::Result<(f64, f64)> { Ok((carried(&old)?, carried(&new)?)) };
        let before = counts()?;
        let load = target.load();
        sleep(Duration::from_secs(41)).await;
        let outcome = load.stop().await;
        let middle = counts()?;
        let tagged = Target {
            host: format!("old-{}", target.host),
            ..target
        };
        let load = tagged.load();
        sleep(Duration::from_secs(5)).await;
        let by_tag = load.stop().await;
        let after = counts()?;
        kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", "split"])?;
        let (to_old, to_new) = (middle.0 - before.0, middle.1 - before.1);
        let share = 100.0 * to_new / (to_old + to_new);
        let strayed = after.1 - middle.1;
        let failed = outcome.failed().count() + by_tag.failed().count();
        let first = outcome.first_failure().or_else(|| by_tag.first_failure());
        let first = first.map(|why| format!("; the first failure: {why}"));
        Ok(Finding {
            passed: Some(failed == 0 && (share - 10.0).abs() <= 3.0 && strayed == 0.0),
            requests: outcome.0.len() + by_tag.0.len(),
            failed,
            note: format!(
                "{share:.1} % of {:.0} went to the canary; {strayed} tagged ones strayed{}",
                to_old + to_new,
                first.unwrap_or_default()
            ),
        })
    }

    async fn gpu_function(&self) -> anyhow::Result<Finding> {
        if self.options.overlay != "softgpu" {
            return not_tried("needs --overlay softgpu");
        }
        let load = self.target()?.load();
        let shares = gpu::check(&self.options).await?;
        let mut finding = none_failed(&load.stop().await, shares.note);
        // The slot was oversubscribed on purpose: refused requests are no failures.
        finding.requests += shares.overloaded + shares.rolled.0.len();
        finding.failed += shares.rolled.failed().count();
        finding.passed = finding.passed.map(|passed| passed && shares.is_good);
        Ok(finding)
    }

    async fn full_node(&self, sharing: Sharing) -> anyhow::Result<Finding> {
        if self.options.overlay != "softgpu" {
            return not_tried("needs --overlay softgpu");
        }
        let checked = full_node::check(&self.options, sharing).await;
        // The slots of the other checks again, whatever has come of these.
        self.overlay.run("apply")?;
        full_node::replace_gpus().await?;
        self.rolled_out().await?;
        let checked = checked?;
        let mut finding = none_failed(&checked.outcome, checked.note);
        finding.passed = finding.passed.map(|passed| passed && checked.is_good);
        Ok(finding)
    }

    async fn internal_tls(&self) -> anyhow::Result<Finding> {
        let Some((on, off)) = &self.options.tls else {
            return not_tried("--tls-on and --tls-off are not given");
        };
        let revision = STEADY.revision()?;
        attached(&revision).await?;
        let mut finding = none_failed(&Outcome::default(), String::new());
        for (state, command) in [("on", on), ("off", off)] {
            let load = self.target()?.load();
            sleep(Duration::from_secs(2)).await;
            let switched = shell(command);
            self.rolled_out().await?;
            switched?;
            until("its pods are new", SOON, || {
                Ok(ready_pods(&revision)? == pods(&revision)?.len())
            })
            .await?;
            attached(&revision).await?;
            sleep(Duration::from_secs(5)).await;
            let settled = Instant::now();
            sleep(Duration::from_secs(10)).await;
            let outcome = load.stop().await;
            let late = outcome.failed_after(settled);
            finding.requests += outcome.0.len();
            finding.failed += late;
            // Knative's own programs are restarted meanwhile, and its pods replaced.
            finding.note += &format!(
                "{state}: {} failed until Knative had settled, {late} afterwards. ",
                outcome.failed().count() - late
            );
            if let Some(why) = outcome.first_failure() {
                finding.note += &format!("The first failure: {why}. ");
            }
        }
        finding.passed = Some(finding.failed == 0);
        Ok(finding)
    }

    async fn wrong_annotations(&self) -> anyhow::Result<Finding> {
        let load = self.target()?.load();
        let mut wrong = Vec::new();
        let function = |annotations: &'static [(&'static str, &'static str)]| Function {
            name: "wrong",
            takes: Duration::from_millis(5),
            concurrency: 1,
            weights: None,
            annotations,
            traffic: None,
        };
        for (annotations, sentence) in WRONG {
            let manifest = function(annotations).manifest(&self.options).to_string();
            match kubectl::run_with(&["apply", "--dry-run=server", "-f", "-"], &manifest) {
                Ok(_) => wrong.push(format!("{annotations:?} was accepted")),
                Err(error) if error.to_string().contains(sentence) => {}
                Err(error) => wrong.push(format!("{annotations:?}: {error}")),
            }
        }
        // Without the webhook, a function without a GPU starts as Knative's, and one with a GPU waits.
        let replicas = |count: u32| {
            let count = format!("--replicas={count}");
            kubectl::run(&[
                "-n",
                "weir-system",
                "scale",
                "deployment/weir-control",
                &count,
            ])
        };
        replicas(0)?;
        let none = || {
            let pods = kubectl::list(&["pods", "-n", "weir-system"])?;
            Ok(pods.is_empty())
        };
        until("weir-control is down", SOON, none).await?;
        let queue = Function {
            name: "unanswered",
            ..function(&[
                ("weir.dev/slo", "2s"),
                ("autoscaling.knative.dev/min-scale", "1"),
            ])
        };
        queue.apply(&self.options).await?;
        let gpu = Function {
            name: "waiting",
            ..function(&[("weir.dev/gpu-memory", "1Gi")])
        };
        let manifest = gpu.manifest(&self.options).to_string();
        kubectl::run_with(&["apply", "-f", "-"], &manifest)?;
        let refused = || {
            let messages = messages("replicasets", gpu.name)?;
            Ok(messages.iter().any(|it| it.contains("gpu.pods.weir.dev")))
        };
        until("a pod with a GPU waits", SOON, refused).await?;
        let pods = kubectl::list(&[
            "pods",
            "-n",
            NAMESPACE,
            "-l",
            "serving.knative.dev/service=waiting",
        ])?;
        if !pods.is_empty() {
            wrong.push("a pod with a GPU was created without admission".to_owned());
        }
        replicas(2)?;
        self.rolled_out().await?;
        for name in ["unanswered", "waiting"] {
            kubectl::run(&["-n", NAMESPACE, "delete", "ksvc", name])?;
        }
        attached(&STEADY.revision()?).await?;
        let outcome = load.stop().await;
        let note = format!("{} kinds of wrong annotations were refused", WRONG.len());
        let mut finding = none_failed(&outcome, note);
        if !wrong.is_empty() {
            finding.passed = Some(false);
            finding.note += &format!("; {}", wrong.join("; "));
        }
        Ok(finding)
    }

    /// Runs Knative's own tests with its own queue-proxy, and with Weir's in every pod.
    async fn suites(&self) -> anyhow::Result<Finding> {
        let Some(command) = &self.options.suites else {
            return not_tried("--suites is not given");
        };
        let compared = suites::check(&self.options, command).await?;
        let mut finding = none_failed(&Outcome::default(), compared.note);
        finding.passed = Some(compared.is_good);
        Ok(finding)
    }

    async fn soak(&self) -> anyhow::Result<Finding> {
        let Some(span) = self.options.soak else {
            return not_tried("--soak is not given");
        };
        let load = self.target()?.load();
        let soaked = soak::check(&self.options, span).await;
        let outcome = load.stop().await;
        let soaked = soaked?;
        let mut finding = none_failed(&outcome, soaked.note);
        finding.passed = finding.passed.map(|passed| passed && soaked.is_good);
        Ok(finding)
    }

    /// Downgrades to an earlier version, then upgrades to this one.
    async fn upgrade(&mut self) -> anyhow::Result<Finding> {
        let Some(from) = &self.options.from else {
            return not_tried("--from is not given");
        };
        let revision = STEADY.revision()?;
        let load = self.target()?.load();
        sleep(Duration::from_secs(2)).await;
        let mut notes = Vec::new();
        for (what, overlay) in [
            ("back", &Overlay::new(&self.options, from)?),
            ("upgrade", &self.overlay),
        ] {
            let begin = Instant::now();
            overlay.run("apply")?;
            self.rolled_out().await?;
            attached(&revision).await?;
            notes.push(format!("{what} in {:.1} s", begin.elapsed().as_secs_f64()));
            sleep(Duration::from_secs(5)).await;
        }
        Ok(none_failed(&load.stop().await, notes.join(", ")))
    }

    async fn uninstall(&mut self) -> anyhow::Result<Finding> {
        let revision = STEADY.revision()?;
        let load = self.target()?.load();
        sleep(Duration::from_secs(2)).await;
        let begin = Instant::now();
        self.overlay.run("delete")?;
        self.is_installed = false;
        let took = begin.elapsed().as_secs_f64();
        detached(&revision).await?;
        // Open connections at the data pods must end cleanly.
        sleep(Duration::from_secs(5)).await;
        let gone = || {
            Ok(kubectl::list(&["pods", "-A", "-l", "app.kubernetes.io/part-of=weir"])?.is_empty())
        };
        until("Weir's pods have ended", Duration::from_secs(700), gone).await?;
        let outcome = load.stop().await;
        let left = left_behind()?;
        let differ = differences(&self.before, &snapshot()?);
        let mut finding = none_failed(&outcome, format!("kubectl delete -k took {took:.1} s"));
        for (what, names) in [("are left", left), ("differ", differ)] {
            if !names.is_empty() {
                finding.passed = Some(false);
                finding.note += &format!("; these {what}: {}", names.join(", "));
            }
        }
        Ok(finding)
    }
}

/// Runs a shell command of the options.
fn shell(command: &str) -> anyhow::Result<()> {
    let output = std::process::Command::new("sh")
        .args(["-c", command])
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?} has failed: {}",
        error.trim()
    );
    Ok(())
}

/// Returns Knative's objects, without Weir's.
fn stock() -> anyhow::Result<BTreeMap<String, Value>> {
    let mut found = snapshot()?;
    found.retain(|_, object| object["metadata"]["labels"]["app.kubernetes.io/part-of"] != "weir");
    Ok(found)
}

fn pods(revision: &str) -> anyhow::Result<Vec<Value>> {
    let label = format!("serving.knative.dev/revision={revision}");
    kubectl::list(&["pods", "-n", NAMESPACE, "-l", &label])
}

fn ready_pods(revision: &str) -> anyhow::Result<usize> {
    let is_ready = |pod: &&Value| {
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|it| it["type"] == "Ready" && it["status"] == "True")
    };
    Ok(pods(revision)?.iter().filter(is_ready).count())
}

/// Kills the pod of role `data` that owns a revision; returns the time.
fn kill_owner(revision: &str) -> anyhow::Result<Instant> {
    let owners = owners(revision)?;
    let address = owners.first().context("the revision has no owner")?;
    let field = format!("status.podIP={address}");
    let pods = [
        "-n",
        "knative-serving",
        "delete",
        "pod",
        "--force",
        "--grace-period=0",
    ];
    kubectl::run(&[&pods[..], &["--field-selector", &field]].concat())?;
    Ok(Instant::now())
}

/// Returns the number of requests that role `data` has answered for a revision, over all its pods.
fn carried(revision: &str) -> anyhow::Result<f64> {
    let pods = kubectl::list(&[
        "pods",
        "-n",
        "knative-serving",
        "-l",
        "app.kubernetes.io/name=weir-activator",
    ])?;
    let mut sum = 0.0;
    for pod in &pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/namespaces/knative-serving/pods/{name}:9476/proxy/metrics");
        let page = kubectl::run(&["get", "--raw", &path])?;
        let label = format!("revision=\"{revision}\"");
        let own = page.lines().filter(|line| {
            line.starts_with("weir_function_requests_total{") && line.contains(&label)
        });
        sum += own
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>();
    }
    Ok(sum)
}
