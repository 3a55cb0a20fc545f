//! Models and GPUs for sharing, as data: the speed of a model by its share of SMs, its memory, and the cost of passing
//! a GPU from one process to another.

use device::law::{FULL_SPEED, Law};
use policy::Span;
use policy::footprint::Footprint;
use policy::tokens::SM_WHOLE;
use serde::Deserialize;
use thiserror::Error;

use crate::generate::nanos;

/// Description in TOML of FaST-GShare's models on a V100 (workloads §8, §9).
pub const FAST_GSHARE: &str = include_str!("models.toml");

/// Speed of a model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name by which workloads refer to the model.
    pub name: String,
    /// Throughput T1 of one pod which has all SMs all the time, in requests per second.
    pub requests_per_s: f64,
    /// Speed on a share of the SMs, f(S).
    pub law: Law,
    /// Slowdown for each neighbour that runs at the same time, κ.
    pub interference: f64,
    /// Computation of one launch, in microseconds with all SMs and without neighbours: a close waits for the end of the launches
    /// made. 0 if negligible.
    #[serde(default)]
    pub launch_us: f64,
}

/// GPU memory that a model needs, in units of 2^20 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelMemory {
    /// Name of the model.
    pub name: String,
    /// Memory of a pod that shares nothing.
    pub alone_mb: u64,
    /// Memory of a pod with its weights in a storage process.
    pub pod_mb: u64,
    /// Memory of the weights.
    pub weights_mb: u64,
}

/// Memory and cold starts of a GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuParts {
    /// Memory of the GPU, in units of 2^20 bytes.
    pub memory_mb: u64,
    /// Fixed part of a pod's cold start until it serves, in seconds.
    pub cold_start_s: f64,
    /// Part of a cold start for each 10^9 bytes of the pod, in seconds.
    pub cold_start_s_per_gb: f64,
}

/// Costs of passing SMs from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateTimes {
    /// Duration of a message between process and scheduler, in microseconds.
    pub message_us: f64,
    /// Time from a close until a process with more work requests a token, in microseconds.
    pub ask_us: f64,
    /// Work that a process may launch ahead, in microseconds.
    pub in_flight_us: f64,
    /// Work that a process may launch ahead, in microseconds, if its pod has no limit and no pod has waited for it within the
    /// last window; `None`: `in_flight_us`.
    pub in_flight_alone_us: Option<f64>,
}

/// Models, memory and costs of a run; see the [module](self).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// Speeds of the models.
    pub models: Vec<Model>,
    /// Memory of the models, and of models with unknown speed.
    pub footprints: Vec<ModelMemory>,
    /// Memory and cold starts of every GPU.
    pub gpu: GpuParts,
    /// Costs at every gate.
    pub gate: GateTimes,
}

/// Error in a description of models.
#[derive(Debug, Error)]
pub enum ModelsError {
    /// The text is not a description of models in TOML.
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
}

impl Models {
    /// Parses a description in TOML.
    ///
    /// # Errors
    /// Returns the first invalid value, with its key and the allowed values.
    pub fn from_toml(text: &str) -> Result<Self, ModelsError> {
        let models: Self = toml::from_str(text)?;
        models.check()?;
        Ok(models)
    }

    /// Returns FaST-GShare's models.
    ///
    /// # Panics
    /// Never: a test parses the file.
    #[must_use]
    pub fn fast_gshare() -> Self {
        Self::from_toml(FAST_GSHARE).expect("the file of the crate is valid")
    }

    fn check(&self) -> Result<(), ModelsError> {
        let check = |good: bool, key: String, found: String, allowed| {
            if good {
                return Ok(());
            }
            Err(ModelsError::Value {
                key,
                found,
                allowed,
            })
        };
        for (at, model) in self.models.iter().enumerate() {
            let rate = model.requests_per_s;
            check(
                (1e-3..=1e6).contains(&rate),
                format!("models[{at}].requests_per_s"),
                rate.to_string(),
                "0.001 to 1e6",
            )?;
            let interference = model.interference;
            check(
                (0.0..=100.0).contains(&interference),
                format!("models[{at}].interference"),
                interference.to_string(),
                "0 to 100",
            )?;
            let launch = model.launch_us;
            check(
                (0.0..=1e9).contains(&launch),
                format!("models[{at}].launch_us"),
                launch.to_string(),
                "0 to 1e9",
            )?;
            let is_new = (self.models[..at].iter()).all(|other| other.name != model.name);
            check(
                is_new,
                format!("models[{at}].name"),
                model.name.clone(),
                "a name that no other model has",
            )?;
            check(
                self.memory(&model.name).is_some(),
                format!("models[{at}].name"),
                model.name.clone(),
                "one of footprints",
            )?;
        }
        for (key, value, most) in [
            ("gpu.cold_start_s", self.gpu.cold_start_s, 1e6),
            ("gpu.cold_start_s_per_gb", self.gpu.cold_start_s_per_gb, 1e6),
            ("gate.message_us", self.gate.message_us, 1e9),
            ("gate.ask_us", self.gate.ask_us, 1e9),
            ("gate.in_flight_us", self.gate.in_flight_us, 1e9),
            (
                "gate.in_flight_alone_us",
                self.gate.in_flight_alone_us.unwrap_or(0.0),
                1e9,
            ),
        ] {
            check(
                (0.0..=most).contains(&value),
                key.to_owned(),
                value.to_string(),
                "0 or more, and no more than 1e6 s or 1e9 µs",
            )?;
        }
        Ok(())
    }

