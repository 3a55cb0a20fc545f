//! The software GPU on which the demo's functions compute.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;
use softgpu::observer::Observer;
use softgpu_wire::config::{Config, GpuConfig, SwitchConfig};
use softgpu_wire::softgpu_dir;
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::Instant;

use super::Program;
use super::spawn::spawn;

/// Divisor of memory and link sizes, so that a laptop has enough memory.
const BYTES: u32 = 64;
/// Ledger size in MiB: holds an hour of short kernels.
const LEDGER_MIB: u32 = 4_096;
/// Longest time until a started server listens.
const READY_MAX: Duration = Duration::from_secs(10);

/// A software GPU in a folder of its own. Dropping it kills its server and removes the folder.
#[derive(Debug)]
pub(crate) struct SoftGpu {
    server: Child,
    folder: TempDir,
    config: Config,
}

/// The software GPU's configuration and timekeeping.
#[derive(Debug, Serialize)]
pub(crate) struct Device {
    /// Model of the GPU, such as "H100".
    pub(crate) part: String,
    /// Factor of times and divisor of sizes.
    pub(crate) scale: Scale,
    /// Publication time minus due time, of all waited-for work.
    pub(crate) lag_us: Lag,
    /// Time in which the server was runnable but not running.
    pub(crate) run_delay_ms: f64,
    /// Time stolen from the machine's cores during the demo.
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

/// Runs the server of the folder in the environment until it is killed.
pub(crate) fn serve() -> ExitCode {
    let folder = std::env::var_os(softgpu_dir::VARIABLE).unwrap_or_default();
    let arguments = [OsString::from("--folder"), folder, OsString::from("--stay")];
    softgpu::run_as(OsStr::new(softgpu_dir::SERVER), arguments.into_iter())
        .unwrap_or(ExitCode::FAILURE)
}

impl SoftGpu {
    /// Starts a software GPU folder with one H100 in real time.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        Self::start_gpus(1).await
    }

    /// Starts a software GPU folder with `count` H100s in real time.
    pub(crate) async fn start_gpus(count: u32) -> anyhow::Result<Self> {
        let mut config = Config::default();
        for gpu in &mut config.gpus {
            gpu.count = count;
        }
        Self::with(config).await
    }

    /// Starts a software GPU folder with these GPUs in real time.
    pub(crate) async fn of(gpus: Vec<GpuConfig>) -> anyhow::Result<Self> {
        Self::with(Config {
            gpus,
            ..Config::default()
        })
        .await
    }

    /// Starts `count` GPUs of this model behind one PCIe switch, whose uplink has this rate in bytes per second.
    pub(crate) async fn behind_a_switch(
        part: &str,
        count: u32,
        uplink_bytes_per_second: u64,
    ) -> anyhow::Result<Self> {
        let mut config = Config::default();
        for gpu in &mut config.gpus {
            part.clone_into(&mut gpu.part);
            gpu.count = count;
        }
        config.switches.push(SwitchConfig {
            gpus: (0..count as usize).collect(),
            uplink_bytes_per_second,
        });
        Self::with(config).await
    }

    /// Starts `count` GPUs of this model with times multiplied by `time`, each two of which share a PCIe switch whose uplink has this rate in bytes per second.
    pub(crate) async fn in_pairs(
        part: &str,
        count: u32,
        uplink_bytes_per_second: u64,
        time: u32,
    ) -> anyhow::Result<Self> {
        let mut config = Config {
            time,
            ledger_mib: LEDGER_MIB,
            ..Config::default()
        };
        for gpu in &mut config.gpus {
            part.clone_into(&mut gpu.part);
            gpu.count = count;
        }
        let gpus: Vec<usize> = (0..count as usize).collect();
        for pair in gpus.chunks(2).filter(|pair| pair.len() == 2) {
            config.switches.push(SwitchConfig {
                gpus: pair.to_vec(),
                uplink_bytes_per_second,
            });
        }
        Self::with(config).await
    }

    /// Starts one GPU of this model with times multiplied by `time` and a ledger which holds the whole run.
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
            [(softgpu_dir::VARIABLE, folder.path().display().to_string())],
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
        while softgpu_dir::connect_in(self.folder.path())?.is_none() {
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

    /// Returns the environment variables which make a model-server compute on this GPU.
    pub(crate) fn environment(&self) -> [(&'static str, String); 5] {
        let folder = self.folder.path().display().to_string();
        [
            ("LD_LIBRARY_PATH", folder.clone()),
            (softgpu_dir::VARIABLE, folder),
            ("MODEL_DEVICE", "gpu".to_owned()),
            ("MODEL_WEIGHTS", "1GiB".to_owned()),
            ("WEIR_BYTES_SCALE", self.config.bytes.to_string()),
        ]
    }

    /// Returns the factor of times and the divisor of sizes.
    pub(crate) const fn scale(&self) -> Scale {
        Scale {
            time: self.config.time,
            bytes: self.config.bytes,
        }
    }

    /// Returns the folder of the software GPU's stand-ins, server socket and ledger.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the server write its ledger up to now.
    pub(crate) fn write_ledger(&self) -> anyhow::Result<()> {
        let observer = Observer::open(self.folder())?;
        let observer = observer.context("the software GPU's server has ended")?;
        Ok(observer.write_ledger()?)
    }

    /// Returns the GPU's configuration and timekeeping so far.
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
    /// Formats the device and its timekeeping on one line.
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
