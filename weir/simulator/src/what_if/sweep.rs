//! Selection of runs: one value that takes several values.

use thiserror::Error;

use super::cluster::{GPUS_MAX, NODES_MAX};
use super::scenario::Point;

/// Largest number of values in a sweep.
pub const VALUES_MAX: usize = 256;

/// Value that is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Number of GPUs of each node.
    Gpus,
    /// Number of nodes of the cluster.
    Nodes,
    /// Memory for models on each GPU, in 10⁹ bytes.
    ModelsGb,
    /// Rate from host to GPU, in 10⁹ bytes per second.
    HostGbPerS,
    /// Rate of arrivals, as a multiple of the trace's.
    RateScale,
}

/// Values of an axis, with one run for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// Value that is swept.
    pub axis: Axis,
    /// Values in rising order.
    pub values: Vec<f64>,
}

/// Error in the text of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SweepError {
    /// The text has not the form `key=range`.
    #[error("{0:?} is not KEY=FROM..TO, KEY=FROM..TO..STEP or KEY=ONE,OTHER, such as gpus=1..16")]
    Form(String),
    /// The range falls instead of rising.
    #[error(
        "{key}={from}..{to} begins at {from} and ends at {to}: a rising range is needed, such as {key}={to}..{from}"
    )]
    Falls {
        /// Name of the axis.
        key: &'static str,
        /// Begin of the range.
        from: String,
        /// End of the range.
        to: String,
    },
    /// The step is not a number above 0.
    #[error("the step of {key} is {step}: a number above 0 is needed")]
    Step {
        /// Name of the axis.
        key: &'static str,
        /// Step that was found.
        step: String,
    },
    /// No axis has this name.
    #[error("{0:?} cannot be swept; allowed: gpus, nodes, models-gb, host-gb-per-s, rate-scale")]
    Key(String),
    /// A value is out of range.
    #[error("{key} is {found}: {allowed} is needed")]
    Value {
        /// Name of the axis.
        key: &'static str,
        /// Value that was found.
        found: String,
        /// Description of the allowed values.
        allowed: String,
    },
    /// The sweep has more than [`VALUES_MAX`] values.
    #[error("a sweep has at most {VALUES_MAX} values")]
    TooMany,
}

impl Axis {
    /// All axes, in the order of error messages.
    pub const ALL: [Self; 5] = [
        Self::Gpus,
        Self::Nodes,
        Self::ModelsGb,
        Self::HostGbPerS,
        Self::RateScale,
    ];

    /// Returns the name used on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpus => "gpus",
            Self::Nodes => "nodes",
            Self::ModelsGb => "models-gb",
            Self::HostGbPerS => "host-gb-per-s",
            Self::RateScale => "rate-scale",
        }
    }

    /// Returns the title for an axis of a plot.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Gpus => "GPUs a node",
            Self::Nodes => "nodes",
            Self::ModelsGb => "memory for models of a GPU, GB",
            Self::HostGbPerS => "host to GPU, GB/s",
            Self::RateScale => "rate, in multiples of the trace's",
        }
    }

    /// Returns the largest value for an axis of whole numbers; `None` for other axes.
    const fn whole_up_to(self) -> Option<u32> {
        match self {
            Self::Gpus => Some(GPUS_MAX),
            Self::Nodes => Some(NODES_MAX),
            Self::ModelsGb | Self::HostGbPerS | Self::RateScale => None,
        }
    }

    /// Returns the value if it is allowed on this axis.
    ///
    /// # Errors
    /// Returns [`SweepError::Value`] if the value is out of range.
    pub fn check(self, value: f64) -> Result<f64, SweepError> {
        let (good, allowed) = match self.whole_up_to() {
            Some(most) => (
                value >= 1.0 && value <= f64::from(most) && libm::floor(value) == value,
                format!("a whole number from 1 to {most}"),
            ),
            None => (
                (0.001..=1e6).contains(&value),
                "a number from 0.001 to 1000000".to_owned(),
            ),
        };
        if good {
            return Ok(value);
        }
        Err(SweepError::Value {
            key: self.name(),
            found: value.to_string(),
            allowed,
        })
    }
}

