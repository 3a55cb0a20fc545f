//! Streams and their order: the legacy default stream waits for all blocking streams, and they wait for it.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use softgpu_wire::clock;
use softgpu_wire::page::Awaited;
use softgpu_wire::record::{Command, Token};

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::effects::Effect;
use crate::error::{Error, Result};
use crate::event::{self, Event};
use crate::graph;
use crate::pointer::Out;
use crate::state::{State, event_slot, stream_slot};
use crate::table::{Handle, Kind};
use crate::work::{HostCall, HostFunction, Work};

/// `CU_STREAM_DEFAULT`: a blocking stream.
pub(crate) const FLAG_DEFAULT: u32 = 0;
/// `CU_STREAM_NON_BLOCKING`: no ordering with the legacy default stream.
const FLAG_NON_BLOCKING: u32 = 1;
/// Lowest priority, which is the default.
pub(crate) const PRIORITY_LEAST: i32 = 0;
/// Highest priority; priorities have no effect.
pub(crate) const PRIORITY_GREATEST: i32 = -5;

/// Meaning of the null stream handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DefaultStream {
    /// The legacy default stream, which synchronizes with all blocking streams.
    Legacy,
    /// The default stream of the calling thread.
    PerThread,
}

/// A stream of this process.
pub(crate) struct Stream {
    pub(crate) context: Handle<Context>,
    flags: u32,
    priority: i32,
    id: u64,
    is_legacy: bool,
    /// Whether work was put into it after the legacy stream last waited for it.
    has_unordered_work: bool,
    /// Number of commands of the legacy stream it has waited for.
    legacy_seen: u64,
    /// Event recorded in the stream for other streams to wait for.
    mark: Handle<Event>,
    pub(crate) capture: Handle<graph::Capture>,
}

impl Kind for Stream {
    const NUMBER: u64 = 2;
}

impl Stream {
    /// Returns whether the legacy stream and this one wait for each other.
    pub(crate) const fn is_blocking(&self) -> bool {
        self.flags & FLAG_NON_BLOCKING == 0
    }
}

/// `CU_STREAM_LEGACY`, the handle of the legacy default stream.
const LEGACY: u64 = 1;
/// `CU_STREAM_PER_THREAD`, the handle of the calling thread's default stream.
const PER_THREAD: u64 = 2;

/// Numbers of threads that have ended, whose default streams can be destroyed.
static ENDED_THREADS: Mutex<Vec<u64>> = Mutex::new(Vec::new());

struct ThreadNumber(Cell<u64>);

impl Drop for ThreadNumber {
    fn drop(&mut self) {
        let mut gone = ENDED_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        gone.push(self.0.get());
    }
}

fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: ThreadNumber = const { ThreadNumber(Cell::new(0)) };
    }
    let number = NUMBER.try_with(|number| {
        if number.0.get() == 0 {
            number.0.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.0.get()
    });
    number.unwrap_or(u64::MAX)
}

/// Creates a stream. The ring must have room for a command.
pub(crate) fn create(
    driver: &Driver,
    state: &mut State,
    context: Handle<Context>,
    flags: u32,
    priority: i32,
    is_legacy: bool,
) -> Result<Handle<Stream>> {
    let number = state
        .contexts
        .get(context)
        .ok_or(Error::INVALID_CONTEXT)?
        .number;
    let stream = Stream {
        context,
        flags,
        priority: priority.clamp(PRIORITY_GREATEST, PRIORITY_LEAST),
        id: state.next_id(),
        is_legacy,
        has_unordered_work: false,
        legacy_seen: 0,
        mark: Handle::NULL,
        capture: Handle::NULL,
    };
    let submitted = &state.stream_submitted;
    // A slot with pending work of a destroyed stream is not reused.
    let is_idle = |at: usize| {
        let slot = softgpu_wire::record::StreamSlot(u32::try_from(at).unwrap_or(u32::MAX));
        submitted
            .get(at)
            .is_none_or(|&count| driver.page.stream_done(slot) >= count)
    };
    let handle = state.streams.insert_where(stream, is_idle);
    let handle = handle.ok_or(Error::OUT_OF_MEMORY)?;
    if state.stream_submitted.len() <= handle.index() {
        state.stream_submitted.resize(handle.index() + 1, 0);
    }
    let command = Command::StreamCreate { context: number };
    driver.put(clock::now(), stream_slot(handle), None, command);
    Ok(handle)
}

