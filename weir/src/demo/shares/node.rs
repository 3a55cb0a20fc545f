//! The processes of a measurement: the agent, and a load in each pod with the preload library before the driver.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use device::part::Part;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::super::Program;
use super::super::agent::{Environment, NodeAgent, device_environment, log_file, log_tail};
use super::super::children::get;
use super::super::gpu::SoftGpu;
use super::super::spawn::Spawn;
use super::hindrance::{ActiveHindrance, Hindrance, PodSocket};
use super::measure::Stretch;
use super::plan::{Plan, Pod, Rule};

/// Oversubscription that the agent's planner allows, in percent of a slot's SMs and time: its maximum, since the planned pods
/// may need all that there is, or more.
const PLANNED_PERCENT: u32 = 400;
/// Price of a GPU hour on the dashboards of cost, in no currency.
const GPU_HOUR: f64 = 2.5;
/// Longest time until a load is ready to launch, and from then until it has computed its first batch, whatever its quota.
const COMPUTING_MAX: Duration = Duration::from_secs(60);
/// Time for which each load's first batch is awaited under [`Rule::Exclusive`], by which some loads never compute.
const ASKING_MAX: Duration = Duration::from_secs(3);
/// Longest time until a load has reported its stamps.
const STAMPS_MAX: Duration = Duration::from_secs(20);
/// Idle time of a load which must not launch in the measured span, in s.
const IDLE_MAX: f64 = 600.0;
/// An agent and its pods. Dropping it kills all processes and removes the folder.
#[derive(Debug)]
pub(crate) struct Node {
    pods: Vec<Load>,
    /// Agent socket of each pod, in the order of pods.
    sockets: Vec<PodSocket>,
    agent: NodeAgent,
}

/// The load program of a pod.
#[derive(Debug)]
struct Load {
    name: String,
    pid: u32,
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

/// Stamps of a load.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stamps {
    pub(crate) pid: u32,
    pub(crate) batches: Vec<Stretch>,
    pub(crate) waits: Vec<Stretch>,
}

impl Node {
    /// Starts the agent and the pods, and waits until every pod computes.
    pub(crate) async fn start(gpu: &SoftGpu, plan: &Plan) -> anyhow::Result<Self> {
        let pods: Vec<(&str, String)> = plan
            .pods
            .iter()
            .map(|pod| (pod.name.as_str(), annotations(pod)))
            .collect();
        let mut agent = NodeAgent::start(gpu, "", &configuration(plan), &pods).await?;
        let names: Vec<&str> = pods.iter().map(|(name, _)| *name).collect();
        let environments = agent.served(&names).await?;
        let mut node = Self {
            pods: Vec::new(),
            sockets: Vec::new(),
            agent,
        };
        for (pod, environment) in plan.pods.iter().zip(environments) {
            node.sockets.push(PodSocket {
                path: node.agent.socket(&pod.name),
                multiprocessors: Part::named(plan.part)?.sms,
            });
            let load = node.load(gpu, pod, plan.time, environment)?;
            node.pods.push(load);
        }
        node.computing(plan.rule).await?;
        Ok(node)
    }

