//! The resources that a node advertises to the scheduler: the sum of what its agent reports for its slots, and nothing
//! while the agent is silent (contracts §10, `weir.dev/seats` and the like).
//!
//! # Examples
//!
//! ```
//! use policy::Time;
//! use policy::capacity::{Amounts, SILENCE, offered};
//!
//! let amounts = Amounts { seats: 4, ..Amounts::default() };
//! let heard = Some((Time(0), amounts));
//! assert_eq!(offered(Time(1), Time(0), heard), Some(amounts));
//! let later = Time::ZERO.after(SILENCE);
//! assert_eq!(offered(later, Time(0), heard), Some(Amounts::default()));
//! ```

use crate::{Span, Time};

/// Time without an answer after which an agent is assumed to be gone.
pub const SILENCE: Span = Span::from_secs(60);

/// Resources of a node that the scheduler counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Number of pods that may hold a slot.
    pub seats: u64,
    /// Host memory for models, in MiB.
    pub host_memory_mib: u64,
    /// Capacity of the slots that pods share, in thousandths of a slot: SMs × guaranteed time.
    pub plan_permille: u64,
}

/// Returns the resources that a node advertises, or `None` if the current ones stay as they are. `since` is the time at
/// which this process first queried the agent. `heard` is the time of the agent's last answer, with the amounts that it
/// reported.
#[must_use]
pub fn offered(now: Time, since: Time, heard: Option<(Time, Amounts)>) -> Option<Amounts> {
    let last = heard.map_or(since, |(at, _)| at);
    if now.since(last).0 >= SILENCE.0 {
        return Some(Amounts::default());
    }
    heard.map(|(_, amounts)| amounts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn a_node_offers_what_its_agent_reports_and_nothing_once_the_agent_is_silent() {
        let amounts = Amounts {
            seats: 4,
            host_memory_mib: 1_024,
            plan_permille: 900,
        };
        let heard = Some((at(10), amounts));
        assert_eq!(offered(at(11), at(0), heard), Some(amounts));
        assert_eq!(offered(at(69), at(0), heard), Some(amounts));
        assert_eq!(offered(at(70), at(0), heard), Some(Amounts::default()));
    }

    #[test]
    fn a_node_queried_only_recently_keeps_its_amounts() {
        assert_eq!(offered(at(100), at(50), None), None);
        assert_eq!(offered(at(110), at(50), None), Some(Amounts::default()));
    }
}
