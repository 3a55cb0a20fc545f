//! Stream capture: work submitted to a captured stream becomes nodes of a graph instead of running.
//!
//! A capture begins in one stream, its origin. A stream that waits for an event recorded in a capture joins it. When
//! the capture ends in its origin, every node of the other streams must precede a node of the origin.

use std::cell::Cell;
use std::collections::HashMap;
use std::thread::ThreadId;

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pointer::Out;
use crate::state::State;
use crate::stream::{self, DefaultStream, Stream};
use crate::table::{Handle, Kind};
use crate::work::Work;

use super::build::{Dependencies, Edge};
use super::exchange::InOut;
use super::nodes::{self, Graph, NodeAction, NodeRef};

/// Which calls a capture forbids, by thread (`CU_STREAM_CAPTURE_MODE_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Forbids potentially unsafe calls to all threads.
    Global,
    /// Forbids potentially unsafe calls to the thread that began the capture.
    Thread,
    /// Forbids no calls to any thread.
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

/// Returns whether a thread of one mode must not make an unsafe call because of a capture of another.
fn forbids(capture: Mode, is_own: bool, thread: Mode) -> bool {
    match thread {
        Mode::Global if !is_own => capture == Mode::Global,
        Mode::Global | Mode::Thread => is_own && capture != Mode::Relaxed,
        Mode::Relaxed => false,
    }
}

/// Status of a capture, numbered as `CUstreamCaptureStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    None = 0,
    Active = 1,
    Invalidated = 2,
}

/// A stream that takes part in a capture.
#[derive(Default)]
struct Member {
    /// Nodes that the next node of the captured stream waits for.
    last: Vec<usize>,
    /// Handles of these nodes in memory to which the program has a pointer.
    exported: Box<[Handle<NodeRef>]>,
    exported_edges: Box<[Edge]>,
}

/// A capture in progress.
pub(crate) struct Capture {
    origin: Handle<Stream>,
    thread: ThreadId,
    mode: Mode,
    graph: Handle<Graph>,
    /// Whether the program supplied the graph.
    is_into_given: bool,
    is_broken: bool,
    id: u64,
    members: HashMap<Handle<Stream>, Member>,
}

impl Kind for Capture {
    const NUMBER: u64 = 10;
}

/// Returns the capture in which a stream takes part.
pub(crate) fn capture_of(state: &State, stream: Handle<Stream>) -> Option<Handle<Capture>> {
    let stream = state.streams.get(stream)?;
    (!stream.capture.is_null()).then_some(stream.capture)
}

/// Returns the capture of a stream; fails if there is none or it is invalidated.
fn active(state: &State, stream: Handle<Stream>) -> Result<Handle<Capture>> {
    let capture = capture_of(state, stream).ok_or(Error::ILLEGAL_STATE)?;
    match state.captures.get(capture) {
        Some(there) if !there.is_broken => Ok(capture),
        _ => Err(Error::STREAM_CAPTURE_INVALIDATED),
    }
}

/// Captures the record of an external event as a node.
pub(crate) fn capture_record(
    state: &mut State,
    stream: Handle<Stream>,
    event: Handle<Event>,
) -> Result {
    capture_node(state, stream, |_, _| Ok(NodeAction::Record(event)))
}

/// Captures the wait for an external event as a node.
pub(crate) fn capture_wait(
    state: &mut State,
    stream: Handle<Stream>,
    event: Handle<Event>,
) -> Result {
    capture_node(state, stream, |_, _| Ok(NodeAction::Wait(event)))
}

/// Adds a node behind the stream's last ones; a failure invalidates the capture.
pub(crate) fn capture_node(
    state: &mut State,
    stream: Handle<Stream>,
    action: impl FnOnce(&mut State, Handle<Graph>) -> Result<NodeAction>,
) -> Result {
    let capture = active(state, stream)?;
    let there = state
        .captures
        .get(capture)
        .ok_or(Error::STREAM_CAPTURE_INVALIDATED)?;
    let graph = there.graph;
    let after = last_of(state, capture, stream);
    let added = action(state, graph).and_then(|action| nodes::add(state, graph, action, &after));
    let id = added.inspect_err(|_| invalidate_capture(state, capture))?;
    set_last(state, capture, stream, vec![id]);
    Ok(())
}

