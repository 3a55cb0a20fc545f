//! Memory claim of the process: its share of the pod's memory limit, as agreed with the agent.

use std::time::Duration;

use preload_state::claims::{self, ANSWER_MAX, AnswerStep, COUNT_MAX, Claim};
use preload_state::gate::{HUNG_AFTER, RECHECK_INTERVAL};
use preload_state::silence::Silence;
use protocol::page::Orders;

use crate::platform::System;

fn agent_orders<P: System>(host: P) -> Option<&'static Orders> {
    let orders = host.orders();
    host.has_agent_orders().then_some(orders)
}

/// Claims `bytes` of the device in total for this process. Returns `false` if the agent refuses.
pub fn claim<P: System>(host: P, bytes: u64) -> bool {
    let process = host.process();
    let limit = process.memory_limit();
    if limit == 0 {
        return true;
    }
    let mut requests = process.claims();
    loop {
        let Some(orders) = agent_orders(host) else {
            return bytes <= limit;
        };
        let claim = requests.request(orders, bytes);
        host.send(&claim.message());
        if claim.is_held() {
            return true;
        }
        let answered = is_answered(host, orders, &claim, ANSWER_MAX);
        let is_replaced = !std::ptr::eq(orders, host.orders());
        if answered || !is_replaced {
            return claim.is_granted(answered, orders, limit);
        }
        // The claim was lost with the connection: what the slot has is known to the next agent alone.
    }
}

/// Lowers the claim of the process to `bytes`, without waiting for the reply.
pub fn lower<P: System>(host: P, bytes: u64) {
    let process = host.process();
    if process.memory_limit() > 0
        && let Some(orders) = agent_orders(host)
    {
        let mut requests = process.claims();
        host.send(&requests.request(orders, bytes).message());
    }
}

/// Returns the bytes held by other processes of the pod, as last published by the agent.
pub fn held_by_others<P: System>(host: P) -> u64 {
    claims::held_by_others(host.orders())
}

/// Repeats the present claim, so that the agent publishes the bytes held by other processes anew, and waits for it for at most
/// [`COUNT_MAX`]. Does nothing if no other process holds memory.
pub fn refresh_held_by_others<P: System>(host: P, claimed: u64) {
    if held_by_others(host) > 0
        && let Some(orders) = agent_orders(host)
    {
        let mut requests = host.process().claims();
        let claim = requests.request(orders, claimed);
        host.send(&claim.message());
        let _in_time = is_answered(host, orders, &claim, COUNT_MAX);
    }
}

/// Waits for the reply to a claim. Returns `false` if none came in time or the agent changed.
fn is_answered<P: System>(host: P, orders: &Orders, claim: &Claim, at_most: Duration) -> bool {
    let answer = claim.answer(host.now(), at_most);
    let mut silence = Silence::default();
    loop {
        let is_current = host.has_agent_orders() && std::ptr::eq(orders, host.orders());
        match answer.step(host.now(), orders, is_current) {
            AnswerStep::Answered => return true,
            AnswerStep::Unanswered => return false,
            AnswerStep::Wait { expected, left } => {
                let begin = host.now();
                host.wait(
                    orders,
                    &orders.claim_answered,
                    expected,
                    left.min(RECHECK_INTERVAL),
                );
                let waited = Duration::from_nanos(host.now().saturating_sub(begin));
                // A hung agent is treated like a stopped one.
                if silence.has_lasted(
                    orders,
                    host.is_served(),
                    waited,
                    RECHECK_INTERVAL,
                    HUNG_AFTER,
                ) {
                    host.abandon_hung_agent();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
