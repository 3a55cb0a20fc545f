//! The GPUs or slices of a node at work, and the streams that feed them.
//!
//! Commands of a stream run one after the other, those of different streams side by side as far as SMs, copy engines
//! and links allow. Commands are handed over with the time from which they may run, and in the order of those times:
//! [`Machine::submit`] takes one for later, too. [`Machine::advance`] goes on in time and tells what has ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::Time;
use crate::compute::{Compute, Sharing};
use crate::ledger::{Entry, Ledger, ProcessId, WorkId};
use crate::memory::{Memory, MemoryError};
use crate::mig::LayoutError;
use crate::network::{LinkId, Network};
use crate::node::{Direction, Fabric, Gpu, Node, NodeError};
use crate::op::{Graph, Op};

/// A process wants a context.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessSettings {
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` in hundredths; without MPS, and where it is absent, all SMs.
    pub active_thread_percentage_hundredths: Option<u32>,
    /// Device memory at most, its context's residue included.
    pub memory_limit: Option<u64>,
}

/// A stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// An event, which streams record and wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u32);

/// Why a node or a process cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A GPU cannot be sliced so.
    #[error("GPU {gpu}: {error}")]
    Slices {
        /// Which, by its place in [`Node::gpus`].
        gpu: usize,
        /// Why.
        error: LayoutError,
    },
    /// A GPU has no slices.
    #[error("GPU {gpu}: a {part} cannot be sliced")]
    NoMig {
        /// Which, by its place in [`Node::gpus`].
        gpu: usize,
        /// What it is.
        part: String,
    },
    /// A switch or link names a GPU that the node has not.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// There is no such GPU or slice.
    #[error("there is no GPU or slice {0}")]
    NoUnit(u32),
    /// MPS takes no further process.
    #[error("{clients} processes are there already, and MPS takes no more")]
    TooManyClients {
        /// How many there are.
        clients: u32,
    },
    /// There is no memory for the context.
    #[error("no memory for a context: {0}")]
    Memory(#[from] MemoryError),
}

/// A command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which.
    pub command: u64,
    /// In which stream.
    pub stream: StreamId,
    /// When its turn in the stream came.
    pub started: Time,
    /// When it ended.
    pub ended: Time,
}

/// A GPU or slice.
#[derive(Debug)]
struct Unit {
    compute: Compute,
    memory: Memory,
    sms: u32,
    sm_unit: u32,
    mps: bool,
    clients_max: u32,
    clients: u32,
    residue: u64,
    /// By [`Direction`].
    engines: [Engine; 2],
    gpu: usize,
}

impl Unit {
    const fn engine(&mut self, direction: Direction) -> &mut Engine {
        &mut self.engines[direction as usize]
    }
}

/// Copies in one direction: so many at once, the others as they came.
#[derive(Debug)]
struct Engine {
    free: u32,
    waiting: VecDeque<(WorkId, ProcessId, u64, Vec<LinkId>)>,
}

#[derive(Debug)]
struct Stream {
    process: ProcessId,
    waiting: VecDeque<Command>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Command {
    id: u64,
    not_before: Time,
    op: Op,
    /// Of a record: its number among those of its event. Of a wait: that of the latest before it, for which it waits.
    record: Option<u64>,
}

#[derive(Debug)]
struct Current {
    id: u64,
    started: Time,
    /// For each piece of work of a graph that has not ended: how many before it have not.
    graph: Option<GraphRun>,
}

#[derive(Debug)]
struct GraphRun {
    graph: Arc<Graph>,
    open: Vec<usize>,
    left: usize,
}

#[derive(Debug, Default)]
struct Event {
    /// The number of the record that was submitted last.
    latest: Option<u64>,
    /// Those that have not happened.
    pending: BTreeSet<u64>,
}

impl Event {
    fn submit(&mut self) -> u64 {
        let record = self.latest.map_or(0, |latest| latest + 1);
        self.latest = Some(record);
        self.pending.insert(record);
        record
    }
}

/// Where a piece of work belongs: its stream, its place in a graph, and the engine it holds.
#[derive(Clone, Copy, Debug)]
struct Owner {
    stream: StreamId,
    node: usize,
    engine: Option<(u32, Direction)>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Machine {
    now: Time,
    units: Vec<Unit>,
    fabric: Fabric,
    network: Network,
    processes: BTreeMap<ProcessId, u32>,
    streams: BTreeMap<StreamId, Stream>,
    events: BTreeMap<EventId, Event>,
    works: BTreeMap<WorkId, Owner>,
    delays: BTreeMap<(Time, WorkId), ProcessId>,
    ledger: Ledger,
    /// SMs and links have to be shared out anew.
    changed: bool,
    next_id: u64,
    next_process: u32,
    next_stream: u32,
    next_event: u32,
}

impl Engine {
    const fn new(at_once: u32) -> Self {
        Self {
            free: at_once,
            waiting: VecDeque::new(),
        }
    }
}

impl Machine {
    /// A node at rest, at time zero. Its GPUs and slices have numbers in the order of [`Node::gpus`], the slices of one
    /// GPU in the order in which they lie.
    ///
    /// # Errors
    /// It cannot be made so.
    pub fn new(node: &Node) -> Result<Self, MachineError> {
        let mut network = Network::default();
        let mut machine = Self {
            now: Time::ZERO,
            units: Vec::new(),
            fabric: Fabric::new(node, &mut network)?,
            network,
            processes: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            works: BTreeMap::new(),
            delays: BTreeMap::new(),
            ledger: Ledger::default(),
            changed: false,
            next_id: 0,
            next_process: 0,
            next_stream: 0,
            next_event: 0,
        };
        for (at, gpu) in node.gpus.iter().enumerate() {
            machine.add_units(at, gpu)?;
        }
        Ok(machine)
    }

    fn add_units(&mut self, at: usize, gpu: &Gpu) -> Result<(), MachineError> {
        let part = &gpu.part;
        if gpu.slices.is_empty() {
            self.add_unit(at, gpu, part.sms, part.memory_bytes());
            return Ok(());
        }
        let mig = part.mig.as_ref().ok_or_else(|| MachineError::NoMig {
            gpu: at,
            part: part.name.clone(),
        })?;
        let wrong = |error| MachineError::Slices { gpu: at, error };
        let profiles = gpu
            .slices
            .iter()
            .map(|name| mig.profile(name))
            .collect::<Result<Vec<_>, _>>();
        let layout = mig.place(&profiles.map_err(wrong)?).map_err(wrong)?;
        for placement in layout {
            let profile = &mig.profiles[placement.profile];
            let part_of_whole = part.memory_bytes() / u64::from(mig.memory_slices)
                * u64::from(profile.memory_slices);
            let memory = profile
                .memory_mib
                .map_or(part_of_whole, |mib| mib * 1024 * 1024);
            self.add_unit(at, gpu, profile.sms, memory);
        }
        Ok(())
    }

    fn add_unit(&mut self, at: usize, gpu: &Gpu, sms: u32, memory: u64) {
        let engines = gpu.part.copy_engines_each_way;
        let number = u32::try_from(self.units.len()).unwrap_or(u32::MAX);
        let sharing = if gpu.mps {
            Sharing::SideBySide
        } else {
            Sharing::TimeSlices {
                slice: gpu.part.time_slice(),
                switch: gpu.part.switch(),
            }
        };
        self.units.push(Unit {
            compute: Compute::new(number, sms, gpu.part.sms, sharing),
            memory: Memory::new(number, memory),
            sms,
            sm_unit: gpu.part.sm_unit,
            mps: gpu.mps,
            clients_max: gpu.part.mps_clients,
            clients: 0,
            residue: gpu.part.residue_bytes(),
            engines: [Engine::new(engines), Engine::new(engines)],
            gpu: at,
        });
    }

    /// How many GPUs and slices there are.
    #[must_use]
    pub const fn units(&self) -> usize {
        self.units.len()
    }

    /// The memory of a GPU or slice.
    #[must_use]
    pub fn memory(&self, unit: u32) -> Option<&Memory> {
        self.units.get(unit as usize).map(|unit| &unit.memory)
    }

    /// How far the machine has come.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Who held what until now, as far as it was not told before. What is still held has a line that ends now, and will
    /// have another.
    #[must_use]
    pub fn take_ledger(&mut self) -> Vec<Entry> {
        for unit in &mut self.units {
            unit.compute.write_all(&mut self.ledger);
            unit.memory.write_all(self.now, &mut self.ledger);
        }
        self.network.write_all(&mut self.ledger);
        self.ledger.take()
    }

    /// A process makes a context on a GPU or slice.
    ///
    /// # Errors
    /// There is no room for it: nothing has changed.
    pub fn admit(
        &mut self,
        unit: u32,
        settings: &ProcessSettings,
    ) -> Result<ProcessId, MachineError> {
        let now = self.now;
        let process = ProcessId(self.next_process);
        let there = self
            .units
            .get_mut(unit as usize)
            .ok_or(MachineError::NoUnit(unit))?;
        if there.mps && there.clients >= there.clients_max {
            return Err(MachineError::TooManyClients {
                clients: there.clients,
            });
        }
        there
            .memory
            .admit(now, process, there.residue, settings.memory_limit)?;
        let percentage = settings
            .active_thread_percentage_hundredths
            .filter(|_| there.mps);
        let sms = percentage.map_or(there.sms, |percent| {
            crate::part::sms_of_percentage(there.sms, there.sm_unit, percent)
        });
        there.compute.admit(process, sms);
        there.clients += 1;
        self.next_process += 1;
        self.processes.insert(process, unit);
        Ok(process)
    }

    /// A process is gone: what it had submitted is dropped, what it held is free.
    pub fn dismiss(&mut self, process: ProcessId) {
        let Some(unit) = self.processes.remove(&process) else {
            return;
        };
        let now = self.now;
        let (gone, stay): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.streams)
            .into_iter()
            .partition(|(_, stream)| stream.process == process);
        self.streams = stay;
        // As after an error: who waits for what was dropped goes on.
        for command in gone.into_values().flat_map(|stream| stream.waiting) {
            if let Op::Record(event) = command.op {
                self.happen(event, command.record);
            }
        }
        let streams = &self.streams;
        let (kept, dropped): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.works)
            .into_iter()
            .partition(|(_, owner)| streams.contains_key(&owner.stream));
        self.works = kept;
        self.delays.retain(|_, of| *of != process);
        self.network.dismiss(process, &mut self.ledger);
        let there = &mut self.units[unit as usize];
        there.compute.dismiss(process, &mut self.ledger);
        there.memory.dismiss(now, process, &mut self.ledger);
        there.clients -= 1;
        // Those that were under way hold their engines no more; those that waited held none.
        let mut waited = BTreeSet::new();
        for there in &mut self.units {
            for engine in &mut there.engines {
                let its = engine.waiting.iter().filter(|(_, of, _, _)| *of == process);
                waited.extend(its.map(|(work, _, _, _)| *work));
                engine.waiting.retain(|(_, of, _, _)| *of != process);
            }
        }
        for (work, owner) in dropped {
            if !waited.contains(&work) {
                self.free_engine(owner.engine);
            }
        }
        self.changed = true;
        self.share();
    }

    /// A process takes device memory.
    ///
    /// # Errors
    /// There is none for it, or no such process.
    pub fn allocate(&mut self, process: ProcessId, bytes: u64) -> Result<(), MemoryError> {
        let now = self.now;
        let unit = self
            .processes
            .get(&process)
            .ok_or(MemoryError::NotHeld { held: 0 })?;
        self.units[*unit as usize]
            .memory
            .allocate(now, process, bytes, &mut self.ledger)
    }

    /// A process gives device memory back.
    ///
    /// # Errors
    /// It does not hold as much, or there is no such process.
    pub fn release(&mut self, process: ProcessId, bytes: u64) -> Result<(), MemoryError> {
        let now = self.now;
        let unit = self
            .processes
            .get(&process)
            .ok_or(MemoryError::NotHeld { held: 0 })?;
        self.units[*unit as usize]
            .memory
            .release(now, process, bytes, &mut self.ledger)
    }

    /// A new stream of a process; one of a process that is gone takes commands and runs none.
    pub fn stream(&mut self, process: ProcessId) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        if self.processes.contains_key(&process) {
            let stream = Stream {
                process,
                waiting: VecDeque::new(),
                current: None,
            };
            self.streams.insert(id, stream);
        }
        id
    }

    /// A new event, in which nothing is recorded.
    pub fn event(&mut self) -> EventId {
        let id = EventId(self.next_event);
        self.next_event += 1;
        self.events.insert(id, Event::default());
        id
    }

    /// Puts a command at the end of a stream, to run from `not_before` on. Returns its number. It starts with the next
    /// [`Machine::advance`].
    pub fn submit(&mut self, stream: StreamId, not_before: Time, op: Op) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        if let Some(stream) = self.streams.get_mut(&stream) {
            let record = match &op {
                Op::Record(event) => self.events.get_mut(event).map(Event::submit),
                Op::Wait(event) => self.events.get(event).and_then(|event| event.latest),
                _ => None,
            };
            stream.waiting.push_back(Command {
                id,
                not_before,
                op,
                record,
            });
        }
        id
    }

    /// When something happens next, if nothing more is submitted; `None`: never.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        let heads = self
            .streams
            .values()
            .filter(|stream| stream.current.is_none());
        let heads = heads.filter_map(|stream| stream.waiting.front());
        let heads = heads
            .filter(|command| self.may_pass(command))
            .map(|command| command.not_before.max(self.now));
        let units = self.units.iter().filter_map(|unit| unit.compute.next());
        let delays = self.delays.keys().next().map(|(at, _)| *at);
        heads
            .chain(units)
            .chain(self.network.next())
            .chain(delays)
            .min()
    }

    /// Goes on to `to`; what has ended by then is added to `done`, in the order of its time.
    pub fn advance(&mut self, to: Time, done: &mut Vec<Done>) {
        self.start_heads(done);
        while let Some(next) = self.next().filter(|next| *next <= to) {
            self.settle(next, done);
            self.start_heads(done);
        }
        self.settle(to, done);
    }

    /// Shares SMs and links out anew, once all that starts at this moment has started.
    fn share(&mut self) {
        if std::mem::take(&mut self.changed) {
            for unit in &mut self.units {
                unit.compute.share(&mut self.ledger);
            }
            self.network.share(&mut self.ledger);
        }
    }

    fn settle(&mut self, at: Time, done: &mut Vec<Done>) {
        self.now = self.now.max(at);
        let mut ended = Vec::new();
        for unit in &mut self.units {
            let compute = &mut unit.compute;
            self.changed |= compute.advance(self.now, &mut ended, &mut self.ledger);
        }
        self.network.advance(self.now, &mut ended, &mut self.ledger);
        while let Some((&(end, work), _)) = self.delays.first_key_value() {
            if end > self.now {
                break;
            }
            self.delays.pop_first();
            ended.push(work);
        }
        self.changed |= !ended.is_empty();
        for work in ended {
            self.end_work(work, done);
        }
    }

    /// Whether nothing but time keeps a command from its turn.
    fn may_pass(&self, command: &Command) -> bool {
        match &command.op {
            Op::Wait(event) => self.events.get(event).is_none_or(|event| {
                let is_pending = |record| event.pending.contains(&record);
                !command.record.is_some_and(is_pending)
            }),
            _ => true,
        }
    }

    /// Starts whatever may start now, until nothing more does: what takes no time may let others start.
    fn start_heads(&mut self, done: &mut Vec<Done>) {
        loop {
            let ready = |stream: &Stream| {
                let head = stream
                    .waiting
                    .front()
                    .filter(|_| stream.current.is_none())?;
                (head.not_before <= self.now && self.may_pass(head)).then_some(())
            };
            let ready: Vec<_> = self
                .streams
                .iter()
                .filter(|(_, stream)| ready(stream).is_some())
                .map(|(id, _)| *id)
                .collect();
            if ready.is_empty() {
                self.share();
                return;
            }
            for stream in ready {
                self.start_head(stream, done);
            }
        }
    }

    fn start_head(&mut self, id: StreamId, done: &mut Vec<Done>) {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let Some(command) = stream.waiting.pop_front() else {
            return;
        };
        let process = stream.process;
        let graph = match &command.op {
            Op::Graph(graph) => Some(GraphRun {
                graph: Arc::clone(graph),
                open: graph.nodes.iter().map(|(_, after)| after.len()).collect(),
                left: graph.nodes.len(),
            }),
            _ => None,
        };
        stream.current = Some(Current {
            id: command.id,
            started: now,
            graph,
        });
        match command.op {
            Op::Kernel(_) | Op::Copy { .. } | Op::Delay(_) => {
                self.start_work(id, process, 0, &command.op)
            }
            Op::Graph(graph) if graph.nodes.is_empty() => self.end_command(id, done),
            Op::Graph(graph) => {
                for (node, (op, after)) in graph.nodes.iter().enumerate() {
                    if after.is_empty() {
                        self.start_work(id, process, node, op);
                    }
                }
            }
            Op::Record(event) => {
                self.happen(event, command.record);
                self.end_command(id, done);
            }
            Op::Wait(_) => self.end_command(id, done),
        }
    }

    fn start_work(&mut self, stream: StreamId, process: ProcessId, node: usize, op: &Op) {
        let Some(&unit) = self.processes.get(&process) else {
            return;
        };
        let current = self
            .streams
            .get(&stream)
            .and_then(|stream| stream.current.as_ref());
        let Some(command) = current.map(|current| current.id) else {
            return;
        };
        let work = WorkId {
            command,
            node: u32::try_from(node).unwrap_or(u32::MAX),
        };
        self.changed = true;
        let engine = match op {
            Op::Copy { way, .. } => Some((unit, way.direction())),
            _ => None,
        };
        self.works.insert(
            work,
            Owner {
                stream,
                node,
                engine,
            },
        );
        match op {
            Op::Kernel(kernel) => {
                self.units[unit as usize]
                    .compute
                    .start(work, process, kernel);
            }
            Op::Copy { way, bytes } => {
                let gpu_of = |unit: u32| self.units.get(unit as usize).map(|unit| unit.gpu);
                let gpu = self.units[unit as usize].gpu;
                let links = self.fabric.links(gpu, *way, gpu_of);
                let engine = self.units[unit as usize].engine(way.direction());
                if engine.free == 0 {
                    engine.waiting.push_back((work, process, *bytes, links));
                } else {
                    engine.free -= 1;
                    self.network.start(work, process, *bytes, &links);
                }
            }
            Op::Delay(span) => {
                self.delays.insert((self.now.after(*span), work), process);
            }
            // No part of a graph.
            Op::Graph(_) | Op::Record(_) | Op::Wait(_) => {}
        }
    }

    fn free_engine(&mut self, engine: Option<(u32, Direction)>) {
        let Some((unit, direction)) = engine else {
            return;
        };
        let engine = self.units[unit as usize].engine(direction);
        match engine.waiting.pop_front() {
            Some((work, process, bytes, way)) => {
                self.network.start(work, process, bytes, &way);
            }
            None => engine.free += 1,
        }
    }

    fn end_work(&mut self, work: WorkId, done: &mut Vec<Done>) {
        let Some(owner) = self.works.remove(&work) else {
            return;
        };
        self.free_engine(owner.engine);
        let Some(stream) = self.streams.get_mut(&owner.stream) else {
            return;
        };
        let process = stream.process;
        let Some(run) = stream
            .current
            .as_mut()
            .and_then(|current| current.graph.as_mut())
        else {
            self.end_command(owner.stream, done);
            return;
        };
        run.left -= 1;
        let mut ready = Vec::new();
        for (node, (_, after)) in run.graph.nodes.iter().enumerate() {
            let times = after.iter().filter(|&&before| before == owner.node).count();
            if times > 0 {
                run.open[node] -= times;
                if run.open[node] == 0 {
                    ready.push(node);
                }
            }
        }
        let (graph, is_over) = (Arc::clone(&run.graph), run.left == 0);
        for node in ready {
            self.start_work(owner.stream, process, node, &graph.nodes[node].0);
        }
        if is_over {
            self.end_command(owner.stream, done);
        }
    }

    /// What was recorded has happened, or never will: nobody waits for it any more.
    fn happen(&mut self, event: EventId, record: Option<u64>) {
        if let (Some(event), Some(record)) = (self.events.get_mut(&event), record) {
            event.pending.remove(&record);
        }
    }

    fn end_command(&mut self, id: StreamId, done: &mut Vec<Done>) {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if let Some(current) = stream.current.take() {
            done.push(Done {
                command: current.id,
                stream: id,
                started: current.started,
                ended: now,
            });
        }
    }
}
