//! Table `[tokens]`: rule and durations of the token scheduler.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::reader::Table;
use annotations::SM_WHOLE;
use annotations::values::{decimal, duration};

use super::units::{show_decimal, show_duration};
use super::{integer, one_of};

/// Largest `tokens.sm-limit`, in percent.
const SM_LIMIT_MAX: u64 = 400;
/// Largest factor of durations, `tokens.time-scale`.
const TIME_SCALE_MAX: u32 = 8;
/// Longest duration of a token setting, before scaling.
const DURATION_MAX: Duration = Duration::from_secs(100);

/// Scheduling rule of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Guarantees and limits as accounts which persist across windows.
    Weir,
    /// The rule as published in FaST-GShare.
    Paper,
    /// Time sharing alone, without sharing of SMs.
    TimeOnly,
    /// The pod that came first has the GPU for itself.
    Exclusive,
    /// No pod is ever held back.
    Racing,
    /// A token bucket for each pod, filled by feedback, as in HAMi.
    ReactiveBucket,
}

const RULES: [(&str, Rule); 6] = [
    ("weir", Rule::Weir),
    ("paper", Rule::Paper),
    ("time-only", Rule::TimeOnly),
    ("exclusive", Rule::Exclusive),
    ("racing", Rule::Racing),
    ("reactive-bucket", Rule::ReactiveBucket),
];

/// Rule and durations of the token scheduler. Durations are effective ones, already multiplied by `time_scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct TokenSettings {
    /// Scheduling rule of the tokens.
    pub rule: Rule,
    /// SMs that may be occupied at once, in hundredths of a percent.
    #[serde(rename = "sm-limit", serialize_with = "as_percent")]
    pub sm_limit_hundredths: u32,
    /// Largest credit that a pod can accumulate, in time at its share.
    #[serde(serialize_with = "as_duration")]
    pub window: Duration,
    /// Span over which a pod receives at most its limit.
    #[serde(serialize_with = "as_duration")]
    pub horizon: Duration,
    /// Span in which each competing pod has its turn.
    #[serde(serialize_with = "as_duration")]
    pub cycle: Duration,
    /// Shortest time of holding before a token is closed for another pod.
    #[serde(serialize_with = "as_duration")]
    pub slice_min: Duration,
    /// Length of each renewal of a token while no other pod wants it.
    #[serde(serialize_with = "as_duration")]
    pub slice_max: Duration,
    /// Longest time for which smaller requests may overtake a waiting one that does not fit.
    #[serde(serialize_with = "as_duration")]
    pub backfill: Duration,
    /// Bound of a process's work in flight while others wait or have waited within the last window, or its pod has a limit.
    #[serde(serialize_with = "as_duration")]
    pub inflight: Duration,
    /// Bound of a process's work in flight for a pod without a limit while no other has waited for that long.
    #[serde(serialize_with = "as_duration")]
    pub inflight_alone: Duration,
    /// Factor by which the durations of the file were multiplied.
    pub time_scale: u32,
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self {
            rule: Rule::Weir,
            sm_limit_hundredths: SM_WHOLE,
            window: Duration::from_secs(1),
            horizon: Duration::from_secs(10),
            cycle: Duration::from_millis(100),
            slice_min: Duration::from_millis(2),
            slice_max: Duration::from_millis(100),
            backfill: Duration::from_millis(20),
            inflight: Duration::from_millis(2),
            inflight_alone: Duration::from_millis(100),
            time_scale: 1,
        }
    }
}

