//! Contexts as far as memory depends on them: the context of a call, whether it still works, the memory it occupies by itself,
//! and the memory that is destroyed with it.

use crate::host::Host;
use preload_ops::System as _;
use preload_ops::capture;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint};

use super::account::Kind;
use super::{limit, lock, native, peers, pools, state};
use crate::driver::{
    self, Address, Code, Handle, INVALID_CONTEXT, NOT_READY, OUT_OF_MEMORY, SUCCESS,
};

/// `CU_EVENT_DISABLE_TIMING`
const WITHOUT_TIME: c_uint = 2;
/// Allocation size larger than the memory of any device.
const TOO_MUCH: usize = 1 << 60;
/// Divisor of the device's memory which bounds a context's own memory when it has to be estimated.
const RESIDUE_PART: u64 = 32;

/// Contexts of the process and the memory that each occupies by itself; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Contexts {
    /// Contexts in which memory was allocated or queried.
    live: BTreeSet<Handle>,
    /// One event per context, never recorded, whose query shows whether the context still works.
    probes: BTreeMap<Handle, Handle>,
}

/// Returns the calling thread's context.
pub(super) fn current() -> Result<Handle, Code> {
    let mut context = 0;
    // SAFETY: `context` is valid for writes.
    let code = unsafe { driver::cuCtxGetCurrent(&raw mut context) };
    match (code, context) {
        (SUCCESS, 0) => Err(INVALID_CONTEXT),
        (SUCCESS, context) => Ok(context),
        (code, _) => Err(code),
    }
}

/// Returns the device of the calling thread's context.
pub(super) fn device() -> Result<c_int, Code> {
    let mut device = 0;
    // SAFETY: `device` is valid for writes.
    let code = unsafe { driver::cuCtxGetDevice(&raw mut device) };
    if code == SUCCESS {
        Ok(device)
    } else {
        Err(code)
    }
}

/// Runs `f` with `context` current, and restores the previous context.
pub(super) fn within<T>(context: Handle, f: impl FnOnce() -> T) -> Result<T, Code> {
    let mut before = 0;
    // SAFETY: `before` is valid for writes.
    let code = unsafe { driver::cuCtxGetCurrent(&raw mut before) };
    if code != SUCCESS {
        return Err(code);
    }
    if before == context {
        return Ok(f());
    }
    // SAFETY: a handle that the program obtained from the driver, which refuses destroyed ones.
    let code = unsafe { driver::cuCtxSetCurrent(context) };
    if code != SUCCESS {
        return Err(code);
    }
    let result = f();
    // SAFETY: the previous context, or none.
    let _restored = unsafe { driver::cuCtxSetCurrent(before) };
    Ok(result)
}

/// Returns the device of any context.
pub(super) fn device_of(context: Handle) -> Result<c_int, Code> {
    within(context, device)?
}

/// Waits for all work of a context. After an error it is unknown what still runs.
pub(super) fn synchronise(context: Handle) -> Code {
    let waited = within(context, || {
        // SAFETY: the call takes no arguments.
        unsafe { driver::cuCtxSynchronize() }
    });
    match waited {
        Ok(SUCCESS) => {
            preload_ops::streams::context_synchronized(Host, context);
            SUCCESS
        }
        Ok(code) | Err(code) => {
            Host.report_fatal(code);
            code
        }
    }
}

/// Returns the error that the driver's own `cuMemAlloc` would return now, if any. A context with a sticky error allocates
/// nothing, and no thread may allocate while a capture forbids it, which also invalidates the capture. Mapping memory checks
/// neither, so the driver is queried.
pub(super) fn check(context: Handle) -> Result<(), Code> {
    if capture::any(Host) {
        return check_capturing();
    }
    register(context);
    let known = lock(&state().contexts).probes.get(&context).copied();
    let probe = match known {
        Some(probe) => probe,
        None => make_probe(context)?,
    };
    // SAFETY: an event of this context, created below.
    match unsafe { driver::cuEventQuery(probe) } {
        SUCCESS | NOT_READY => Ok(()),
        code => Err(code),
    }
}

