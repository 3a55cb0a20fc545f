//! Touches of device memory: copies, memsets, prefetches, batch memory operations. Each waits while the process's memory is not on the
//! device, and marks itself, so that memory is not moved under it. They need no token; their ends are points at which kernel time is
//! measured (M4.6).

use std::mem::ManuallyDrop;
use std::time::Duration;

use preload_state::gate::{HUNG_AFTER, IN_FLIGHT_POLL, LaunchGuard, RECHECK_INTERVAL};
use preload_state::restoring::Needed;
use preload_state::silence::Silence;
use preload_state::streams::DefaultStream;
use protocol::message::FromProcess;

use crate::cuda::{Address, Code, Handle};
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::{Platform, System};
use crate::residency::restoring;
use crate::{capture_mode, failures, gate, streams};

/// Touches memory by an operation in a stream, for which the host does not wait.
pub fn enqueue<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
) -> Outcome {
    enqueue_use(host, call, stream, default, Use::Anything)
}

/// As [`enqueue`], by an operation of which it is known what it uses.
pub fn enqueue_use<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
    use_: Use,
) -> Outcome {
    if let Some(reason) = unchecked(host) {
        return Outcome::Pass(reason);
    }
    if capture_mode::any(host) {
        if capture_mode::is_capturing(host, default.resolve(stream)) {
            return Outcome::Pass(Reason::Capturing);
        }
    } else {
        streams::other_work(host, stream, default);
    }
    Outcome::Done(once_there(host, call, use_))
}

/// Touches memory by a call that returns once the operation has ended, and earlier work in its stream.
pub fn block<P: Platform>(host: P, call: Call<'_>) -> Outcome {
    block_use(host, call, Use::Anything)
}

/// As [`block()`], by a call of which it is known what it uses.
pub fn block_use<P: Platform>(host: P, call: Call<'_>, use_: Use) -> Outcome {
    if let Some(reason) = unchecked(host) {
        return Outcome::Pass(reason);
    }
    capture_mode::relaxed(host, || streams::mark_all(host));
    let code = once_there(host, call, use_);
    streams::reap_all(host);
    gate::after_host_wait(host);
    Outcome::Done(code)
}

/// Touches memory by a call that is in no stream.
pub fn touch<P: Platform>(host: P, call: Call<'_>) -> Outcome {
    match unchecked(host) {
        Some(reason) => Outcome::Pass(reason),
        None => Outcome::Done(once_there(host, call, Use::Anything)),
    }
}

/// Returns the reason for which a touch passes unchecked, if there is one.
fn unchecked<P: System>(host: P) -> Option<Reason> {
    if !host.is_active() {
        return Some(Reason::Inactive);
    }
    host.is_inside().then_some(Reason::Nested)
}

/// Makes a call once the memory that it uses is on the device.
fn once_there<P: Platform>(host: P, call: Call<'_>, use_: Use) -> Code {
    let process = host.process();
    let mut needed = None;
    loop {
        let guard = process.threads.begin_touch(host.thread());
        if process.memory_gate.is_open()
            || restoring::is_there(host, &mut needed, || restoring::of_touch(host, use_))
        {
            // A driver that calls its own exported functions does so within a touch that has passed.
            host.set_inside(true);
            let code = call();
            host.set_inside(false);
            drop(guard);
            return failures::report_before_return(host, code);
        }
        drop(guard);
        wait(host, needed);
    }
}

/// Blocks until the process's memory is on the device, and keeps it there until the guard is dropped; `None` within a touch or launch that
/// has passed, or if Weir does not control the process. For calls that make or examine memory.
pub(crate) fn hold<P: Platform>(host: P) -> Option<LaunchGuard<'static>> {
    if unchecked(host).is_some() {
        return None;
    }
    let process = host.process();
    loop {
        let guard = process.threads.begin_touch(host.thread());
        let mut needed = None;
        if process.memory_gate.is_open()
            || restoring::is_there(host, &mut needed, || process.restoring.all())
        {
            return Some(guard);
        }
        drop(guard);
        wait(host, needed);
    }
}

