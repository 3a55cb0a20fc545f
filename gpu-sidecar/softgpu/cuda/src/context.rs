//! Contexts, created or primary, and each thread's stack of current contexts.

use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use softgpu_wire::message::{Kind as Ask, Message};

use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::graph;
use crate::pointer::{In, Out};
use crate::state::State;
use crate::stream::{self, Stream};
use crate::table::{Handle, Kind};

/// A context of this process.
pub(crate) struct Context {
    pub(crate) device: usize,
    /// Number assigned by the server.
    pub(crate) number: u32,
    pub(crate) is_primary: bool,
    pub(crate) flags: u32,
    /// Largest number of SMs its kernels may use.
    pub(crate) sms: u32,
    /// Legacy default stream, which synchronizes with all blocking streams of the context.
    pub(crate) legacy: Handle<Stream>,
    /// Number of commands put into the legacy stream; a blocking stream orders itself behind it when the number has
    /// changed.
    pub(crate) legacy_commands: u64,
    pub(crate) id: u64,
    /// Devices with peer access enabled, whose plain memory may be used here.
    pub(crate) peers: Vec<usize>,
    /// Values of `cuCtxSetLimit`, by `CUlimit`.
    pub(crate) limits: [u64; 8],
}

impl Kind for Context {
    const NUMBER: u64 = 1;
}

thread_local! {
    static STACK: RefCell<Vec<Handle<Context>>> = const { RefCell::new(Vec::new()) };
}

fn top() -> Option<Handle<Context>> {
    STACK.with(|stack| stack.borrow().last().copied())
}

/// Valid flags of a context: scheduling, mapping of host memory, local memory resizing, core dumps.
const FLAGS: u32 = 0xff;

impl Driver {
    /// Returns the current context of this thread, even if it has had an error.
    pub(crate) fn current_any(&self, state: &State) -> Result<Handle<Context>> {
        let current = top().filter(|context| !context.is_null());
        let current = current.ok_or(Error::INVALID_CONTEXT)?;
        if state.contexts.get(current).is_none() {
            return Err(Error::CONTEXT_IS_DESTROYED);
        }
        Ok(current)
    }

    /// Returns the current context of this thread; fails if it has had an error.
    pub(crate) fn current(&self, state: &State) -> Result<Handle<Context>> {
        let current = self.current_any(state)?;
        self.check(state, current)?;
        Ok(current)
    }

    /// Fails with a context's error, or if the context is destroyed.
    pub(crate) fn check(&self, state: &State, context: Handle<Context>) -> Result {
        let there = state.contexts.get(context);
        let there = there.ok_or(Error::CONTEXT_IS_DESTROYED)?;
        match self.page.fault(there.number) {
            0 => Ok(()),
            fault => Err(Error(fault)),
        }
    }

    fn create(
        &self,
        device: usize,
        flags: u32,
        is_primary: bool,
        affinity: Option<u32>,
    ) -> Result<Handle<Context>> {
        self.wait_unlocked()?;
        let on = &self.devices[device];
        let mut percentage = self.mps.as_ref().map_or(0, |mps| mps.percentage_hundredths);
        if let Some(sms) = affinity {
            if self.mps.is_none() {
                return Err(Error::UNSUPPORTED_EXEC_AFFINITY);
            }
            let requested = u64::from(sms) * 10_000 / u64::from(on.sms.max(1));
            percentage = if percentage == 0 {
                requested
            } else {
                requested.min(percentage)
            }
            .max(1);
        }
        let uuid = softgpu_wire::identity::uuid_text(&on.uuid);
        let limit = self
            .mps
            .as_ref()
            .and_then(|mps| mps.limit(on.unit, on.gpu, &uuid));
        // In scaled bytes, like all sizes the program sees.
        let limit = limit.unwrap_or(u64::MAX);
        let mps = self.mps.as_ref().map_or(0, |mps| mps.server + 1);
        let words = [u64::from(on.unit), percentage, limit, mps];
        let answer = self.request(&Message::new(Ask::Context, &words))?;
        let [number, sms, ..] = answer.words;
        let number = u32::try_from(number).map_err(|_| Error::UNKNOWN)?;
        let mut state = self.room(1)?;
        let id = state.next_id();
        let context = Context {
            device,
            number,
            is_primary,
            flags,
            sms: u32::try_from(sms).unwrap_or(u32::MAX),
            legacy: Handle::NULL,
            legacy_commands: 0,
            id,
            peers: Vec::new(),
            limits: [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0],
        };
        let Some(handle) = state.contexts.insert(context) else {
            drop(state);
            self.request(&Message::new(Ask::ContextDestroy, &[u64::from(number)]))?;
            return Err(Error::OUT_OF_MEMORY);
        };
        let legacy = stream::create(self, &mut state, handle, stream::FLAG_DEFAULT, 0, true)?;
        if let Some(context) = state.contexts.get_mut(handle) {
            context.legacy = legacy;
        }
        Ok(handle)
    }

