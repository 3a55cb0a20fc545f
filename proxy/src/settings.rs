//! Conversion of annotations to the settings of the policy and of the proxy.

use annotations::{Settings, TrustBudget};
use policy::gate::{Late, Order};
use policy::slo::Trust;

use crate::limits::Limits;

/// Returns the handling of late requests.
#[must_use]
pub const fn late(settings: &Settings) -> Late {
    match settings.late {
        annotations::Late::Serve => Late::Serve,
        annotations::Late::Shed => Late::Shed,
    }
}

/// Returns the order in which requests are served: by deadline if there is an objective, else by arrival.
#[must_use]
pub const fn order(settings: &Settings) -> Order {
    if settings.slo.is_some() {
        Order::Deadline
    } else {
        Order::Arrival
    }
}

/// Returns which stated request budgets are used for ordering.
#[must_use]
pub const fn trust(settings: &Settings) -> Trust {
    match settings.trust_budget {
        TrustBudget::All => Trust::All,
        TrustBudget::Floor => Trust::Floor,
        TrustBudget::None => Trust::None,
    }
}

/// Returns the resource limits of one client, with the defaults for those that are not set.
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