/// Destroys a stream; its pending work still runs, and remains awaitable. The ring must have room for some commands.
fn remove(driver: &Driver, state: &mut State, handle: Handle<Stream>) {
    if !is_empty(driver, state, handle) {
        let there = state.streams.get(handle);
        let there =
            there.map(|stream| (stream.context, stream.is_legacy, stream.has_unordered_work));
        if let Some((context, false, has_unordered_work)) = there {
            let left = (context, target(state, handle));
            state
                .draining
                .retain(|(_, target)| !driver.is_reached(*target));
            state.draining.push(left);
            let legacy = state.contexts.get(context).map(|context| context.legacy);
            if let Some(legacy) = legacy.filter(|_| has_unordered_work) {
                let _followed = follow(driver, state, handle, legacy);
            }
        }
    }
    let Some(stream) = state.streams.remove(handle) else {
        return;
    };
    event::forget(driver, state, stream.mark);
    driver.put(
        clock::now(),
        stream_slot(handle),
        None,
        Command::StreamDestroy,
    );
}

/// Destroys the streams of a destroyed context.
pub(crate) fn forget_context(driver: &Driver, state: &mut State, context: Handle<Context>) {
    for stream in state.streams.handles(|stream| stream.context == context) {
        graph::forget_stream(state, stream);
        remove(driver, state, stream);
    }
    state.per_thread.retain(|(of, _), _| *of != context.raw());
}

/// Returns the conditions under which all streams of a context are empty.
pub(crate) fn targets(state: &State, context: Handle<Context>) -> Vec<Awaited> {
    let streams = state.streams.iter();
    let draining = state.draining.iter();
    streams
        .filter(|(_, stream)| stream.context == context)
        .map(|(handle, _)| target(state, handle))
        .chain(
            draining
                .filter(|(of, _)| *of == context)
                .map(|(_, target)| *target),
        )
        .collect()
}

/// Returns the condition under which a stream is empty.
pub(crate) fn target(state: &State, stream: Handle<Stream>) -> Awaited {
    Awaited::Stream(stream_slot(stream), state.stream_submitted[stream.index()])
}

fn is_empty(driver: &Driver, state: &State, stream: Handle<Stream>) -> bool {
    driver.page.stream_done(stream_slot(stream)) >= state.stream_submitted[stream.index()]
}

/// Largest room reserved for a call; with more streams, further commands are appended as room appears.
const ROOM_MAX: u64 = 512;

/// Returns the state, with room for everything one call may put into streams.
pub(crate) fn room(driver: &Driver) -> Result<std::sync::MutexGuard<'_, State>> {
    // A command of the legacy stream may need two for each other stream.
    let streams = driver.state().stream_submitted.len() as u64;
    driver.room((2 * streams + 16).min(ROOM_MAX))
}

