//! Description of nodes, as data: models and their times, GPUs, their memory and their links.

use policy::Span;
use policy::pool::SlotId;
use policy::pool::heaviness::{Class, Heaviness, Measurements};
use policy::pool::slots::{Model, Topology, TopologyError};
use serde::Deserialize;
use thiserror::Error;

use super::memory::MemoryTimes;
use super::settings::{Hosting, Settings};
use super::swap_time::CopyTimes;

/// Largest number of blocks of a model.
const BLOCKS_MAX: u32 = 65_536;

/// Description of Torpor's node in TOML: models of Table 4, a swap law fitted to Tables 3 and 4.
pub const TORPOR: &str = include_str!("torpor.toml");

/// Sizes and times of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTimes {
    /// Name by which workloads refer to the model.
    pub name: String,
    /// Size of the weights, in units of 10⁶ bytes.
    pub weights_mb: f64,
    /// Execution time with the model resident, in milliseconds.
    pub execution_ms: f64,
    /// Execution time in a process of its own bound to its GPU, without redirection, in milliseconds.
    pub native_ms: f64,
    /// GPU memory of a process of its own, weights included, in units of 10⁶ bytes.
    pub footprint_mb: f64,
    /// Time to start a process until it is ready, in milliseconds.
    pub cold_start_ms: f64,
    /// Blocks of device memory that the model allocates, as pairs of size in MiB and count; empty if unknown.
    #[serde(default)]
    pub blocks_mib: Vec<[u32; 2]>,
}

/// Speeds of the links over which models are loaded.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkTimes {
    /// Rate from host to GPU without other loads on the same path, in 10⁹ bytes per second.
    pub host_gb_per_s: f64,
    /// Slowdown for each further load over the same path: two loads run at 1 / (1 + s) each.
    pub contention: f64,
    /// Time that a swap adds to the longer of transfer and execution, in milliseconds.
    pub swap_adds_ms: f64,
    /// Rates between GPUs by class of link, in 10⁹ bytes per second.
    pub classes_gb_per_s: Vec<f64>,
}

/// Description of a node, as in the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeParts {
    /// Number of GPUs of a node.
    pub slots: usize,
    /// Memory for models on each GPU, in 10⁹ bytes.
    pub models_gb: f64,
    /// Total memory of a GPU, in 10⁹ bytes: bounds the processes that are bound to it.
    pub memory_gb: f64,
    /// Host memory for models, in 10⁹ bytes.
    pub host_gb: f64,
    /// Pairs of GPUs that share their path to the host.
    pub pairs: Vec<[u32; 2]>,
    /// Matrix of the classes of the links between GPUs, counted from 1; 0 for no link. Empty if there are no links.
    pub links: Vec<Vec<usize>>,
    /// Context memory left by a process which is bound to a GPU, in units of 10⁶ bytes.
    pub residue_mb: f64,
}

/// Models, links, memory and nodes of a run; see the [module](self).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Sizes and times of the models, at least one.
    pub models: Vec<ModelTimes>,
    /// Speeds of the links.
    pub link: LinkTimes,
    /// Times of copies, for rules under which the number of copies matters.
    pub copies: CopyTimes,
    /// Times of the device's memory calls.
    pub memory: MemoryTimes,
    /// Description of every node; all nodes are alike.
    pub node: NodeParts,
}

/// Error in a description of hardware.
#[derive(Debug, Error)]
pub enum HardwareError {
    /// The text is not a description of hardware in TOML.
    #[error("{0}")]
    Toml(#[from] toml::de::Error),
    /// A value is out of range.
    #[error("{key} is {found}: allowed: {allowed}")]
    Value {
        /// Key of the value.
        key: String,
        /// Value that was found.
        found: String,
        /// Description of the allowed values.
        allowed: &'static str,
    },
    /// The slots and their pairs or links are inconsistent.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Converts milliseconds, which must be finite and not negative, to a span.
#[must_use]
pub fn millis(ms: f64) -> Span {
    nanos(ms * 1e6)
}

/// Converts nanoseconds, which must be finite and not negative, to a span, rounded.
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be finite and not negative, and a float stops at the bounds"
)]
pub fn nanos(ns: f64) -> Span {
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

/// Returns the class that a pool determines once it has measured both times (mechanisms §2.4).
fn is_heavy(resident: Span, swapped: Span, bytes: u64) -> bool {
    let mut heaviness = Heaviness::unknown();
    // The first measurement determines the class.
    let _changed = heaviness.measured(Measurements {
        resident,
        swapped,
        bytes,
    });
    heaviness.class() == Class::Heavy
}

impl Hardware {
    /// Parses a description in TOML.
    ///
    /// # Errors
    /// Returns the first value out of range, with its key and the allowed values.
    pub fn from_toml(text: &str) -> Result<Self, HardwareError> {
        let hardware: Self = toml::from_str(text)?;
        hardware.check()?;
        Ok(hardware)
    }

    /// Returns the description of Torpor's node.
    ///
    /// # Panics
    /// Never: a test parses the file.
    #[must_use]
    pub fn torpor() -> Self {
        Self::from_toml(TORPOR).expect("the file of the crate is valid")
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

    /// Checks that blocks hold the weights, and that they are few enough to be placed one by one.
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

    /// Returns the slots of a node. `part` scales the memory for models.
    ///
    /// # Errors
    /// Returns [`HardwareError::Topology`] if slots, pairs and links are inconsistent.
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

    /// Returns whether a slot can hold a swapped model. Bound processes are settled as far as they fit, so all are accepted.
    pub(super) fn fits(&self, model: usize, settings: &Settings) -> bool {
        settings.hosting != Hosting::Swapped
            || self.of_pool(model).bytes <= bytes(self.node.models_gb * 1e9 * settings.memory_part)
    }

    /// Returns the rate between two slots in bytes per second; `None` without a link.
    pub(crate) fn link_rate(&self, one: SlotId, other: SlotId) -> Option<f64> {
        let class = *self.node.links.get(one.0 as usize)?.get(other.0 as usize)?;
        let rate = self.link.classes_gb_per_s.get(class.checked_sub(1)?)?;
        Some(rate * 1e9)
    }

    /// Returns the index of the model with this name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| model.name == name)
    }

    /// Returns the model as the pool describes it.
    #[must_use]
    pub fn of_pool(&self, model: usize) -> Model {
        self.of_pool_swapped(model, self.swapped_alone(model))
    }

    /// Returns the model as the pool describes it, if a swap from the host takes `swapped` in all.
    pub(crate) fn of_pool_swapped(&self, model: usize, swapped: Span) -> Model {
        let times = &self.models[model];
        let execution = millis(times.execution_ms);
        Model {
            bytes: bytes(times.weights_mb * 1e6),
            heavy: is_heavy(execution, swapped, bytes(times.weights_mb * 1e6)),
            tight: false,
            writes: false,
            execution,
            swapped,
        }
    }

    /// Returns the time of an inference which loads its model from the host, with no other load on the path.
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

    /// Compares with Torpor Table 4, column "swap PCIe", in milliseconds. The fit is within 9.5 %.
    #[test]
    fn the_swap_law_reproduces_table_4() {
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
    fn errors_name_the_key() {
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
                "0 and 7 are not two different slots",
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
