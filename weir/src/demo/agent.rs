//! The agent of a node with a software GPU, in a folder of its own, and the pods that it serves.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use softgpu::stand_ins::NVML;
use softgpu_wire::softgpu_dir;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::{Instant, timeout};

use super::Program;
use super::children::get;
use super::gpu::SoftGpu;
use super::spawn::Spawn;

/// Longest time until the agent is ready.
const READY_MAX: Duration = Duration::from_secs(20);
/// Longest time until the agent, and the MPS daemon with it, has ended.
const END_MAX: Duration = Duration::from_secs(5);
/// Preload libraries of a pod's programs.
const LIBRARIES: [&str; 2] = ["libweir_preload.so", "libweir_preload_core.so"];
/// Largest part of a program's log shown in an error, in bytes.
const LOG_TAIL_MAX: usize = 2_000;

/// A running agent. Dropping it kills the process and removes the folder.
#[derive(Debug)]
pub(crate) struct NodeAgent {
    agent: Child,
    control: SocketAddr,
    metrics: SocketAddr,
    folder: TempDir,
}

/// What a container runtime states of a pod in its folder.
#[derive(Debug, Clone)]
pub(crate) struct PodFiles {
    pub(crate) name: String,
    pub(crate) annotations: String,
    /// Contents of `pod.toml`; empty: none.
    pub(crate) about: String,
}

/// Environment variables of a pod's programs, as the agent states them.
pub(crate) type Environment = Vec<(String, String)>;

impl NodeAgent {
    /// Starts an agent for the GPU, and waits until it listens. `pods`: name and annotations of each pod; `configuration`: tables after
    /// `[node]`; `of_node`: further lines of it.
    pub(crate) async fn start(
        gpu: &SoftGpu,
        of_node: &str,
        configuration: &str,
        pods: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let files = pods.iter().map(|(name, annotations)| PodFiles {
            name: (*name).to_owned(),
            annotations: annotations.clone(),
            about: String::new(),
        });
        let files: Vec<PodFiles> = files.collect();
        Self::start_with(gpu, of_node, configuration, &files).await
    }

    /// Starts an agent as [`NodeAgent::start`] does, for pods of which more is known.
    pub(crate) async fn start_with(
        gpu: &SoftGpu,
        of_node: &str,
        configuration: &str,
        pods: &[PodFiles],
    ) -> anyhow::Result<Self> {
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
        for pod in pods {
            publish(&run.join("pods"), pod)?;
        }
        let config = folder.path().join("agent.toml");
        let text = node_table(gpu.folder(), &run, &preload) + of_node + configuration;
        fs::write(&config, text).context("cannot write the agent's configuration")?;
        let agent = Spawn::new(Program::GpuSidecar)
            .arguments(["run", "--stop-mps", "--config"].map(Into::into))
            .arguments([config.into_os_string()])
            .environment(device_environment(gpu))
            // The MPS daemon outlives an agent, but must not outlive the demo.
            .environment([("WEIR_ENDS_WITH", std::process::id().to_string())])
            .stderr(log_file(&folder.path().join("agent.log"))?)
            .spawn()?;
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut node = Self {
            agent,
            control: nowhere,
            metrics: nowhere,
            folder,
        };
        node.listening(&run).await?;
        Ok(node)
    }

