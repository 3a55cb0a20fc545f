//! Change of a function's rate over time, and the arrival times of its requests (workloads §3).
//!
//! Every shape is a renewal process on a clock that runs at the function's current rate: a gap with mean 1
//! is drawn (exponential, or Gamma for more even arrivals), and the request arrives when the clock has advanced
//! by the gap. The rate is piecewise constant, so nothing is approximated except the daily factor, which is held
//! for a minute (it changes by less than 0.2 % in one).

use std::sync::Arc;

use policy::{Span, Time};
use serde::Deserialize;

use super::spec::check;
use super::{SpecError, nanos};
use crate::random::Stream;

const MINUTE: u64 = 60_000_000_000;
const DAY: u64 = 86_400_000_000_000;

/// Change of a function's rate over time. All variants but [`Shape::Steps`] keep its mean.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Shape {
    /// Constant rate; gaps between arrivals ~ Gamma(k). Poisson with k = 1.
    Gaps {
        /// Shape parameter of the gaps; their squared coefficient of variation is 1/k.
        k: f64,
    },
    /// A rate ~ Gamma(k, mean/k) for every minute; Poisson within the minute.
    Minutes {
        /// Shape parameter of the rates; the larger, the less they vary.
        k: f64,
    },
    /// Two states with exponentially distributed lengths (a Markov-modulated Poisson process): `peak` times the mean rate while
    /// on, and while off the rate which keeps the mean.
    OnOff {
        /// Share of time spent on, φ.
        on_share: f64,
        /// Rate while on divided by the mean rate, b; at most 1/φ.
        peak: f64,
        /// Mean length of an on period, in seconds. The mean off period is `mean_on_s · (1 − φ)/φ`.
        mean_on_s: f64,
    },
    /// Levels one after another, then no arrivals; Poisson within a level.
    Steps {
        /// Length of a level, in seconds.
        step_s: f64,
        /// Levels, each a multiple of the function's rate.
        levels: Vec<f64>,
    },
}

impl Shape {
    pub(super) fn validate(&self) -> Result<(), SpecError> {
        let shape_of_gamma = |k: f64| {
            check(
                (0.01..=1e6).contains(&k),
                "shape.k",
                k,
                "a number from 0.01 to 1e6",
            )
        };
        let seconds = |field, s: f64| {
            check(
                (1e-3..=1e7).contains(&s),
                field,
                s,
                "a number from 0.001 to 1e7 (seconds)",
            )
        };
        match self {
            Self::Gaps { k } | Self::Minutes { k } => shape_of_gamma(*k),
            Self::OnOff {
                on_share,
                peak,
                mean_on_s,
            } => {
                let good = *on_share > 0.0 && *on_share < 1.0;
                check(
                    good,
                    "shape.on_share",
                    *on_share,
                    "a number between 0 and 1",
                )?;
                let good = *peak >= 1.0 && peak * on_share <= 1.0;
                check(good, "shape.peak", *peak, "a number from 1 to 1/on_share")?;
                seconds("shape.mean_on_s", *mean_on_s)
            }
            Self::Steps { step_s, levels } => {
                seconds("shape.step_s", *step_s)?;
                for &level in levels {
                    let good = (0.0..=1e6).contains(&level);
                    check(good, "shape.levels", level, "numbers from 0 to 1e6")?;
                }
                Ok(())
            }
        }
    }

    /// Returns the shape parameter of the gaps on the function's own clock.
    const fn gap_shape(&self) -> f64 {
        match self {
            Self::Gaps { k } => *k,
            _ => 1.0,
        }
    }
}

/// Daily sinusoidal factor on every rate: `1 + amplitude · sin(2π(t − φ)/24 h)`, with φ drawn uniformly for each
/// function.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daily {
    /// Amplitude of the factor, from 0 to 1.
    pub amplitude: f64,
}

impl Daily {
    pub(super) fn validate(self) -> Result<(), SpecError> {
        let good = (0.0..=1.0).contains(&self.amplitude);
        check(
            good,
            "daily.amplitude",
            self.amplitude,
            "a number from 0 to 1",
        )
    }
}

/// Piecewise constant rate of one function.
#[derive(Clone, Debug)]
struct Pace {
    shape: Arc<Shape>,
    stream: Stream,
    mean_per_ns: f64,
    /// Amplitude, and φ in nanoseconds.
    daily: Option<(f64, f64)>,
    on: bool,
    /// Current rate as a multiple of the mean, before the daily factor.
    level: f64,
    level_until: u64,
}

