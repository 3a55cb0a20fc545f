//! The processes of a measurement: the agent, and a load in each pod with the preload library before the driver.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use device::part::Part;
use serde_json::Value;
use softgpu::stand_ins::NVML;
use softgpu_wire::softgpu_dir;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout};

use super::super::Program;
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
/// Longest time until the agent is ready.
const READY_MAX: Duration = Duration::from_secs(20);
/// Longest time until a load is ready to launch, and from then until it has computed its first batch, whatever its quota.
const COMPUTING_MAX: Duration = Duration::from_secs(60);
/// Time for which each load's first batch is awaited under [`Rule::Exclusive`], by which some loads never compute.
const ASKING_MAX: Duration = Duration::from_secs(3);
/// Longest time until a load has reported its stamps.
const STAMPS_MAX: Duration = Duration::from_secs(20);
/// Longest time until the agent, and the MPS daemon with it, has ended.
const END_MAX: Duration = Duration::from_secs(5);
/// Idle time of a load which must not launch in the measured span, in s.
const IDLE_MAX: f64 = 600.0;
/// Preload libraries of a pod's programs.
const LIBRARIES: [&str; 2] = ["libweir_preload.so", "libweir_preload_core.so"];
/// Largest part of a program's log shown in an error, in bytes.
const LOG_TAIL_MAX: usize = 2_000;