    fn load(
        &self,
        gpu: &SoftGpu,
        pod: &Pod,
        time: u32,
        environment: Environment,
    ) -> anyhow::Result<Load> {
        let preload = self.agent.preload(&pod.name);
        let seconds = |time: f64| format!("{time:.6}s");
        // With this hindrance the load itself must not launch.
        let idle_for = match pod.hindrance {
            Some(Hindrance::Asks { .. }) => IDLE_MAX,
            _ => pod.idle_for,
        };
        let mut arguments = pod.work.arguments(time);
        for (option, value) in [
            ("--once", pod.once.as_secs_f64()),
            ("--idle-from", pod.idle_from),
            ("--idle-for", idle_for),
        ] {
            arguments.extend([option.to_owned(), seconds(value)]);
        }
        let log = self.agent.log(&pod.name);
        let mut child = Spawn::new(Program::Load)
            .arguments(arguments.into_iter().map(OsString::from))
            .environment(device_environment(gpu))
            .environment(environment)
            .environment([("LD_PRELOAD", preload.display().to_string())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file(&log)?)
            .spawn()?;
        let pid = child.id().context("the load has ended at once")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok(Load {
            name: pod.name.clone(),
            pid,
            input: input.context("a load has no input")?,
            output: BufReader::new(output.context("a load has no output")?).lines(),
            child,
            log,
        })
    }

    /// Waits until every pod computes; under a rule by which some never do, until all wait for a token and one computes.
    async fn computing(&mut self, rule: Rule) -> anyhow::Result<()> {
        for load in &mut self.pods {
            load.await_line("asking", COMPUTING_MAX).await?;
        }
        if rule != Rule::Exclusive {
            for load in &mut self.pods {
                load.await_line("computing", COMPUTING_MAX).await?;
            }
            return Ok(());
        }
        let mut computes = false;
        for load in &mut self.pods {
            // An abandoned read loses no line.
            computes |= load.await_line("computing", ASKING_MAX).await.is_ok();
        }
        if !computes {
            bail!(
                "no pod computes after {ASKING_MAX:?}; {}",
                self.agent.log_tail()
            );
        }
        Ok(())
    }

    /// Sends the begin of the measured span to all loads.
    pub(crate) async fn begin(&mut self, at_ns: u64) -> anyhow::Result<()> {
        for load in &mut self.pods {
            load.send(&format!("begin {at_ns}\n")).await?;
        }
        Ok(())
    }

    /// Applies the planned hindrances until the result is dropped.
    pub(crate) fn hinder(&self, plan: &Plan) -> anyhow::Result<Vec<ActiveHindrance>> {
        let each = plan.pods.iter().zip(self.pods.iter().zip(&self.sockets));
        each.filter_map(|(pod, (load, socket))| Some((pod.hindrance?, load, socket)))
            .map(|(hindrance, load, socket)| hindrance.begin(load.pid, socket))
            .collect()
    }

    /// Returns the GPU time that the agent reports for each pod, in s.
    pub(crate) async fn used_seconds(&mut self) -> anyhow::Result<Vec<f64>> {
        self.agent.check()?;
        let (status, page) = get(self.agent.metrics(), "/metrics", &[])
            .await
            .context("the agent's metrics do not answer")?;
        if status != 200 {
            bail!("the agent's metrics answer {status}: {page}");
        }
        let of = |load: &Load| {
            let label = format!("revision=\"{}\"", load.name);
            let line = page.lines().find(|line| {
                line.starts_with("weir_gpu_used_seconds_total{") && line.contains(&label)
            });
            let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
            value.with_context(|| format!("the agent's metrics lack {}", load.name))
        };
        self.pods.iter().map(of).collect()
    }

    /// Returns the address of the agent's API.
    pub(crate) const fn control(&self) -> SocketAddr {
        self.agent.control()
    }

    /// Returns the address of the agent's metrics.
    pub(crate) const fn metrics(&self) -> SocketAddr {
        self.agent.metrics()
    }

    /// Returns the agent's PID; `None` after its end.
    pub(crate) fn agent_pid(&self) -> Option<u32> {
        self.agent.pid()
    }

    /// Returns the PIDs of the running MPS daemons.
    pub(crate) async fn mps_daemons(&self) -> anyhow::Result<Vec<u32>> {
        let (_, text) = get(self.agent.control(), "/v1/slots", &[])
            .await
            .context("the agent does not answer")?;
        let slots: Value = serde_json::from_str(&text).context("the agent's list of slots")?;
        let all = slots["slots"].as_array().into_iter().flatten();
        let pids = all.filter_map(|slot| slot["mps"]["state"]["pid"].as_u64());
        Ok(pids.filter_map(|pid| u32::try_from(pid).ok()).collect())
    }

    /// Returns an error if a load has exited.
    pub(crate) fn check_loads(&mut self) -> anyhow::Result<()> {
        for load in &mut self.pods {
            if let Some(status) = load.child.try_wait().context("cannot watch a child")? {
                bail!(
                    "the load of {} has ended: {status}; {}",
                    load.name,
                    log_tail(&load.log)
                );
            }
        }
        self.agent.check()
    }

    /// Ends the loads and returns their stamps, then ends the agent with its MPS daemon.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Vec<Stamps>> {
        for load in &mut self.pods {
            load.send("stop\n").await?;
        }
        let mut all = Vec::new();
        for load in &mut self.pods {
            let stamps = timeout(STAMPS_MAX, load.stamps()).await;
            all.push(stamps.with_context(|| format!("{} does not stop", load.name))??);
        }
        for load in &mut self.pods {
            load.child.kill().await.context("cannot end a load")?;
        }
        self.agent.stop().await?;
        Ok(all)
    }
}

