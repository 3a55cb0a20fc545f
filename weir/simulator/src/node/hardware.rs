//! What nodes are made of, as data: models and how long they take, GPUs, their memory and their links.

use policy::Span;
use policy::pool::SlotId;
use policy::pool::heaviness::{Class, Heaviness, Measured};
use policy::pool::slots::{Model, Topology, TopologyError};
use serde::Deserialize;
use thiserror::Error;

use super::memory::MemoryTimes;
use super::settings::{Hosting, Settings};
use super::swap_time::CopyTimes;

/// A model has no more blocks.
const BLOCKS_MAX: u32 = 65_536;

/// Torpor's node: models of Table 4, a swap law fitted to Tables 3 and 4.
pub const TORPOR: &str = include_str!("torpor.toml");

/// How long a model takes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTimes {
    /// Its name, as workloads have it.
    pub name: String,
    /// Bytes of its weights, over 10⁶.
    pub weights_mb: f64,
    /// Execution with the model resident, ms.
    pub execution_ms: f64,
    /// The same in a process of its own that is bound to its GPU, without redirection, ms.
    pub native_ms: f64,
    /// What a process of its own takes of a GPU, weights included, over 10⁶ bytes.
    pub footprint_mb: f64,
    /// From nothing to ready, ms.
    pub cold_start_ms: f64,
    /// The blocks of device memory that it asks for, as pairs of a size in MiB and how many; empty: not known.
    #[serde(default)]
    pub blocks_mib: Vec<[u32; 2]>,
}

/// The links that models come over.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTimes {
    /// Host to GPU, 10⁹ bytes per second, when nobody else loads over the same path.
    pub host_gb_per_s: f64,
    /// By what each further load over the same path slows all of them: two run at 1 / (1 + s) each.
    pub contention: f64,
    /// What a swap adds to the longer of transfer and execution, ms.
    pub swap_adds_ms: f64,
    /// GPU to GPU by class, 10⁹ bytes per second.
    pub classes_gb_per_s: Vec<f64>,
}

/// A node: what a file says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeParts {
    /// GPUs.
    pub slots: usize,
    /// What models may take of each, 10⁹ bytes.
    pub models_gb: f64,
    /// What a GPU has in all, 10⁹ bytes: bounds processes that hold it to themselves.
    pub memory_gb: f64,
    /// Of host memory for models, 10⁹ bytes.
    pub host_gb: f64,
    /// GPUs that share their path to the host.
    pub pairs: Vec<[u32; 2]>,
    /// Row by row, the class of the link between two GPUs, from 1; 0: none.
    pub links: Vec<Vec<usize>>,
    /// Context residue of a process that is bound to a GPU, over 10⁶ bytes.
    pub residue_mb: f64,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// The models.
    pub models: Vec<ModelTimes>,
    /// The links.
    pub link: LinkTimes,
    /// Copies, where their number matters.
    pub copies: CopyTimes,
    /// Calls to the device for memory.
    pub memory: MemoryTimes,
    /// Each node.
    pub node: NodeParts,
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum HardwareError {
    /// It is no such file.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A value is out of range.
    #[error("{key} is {found}: allowed: {allowed}")]
    Value {
        /// Which.
        key: String,
        /// What it is.
        found: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The slots cannot be so.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Milliseconds as a span.
pub(crate) fn millis(ms: f64) -> Span {
    nanos(ms * 1e6)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be finite and not negative, and a float stops at the bounds"
)]
pub(crate) fn nanos(ns: f64) -> Span {
    Span(libm::round(ns) as u64)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be finite and not negative, and a float stops at the bounds"
)]
pub(crate) fn bytes(value: f64) -> u64 {
    libm::round(value) as u64
}

/// What a pool finds once it has measured both (papers 2.4).
fn is_heavy(resident: Span, swapped: Span, bytes: u64) -> bool {
    let mut heaviness = Heaviness::unknown();
    // The first measurement settles it.
    let _changed = heaviness.measured(Measured {
        resident,
        swapped,
        bytes,
    });
    heaviness.class() == Class::Heavy
}

impl Hardware {
    /// From TOML.
    ///
    /// # Errors
    /// What is wrong, with its key and what is allowed.
    pub fn from_toml(text: &str) -> Result<Self, HardwareError> {
        let hardware: Self = toml::from_str(text)?;
        hardware.check()?;
        Ok(hardware)
    }

