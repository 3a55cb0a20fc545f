//! Division of extents: blocks that share physical memory get memory of their own, at the same addresses, so that what was freed in between returns to the
//! device, or one of them can be exported alone.
//!
//! It is a move of these blocks to the host and back, by the mover thread, with the gate shut. Threads request it where memory is lacking, and wait for it. Without
//! a request it happens once more than a little was freed in between for a while.

use std::sync::atomic::Ordering;
use std::time::Duration;

use preload_state::gate::RECHECK_INTERVAL;
use protocol::message::{FromProcess, MoveRefusal, MoveReport, Transfer};
use protocol::page::Residency;

use super::creation::Handles;
use super::{calls, evict, publish, restore, restoring, seal, wake_mover};
use crate::cuda::{Code, OUT_OF_MEMORY};
use crate::memory::{self, extents, moves};
use crate::platform::Platform;
use crate::{capture_mode, touch};

/// Longest time for which work in flight is waited for, once for each attempt.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Number of attempts for requests, after which they are given up.
const ATTEMPTS_MAX: u32 = 2;
/// Time after that for which requests are given up at once.
const FUTILE_FOR: Duration = Duration::from_secs(10);
/// Longest time for which a thread waits: the attempts, and a move of much memory over a slow link.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Time for which the freed memory has to stay the same until it is released without a request.
const UNUSED_FOR: Duration = Duration::from_secs(1);
/// Longest time for which work in flight is waited for without a request: the program seems to do nothing.
const UNREQUESTED_DRAIN_MAX: Duration = Duration::from_millis(100);
/// Time after an attempt without a request until the next one.
const UNREQUESTED_INTERVAL: Duration = Duration::from_secs(10);

/// What the mover thread knows of divisions between its steps.
#[derive(Debug, Default)]
pub(crate) struct Division {
    /// Attempts for the requests so far.
    attempts: u32,
    /// Time up to which requests are given up at once, on the clock of the process, in nanoseconds.
    futile_until: u64,
    /// Memory of freed blocks in extents at the last step, in bytes.
    unused: u64,
    /// Time from which it may be released without a request, on the clock of the process, in nanoseconds.
    unrequested_at: u64,
}

/// Requests that the mover thread divides the extents with memory of freed blocks, if there are any. Does not wait.
pub(crate) fn request<P: Platform>(host: P) {
    if extents::unused(host) > 0 {
        host.process().divisions.request();
        wake_mover(host);
    }
}

/// Has the extents with memory of freed blocks divided, and blocks until that is done, for at most 5 s and as long as the process's memory is away. Returns
/// whether there were any.
pub(crate) fn divided<P: Platform>(host: P) -> bool {
    extents::unused(host) > 0 && divide_and_wait(host)
}

/// Has extents divided that are marked or have memory of freed blocks, and blocks until that is done, as [`divided`] does. Returns `false` if the
/// program's work did not end, and at once during a capture, amid which nothing moves, or for some seconds after work did not end.
pub(crate) fn divide_and_wait<P: Platform>(host: P) -> bool {
    // Within a touch that has passed, the mover would wait for the touch.
    if capture_mode::any(host) || host.is_inside() {
        return false;
    }
    let divisions = &host.process().divisions;
    let number = divisions.request();
    wake_mover(host);
    touch::released(host, || {
        let begin = host.now();
        while let Some((word, value)) = divisions.is_awaited(number) {
            if host.now().saturating_sub(begin) >= preload_state::nanoseconds(WAIT_MAX) {
                break;
            }
            host.wait_at(word, value, RECHECK_INTERVAL);
        }
    });
    // It may have ended while the memory was awaited.
    divisions.is_carried_out(number)
}