fn make_probe(context: Handle) -> Result<Handle, Code> {
    let mut probe = 0;
    // SAFETY: `probe` is valid for writes, and the context is current.
    let code = unsafe { driver::cuEventCreate(&raw mut probe, WITHOUT_TIME) };
    if code != SUCCESS {
        return Err(code);
    }
    let mut contexts = lock(&state().contexts);
    // If another thread was faster, the surplus event is destroyed with its context.
    Ok(*contexts.probes.entry(context).or_insert(probe))
}

/// Checks by an allocation of the driver's own, of a size which it cannot satisfy.
fn check_capturing() -> Result<(), Code> {
    let mut nowhere: Address = 0;
    // SAFETY: `nowhere` is valid for writes.
    match unsafe { driver::cuMemAlloc_v2(&raw mut nowhere, TOO_MUCH) } {
        OUT_OF_MEMORY => Ok(()),
        SUCCESS => {
            // SAFETY: allocated just now.
            let _freed = unsafe { driver::cuMemFree_v2(nowhere) };
            Ok(())
        }
        code => Err(code),
    }
}

/// Registers a context. The first one of a process is charged with the memory that contexts occupy by themselves, within the
/// limit or not, since it is allocated already. The charge is made before the process allocates or queries memory, so it never
/// changes under the program.
pub(super) fn register(context: Handle) {
    let is_first = {
        let mut contexts = lock(&state().contexts);
        contexts.live.insert(context) && contexts.live.len() == 1
    };
    if is_first {
        let residue = match Host.process().context_residue() {
            0 => measure(context),
            known => known,
        };
        let _within = limit::force(Kind::Residue, residue);
    }
}

/// Estimates a context's own memory: the device's used memory that is not this process's, which is an upper bound since other
/// processes may use the device, limited to the most that a context needs.
fn measure(context: Handle) -> u64 {
    let sizes = within(context, || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both numbers are valid for writes.
        let code = unsafe { driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        (code == SUCCESS).then_some((free as u64, total as u64))
    });
    let Ok(Some((free, total))) = sizes else {
        return 0;
    };
    let own = limit::read(super::account::Account::total);
    let gone = total.saturating_sub(free).saturating_sub(own);
    gone.min(total / RESIDUE_PART)
}

/// Returns whether this process has a context in which it used memory.
pub(crate) fn has_context() -> bool {
    !lock(&state().contexts).live.is_empty()
}

/// Returns the memory that a context of this process occupies, or would occupy, by itself, in bytes.
pub(super) fn residue() -> u64 {
    match limit::read(|account| account.of(Kind::Residue)) {
        0 => Host.process().context_residue(),
        charged => charged,
    }
}

/// Removes the memory of a destroyed context. The driver has waited for its work.
pub(crate) fn context_destroyed(context: Handle) {
    if !Host.is_active() || context == 0 {
        return;
    }
    let is_last = {
        let mut contexts = lock(&state().contexts);
        contexts.probes.remove(&context);
        contexts.live.remove(&context) && contexts.live.is_empty()
    };
    peers::context_destroyed(context);
    for slot in &state().devices {
        let dead = {
            let mut table = lock(&slot.table);
            let is_its = |at: &Address, of: Handle| (of == context).then_some(*at);
            let allocations = table.allocations.iter();
            let dead: Vec<_> = allocations
                .filter_map(|(at, one)| is_its(at, one.context))
                .collect();
            let mut gone: Vec<_> = dead
                .into_iter()
                .filter_map(|at| table.allocations.remove_entry(&at))
                .collect();
            let deferred = table
                .deferred
                .extract_if(.., |(_, one)| one.context == context);
            gone.extend(deferred);
            gone
        };
        for (at, allocation) in dead {
            let _released = super::free::dispose(slot, at, allocation);
        }
    }
    native::context_destroyed(context);
    pools::refresh();
    if is_last {
        let residue = limit::read(|account| account.of(Kind::Residue));
        limit::release(Kind::Residue, residue);
    }
}
