//! The file `softgpu.toml`: the GPUs of a node and their scale.
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `time` | factor by which all times of the device are longer: 1 to 8 | 1 |
//! | `bytes` | factor by which memory and link rates are smaller: 1 to 512 | 1 |
//! | `ledger-mib` | largest size of the ledger on disk, in MiB: 1 to 65,536 | 64 |
//! | `[[gpu]]` | a GPU: `part`, `slices` (names of MIG profiles), `count` | one H100 |
//! | `[[switch]]` | `gpus`, `uplink-bytes-per-second` | none |
//! | `[[nvlink]]` | `gpus` (two), `bytes-per-second` | none |
//! | `[[kernel]]` | kernels of modules other than Weir's, by `name`, in which `*` stands for any text: `duration-us`, `sms`, `effects`; the first entry that matches holds | none |

use device::node::{Gpu, Node, NvLink, Scale, Switch};
use device::part::{Part, PartError};
use serde::{Deserialize, Serialize};

/// Contents of `softgpu.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Config {
    /// Factor by which all times of the device are longer, 1 to 8.
    #[serde(default = "one")]
    pub time: u32,
    /// Factor by which memory and link rates are smaller, 1 to 512.
    #[serde(default = "one")]
    pub bytes: u32,
    /// Largest size of the ledger on disk, in MiB, 1 to 65,536.
    #[serde(default = "ledger_mib")]
    pub ledger_mib: u32,
    /// GPUs of the node, 1 to [`GPUS_MAX`] in all.
    #[serde(default = "one_gpu", rename = "gpu")]
    pub gpus: Vec<GpuConfig>,
    /// PCIe switches, each of which shares one uplink to the host among its GPUs.
    #[serde(default, rename = "switch", skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchConfig>,
    /// NVLink connections between pairs of GPUs.
    #[serde(default, rename = "nvlink", skip_serializing_if = "Vec::is_empty")]
    pub nvlinks: Vec<NvLinkConfig>,
    /// Kernels known only by name and duration; they have no effect on memory.
    #[serde(default, rename = "kernel", skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelConfig>,
}

/// A number of identical GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GpuConfig {
    /// Name of the model, for example `H100`.
    pub part: String,
    /// Names of the MIG profiles of its slices; an empty list leaves the GPU whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<String>,
    /// Number of such GPUs.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u32,
}

/// GPUs that share one PCIe uplink to the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SwitchConfig {
    /// Indices of the GPUs, counted from 0.
    pub gpus: Vec<usize>,
    /// Rate of the uplink in bytes per second, before scaling.
    pub uplink_bytes_per_second: u64,
}

/// An NVLink connection between two GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NvLinkConfig {
    /// Indices of the two GPUs, counted from 0.
    pub gpus: [usize; 2],
    /// Rate of the link in bytes per second, before scaling.
    pub bytes_per_second: u64,
}

/// Kernels known by their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KernelConfig {
    /// Name of the kernel in its module; `*` stands for any text, also for none.
    pub name: String,
    /// Duration in microseconds, 1 to 600,000,000.
    pub duration_us: u64,
    /// Number of SMs the kernel requests; `None` for as many as its blocks fill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<u32>,
    /// Effect of the kernel on memory.
    #[serde(default, skip_serializing_if = "Effects::is_none")]
    pub effects: Effects,
}

/// Effect of a kernel whose result is not computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effects {
    /// It reads and writes nothing.
    #[default]
    None,
    /// It adds one to the 32-bit word at each device address among its parameters.
    Touch,
}

impl Effects {
    fn is_none(&self) -> bool {
        *self == Self::None
    }
}

impl KernelConfig {
    /// Returns whether the entry is meant for a kernel of this name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let Some((head, rest)) = self.name.split_once('*') else {
            return self.name == name;
        };
        let Some(mut name) = name.strip_prefix(head) else {
            return false;
        };
        let mut parts = rest.split('*');
        // The last part must be at the end; each part before is taken as early as possible.
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            let Some(at) = name.find(part) else {
                return false;
            };
            name = &name[at + part.len()..];
        }
        name.ends_with(last)
    }
}

/// An invalid `softgpu.toml`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A syntax error, unknown key or wrong type; the message names the line and the key.
    #[error("{0}")]
    Form(#[from] toml::de::Error),
    /// A value out of range.
    #[error("{key} = {value}: allowed: {allowed}")]
    Figure {
        /// Key of the value.
        key: &'static str,
        /// Value in the file.
        value: String,
        /// Allowed range of values, as text.
        allowed: String,
    },
    /// The name of an unknown GPU model.
    #[error("gpu {gpu}: {error}")]
    Part {
        /// Index of the `[[gpu]]` table, counted from 0.
        gpu: usize,
        /// Reason for which the model is refused.
        error: PartError,
    },
    /// GPUs, slices or links that do not form a valid node.
    #[error("{0}")]
    Node(#[from] device::machine::MachineError),
}

/// Largest number of GPUs in a node.
pub const GPUS_MAX: usize = 64;

const fn one() -> u32 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
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
    /// Parses and validates the text of the file.
    ///
    /// # Errors
    /// Fails on a syntax error, a value out of range, an unknown model, or a node that cannot be built; the error names
    /// the key.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Returns the text that [`Config::parse`] reads.
    #[must_use]
    pub fn text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Checks that all values are in range and that a node can be built from them.
    ///
    /// # Errors
    /// Fails with the first invalid value.
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
                value: format!("{gpus} GPUs"),
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

    /// Returns the described node.
    ///
    /// # Errors
    /// Fails when a GPU model is unknown.
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
    fn a_configuration_survives_writing_and_parsing() {
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
            effects: Effects::Touch,
        });
        config.nvlinks.push(NvLinkConfig {
            gpus: [1, 2],
            bytes_per_second: 44_000_000_000,
        });
        assert_eq!(Config::parse(&config.text()).unwrap(), config);
    }

    #[test]
    fn a_star_in_a_name_stands_for_any_text() {
        let matches = |pattern: &str, name: &str| {
            let rule = KernelConfig {
                name: pattern.to_owned(),
                duration_us: 1,
                sms: None,
                effects: Effects::None,
            };
            rule.matches(name)
        };
        for (pattern, name) in [
            ("add", "add"),
            ("*", ""),
            ("*", "add"),
            ("a*", "a"),
            ("*gemm*", "sm90_xmma_gemm_f32"),
            ("a*b*c", "abbc"),
            ("a*bc", "abcbc"),
            ("**", "x"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("add", "add2"),
            ("a*", "ba"),
            ("a*a", "a"),
            ("*gemm*", "gem"),
            ("a*b*c", "acb"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn errors_name_the_invalid_key_or_gpu() {
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