impl Pace {
    fn new(shape: &Arc<Shape>, per_minute: f64, daily: Option<Daily>, mut stream: Stream) -> Self {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a day in nanoseconds fits a double"
        )]
        let daily = daily.map(|daily| (daily.amplitude, stream.uniform(0.0, DAY as f64)));
        let on = match &**shape {
            // Drawn so that the process starts stationary; the first change turns the state over.
            Shape::OnOff { on_share, .. } => stream.unit() >= *on_share,
            _ => false,
        };
        Self {
            shape: Arc::clone(shape),
            stream,
            mean_per_ns: per_minute / 60e9,
            daily,
            on,
            level: 1.0,
            level_until: 0,
        }
    }

    /// Returns the rate from `at` on, in requests per nanosecond, and the later time until which it holds.
    fn piece(&mut self, at: u64) -> (f64, u64) {
        while self.level_until <= at {
            self.change();
        }
        let Some((amplitude, phase)) = self.daily else {
            return (self.level * self.mean_per_ns, self.level_until);
        };
        let minute = at / MINUTE;
        #[expect(
            clippy::cast_precision_loss,
            reason = "below 2^53 for 104 days, then rounded"
        )]
        let since = (minute * MINUTE + MINUTE / 2) as f64 - phase;
        #[expect(
            clippy::cast_precision_loss,
            reason = "a day in nanoseconds fits a double"
        )]
        let angle = std::f64::consts::TAU * (since / DAY as f64);
        let factor = 1.0 + amplitude * libm::sin(angle);
        let until = (minute + 1).saturating_mul(MINUTE).min(self.level_until);
        (self.level * factor * self.mean_per_ns, until)
    }

    /// Advances to the next level, which begins at the end of the current one.
    fn change(&mut self) {
        let from = self.level_until;
        let length = match &*self.shape {
            Shape::Gaps { .. } => u64::MAX,
            Shape::Minutes { k } => {
                self.level = self.stream.gamma(*k) / k;
                MINUTE
            }
            Shape::OnOff {
                on_share,
                peak,
                mean_on_s,
            } => {
                self.on = !self.on;
                let mean_s = if self.on {
                    self.level = *peak;
                    *mean_on_s
                } else {
                    self.level = ((1.0 - on_share * peak) / (1.0 - on_share)).max(0.0);
                    mean_on_s * (1.0 - on_share) / on_share
                };
                nanos(self.stream.exponential() * mean_s * 1e9).max(1)
            }
            Shape::Steps { step_s, levels } => {
                let step = nanos(step_s * 1e9);
                let level = usize::try_from(from / step)
                    .ok()
                    .and_then(|at| levels.get(at));
                self.level = level.copied().unwrap_or(0.0);
                if level.is_some() { step } else { u64::MAX }
            }
        };
        self.level_until = from.saturating_add(length);
    }
}

/// Iterator over the arrival times of one function's requests, lazy and in order.
#[derive(Clone, Debug)]
pub struct FunctionArrivals {
    pace: Pace,
    gaps: Stream,
    gap_shape: f64,
    begun: bool,
    at: u64,
    end: u64,
    per_ns: f64,
    until: u64,
}

impl FunctionArrivals {
    /// Returns the arrivals from time zero to before `length`, at this mean rate in requests a minute. `shape_stream` and
    /// `arrival_stream` must be at their beginnings.
    #[must_use]
    pub fn new(
        shape: &Arc<Shape>,
        per_minute: f64,
        daily: Option<Daily>,
        shape_stream: Stream,
        arrival_stream: Stream,
        length: Span,
    ) -> Self {
        Self {
            pace: Pace::new(shape, per_minute, daily, shape_stream),
            gaps: arrival_stream,
            gap_shape: shape.gap_shape(),
            begun: false,
            at: 0,
            end: length.0,
            per_ns: 0.0,
            until: 0,
        }
    }

    /// Draws a gap with mean 1. The first one is the remainder of a gap which contains time zero, so that functions do not
    /// all begin at once: a uniform part of a gap drawn with probability proportional to its length.
    #[expect(clippy::float_cmp, reason = "1 is set, not computed")]
    fn gap(&mut self) -> f64 {
        let first = !self.begun;
        self.begun = true;
        if self.gap_shape == 1.0 {
            return self.gaps.exponential();
        }
        if first {
            let part = self.gaps.unit();
            return part * self.gaps.gamma(self.gap_shape + 1.0) / self.gap_shape;
        }
        self.gaps.gamma(self.gap_shape) / self.gap_shape
    }
}

impl Iterator for FunctionArrivals {
    type Item = Time;

    #[expect(
        clippy::cast_precision_loss,
        reason = "a length: its rounding is far below its spread"
    )]
    fn next(&mut self) -> Option<Time> {
        if self.at >= self.end {
            return None;
        }
        let mut missing = self.gap();
        loop {
            if self.at >= self.until {
                let (per_ns, until) = self.pace.piece(self.at);
                self.per_ns = per_ns;
                self.until = until.min(self.end);
            }
            let left = self.until - self.at;
            let gained = self.per_ns * left as f64;
            if gained > missing {
                self.at += nanos(missing / self.per_ns).min(left);
                break;
            }
            missing -= gained;
            self.at = self.until;
            if self.at >= self.end {
                return None;
            }
        }
        (self.at < self.end).then_some(Time(self.at))
    }
}
