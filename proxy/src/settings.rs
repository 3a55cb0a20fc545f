//! What annotations ask for, as the parts that act on it take it.

use annotations::{Settings, TrustBudget};
use policy::gate::{Late, Order};
use policy::slo::Trust;

use crate::limits::Limits;

/// Returns what becomes of late requests.
#[must_use]
pub const fn late(settings: &Settings) -> Late {
    match settings.late {
        annotations::Late::Serve => Late::Serve,
        annotations::Late::Shed => Late::Shed,
    }
}

/// Returns the order in which requests are served: by deadline where there is an objective.
#[must_use]
pub const fn order(settings: &Settings) -> Order {
    if settings.slo.is_some() {
        Order::Deadline
    } else {
        Order::Arrival
    }
}

/// Returns whose statements on a request's budget order requests.
#[must_use]
pub const fn trust(settings: &Settings) -> Trust {
    match settings.trust_budget {
        TrustBudget::All => Trust::All,
        TrustBudget::Floor => Trust::Floor,
        TrustBudget::None => Trust::None,
    }
}

/// Returns how much of the process one client may take.
#[must_use]
pub fn limits(settings: &Settings) -> Limits {
    let (set, most) = (settings.limits, Limits::default());
    Limits {
        head_bytes: set.head_bytes.unwrap_or(most.head_bytes),
        head_lines: set.head_lines.unwrap_or(most.head_lines),
        head_time: set.head_time.unwrap_or(most.head_time),
        streams: set.streams.unwrap_or(most.streams),
        buffered_bytes: set.buffered_bytes.unwrap_or(most.buffered_bytes),
    }
}
