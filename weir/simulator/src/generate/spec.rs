//! What a made-up workload is made of.

use policy::Span;
use serde::Deserialize;

use super::{Daily, Rates, Shape, nanos};
use crate::random::{Purpose, Streams};
use crate::traces::FUNCTIONS_MAX;

/// A model that functions run.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name.
    pub name: String,
    /// Bytes of its weights over 10⁶.
    pub weights_mb: f64,
    /// Objective of functions that run it, ms.
    pub objective_ms: Option<f64>,
}

/// Which function runs which model.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Mix {
    /// Function i runs model i mod the number of models.
    #[default]
    Turns,
    /// Functions run the last model as long as it has no more than this share of all weights so far, and else
    /// the others in turn. So a function keeps its model when functions are added.
    WeightShare {
        /// Of the last model, in (0, 1).
        share: f64,
    },
}

/// What a made-up workload is made of.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Names the random streams.
    pub experiment: String,
    /// Keys the random streams.
    pub seed: u64,
    /// How many functions there are.
    pub functions: u32,
    /// Time that is simulated first and not counted, seconds.
    pub warm_up_s: f64,
    /// Time that is counted, seconds.
    pub counted_s: f64,
    /// How often each function is called.
    pub rates: Rates,
    /// Scales all rates so that they add up to this, in requests a minute: fleets are compared at equal load.
    pub total_per_minute: Option<f64>,
    /// How rates change with time.
    pub shape: Shape,
    /// How rates change with the time of day.
    pub daily: Option<Daily>,
    /// The models that functions run; none: functions have no model.
    #[serde(default)]
    pub models: Vec<Model>,
    /// Which function runs which.
    #[serde(default)]
    pub mix: Mix,
}

/// A value of a spec that is not possible, or a text that is no spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A value is out of range.
    #[error("{field} is {found}: {allowed} is needed")]
    Value {
        /// Its key.
        field: &'static str,
        /// What it is.
        found: String,
        /// What is possible.
        allowed: &'static str,
    },
    /// A text is not a spec in TOML.
    #[error("{0}")]
    Text(String),
    /// There is no such preset.
    #[error("there is no preset {name:?}: {allowed} are the presets")]
    Preset {
        /// What was asked for.
        name: String,
        /// Those that there are.
        allowed: String,
    },
}

/// An error unless it is good.
pub(super) fn check(
    good: bool,
    field: &'static str,
    found: impl ToString,
    allowed: &'static str,
) -> Result<(), SpecError> {
    if good {
        return Ok(());
    }
    Err(SpecError::Value {
        field,
        found: found.to_string(),
        allowed,
    })
}

impl Spec {
    /// Reads a spec in TOML.
    ///
    /// # Errors
    /// [`SpecError::Text`] where it is not one, and what [`Spec::validate`] finds.
    pub fn from_toml(text: &str) -> Result<Self, SpecError> {
        let spec: Self =
            toml::from_str(text).map_err(|error| SpecError::Text(error.to_string()))?;
        spec.validate()?;
        Ok(spec)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first value that is out of range.
    pub fn validate(&self) -> Result<(), SpecError> {
        let good = (1..=FUNCTIONS_MAX).contains(&self.functions);
        check(
            good,
            "functions",
            self.functions,
            "a whole number from 1 to 1048576",
        )?;
        let good = (0.0..=3e8).contains(&self.warm_up_s);
        check(good, "warm_up_s", self.warm_up_s, "a number from 0 to 3e8")?;
        let good = self.counted_s > 0.0 && self.counted_s <= 3e8;
        check(
            good,
            "counted_s",
            self.counted_s,
            "a number above 0 and up to 3e8",
        )?;
        self.rates.validate()?;
        if let Some(total) = self.total_per_minute {
            let good = total > 0.0 && total <= 6e9;
            check(
                good,
                "total_per_minute",
                total,
                "a number above 0 and up to 6e9",
            )?;
        }
        self.shape.validate()?;
        if let Some(daily) = self.daily {
            daily.validate()?;
        }
        for model in &self.models {
            let good = model.weights_mb > 0.0 && model.weights_mb <= 1e7;
            let allowed = "a number above 0 and up to 1e7 (MB)";
            check(good, "models.weights_mb", model.weights_mb, allowed)?;
            if let Some(ms) = model.objective_ms {
                let good = ms > 0.0 && ms <= 1e9;
                let allowed = "a number above 0 and up to 1e9 (ms)";
                check(good, "models.objective_ms", ms, allowed)?;
            }
        }
        if let Mix::WeightShare { share } = self.mix {
            let good = share > 0.0 && share < 1.0;
            check(good, "mix.share", share, "a number between 0 and 1")?;
            let allowed = "at least two, for a share among them,";
            check(self.models.len() >= 2, "models", self.models.len(), allowed)?;
        }
        Ok(())
    }

    /// Warm-up and counted time together.
    #[must_use]
    pub fn length(&self) -> Span {
        Span(nanos((self.warm_up_s + self.counted_s) * 1e9))
    }

    /// The mean rate of every function, in requests a minute.
    #[must_use]
    pub fn rates_per_minute(&self, streams: &Streams) -> Vec<f64> {
        let mut rates: Vec<f64> = (0..self.functions)
            .map(|function| {
                let mut stream = streams.stream(Purpose::Rate, function);
                self.rates.draw(&mut stream)
            })
            .collect();
        if let Some(total) = self.total_per_minute {
            let factor = total / rates.iter().sum::<f64>();
            for rate in &mut rates {
                *rate *= factor;
            }
        }
        rates
    }

    /// The index of every function's model; empty without models.
    #[must_use]
    pub fn models_of_functions(&self) -> Vec<usize> {
        let Some(last) = self.models.len().checked_sub(1) else {
            return Vec::new();
        };
        let functions = self.functions as usize;
        match self.mix {
            Mix::Turns => (0..functions).map(|at| at % self.models.len()).collect(),
            Mix::WeightShare { share } => {
                let (mut all, mut of_last, mut others) = (0.0, 0.0, 0);
                (0..functions)
                    .map(|_| {
                        let at = if last == 0 || of_last <= share * all {
                            of_last += self.models[last].weights_mb;
                            last
                        } else {
                            others += 1;
                            (others - 1) % last
                        };
                        all += self.models[at].weights_mb;
                        at
                    })
                    .collect()
            }
        }
    }
}
