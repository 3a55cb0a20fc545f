//! Streams, and what keeps them in order: the default stream that waits for all others, and for which all others wait.

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

/// No flag.
pub(crate) const FLAG_DEFAULT: u32 = 0;
/// The stream neither waits for the default stream nor the other way round.
const FLAG_NON_BLOCKING: u32 = 1;
/// The lowest priority.
pub(crate) const PRIORITY_LEAST: i32 = 0;
/// The highest.
pub(crate) const PRIORITY_GREATEST: i32 = -5;

/// Which stream the null handle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Default {
    /// The one that waits for all others.
    Legacy,
    /// One of the calling thread.
    PerThread,
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: Handle<Context>,
    flags: u32,
    priority: i32,
    id: u64,
    is_legacy: bool,
    /// Something was put into it since the legacy stream waited for it.
    has_news: bool,
    /// How many commands of the legacy stream it has waited for.
    legacy_seen: u64,
    /// Recorded in it for others to wait for.
    mark: Handle<Event>,
    pub(crate) capture: Handle<graph::Capture>,
}

impl Kind for Stream {
    const NUMBER: u64 = 2;
}

impl Stream {
    /// Whether the legacy stream and this one wait for each other.
    pub(crate) const fn is_blocking(&self) -> bool {
        self.flags & FLAG_NON_BLOCKING == 0
    }
}

/// The handle of the legacy default stream.
const LEGACY: u64 = 1;
/// The handle of the per-thread default stream.
const PER_THREAD: u64 = 2;

/// Threads that have ended.
static GONE: Mutex<Vec<u64>> = Mutex::new(Vec::new());

struct ThreadNumber(Cell<u64>);

