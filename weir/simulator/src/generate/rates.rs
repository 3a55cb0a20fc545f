//! Distribution of the functions' request rates (workloads §2).

use serde::Deserialize;

use super::SpecError;
use super::spec::check;
use crate::random::{Stream, normal_quantile};

/// Highest rate of a function, in requests a minute: a million a second.
const PER_MINUTE_MAX: f64 = 6e7;
const PER_MINUTE_ALLOWED: &str = "a number above 0 and up to 6e7 (requests a minute)";

/// Distribution of the functions' mean rates, in requests a minute (r/m).
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Rates {
    /// Log-normal through two quantiles: the share `of_functions[n]` is called at most `per_minute[n]` times a minute.
    /// Rates drawn above `max_per_minute` are clamped to it: clamping keeps both quantiles, drawing again would not.
    Quantiles {
        /// Two rates, the lower one first.
        per_minute: [f64; 2],
        /// Two shares of the functions in (0, 1), the lower one first.
        of_functions: [f64; 2],
        /// Largest rate, to which higher ones are clamped, in requests a minute.
        max_per_minute: f64,
    },
    /// Log-normal by its median, clamped at both ends.
    LogNormal {
        /// Median rate, in requests a minute.
        median_per_minute: f64,
        /// Standard deviation of the rate's natural logarithm.
        sigma: f64,
        /// Lowest rate, to which lower ones are clamped, in requests a minute.
        min_per_minute: f64,
        /// Largest rate, to which higher ones are clamped, in requests a minute.
        max_per_minute: f64,
    },
    /// Log-uniform between two bounds.
    LogUniform {
        /// Lower bound, in requests a minute.
        min_per_minute: f64,
        /// Upper bound, in requests a minute.
        max_per_minute: f64,
    },
    /// Equal rates of all functions.
    Equal {
        /// Rate of every function, in requests a minute.
        per_minute: f64,
    },
}

impl Rates {
    /// Draws the rate of a function, in requests a minute, from the beginning of its stream.
    #[must_use]
    pub fn draw(&self, stream: &mut Stream) -> f64 {
        match *self {
            Self::Quantiles { max_per_minute, .. } => {
                let (mu, sigma) = self.log_parameters();
                stream.log_normal(mu, sigma).min(max_per_minute)
            }
            Self::LogNormal {
                min_per_minute,
                max_per_minute,
                ..
            } => {
                let (mu, sigma) = self.log_parameters();
                stream
                    .log_normal(mu, sigma)
                    .max(min_per_minute)
                    .min(max_per_minute)
            }
            Self::LogUniform {
                min_per_minute,
                max_per_minute,
            } => libm::exp(stream.uniform(libm::log(min_per_minute), libm::log(max_per_minute)))
                .max(min_per_minute)
                .min(max_per_minute),
            Self::Equal { per_minute } => per_minute,
        }
    }

    /// Returns mean and standard deviation of the rate's logarithm before clamping; (0, 0) where the rate is not log-normal.
    #[must_use]
    pub fn log_parameters(&self) -> (f64, f64) {
        match *self {
            Self::Quantiles {
                per_minute,
                of_functions,
                ..
            } => {
                let [low, high] = of_functions.map(normal_quantile);
                let [log_low, log_high] = per_minute.map(libm::log);
                let sigma = (log_high - log_low) / (high - low);
                (log_low - low * sigma, sigma)
            }
            Self::LogNormal {
                median_per_minute,
                sigma,
                ..
            } => (libm::log(median_per_minute), sigma),
            Self::LogUniform { .. } | Self::Equal { .. } => (0.0, 0.0),
        }
    }

    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let rate = |field, rate: f64| {
            let good = rate > 0.0 && rate <= PER_MINUTE_MAX;
            check(good, field, rate, PER_MINUTE_ALLOWED)
        };
        let range = |low: f64, high: f64| {
            rate("rates.min_per_minute", low)?;
            rate("rates.max_per_minute", high)?;
            let allowed = "at least min_per_minute";
            check(low <= high, "rates.max_per_minute", high, allowed)
        };
        match *self {
            Self::Quantiles {
                per_minute,
                of_functions: [low, high],
                max_per_minute,
            } => {
                for value in per_minute {
                    rate("rates.per_minute", value)?;
                }
                let rising = per_minute[0] < per_minute[1];
                let allowed = "two rates, the lower one first";
                check(rising, "rates.per_minute", per_minute[1], allowed)?;
                let rising = 0.0 < low && low < high && high < 1.0;
                let allowed = "two shares between 0 and 1, the lower one first";
                check(rising, "rates.of_functions", high, allowed)?;
                rate("rates.max_per_minute", max_per_minute)?;
                let allowed = "at least the higher of per_minute";
                let good = max_per_minute >= per_minute[1];
                check(good, "rates.max_per_minute", max_per_minute, allowed)
            }
            Self::LogNormal {
                median_per_minute,
                sigma,
                min_per_minute,
                max_per_minute,
            } => {
                rate("rates.median_per_minute", median_per_minute)?;
                let good = (0.0..=20.0).contains(&sigma);
                check(good, "rates.sigma", sigma, "a number from 0 to 20")?;
                range(min_per_minute, max_per_minute)
            }
            Self::LogUniform {
                min_per_minute,
                max_per_minute,
            } => range(min_per_minute, max_per_minute),
            Self::Equal { per_minute } => rate("rates.per_minute", per_minute),
        }
    }
}
