//! Errors of the driver that stay: what the agent learns of them before the program does.
//!
//! A program that learns of one answers its request, and the next request of the pod would start at once on a device that computes nothing more. The call that
//! fails therefore returns only once the agent has taken account of the error, and recalled the lease (`policy::faults`, `policy::pool::leases`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use preload_state::counters::is_sticky;

use crate::cuda::{Code, SUCCESS};
use crate::platform::System;

/// Longest time for which a call that fails waits for the agent. It waits for it once.
pub(crate) const NOTED_MAX: Duration = Duration::from_millis(20);

/// Returns the result of a call, which is about to return to the program. An error that stays is reported, and the agent's answer waited for.
#[inline]
pub(crate) fn report_before_return<P: System>(host: P, code: Code) -> Code {
    if code != SUCCESS {
        failed(host, code);
    }
    code
}

#[cold]
fn failed<P: System>(host: P, code: Code) {
    if !is_sticky(code) {
        return;
    }
    host.report_fatal(code);
    let (process, orders) = (host.process(), host.orders());
    let begin = host.now();
    let most = preload_state::nanoseconds(NOTED_MAX);
    while host.is_served()
        && !process.is_error_unanswered()
        && orders.error_noted.load(Ordering::Acquire) == 0
        && std::ptr::eq(orders, host.orders())
    {
        let passed = host.now().saturating_sub(begin);
        if passed >= most {
            // An agent that does not answer once, as an earlier one, does not later: the program is not held up at each of its calls.
            process.note_error_unanswered();
            return;
        }
        let left = Duration::from_nanos(most - passed);
        host.wait(orders, &orders.error_noted, 0, left);
    }
}

#[cfg(test)]
mod tests {
    use protocol::message::{FromProcess, Report};

    use super::*;
    use crate::fake::Fake;

    const ILLEGAL_ADDRESS: Code = 700;

    #[test]
    fn a_call_that_fails_for_good_returns_once_the_agent_has_noted_it() {
        let fake = Fake::new();
        fake.at_wait(|fake| fake.orders.error_noted.store(700, Ordering::Relaxed));
        assert_eq!(report_before_return(fake, ILLEGAL_ADDRESS), ILLEGAL_ADDRESS);
        assert_eq!(*fake.waits.borrow(), [NOTED_MAX]);
        // The next one knows.
        assert_eq!(report_before_return(fake, ILLEGAL_ADDRESS), ILLEGAL_ADDRESS);
        assert_eq!(fake.waits.borrow().len(), 1);
        let fatal = FromProcess::Report(Report::Fatal(700));
        assert_eq!(fake.take_sent(), [fatal]);
    }

    #[test]
    fn an_agent_that_does_not_answer_is_waited_for_once() {
        let fake = Fake::new();
        assert_eq!(report_before_return(fake, ILLEGAL_ADDRESS), ILLEGAL_ADDRESS);
        assert_eq!(*fake.waits.borrow(), [NOTED_MAX]);
        assert_eq!(report_before_return(fake, ILLEGAL_ADDRESS), ILLEGAL_ADDRESS);
        assert_eq!(fake.waits.borrow().len(), 1);
    }

    #[test]
    fn nothing_is_waited_for_without_an_agent_or_for_other_errors() {
        let fake = Fake::new();
        assert_eq!(report_before_return(fake, SUCCESS), SUCCESS);
        assert_eq!(report_before_return(fake, 1), 1);
        assert!(fake.take_sent().is_empty());
        fake.default_orders.set(true);
        assert_eq!(report_before_return(fake, ILLEGAL_ADDRESS), ILLEGAL_ADDRESS);
        assert!(fake.waits.borrow().is_empty());
    }
}
