//! How the queue of a pool orders functions.

use crate::Span;

/// Order across functions. Within a function, requests are ordered by deadline, and so by latest start time, or by
/// arrival under [`Order::Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Two groups: functions that can still be made compliant, and functions that are too far behind (M2.13). The high
    /// group is served first, by latest start time; the low group is served by ascending RRC, then latest start time.
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
    /// requests in time than its percentile requires, and otherwise rises by 0.04/(1 − p).
    AdaptiveThreshold,
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

/// Position of a request that can no longer meet its deadline, because its latest start time is past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateRule {
    /// Late requests of both groups come behind all that can meet their deadline, in order of arrival (M1.10).
    BehindAll,
    /// A late request of the high group comes behind the whole low group, in order of arrival; one of the low group
    /// keeps its place (as Torpor §5.2 prints it).
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
    /// Number of dispatches of which one serves the oldest low or late head that has waited ten times its function's
    /// objective, so that no request starves. Zero: no dispatch does.
    pub aging_every: u32,
}

impl Default for Settings {
    /// Returns the settings of mechanisms §2.2, whose late rule holds for both groups: otherwise a request of the
    /// low group that is late anyway would take the place of one that can still be in time.
    fn default() -> Self {
        Self {
            order: Order::RequiredRequests(Admission::AdaptiveThreshold),
            late: LateRule::BehindAll,
            aging_every: 20,
        }
    }
}
