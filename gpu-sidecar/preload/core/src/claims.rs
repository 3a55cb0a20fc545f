//! What the process may hold of its pod's memory limit, as it was agreed with the agent.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol::message::FromProcess;
use protocol::page::Orders;

use crate::{link, time};

/// How long an answer to a claim is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The same where it is only to be known what others hold: the agent says that every 100 ms unasked.
const COUNT_MAX: Duration = Duration::from_millis(50);

static ASKED: Mutex<Asked> = Mutex::new(Asked { seq: 0, least: 0 });

/// What was asked of the agent.
#[derive(Debug)]
struct Asked {
    /// The number of the last question.
    seq: u32,
    /// The smallest claim among the questions that may be unanswered.
    least: u64,
}

impl Asked {
    /// What is the process's whatever becomes of the questions under way, in bytes: the page's claim may be about to shrink.
    fn held(&self, answered: u32, claim: u64) -> u64 {
        if answered == self.seq {
            claim
        } else {
            claim.min(self.least)
        }
    }

    /// The number of a new question.
    fn ask(&mut self, answered: u32, bytes: u64) -> u32 {
        self.least = if answered == self.seq {
            bytes
        } else {
            self.least.min(bytes)
        };
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    fn send(&mut self, answered: u32, bytes: u64) -> u32 {
        let seq = self.ask(answered, bytes);
        link::send(&FromProcess::Claim { seq, bytes });
        seq
    }
}

/// The process wants to hold so many bytes of the device in all. `false`: it must not.
pub(crate) fn claim(bytes: u64) -> bool {
    let limit = link::memory_limit();
    if limit == 0 {
        return true;
    }
    let Some(orders) = link::agents_orders() else {
        return bytes <= limit;
    };
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let answered = orders.claim_answered.load(Ordering::Acquire);
    let held = asked.held(answered, orders.memory_claim.load(Ordering::Acquire));
    let seq = asked.send(answered, bytes);
    if bytes <= held {
        return true;
    }
    if is_answered(orders, seq, ANSWER_MAX) {
        orders.memory_claim.load(Ordering::Acquire) >= bytes
    } else {
        // Nobody keeps the account of the pod, so each process keeps to the limit by itself.
        bytes <= limit
    }
}

/// The process no longer wants to hold more than so many bytes. Not waited for.
pub(crate) fn lower(bytes: u64) {
    if link::memory_limit() > 0
        && let Some(orders) = link::agents_orders()
    {
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        asked.send(orders.claim_answered.load(Ordering::Acquire), bytes);
    }
}

/// What other processes of the pod hold, in bytes, as the agent last said.
pub(crate) fn others() -> u64 {
    link::orders().memory_others.load(Ordering::Acquire)
}

/// Has the agent say anew what others hold, by asking for what is `claimed` already. A process without others does not ask.
pub(crate) fn count_others(claimed: u64) {
    if others() > 0
        && let Some(orders) = link::agents_orders()
    {
        let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = asked.send(orders.claim_answered.load(Ordering::Acquire), claimed);
        let _in_time = is_answered(orders, seq, COUNT_MAX);
    }
}

/// Waits for an answer. `false`: none came in time, or from this agent.
fn is_answered(orders: &'static Orders, seq: u32, at_most: Duration) -> bool {
    let most = u64::try_from(at_most.as_nanos()).unwrap_or(u64::MAX);
    let until = time::now().saturating_add(most);
    loop {
        let answered = orders.claim_answered.load(Ordering::Acquire);
        if answered == seq {
            return true;
        }
        let now = time::now();
        if now >= until || !std::ptr::eq(orders, link::orders()) {
            return false;
        }
        let left = Duration::from_nanos(until - now);
        time::wait(&orders.claim_answered, answered, left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_is_about_to_shrink_is_not_relied_on() {
        let mut asked = Asked { seq: 0, least: 0 };
        assert_eq!(asked.held(0, 100), 100);
        assert_eq!(asked.ask(0, 40), 1);
        // The page still says 100.
        assert_eq!(asked.held(0, 100), 40);
        assert_eq!(asked.ask(0, 70), 2);
        assert_eq!(asked.held(0, 100), 40);
        assert_eq!(asked.held(1, 40), 40);
        // Both are answered.
        assert_eq!(asked.held(2, 70), 70);
        assert_eq!(asked.ask(2, 90), 3);
        assert_eq!(asked.held(2, 70), 70);
        assert_eq!(asked.held(3, 90), 90);
    }
}