/// Divides extents if that was requested, or much of them has been unused for a while. Returns whether there was something to do.
pub(super) fn divide_some<P: Platform>(host: P) -> bool {
    let divisions = &host.process().divisions;
    if let Some(number) = divisions.requested() {
        let is_futile = host.now() < moves(host).division.futile_until;
        if is_futile || divide(host, DRAIN_MAX) == Divided::Later {
            let mut moves = moves(host);
            let division = &mut moves.division;
            division.attempts += 1;
            if !is_futile && division.attempts < ATTEMPTS_MAX {
                return true;
            }
            if !is_futile {
                let futile_for = preload_state::nanoseconds(FUTILE_FOR);
                division.futile_until = host.now().saturating_add(futile_for);
            }
            divisions.give_up(number);
        } else {
            divisions.complete(number);
        }
        moves(host).division.attempts = 0;
        host.wake(divisions.word());
        return true;
    }
    let (unused, now) = (extents::unused(host), host.now());
    {
        let division = &mut moves(host).division;
        if division.unused != unused {
            division.unused = unused;
            division.unrequested_at = now.saturating_add(preload_state::nanoseconds(UNUSED_FOR));
        }
        if unused < extents::unused_max(host).max(1)
            || unused < extents::beside_unused(host)
            || now < division.unrequested_at
        {
            return false;
        }
    }
    // No request is to wait for it.
    if seal::idle_calls(host).is_none() {
        return false;
    }
    {
        let division = &mut moves(host).division;
        division.unrequested_at =
            now.saturating_add(preload_state::nanoseconds(UNREQUESTED_INTERVAL));
    }
    divide(host, UNREQUESTED_DRAIN_MAX);
    true
}

/// Returns why memory may not be moved now, although it stays with the process.
fn refusal<P: Platform>(host: P) -> Result<(), MoveRefusal> {
    if capture_mode::any(host) {
        return Err(MoveRefusal::Capturing);
    }
    if host.process().has_bound_memory() {
        return Err(MoveRefusal::Collective);
    }
    Ok(())
}

/// What has come of an attempt to divide extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Divided {
    /// Those that can be are divided.
    Done,
    /// Work in flight did not end in time.
    Later,
}

/// Moves the blocks of extents that are to be divided to the host and back to memory of their own. If there is no memory for them, as when another
/// process has taken it meanwhile, all memory of the process leaves that may.
fn divide<P: Platform>(host: P, drain: Duration) -> Divided {
    {
        let moves = moves(host);
        if moves.is_away || moves.is_faulted {
            return Divided::Done;
        }
    }
    if !extents::any_to_divide(host) || refusal(host).is_err() {
        return Divided::Done;
    }
    restoring::end_observation(host);
    if let Err(failure) = evict::close(host, host.now(), drain, refusal) {
        touch::open(host);
        return match failure {
            evict::Failure::Refused(MoveRefusal::Draining) => Divided::Later,
            _ => Divided::Done,
        };
    }
    let mut moves = moves(host);
    let was_unchanged = moves.unchanged_since == Some(calls(host));
    let left = evict::away(host, &mut moves, &extents::to_divide(host));
    let back = match left {
        Ok(_) => restore::bring_back(host, &mut moves, Handles::Own).map(|_transfer| ()),
        // It is where it was, or its own attempt to bring it back has failed.
        Err(_) => Ok(()),
    };
    if back.is_err() && evict::refusal(host).is_ok() {
        let _left = evict::away(host, &mut moves, &memory::movable(host));
    }
    moves.is_away = !memory::away(host).is_empty();
    // Nothing uses the memory up to here.
    let is_unchanged = was_unchanged && moves.host.is_all_hashed();
    moves.unchanged_since = is_unchanged.then(|| calls(host));
    let is_away = moves.is_away;
    drop(moves);
    if is_away {
        leave(host, back.err());
    } else {
        touch::open(host);
    }
    Divided::Done
}

/// States that memory could not return, with the driver's error if it is known: it is on the host, as after an eviction.
fn leave<P: Platform>(host: P, code: Option<Code>) {
    let code = code.unwrap_or(OUT_OF_MEMORY);
    host.log(&format!(
        "memory with freed blocks in it cannot be arranged anew (error {code}): the model is on the host"
    ));
    if code != OUT_OF_MEMORY {
        host.report_fatal(code);
    }
    publish(host, Residency::Host);
    if host.is_served() {
        // The agent learns where the memory is, and lets it return.
        host.send(&FromProcess::Moved(MoveReport {
            seq: host.facts().done_seq.load(Ordering::Acquire),
            residency: Residency::Host,
            refusal: Some(MoveRefusal::NoMemory),
            transfer: Transfer::default(),
        }));
    }
}