    fn destroy(&self, handle: Handle<Context>) -> Result {
        let paused = self.effects.pause();
        let mut state = self.state();
        let Some(context) = state.contexts.remove(handle) else {
            return Err(Error::INVALID_CONTEXT);
        };
        graph::forget_context(self, &mut state, handle);
        stream::forget_context(self, &mut state, handle);
        crate::memory::forget_context(self, &mut state, handle);
        for event in state.events.handles(|event| event.context == handle) {
            crate::event::forget(self, &mut state, event);
        }
        for module in state.modules.handles(|module| module.context == handle) {
            crate::module::forget(&mut state, module);
        }
        drop(state);
        drop(paused);
        let words = [u64::from(context.number)];
        self.request(&Message::new(Ask::ContextDestroy, &words))?;
        Ok(())
    }
}

/// `CUexecAffinityParam`: a number of SMs for a new context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AffinityParameter {
    kind: u32,
    sms: u32,
}

/// `CUctxCreateParams`, the parameters of `cuCtxCreate_v4`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CreateParameters {
    affinities: In<AffinityParameter>,
    affinity_count: i32,
    cig: *const c_void,
}

fn affinity_of(list: In<AffinityParameter>, count: i32) -> Result<Option<u32>> {
    let count = usize::try_from(count).map_err(|_| Error::INVALID_VALUE)?;
    match list.list(count)?.as_slice() {
        [] => Ok(None),
        // Kind 0 is `CU_EXEC_AFFINITY_TYPE_SM_COUNT`.
        [AffinityParameter { kind: 0, sms }] if *sms > 0 => Ok(Some(*sms)),
        _ => Err(Error::UNSUPPORTED_EXEC_AFFINITY),
    }
}

fn create_and_push(
    out: Out<Handle<Context>>,
    affinity: Option<u32>,
    flags: u32,
    ordinal: i32,
) -> Result {
    let driver = driver()?;
    if flags & !FLAGS != 0 || flags & 7 == 3 || flags & 7 > 4 {
        return Err(Error::INVALID_VALUE);
    }
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    driver.device(ordinal)?;
    let device = usize::try_from(ordinal).map_err(|_| Error::INVALID_DEVICE)?;
    let context = driver.create(device, flags, false, affinity)?;
    STACK.with(|stack| stack.borrow_mut().push(context));
    out.put(context)
}

/// Implements `cuCtxCreate` and `cuCtxCreate_v2`: creates a context and pushes it on the thread's stack.
pub(crate) fn create(out: Out<Handle<Context>>, flags: u32, ordinal: i32) -> Result {
    create_and_push(out, None, flags, ordinal)
}

/// Implements `cuCtxCreate_v3`: creates a context with an optional number of SMs.
pub(crate) fn create_v3(
    out: Out<Handle<Context>>,
    affinities: In<AffinityParameter>,
    count: i32,
    flags: u32,
    ordinal: i32,
) -> Result {
    create_and_push(out, affinity_of(affinities, count)?, flags, ordinal)
}

/// Implements `cuCtxCreate_v4`: creates a context with optional parameters; `cigParams` is not supported.
pub(crate) fn create_v4(
    out: Out<Handle<Context>>,
    parameters: In<CreateParameters>,
    flags: u32,
    ordinal: i32,
) -> Result {
    let affinity = if parameters.is_null() {
        None
    } else {
        let parameters = parameters.get()?;
        if !parameters.cig.is_null() {
            return Err(Error::NOT_SUPPORTED);
        }
        affinity_of(parameters.affinities, parameters.affinity_count)?
    };
    create_and_push(out, affinity, flags, ordinal)
}