/// Resolves a handle to a stream, creating the thread's default stream on first use.
pub(crate) fn resolve(
    driver: &Driver,
    state: &mut State,
    handle: Handle<Stream>,
    default: DefaultStream,
) -> Result<Handle<Stream>> {
    let raw = match (handle.raw(), default) {
        (0, DefaultStream::Legacy) => LEGACY,
        (0, DefaultStream::PerThread) => PER_THREAD,
        (raw, _) => raw,
    };
    match raw {
        LEGACY => {
            let context = driver.current(state)?;
            let context = state.contexts.get(context);
            Ok(context.ok_or(Error::INVALID_CONTEXT)?.legacy)
        }
        PER_THREAD => {
            let context = driver.current(state)?;
            let key = (context.raw(), thread_number());
            if let Some(stream) = state.per_thread.get(&key) {
                return Ok(*stream);
            }
            let gone =
                std::mem::take(&mut *ENDED_THREADS.lock().unwrap_or_else(PoisonError::into_inner));
            let dead: Vec<_> = state
                .per_thread
                .iter()
                .filter(|((_, thread), _)| gone.contains(thread))
                .map(|(key, stream)| (*key, *stream))
                .collect();
            for (key, stream) in dead {
                state.per_thread.remove(&key);
                remove(driver, state, stream);
            }
            let stream = create(driver, state, context, FLAG_DEFAULT, 0, false)?;
            state.per_thread.insert(key, stream);
            Ok(stream)
        }
        _ => {
            let stream = state.streams.get(handle).ok_or(Error::INVALID_HANDLE)?;
            driver.check(state, stream.context)?;
            Ok(handle)
        }
    }
}

/// Submits a command to a stream without ordering it.
pub(crate) fn submit(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    command: Command,
    effect: Option<Effect>,
) {
    let token = effect.map(|effect| {
        state.tokens += 1;
        driver.effects.add(state.tokens, effect);
        Token(state.tokens)
    });
    state.stream_submitted[stream.index()] += 1;
    state.submitted += 1;
    driver.put(clock::now(), stream_slot(stream), token, command);
}

/// Makes `later` wait for everything in `earlier`.
fn follow(
    driver: &Driver,
    state: &mut State,
    earlier: Handle<Stream>,
    later: Handle<Stream>,
) -> Result {
    if is_empty(driver, state, earlier) {
        return Ok(());
    }
    let there = state.streams.get(earlier).ok_or(Error::INVALID_HANDLE)?;
    let (context, mut mark) = (there.context, there.mark);
    if mark.is_null() {
        mark = event::create(state, context, event::FLAG_DISABLE_TIMING)?;
        if let Some(stream) = state.streams.get_mut(earlier) {
            stream.mark = mark;
        }
    }
    let event = event_slot(mark);
    let number = event::next_record(state, mark);
    submit(
        driver,
        state,
        earlier,
        Command::Record { event, number },
        None,
    );
    submit(driver, state, later, Command::Wait { event }, None);
    Ok(())
}

/// Orders a stream before its next command: behind the legacy stream, or the legacy stream behind all others.
pub(crate) fn order(driver: &Driver, state: &mut State, handle: Handle<Stream>) -> Result {
    let stream = state.streams.get(handle).ok_or(Error::INVALID_HANDLE)?;
    let (context, is_legacy) = (stream.context, stream.is_legacy);
    if stream.flags & FLAG_NON_BLOCKING != 0 {
        return Ok(());
    }
    let there = state.contexts.get(context).ok_or(Error::INVALID_CONTEXT)?;
    let (legacy, legacy_commands) = (there.legacy, there.legacy_commands);
    if is_legacy {
        if graph::is_capturing_blocking(state, context) {
            graph::invalidate_all(state, context);
            return Err(Error::STREAM_CAPTURE_IMPLICIT);
        }
        let others = state
            .streams
            .handles(|stream| stream.context == context && stream.has_unordered_work);
        for other in others {
            if let Some(other) = state.streams.get_mut(other) {
                other.has_unordered_work = false;
            }
            follow(driver, state, other, handle)?;
        }
        if let Some(context) = state.contexts.get_mut(context) {
            context.legacy_commands += 1;
        }
        return Ok(());
    }
    if let Some(stream) = state.streams.get_mut(handle) {
        stream.has_unordered_work = true;
        if std::mem::replace(&mut stream.legacy_seen, legacy_commands) == legacy_commands {
            return Ok(());
        }
    }
    follow(driver, state, legacy, handle)
}