impl Drop for ThreadNumber {
    fn drop(&mut self) {
        let mut gone = GONE.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Makes a stream. There must be room for a command.
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
        has_news: false,
        legacy_seen: 0,
        mark: Handle::NULL,
        capture: Handle::NULL,
    };
    let submitted = &state.stream_submitted;
    // A place whose last stream still has work is not given to another.
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

/// A stream goes; what is in it still runs, and is waited for as before. There must be room for some commands.
fn remove(driver: &Driver, state: &mut State, handle: Handle<Stream>) {
    if !is_empty(driver, state, handle) {
        let there = state.streams.get(handle);
        let there = there.map(|stream| (stream.context, stream.is_legacy, stream.has_news));
        if let Some((context, false, has_news)) = there {
            let left = (context, target(state, handle));
            state
                .left_behind
                .retain(|(_, target)| !driver.is_there(*target));
            state.left_behind.push(left);
            let legacy = state.contexts.get(context).map(|context| context.legacy);
            if let Some(legacy) = legacy.filter(|_| has_news) {
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

/// A context is gone, and its streams with it.
pub(crate) fn forget_context(driver: &Driver, state: &mut State, context: Handle<Context>) {
    for stream in state.streams.handles(|stream| stream.context == context) {
        graph::forget_stream(state, stream);
        remove(driver, state, stream);
    }
    state.per_thread.retain(|(of, _), _| *of != context.raw());
}

/// What to wait for until all streams of a context are empty.
pub(crate) fn targets(state: &State, context: Handle<Context>) -> Vec<Awaited> {
    let streams = state.streams.iter();
    let left_behind = state.left_behind.iter();
    streams
        .filter(|(_, stream)| stream.context == context)
        .map(|(handle, _)| target(state, handle))
        .chain(
            left_behind
                .filter(|(of, _)| *of == context)
                .map(|(_, target)| *target),
        )
        .collect()
}

/// What to wait for until a stream is empty.
pub(crate) fn target(state: &State, stream: Handle<Stream>) -> Awaited {
    Awaited::Stream(stream_slot(stream), state.stream_submitted[stream.index()])
}

fn is_empty(driver: &Driver, state: &State, stream: Handle<Stream>) -> bool {
    driver.page.stream_done(stream_slot(stream)) >= state.stream_submitted[stream.index()]
}

/// What is made room for before a call; a process with more streams than that puts the rest in as there is room.
const ROOM_MAX: u64 = 512;

/// The state with room for whatever one call may put into streams.
pub(crate) fn room(driver: &Driver) -> Result<std::sync::MutexGuard<'_, State>> {
    // Before a command of the legacy stream, two for each other stream.
    let streams = driver.state().stream_submitted.len() as u64;
    driver.room((2 * streams + 16).min(ROOM_MAX))
}

/// The stream that a handle means.
pub(crate) fn resolve(
    driver: &Driver,
    state: &mut State,
    handle: Handle<Stream>,
    default: Default,
) -> Result<Handle<Stream>> {
    let raw = match (handle.raw(), default) {
        (0, Default::Legacy) => LEGACY,
        (0, Default::PerThread) => PER_THREAD,
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
            let gone = std::mem::take(&mut *GONE.lock().unwrap_or_else(PoisonError::into_inner));
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

/// Puts a command into a stream as it is.
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

/// Lets `later` wait for all that is in `earlier`.
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

/// Before a command: the stream waits for the legacy stream, or that one for all others.
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
            .handles(|stream| stream.context == context && stream.has_news);
        for other in others {
            if let Some(other) = state.streams.get_mut(other) {
                other.has_news = false;
            }
            follow(driver, state, other, handle)?;
        }
        if let Some(context) = state.contexts.get_mut(context) {
            context.legacy_commands += 1;
        }
        return Ok(());
    }
    if let Some(stream) = state.streams.get_mut(handle) {
        stream.has_news = true;
        if std::mem::replace(&mut stream.legacy_seen, legacy_commands) == legacy_commands {
            return Ok(());
        }
    }
    follow(driver, state, legacy, handle)
}

/// Gives a stream something to do: now, or, while it is captured, as a node of a graph.
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

/// Waits until a stream is empty; `Ok` only if nothing went wrong in its context.
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

/// `cuStreamCreate`.
pub(crate) fn create_plain(out: Out<Handle<Stream>>, flags: u32) -> Result {
    create_handle(out, flags, 0)
}

/// `cuStreamCreateWithPriority`.
pub(crate) fn create_with_priority(out: Out<Handle<Stream>>, flags: u32, priority: i32) -> Result {
    create_handle(out, flags, priority)
}

/// `cuStreamDestroy_v2`.
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

/// `cuStreamSynchronize`.
pub(crate) fn synchronise(stream: Handle<Stream>, default: Default) -> Result {
    let driver = driver()?;
    let (stream, others) = {
        let mut state = driver.room(1)?;
        let stream = resolve(driver, &mut state, stream, default)?;
        graph::refuse_captured(&mut state, stream)?;
        let there = state.streams.get(stream).ok_or(Error::INVALID_HANDLE)?;
        // Whatever blocking streams do, the legacy stream comes behind it.
        let others = if there.is_legacy {
            let context = there.context;
            if graph::is_capturing_blocking(&state, context) {
                graph::invalidate_all(&mut state, context);
                return Err(Error::STREAM_CAPTURE_IMPLICIT);
            }
            state
                .streams
                .handles(|stream| stream.context == context && stream.has_news)
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

/// `cuStreamQuery`.
pub(crate) fn query(stream: Handle<Stream>, default: Default) -> Result {
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

/// `cuStreamWaitEvent`.
pub(crate) fn wait_event(
    stream: Handle<Stream>,
    event: Handle<Event>,
    flags: u32,
    default: Default,
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

/// `cuLaunchHostFunc`.
pub(crate) fn launch_host(
    stream: Handle<Stream>,
    function: Option<HostFunction>,
    data: *mut c_void,
    default: Default,
) -> Result {
    let driver = driver()?;
    let function = function.ok_or(Error::INVALID_VALUE)?;
    let mut state = room(driver)?;
    let stream = resolve(driver, &mut state, stream, default)?;
    let call = HostCall::Function(function, data.addr());
    enqueue(driver, &mut state, stream, Work::Host(call))
}

/// `cuStreamAddCallback`.
pub(crate) fn add_callback(
    stream: Handle<Stream>,
    function: Option<crate::work::Callback>,
    data: *mut c_void,
    flags: u32,
    default: Default,
) -> Result {
    let driver = driver()?;
    let function = function.ok_or(Error::INVALID_VALUE)?;
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = room(driver)?;
    let asked = stream;
    let stream = resolve(driver, &mut state, stream, default)?;
    if graph::capture_of(&state, stream).is_some() {
        graph::invalidate(&mut state, stream);
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    let call = HostCall::Callback(function, asked, data.addr());
    enqueue(driver, &mut state, stream, Work::Host(call))
}

fn looked_up<T>(
    stream: Handle<Stream>,
    default: Default,
    what: impl FnOnce(&Stream) -> T,
) -> Result<T> {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = resolve(driver, &mut state, stream, default)?;
    state
        .streams
        .get(stream)
        .map(what)
        .ok_or(Error::INVALID_HANDLE)
}

/// `cuStreamGetFlags`.
pub(crate) fn get_flags(stream: Handle<Stream>, out: Out<u32>, default: Default) -> Result {
    out.put(looked_up(stream, default, |stream| stream.flags)?)
}

/// `cuStreamGetPriority`.
pub(crate) fn get_priority(stream: Handle<Stream>, out: Out<i32>, default: Default) -> Result {
    out.put(looked_up(stream, default, |stream| stream.priority)?)
}

/// `cuStreamGetId`.
pub(crate) fn get_id(stream: Handle<Stream>, out: Out<u64>, default: Default) -> Result {
    out.put(looked_up(stream, default, |stream| stream.id)?)
}

/// `cuStreamGetCtx`.
pub(crate) fn get_context(
    stream: Handle<Stream>,
    out: Out<Handle<Context>>,
    default: Default,
) -> Result {
    out.put(looked_up(stream, default, |stream| stream.context)?)
}

/// `cuStreamGetCtx_v2`: no stream here is one of a green context.
pub(crate) fn get_context_v2(
    stream: Handle<Stream>,
    out: Out<Handle<Context>>,
    green: Out<u64>,
    default: Default,
) -> Result {
    green.put_if_wanted(0);
    get_context(stream, out, default)
}

/// `cuStreamGetDevice`.
pub(crate) fn get_device(stream: Handle<Stream>, out: Out<i32>, default: Default) -> Result {
    let context = looked_up(stream, default, |stream| stream.context)?;
    let driver = driver()?;
    let state = driver.state();
    let context = state
        .contexts
        .get(context)
        .ok_or(Error::CONTEXT_IS_DESTROYED)?;
    out.put(i32::try_from(context.device).unwrap_or(i32::MAX))
}