impl TokenSettings {
    pub(super) fn read(&mut self, table: Table<'_, '_>) {
        if let Some(rule) = table.value("rule", |text| one_of(text, &RULES)) {
            self.rule = rule;
        }
        let sm_limit = table.value("sm-limit", |text| {
            decimal(text, 2)
                .filter(|hundredths| (1..=SM_LIMIT_MAX * 100).contains(hundredths))
                .and_then(|hundredths| u32::try_from(hundredths).ok())
                .ok_or_else(|| {
                    format!(
                        "allowed: per cent above 0, up to {SM_LIMIT_MAX}, with at most two decimals"
                    )
                })
        });
        if let Some(hundredths) = sm_limit {
            self.sm_limit_hundredths = hundredths;
        }
        let positive = |text: &str| {
            duration(text).and_then(|duration| {
                if duration.is_zero() || duration > DURATION_MAX {
                    let max = show_duration(DURATION_MAX);
                    Err(format!("allowed: above 0, up to {max}"))
                } else {
                    Ok(duration)
                }
            })
        };
        for (key, own) in [
            ("window", &mut self.window),
            ("horizon", &mut self.horizon),
            ("cycle", &mut self.cycle),
            ("slice-min", &mut self.slice_min),
            ("slice-max", &mut self.slice_max),
            ("inflight", &mut self.inflight),
            ("inflight-alone", &mut self.inflight_alone),
        ] {
            if let Some(duration) = table.value(key, positive) {
                *own = duration;
            }
        }
        let backfill = table.value("backfill", |text| {
            duration(text).and_then(|duration| {
                let max = show_duration(DURATION_MAX);
                let allowed = || format!("allowed: 0 to {max}");
                (duration <= DURATION_MAX)
                    .then_some(duration)
                    .ok_or_else(allowed)
            })
        });
        if let Some(duration) = backfill {
            self.backfill = duration;
        }
        for (shorter, key, longer, than) in [
            (self.window, "window", self.horizon, "horizon"),
            (self.cycle, "cycle", self.window, "window"),
            (self.slice_min, "slice-min", self.cycle, "cycle"),
            (self.slice_min, "slice-min", self.slice_max, "slice-max"),
            (
                self.inflight,
                "inflight",
                self.inflight_alone,
                "inflight-alone",
            ),
        ] {
            if shorter > longer {
                // Report the key that is in the file.
                let place = if table.place(key).is_some() {
                    key
                } else {
                    than
                };
                let [shorter, longer] = [shorter, longer].map(show_duration);
                table.wrong(
                    place,
                    format!("{key} ({shorter}) must not be longer than {than} ({longer})"),
                );
            }
        }
        if let Some(scale) = table.value("time-scale", |text| integer(text, 1, TIME_SCALE_MAX)) {
            self.scale(scale);
        }
        table.end();
    }

    /// Returns the settings of the scheduler on slots shared by MPS.
    #[must_use]
    pub fn scheduler(&self) -> policy::tokens::Settings {
        use policy::{Span, tokens};
        let span = |span: Duration| Span(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        let rule = match self.rule {
            Rule::Weir => tokens::Rule::Weir,
            Rule::Paper => tokens::Rule::Paper,
            Rule::TimeOnly => tokens::Rule::TimeOnly,
            Rule::Exclusive => tokens::Rule::Exclusive,
            Rule::Racing => tokens::Rule::Racing,
            Rule::ReactiveBucket => tokens::Rule::ReactiveBucket,
        };
        let scale = u64::from(self.time_scale.max(1));
        let default = tokens::Settings::default();
        tokens::Settings {
            sm_limit: self.sm_limit_hundredths,
            rule,
            window: span(self.window),
            horizon: span(self.horizon),
            in_flight: span(self.inflight),
            in_flight_alone: span(self.inflight_alone),
            cycle: span(self.cycle),
            slice_min: span(self.slice_min),
            slice_max: span(self.slice_max),
            overtaking_max: span(self.backfill),
            paper_token: Span(default.paper_token.0.saturating_mul(scale)),
            ..default
        }
    }

    fn scale(&mut self, scale: u32) {
        self.time_scale = scale;
        for own in [
            &mut self.window,
            &mut self.horizon,
            &mut self.cycle,
            &mut self.slice_min,
            &mut self.slice_max,
            &mut self.backfill,
            &mut self.inflight,
            &mut self.inflight_alone,
        ] {
            *own = own.saturating_mul(scale);
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "signature required by serde"
)]
fn as_percent<S: Serializer>(hundredths: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show_decimal(u64::from(*hundredths), 2))
}

pub(super) fn as_duration<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&show_duration(*duration))
}
