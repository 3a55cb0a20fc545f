//! Memory claim of the process: its share of the pod's memory limit, as agreed with the agent.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol::message::FromProcess;
use protocol::page::Orders;

use crate::{link, time};

/// Time for which a claim waits for the agent's reply.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Time for which a refresh of the bytes held by other processes waits for the agent's reply. The agent also publishes them every
/// 100 ms without a request.
const COUNT_MAX: Duration = Duration::from_millis(50);

static REQUESTS: Mutex<ClaimRequests> = Mutex::new(ClaimRequests { seq: 0, least: 0 });

/// Claims sent to the agent.
#[derive(Debug)]
struct ClaimRequests {
    /// Sequence number of the last claim.
    seq: u32,
    /// Smallest claim among those that may be unanswered, in bytes.
    least: u64,
}

impl ClaimRequests {
    /// Returns the bytes granted however the unanswered claims turn out: the claim on the page may be about to shrink.
    fn held(&self, answered: u32, claim: u64) -> u64 {
        if answered == self.seq {
            claim
        } else {
            claim.min(self.least)
        }
    }

    /// Records a new claim and returns its sequence number.
    fn record(&mut self, answered: u32, bytes: u64) -> u32 {
        self.least = if answered == self.seq {
            bytes
        } else {
            self.least.min(bytes)
        };
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    fn send(&mut self, answered: u32, bytes: u64) -> u32 {
        let seq = self.record(answered, bytes);
        link::send(&FromProcess::Claim { seq, bytes });
        seq
    }
}

/// Claims `bytes` of the device in total for this process. Returns `false` if the agent refuses.
pub(crate) fn claim(bytes: u64) -> bool {
    let limit = link::memory_limit();
    if limit == 0 {
        return true;
    }
    let Some(orders) = link::agent_orders() else {
        return bytes <= limit;
    };
    let mut requests = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let answered = orders.claim_answered.load(Ordering::Acquire);
    let held = requests.held(answered, orders.memory_claim.load(Ordering::Acquire));
    let seq = requests.send(answered, bytes);
    if bytes <= held {
        return true;
    }
    if is_answered(orders, seq, ANSWER_MAX) {
        orders.memory_claim.load(Ordering::Acquire) >= bytes
    } else {
        // Without an agent no account of the pod is kept, so each process applies the whole limit to itself.
        bytes <= limit
    }
}

/// Lowers the claim of the process to `bytes`, without waiting for the reply.
pub(crate) fn lower(bytes: u64) {
    if link::memory_limit() > 0
        && let Some(orders) = link::agent_orders()
    {
        let mut requests = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
        requests.send(orders.claim_answered.load(Ordering::Acquire), bytes);
    }
}

/// Returns the bytes held by other processes of the pod, as last published by the agent.
pub(crate) fn held_by_others() -> u64 {
    link::orders().memory_others.load(Ordering::Acquire)
}

/// Repeats the present claim, so that the agent publishes the bytes held by other processes anew, and waits for it for at most
/// [`COUNT_MAX`]. Does nothing if no other process holds memory.
pub(crate) fn refresh_held_by_others(claimed: u64) {
    if held_by_others() > 0
        && let Some(orders) = link::agent_orders()
    {
        let mut requests = REQUESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = requests.send(orders.claim_answered.load(Ordering::Acquire), claimed);
        let _in_time = is_answered(orders, seq, COUNT_MAX);
    }
}

/// Waits for the reply to a claim. Returns `false` if none came in time or the agent changed.
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
    fn only_the_smallest_unanswered_claim_is_relied_on() {
        let mut requests = ClaimRequests { seq: 0, least: 0 };
        assert_eq!(requests.held(0, 100), 100);
        assert_eq!(requests.record(0, 40), 1);
        // The page still has 100.
        assert_eq!(requests.held(0, 100), 40);
        assert_eq!(requests.record(0, 70), 2);
        assert_eq!(requests.held(0, 100), 40);
        assert_eq!(requests.held(1, 40), 40);
        // Both claims are answered.
        assert_eq!(requests.held(2, 70), 70);
        assert_eq!(requests.record(2, 90), 3);
        assert_eq!(requests.held(2, 70), 70);
        assert_eq!(requests.held(3, 90), 90);
    }
}
