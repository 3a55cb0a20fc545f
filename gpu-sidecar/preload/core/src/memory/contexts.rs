//! Contexts, as far as memory depends on them: which one a call means, whether it still works, what it keeps for itself, and
//! what dies with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_uint};

use super::account::Kind;
use super::{INVALID_CONTEXT, limit, lock, native, peers, pools, state};
use crate::driver::{self, Address, Code, Handle, NOT_READY, OUT_OF_MEMORY, SUCCESS};
use crate::link;

/// `CU_EVENT_DISABLE_TIMING`
const WITHOUT_TIME: c_uint = 2;
/// More than any device has.
const TOO_MUCH: usize = 1 << 60;
/// What a context keeps is taken for no more than this part of the device's memory when it has to be guessed.
const RESIDUE_PART: u64 = 32;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Contexts {
    live: BTreeSet<Handle>,
    /// An event of each context, never recorded: to ask whether the context still works.
    probes: BTreeMap<Handle, Handle>,
}

/// The calling thread's context.
pub(super) fn current() -> Result<Handle, Code> {
    let mut context = 0;
    // SAFETY: the driver writes a handle.
    let code = unsafe { driver::cuCtxGetCurrent(&raw mut context) };
    match (code, context) {
        (SUCCESS, 0) => Err(INVALID_CONTEXT),
        (SUCCESS, context) => Ok(context),
        (code, _) => Err(code),
    }
}

/// The device of the calling thread's context.
pub(super) fn device() -> Result<c_int, Code> {
    let mut device = 0;
    // SAFETY: the driver writes a number.
    let code = unsafe { driver::cuCtxGetDevice(&raw mut device) };
    if code == SUCCESS {
        Ok(device)
    } else {
        Err(code)
    }
}

/// Does something in a context, and goes back to the one before.
pub(super) fn within<T>(context: Handle, what: impl FnOnce() -> T) -> Result<T, Code> {
    let mut before = 0;
    // SAFETY: the driver writes a handle.
    let code = unsafe { driver::cuCtxGetCurrent(&raw mut before) };
    if code != SUCCESS {
        return Err(code);
    }
    if before == context {
        return Ok(what());
    }
    // SAFETY: a handle that the program has got from the driver; the driver refuses one that is gone.
    let code = unsafe { driver::cuCtxSetCurrent(context) };
    if code != SUCCESS {
        return Err(code);
    }
    let answer = what();
    // SAFETY: the context from before, or none.
    let _restored = unsafe { driver::cuCtxSetCurrent(before) };
    Ok(answer)
}

/// The device of any context.
pub(super) fn device_of(context: Handle) -> Result<c_int, Code> {
    within(context, device)?
}

/// Waits for all work of a context: before its memory goes. An error means that nobody knows what still runs.
pub(super) fn synchronise(context: Handle) -> Code {
    let waited = within(context, || {
        // SAFETY: no arguments.
        unsafe { driver::cuCtxSynchronize() }
    });
    match waited {
        Ok(SUCCESS) => {
            crate::streams::all_done(context);
            SUCCESS
        }
        Ok(code) | Err(code) => {
            link::fatal(code);
            code
        }
    }
}

/// Whether the program may allocate and free now: the error that the driver's own `cuMemAlloc` would answer in its place. A
/// context with an error that stays allocates nothing, and neither does anybody while a capture forbids it, which breaks the
/// capture. Mappings know neither, so the driver is asked.
pub(super) fn check(context: Handle) -> Result<(), Code> {
    if crate::capture::any() {
        return check_capturing();
    }
    seen(context);
    let known = lock(&state().contexts).probes.get(&context).copied();
    let probe = match known {
        Some(probe) => probe,
        None => make_probe(context)?,
    };
    // SAFETY: an event of this context, made below.
    match unsafe { driver::cuEventQuery(probe) } {
        SUCCESS | NOT_READY => Ok(()),
        code => Err(code),
    }
}

fn make_probe(context: Handle) -> Result<Handle, Code> {
    let mut probe = 0;
    // SAFETY: the driver writes a handle; the context is the calling thread's.
    let code = unsafe { driver::cuEventCreate(&raw mut probe, WITHOUT_TIME) };
    if code != SUCCESS {
        return Err(code);
    }
    let mut contexts = lock(&state().contexts);
    // Another thread may have been faster: one event too many goes with its context.
    Ok(*contexts.probes.entry(context).or_insert(probe))
}

/// During a capture it is the driver's own allocation that tells: of more than there can be, so that nothing comes of it.
fn check_capturing() -> Result<(), Code> {
    let mut nowhere: Address = 0;
    // SAFETY: the driver writes an address, if it ever succeeds.
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

/// A context is met, perhaps for the first time. The first one of a process is charged with what contexts keep for
/// themselves: it is there already, whether or not the limit has room for it. Before it has allocated anything or asked how
/// much there is, nobody misses the charge.
pub(super) fn seen(context: Handle) {
    let is_first = {
        let mut contexts = lock(&state().contexts);
        contexts.live.insert(context) && contexts.live.len() == 1
    };
    if is_first {
        let residue = match link::context_residue() {
            0 => measure(context),
            known => known,
        };
        let _within = limit::force(Kind::Residue, residue);
    }
}

/// What is gone of the device's memory and is not ours: an upper bound, since others may be on the device, and so cut at what
/// contexts are known to need at most.
fn measure(context: Handle) -> u64 {
    let asked = within(context, || {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers.
        let code = unsafe { driver::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        (code == SUCCESS).then_some((free as u64, total as u64))
    });
    let Ok(Some((free, total))) = asked else {
        return 0;
    };
    let own = limit::read(super::account::Account::total);
    let gone = total.saturating_sub(free).saturating_sub(own);
    gone.min(total / RESIDUE_PART)
}

/// Whether this process has a context that memory was asked for in.
pub(crate) fn has_context() -> bool {
    !lock(&state().contexts).live.is_empty()
}

/// What a context of this process keeps for itself, or would.
pub(super) fn residue() -> u64 {
    match limit::read(|account| account.of(Kind::Residue)) {
        0 => link::context_residue(),
        charged => charged,
    }
}

/// A context is gone, and with it the memory that was allocated in it. Its work is over: that is what the driver has waited
/// for.
pub(crate) fn context_gone(context: Handle) {
    if !link::is_active() || context == 0 {
        return;
    }
    let is_last = {
        let mut contexts = lock(&state().contexts);
        contexts.probes.remove(&context);
        contexts.live.remove(&context) && contexts.live.is_empty()
    };
    peers::context_gone(context);
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
    native::context_gone(context);
    pools::refresh();
    if is_last {
        let residue = limit::read(|account| account.of(Kind::Residue));
        limit::give(Kind::Residue, residue);
    }
}
