//! How the queue of a pool orders functions.

use crate::Span;

/// Order across functions. Within a function, requests are ordered by deadline, and so by latest start time, or by
/// arrival under [`Order::Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Two groups: functions that can still be made compliant, and functions that are too far behind (M2.13). The high
    /// group is served by latest start time, the low group as [`LowRule`] states.
    RequiredRequests(Admission),
    /// One group, by latest start time (M1.10).
    LatestStart,
    /// First come, first served across all functions (M2.21). No request is late, and none is aged.
    Arrival,
}

/// Rule for membership of the high group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Functions with an RRC of at most θ, which adapts: every 5 s it falls by a tenth if the high group had fewer
    /// requests in time than its percentile requires, and otherwise rises.
    AdaptiveThreshold(Adaptation),
    /// Functions with an RRC of at most this value, in requests.
    FixedThreshold(u32),
    /// Functions that need the least work to be compliant, until the pool's capacity is used up. Every 5 s, functions
    /// are admitted by ascending (p·(n + a) − m)·s, where a is the number of arrivals expected within `horizon`, and s
    /// the estimate of one request.
    LeastWork {
        /// Work that the pool can do within `horizon`, in time of one slot.
        capacity: Span,
        /// Length of the time for which arrivals are predicted.
        horizon: Span,
    },
}

/// Start, upper bound and rise of the adaptive threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adaptation {
    /// θ starts at one miss beyond the percentile, which is an RRC of 1/(1 − p), is at most ten such misses, and rises
    /// by 0.04/(1 − p).
    FromOneMiss,
    /// θ starts at its upper bound of 20 misses beyond the percentile, as if there were one group, and rises by 0.04/(1 − p)
    /// and 3 %. So a burst of a few seconds does not divide functions into groups, and a load that the pool cannot
    /// serve does.
    FromTwentyMisses,
}

/// Position of the low group's requests that can meet their deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowRule {
    /// Behind the whole high group, by ascending RRC, then latest start time (as Torpor §5.2 prints it).
    BehindHighGroup,
    /// As [`BehindHighGroup`](Self::BehindHighGroup), except that the first by latest start time goes first as long as
    /// the first of the high group can still start in time after it.
    FirstWhereHarmless,
    /// Among the high group's requests, as if they could start later by two fifths of their function's objective. A
    /// function that has fallen behind recovers as soon as the pool can serve all.
    AmongHighGroup,
}

/// Position of functions of the high group that have misses to spare: that keep their percentile even if one more
/// request misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpareRule {
    /// They are ordered as the others.
    Equal,
    /// They give way to functions at the margin: their requests are ordered as if they could start later by a fifth of
    /// the objective.
    GivesWay,
}

/// Misses that lower the adaptive threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedMisses {
    /// All misses of the high group.
    All,
    /// Misses of requests that waited until their latest start was past, although they arrived before it. Such a miss is
    /// counted at the function's next miss.
    Waited,
}

/// Position of a request that can no longer meet its deadline, because its latest start time is past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateRule {
    /// Late requests of both groups come behind all that can meet their deadline, in order of arrival (M1.10).
    BehindAll,
    /// A late request of the high group comes behind the whole low group, in order of arrival; one of the low group
    /// keeps its place (as Torpor §5.2 prints it). Under [`LowRule::AmongHighGroup`], where the low group has no place
    /// of its own, this is [`BehindAll`](Self::BehindAll).
    BehindLowGroup,
    /// A late request keeps its place.
    InPlace,
}

/// Settings of a pool's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Order of requests across functions.
    pub order: Order,
    /// Position of late requests.
    pub late: LateRule,
    /// Position of the low group.
    pub low: LowRule,
    /// Position of functions with misses to spare.
    pub spare: SpareRule,
    /// Misses that lower the adaptive threshold.
    pub misses: CountedMisses,
    /// Number of dispatches of which one serves the oldest low or late head that has waited ten times its function's
    /// objective, so that no request starves. Zero: no dispatch does.
    pub aging_every: u32,
}

impl Default for Settings {
    /// Returns the settings of mechanisms §2.2: requests of all functions are ordered by latest start time, and those of a
    /// function that has fallen behind, or has misses to spare, give way by a bounded time.
    fn default() -> Self {
        Self {
            order: Order::RequiredRequests(Admission::AdaptiveThreshold(
                Adaptation::FromTwentyMisses,
            )),
            low: LowRule::AmongHighGroup,
            spare: SpareRule::GivesWay,
            ..Self::as_printed()
        }
    }
}

impl Settings {
    /// Returns the two groups of M2.13 as printed, except that the late rule holds for both groups: otherwise a request of
    /// the low group that is late anyway would take the place of one that can still be in time.
    #[must_use]
    pub const fn as_printed() -> Self {
        Self {
            order: Order::RequiredRequests(Admission::AdaptiveThreshold(Adaptation::FromOneMiss)),
            late: LateRule::BehindAll,
            low: LowRule::BehindHighGroup,
            spare: SpareRule::Equal,
            misses: CountedMisses::All,
            aging_every: 20,
        }
    }
}