impl Load {
    async fn send(&mut self, line: &str) -> anyhow::Result<()> {
        let written = self.input.write_all(line.as_bytes()).await;
        if written.is_err() {
            bail!(
                "the load of {} has ended; {}",
                self.name,
                log_tail(&self.log)
            );
        }
        Ok(())
    }

    async fn await_line(&mut self, word: &str, time: Duration) -> anyhow::Result<()> {
        let lines = async {
            while let Some(line) = self.output.next_line().await? {
                if line.split(' ').next() == Some(word) {
                    return Ok(true);
                }
            }
            anyhow::Ok(false)
        };
        match timeout(time, lines).await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => bail!(
                "the load of {} has ended; {}",
                self.name,
                log_tail(&self.log)
            ),
            Err(_) => bail!(
                "{} is not {word} after {time:?}; {}",
                self.name,
                log_tail(&self.log)
            ),
        }
    }

    async fn stamps(&mut self) -> anyhow::Result<Stamps> {
        let mut stamps = Stamps {
            pid: self.pid,
            ..Stamps::default()
        };
        while let Some(line) = self.output.next_line().await? {
            let mut words = line.split(' ');
            let word = words.next();
            let mut number = || words.next()?.parse().ok();
            let stretch = number().zip(number());
            match (word, stretch) {
                (Some("batch"), Some(batch)) => stamps.batches.push(batch),
                (Some("asked"), Some(wait)) => stamps.waits.push(wait),
                (Some("end"), _) => return Ok(stamps),
                _ => {}
            }
        }
        bail!(
            "the load of {} has ended; {}",
            self.name,
            log_tail(&self.log)
        )
    }
}

/// Returns the annotations of a pod.
fn annotations(pod: &Pod) -> String {
    let Pod {
        request,
        limit,
        sm_percent,
        ..
    } = pod;
    // At most six decimals, no exponent.
    let plain = |number: f64| {
        let text = format!("{number:.6}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        text.to_owned()
    };
    let mut annotations = format!(
        "weir.dev/isolation=\"shared\"\nweir.dev/sm-percent=\"{}\"\nweir.dev/quota-request=\"{}\"\n\
         weir.dev/quota-limit=\"{}\"\n",
        plain((sm_percent * 100.0).round() / 100.0),
        plain(*request),
        plain(*limit),
    );
    for (key, value) in [("function", pod.function), ("gpu-memory", pod.memory)] {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _written = writeln!(annotations, "weir.dev/{key}=\"{value}\"");
        }
    }
    annotations
}

fn configuration(plan: &Plan) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write!(
        text,
        "[tokens]\nrule = \"{}\"\ntime-scale = {}\n",
        plan.rule.name(),
        plan.time
    );
    if plan.rule == Rule::Paper {
        text.push_str("backfill = \"0\"\n");
    }
    let _written = writeln!(text, "[slots]\nplan = {PLANNED_PERCENT}");
    let _written = writeln!(text, "[price]\ngpu-hour = {GPU_HOUR}");
    text
}