/// Submits work to a stream, or captures it as a node of a graph.
pub(crate) fn enqueue(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    work: Work,
) -> Result {
    if graph::capture_of(state, stream).is_some() {
        return graph::capture_work(state, stream, work);
    }
    order(driver, state, stream)?;
    let (command, effect) = work.split();
    submit(driver, state, stream, command, effect);
    Ok(())
}

/// Blocks until a stream is empty; fails if its context has had an error.
pub(crate) fn wait_empty(driver: &Driver, stream: Handle<Stream>) -> Result {
    let (target, context) = {
        let state = driver.state();
        let context = state
            .streams
            .get(stream)
            .ok_or(Error::INVALID_HANDLE)?
            .context;
        (target(&state, stream), context)
    };
    driver.wait(target)?;
    driver.check(&driver.state(), context)
}

fn create_handle(out: Out<Handle<Stream>>, flags: u32, priority: i32) -> Result {
    let driver = driver()?;
    if flags & !FLAG_NON_BLOCKING != 0 || out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.room(1)?;
    let context = driver.current(&state)?;
    out.put(create(driver, &mut state, context, flags, priority, false)?)
}

/// Implements `cuStreamCreate`: creates a stream of default priority.
pub(crate) fn create_plain(out: Out<Handle<Stream>>, flags: u32) -> Result {
    create_handle(out, flags, 0)
}

/// Implements `cuStreamCreateWithPriority`: creates a stream with a priority, clamped to the valid range.
pub(crate) fn create_with_priority(out: Out<Handle<Stream>>, flags: u32, priority: i32) -> Result {
    create_handle(out, flags, priority)
}

/// Implements `cuStreamDestroy_v2`: destroys a stream; its pending work still runs.
pub(crate) fn destroy(stream: Handle<Stream>) -> Result {
    let driver = driver()?;
    let mut state = driver.room(8)?;
    let there = state.streams.get(stream).ok_or(Error::INVALID_HANDLE)?;
    if there.is_legacy || state.per_thread.values().any(|own| *own == stream) {
        return Err(Error::INVALID_HANDLE);
    }
    graph::forget_stream(&mut state, stream);
    remove(driver, &mut state, stream);
    Ok(())
}

/// Implements `cuStreamSynchronize`: blocks until a stream is empty.
pub(crate) fn synchronise(stream: Handle<Stream>, default: DefaultStream) -> Result {
    let driver = driver()?;
    let (stream, others) = {
        let mut state = driver.room(1)?;
        let stream = resolve(driver, &mut state, stream, default)?;
        graph::refuse_captured(&mut state, stream)?;
        let there = state.streams.get(stream).ok_or(Error::INVALID_HANDLE)?;
        // The legacy stream follows all blocking streams.
        let others = if there.is_legacy {
            let context = there.context;
            if graph::is_capturing_blocking(&state, context) {
                graph::invalidate_all(&mut state, context);
                return Err(Error::STREAM_CAPTURE_IMPLICIT);
            }
            state
                .streams
                .handles(|stream| stream.context == context && stream.has_unordered_work)
        } else {
            Vec::new()
        };
        let others: Vec<_> = others
            .into_iter()
            .map(|other| target(&state, other))
            .collect();
        (stream, others)
    };
    for other in others {
        driver.wait(other)?;
    }
    wait_empty(driver, stream)
}

/// Implements `cuStreamQuery`: fails with `CUDA_ERROR_NOT_READY` until a stream is empty.
pub(crate) fn query(stream: Handle<Stream>, default: DefaultStream) -> Result {
    let driver = driver()?;
    let (target, context) = {
        let mut state = driver.room(1)?;
        let stream = resolve(driver, &mut state, stream, default)?;
        graph::refuse_captured(&mut state, stream)?;
        let context = state
            .streams
            .get(stream)
            .ok_or(Error::INVALID_HANDLE)?
            .context;
        (target(&state, stream), context)
    };
    if !driver.has_happened(target) {
        return Err(Error::NOT_READY);
    }
    driver.check(&driver.state(), context)
}

