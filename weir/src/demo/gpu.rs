//! The software GPU on which the demo's functions compute.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use softgpu::observer::Observer;
use softgpu_wire::config::{Config, GpuConfig};
use softgpu_wire::place;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::Program;
use super::spawn::spawn;

/// By how much memory and links are smaller than the GPU's: 64, so that a laptop has room for it.
const BYTES: u32 = 64;
/// An hour of short kernels.
const LEDGER_MIB: u32 = 4_096;
/// A server that does not listen by then is broken.
const READY_MAX: Duration = Duration::from_secs(10);

/// A software GPU in a folder of its own. Its server is killed, and the folder removed, when it is dropped.
#[derive(Debug)]
pub(crate) struct SoftGpu {
    server: Child,
    folder: TempDir,
    config: Config,
}

/// What the software GPU was, and how well it kept time.
#[derive(Debug, Serialize)]
pub(crate) struct Device {
    /// What kind of GPU.
    pub(crate) part: String,
    /// By what times are multiplied and sizes divided.
    pub(crate) scale: Scale,
    /// Published minus due, of all that was waited for.
    pub(crate) lag_us: Lag,
    /// How long the server could have run and did not.
    pub(crate) run_delay_ms: f64,
    /// How long the machine's cores were taken away during the demo.
    pub(crate) steal_ms: f64,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Scale {
    pub(crate) time: u32,
    pub(crate) bytes: u32,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Lag {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

/// Runs the server of the folder that the environment names, until it is killed.
pub(crate) fn serve() -> ExitCode {
    let folder = std::env::var_os(place::VARIABLE).unwrap_or_default();
    let arguments = [OsString::from("--folder"), folder, OsString::from("--stay")];
    softgpu::run_as(OsStr::new(place::SERVER), arguments.into_iter()).unwrap_or(ExitCode::FAILURE)
}

impl SoftGpu {
    /// One H100 that keeps the real time.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Self::several(1).await
    }

    /// So many of them.
    pub(crate) async fn several(count: u32) -> anyhow::Result<Self> {
        let mut config = Config::default();
        for gpu in &mut config.gpus {
            gpu.count = count;
        }
        Self::with(config).await
    }

    /// These GPUs.
    pub(crate) async fn of(gpus: Vec<GpuConfig>) -> anyhow::Result<Self> {
        Self::with(Config {
            gpus,
            ..Config::default()
        })
        .await
    }

    /// Of this kind, whose times are multiplied by `time`, with all of its ledger.
    pub(crate) async fn scaled(part: &str, time: u32) -> anyhow::Result<Self> {
        let mut config = Config {
            time,
            ledger_mib: LEDGER_MIB,
            ..Config::default()
        };
        for gpu in &mut config.gpus {
            part.clone_into(&mut gpu.part);
        }
        Self::with(config).await
    }

    /// Installs the stand-ins and starts the server.
    async fn with(config: Config) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("weir-demo-")
            .tempdir()
            .context("cannot make a folder for the software GPU")?;
        let config = Config {
            bytes: BYTES,
            ..config
        };
        softgpu::install(folder.path(), &config).context("the software GPU")?;
        let server = spawn(
            Program::SoftgpuServer,
            [(place::VARIABLE, folder.path().display().to_string())],
        )?;
        let mut gpu = Self {
            server,
            folder,
            config,
        };
        gpu.ready().await?;
        Ok(gpu)
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while place::connect_in(self.folder.path())?.is_none() {
            if let Some(status) = self.server.try_wait().context("cannot watch a child")? {
                bail!("the software GPU's server has ended: {status}");
            }
            if begin.elapsed() > READY_MAX {
                bail!("the software GPU's server does not listen after {READY_MAX:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// The variables by which a model-server computes on it.
    pub(crate) fn environment(&self) -> [(&'static str, String); 5] {
        let folder = self.folder.path().display().to_string();
        [
            ("LD_LIBRARY_PATH", folder.clone()),
            (place::VARIABLE, folder),
            ("MODEL_DEVICE", "gpu".to_owned()),
            ("MODEL_WEIGHTS", "1GiB".to_owned()),
            ("WEIR_BYTES_SCALE", self.config.bytes.to_string()),
        ]
    }

    /// Where its stand-ins, its server's socket and its ledger are.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Lets the server write all of its ledger until now.
    pub(crate) fn write_ledger(&self) -> anyhow::Result<()> {
        let observer = Observer::open(self.folder())?;
        let observer = observer.context("the software GPU's server has ended")?;
        Ok(observer.write_ledger()?)
    }

    /// What it was, and how well it kept time.
    pub(crate) fn device(&self) -> anyhow::Result<Device> {
        let folder: &Path = self.folder.path();
        let observer = Observer::open(folder)?.context("the software GPU's server has ended")?;
        let statistics = observer.statistics()?;
        let number = |path: &str| {
            let value = statistics.pointer(path).and_then(serde_json::Value::as_f64);
            value.with_context(|| format!("the software GPU's statistics have no {path}"))
        };
        Ok(Device {
            part: self
                .config
                .gpus
                .first()
                .map_or_else(String::new, |gpu| gpu.part.clone()),
            scale: Scale {
                time: self.config.time,
                bytes: self.config.bytes,
            },
            lag_us: Lag {
                p50: number("/lag/p50_ns")? / 1e3,
                p99: number("/lag/p99_ns")? / 1e3,
                max: number("/lag/max_ns")? / 1e3,
            },
            run_delay_ms: number("/run_delay_ns")? / 1e6,
            steal_ms: number("/steal_ns")? / 1e6,
        })
    }
}

impl Device {
    /// In one line, for people.
    pub(crate) fn line(&self) -> String {
        format!(
            "computed on a software GPU ({}; time × {}, bytes ÷ {}): lag p50 {:.0} µs, p99 {:.0} µs, max {:.0} µs; run delay \
             {:.0} ms, steal {:.0} ms",
            self.part,
            self.scale.time,
            self.scale.bytes,
            self.lag_us.p50,
            self.lag_us.p99,
            self.lag_us.max,
            self.run_delay_ms,
            self.steal_ms,
        )
    }
}
