//! What a node offers to the scheduler: the sum of what its agent says of its slots, and nothing while the agent is silent
//! (design 4.10, `weir.dev/seats` and the like).

use crate::{Span, Time};

/// An agent that was not heard for so long is taken for gone.
pub const SILENCE: Span = Span::from_secs(60);

/// What the scheduler counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Pods that may hold a slot.
    pub seats: u64,
    /// Host memory for models, in MiB.
    pub host_memory_mib: u64,
    /// Thousandths of slots that several share: SMs × guaranteed time.
    pub plan_permille: u64,
}

/// Returns what a node offers; `None`: as it does now. `since`: when it was first asked, by this process; `heard`: when its agent
/// last answered, and what.
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
    fn an_agent_that_answers_is_believed_and_one_that_is_silent_offers_nothing() {
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
    fn one_that_has_not_been_asked_for_long_keeps_what_it_has() {
        assert_eq!(offered(at(100), at(50), None), None);
        assert_eq!(offered(at(110), at(50), None), Some(Amounts::default()));
    }
}