/// Implements `cuStreamWaitEvent`: makes a stream wait for an event.
pub(crate) fn wait_event(
    stream: Handle<Stream>,
    event: Handle<Event>,
    flags: u32,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    if flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = room(driver)?;
    let stream = resolve(driver, &mut state, stream, default)?;
    if flags == event::FLAG_EXTERNAL && graph::capture_of(&state, stream).is_some() {
        return graph::capture_wait(&mut state, stream, event);
    }
    event::wait_in_stream(driver, &mut state, stream, event)
}

/// Implements `cuLaunchHostFunc`: submits a host function to a stream.
pub(crate) fn launch_host(
    stream: Handle<Stream>,
    function: Option<HostFunction>,
    data: *mut c_void,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    let function = function.ok_or(Error::INVALID_VALUE)?;
    let mut state = room(driver)?;
    let stream = resolve(driver, &mut state, stream, default)?;
    let call = HostCall::Function(function, data.addr());
    enqueue(driver, &mut state, stream, Work::Host(call))
}

/// Implements `cuStreamAddCallback`: submits a callback, which also receives the status.
pub(crate) fn add_callback(
    stream: Handle<Stream>,
    function: Option<crate::work::Callback>,
    data: *mut c_void,
    flags: u32,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    let function = function.ok_or(Error::INVALID_VALUE)?;
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = room(driver)?;
    let given = stream;
    let stream = resolve(driver, &mut state, stream, default)?;
    if graph::capture_of(&state, stream).is_some() {
        graph::invalidate(&mut state, stream);
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let call = HostCall::Callback(function, given, data.addr());
    enqueue(driver, &mut state, stream, Work::Host(call))
}

fn with_stream<T>(
    stream: Handle<Stream>,
    default: DefaultStream,
    get: impl FnOnce(&Stream) -> T,
) -> Result<T> {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = resolve(driver, &mut state, stream, default)?;
    state
        .streams
        .get(stream)
        .map(get)
        .ok_or(Error::INVALID_HANDLE)
}

/// Implements `cuStreamGetFlags`: returns the flags of a stream.
pub(crate) fn get_flags(stream: Handle<Stream>, out: Out<u32>, default: DefaultStream) -> Result {
    out.put(with_stream(stream, default, |stream| stream.flags)?)
}

/// Implements `cuStreamGetPriority`: returns the priority of a stream.
pub(crate) fn get_priority(
    stream: Handle<Stream>,
    out: Out<i32>,
    default: DefaultStream,
) -> Result {
    out.put(with_stream(stream, default, |stream| stream.priority)?)
}

/// Implements `cuStreamGetId`: returns a stream's id, unique in the process.
pub(crate) fn get_id(stream: Handle<Stream>, out: Out<u64>, default: DefaultStream) -> Result {
    out.put(with_stream(stream, default, |stream| stream.id)?)
}

/// Implements `cuStreamGetCtx`: returns the context of a stream.
pub(crate) fn get_context(
    stream: Handle<Stream>,
    out: Out<Handle<Context>>,
    default: DefaultStream,
) -> Result {
    out.put(with_stream(stream, default, |stream| stream.context)?)
}

/// Implements `cuStreamGetCtx_v2`: the green context is always null.
pub(crate) fn get_context_v2(
    stream: Handle<Stream>,
    out: Out<Handle<Context>>,
    green: Out<u64>,
    default: DefaultStream,
) -> Result {
    green.put_if_wanted(0);
    get_context(stream, out, default)
}

/// Implements `cuStreamGetDevice`: returns the device of a stream.
pub(crate) fn get_device(stream: Handle<Stream>, out: Out<i32>, default: DefaultStream) -> Result {
    let context = with_stream(stream, default, |stream| stream.context)?;
    let driver = driver()?;
    let state = driver.state();
    let context = state
        .contexts
        .get(context)
        .ok_or(Error::CONTEXT_IS_DESTROYED)?;
    out.put(i32::try_from(context.device).unwrap_or(i32::MAX))
}
