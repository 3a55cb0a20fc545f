//! A model-server in a pod, and its requests.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::{Instant, timeout};

use super::super::Program;
use super::super::agent::{Environment, NodeAgent, device_environment, log_file, log_tail};
use super::super::children::{get, post};
use super::super::gpu::SoftGpu;
use super::super::spawn::Spawn;

/// Longest time until a server has loaded its model.
const LOADED_MAX: Duration = Duration::from_secs(60);
/// Longest time until a request is answered: its model may have to return first.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Model of a server, and how its kernels read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelPlan {
    /// Name in the result.
    pub(super) name: String,
    /// Environment variables of the server which select the model.
    environment: Vec<(&'static str, String)>,
}

impl ModelPlan {
    /// Returns a model of the server's table.
    pub(super) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            environment: vec![("MODEL_NAME", name.to_owned())],
        }
    }

    /// Returns a model of this many bytes of weights, whose kernels take 8 ms.
    pub(super) fn of_weights(text: &str) -> Self {
        let environment = [("MODEL_WEIGHTS", text), ("MODEL_KERNELS", "8x1ms")];
        Self {
            name: text.to_owned(),
            environment: environment
                .map(|(key, value)| (key, value.to_owned()))
                .into(),
        }
    }
}

/// How a server is started.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerPlan<'a> {
    pub(super) model: &'a ModelPlan,
    /// `order` or `hidden`: how its kernels find the weights.
    pub(super) touch: &'static str,
    /// Size of the state that a request changes.
    pub(super) change: &'static str,
}

/// A running server. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    address: SocketAddr,
    pub(super) pid: u32,
    log: PathBuf,
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The bytes that the kernels have read were those of the model.
    Right,
    /// They were others.
    Wrong,
    /// There was none, or an error.
    Lost,
}

impl Server {
    /// Starts a server in a pod, and waits until it has loaded its model.
    pub(super) async fn start(
        gpu: &SoftGpu,
        agent: &NodeAgent,
        pod: &str,
        environment: &Environment,
        plan: ServerPlan<'_>,
    ) -> anyhow::Result<Self> {
        let log = agent.log(pod);
        let scale = gpu.scale();
        let mut child = Spawn::new(Program::ModelServer)
            .environment(device_environment(gpu))
            .environment(environment.clone())
            .environment(plan.model.environment.clone())
            .environment([
                ("PORT", "0".to_owned()),
                ("MODEL_TOUCH", plan.touch.to_owned()),
                ("MODEL_CHECK", "all".to_owned()),
                ("MODEL_CHANGE", plan.change.to_owned()),
                ("MODEL_VERIFY", "true".to_owned()),
                ("LD_PRELOAD", agent.preload(pod).display().to_string()),
                ("WEIR_BYTES_SCALE", scale.bytes.to_string()),
                ("WEIR_TIME_SCALE", scale.time.to_string()),
            ])
            .stdout(Stdio::piped())
            .stderr(log_file(&log)?)
            .spawn()?;
        let pid = child.id().context("the model-server has ended at once")?;
        let output = child.stdout.take().context("it has no output")?;
        let mut lines = BufReader::new(output).lines();
        let line = timeout(LOADED_MAX, lines.next_line()).await;
        let line = line.context("the model-server does not listen")??;
        let address = line.as_deref().and_then(|line| line.rsplit(' ').next());
        let Some(address) = address.and_then(|text| text.parse().ok()) else {
            bail!("the model-server has ended; {}", log_tail(&log));
        };
        let mut server = Self {
            child,
            address,
            pid,
            log,
        };
        server.loaded().await?;
        Ok(server)
    }

    async fn loaded(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while get(self.address, "/ready", &[]).await?.0 != 200 {
            self.check()?;
            if begin.elapsed() > LOADED_MAX {
                bail!("the model is not loaded after {LOADED_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Returns an error if the server has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait().context("cannot watch a child")? {
            bail!(
                "a model-server has ended: {status}; {}",
                log_tail(&self.log)
            );
        }
        Ok(())
    }

    /// Returns the address of the server.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of blocks of weights which the driver did not report at their addresses, over all answers.
    pub(super) async fn moved(&self) -> anyhow::Result<u64> {
        let (_, text) = get(self.address, "/stats", &[]).await?;
        let stats: Value = serde_json::from_str(&text)?;
        let moved = stats["moved_blocks"].as_u64();
        moved.context("the model-server's statistics have no moved_blocks")
    }

    /// Ends the server.
    pub(super) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot end a model-server")
    }
}

/// Sends a request with this seed to a server.
pub(super) async fn infer(address: SocketAddr, seed: u64) -> Answer {
    let body = format!(r#"{{"input":1,"output":1,"seed":{seed}}}"#);
    let answered = timeout(ANSWER_MAX, post(address, "/infer", body)).await;
    let Ok(Ok((200, text))) = answered else {
        return Answer::Lost;
    };
    let answer: Value = serde_json::from_str(&text).unwrap_or_default();
    match answer["right"].as_bool() {
        Some(true) => Answer::Right,
        Some(false) => Answer::Wrong,
        None => Answer::Lost,
    }
}
