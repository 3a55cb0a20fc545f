//! `weir softgpu path`: installs the stand-ins and prints their folder on stdout.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;
use softgpu_wire::config::{Config, GPUS_MAX, GpuConfig};
use softgpu_wire::softgpu_dir;

use super::{SoftGpuDir, Usage, print, report};
use crate::usage;

/// Arguments of `weir softgpu path`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without an option but --folder the configuration in the folder, softgpu.toml, stays as it is; where there is none it becomes
one H100. With one it is written anew, and what is not named has its default.")]
pub(super) struct Arguments {
    /// Model of the GPUs: V100, A100, H100 or H200 [default: H100]
    #[arg(long, value_name = "PART", value_parser = part)]
    gpu: Option<String>,
    /// Number of GPUs, 1 to 64 [default: 1, or as many as --mig has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus: Option<u32>,
    /// MIG slices, as TOML: for each GPU in order a table `[[gpu]]` with `slices = ["3g.40gb", "4g.40gb"]`; an empty list, or
    /// no table, leaves a GPU whole
    #[arg(long, value_name = "FILE")]
    mig: Option<PathBuf>,
    /// Divisor of memory sizes and link rates, 1 to 512 [default: 1]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=512))]
    bytes: Option<u32>,
    /// Factor of the device's times, 1 to 8 [default: 1]
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=8))]
    time: Option<u32>,
    /// Size of the ledger on disk, in MiB, 1 to 65536 [default: 64]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    ledger_mib: Option<u32>,
    #[command(flatten)]
    dir: SoftGpuDir,
}

fn part(name: &str) -> Result<String, String> {
    softgpu::names::part(name).map_err(|error| error.to_string())
}

/// Contents of the `--mig` file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mig {
    #[serde(default, rename = "gpu")]
    gpus: Vec<MigGpu>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MigGpu {
    slices: Vec<String>,
}

const MIG_FORM: &str = "TOML is needed: for each GPU in order a table [[gpu]] with slices = [\"3g.40gb\", \"4g.40gb\"]";

impl Mig {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Usage(format!("--mig {shown}: {error}")))?;
        Self::parse(&text).map_err(|why| Usage(format!("--mig {shown}: {why}")).into())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mig: Self = toml::from_str(text).map_err(|error| {
            // mig-parted's files are common: they get a message of their own.
            if text.lines().any(|line| line.starts_with("mig-configs:")) {
                format!("this is YAML, as mig-parted reads it; {MIG_FORM}")
            } else {
                format!("{}; {MIG_FORM}", usage::on_one_line(&error.to_string()))
            }
        })?;
        if (1..=GPUS_MAX).contains(&mig.gpus.len()) {
            return Ok(mig);
        }
        let tables = mig.gpus.len();
        Err(format!("{tables} tables [[gpu]]: allowed: 1 to {GPUS_MAX}"))
    }
}

impl Arguments {
    const fn has_configuration(&self) -> bool {
        self.gpu.is_some()
            || self.gpus.is_some()
            || self.mig.is_some()
            || self.bytes.is_some()
            || self.time.is_some()
            || self.ledger_mib.is_some()
    }

    /// Returns the configuration that these options describe.
    fn configuration(&self) -> anyhow::Result<Config> {
        let default = Config::default();
        let mig = self.mig.as_deref().map(Mig::read).transpose()?;
        let slices: Vec<_> = mig
            .into_iter()
            .flat_map(|mig| mig.gpus)
            .map(|gpu| gpu.slices)
            .collect();
        let gpus = match self.gpus.map(|gpus| gpus as usize) {
            Some(gpus) if gpus < slices.len() => {
                let tables = slices.len();
                let why = format!("--gpus {gpus}: --mig has {tables} tables [[gpu]]");
                return Err(Usage(why).into());
            }
            Some(gpus) => gpus,
            None => slices.len().max(1),
        };
        let part = self.gpu.clone().unwrap_or_else(|| "H100".to_owned());
        let mut config = Config {
            time: self.time.unwrap_or(default.time),
            bytes: self.bytes.unwrap_or(default.bytes),
            ledger_mib: self.ledger_mib.unwrap_or(default.ledger_mib),
            gpus: Vec::new(),
            ..default
        };
        let whole = std::iter::repeat_with(Vec::new);
        for slices in slices.into_iter().chain(whole).take(gpus) {
            match config.gpus.last_mut() {
                Some(last) if last.slices == slices => last.count += 1,
                _ => config.gpus.push(GpuConfig {
                    part: part.clone(),
                    slices,
                    count: 1,
                }),
            }
        }
        config.check().map_err(|error| match &self.mig {
            Some(path) => Usage(format!("--mig {}: {error}", path.display())),
            None => Usage(error.to_string()),
        })?;
        Ok(config)
    }
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let folder = arguments.dir.folder()?;
    let separators = [b':', b';', b'\n', b'$'];
    if let Some(letter) = folder
        .as_os_str()
        .as_bytes()
        .iter()
        .find(|letter| separators.contains(letter))
    {
        let letter = char::from(*letter);
        let why = format!(
            "{}: LD_LIBRARY_PATH takes no folder with {letter:?} in its name",
            folder.display()
        );
        return Err(Usage(why).into());
    }
    let config = if arguments.has_configuration() {
        let config = arguments.configuration()?;
        nothing_is_lost(&folder)?;
        config
    } else {
        softgpu::install::configured(&folder)?.unwrap_or_default()
    };
    softgpu::install(&folder, &config)?;
    if let Some(other) = std::env::var_os(softgpu_dir::VARIABLE).filter(|other| !other.is_empty())
        && std::path::absolute(&other).ok().as_ref() != Some(&folder)
    {
        report(&format!(
            "{} is set to {}: programs use that software GPU as long as it is, not the one in {}",
            softgpu_dir::VARIABLE,
            other.display(),
            folder.display()
        ));
    }
    let line = [folder.as_os_str().as_bytes(), b"\n"].concat();
    print(&line)?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses to overwrite a configuration with parts that options cannot express and which were written by hand.
fn nothing_is_lost(folder: &Path) -> anyhow::Result<()> {
    let Some(old) = softgpu::install::configured(folder)? else {
        return Ok(());
    };
    let is_mixed = old.gpus.iter().any(|gpu| gpu.part != old.gpus[0].part);
    for (is_there, what) in [
        (!old.switches.is_empty(), "[[switch]]"),
        (!old.nvlinks.is_empty(), "[[nvlink]]"),
        (!old.kernels.is_empty(), "[[kernel]]"),
        (is_mixed, "GPUs of several kinds"),
    ] {
        if is_there {
            return Err(Usage(format!(
                "{}: has {what}, which these options would drop; edit or remove the file first",
                folder.join(softgpu_dir::CONFIG).display()
            ))
            .into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_in_mig_files_name_the_cause() {
        let mig = Mig::parse("[[gpu]]\nslices = [\"1g.10gb\"]\n[[gpu]]\nslices = []").unwrap();
        assert_eq!(mig.gpus.len(), 2);
        for (text, why) in [
            (
                "version: v1\nmig-configs:\n  all-1g.10gb:",
                "as mig-parted reads it; TOML is needed",
            ),
            ("", "0 tables [[gpu]]: allowed: 1 to 64"),
            ("[[gpu]]\nslice = []", "unknown field `slice`"),
            ("[[gpu]]", "missing field `slices`"),
        ] {
            let error = Mig::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