    /// Torpor's.
    ///
    /// # Panics
    /// Never: a test reads it.
    #[must_use]
    pub fn torpor() -> Self {
        Self::from_toml(TORPOR).expect("the file of the crate is right")
    }

    fn check(&self) -> Result<(), HardwareError> {
        let wrong = |key: String, found: String, allowed| {
            Err(HardwareError::Value {
                key,
                found,
                allowed,
            })
        };
        let positive = |value: f64| value.is_finite() && value > 0.0;
        if self.models.is_empty() {
            return wrong(
                "models".to_owned(),
                "empty".to_owned(),
                "one model at least",
            );
        }
        for (at, model) in self.models.iter().enumerate() {
            let values = [
                ("weights_mb", model.weights_mb),
                ("execution_ms", model.execution_ms),
                ("native_ms", model.native_ms),
                ("footprint_mb", model.footprint_mb),
                ("cold_start_ms", model.cold_start_ms),
            ];
            for (key, value) in values {
                if !positive(value) {
                    let key = format!("models[{at}].{key}");
                    return wrong(key, value.to_string(), "above 0");
                }
            }
            if self.models[..at]
                .iter()
                .any(|other| other.name == model.name)
            {
                let key = format!("models[{at}].name");
                return wrong(key, model.name.clone(), "a name that no other model has");
            }
        }
        self.check_blocks()?;
        let (link, node, copies, memory) = (&self.link, &self.node, &self.copies, &self.memory);
        for (key, value) in [
            ("copies.group_mb", copies.group_mb),
            ("link.host_gb_per_s", link.host_gb_per_s),
            ("node.models_gb", node.models_gb),
            ("node.memory_gb", node.memory_gb),
            ("node.host_gb", node.host_gb),
        ] {
            if !positive(value) {
                return wrong(key.to_owned(), value.to_string(), "above 0");
            }
        }
        for (key, value) in [
            ("link.contention", link.contention),
            ("link.swap_adds_ms", link.swap_adds_ms),
            ("node.residue_mb", node.residue_mb),
            ("copies.copy_adds_us", copies.copy_adds_us),
            ("copies.swap_adds_ms", copies.swap_adds_ms),
            ("memory.device_allocation_us", memory.device_allocation_us),
            ("memory.device_free_us", memory.device_free_us),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return wrong(key.to_owned(), value.to_string(), "0 or more");
            }
        }
        if let Some(at) = link
            .classes_gb_per_s
            .iter()
            .position(|&rate| !positive(rate))
        {
            let key = format!("link.classes_gb_per_s[{at}]");
            return wrong(key, link.classes_gb_per_s[at].to_string(), "above 0");
        }
        let square = node.links.is_empty()
            || node.links.len() == node.slots
                && node.links.iter().all(|row| row.len() == node.slots);
        if !square {
            let found = format!("{} rows", node.links.len());
            return wrong(
                "node.links".to_owned(),
                found,
                "a row and a column for each slot, or none",
            );
        }
        for (row, classes) in node.links.iter().enumerate() {
            for (column, &class) in classes.iter().enumerate() {
                if class > link.classes_gb_per_s.len() || class != node.links[column][row] {
                    let key = format!("node.links[{row}][{column}]");
                    let allowed = "a class of link.classes_gb_per_s, counted from 1, the same both ways; 0: no link";
                    return wrong(key, class.to_string(), allowed);
                }
            }
        }
        self.topology(1.0).map(drop)
    }

    /// Blocks hold the weights, and are no more than can be placed one by one.
    fn check_blocks(&self) -> Result<(), HardwareError> {
        for (at, model) in self.models.iter().enumerate() {
            let (mut mib, mut count) = (0, 0);
            for &[size, times] in &model.blocks_mib {
                mib += u64::from(size) * u64::from(times);
                count += u64::from(times);
            }
            let holds = mib.saturating_mul(1 << 20) >= bytes(model.weights_mb * 1e6);
            let is_known = !model.blocks_mib.is_empty();
            if is_known && !(holds && count <= u64::from(BLOCKS_MAX)) {
                return Err(HardwareError::Value {
                    key: format!("models[{at}].blocks_mib"),
                    found: format!("{count} blocks of {mib} MiB"),
                    allowed: "pairs of a size and a count, up to 65536 blocks in all, that hold the weights",
                });
            }
        }
        Ok(())
    }

    /// The slots of a node; `part`: of the memory for models.
    ///
    /// # Errors
    /// They cannot be so.
    pub fn topology(&self, part: f64) -> Result<Topology, HardwareError> {
        let memory = vec![bytes(self.node.models_gb * 1e9 * part); self.node.slots];
        let mut topology = Topology::new(&memory)?;
        for &[one, other] in &self.node.pairs {
            topology.share_host_path(SlotId(one), SlotId(other))?;
        }
        for (row, classes) in (0..).zip(&self.node.links) {
            for (column, &class) in (0..row).zip(classes) {
                if class > 0 {
                    let speed = self.link.classes_gb_per_s[class - 1] * 1e3;
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "megabytes per second: a float stops at the bounds"
                    )]
                    topology.link(SlotId(row), SlotId(column), speed as u32)?;
                }
            }
        }
        Ok(topology)
    }

    /// Whether a slot can hold a model that is swapped. Processes that have slots to themselves are bound as far as they fit.
    pub(super) fn fits(&self, model: usize, settings: &Settings) -> bool {
        settings.hosting != Hosting::Swapped
            || self.of_pool(model).bytes <= bytes(self.node.models_gb * 1e9 * settings.memory_part)
    }

    /// The speed between two slots, bytes per second.
    pub(crate) fn link_rate(&self, one: SlotId, other: SlotId) -> Option<f64> {
        let class = *self.node.links.get(one.0 as usize)?.get(other.0 as usize)?;
        let rate = self.link.classes_gb_per_s.get(class.checked_sub(1)?)?;
        Some(rate * 1e9)
    }

    /// A model by its name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| model.name == name)
    }

    /// What the pool is told of a model.
    #[must_use]
    pub fn of_pool(&self, model: usize) -> Model {
        self.of_pool_swapped(model, self.swapped_alone(model))
    }

    /// The same where a swap from the host takes so long in all.
    pub(crate) fn of_pool_swapped(&self, model: usize, swapped: Span) -> Model {
        let times = &self.models[model];
        let execution = millis(times.execution_ms);
        Model {
            bytes: bytes(times.weights_mb * 1e6),
            heavy: is_heavy(execution, swapped, bytes(times.weights_mb * 1e6)),
            writes: false,
            execution,
            swapped,
        }
    }

    /// Inference with the model coming from the host, alone on its path.
    #[must_use]
    pub fn swapped_alone(&self, model: usize) -> Span {
        let times = &self.models[model];
        let transfer_ms = times.weights_mb / self.link.host_gb_per_s;
        millis(transfer_ms.max(times.execution_ms) + self.link.swap_adds_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Torpor Table 4: column "swap PCIe", ms. The fit is good to 9.5 %.
    #[test]
    fn the_swap_law_gives_table_4() {
        let hardware = Hardware::torpor();
        for (name, printed) in [
            ("DenseNet-169", 27.0),
            ("DenseNet-201", 30.0),
            ("Inception-v3", 17.0),
            ("EfficientNet", 13.0),
            ("ResNet-50", 13.0),
            ("ResNet-101", 22.0),
            ("ResNet-152", 25.0),
            ("Bert-qa", 144.0),
        ] {
            let model = hardware.model(name).unwrap();
            let ours = hardware.swapped_alone(model).as_secs_f64() * 1e3;
            assert!((ours / printed - 1.0).abs() < 0.1, "{name}: {ours}");
        }
        let heavy: Vec<_> = (0..8).map(|at| hardware.of_pool(at).heavy).collect();
        assert_eq!(heavy, [false, false, false, false, true, true, true, true]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, key) in [
            ("slots = 4", "slots = 5", "node.links is 4 rows"),
            (
                "weights_mb = 56.596",
                "weights_mb = 0",
                "models[0].weights_mb is 0",
            ),
            (
                "pairs = [[0, 1]",
                "pairs = [[0, 7]",
                "0 and 7 are no two slots",
            ),
            (
                "contention = 0.6",
                "contention = -1",
                "link.contention is -1",
            ),
            ("[0, 1, 1, 2],", "[0, 1, 1, 3],", "node.links[0][3] is 3"),
        ] {
            assert!(TORPOR.contains(from), "{from}");
            let error = Hardware::from_toml(&TORPOR.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}
