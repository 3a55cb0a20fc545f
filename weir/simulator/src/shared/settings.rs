//! By which rules pods run, come and go.

use policy::scaling::{self, LoadSettings};
use policy::{Span, Time, rectangles, tokens};

/// Random differences, as standard deviations (workloads 10).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Of the factor on a request's work, never below half.
    pub execution: f64,
    /// Of the logarithm of the factor on a cold start.
    pub cold_start: f64,
}

impl Noise {
    /// None at all.
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

/// How every GPU runs its pods.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Settings {
    /// Who has a token when.
    pub tokens: tokens::Settings,
    /// What is random.
    pub noise: Noise,
}

/// Up to where a pod that the scaler starts may take what others leave (M4.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lending {
    /// Its limit is its request, as when it was profiled (FaST-GShare §3.3.2).
    Nothing,
    /// Its limit is the whole window.
    WhatIsLeft,
}

/// Which points of a profile may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Those whose latency at this many of 1,000 requests meets the objective.
    MeetsObjective {
        /// Of 1,000 requests.
        per_mille: u16,
    },
    /// All, as in the listing.
    AsPrinted,
}

/// How pods of functions come and go.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scaling {
    /// What is expected to come.
    pub load: LoadSettings,
    /// How many pods of which shape.
    pub scaler: scaling::Settings,
    /// Of which points.
    pub choice: Choice,
    /// On which GPU.
    pub rectangles: rectangles::Settings,
    /// Up to where pods may borrow.
    pub lending: Lending,
    /// How often is decided.
    pub every: Span,
    /// From a decision to a pod that serves, on average; `None`: as the data say.
    pub cold_start: Option<Span>,
    /// Pods of each function's most efficient shape that serve when the run begins. A function without pods would answer
    /// its first requests a cold start late, whatever its scaling.
    pub first_pods: u32,
    /// How many GPUs there are.
    pub gpus: u32,
}

impl Default for Scaling {
    /// Papers 4.2–4.4 as resolved there; four GPUs (FaST-GShare §5.1).
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
    /// As printed: no objective in the choice of points, no hysteresis, no margin on what came since the last decision, the
    /// whole window given away.
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

/// Which part of a run counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// From then on …
    pub from: Time,
    /// … until then, when the run ends.
    pub to: Time,
}

impl Counted {
    /// A run of this length, of which the first tenth is not counted (workloads 1).
    #[must_use]
    pub const fn after_a_tenth(length: Span) -> Self {
        Self {
            from: Time(length.0 / 10),
            to: Time(length.0),
        }
    }

    /// How long it is.
    #[must_use]
    pub const fn length(&self) -> Span {
        self.to.since(self.from)
    }
}
