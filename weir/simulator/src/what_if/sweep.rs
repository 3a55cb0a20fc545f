//! Which runs are made: one value that goes through a range.

use thiserror::Error;

use super::cluster::{GPUS_MAX, NODES_MAX};
use super::scenario::Point;

/// Most values of a sweep.
pub const VALUES_MAX: usize = 256;

/// What goes through a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// GPUs of each node.
    Gpus,
    /// Nodes.
    Nodes,
    /// Memory for models of each GPU, 10⁹ bytes.
    ModelsGb,
    /// Host to GPU, 10⁹ bytes per second.
    HostGbPerS,
    /// How often requests come, in multiples of the trace's rate.
    RateScale,
}

/// Values that something takes, one run for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// What.
    pub axis: Axis,
    /// Rising.
    pub values: Vec<f64>,
}

/// What is wrong with a sweep's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SweepError {
    /// It is no `key=range`.
    #[error("{0:?} is not KEY=FROM..TO, KEY=FROM..TO..STEP or KEY=ONE,OTHER; as in gpus=1..16")]
    Form(String),
    /// It falls.
    #[error(
        "{key}={from}..{to} begins at {from} and ends at {to}: a range that rises is needed, as {key}={to}..{from}"
    )]
    Falls {
        /// Which.
        key: &'static str,
        /// Its begin.
        from: String,
        /// Its end.
        to: String,
    },
    /// The step is no number above 0.
    #[error("the step of {key} is {step}: a number above 0 is needed")]
    Step {
        /// Which.
        key: &'static str,
        /// What it is.
        step: String,
    },
    /// There is no such key.
    #[error("{0:?} cannot be swept: gpus, nodes, models-gb, host-gb-per-s or rate-scale can")]
    Key(String),
    /// A value is not possible.
    #[error("{key} is {found}: {allowed} is needed")]
    Value {
        /// Which.
        key: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        allowed: String,
    },
    /// There are too many.
    #[error("a sweep has at most {VALUES_MAX} values")]
    TooMany,
}

impl Axis {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Gpus,
        Self::Nodes,
        Self::ModelsGb,
        Self::HostGbPerS,
        Self::RateScale,
    ];

    /// As it is written.
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

    /// In words, for an axis of a plot.
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

    /// The largest value, where only whole numbers are possible.
    const fn whole_up_to(self) -> Option<u32> {
        match self {
            Self::Gpus => Some(GPUS_MAX),
            Self::Nodes => Some(NODES_MAX),
            Self::ModelsGb | Self::HostGbPerS | Self::RateScale => None,
        }
    }

    /// A value that may be taken.
    ///
    /// # Errors
    /// [`SweepError::Value`].
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
    /// From `gpus=1..16`, `rate-scale=0.5..2..0.25` or `gpus=1,2,4,8`; ends are taken too.
    ///
    /// # Errors
    /// See [`SweepError`].
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
            // Checked as a whole: an endless range has no first value that is wrong.
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
            // Not by adding up, so that 0.1 stays 0.1; a last step that rounding has lost is taken.
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
    /// The same with another value.
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
    fn ranges_and_lists_are_read() {
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
    fn what_is_wrong_is_told() {
        for (text, said) in [
            ("gpus", "KEY=FROM..TO"),
            ("gpus=", "KEY=FROM..TO"),
            (
                "gpus=4..1",
                "begins at 4 and ends at 1: a range that rises is needed, as gpus=1..4",
            ),
            ("gpus=1..2..0", "the step of gpus is 0: a number above 0"),
            ("gpus=1..2..3..4", "KEY=FROM..TO"),
            ("slots=1..2", "\"slots\" cannot be swept: gpus, nodes"),
            ("gpus=0..4", "gpus is 0: a whole number from 1 to 64"),
            ("gpus=1..65", "gpus is 65"),
            ("gpus=1..3..0.5", "gpus is 1.5"),
            ("nodes=1e99", "nodes is 1"),
            ("rate-scale=nan", "rate-scale is NaN"),
            ("rate-scale=0.001..1000000..0.001", "at most 256"),
        ] {
            let error = Sweep::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