/// Returns the nodes that a stream's next node waits for, without those the program has destroyed.
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

/// Captures work as a node.
pub(crate) fn capture_work(state: &mut State, stream: Handle<Stream>, work: Work) -> Result {
    capture_node(state, stream, |_, _| Ok(NodeAction::Work(work)))
}

/// Records an event in a captured stream: the event then marks the stream's last nodes.
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

/// Makes a stream wait for an event recorded in a capture; the stream joins that capture.
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

/// Invalidates the capture of a stream.
pub(crate) fn invalidate(state: &mut State, stream: Handle<Stream>) {
    if let Some(capture) = capture_of(state, stream) {
        invalidate_capture(state, capture);
    }
}

/// Invalidates a capture, which then fails when it ends.
pub(crate) fn invalidate_capture(state: &mut State, capture: Handle<Capture>) {
    if let Some(capture) = state.captures.get_mut(capture) {
        capture.is_broken = true;
    }
}

/// Returns the valid captures in which a stream of a context takes part.
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

/// Invalidates all captures of a context.
pub(crate) fn invalidate_all(state: &mut State, context: Handle<Context>) {
    for capture in captures_in(state, context, |_| true) {
        invalidate_capture(state, capture);
    }
}

/// Returns whether a capture in progress forbids waiting for the context.
pub(crate) fn is_capturing_globally(state: &State, context: Handle<Context>) -> bool {
    !captures_in(state, context, |_| true).is_empty()
}

/// Returns whether a blocking stream of the context is captured, so that the legacy stream cannot be used.
pub(crate) fn is_capturing_blocking(state: &State, context: Handle<Context>) -> bool {
    !captures_in(state, context, Stream::is_blocking).is_empty()
}

/// Fails and invalidates the capture if a stream is captured: such a stream cannot be awaited or queried.
pub(crate) fn refuse_captured(state: &mut State, stream: Handle<Stream>) -> Result {
    if capture_of(state, stream).is_none() {
        return Ok(());
    }
    active(state, stream)?;
    invalidate(state, stream);
    Err(Error::STREAM_CAPTURE_UNSUPPORTED)
}

/// Fails and invalidates the forbidding captures if the modes of any capture and of this thread forbid unsafe calls.
/// Captures of other contexts count too: the program cannot know which contexts a call waits for.
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

/// Removes a capture and releases its streams.
fn release(state: &mut State, capture: Handle<Capture>) -> Option<Capture> {
    let there = state.captures.remove(capture)?;
    for member in there.members.keys() {
        if let Some(stream) = state.streams.get_mut(*member) {
            stream.capture = Handle::NULL;
        }
    }
    Some(there)
}

/// Destroys the graph of a failed capture, unless the program supplied it.
fn discard(state: &mut State, capture: &Capture) {
    if !capture.is_into_given {
        nodes::destroy(state, capture.graph);
    }
}

/// Handles the destruction of a stream: invalidates its capture, or removes it if the stream is its origin.
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

/// Implements `cuThreadExchangeStreamCaptureMode`: sets the thread's mode and returns the previous one.
pub(crate) fn exchange_mode(mode: InOut<u32>) -> Result {
    driver()?;
    let new = Mode::of(mode.get()?)?;
    mode.put(MODE.replace(new) as u32)
}

/// Graph of the program into which a capture adds its nodes, and the dependencies of the first ones.
struct Destination {
    graph: Handle<Graph>,
    after: Vec<usize>,
}

