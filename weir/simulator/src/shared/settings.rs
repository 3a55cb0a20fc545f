//! Rules for running, starting and stopping pods.

use policy::scaling::{self, LoadSettings};
use policy::{Span, Time, rectangles, tokens};

/// Standard deviations of random factors (workloads §10).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Deviation of the factor on a request's work, which is never below half.
    pub execution: f64,
    /// Deviation of the logarithm of the factor on a cold start.
    pub cold_start: f64,
}

impl Noise {
    /// Settings without random variation.
    pub const OFF: Self = Self {
        execution: 0.0,
        cold_start: 0.0,
    };
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            execution: 0.03,
            cold_start: 0.15,
        }
    }
}

/// Settings of every GPU.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Settings {
    /// Settings of the token scheduler.
    pub tokens: tokens::Settings,
    /// Random variation of times.
    pub noise: Noise,
}

/// Limit up to which a pod started by the scaler may use time left by other pods (M4.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lending {
    /// The limit is the request, as when the pod was profiled (FaST-GShare §3.3.2).
    Nothing,
    /// The limit is the whole window.
    WhatIsLeft,
}

/// Points of a profile among which the scaler chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Points whose latency at `per_mille` of 1,000 requests meets the objective.
    MeetsObjective {
        /// Number of requests in 1,000, such as 990 for the 99th percentile.
        per_mille: u16,
    },
    /// All points, as in the printed listing.
    AsPrinted,
}

/// Settings for starting and stopping pods.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scaling {
    /// Prediction of the load.
    pub load: LoadSettings,
    /// Choice of the number and shape of pods.
    pub scaler: scaling::Settings,
    /// Points from which shapes are chosen.
    pub choice: Choice,
    /// Settings of the packer, which places pods on GPUs.
    pub rectangles: rectangles::Settings,
    /// Limit up to which pods may borrow time.
    pub lending: Lending,
    /// Interval between two decisions of the scalers.
    pub every: Span,
    /// Mean time from a decision until the pod serves; `None`: as given in the data.
    pub cold_start: Option<Span>,
    /// Number of pods of each function's most efficient shape that serve when the run begins. A function without pods would
    /// answer its first requests a cold start late, regardless of its scaling.
    pub first_pods: u32,
    /// Number of GPUs on which pods can be placed.
    pub gpus: u32,
}

impl Default for Scaling {
    /// Returns the settings of mechanisms §4.2–§4.4 as resolved there, with four GPUs (FaST-GShare §5.1).
    fn default() -> Self {
        Self {
            load: LoadSettings::default(),
            scaler: scaling::Settings::default(),
            choice: Choice::MeetsObjective { per_mille: 990 },
            rectangles: rectangles::Settings::default(),
            lending: Lending::Nothing,
            every: Span::from_secs(1),
            cold_start: None,
            first_pods: 1,
            gpus: 4,
        }
    }
}

impl Scaling {
    /// Returns the settings as printed: no objective in the choice of points, no hysteresis, no margin on the load since the last
    /// decision, and the whole window allocated.
    #[must_use]
    pub fn as_printed() -> Self {
        Self {
            load: LoadSettings {
                short: Span::ZERO,
                long: Span::ZERO,
                margin_percent: 100,
                ..LoadSettings::default()
            },
            scaler: scaling::Settings::paper(),
            choice: Choice::AsPrinted,
            rectangles: rectangles::Settings::paper(),
            ..Self::default()
        }
    }
}

/// Counted part of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedSpan {
    /// Time from which requests are counted.
    pub from: Time,
    /// End of the counted span and of the run.
    pub to: Time,
}

impl CountedSpan {
    /// Returns the counted span of a run of this length without its first tenth (workloads §1).
    #[must_use]
    pub const fn after_a_tenth(length: Span) -> Self {
        Self {
            from: Time(length.0 / 10),
            to: Time(length.0),
        }
    }

    /// Returns the length of the counted span.
    #[must_use]
    pub const fn length(&self) -> Span {
        self.to.since(self.from)
    }
}
