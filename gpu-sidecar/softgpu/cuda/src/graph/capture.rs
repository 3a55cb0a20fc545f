//! Captures: what streams are told becomes nodes of a graph instead of running.
//!
//! A capture begins in one stream, its origin. A stream that waits for an event recorded in a capture becomes part of it;
//! when the capture ends in its origin, whatever other streams added must come before something there.

use std::cell::Cell;
use std::collections::HashMap;
use std::thread::ThreadId;

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pointer::Out;
use crate::state::State;
use crate::stream::{self, Default, Stream};
use crate::table::{Handle, Kind};
use crate::work::Work;

use super::build::{Behind, Edge};
use super::exchange::InOut;
use super::nodes::{self, Graph, Place, What};

/// Which calls a capture forbids to which threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Those that might get in its way, to all threads.
    Global,
    /// The same, to the thread that began it.
    Thread,
    /// None.
    Relaxed,
}

impl Mode {
    fn of(number: u32) -> Result<Self> {
        match number {
            0 => Ok(Self::Global),
            1 => Ok(Self::Thread),
            2 => Ok(Self::Relaxed),
            _ => Err(Error::INVALID_VALUE),
        }
    }
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

/// Whether a thread of one mode may not make a call because of a capture of another.
fn forbids(capture: Mode, is_own: bool, thread: Mode) -> bool {
    match thread {
        Mode::Global if !is_own => capture == Mode::Global,
        Mode::Global | Mode::Thread => is_own && capture != Mode::Relaxed,
        Mode::Relaxed => false,
    }
}

/// `CU_STREAM_CAPTURE_STATUS_…`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

/// A stream of a capture.
#[derive(Default)]
struct Member {
    /// Nodes that the next one waits for.
    last: Vec<usize>,
    /// The same, as the program was shown them.
    shown: Box<[Handle<Place>]>,
    shown_edges: Box<[Edge]>,
}

/// A capture under way.
pub(crate) struct Capture {
    origin: Handle<Stream>,
    thread: ThreadId,
    mode: Mode,
    graph: Handle<Graph>,
    /// The graph was the program's before.
    is_into_given: bool,
    is_broken: bool,
    id: u64,
    members: HashMap<Handle<Stream>, Member>,
}

impl Kind for Capture {
    const NUMBER: u64 = 10;
}

/// The capture that a stream is part of.
pub(crate) fn capture_of(state: &State, stream: Handle<Stream>) -> Option<Handle<Capture>> {
    let stream = state.streams.get(stream)?;
    (!stream.capture.is_null()).then_some(stream.capture)
}

/// The capture of a stream, if it is not broken.
fn active(state: &State, stream: Handle<Stream>) -> Result<Handle<Capture>> {
    let capture = capture_of(state, stream).ok_or(Error::ILLEGAL_STATE)?;
    match state.captures.get(capture) {
        Some(there) if !there.is_broken => Ok(capture),
        _ => Err(Error::STREAM_CAPTURE_INVALIDATED),
    }
}

/// The record of an event outside of the capture becomes a node.
pub(crate) fn capture_record(
    state: &mut State,
    stream: Handle<Stream>,
    event: Handle<Event>,
) -> Result {
    capture_node(state, stream, |_, _| Ok(What::Record(event)))
}

/// The wait for an event outside of the capture becomes a node.
pub(crate) fn capture_wait(
    state: &mut State,
    stream: Handle<Stream>,
    event: Handle<Event>,
) -> Result {
    capture_node(state, stream, |_, _| Ok(What::Wait(event)))
}

/// Adds a node behind all that a stream has so far; broken graphs break their capture.
pub(crate) fn capture_node(
    state: &mut State,
    stream: Handle<Stream>,
    what: impl FnOnce(&mut State, Handle<Graph>) -> Result<What>,
) -> Result {
    let capture = active(state, stream)?;
    let there = state
        .captures
        .get(capture)
        .ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    let graph = there.graph;
    let after = last_of(state, capture, stream);
    let added = what(state, graph).and_then(|what| nodes::add(state, graph, what, &after));
    let id = added.inspect_err(|_| invalidate_capture(state, capture))?;
    set_last(state, capture, stream, vec![id]);
    Ok(())
}

/// The nodes that the next one of a stream waits for, without those that the program has destroyed.
fn last_of(state: &State, capture: Handle<Capture>, stream: Handle<Stream>) -> Vec<usize> {
    let Some(there) = state.captures.get(capture) else {
        return Vec::new();
    };
    let graph = state.graphs.get(there.graph);
    let is_there = |id: &usize| graph.is_some_and(|graph| graph.nodes.contains_key(id));
    let last = there
        .members
        .get(&stream)
        .map_or(&[][..], |member| &member.last);
    last.iter().copied().filter(is_there).collect()
}

fn set_last(state: &mut State, capture: Handle<Capture>, stream: Handle<Stream>, last: Vec<usize>) {
    if let Some(there) = state.captures.get_mut(capture) {
        there.members.entry(stream).or_default().last = last;
    }
}

/// Work becomes a node.
pub(crate) fn capture_work(state: &mut State, stream: Handle<Stream>, work: Work) -> Result {
    capture_node(state, stream, |_, _| Ok(What::Work(work)))
}

/// An event is recorded in a captured stream.
pub(crate) fn record(state: &mut State, stream: Handle<Stream>, event: Handle<Event>) -> Result {
    let capture = active(state, stream)?;
    let last = last_of(state, capture, stream);
    let event = state.events.get_mut(event).ok_or(Error::INVALID_HANDLE)?;
    event.captured = Some((capture, last));
    Ok(())
}

fn is_legacy(state: &State, stream: Handle<Stream>) -> bool {
    let context = state.streams.get(stream).map(|stream| stream.context);
    let context = context.and_then(|context| state.contexts.get(context));
    context.is_some_and(|context| context.legacy == stream)
}

/// A stream waits for an event that was recorded in a capture: it becomes part of it.
pub(crate) fn join(
    state: &mut State,
    stream: Handle<Stream>,
    capture: Handle<Capture>,
    nodes: &[usize],
) -> Result {
    let own = capture_of(state, stream);
    let Some(there) = state.captures.get(capture) else {
        // That capture has ended.
        if own.is_some() {
            invalidate(state, stream);
            return Err(Error::STREAM_CAPTURE_ISOLATION);
        }
        return Err(Error::CAPTURED_EVENT);
    };
    if there.is_broken {
        return Err(Error::STREAM_CAPTURE_INVALIDATED);
    }
    match own {
        Some(own) if own == capture => {}
        Some(own) => {
            invalidate_capture(state, own);
            invalidate_capture(state, capture);
            return Err(Error::STREAM_CAPTURE_MERGE);
        }
        None if is_legacy(state, stream) => {
            invalidate_capture(state, capture);
            return Err(Error::STREAM_CAPTURE_IMPLICIT);
        }
        None => {
            if let Some(stream) = state.streams.get_mut(stream) {
                stream.capture = capture;
            }
        }
    }
    let mut last = last_of(state, capture, stream);
    for &node in nodes {
        if !last.contains(&node) {
            last.push(node);
        }
    }
    set_last(state, capture, stream, last);
    Ok(())
}

/// The capture of a stream is broken.
pub(crate) fn invalidate(state: &mut State, stream: Handle<Stream>) {
    if let Some(capture) = capture_of(state, stream) {
        invalidate_capture(state, capture);
    }
}

/// A capture is broken.
pub(crate) fn invalidate_capture(state: &mut State, capture: Handle<Capture>) {
    if let Some(capture) = state.captures.get_mut(capture) {
        capture.is_broken = true;
    }
}

/// The captures under way in which there is a stream of a context.
fn captures_in(
    state: &State,
    context: Handle<Context>,
    is_meant: impl Fn(&Stream) -> bool,
) -> Vec<Handle<Capture>> {
    let has_one = |capture: &Capture| {
        let mut streams = capture
            .members
            .keys()
            .filter_map(|stream| state.streams.get(*stream));
        !capture.is_broken && streams.any(|stream| stream.context == context && is_meant(stream))
    };
    state.captures.handles(has_one)
}

/// All captures of a context are broken.
pub(crate) fn invalidate_all(state: &mut State, context: Handle<Context>) {
    for capture in captures_in(state, context, |_| true) {
        invalidate_capture(state, capture);
    }
}

/// Whether a capture is under way that forbids waiting for the context.
pub(crate) fn is_capturing_globally(state: &State, context: Handle<Context>) -> bool {
    !captures_in(state, context, |_| true).is_empty()
}

/// Whether a blocking stream of the context is captured, so that the legacy stream cannot be used.
pub(crate) fn is_capturing_blocking(state: &State, context: Handle<Context>) -> bool {
    !captures_in(state, context, Stream::is_blocking).is_empty()
}

/// A captured stream cannot be waited for or asked.
pub(crate) fn refuse_captured(state: &mut State, stream: Handle<Stream>) -> Result {
    if capture_of(state, stream).is_none() {
        return Ok(());
    }
    active(state, stream)?;
    invalidate(state, stream);
    Err(Error::STREAM_CAPTURE_UNSUPPORTED)
}

/// Calls that could get in the way of a capture are refused while one is under way, by its mode and the thread's. The
/// capture may be of another context: which contexts a call waits for is not the program's to know.
pub(crate) fn refuse_while_capturing(state: &mut State, _context: Handle<Context>) -> Result {
    let mode = MODE.get();
    let thread = std::thread::current().id();
    let forbidding = state.captures.handles(|capture| {
        let is_under_way = !capture.is_broken && state.streams.get(capture.origin).is_some();
        is_under_way && forbids(capture.mode, capture.thread == thread, mode)
    });
    if forbidding.is_empty() {
        return Ok(());
    }
    for capture in forbidding {
        invalidate_capture(state, capture);
    }
    Err(Error::STREAM_CAPTURE_UNSUPPORTED)
}

/// A capture is over: its streams are free.
fn release(state: &mut State, capture: Handle<Capture>) -> Option<Capture> {
    let there = state.captures.remove(capture)?;
    for member in there.members.keys() {
        if let Some(stream) = state.streams.get_mut(*member) {
            stream.capture = Handle::NULL;
        }
    }
    Some(there)
}

/// What a capture that comes to nothing has made is gone.
fn discard(state: &mut State, capture: &Capture) {
    if !capture.is_into_given {
        nodes::destroy(state, capture.graph);
    }
}

/// A stream is destroyed: its capture is broken, or, if it began there, gone.
pub(crate) fn forget_stream(state: &mut State, stream: Handle<Stream>) {
    let Some(capture) = capture_of(state, stream) else {
        return;
    };
    let Some(there) = state.captures.get_mut(capture) else {
        return;
    };
    if there.origin != stream {
        there.is_broken = true;
        there.members.remove(&stream);
        return;
    }
    if let Some(there) = release(state, capture) {
        discard(state, &there);
    }
}

/// `cuThreadExchangeStreamCaptureMode`
pub(crate) fn exchange_mode(mode: InOut<u32>) -> Result {
    driver()?;
    let new = Mode::of(mode.get()?)?;
    mode.put(MODE.replace(new) as u32)
}

/// Where a capture puts its nodes: into a graph of the program, behind these.
struct Into {
    graph: Handle<Graph>,
    after: Vec<usize>,
}

fn begin_in(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    mode: Mode,
    into: Option<Into>,
    default: Default,
) -> Result {
    let stream = stream::resolve(driver, state, stream, default)?;
    if is_legacy(state, stream) {
        return Err(Error::STREAM_CAPTURE_UNSUPPORTED);
    }
    if capture_of(state, stream).is_some() {
        return Err(Error::ILLEGAL_STATE);
    }
    let is_into_given = into.is_some();
    let (graph, last) = match into {
        Some(into) => (into.graph, into.after),
        None => (nodes::create(state, None)?, Vec::new()),
    };
    let member = Member {
        last,
        ..Member::default()
    };
    let capture = Capture {
        origin: stream,
        thread: std::thread::current().id(),
        mode,
        graph,
        is_into_given,
        is_broken: false,
        id: state.next_id(),
        members: HashMap::from([(stream, member)]),
    };
    let capture = state.captures.insert(capture).ok_or(Error::OUT_OF_MEMORY)?;
    if let Some(stream) = state.streams.get_mut(stream) {
        stream.capture = capture;
    }
    Ok(())
}

/// `cuStreamBeginCapture_v2`, and `cuStreamBeginCapture`, whose mode is the global one.
pub(crate) fn begin(stream: Handle<Stream>, mode: u32, default: Default) -> Result {
    let driver = driver()?;
    let mode = Mode::of(mode)?;
    let mut state = driver.room(1)?;
    begin_in(driver, &mut state, stream, mode, None, default)
}

/// `cuStreamBeginCaptureToGraph`
pub(crate) fn begin_into(
    stream: Handle<Stream>,
    graph: Handle<Graph>,
    behind: Behind,
    mode: u32,
    default: Default,
) -> Result {
    let driver = driver()?;
    let mode = Mode::of(mode)?;
    let mut state = driver.room(1)?;
    state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
    let after = behind.ids(graph)?;
    begin_in(
        driver,
        &mut state,
        stream,
        mode,
        Some(Into { graph, after }),
        default,
    )
}

/// `cuStreamEndCapture`
pub(crate) fn end(stream: Handle<Stream>, out: Out<Handle<Graph>>, default: Default) -> Result {
    let driver = driver()?;
    if out.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.room(1)?;
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    let capture = capture_of(&state, stream).ok_or(Error::ILLEGAL_STATE)?;
    let there = state
        .captures
        .get(capture)
        .ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    if there.origin != stream {
        return Err(Error::STREAM_CAPTURE_UNMATCHED);
    }
    if there.mode != Mode::Relaxed && there.thread != std::thread::current().id() {
        return Err(Error::STREAM_CAPTURE_WRONG_THREAD);
    }
    let is_joined = is_joined(&state, capture, stream);
    let there = release(&mut state, capture).ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    let is_graph_there = state.graphs.get(there.graph).is_some();
    if there.is_broken || !is_joined || !is_graph_there {
        discard(&mut state, &there);
        out.put(Handle::NULL)?;
        let is_unjoined = is_graph_there && !there.is_broken;
        return Err(if is_unjoined {
            Error::STREAM_CAPTURE_UNJOINED
        } else {
            Error::STREAM_CAPTURE_INVALIDATED
        });
    }
    out.put(there.graph)
}

/// Whether all that other streams have added comes before what the origin has added last.
fn is_joined(state: &State, capture: Handle<Capture>, origin: Handle<Stream>) -> bool {
    let Some(there) = state.captures.get(capture) else {
        return false;
    };
    if there.members.len() == 1 {
        return true;
    }
    let Some(graph) = state.graphs.get(there.graph) else {
        return false;
    };
    let joined = graph.before_and(&last_of(state, capture, origin));
    let others = there.members.keys().filter(|stream| **stream != origin);
    others
        .flat_map(|stream| last_of(state, capture, *stream))
        .all(|node| joined.contains(&node))
}

/// A stream whose capture is asked for: not the legacy stream while it would have to wait for one.
fn asked(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    default: Default,
) -> Result<Handle<Stream>> {
    let stream = stream::resolve(driver, state, stream, default)?;
    let context = state
        .streams
        .get(stream)
        .ok_or(Error::INVALID_HANDLE)?
        .context;
    if is_legacy(state, stream) && is_capturing_blocking(state, context) {
        return Err(Error::STREAM_CAPTURE_IMPLICIT);
    }
    Ok(stream)
}

fn status(state: &State, stream: Handle<Stream>) -> Status {
    match active(state, stream) {
        Ok(_) => Status::Active,
        Err(Error::STREAM_CAPTURE_INVALIDATED) => Status::Invalidated,
        Err(_) => Status::None,
    }
}

/// `cuStreamIsCapturing`
pub(crate) fn is_capturing(stream: Handle<Stream>, out: Out<u32>, default: Default) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = asked(driver, &mut state, stream, default)?;
    out.put(status(&state, stream) as u32)
}

