//! The library's own thread beside the program's: waits for what is in flight when the agent has shut the gate, and gives a
//! token back that the program does not use while others wait for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use protocol::message::FromProcess;

use crate::driver::{self, SUCCESS};
use crate::streams::Unfinished;
use crate::{capture, gate, link, streams, time};

/// While others wait for the token, it is looked this often whether the program still uses it.
const LOOK: Duration = Duration::from_micros(250);
/// With nothing to do it is looked this seldom; whoever has something wakes the thread.
const REST: Duration = Duration::from_secs(1);
/// Where no event can be waited for.
const POLL: Duration = Duration::from_micros(100);

/// Runs as long as the process.
pub(crate) fn run() {
    capture::never_disturb();
    // A page and an epoch of its gate. A new gate is shut and waits for no answer.
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
        let mut rest = REST;
        if epoch & 1 == 1 {
            if gate::was_given_back(epoch - 1) {
                // The agent has only taken note.
                answered = (page, epoch);
            }
            if answered != (page, epoch) {
                drain();
                streams::publish();
                // The agent may have opened it again meanwhile, for whatever reason; then this is an old answer.
                link::send(&FromProcess::Closed { epoch: epoch - 1 });
                answered = (page, epoch);
                continue;
            }
        } else if orders.contended.load(Ordering::Acquire) != 0 && !link::is_given_back() {
            rest = LOOK;
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
        time::wait(&orders.attention, attention, rest);
    }
}

/// Until no launch is under way and nothing is in flight. The gate is shut, so nothing new comes.
fn drain() {
    gate::wait_for_launches();
    while let Some(unfinished) = streams::first_unfinished() {
        wait_for(unfinished);
    }
}

fn wait_for(unfinished: Unfinished) {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let waited = unfinished.event.is_some_and(|event| {
        // SAFETY: a context in which the program has launched; this thread has no other use for its own.
        let current = unsafe { driver::cuCtxSetCurrent(unfinished.context) };
        // SAFETY: an event of this library's own.
        current == SUCCESS && unsafe { driver::cuEventSynchronize(event) } == SUCCESS
    });
    if !waited {
        time::wait(&NEVER, 0, POLL);
    }
}
