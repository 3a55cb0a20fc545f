//! For how long an agent that serves this process has given no sign while a thread is parked.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::page::Orders;

/// The sign of life that a parked thread saw last, and for how long it has been the last one.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    seen: Option<Seen>,
    lasted: Duration,
}

/// A sign of life: any difference is a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    /// Where the page is mapped: the agent beats in the one that it gave out last.
    page: *const Orders,
    heartbeat: u32,
    epoch: u64,
}

impl Silence {
    /// Notes that a thread has waited for `waited` in front of the orders that hold now; returns whether the agent that serves
    /// them has been silent for `at_most`.
    ///
    /// Silence counts only within one page and only while the agent serves it (`is_served`): the heartbeat of a
    /// connection that is lost stands still. What one wait adds is bounded by `look`, its usual length: a machine that stood still for
    /// longer has held up the agent as well. After `true` it begins anew.
    pub(crate) fn lasts(
        &mut self,
        orders: &Orders,
        is_served: bool,
        waited: Duration,
        look: Duration,
        at_most: Duration,
    ) -> bool {
        let seen = is_served.then(|| Seen {
            page: orders,
            heartbeat: orders.heartbeat.load(Ordering::Relaxed),
            epoch: orders.gate.epoch(),
        });
        if seen.is_none() || seen != self.seen {
            self.seen = seen;
            self.lasted = Duration::ZERO;
            return false;
        }
        self.lasted += waited.min(look);
        let is_over = self.lasted >= at_most;
        if is_over {
            self.lasted = Duration::ZERO;
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(50);
    const AT_MOST: Duration = Duration::from_secs(1);

    fn looks(silence: &mut Silence, orders: &Orders, is_served: bool, count: usize) -> bool {
        (0..count).any(|_| silence.lasts(orders, is_served, LOOK, LOOK, AT_MOST))
    }

    #[test]
    fn an_agent_without_a_beat_for_so_long_is_silent() {
        let (mut silence, orders) = (Silence::default(), Orders::new());
        assert!(!looks(&mut silence, &orders, true, 20));
        assert!(looks(&mut silence, &orders, true, 1));
        // It is asked about again after as long.
        assert!(!looks(&mut silence, &orders, true, 19));
        assert!(looks(&mut silence, &orders, true, 1));
    }

    #[test]
    fn a_beat_ends_the_silence() {
        let (mut silence, orders) = (Silence::default(), Orders::new());
        for _ in 0..10 {
            assert!(!looks(&mut silence, &orders, true, 20));
            orders.heartbeat.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_lost_connection_is_no_silence_of_the_next_agent() {
        let (mut silence, before, after) = (Silence::default(), Orders::new(), Orders::new());
        assert!(!looks(&mut silence, &before, true, 19));
        assert!(!looks(&mut silence, &before, false, 100));
        assert!(!looks(&mut silence, &after, true, 20));
        assert!(looks(&mut silence, &after, true, 1));
        // Nor is that of one page the next one's, though no wait fell in between.
        assert!(!looks(&mut silence, &after, true, 19));
        assert!(!looks(&mut silence, &before, true, 20));
    }

    #[test]
    fn a_machine_that_stood_still_makes_no_agent_silent() {
        let (mut silence, orders) = (Silence::default(), Orders::new());
        let hour = Duration::from_secs(3600);
        assert!(!(0..20).any(|_| silence.lasts(&orders, true, hour, LOOK, AT_MOST)));
    }
}
