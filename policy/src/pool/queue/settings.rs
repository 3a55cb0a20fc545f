//! How the queue of a pool orders functions.

use crate::Span;

/// The order across functions. Inside a function requests stand by deadline, so by latest start time, or by
/// arrival under [`Order::Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Two groups: functions that can still be made compliant, and those that are too far behind (M2.13).
    /// The high group is served first, by latest start time; the low group by ascending RRC, then latest
    /// start time.
    RequiredRequests(Admission),
    /// One group, by latest start time (M1.10).
    LatestStart,
    /// First come, first served over all functions (M2.21). Nothing is late, nothing is aged.
    Arrival,
}

/// Who belongs to the high group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Whose RRC is at most θ, which adapts: every 5 s it falls by a tenth if the high group was less in
    /// time than its percentile asks, and else rises by 0.04/(1 − p).
    AdaptiveThreshold,
    /// Whose RRC is at most this, in requests.
    FixedThreshold(u32),
    /// Who needs least work to be compliant, until the work that the pool can do is used up: every 5 s
    /// functions are admitted by ascending (p·(n + a) − m)·s, a the arrivals expected within `horizon`,
    /// s the estimate of one request.
    LeastWork {
        /// What the pool can do within `horizon`, in time of one slot.
        capacity: Span,
        /// How far ahead.
        horizon: Span,
    },
}

/// Where a request stands that can no longer meet its deadline: whose latest start time is past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateRule {
    /// Of whichever group, behind all that can, among late ones by arrival (M1.10).
    BehindAll,
    /// One of the high group behind the whole low group, by arrival; one of the low group keeps its place
    /// (papers 2.2 to the letter).
    BehindLowGroup,
    /// It keeps its place.
    InPlace,
}

/// The settings of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The order across functions.
    pub order: Order,
    /// Where late requests stand.
    pub late: LateRule,
    /// Each so many dispatches one serves the oldest low or late head that has waited ten times its
    /// function's objective, so that nobody waits for ever. Zero: none does.
    pub aging_every: u32,
}

impl Default for Settings {
    /// Papers 2.2, with the late rule of papers 1.4 for both groups: one of the low group that is late anyway takes the
    /// place of one that could be rescued.
    fn default() -> Self {
        Self {
            order: Order::RequiredRequests(Admission::AdaptiveThreshold),
            late: LateRule::BehindAll,
            aging_every: 20,
        }
    }
}