impl Sweep {
    /// Parses `gpus=1..16`, `rate-scale=0.5..2..0.25` or `gpus=1,2,4,8`; both ends of a range are included.
    ///
    /// # Errors
    /// Returns a [`SweepError`] if the text has another form, or a value or a step is not allowed.
    pub fn parse(text: &str) -> Result<Self, SweepError> {
        let form = || SweepError::Form(text.to_owned());
        let (key, range) = text.split_once('=').ok_or_else(form)?;
        let key = key.trim();
        let axis = Axis::ALL.into_iter().find(|axis| axis.name() == key);
        let axis = axis.ok_or_else(|| SweepError::Key(key.to_owned()))?;
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| form());
        let mut values = Vec::new();
        if range.contains("..") {
            let parts: Vec<&str> = range.split("..").collect();
            let (from, to, step) = match parts.as_slice() {
                [from, to] => (number(from)?, number(to)?, 1.0),
                [from, to, step] => (number(from)?, number(to)?, number(step)?),
                _ => return Err(form()),
            };
            // Both ends are checked first, so that an endless range is refused.
            let (from, to) = (axis.check(from)?, axis.check(to)?);
            if from > to {
                return Err(SweepError::Falls {
                    key: axis.name(),
                    from: from.to_string(),
                    to: to.to_string(),
                });
            }
            if !(step.is_finite() && step > 0.0) {
                return Err(SweepError::Step {
                    key: axis.name(),
                    step: step.to_string(),
                });
            }
            let mut at = 0.0;
            // Multiplied instead of added up, so that 0.1 stays 0.1; the tolerance includes a last step lost by rounding.
            while from + at * step <= to + step * 1e-9 {
                let value = libm::round((from + at * step) * 1e9) / 1e9;
                values.push(axis.check(value)?);
                if values.len() > VALUES_MAX {
                    return Err(SweepError::TooMany);
                }
                at += 1.0;
            }
        } else {
            for value in range.split(',') {
                values.push(axis.check(number(value)?)?);
            }
            values.sort_by(f64::total_cmp);
            values.dedup();
            if values.len() > VALUES_MAX {
                return Err(SweepError::TooMany);
            }
        }
        Ok(Self { axis, values })
    }
}

impl Point {
    /// Returns the point with another value on an axis.
    #[must_use]
    pub fn at(mut self, axis: Axis, value: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked: whole and small where it is used as such"
        )]
        let whole = value as u32;
        match axis {
            Axis::Gpus => self.gpus = whole,
            Axis::Nodes => self.nodes = whole,
            Axis::ModelsGb => self.models_gb = value,
            Axis::HostGbPerS => self.host_gb_per_s = value,
            Axis::RateScale => self.rate_scale = value,
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<f64> {
        Sweep::parse(text).unwrap().values
    }

    #[test]
    fn ranges_and_lists_are_parsed() {
        assert_eq!(values("gpus=1..4"), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(values("gpus=2..8..3"), [2.0, 5.0, 8.0]);
        assert_eq!(values("gpus= 4, 1,2,2"), [1.0, 2.0, 4.0]);
        assert_eq!(
            values("rate-scale=0.1..0.5..0.1"),
            [0.1, 0.2, 0.3, 0.4, 0.5]
        );
        assert_eq!(values("nodes=3"), [3.0]);
    }

    #[test]
    fn errors_name_key_and_value() {
        for (text, expected) in [
            ("gpus", "KEY=FROM..TO"),
            ("gpus=", "KEY=FROM..TO"),
            (
                "gpus=4..1",
                "begins at 4 and ends at 1: a rising range is needed, such as gpus=1..4",
            ),
            ("gpus=1..2..0", "the step of gpus is 0: a number above 0"),
            ("gpus=1..2..3..4", "KEY=FROM..TO"),
            (
                "slots=1..2",
                "\"slots\" cannot be swept; allowed: gpus, nodes",
            ),
            ("gpus=0..4", "gpus is 0: a whole number from 1 to 64"),
            ("gpus=1..65", "gpus is 65"),
            ("gpus=1..3..0.5", "gpus is 1.5"),
            ("nodes=1e99", "nodes is 1"),
            ("rate-scale=nan", "rate-scale is NaN"),
            ("rate-scale=0.001..1000000..0.001", "at most 256"),
        ] {
            let error = Sweep::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