    /// Returns the path of a log file for a program of this name.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn gate(&self, pod: &str) -> PathBuf {
        let pods = self.folder.path().join("run/pods");
        pods.join(pod).join("gate")
    }

    /// Returns the path of the preload library of a pod's programs.
    pub(crate) fn preload(&self, pod: &str) -> PathBuf {
        self.gate(pod).join(LIBRARIES[0])
    }

    /// Returns the path of a pod's socket.
    pub(crate) fn socket(&self, pod: &str) -> PathBuf {
        self.gate(pod).join("gpu.sock")
    }

    /// Returns the path of the socket for a pod's queue.
    pub(crate) fn queue_socket(&self, pod: &str) -> PathBuf {
        let pods = self.folder.path().join("run/pods");
        pods.join(pod).join("lease/queue.sock")
    }

    /// Waits until the agent serves so many pods, of which none needs MPS. Returns an error if it refuses one.
    pub(crate) async fn placed(&mut self, count: usize) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            self.check()?;
            let reply = self.instances().await?;
            if let Some(refused) = reply["refused"].as_array().and_then(|list| list.first()) {
                bail!(
                    "the agent refuses {}: {}",
                    text_of(&refused["id"]),
                    text_of(&refused["text"])
                );
            }
            let served = reply["instances"].as_array().map_or(0, Vec::len);
            if served >= count {
                return Ok(());
            }
            if begin.elapsed() > READY_MAX {
                bail!(
                    "the agent serves {served} pods of {count} after {READY_MAX:?}; {}",
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns the agent's list of instances.
    pub(crate) async fn instances(&self) -> anyhow::Result<Value> {
        let (_, text) = get(self.control, "/v1/instances", &[])
            .await
            .context("the agent does not answer")?;
        serde_json::from_str(&text).context("the agent's list of instances is not JSON")
    }

    /// Returns the end of the agent's log, for errors.
    pub(crate) fn log_tail(&self) -> String {
        log_tail(&self.log("agent"))
    }

    /// Returns an error if the agent has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.agent.try_wait().context("cannot watch a child")? {
            bail!("the agent has ended: {status}; {}", self.log_tail());
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
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the agent serves these pods and MPS is up; returns the environment variables of each pod's programs.
    pub(crate) async fn served(&mut self, pods: &[&str]) -> anyhow::Result<Vec<Environment>> {
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
            for pod in pods {
                let instance = reply["instances"]
                    .as_array()
                    .and_then(|list| list.iter().find(|own| own["id"] == *pod));
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
            if found.len() == pods.len() {
                return Ok(found);
            }
            if begin.elapsed() > READY_MAX {
                bail!(
                    "the agent does not serve all pods after {READY_MAX:?}: {text} {}",
                    self.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
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
    pub(crate) fn pid(&self) -> Option<u32> {
        self.agent.id()
    }

    /// Ends the agent with its MPS daemon.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(pid) = self.agent.id().and_then(|pid| i32::try_from(pid).ok())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .context("cannot end the agent")?;
        }
        if timeout(END_MAX, self.agent.wait()).await.is_err() {
            bail!(
                "the agent does not end within {END_MAX:?}; {}",
                self.log_tail()
            );
        }
        Ok(())
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Creates a log file for a program's stderr.
pub(crate) fn log_file(path: &Path) -> anyhow::Result<Stdio> {
    let file = fs::File::create(path).with_context(|| path.display().to_string())?;
    Ok(file.into())
}

/// Returns the end of a program's log, for errors.
pub(crate) fn log_tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let begin = text.len().saturating_sub(LOG_TAIL_MAX);
    match String::from_utf8_lossy(&text[begin..]).trim() {
        "" => "its log is empty".to_owned(),
        text => format!("its log ends with: {text}"),
    }
}

/// Returns the environment variables which make a program find the software GPU.
pub(crate) fn device_environment(gpu: &SoftGpu) -> [(&'static str, String); 2] {
    let folder = gpu.folder().display().to_string();
    [
        ("LD_LIBRARY_PATH", folder.clone()),
        (softgpu_dir::VARIABLE, folder),
    ]
}

/// Creates a pod's folder, as a container runtime does.
fn publish(pods: &Path, pod: &PodFiles) -> anyhow::Result<()> {
    let name = &pod.name;
    let filled = pods.join(format!(".{name}"));
    let place = || format!("cannot make the folder of {name}");
    fs::create_dir_all(&filled).with_context(place)?;
    if !pod.about.is_empty() {
        fs::write(filled.join("pod.toml"), &pod.about).with_context(place)?;
    }
    fs::write(filled.join("annotations"), &pod.annotations).with_context(place)?;
    fs::rename(&filled, pods.join(name)).with_context(place)
}

fn node_table(gpu: &Path, run: &Path, preload: &Path) -> String {
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
    text
}
