//! The watch thread's work: see [`preload_state::watch`].

use std::sync::atomic::Ordering;

use preload_state::watch::{POLL_INTERVAL, Watch, WatchStep};
use protocol::message::FromProcess;

use crate::gate;
use crate::platform::Platform;
use crate::residency;
use crate::streams::{self, UnfinishedStream};

/// Runs one pass of the watch thread, and blocks until the next one is due.
pub fn step<P: Platform>(host: P, watch: &mut Watch) {
    let orders = host.orders();
    let attention = orders.attention.load(Ordering::Acquire);
    let launches = host.facts().launches.0.load(Ordering::Relaxed);
    if watch.has_new_order(orders) {
        residency::wake_mover(host);
    }
    let mut unfinished = None;
    let step = watch.step(orders, &host.process().gate, launches, || {
        unfinished = streams::first_unfinished(host);
        unfinished.is_some()
    });
    let interval = match step {
        WatchStep::Drain { epoch } => {
            drain(host);
            host.process().streams.publish(host.facts());
            host.send(&FromProcess::Closed { epoch });
            return;
        }
        WatchStep::WaitForWork => {
            if let Some(unfinished) = unfinished {
                wait_for(host, unfinished);
            }
            return;
        }
        WatchStep::GiveBack { .. } if gate::give_back(host) => {
            watch.gave_back();
            return;
        }
        WatchStep::GiveBack { interval } | WatchStep::Sleep { interval } => interval,
    };
    host.wait(orders, &orders.attention, attention, interval);
}

/// Waits until no launch is in progress and nothing is in flight. The gate is closed, so no new launch starts.
fn drain<P: Platform>(host: P) {
    gate::wait_for_launches(host);
    while let Some(unfinished) = streams::first_unfinished(host) {
        wait_for(host, unfinished);
    }
}

fn wait_for<P: Platform>(host: P, unfinished: UnfinishedStream) {
    let waited = unfinished.event.is_some_and(|event| {
        // This thread's current context has no other use.
        host.set_current_context(unfinished.context).is_ok()
            && host.synchronize_event(event).is_ok()
    });
    if !waited {
        host.pause(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests;