/// Where it is written what is known of a capture; all but the first may be null.
pub(crate) struct Info {
    pub(crate) status: Out<u32>,
    pub(crate) id: Out<u64>,
    pub(crate) graph: Out<Handle<Graph>>,
    pub(crate) last: Out<*const Handle<Place>>,
    pub(crate) edges: Option<Out<*const Edge>>,
    pub(crate) count: Out<usize>,
}

/// `cuStreamGetCaptureInfo_v2`, `cuStreamGetCaptureInfo_v3`. The list of nodes lives until the stream's nodes change and are
/// asked for again.
pub(crate) fn info(stream: Handle<Stream>, info: &Info, default: Default) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = asked(driver, &mut state, stream, default)?;
    let status = status(&state, stream);
    info.status.put(status as u32)?;
    if status != Status::Active {
        return Ok(());
    }
    let capture = active(&state, stream)?;
    let last = last_of(&state, capture, stream);
    let there = state
        .captures
        .get(capture)
        .ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    info.id.put_if_wanted(there.id);
    info.graph.put_if_wanted(there.graph);
    let graph = state.graphs.get(there.graph);
    let handles = graph.map_or_else(Vec::new, |graph| graph.handles(&last));
    let there = state
        .captures
        .get_mut(capture)
        .ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    let member = there.members.entry(stream).or_default();
    if *member.shown != *handles {
        member.shown_edges = vec![0; handles.len()].into();
        member.shown = handles.into();
    }
    info.last.put_if_wanted(member.shown.as_ptr());
    if let Some(edges) = info.edges {
        edges.put_if_wanted(member.shown_edges.as_ptr());
    }
    info.count.put_if_wanted(member.shown.len());
    Ok(())
}

