//! What a process has made: contexts, streams, events, memory, modules, graphs. One lock for all, held for as long as a call
//! looks things up and never while it waits.

use std::collections::BTreeMap;

use softgpu_wire::page::Awaited;
use softgpu_wire::record::{EventSlot, StreamSlot};

use crate::context::Context;
use crate::event::Event;
use crate::graph::{Capture, Exec, Graph};
use crate::memory::Memory;
use crate::module::{Function, Kernel, Library, Module};
use crate::pool::Pool;
use crate::stream::Stream;
use crate::table::{Handle, Table};

/// Handles of a kind that has no bound of its own.
const MANY: usize = 1 << 20;

/// See the [module](self).
pub(crate) struct State {
    pub(crate) contexts: Table<Context>,
    /// The primary context of each device, while it is retained.
    pub(crate) primaries: Vec<Option<Handle<Context>>>,
    pub(crate) primary_flags: Vec<u32>,
    /// Of each device, how often its primary context is retained.
    pub(crate) retained: Vec<u32>,
    pub(crate) streams: Table<Stream>,
    /// Of each place for a stream, how many commands were put into it, since the beginning.
    pub(crate) stream_submitted: Vec<u64>,
    /// What to wait for until the streams that are gone are empty.
    pub(crate) left_behind: Vec<(Handle<Context>, Awaited)>,
    pub(crate) events: Table<Event>,
    /// Records of events so far.
    pub(crate) records: u64,
    pub(crate) memory: Memory,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) libraries: Table<Library>,
    pub(crate) kernels: Table<Kernel>,
    pub(crate) graphs: Table<Graph>,
    pub(crate) execs: Table<Exec>,
    pub(crate) captures: Table<Capture>,
    pub(crate) pools: Table<Pool>,
    /// Commands put into streams so far, of which the server counts how many have ended.
    pub(crate) submitted: u64,
    /// Tokens so far.
    pub(crate) tokens: u64,
    /// The streams of threads that use per-thread default streams.
    pub(crate) per_thread: BTreeMap<(u64, u64), Handle<Stream>>,
    /// Numbers for `cuStreamGetId`, `cuCtxGetId` and the like.
    pub(crate) ids: u64,
}

impl State {
    pub(crate) fn new(devices: usize) -> Self {
        Self {
            contexts: Table::new(softgpu_wire::page::CONTEXTS),
            primaries: vec![None; devices],
            primary_flags: vec![0; devices],
            retained: vec![0; devices],
            streams: Table::new(softgpu_wire::page::STREAMS),
            stream_submitted: Vec::new(),
            left_behind: Vec::new(),
            events: Table::new(softgpu_wire::page::EVENTS),
            records: 0,
            memory: Memory::new(devices),
            modules: Table::new(MANY),
            functions: Table::new(MANY),
            libraries: Table::new(MANY),
            kernels: Table::new(MANY),
            graphs: Table::new(MANY),
            execs: Table::new(MANY),
            captures: Table::new(MANY),
            pools: Table::new(MANY),
            submitted: 0,
            tokens: 0,
            per_thread: BTreeMap::new(),
            ids: 0,
        }
    }

    /// A number that no other thing has.
    pub(crate) const fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// The place of a stream in the memory shared with the server.
pub(crate) fn stream_slot(stream: Handle<Stream>) -> StreamSlot {
    StreamSlot(u32::try_from(stream.index()).unwrap_or(u32::MAX))
}

/// The place of an event in the memory shared with the server.
pub(crate) fn event_slot(event: Handle<Event>) -> EventSlot {
    EventSlot(u32::try_from(event.index()).unwrap_or(u32::MAX))
}
