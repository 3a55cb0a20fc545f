//! Contexts as far as memory depends on them: the context of a call, whether it still works, the memory it occupies by itself,
//! and the memory that is destroyed with it.

use std::ffi::c_int;

use preload_state::memory::{Account, Kind};

use super::{free, limit, lock, peers, pools};
use crate::capture;
use crate::cuda::{Code, Handle, INVALID_CONTEXT, NOT_READY, OUT_OF_MEMORY};
use crate::platform::{Driver, Platform};
use crate::streams;

/// `CU_EVENT_DISABLE_TIMING`
const WITHOUT_TIME: u32 = 2;
/// Allocation size larger than the memory of any device.
const TOO_MUCH: u64 = 1 << 60;

/// Returns the calling thread's context.
pub(crate) fn current<P: Driver>(host: P) -> Result<Handle, Code> {
    match host.current_context()? {
        0 => Err(INVALID_CONTEXT),
        context => Ok(context),
    }
}

/// Runs `f` with `context` current, and restores the previous context.
fn within<P: Driver, T>(host: P, context: Handle, f: impl FnOnce() -> T) -> Result<T, Code> {
    let before = host.current_context()?;
    if before == context {
        return Ok(f());
    }
    // The driver refuses destroyed contexts.
    host.set_current_context(context)?;
    let result = f();
    let _restored = host.set_current_context(before);
    Ok(result)
}

/// Returns the device of any context.
pub(super) fn device_of<P: Driver>(host: P, context: Handle) -> Result<c_int, Code> {
    within(host, context, || host.current_device())?
}

/// Waits for all work of a context. After an error it is unknown what still runs.
pub(super) fn synchronize<P: Platform>(host: P, context: Handle) -> Result<(), Code> {
    let waited = within(host, context, || host.synchronize()).flatten();
    match waited {
        Ok(()) => streams::context_synchronized(host, context),
        Err(code) => host.report_fatal(code),
    }
    waited
}

/// Returns the error that the driver's own `cuMemAlloc` would return now, if any. A context with a sticky error allocates
/// nothing, and no thread may allocate while a capture forbids it, which also invalidates the capture. Mapping memory checks
/// neither, so the driver is queried.
pub(super) fn check<P: Platform>(host: P, context: Handle) -> Result<(), Code> {
    if capture::any(host) {
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
/// limit or not, since it is allocated already. The charge is made before the process allocates or queries memory, so it never
/// changes under the program.
pub(super) fn register<P: Platform>(host: P, context: Handle) {
    let is_first = lock(&host.memory().contexts).register(context);
    if is_first {
        let residue = match host.process().context_residue() {
            0 => measure(host, context),
            known => known,
        };
        let _within = limit::force(host, Kind::Residue, residue);
    }
}

/// Estimates a context's own memory.
fn measure<P: Platform>(host: P, context: Handle) -> u64 {
    let sizes = within(host, context, || host.memory_info()).flatten();
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
        0 => host.process().context_residue(),
        charged => charged,
    }
}

/// Removes the memory of a destroyed context. The driver has waited for its work.
pub fn context_destroyed<P: Platform>(host: P, context: Handle) {
    if !host.is_active() || context == 0 {
        return;
    }
    let memory = host.memory();
    let is_last = lock(&memory.contexts).remove(context);
    peers::context_destroyed(host, context);
    for slot in &memory.devices {
        let dead = lock(&slot.table).context_destroyed(context);
        for (at, allocation) in dead {
            let _released = free::dispose(host, slot, at, allocation);
        }
    }
    let native = lock(&memory.native).context_destroyed(context);
    if native > 0 {
        limit::release(host, Kind::Native, native);
    }
    pools::refresh(host);
    if is_last {
        let residue = limit::read(host, |account| account.of(Kind::Residue));
        limit::release(host, Kind::Residue, residue);
    }
}