/// `cuStreamGetCaptureInfo`
pub(crate) fn info_v1(
    stream: Handle<Stream>,
    status_out: Out<u32>,
    id: Out<u64>,
    default: Default,
) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = asked(driver, &mut state, stream, default)?;
    let status = status(&state, stream);
    status_out.put(status as u32)?;
    let capture = capture_of(&state, stream).filter(|_| status == Status::Active);
    let capture = capture.and_then(|capture| state.captures.get(capture));
    id.put_if_wanted(capture.map_or(0, |capture| capture.id));
    Ok(())
}

/// `cuStreamUpdateCaptureDependencies`, `cuStreamUpdateCaptureDependencies_v2`
pub(crate) fn update(
    stream: Handle<Stream>,
    behind: Behind,
    flags: u32,
    default: Default,
) -> Result {
    const SET: u32 = 1;
    let driver = driver()?;
    if flags & !SET != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.room(1)?;
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    let capture = active(&state, stream)?;
    let there = state
        .captures
        .get(capture)
        .ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    let given = behind.ids(there.graph)?;
    let mut last = if flags & SET != 0 {
        Vec::new()
    } else {
        last_of(&state, capture, stream)
    };
    for node in given {
        if !last.contains(&node) {
            last.push(node);
        }
    }
    set_last(&mut state, capture, stream, last);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_forbidden_by_the_modes_of_the_thread_and_of_the_capture() {
        use Mode::{Global, Relaxed, Thread};
        for (thread, own, others) in [
            (Global, [true, true, false], [true, false, false]),
            (Thread, [true, true, false], [false; 3]),
            (Relaxed, [false; 3], [false; 3]),
        ] {
            for (at, capture) in [Global, Thread, Relaxed].into_iter().enumerate() {
                assert_eq!(
                    forbids(capture, true, thread),
                    own[at],
                    "{thread:?} {capture:?}"
                );
                assert_eq!(
                    forbids(capture, false, thread),
                    others[at],
                    "{thread:?} {capture:?}"
                );
            }
        }
    }

    #[test]
    fn modes_have_the_interfaces_numbers() {
        for number in 0..3 {
            assert_eq!(Mode::of(number).unwrap() as u32, number);
        }
        assert_eq!(Mode::of(3), Err(Error::INVALID_VALUE));
    }
}
