//! Contexts as far as memory depends on them: the context of a call, whether it still works, the memory it occupies by itself,
//! and the memory that is destroyed with it.

use std::sync::atomic::Ordering;

use preload_state::memory::{Account, Kind};

use super::state::lock;
use super::{current, limit, measure, movable, peers, release};
use crate::capture_mode;
use crate::cuda::{Code, Handle, NOT_READY, OUT_OF_MEMORY};
use crate::platform::{Driver, Platform, System};

/// `CU_EVENT_DISABLE_TIMING`
const WITHOUT_TIME: u32 = 2;
/// Allocation size larger than the memory of any device.
const TOO_MUCH: u64 = 1 << 60;

/// Returns the error that the driver's own `cuMemAlloc` would return now, if any. A context with a sticky error allocates
/// nothing, and no thread may allocate while a capture forbids it, which also invalidates the capture. Mapping memory checks
/// neither, so the driver is queried.
pub(super) fn check<P: Platform>(host: P, context: Handle) -> Result<(), Code> {
    if capture_mode::any(host) {
        return check_capturing(host);
    }
    register(host, context);
    let known = lock(&host.memory().contexts).probe(context);
    let probe = match known {
        Some(probe) => probe,
        None => make_probe(host, context)?,
    };
    match host.query_event(probe) {
        Ok(()) | Err(NOT_READY) => Ok(()),
        Err(code) => Err(code),
    }
}

fn make_probe<P: Platform>(host: P, context: Handle) -> Result<Handle, Code> {
    let probe = host.create_event(WITHOUT_TIME)?;
    // If another thread was faster, the surplus event is destroyed with its context.
    Ok(lock(&host.memory().contexts).keep_probe(context, probe))
}

/// Checks by an allocation of the driver's own, of a size which it cannot satisfy.
fn check_capturing<P: Driver>(host: P) -> Result<(), Code> {
    match host.allocate(TOO_MUCH) {
        Err(OUT_OF_MEMORY) => Ok(()),
        Ok(nowhere) => {
            host.free(nowhere);
            Ok(())
        }
        Err(code) => Err(code),
    }
}

/// Registers a context. The first one of a process is charged with the memory that contexts occupy by themselves, within the
/// limit or not, since it is allocated already. Where the size is known, the charge is made before the process allocates or queries memory, so that it
/// does not change under the program.
pub(super) fn register<P: Platform>(host: P, context: Handle) {
    let is_first = lock(&host.memory().contexts).register(context);
    let residue = match known_residue(host) {
        // Beside other pods' models nothing can be measured: the agent publishes it once the driver has listed it.
        0 if !is_first || host.process().memory_limit() > 0 => return,
        0 => measure(host, context),
        known => known,
    };
    if is_first || limit::read(host, |account| account.of(Kind::Residue)) == 0 {
        let _within = limit::set(host, &[(Kind::Residue, residue)]);
    }
}

/// Returns the memory that a context takes by itself, in bytes, as the agent's configuration or another process of the slot has it; 0: not known.
fn known_residue<P: System>(host: P) -> u64 {
    match host.process().context_residue() {
        0 => host.orders().context_residue.load(Ordering::Acquire),
        known => known,
    }
}

/// Estimates a context's own memory.
fn measure<P: Platform>(host: P, context: Handle) -> u64 {
    let sizes = current::within(host, context, || host.memory_info()).flatten();
    let Ok((free, total)) = sizes else {
        return 0;
    };
    let held = limit::read(host, Account::total);
    preload_state::memory::residue(free, total, held)
}

/// Returns whether this process has a context in which it used memory.
pub fn has_context<P: Platform>(host: P) -> bool {
    lock(&host.memory().contexts).any()
}

/// Returns the memory that a context of this process occupies, or would occupy, by itself, in bytes.
pub(super) fn residue<P: Platform>(host: P) -> u64 {
    match limit::read(host, |account| account.of(Kind::Residue)) {
        0 => known_residue(host),
        charged => charged,
    }
}

/// Removes the memory of a destroyed context. The driver has waited for its work.
pub fn context_destroyed<P: Platform>(host: P, context: Handle) {
    if !host.is_active() || context == 0 {
        return;
    }
    let memory = host.memory();
    movable::moves(host).context_destroyed(context);
    let is_last = lock(&memory.contexts).remove(context);
    peers::context_destroyed(host, context);
    for slot in &memory.devices {
        let dead = lock(&slot.table).context_destroyed(context);
        for (at, allocation) in dead {
            let _released = release::dispose(host, slot, at, allocation);
        }
    }
    let dead = lock(&memory.native).context_destroyed(context);
    for native in dead {
        limit::release(host, native.kind, native.bytes);
    }
    measure::refresh(host);
    if is_last {
        let residue = limit::read(host, |account| account.of(Kind::Residue));
        limit::release(host, Kind::Residue, residue);
    }
}