/// An agent and its pods. Dropping it kills all processes and removes the folder.
#[derive(Debug)]
pub(crate) struct Node {
    pods: Vec<Load>,
    /// Agent socket of each pod, in the order of pods.
    sockets: Vec<PodSocket>,
    agent: Child,
    control: SocketAddr,
    metrics: SocketAddr,
    folder: TempDir,
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
        // A short path, since socket paths are limited.
        let folder = tempfile::Builder::new()
            .prefix("weir-node-")
            .tempdir()
            .context("cannot make a folder for the agent")?;
        let preload = folder.path().join("preload");
        fs::create_dir(&preload).context("cannot make a folder for the preload libraries")?;
        for library in LIBRARIES {
            let (from, to) = (softgpu::stand_ins::library(library)?, preload.join(library));
            if fs::hard_link(&from, &to).is_err() {
                fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
            }
        }
        let run = folder.path().join("run");
        for pod in &plan.pods {
            publish(&run.join("pods"), pod)?;
        }
        let config = folder.path().join("agent.toml");
        let text = configuration(gpu.folder(), &run, &preload, plan);
        fs::write(&config, text).context("cannot write the agent's configuration")?;
        let agent = Spawn::new(Program::GpuSidecar)
            .arguments(["run", "--stop-mps", "--config"].map(OsString::from))
            .arguments([config.into_os_string()])
            .environment(device_environment(gpu))
            // The MPS daemon outlives an agent, but must not outlive the demo.
            .environment([("WEIR_ENDS_WITH", std::process::id().to_string())])
            .stderr(log_file(&folder.path().join("agent.log"))?)
            .spawn()?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut node = Self {
            pods: Vec::new(),
            sockets: Vec::new(),
            agent,
            control: nowhere,
            metrics: nowhere,
            folder,
        };
        node.listening(&run).await?;
        let environments = node.served(plan).await?;
        for (pod, environment) in plan.pods.iter().zip(environments) {
            node.sockets.push(PodSocket {
                path: run.join("pods").join(&pod.name).join("gate/gpu.sock"),
                multiprocessors: Part::named(plan.part)?.sms,
            });
            let load = node.load(gpu, &run, pod, plan.time, environment)?;
            node.pods.push(load);
        }
        node.computing(plan.rule).await?;
        Ok(node)
    }

    fn agent_log_tail(&self) -> String {
        log_tail(&self.folder.path().join("agent.log"))
    }

    fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.agent.try_wait().context("cannot watch a child")? {
            bail!("the agent has ended: {status}; {}", self.agent_log_tail());
        }
        Ok(())
    }

    /// Waits until the agent listens.
    async fn listening(&mut self, run: &Path) -> anyhow::Result<()> {
        let file = run.join(gpu_sidecar::STATE_FILE);
        let begin = Instant::now();
        loop {
            if let Ok(text) = fs::read_to_string(&file)
                && let Ok(state) = serde_json::from_str::<Value>(&text)
            {
                let address = |name: &str| {
                    let text = state[name].as_str().unwrap_or_default();
                    text.parse()
                        .with_context(|| format!("{}: no address {name}", file.display()))
                };
                (self.control, self.metrics) = (address("control")?, address("metrics")?);
                return Ok(());
            }
            self.check()?;
            if begin.elapsed() > READY_MAX {
                bail!(
                    "the agent does not listen after {READY_MAX:?}; {}",
                    self.agent_log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the agent serves all pods and MPS is up; returns the environment variables of each pod's programs.
    async fn served(&mut self, plan: &Plan) -> anyhow::Result<Vec<Vec<(String, String)>>> {
        let begin = Instant::now();
        loop {
            self.check()?;
            let (_, text) = get(self.control, "/v1/instances", &[])
                .await
                .context("the agent does not answer")?;
            let reply: Value =
                serde_json::from_str(&text).context("the agent's list of instances is not JSON")?;
            if let Some(refused) = reply["refused"].as_array().and_then(|list| list.first()) {
                bail!(
                    "the agent refuses {}: {}",
                    text_of(&refused["id"]),
                    text_of(&refused["text"])
                );
            }
            let mut found = Vec::new();
            for pod in &plan.pods {
                let instance = reply["instances"]
                    .as_array()
                    .and_then(|list| list.iter().find(|own| own["id"] == pod.name.as_str()));
                if let Some(own) = instance
                    && own["mps"]["state"] == "up"
                    && let Some(variables) = own["environment"].as_object()
                {
                    let each = variables
                        .iter()
                        .map(|(name, value)| (name.clone(), text_of(value)));
                    found.push(each.collect());
                }
            }
            if found.len() == plan.pods.len() {
                return Ok(found);
            }
            if begin.elapsed() > READY_MAX {
                bail!(
                    "the agent does not serve all pods after {READY_MAX:?}: {text} {}",
                    self.agent_log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn load(
        &self,
        gpu: &SoftGpu,
        run: &Path,
        pod: &Pod,
        time: u32,
        environment: Vec<(String, String)>,
    ) -> anyhow::Result<Load> {
        let preload = run
            .join("pods")
            .join(&pod.name)
            .join("gate")
            .join(LIBRARIES[0]);
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
        let log = self.folder.path().join(format!("{}.log", pod.name));
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
                self.agent_log_tail()
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
        self.check()?;
        let (status, page) = get(self.metrics, "/metrics", &[])
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
        self.control
    }

    /// Returns the address of the agent's metrics.
    pub(crate) const fn metrics(&self) -> SocketAddr {
        self.metrics
    }

    /// Returns the agent's PID; `None` after its end.
    pub(crate) fn agent_pid(&self) -> Option<u32> {
        self.agent.id()
    }

    /// Returns the PIDs of the running MPS daemons.
    pub(crate) async fn mps_daemons(&self) -> anyhow::Result<Vec<u32>> {
        let (_, text) = get(self.control, "/v1/slots", &[])
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
        self.check()
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
        if let Some(pid) = self.agent.id().and_then(|pid| i32::try_from(pid).ok())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .context("cannot end the agent")?;
        }
        if timeout(END_MAX, self.agent.wait()).await.is_err() {
            bail!(
                "the agent does not end within {END_MAX:?}; {}",
                self.agent_log_tail()
            );
        }
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

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Creates a log file for a program's stderr.
fn log_file(path: &Path) -> anyhow::Result<Stdio> {
    let file = fs::File::create(path).with_context(|| path.display().to_string())?;
    Ok(file.into())
}

fn log_tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let begin = text.len().saturating_sub(LOG_TAIL_MAX);
    match String::from_utf8_lossy(&text[begin..]).trim() {
        "" => "its log is empty".to_owned(),
        text => format!("its log ends with: {text}"),
    }
}

/// Returns the environment variables which make a program find the software GPU.
fn device_environment(gpu: &SoftGpu) -> [(&'static str, String); 2] {
    let folder = gpu.folder().display().to_string();
    [
        ("LD_LIBRARY_PATH", folder.clone()),
        (softgpu_dir::VARIABLE, folder),
    ]
}

/// Creates a pod's folder, as a container runtime does.
fn publish(pods: &Path, pod: &Pod) -> anyhow::Result<()> {
    let filled = pods.join(format!(".{}", pod.name));
    let place = || format!("cannot make the folder of {}", pod.name);
    fs::create_dir_all(&filled).with_context(place)?;
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
    fs::write(filled.join("annotations"), annotations).with_context(place)?;
    fs::rename(&filled, pods.join(&pod.name)).with_context(place)
}

fn configuration(gpu: &Path, run: &Path, preload: &Path, plan: &Plan) -> String {
    let path = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    let mut text = String::from("[node]\n");
    for (key, value) in [
        ("run-directory", path(run)),
        ("preload", path(preload)),
        ("nvml-library", path(&gpu.join(NVML))),
        ("mps-control", path(&gpu.join("nvidia-cuda-mps-control"))),
        ("control-address", "\"127.0.0.1:0\"".to_owned()),
        ("metrics-address", "\"127.0.0.1:0\"".to_owned()),
        ("log", "\"warn\"".to_owned()),
    ] {
        // Writing to a string cannot fail.
        let _written = writeln!(text, "{key} = {value}");
    }
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
