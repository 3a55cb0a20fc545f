//! Settings of the token scheduler, and the reasons why they may be refused.

use std::fmt;

use super::Share;
use crate::Span;

pub use units::SM_WHOLE;

/// Rule by which tokens are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Guarantees and limits as accounts that survive windows; surplus goes to the pod that has had the least of it.
    Weir,
    /// M4.7 as printed: windows of 1 s, tokens of 10 ms, and a queue that stops at the first process that does not fit.
    Paper,
    /// A token bucket per pod, filled by feedback on the pod's own measured utilisation; SMs are not counted and pods
    /// do not affect each other, as in HAMi.
    ReactiveBucket,
    /// [`Rule::Paper`] with every process counted as the whole GPU: time sharing without space sharing (M4.17).
    TimeOnly,
    /// The GPU belongs to the pod that was added first, until it is removed (M4.17).
    Exclusive,
    /// No process is ever held back (M4.17).
    Racing,
}

/// Settings of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// SMs that may be occupied at once, in hundredths of a percent (M4.9). More than [`SM_WHOLE`] only for tests of
    /// oversubscription.
    pub sm_limit: u32,
    /// Rule by which tokens are granted.
    pub rule: Rule,
    /// Window of M4.7; under [`Rule::Weir`] the most that a pod can save up, in time at its share.
    pub window: Span,
    /// Length of any span over which a pod gets at most its limit.
    pub horizon: Span,
    /// Work that a process may have in flight while others wait, or if its pod has a limit below one whole.
    /// [`Rule::Weir`] closes a pod this much before the horizon is full, since what is in flight runs to its end; but
    /// never by more than half of what the pod uses between two pauses.
    pub in_flight: Span,
    /// Work that a process of a pod without a limit may have in flight if no process has waited for a window.
    pub in_flight_alone: Span,
    /// Length of a cycle, in which each of the competing pods has one turn of request × cycle.
    pub cycle: Span,
    /// Time that a process holds its token at least before it is closed for another.
    pub slice_min: Span,
    /// Step in which a token is renewed while no other process wants its SMs.
    pub slice_max: Span,
    /// Time for which a waiting process that does not fit may be overtaken by smaller ones.
    pub overtaking_max: Span,
    /// Time for which SMs are idle when they pass from one process to another: the price of every close.
    pub hand_over: Span,
    /// Share of the time that closes may cost.
    pub hand_over_share_max: Share,
    /// Time without anything in flight after which a token is revoked if others wait. Only under [`Rule::Weir`], as are
    /// the next three.
    pub idle_max: Span,
    /// Time to answer for a process with work that should have ended, and for whose token others wait.
    pub answer_max: Span,
    /// Time to launch for a process that has just got its token, as far as `idle_share_max` allows.
    pub start_max: Span,
    /// Share of the time that tokens may cost which a pod holds and does not use while others wait.
    pub idle_share_max: Share,
    /// Length of a token under [`Rule::Paper`] and [`Rule::TimeOnly`].
    pub paper_token: Span,
}

/// Reason why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// No SM may ever be occupied.
    NoSms,
    /// A span that must not be zero is zero.
    Zero {
        /// Name of the setting.
        setting: &'static str,
    },
    /// A span is longer than one that must contain it.
    Longer {
        /// Name of the setting that is too long.
        setting: &'static str,
        /// Name of the setting that must be at least as long.
        than: &'static str,
    },
    /// The horizon is longer than usage can be recorded for.
    HorizonTooLong {
        /// Longest horizon that is allowed.
        max: Span,
    },
    /// Without a share of the time for hand-overs, no process could ever be closed for another.
    NoHandOvers,
    /// Without a share of idle time, a pod with a token that was revoked once would never get one again.
    NoIdleShare,
}

/// Longest horizon: a quarter of an hour.
pub const HORIZON_MAX: Span = Span::from_secs(900);

impl Rule {
    /// Returns whether this rule closes pods at their limits.
    pub(super) const fn keeps_limits(self) -> bool {
        !matches!(self, Self::Exclusive | Self::Racing)
    }

    /// Returns whether the SMs of holders never exceed the limit under this rule.
    #[must_use]
    pub const fn counts_sms(self) -> bool {
        matches!(self, Self::Weir | Self::Paper | Self::TimeOnly)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sm_limit: SM_WHOLE,
            rule: Rule::Weir,
            window: Span::from_secs(1),
            horizon: Span::from_secs(10),
            in_flight: Span::from_millis(2),
            in_flight_alone: Span::from_millis(100),
            cycle: Span::from_millis(100),
            slice_min: Span::from_millis(2),
            slice_max: Span::from_millis(100),
            overtaking_max: Span::from_millis(20),
            hand_over: Span(250_000),
            hand_over_share_max: Share::from_percent(4),
            idle_max: Span::from_millis(1),
            answer_max: Span::from_millis(2),
            start_max: Span::from_millis(10),
            idle_share_max: Share::from_percent(2),
            paper_token: Span::from_millis(10),
        }
    }
}

impl Settings {
    /// Checks that a scheduler can work with these settings.
    ///
    /// # Errors
    /// Returns the first problem found.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.sm_limit == 0 {
            return Err(SettingsError::NoSms);
        }
        for (setting, span) in [
            ("window", self.window),
            ("horizon", self.horizon),
            ("cycle", self.cycle),
            ("slice_min", self.slice_min),
            ("slice_max", self.slice_max),
            ("idle_max", self.idle_max),
            ("paper_token", self.paper_token),
        ] {
            if span == Span::ZERO {
                return Err(SettingsError::Zero { setting });
            }
        }
        for (setting, shorter, than, longer) in [
            ("window", self.window, "horizon", self.horizon),
            ("cycle", self.cycle, "window", self.window),
            ("slice_min", self.slice_min, "cycle", self.cycle),
            ("slice_min", self.slice_min, "slice_max", self.slice_max),
            ("paper_token", self.paper_token, "window", self.window),
            ("idle_max", self.idle_max, "start_max", self.start_max),
            (
                "in_flight",
                self.in_flight,
                "in_flight_alone",
                self.in_flight_alone,
            ),
        ] {
            if shorter > longer {
                return Err(SettingsError::Longer { setting, than });
            }
        }
        if self.horizon > HORIZON_MAX {
            return Err(SettingsError::HorizonTooLong { max: HORIZON_MAX });
        }
        if self.hand_over_share_max.is_none() && self.hand_over > Span::ZERO {
            return Err(SettingsError::NoHandOvers);
        }
        if self.idle_share_max.is_none() {
            return Err(SettingsError::NoIdleShare);
        }
        Ok(())
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSms => f.write_str("sm_limit must be at least 1"),
            Self::Zero { setting } => write!(f, "{setting} must not be zero"),
            Self::Longer { setting, than } => {
                write!(f, "{setting} must not be longer than {than}")
            }
            Self::HorizonTooLong { max } => {
                write!(f, "horizon must be at most {} ms", max.as_millis())
            }
            Self::NoHandOvers => f.write_str(
                "hand_over_share_max must not be zero while hand_over is not: no process could be \
                 closed for another",
            ),
            Self::NoIdleShare => f.write_str(
                "idle_share_max must not be zero: a pod with a revoked token would never get one again",
            ),
        }
    }
}

impl std::error::Error for SettingsError {}