fn begin_in(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    mode: Mode,
    into: Option<Destination>,
    default: DefaultStream,
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

/// Implements `cuStreamBeginCapture_v2`, and `cuStreamBeginCapture` with the global mode.
pub(crate) fn begin(stream: Handle<Stream>, mode: u32, default: DefaultStream) -> Result {
    let driver = driver()?;
    let mode = Mode::of(mode)?;
    let mut state = driver.room(1)?;
    begin_in(driver, &mut state, stream, mode, None, default)
}

/// Implements `cuStreamBeginCaptureToGraph`: begins a capture into an existing graph.
pub(crate) fn begin_into(
    stream: Handle<Stream>,
    graph: Handle<Graph>,
    dependencies: Dependencies,
    mode: u32,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    let mode = Mode::of(mode)?;
    let mut state = driver.room(1)?;
    state.graphs.get(graph).ok_or(Error::INVALID_VALUE)?;
    let after = dependencies.ids(graph)?;
    begin_in(
        driver,
        &mut state,
        stream,
        mode,
        Some(Destination { graph, after }),
        default,
    )
}

/// Implements `cuStreamEndCapture`: ends a capture and returns its graph.
pub(crate) fn end(
    stream: Handle<Stream>,
    out: Out<Handle<Graph>>,
    default: DefaultStream,
) -> Result {
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

/// Returns whether the last nodes of all other streams precede the origin's last nodes.
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

/// Resolves a stream for a query of its capture; fails for the legacy stream while it would have to wait for a captured
/// stream.
fn resolve_queried(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    default: DefaultStream,
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

/// Implements `cuStreamIsCapturing`: returns the status of a stream's capture.
pub(crate) fn is_capturing(
    stream: Handle<Stream>,
    out: Out<u32>,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = resolve_queried(driver, &mut state, stream, default)?;
    out.put(status(&state, stream) as u32)
}

/// Destinations of a capture's properties; all but the first may be null.
pub(crate) struct Info {
    pub(crate) status: Out<u32>,
    pub(crate) id: Out<u64>,
    pub(crate) graph: Out<Handle<Graph>>,
    pub(crate) last: Out<*const Handle<NodeRef>>,
    pub(crate) edges: Option<Out<*const Edge>>,
    pub(crate) count: Out<usize>,
}

/// Implements `cuStreamGetCaptureInfo_v2` and `cuStreamGetCaptureInfo_v3`. The list of nodes remains valid until the
/// stream's nodes change and are queried again.
pub(crate) fn info(stream: Handle<Stream>, info: &Info, default: DefaultStream) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = resolve_queried(driver, &mut state, stream, default)?;
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
    if *member.exported != *handles {
        member.exported_edges = vec![0; handles.len()].into();
        member.exported = handles.into();
    }
    info.last.put_if_wanted(member.exported.as_ptr());
    if let Some(edges) = info.edges {
        edges.put_if_wanted(member.exported_edges.as_ptr());
    }
    info.count.put_if_wanted(member.exported.len());
    Ok(())
}

/// Implements `cuStreamGetCaptureInfo`: returns the status and the id of a stream's capture.
pub(crate) fn info_v1(
    stream: Handle<Stream>,
    status_out: Out<u32>,
    id: Out<u64>,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    let stream = resolve_queried(driver, &mut state, stream, default)?;
    let status = status(&state, stream);
    status_out.put(status as u32)?;
    let capture = capture_of(&state, stream).filter(|_| status == Status::Active);
    let capture = capture.and_then(|capture| state.captures.get(capture));
    id.put_if_wanted(capture.map_or(0, |capture| capture.id));
    Ok(())
}

/// Implements `cuStreamUpdateCaptureDependencies` and `cuStreamUpdateCaptureDependencies_v2`: adds to or replaces the
/// nodes that the stream's next node waits for.
pub(crate) fn update(
    stream: Handle<Stream>,
    dependencies: Dependencies,
    flags: u32,
    default: DefaultStream,
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
    let given = dependencies.ids(there.graph)?;
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
    fn the_modes_of_thread_and_capture_decide_whether_a_call_is_forbidden() {
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
