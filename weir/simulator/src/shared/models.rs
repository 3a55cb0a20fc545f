//! What runs on GPUs that are shared, as data: how fast a model is on a share of SMs, what it needs of memory, and
//! what it costs to pass a GPU on.

use device::law::{FULL_SPEED, Law};
use policy::Span;
use policy::footprint::Footprint;
use policy::tokens::SM_WHOLE;
use serde::Deserialize;
use thiserror::Error;

use crate::generate::nanos;

/// FaST-GShare's models on a V100 (workloads 8, 9).
pub const FAST_GSHARE: &str = include_str!("models.toml");

/// How fast a model is.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name, as workloads have it.
    pub name: String,
    /// T1: what one pod serves that has all SMs all the time, in requests per second.
    pub requests_per_s: f64,
    /// f(S): its speed on a share of the SMs.
    pub law: Law,
    /// κ: by what each neighbour that runs at the same time slows it.
    pub interference: f64,
    /// What one launch computes, in µs with all SMs and without neighbours: a close waits for the end of those that have been
    /// made. 0: next to nothing.
    #[serde(default)]
    pub launch_us: f64,
}

/// What a model needs of a GPU's memory, in MB of 2^20 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelMemory {
    /// Its name.
    pub name: String,
    /// Of a pod that shares nothing.
    pub alone_mb: u64,
    /// Of a pod whose weights are in a storage process.
    pub pod_mb: u64,
    /// Its weights.
    pub weights_mb: u64,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuParts {
    /// Its memory, in MB of 2^20 bytes.
    pub memory_mb: u64,
    /// From nothing to a pod that serves, in seconds, whatever it holds …
    pub cold_start_s: f64,
    /// … and for each 10^9 bytes that it holds.
    pub cold_start_s_per_gb: f64,
}

/// What it costs to pass SMs from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateTimes {
    /// From a process to the scheduler or back, µs.
    pub message_us: f64,
    /// From a close to the question of a process that has more to do, µs.
    pub ask_us: f64,
    /// What a process may have launched ahead, µs …
    pub in_flight_us: f64,
    /// … and of a pod without a limit where nobody has waited for it within the last window; none: the same.
    pub in_flight_alone_us: Option<f64>,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Models {
    /// The models.
    pub models: Vec<Model>,
    /// Their memory, and that of models whose speed is not known.
    pub footprints: Vec<ModelMemory>,
    /// Each GPU.
    pub gpu: GpuParts,
    /// Each gate.
    pub gate: GateTimes,
}

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum ModelsError {
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
}

impl Models {
    /// From TOML.
    ///
    /// # Errors
    /// What is wrong, with its key and what is allowed.
    pub fn from_toml(text: &str) -> Result<Self, ModelsError> {
        let models: Self = toml::from_str(text)?;
        models.check()?;
        Ok(models)
    }

    /// FaST-GShare's.
    ///
    /// # Panics
    /// Never: a test reads it.
    #[must_use]
    pub fn fast_gshare() -> Self {
        Self::from_toml(FAST_GSHARE).expect("the file of the crate is right")
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

    /// A model's index by its name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<usize> {
        self.models.iter().position(|model| model.name == name)
    }

    /// What is known of a model's memory.
    #[must_use]
    pub fn memory(&self, name: &str) -> Option<&ModelMemory> {
        self.footprints.iter().find(|memory| memory.name == name)
    }

    /// The memory law of pods of a model that share their weights; nothing if it is not known.
    #[must_use]
    pub fn footprint(&self, name: &str) -> Footprint {
        self.memory(name)
            .map_or_else(Footprint::default, ModelMemory::shared)
    }

    /// The memory of each GPU, in bytes.
    #[must_use]
    pub const fn gpu_memory(&self) -> u64 {
        self.gpu.memory_mb << 20
    }

    /// From nothing to a pod of this model that serves, on average.
    #[must_use]
    pub fn cold_start(&self, name: &str) -> Span {
        #[expect(clippy::cast_precision_loss, reason = "bytes of one GPU")]
        let bytes = self.footprint(name).pod as f64;
        let seconds = self.gpu.cold_start_s + self.gpu.cold_start_s_per_gb * bytes / 1e9;
        Span(nanos(seconds * 1e9))
    }
}

impl Model {
    /// What a request takes with all SMs and without neighbours, in ns.
    #[must_use]
    pub fn work(&self) -> f64 {
        1e9 / self.requests_per_s
    }

    /// f(S) for `sm` hundredths of a percent of the SMs: 1 with all of them.
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
    /// Pods that share their weights.
    #[must_use]
    pub const fn shared(&self) -> Footprint {
        Footprint::shared(self.weights_mb << 20, self.pod_mb << 20)
    }

    /// Pods that share nothing.
    #[must_use]
    pub const fn alone(&self) -> Footprint {
        Footprint::unshared(self.alone_mb << 20)
    }
}

impl GateTimes {
    /// From a process to the scheduler or back.
    #[must_use]
    pub fn message(&self) -> Span {
        Span(nanos(self.message_us * 1e3))
    }

    /// From a close to the next question.
    #[must_use]
    pub fn ask(&self) -> Span {
        Span(nanos(self.ask_us * 1e3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workloads 8: with κ the pods together reach the printed sums (FaST-GShare §5.3).
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
    fn what_is_wrong_is_named() {
        for (from, to, said) in [
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
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