/// Implements `cuCtxDestroy` and `cuCtxDestroy_v2`: waits for the context's commands and destroys it.
pub(crate) fn destroy(context: Handle<Context>) -> Result {
    let driver = driver()?;
    {
        let state = driver.state();
        let there = state.contexts.get(context).ok_or(Error::INVALID_CONTEXT)?;
        if there.is_primary {
            return Err(Error::INVALID_CONTEXT);
        }
    }
    // A context with an error is destroyed as well.
    let _waited = drain(driver, context);
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        if stack.last() == Some(&context) {
            stack.pop();
        }
    });
    driver.destroy(context)
}

/// Implements `cuCtxDetach`, which PyCUDA calls at its end: drops the only use of the calling thread's context and destroys it, since
/// `cuCtxAttach`, which adds uses, is not supported.
pub(crate) fn detach(context: Handle<Context>) -> Result {
    if STACK.with(|stack| stack.borrow().last() != Some(&context)) {
        return Err(Error::INVALID_CONTEXT);
    }
    destroy(context)
}

/// Implements `cuCtxSetCurrent`: replaces the top of the thread's stack, or pops it for a null context.
pub(crate) fn set_current(context: Handle<Context>) -> Result {
    let driver = driver()?;
    if !context.is_null() && driver.state().contexts.get(context).is_none() {
        return Err(Error::INVALID_CONTEXT);
    }
    STACK.with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        if !context.is_null() {
            stack.push(context);
        }
    });
    Ok(())
}

/// Implements `cuCtxGetCurrent`: returns the top of the thread's stack, or null.
pub(crate) fn get_current(out: Out<Handle<Context>>) -> Result {
    driver()?;
    out.put(top().unwrap_or(Handle::NULL))
}

/// Implements `cuCtxPushCurrent_v2`: pushes a context on the thread's stack.
pub(crate) fn push_current(context: Handle<Context>) -> Result {
    let driver = driver()?;
    if driver.state().contexts.get(context).is_none() {
        return Err(Error::INVALID_CONTEXT);
    }
    STACK.with(|stack| stack.borrow_mut().push(context));
    Ok(())
}

/// Implements `cuCtxPopCurrent_v2`: pops the top of the thread's stack.
pub(crate) fn pop_current(out: Out<Handle<Context>>) -> Result {
    driver()?;
    let popped = STACK.with(|stack| stack.borrow_mut().pop());
    let popped = popped.ok_or(Error::INVALID_CONTEXT)?;
    out.put_if_wanted(popped);
    Ok(())
}

/// Returns the given context, or the current one for null.
fn meant(driver: &Driver, state: &State, context: Handle<Context>) -> Result<Handle<Context>> {
    if context.is_null() {
        return driver.current_any(state);
    }
    state
        .contexts
        .get(context)
        .map(|_| context)
        .ok_or(Error::INVALID_CONTEXT)
}

/// Implements `cuCtxGetDevice_v2`: returns the device of a context.
pub(crate) fn get_device_of(out: Out<i32>, context: Handle<Context>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let context = meant(driver, &state, context)?;
    let device = state
        .contexts
        .get(context)
        .map_or(0, |context| context.device);
    out.put(i32::try_from(device).unwrap_or(i32::MAX))
}

/// Implements `cuCtxGetDevice`: returns the device of the current context.
pub(crate) fn get_device(out: Out<i32>) -> Result {
    get_device_of(out, Handle::NULL)
}

/// Implements `cuCtxGetFlags`: returns the flags of the current context.
pub(crate) fn get_flags(out: Out<u32>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let context = driver.current(&state)?;
    out.put(
        state
            .contexts
            .get(context)
            .map_or(0, |context| context.flags),
    )
}

/// Implements `cuCtxSetFlags`: replaces the flags of the current context.
pub(crate) fn set_flags(flags: u32) -> Result {
    let driver = driver()?;
    if flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    let context = driver.current(&state)?;
    if let Some(context) = state.contexts.get_mut(context) {
        context.flags = flags;
    }
    Ok(())
}

/// Implements `cuCtxGetId`: returns a context's id, unique in the process.
pub(crate) fn get_id(context: Handle<Context>, out: Out<u64>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let context = meant(driver, &state, context)?;
    out.put(state.contexts.get(context).map_or(0, |context| context.id))
}

/// Implements `cuCtxGetApiVersion`: always returns 3020.
pub(crate) fn get_api_version(context: Handle<Context>, out: Out<u32>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    meant(driver, &state, context)?;
    out.put(3020)
}