    /// Returns the index of the model with this name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| model.name == name)
    }

    /// Returns the memory that a model needs; `None` if it is not in the data.
    #[must_use]
    pub fn memory(&self, name: &str) -> Option<&ModelMemory> {
        self.footprints.iter().find(|memory| memory.name == name)
    }

    /// Returns the memory law of pods of a model that share their weights; zero if it is not in the data.
    #[must_use]
    pub fn footprint(&self, name: &str) -> Footprint {
        self.memory(name)
            .map_or_else(Footprint::default, ModelMemory::shared)
    }

    /// Returns the memory of each GPU, in bytes.
    #[must_use]
    pub const fn gpu_memory(&self) -> u64 {
        self.gpu.memory_mb << 20
    }

    /// Returns the mean duration of a cold start of a pod of this model.
    #[must_use]
    pub fn cold_start(&self, name: &str) -> Span {
        #[expect(clippy::cast_precision_loss, reason = "bytes of one GPU")]
        let bytes = self.footprint(name).pod as f64;
        let seconds = self.gpu.cold_start_s + self.gpu.cold_start_s_per_gb * bytes / 1e9;
        Span(nanos(seconds * 1e9))
    }
}

impl Model {
    /// Returns the duration of a request with all SMs and without neighbours, in nanoseconds.
    #[must_use]
    pub fn work(&self) -> f64 {
        1e9 / self.requests_per_s
    }

    /// Returns f(S) for `sm` hundredths of a percent of the SMs: 1 with all of them.
    #[must_use]
    pub fn speed(&self, sm: u32) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "at most 2^32")]
        let speed = self.law.speed(sm, SM_WHOLE) as f64;
        #[expect(clippy::cast_precision_loss, reason = "2^32")]
        let full = FULL_SPEED as f64;
        speed / full
    }
}

impl ModelMemory {
    /// Returns the memory law of pods that share their weights.
    #[must_use]
    pub const fn shared(&self) -> Footprint {
        Footprint::shared(self.weights_mb << 20, self.pod_mb << 20)
    }

    /// Returns the memory law of pods that share nothing.
    #[must_use]
    pub const fn alone(&self) -> Footprint {
        Footprint::unshared(self.alone_mb << 20)
    }
}

impl GateTimes {
    /// Returns the duration of a message between process and scheduler.
    #[must_use]
    pub fn message(&self) -> Span {
        Span(nanos(self.message_us * 1e3))
    }

    /// Returns the time from a close until the next token request.
    #[must_use]
    pub fn ask(&self) -> Span {
        Span(nanos(self.ask_us * 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With the κ of workloads §8 the pods together reach the printed sums (FaST-GShare §5.3).
    #[test]
    fn eight_pods_of_12_percent_reach_the_printed_sums() {
        let models = Models::fast_gshare();
        for (name, printed) in [("ResNet", 296.8), ("RNNT", 43.24), ("GNMT", 43.79)] {
            let model = &models.models[models.model(name).unwrap()];
            let alone = model.requests_per_s * model.speed(1_200);
            let sum = 8.0 * alone / (1.0 + 7.0 * model.interference);
            assert!((sum / printed - 1.0).abs() < 0.01, "{name}: {sum}");
        }
    }

    #[test]
    fn errors_name_the_key() {
        for (from, to, expected) in [
            (
                "requests_per_s = 71.37",
                "requests_per_s = 0",
                "models[0].requests_per_s is 0",
            ),
            (
                "interference = 0.141",
                "interference = -1",
                "models[1].interference is -1",
            ),
            (
                "interference = 0.194",
                "launch_us = -1\ninterference = 0.194",
                "models[2].launch_us is -1",
            ),
            (
                "name = \"RNNT\"",
                "name = \"ResNet\"",
                "models[1].name is ResNet",
            ),
            (
                "name = \"GNMT\"",
                "name = \"other\"",
                "models[2].name is other",
            ),
            ("at = 0.80", "at = 8.0", "above 0, at most 1"),
            ("ask_us = 50.0", "ask_us = -1", "gate.ask_us is -1"),
        ] {
            assert!(FAST_GSHARE.contains(from), "{from}");
            let error = Models::from_toml(&FAST_GSHARE.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