/// Runs `f`, which may wait until other processes have left the device, as if the calling thread were not within [`hold`]: this process may have to leave
/// as well meanwhile, and would wait for the others as they wait for it. Then blocks until its memory is on the device again, and keeps it there as before.
pub(crate) fn released<P: Platform, T>(host: P, f: impl FnOnce() -> T) -> T {
    // What a touch that has passed uses stays, whatever it waits for.
    let held = host
        .thread()
        .filter(|own| own.is_touching() && !host.is_inside());
    let Some(own) = held else {
        return f();
    };
    own.end_touch();
    let result = f();
    // The mark ends with the guard of the call that has it.
    let _kept = ManuallyDrop::new(hold(host));
    result
}

/// Runs the check of a touch, without the touch, and returns whether it would pass.
#[inline]
pub fn check<P: System>(host: P) -> bool {
    let process = host.process();
    let _guard = process.threads.begin_touch(host.thread());
    process.memory_gate.is_open()
}

/// Device memory that a touch uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Not known.
    Anything,
    /// One range alone.
    Range {
        /// First address of the range.
        at: Address,
        /// Size of the range in bytes.
        bytes: u64,
        /// Host memory of the same size which is written there; 0 if something else is, or nothing.
        source: u64,
        /// Whether the copy may read its source later than the call.
        is_deferred: bool,
    },
}

/// Blocks while the process's memory is not on the device, or amid a restore until what is needed may be there.
#[cold]
pub(crate) fn wait<P: Platform>(host: P, needed: Option<Needed>) {
    // The program's pause ends here: the wait is not part of it.
    host.process().gate.begin_burst(host.now());
    // Work that this thread has launched is measured up to here; that in its own default stream can be marked by no other.
    capture_mode::relaxed(host, || streams::mark_all(host));
    if let Some(needed) = needed
        && host.process().memory_gate.is_ajar()
    {
        restoring::wait(host, needed);
        return;
    }
    let mut silence = Silence::default();
    while let Some((word, value)) = host.process().memory_gate.shut_at() {
        // Repeated, since messages may be lost, and the agent has a heartbeat only while it knows of the wait.
        if host.is_served() {
            host.send(&FromProcess::MemoryWanted);
        }
        let begin = host.now();
        host.wait_at(word, value, RECHECK_INTERVAL);
        let waited = Duration::from_nanos(host.now().saturating_sub(begin));
        let (orders, is_served) = (host.orders(), host.is_served());
        // A hung agent is treated like a stopped one: the process then restores itself.
        if silence.has_lasted(orders, is_served, waited, RECHECK_INTERVAL, HUNG_AFTER) {
            host.abandon_hung_agent();
        }
    }
}

/// Shuts the gate of touches and launches, and blocks until none is in progress. Returns whether that took at most `at_most`; otherwise
/// the gate is open again, because a call of the program blocks for longer.
///
/// What was launched or enqueued before may still run on the device.
#[must_use]
pub fn shut<P: System>(host: P, at_most: Duration) -> bool {
    let process = host.process();
    process.memory_gate.shut();
    host.barrier();
    let begin = host.now();
    while process.threads.any_touching() || process.threads.any_launching() {
        if host.now().saturating_sub(begin) >= preload_state::nanoseconds(at_most) {
            open(host);
            return false;
        }
        host.pause(IN_FLIGHT_POLL);
    }
    true
}

/// Sets the shut gate of touches and launches ajar, and wakes those that wait.
pub(crate) fn set_ajar<P: System>(host: P) {
    let gate = &host.process().memory_gate;
    let word = gate.shut_at().map(|(word, _)| word);
    gate.set_ajar();
    if let Some(word) = word {
        host.wake(word);
    }
}

/// Opens the gate of touches and launches, and wakes those that wait.
pub fn open<P: System>(host: P) {
    let gate = &host.process().memory_gate;
    let word = gate.shut_at().map(|(word, _)| word);
    gate.open();
    if let Some(word) = word {
        host.wake(word);
    }
}

#[cfg(test)]
mod tests;