/// Implements `cuCtxGetExecAffinity`: returns the current context's number of SMs.
pub(crate) fn get_affinity(out: Out<AffinityParameter>, kind: u32) -> Result {
    let driver = driver()?;
    if kind != 0 {
        return Err(Error::UNSUPPORTED_EXEC_AFFINITY);
    }
    let state = driver.state();
    let context = driver.current(&state)?;
    let context = state.contexts.get(context).ok_or(Error::INVALID_CONTEXT)?;
    out.put(AffinityParameter {
        kind,
        sms: context.sms,
    })
}

/// Implements `cuCtxGetLimit`: returns a limit of the current context.
pub(crate) fn get_limit(out: Out<usize>, limit: u32) -> Result {
    let driver = driver()?;
    let state = driver.state();
    let context = driver.current(&state)?;
    let context = state.contexts.get(context).ok_or(Error::INVALID_CONTEXT)?;
    let value = context
        .limits
        .get(limit as usize)
        .ok_or(Error::UNSUPPORTED_LIMIT)?;
    out.put(usize::try_from(*value).unwrap_or(usize::MAX))
}

/// Implements `cuCtxSetLimit`: stores the limit, which has no effect.
pub(crate) fn set_limit(limit: u32, value: usize) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let context = driver.current(&state)?;
    let context = state
        .contexts
        .get_mut(context)
        .ok_or(Error::INVALID_CONTEXT)?;
    let place = context.limits.get_mut(limit as usize);
    *place.ok_or(Error::UNSUPPORTED_LIMIT)? = value as u64;
    Ok(())
}

/// Implements `cuCtxGetCacheConfig` and `cuCtxGetSharedMemConfig`: returns 0, no preference.
pub(crate) fn get_no_preference(out: Out<u32>) -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    out.put(0)
}

/// Implements `cuCtxSetCacheConfig`, `cuCtxSetSharedMemConfig` and `cuCtxResetPersistingL2Cache`, hints without effect.
pub(crate) fn hint() -> Result {
    let driver = driver()?;
    let state = driver.state();
    driver.current(&state)?;
    Ok(())
}

/// Implements `cuCtxGetStreamPriorityRange`: returns the least and the greatest priority.
pub(crate) fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Result {
    let driver = driver()?;
    driver.current(&driver.state())?;
    least.put_if_wanted(stream::PRIORITY_LEAST);
    greatest.put_if_wanted(stream::PRIORITY_GREATEST);
    Ok(())
}

/// Blocks until all commands of a context have ended, even during a capture: for calls that synchronize implicitly.
pub(crate) fn drain(driver: &Driver, context: Handle<Context>) -> Result {
    let targets = {
        let state = driver.state();
        driver.check(&state, context)?;
        stream::targets(&state, context)
    };
    for target in targets {
        driver.wait(target)?;
    }
    driver.effects.run(driver);
    let state = driver.state();
    driver.check(&state, context)
}

