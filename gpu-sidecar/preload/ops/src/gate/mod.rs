//! Return of the token, and the wait for launches in progress.

use preload_state::gate::IN_FLIGHT_POLL;
use protocol::message::FromProcess;

use crate::platform::{Platform, System};
use crate::streams;

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
pub(crate) const fn low_half(epoch: u64) -> u32 {
    epoch as u32
}

/// Notes that the program has waited for the device. If other processes wait and the program usually pauses, the token is
/// returned at once.
pub fn after_host_wait<P: Platform>(host: P) {
    if !host.is_active() || streams::in_flight(host) != 0 {
        return;
    }
    let gate = &host.process().gate;
    if gate.after_host_wait(host.now(), host.orders()) {
        let _given = give_back(host);
    }
}

/// Returns the token to the agent if nothing is in flight and no launch is in progress. Returns whether it did.
pub fn give_back<P: Platform>(host: P) -> bool {
    if host.is_inside() || host.is_launching() {
        return false;
    }
    let process = host.process();
    let Some(begun) = process.gate.begin_give_back(host.orders()) else {
        return false;
    };
    host.barrier();
    let any_launching = process.threads.any_launching();
    let Some(epoch) = process.gate.finish_give_back(begun, any_launching) else {
        // Another thread launched first; the token is kept.
        return false;
    };
    process.streams.publish(host.facts());
    host.send(&FromProcess::Closed { epoch });
    true
}

/// Waits until no launch is in progress. The gate must be closed.
pub(crate) fn wait_for_launches<P: System>(host: P) {
    host.barrier();
    while host.process().threads.any_launching() {
        host.pause(IN_FLIGHT_POLL);
    }
}

#[cfg(test)]
mod tests;
