//! The watch thread: drains work in flight when the agent has closed the gate, and returns a token that the program does not use
//! while other processes wait for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use protocol::message::FromProcess;

use crate::driver::{self, SUCCESS};
use crate::streams::UnfinishedStream;
use crate::{capture, gate, link, streams, time};

/// Interval at which use of the token is checked while other processes wait for it.
const CONTENDED_INTERVAL: Duration = Duration::from_micros(250);
/// Interval with nothing to do; a change of the orders wakes the thread earlier.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval where no event can be waited for.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

/// Runs the watch thread, as long as the process.
pub(crate) fn run() {
    capture::set_relaxed();
    // Address of the page and epoch of its gate that were answered last. A new page's closed gate needs no answer.
    let mut answered = (0, 0);
    let mut launches = u64::MAX;
    loop {
        let orders = link::orders();
        let attention = orders.attention.load(Ordering::Acquire);
        let epoch = orders.gate.epoch();
        let page = std::ptr::from_ref(orders) as usize;
        if epoch == 1 {
            answered = (page, 1);
        }
        let mut interval = IDLE_INTERVAL;
        if epoch & 1 == 1 {
            if gate::was_given_back(epoch - 1) {
                // The agent has only acknowledged the returned token.
                answered = (page, epoch);
            }
            if answered != (page, epoch) {
                drain();
                streams::publish();
                // The agent may have reopened the gate meanwhile; it ignores the reply to an old epoch.
                link::send(&FromProcess::Closed { epoch: epoch - 1 });
                answered = (page, epoch);
                continue;
            }
        } else if orders.contended.load(Ordering::Acquire) != 0 && !link::is_given_back() {
            interval = CONTENDED_INTERVAL;
            if let Some(unfinished) = streams::first_unfinished() {
                wait_for(unfinished);
                launches = u64::MAX;
                continue;
            }
            let now = link::facts().launches.0.load(Ordering::Relaxed);
            if (now == launches || gate::usually_pauses()) && gate::give_back() {
                launches = u64::MAX;
                continue;
            }
            launches = now;
        }
        time::wait(&orders.attention, attention, interval);
    }
}

/// Waits until no launch is in progress and nothing is in flight. The gate is closed, so no new launch starts.
fn drain() {
    gate::wait_for_launches();
    while let Some(unfinished) = streams::first_unfinished() {
        wait_for(unfinished);
    }
}

fn wait_for(unfinished: UnfinishedStream) {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let waited = unfinished.event.is_some_and(|event| {
        // SAFETY: a context in which the program has launched; this thread's current context has no other use.
        let current = unsafe { driver::cuCtxSetCurrent(unfinished.context) };
        // SAFETY: an event of this library's own.
        current == SUCCESS && unsafe { driver::cuEventSynchronize(event) } == SUCCESS
    });
    if !waited {
        time::wait(&NEVER, 0, POLL_INTERVAL);
    }
}