/// Blocks until all commands of a context have ended; fails and invalidates the captures while one is in progress.
pub(crate) fn synchronise(driver: &Driver, context: Handle<Context>) -> Result {
    {
        let mut state = driver.state();
        if graph::is_capturing_globally(&state, context) {
            graph::invalidate_all(&mut state, context);
            return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    drain(driver, context)
}

/// Implements `cuCtxSynchronize`: waits for the commands of the current context.
pub(crate) fn synchronise_current() -> Result {
    let driver = driver()?;
    let context = driver.current(&driver.state())?;
    synchronise(driver, context)
}

/// Implements `cuCtxSynchronize_v2`: waits for the commands of a context, or the current one for null.
pub(crate) fn synchronise_given(context: Handle<Context>) -> Result {
    let driver = driver()?;
    let context = meant(driver, &driver.state(), context)?;
    synchronise(driver, context)
}

/// Implements `cuCtxEnablePeerAccess`: allows the current context to use the memory of the peer's device.
pub(crate) fn enable_peer(peer: Handle<Context>, flags: u32) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let current = driver.current(&state)?;
    let device = state
        .contexts
        .get(peer)
        .ok_or(Error::INVALID_CONTEXT)?
        .device;
    let own = state
        .contexts
        .get(current)
        .map_or(0, |context| context.device);
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if own == device || !crate::device::can_access_peer(driver, own, device) {
        return Err(if own == device {
            Error::INVALID_DEVICE
        } else {
            Error::PEER_ACCESS_UNSUPPORTED
        });
    }
    let context = state
        .contexts
        .get_mut(current)
        .ok_or(Error::INVALID_CONTEXT)?;
    if context.peers.contains(&device) {
        return Err(Error::PEER_ACCESS_ALREADY_ENABLED);
    }
    context.peers.push(device);
    Ok(())
}

/// Implements `cuCtxDisablePeerAccess`: revokes the access to the memory of the peer's device.
pub(crate) fn disable_peer(peer: Handle<Context>) -> Result {
    let driver = driver()?;
    let mut state = driver.state();
    let current = driver.current(&state)?;
    let device = state
        .contexts
        .get(peer)
        .ok_or(Error::INVALID_CONTEXT)?
        .device;
    let context = state
        .contexts
        .get_mut(current)
        .ok_or(Error::INVALID_CONTEXT)?;
    let at = context.peers.iter().position(|&there| there == device);
    context
        .peers
        .remove(at.ok_or(Error::PEER_ACCESS_NOT_ENABLED)?);
    Ok(())
}

fn ordinal(driver: &Driver, ordinal: i32) -> Result<usize> {
    driver.device(ordinal)?;
    usize::try_from(ordinal).map_err(|_| Error::INVALID_DEVICE)
}

/// Returns the lock held while a primary context is created or destroyed.
fn primaries() -> MutexGuard<'static, ()> {
    static CHANGING: Mutex<()> = Mutex::new(());
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Implements `cuDevicePrimaryCtxRetain`: counts a reference, creating the context for the first.
pub(crate) fn retain_primary(out: Out<Handle<Context>>, device: i32) -> Result {
    let driver = driver()?;
    let device = ordinal(driver, device)?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let _one_at_a_time = primaries();
    let there = driver.state().primaries[device];
    let context = match there {
        Some(context) => context,
        None => {
            let flags = driver.state().primary_flags[device];
            let context = driver.create(device, flags, true, None)?;
            driver.state().primaries[device] = Some(context);
            context
        }
    };
    driver.state().retained[device] += 1;
    out.put(context)
}

/// Implements `cuDevicePrimaryCtxRelease_v2`: drops a reference, destroying the context with the last.
pub(crate) fn release_primary(device: i32) -> Result {
    let driver = driver()?;
    let device = ordinal(driver, device)?;
    let _one_at_a_time = primaries();
    let last = {
        let mut state = driver.state();
        let retained = &mut state.retained[device];
        *retained = retained.checked_sub(1).ok_or(Error::INVALID_CONTEXT)?;
        if *retained > 0 {
            return Ok(());
        }
        state.primaries[device].take()
    };
    last.map_or(Ok(()), |context| {
        let _waited = drain(driver, context);
        driver.destroy(context)
    })
}

/// Implements `cuDevicePrimaryCtxReset_v2`: destroys the primary context regardless of its references.
pub(crate) fn reset_primary(device: i32) -> Result {
    let driver = driver()?;
    let device = ordinal(driver, device)?;
    let _one_at_a_time = primaries();
    let there = {
        let mut state = driver.state();
        state.retained[device] = 0;
        state.primaries[device].take()
    };
    there.map_or(Ok(()), |context| {
        let _waited = drain(driver, context);
        driver.destroy(context)
    })
}

/// Implements `cuDevicePrimaryCtxSetFlags_v2`: sets the flags of a device's primary context, present and future.
pub(crate) fn set_primary_flags(device: i32, flags: u32) -> Result {
    let driver = driver()?;
    let device = ordinal(driver, device)?;
    if flags & !FLAGS != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.state();
    state.primary_flags[device] = flags;
    if let Some(primary) = state.primaries[device]
        && let Some(context) = state.contexts.get_mut(primary)
    {
        context.flags = flags;
    }
    Ok(())
}

/// Implements `cuDevicePrimaryCtxGetState`: returns the primary context's flags and whether it exists.
pub(crate) fn primary_state(device: i32, flags: Out<u32>, active: Out<i32>) -> Result {
    let driver = driver()?;
    let device = ordinal(driver, device)?;
    let state = driver.state();
    flags.put(state.primary_flags[device])?;
    active.put(i32::from(state.primaries[device].is_some()))
}
