//! Cost of a request as a linear function of its input and output.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest service time of a request.
pub(crate) const SERVICE_MAX: Duration = Duration::from_secs(600);

/// Cost of a request: a fixed part, and parts per unit of input and output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Fixed cost per request, in nanoseconds.
    pub fixed_ns: u64,
    /// Cost per unit of input, in nanoseconds.
    pub per_input_ns: u64,
    /// Cost per unit of output, in nanoseconds.
    pub per_output_ns: u64,
}

/// Amount of work of a request: the body of `/infer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Units of input, such as tokens of a prompt.
    pub input: u64,
    /// Units of output, such as tokens to generate.
    pub output: u64,
}

impl Cost {
    /// Returns the service time of a request; at most ten minutes.
    #[must_use]
    pub fn service_time(&self, work: Work) -> Duration {
        let nanos = self
            .before_output_ns(work)
            .saturating_add(self.output_ns(work));
        Duration::from_nanos(nanos).min(SERVICE_MAX)
    }

    /// Returns the time before the first unit of output, in nanoseconds.
    pub(crate) fn before_output_ns(&self, work: Work) -> u64 {
        let input = self.per_input_ns.saturating_mul(work.input);
        self.fixed_ns.saturating_add(input)
    }

    /// Returns the time of all units of output, in nanoseconds.
    pub(crate) fn output_ns(&self, work: Work) -> u64 {
        self.per_output_ns.saturating_mul(work.output)
    }

    /// Returns the environment variables which configure a model-server with this cost.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("MODEL_FIXED_US", (self.fixed_ns / 1_000).to_string()),
            ("MODEL_INPUT_NS", self.per_input_ns.to_string()),
            ("MODEL_OUTPUT_NS", self.per_output_ns.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_time_is_linear_and_bounded() {
        let cost = Cost {
            fixed_ns: 5,
            per_input_ns: 2,
            per_output_ns: 3,
        };
        assert_eq!(
            cost.service_time(Work {
                input: 10,
                output: 100
            }),
            Duration::from_nanos(325)
        );
        assert_eq!(
            cost.service_time(Work {
                input: u64::MAX,
                output: 1
            }),
            SERVICE_MAX
        );
    }
}
