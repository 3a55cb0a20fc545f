//! The file `softgpu.toml`: which GPUs there are, and at which scale.
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `time` | by how much all times of the device are longer: 1 to 8 | 1 |
//! | `bytes` | by how much memory and links are smaller: 1 to 512 | 1 |
//! | `ledger-mib` | how much of the ledger is kept on disk, in MiB: 1 to 65,536 | 64 |
//! | `[[gpu]]` | a GPU: `part`, `slices` (names of MIG profiles), `count` | one H100 |
//! | `[[switch]]` | `gpus`, `uplink-bytes-per-second` | none |
//! | `[[nvlink]]` | `gpus` (two), `bytes-per-second` | none |
//! | `[[kernel]]` | a kernel of other people's modules: `name`, `duration-us`, `sms`; it does nothing to memory | none |

use device::node::{Gpu, Node, NvLink, Scale, Switch};
use device::part::{Part, PartError};
use serde::{Deserialize, Serialize};

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// By how much all times of the device are longer.
    #[serde(default = "one")]
    pub time: u32,
    /// By how much memory and links are smaller.
    #[serde(default = "one")]
    pub bytes: u32,
    /// How much of the ledger is kept on disk, in MiB.
    #[serde(default = "ledger_mib")]
    pub ledger_mib: u32,
    /// The GPUs.
    #[serde(default = "one_gpu", rename = "gpu")]
    pub gpus: Vec<GpuConfig>,
    /// PCIe switches.
    #[serde(default, rename = "switch", skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchConfig>,
    /// NVLinks.
    #[serde(default, rename = "nvlink", skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvLinkConfig>,
    /// Kernels that are known by their names alone.
    #[serde(default, rename = "kernel", skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelConfig>,
}

/// Some GPUs that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuConfig {
    /// What kind, by name.
    pub part: String,
    /// MIG slices by the names of their profiles; none: the GPU is whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<String>,
    /// How many there are.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
}

/// GPUs that share a way to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SwitchConfig {
    /// Which, counted from 0.
    pub gpus: Vec<usize>,
    /// Before the scale.
    pub uplink_bytes_per_second: u64,
}

/// A link between two GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NvLinkConfig {
    /// Which two, counted from 0.
    pub gpus: [usize; 2],
    /// Before the scale.
    pub bytes_per_second: u64,
}

/// A kernel that is known by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KernelConfig {
    /// Its name in the module.
    pub name: String,
    /// How long it takes, in µs.
    pub duration_us: u64,
    /// SMs it asks for; none: as many as its blocks fill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<u32>,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not of the form; the message says line and key.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// A figure is out of range.
    #[error("{key} = {value}: allowed: {allowed}")]
    Figure {
        /// The key.
        key: &'static str,
        /// What it says.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// A part is not known.
    #[error("gpu {gpu}: {error}")]
    Part {
        /// Which, counted from 0.
        gpu: usize,
        /// Why.
        error: PartError,
    },
    /// The node cannot be made of these.
    #[error("{0}")]
    Node(#[from] device::machine::MachineError),
}

/// GPUs of a node, at most.
pub const GPUS_MAX: usize = 64;

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

const fn ledger_mib() -> u32 {
    64
}

fn one_gpu() -> Vec<GpuConfig> {
    vec![GpuConfig {
        part: "H100".to_owned(),
        slices: Vec::new(),
        count: 1,
    }]
}

impl Default for Config {
    fn default() -> Self {
        Self {
            time: 1,
            bytes: 1,
            ledger_mib: ledger_mib(),
            gpus: one_gpu(),
            switches: Vec::new(),
            nvlinks: Vec::new(),
            kernels: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the file's text, and looks whether a node can be made of it.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// The text that [`Config::parse`] reads.
    #[must_use]
    pub fn text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Looks whether a node can be made of it.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        let range = |key, value: u32, max: u32| {
            if (1..=max).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::Figure {
                key,
                value: value.to_string(),
                allowed: format!("1 to {max}"),
            })
        };
        range("time", self.time, 8)?;
        range("bytes", self.bytes, 512)?;
        range("ledger-mib", self.ledger_mib, 65_536)?;
        let gpus: usize = self.gpus.iter().map(|gpu| gpu.count as usize).sum();
        if !(1..=GPUS_MAX).contains(&gpus) {
            return Err(ConfigError::Figure {
                key: "gpu",
                value: format!("{gpus} of them"),
                allowed: format!("1 to {GPUS_MAX}"),
            });
        }
        for kernel in &self.kernels {
            if kernel.duration_us == 0 || kernel.duration_us > 600_000_000 {
                return Err(ConfigError::Figure {
                    key: "kernel.duration-us",
                    value: format!("{} ({})", kernel.duration_us, kernel.name),
                    allowed: "1 to 600000000".to_owned(),
                });
            }
        }
        device::machine::Machine::new(&self.node()?)?;
        Ok(())
    }

    /// The node it describes.
    ///
    /// # Errors
    /// A part is not known.
    pub fn node(&self) -> Result<Node, ConfigError> {
        let mut gpus = Vec::new();
        for (at, gpu) in self.gpus.iter().enumerate() {
            let part =
                Part::named(&gpu.part).map_err(|error| ConfigError::Part { gpu: at, error })?;
            for _ in 0..gpu.count {
                gpus.push(Gpu {
                    part: part.clone(),
                    slices: gpu.slices.clone(),
                });
            }
        }
        let switches = self.switches.iter().map(|switch| Switch {
            gpus: switch.gpus.clone(),
            uplink_bytes_per_second: switch.uplink_bytes_per_second,
        });
        let nvlinks = self.nvlinks.iter().map(|nvlink| NvLink {
            gpus: nvlink.gpus,
            bytes_per_second: nvlink.bytes_per_second,
        });
        Ok(Node {
            gpus,
            switches: switches.collect(),
            nvlinks: nvlinks.collect(),
            scale: Scale {
                time: self.time,
                bytes: self.bytes,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_comes_back_as_it_was_written() {
        let mut config = Config::default();
        assert_eq!(Config::parse("").unwrap(), config);
        assert_eq!(Config::parse(&config.text()).unwrap(), config);
        config.bytes = 64;
        config.gpus = vec![
            GpuConfig {
                part: "A100-80GB".to_owned(),
                slices: vec!["3g.40gb".to_owned(), "4g.40gb".to_owned()],
                count: 1,
            },
            GpuConfig {
                part: "V100".to_owned(),
                slices: Vec::new(),
                count: 2,
            },
        ];
        config.kernels.push(KernelConfig {
            name: "add".to_owned(),
            duration_us: 7,
            sms: Some(3),
        });
        config.nvlinks.push(NvLinkConfig {
            gpus: [1, 2],
            bytes_per_second: 44_000_000_000,
        });
        assert_eq!(Config::parse(&config.text()).unwrap(), config);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, message) in [
            ("time = 9", "time = 9: allowed: 1 to 8"),
            ("bytes = 0", "bytes = 0: allowed: 1 to 512"),
            ("[[gpu]]\npart = \"K80\"", "gpu 0: K80: no such part"),
            ("[[gpu]]\npart = \"V100\"\ncount = 0", "1 to 64"),
            ("[[gpu]]\npart = \"V100\"\nslices = [\"1g.10gb\"]", "GPU 0"),
            ("speed = 1", "unknown field `speed`"),
        ] {
            let error = Config::parse(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
