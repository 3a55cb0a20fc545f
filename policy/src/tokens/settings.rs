//! The token scheduler's settings and why they may be refused.

use std::fmt;

use super::Share;
use crate::Span;

/// All SMs of a GPU, in the unit of SM shares: hundredths of a percent.
pub const SM_WHOLE: u32 = 10_000;

/// By what rule tokens are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Guarantees and limits as accounts that survive windows, surplus to whoever had least of it.
    Weir,
    /// M4.7 as printed: windows of 1 s, tokens of 10 ms, the queue stops at the first that does not fit.
    Paper,
    /// A token bucket per pod, filled by feedback on its own measured utilisation; SMs are not counted
    /// and no pod knows of another, as in HAMi.
    ReactiveBucket,
    /// [`Rule::Paper`] with every process counted as the whole GPU: time sharing without space (M4.17).
    TimeOnly,
    /// The GPU belongs to the pod that came first, until it is removed (M4.17).
    Exclusive,
    /// Nobody is ever held (M4.17).
    Racing,
}

/// The settings of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// SMs that may be occupied at once, in hundredths of a percent (M4.9). More than [`SM_WHOLE`] only
    /// for tests of oversubscription.
    pub sm_limit: u32,
    /// By what rule tokens are given.
    pub rule: Rule,
    /// The window of M4.7; under [`Rule::Weir`] the most that a pod can save up, in time at its share.
    pub window: Span,
    /// Over any span of this length a pod gets at most its limit.
    pub horizon: Span,
    /// Work that a process may have in flight where others wait, or its pod has a limit below one whole. [`Rule::Weir`] closes a pod
    /// so much before the horizon is full, for what is in flight runs to its end; but never by more than half of what it uses
    /// between two pauses.
    pub in_flight: Span,
    /// The same of a pod without a limit where nobody has waited for a window.
    pub in_flight_alone: Span,
    /// In one cycle each of the pods that compete has its turn, of request × cycle.
    pub cycle: Span,
    /// Nobody is closed for another's sake before it has held for this long.
    pub slice_min: Span,
    /// A token is renewed in steps of this length while nobody else wants its SMs.
    pub slice_max: Span,
    /// How long a waiting process that does not fit may be overtaken by smaller ones.
    pub overtaking_max: Span,
    /// How long SMs are idle when they pass from one process to another; the price of every close.
    pub hand_over: Span,
    /// What part of the time closes may cost.
    pub hand_over_share_max: Share,
    /// Others wait: a token with which nothing is in flight for this long is revoked. Only under [`Rule::Weir`], as the next three.
    pub idle_max: Span,
    /// A process whose work should have ended, and for whose token others wait, has this long to answer.
    pub answer_max: Span,
    /// A process that has just got its token has up to this long to launch, as far as `idle_share_max` allows.
    pub start_max: Span,
    /// The part of the time that tokens may cost which a pod holds and does not use while others wait.
    pub idle_share_max: Share,
    /// The length of a token under [`Rule::Paper`] and [`Rule::TimeOnly`].
    pub paper_token: Span,
}

/// Why settings are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsError {
    /// No SM may ever be occupied.
    NoSms,
    /// A span that must not be zero is.
    Zero {
        /// The setting's name.
        setting: &'static str,
    },
    /// A span is longer than one that must contain it.
    Longer {
        /// The setting that is too long.
        setting: &'static str,
        /// The setting that must be at least as long.
        than: &'static str,
    },
    /// A horizon longer than can be kept account of.
    HorizonTooLong {
        /// The longest.
        max: Span,
    },
    /// Without a share for them nobody could ever be closed for another.
    NoHandOvers,
    /// Without a share of idle time a pod whose token was revoked once would never get one again.
    NoIdleShare,
}

/// The longest horizon: a quarter of an hour.
pub const HORIZON_MAX: Span = Span::from_secs(900);

impl Rule {
    /// Whether this rule closes pods at their limits.
    pub(super) const fn keeps_limits(self) -> bool {
        !matches!(self, Self::Exclusive | Self::Racing)
    }

    /// Whether the SMs of holders never exceed the limit under this rule.
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
    /// Whether a scheduler can work with them.
    ///
    /// # Errors
    /// The first reason found why not.
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
                "hand_over_share_max must not be zero while a hand-over takes time: nobody could be \
                 closed for another",
            ),
            Self::NoIdleShare => f.write_str(
                "idle_share_max must not be zero: a pod whose token was revoked once would never get one again",
            ),
        }
    }
}

impl std::error::Error for SettingsError {}
