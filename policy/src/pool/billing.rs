//! Charges for the use of a pool (M2.18, Torpor §8).
//!
//! A function is charged for slot-busy time, swap-in included, in whole milliseconds per request, rounded up. While its
//! model waits on the host with nothing running, it is charged a tenth of that price.
//!
//! # Examples
//!
//! ```
//! use policy::pool::billing::Bill;
//! use policy::{Span, Time};
//!
//! let mut bill = Bill::default();
//! bill.resident(Time::ZERO);
//! bill.used(Span::from_millis(20));
//! let charge = bill.charge(Time::ZERO.after(Span::from_secs(1)));
//! assert_eq!(charge.slot_busy_with_swap_in, Span::from_millis(20));
//! assert_eq!(charge.host_idle, Span::from_millis(980));
//! assert_eq!(charge.gpu_time(), Span::from_millis(20 + 98));
//! ```

use crate::{Span, Time};

/// Divisor by which idle time is discounted.
const IDLE_PART: u64 = 10;

/// Resource usage of one function.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bill {
    /// Slot-busy time in whole milliseconds, rounded up per request.
    busy: u64,
    /// Slot-busy time without rounding, from which the idle time follows.
    busy_exact: Span,
    host: Span,
    host_since: Option<Time>,
}

/// Amounts charged to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Slot time from the decision to the end of the inference, with each request rounded up to 1 ms.
    pub slot_busy_with_swap_in: Span,
    /// Time on the host with nothing running, in whole milliseconds.
    pub host_idle: Span,
}

impl Charge {
    /// Returns the charge as GPU time, with idle time at a tenth.
    #[must_use]
    pub const fn gpu_time(self) -> Span {
        let idle = self.host_idle.0 / IDLE_PART;
        Span(self.slot_busy_with_swap_in.0.saturating_add(idle))
    }
}

impl Bill {
    /// Records that the model is on the host from `now` on.
    pub fn resident(&mut self, now: Time) {
        self.host_since.get_or_insert(now);
    }

    /// Records that the model has left the host.
    pub fn gone(&mut self, now: Time) {
        if let Some(since) = self.host_since.take() {
            self.host.0 = self.host.0.saturating_add(now.since(since).0);
        }
    }

    /// Records that a request occupied a slot for `busy`, both waiting for the model and computing.
    pub const fn used(&mut self, busy: Span) {
        self.busy = self.busy.saturating_add(busy.0.div_ceil(1_000_000));
        self.busy_exact = Span(self.busy_exact.0.saturating_add(busy.0));
    }

    /// Returns the charge so far. Idle time is the time on the host minus the time on slots, so with requests on two
    /// slots at once it is too small rather than too large.
    #[must_use]
    pub fn charge(&self, now: Time) -> Charge {
        let open = self.host_since.map_or(Span::ZERO, |since| now.since(since));
        let host = Span(self.host.0.saturating_add(open.0));
        let idle = host.less(self.busy_exact).0.div_ceil(1_000_000);
        Charge {
            slot_busy_with_swap_in: Span::from_millis(self.busy),
            host_idle: Span::from_millis(idle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_charged_in_whole_milliseconds_and_idle_time_at_a_tenth() {
        let mut bill = Bill::default();
        bill.resident(Time(0));
        bill.used(Span(1));
        bill.used(Span::from_millis(20));
        bill.used(Span(20_000_001));
        let charge = bill.charge(Time::ZERO.after(Span::from_secs(10)));
        assert_eq!(charge.slot_busy_with_swap_in, Span::from_millis(42));
        assert_eq!(charge.host_idle, Span::from_millis(9_960));
        assert_eq!(charge.gpu_time(), Span::from_millis(42 + 996));
    }

    #[test]
    fn nothing_is_charged_while_the_model_is_not_on_the_host() {
        let second = |n| Time::ZERO.after(Span::from_secs(n));
        let mut bill = Bill::default();
        assert_eq!(bill.charge(second(5)).gpu_time(), Span::ZERO);
        bill.resident(second(5));
        bill.resident(second(6));
        bill.gone(second(15));
        bill.gone(second(100));
        assert_eq!(bill.charge(second(200)).gpu_time(), Span::from_secs(1));
        bill.resident(second(300));
        assert_eq!(bill.charge(second(310)).gpu_time(), Span::from_secs(2));
    }

    #[test]
    fn a_function_always_running_on_two_slots_pays_for_both_and_nothing_else() {
        let mut bill = Bill::default();
        bill.resident(Time(0));
        bill.used(Span::from_secs(1));
        bill.used(Span::from_secs(1));
        let charge = bill.charge(Time::ZERO.after(Span::from_secs(1)));
        assert_eq!(charge.gpu_time(), Span::from_secs(2));
    }
}
