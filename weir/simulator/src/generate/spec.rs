//! Description of a synthetic workload.

use policy::Span;
use serde::Deserialize;

use super::{Daily, Rates, Shape, nanos};
use crate::random::{Purpose, Streams};
use crate::traces::FUNCTIONS_MAX;

/// A model that functions run.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name to which hardware and functions files refer.
    pub name: String,
    /// Size of the weights, in units of 10⁶ bytes.
    pub weights_mb: f64,
    /// Objective of functions that run the model, in milliseconds.
    pub objective_ms: Option<f64>,
}

/// Assignment of models to functions.
#[derive(Clone, Copy, PartialEq, Debug, Default, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Mix {
    /// Function i runs model i mod the number of models.
    #[default]
    Turns,
    /// Functions run the last model while its share of all weights so far is at most `share`, and otherwise
    /// the other models in turn. Thus a function keeps its model when functions are added.
    WeightShare {
        /// Share of the last model in all weights, in (0, 1).
        share: f64,
    },
}

/// Description of a synthetic workload.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of the experiment, part of the random streams' key.
    pub experiment: String,
    /// Seed, part of the random streams' key.
    pub seed: u64,
    /// Number of functions, from 1 to 1,048,576.
    pub functions: u32,
    /// Length of the warm-up, which is simulated first and not counted, in seconds.
    pub warm_up_s: f64,
    /// Length of the counted time, in seconds.
    pub counted_s: f64,
    /// Distribution of the functions' rates.
    pub rates: Rates,
    /// Sum to which all rates are scaled, in requests a minute, so that fleets are compared at equal load.
    pub total_per_minute: Option<f64>,
    /// Change of the rates over time.
    pub shape: Shape,
    /// Change of the rates with the time of day.
    pub daily: Option<Daily>,
    /// Models that functions run; if empty, functions have no model.
    #[serde(default)]
    pub models: Vec<Model>,
    /// Assignment of the models to the functions.
    #[serde(default)]
    pub mix: Mix,
}

/// Error in a spec: a value out of range, or text which is not a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A value is out of range.
    #[error("{field} is {found}: {allowed} is needed")]
    Value {
        /// Key of the value.
        field: &'static str,
        /// Value that was found.
        found: String,
        /// Description of the allowed values.
        allowed: &'static str,
    },
    /// The text is not a spec in TOML.
    #[error("{0}")]
    Text(String),
    /// No preset has this name.
    #[error("there is no preset {name:?}; allowed: {allowed}")]
    Preset {
        /// Requested name, cut to 80 characters.
        name: String,
        /// Names of all presets, separated by commas.
        allowed: String,
    },
}

/// Returns [`SpecError::Value`] unless `good`.
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
    /// Parses a spec from TOML.
    ///
    /// # Errors
    /// Returns [`SpecError::Text`] if the text is not a spec, and the errors of [`Spec::validate`].
    pub fn from_toml(text: &str) -> Result<Self, SpecError> {
        let spec: Self =
            toml::from_str(text).map_err(|error| SpecError::Text(error.to_string()))?;
        spec.validate()?;
        Ok(spec)
    }

    /// Checks that every value is in range.
    ///
    /// # Errors
    /// Returns [`SpecError::Value`] for the first value out of range.
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
            let allowed = "at least 2 models, because of mix.share,";
            check(self.models.len() >= 2, "models", self.models.len(), allowed)?;
        }
        Ok(())
    }

    /// Returns the length of warm-up and counted time together.
    #[must_use]
    pub fn length(&self) -> Span {
        Span(nanos((self.warm_up_s + self.counted_s) * 1e9))
    }

    /// Returns the mean rate of every function, in requests a minute.
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

    /// Returns the index of every function's model; empty if there are no models.
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
