//! Graphs: captured from streams or built by hand, instantiated, launched.

use std::sync::Arc;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::state::State;
use crate::stream::Stream;
use crate::table::{Handle, Kind};
use crate::work::{HostCall, Work};

/// A capture under way.
pub(crate) struct Capture;
impl Kind for Capture {
    const NUMBER: u64 = 10;
}
/// A graph.
pub(crate) struct Graph;
impl Kind for Graph {
    const NUMBER: u64 = 8;
}
/// A graph that can be launched.
pub(crate) struct Exec;
impl Kind for Exec {
    const NUMBER: u64 = 9;
}
/// What a launch of a graph does to memory, in an order in which it may be done.
pub(crate) struct Program {
    works: Vec<Work>,
}
impl Program {
    /// What the nodes do, each behind those that it waits for.
    pub(crate) fn works(&self) -> impl Iterator<Item = &Work> {
        self.works.iter()
    }
    /// The function of the host at a node.
    pub(crate) fn host_call(&self, node: u32) -> Option<HostCall> {
        match self.works.get(node as usize) {
            Some(Work::Host(call)) => Some(*call),
            _ => None,
        }
    }
}

/// The capture that a stream is part of.
pub(crate) fn capture_of(state: &State, stream: Handle<Stream>) -> Option<Handle<Capture>> {
    state
        .streams
        .get(stream)
        .map(|stream| stream.capture)
        .filter(|capture| !capture.is_null())
}
/// Work becomes a node.
pub(crate) fn capture_work(_state: &mut State, _stream: Handle<Stream>, _work: Work) -> Result {
    Err(Error::NOT_SUPPORTED)
}
/// An event is recorded in a captured stream.
pub(crate) fn record(_state: &mut State, _stream: Handle<Stream>, _event: Handle<Event>) -> Result {
    Err(Error::NOT_SUPPORTED)
}
/// A stream waits for an event that was recorded in a capture: it becomes part of it.
pub(crate) fn join(
    _state: &mut State,
    _stream: Handle<Stream>,
    _capture: Handle<Capture>,
    _nodes: &[usize],
) -> Result {
    Err(Error::NOT_SUPPORTED)
}
/// The capture of a stream is broken.
pub(crate) fn invalidate(_state: &mut State, _stream: Handle<Stream>) {}
/// A capture is broken.
pub(crate) fn invalidate_capture(_state: &mut State, _capture: Handle<Capture>) {}
/// All captures of a context are broken.
pub(crate) fn invalidate_all(_state: &mut State, _context: Handle<Context>) {}
/// Whether a capture is under way that forbids waiting for the context.
pub(crate) fn is_capturing_globally(_state: &State, _context: Handle<Context>) -> bool {
    false
}
/// Whether a blocking stream of the context is captured, so that the legacy stream cannot be used.
pub(crate) fn is_capturing_blocking(_state: &State, _context: Handle<Context>) -> bool {
    false
}
/// A captured stream cannot be waited for or asked.
pub(crate) fn refuse_captured(_state: &mut State, _stream: Handle<Stream>) -> Result {
    Ok(())
}
/// Calls that could get in the way of a capture are refused while one is under way, by its mode and the thread's.
pub(crate) fn refuse_while_capturing(_state: &mut State, _context: Handle<Context>) -> Result {
    Ok(())
}
/// A stream is destroyed: its capture is broken.
pub(crate) fn forget_stream(_state: &mut State, _stream: Handle<Stream>) {}

/// Keeps the compiler from warning of a program that is never made.
pub(crate) fn empty() -> Arc<Program> {
    Arc::new(Program { works: Vec::new() })
}
