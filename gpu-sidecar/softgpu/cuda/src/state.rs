//! Objects of a process: contexts, streams, events, memory, modules, graphs. One lock protects all; a call holds it
//! while it looks things up, never while it waits.

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

/// Largest number of objects of a kind without a bound of its own.
const OBJECTS_MAX: usize = 1 << 20;

/// All objects of the process; see the [module](self).
pub(crate) struct State {
    pub(crate) contexts: Table<Context>,
    /// Primary context of each device, while it is retained.
    pub(crate) primaries: Vec<Option<Handle<Context>>>,
    pub(crate) primary_flags: Vec<u32>,
    /// Number of references to each device's primary context.
    pub(crate) retained: Vec<u32>,
    pub(crate) streams: Table<Stream>,
    /// For each stream slot, the number of commands ever put into it.
    pub(crate) stream_submitted: Vec<u64>,
    /// Destroyed streams that still have work: their context, and the condition under which they are empty.
    pub(crate) draining: Vec<(Handle<Context>, Awaited)>,
    pub(crate) events: Table<Event>,
    /// Number of event records so far.
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
    /// Number of commands put into streams so far; the server counts those that have ended.
    pub(crate) submitted: u64,
    /// Number of tokens so far.
    pub(crate) tokens: u64,
    /// Default streams by context and thread.
    pub(crate) per_thread: BTreeMap<(u64, u64), Handle<Stream>>,
    /// Last id for `cuStreamGetId`, `cuCtxGetId` and similar functions.
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
            draining: Vec::new(),
            events: Table::new(softgpu_wire::page::EVENTS),
            records: 0,
            memory: Memory::new(devices),
            modules: Table::new(OBJECTS_MAX),
            functions: Table::new(OBJECTS_MAX),
            libraries: Table::new(OBJECTS_MAX),
            kernels: Table::new(OBJECTS_MAX),
            graphs: Table::new(OBJECTS_MAX),
            execs: Table::new(OBJECTS_MAX),
            captures: Table::new(OBJECTS_MAX),
            pools: Table::new(OBJECTS_MAX),
            submitted: 0,
            tokens: 0,
            per_thread: BTreeMap::new(),
            ids: 0,
        }
    }

    /// Returns an id that no other object has.
    pub(crate) const fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }
}

/// Returns the slot of a stream in the memory shared with the server.
pub(crate) fn stream_slot(stream: Handle<Stream>) -> StreamSlot {
    StreamSlot(u32::try_from(stream.index()).unwrap_or(u32::MAX))
}

/// Returns the slot of an event in the memory shared with the server.
pub(crate) fn event_slot(event: Handle<Event>) -> EventSlot {
    EventSlot(u32::try_from(event.index()).unwrap_or(u32::MAX))
}
