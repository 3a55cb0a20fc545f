//! The GPUs or slices of a node in operation, and the streams of commands that feed them.
//!
//! Commands of one stream run in order; commands of different streams run concurrently as far as SMs, copy engines and links
//! allow. Each command is submitted with the earliest time at which it may run, in the order of these times; [`Machine::submit`]
//! also accepts times in the future. [`Machine::advance`] advances the time and returns what has ended. Commands that become
//! ready at the same instant start in the order of their submission.
//!
//! The cost of a step depends only on what it touches: idle streams, processes, events, GPUs and links cost nothing.

mod error;
mod process;
mod queue;
mod work;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

pub use self::error::{MachineError, SubmitError, SuspendError};
use self::process::Process;
use self::queue::{Events, Heads};
use self::work::{Command, Stream};
use crate::agenda::Agenda;
pub use crate::compute::MpsServer;
use crate::ids::{IdMap, Slab};
use crate::ledger::{Entry, Job, Ledger, ProcessId, WorkId};
use crate::memory::Memory;
use crate::network::{Network, Route};
use crate::node::{Fabric, Node, Scale};
use crate::op::Op;
use crate::unit::Unit;
pub use crate::unit::{SliceInfo, UnitInfo};
use crate::{Span, Time, unit};

/// Largest number of waiting commands of which `Machine::earliest_end_of` adds up the spans.
const COUNTED_MAX: usize = 64;

/// Settings of a process that creates a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSettings {
    /// MPS server of which the process is a client; `None` for time slices of its own.
    pub mps: Option<MpsServer>,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` in hundredths; all SMs if `None` or without MPS.
    pub active_thread_percentage_hundredths: Option<u32>,
    /// Limit of the process's device memory in bytes, its context's residue included; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Whether the process has no context: it then holds memory only, and no residue.
    pub without_context: bool,
}

/// Id of a stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Id of an event, which streams record and wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

/// End of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Number of the command.
    pub command: u64,
    /// Stream of the command.
    pub stream: StreamId,
    /// Time at which the command became the first command of its stream and started.
    pub started: Time,
    /// Time at which the command ended.
    pub ended: Time,
}

/// A host function has started. It ends with [`Machine::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTurn {
    /// Id of the host function: its command and, in a graph, its node.
    pub work: WorkId,
    /// Stream of the host function.
    pub stream: StreamId,
    /// Time at which the host function started.
    pub at: Time,
}

/// GPUs and slices of a node in operation, with their processes and streams; see the [module](self).
#[derive(Debug)]
pub struct Machine {
    now: Time,
    scale: Scale,
    units: Vec<Unit>,
    fabric: Fabric,
    network: Network,
    /// Next events of all units, followed by that of the network.
    agenda: Agenda,
    processes: IdMap<ProcessId, Process>,
    streams: Slab<Stream>,
    stream_slots: IdMap<StreamId, u32>,
    events: Events,
    heads: Heads,
    /// Delays in progress and released host functions, by their end.
    delays: BinaryHeap<Reverse<(Time, Job)>>,
    /// Copies which have an engine and no byte on a link yet, by the time of their first one.
    setups: BTreeMap<(Time, Job), (u64, Route)>,
    /// Host functions that have started and are not released.
    hosts: IdMap<WorkId, Job>,
    host_turns: Vec<HostTurn>,
    ledger: Ledger,
    /// Units whose SMs have to be shared out again.
    changed_units: Vec<u32>,
    /// Whether the links have to be shared out again.
    has_network_changed: bool,
    /// Work that ended at the current instant. Empty between steps and kept for its capacity, like the lists below.
    ended: Vec<Job>,
    /// Earliest start of each node of a graph, in nanoseconds.
    begins: Vec<u64>,
    /// Lists of the open predecessors of graph nodes.
    spare_counts: Vec<Vec<u32>>,
    next_command: u64,
    next_process: u32,
    next_stream: u64,
    next_event: u64,
}

impl Machine {
    /// Creates an idle node at time zero. GPUs and slices are numbered in the order of [`Node::gpus`], the slices of one GPU in
    /// the order of their placement. Links are numbered in this order: for each GPU to the device and from it, for each switch
    /// the same, for each NVLink both directions, and for each GPU or slice its own memory.
    ///
    /// # Errors
    ///
    /// Returns an error if a GPU, its slices or the topology are invalid.
    pub fn new(node: &Node) -> Result<Self, MachineError> {
        let mut infos = Vec::new();
        for (at, gpu) in node.gpus.iter().enumerate() {
            infos.extend(unit::infos(at, gpu, node.scale)?);
        }
        let mut network = Network::default();
        let fabric = Fabric::new(node, &mut network)?;
        let mut units = Vec::new();
        for (number, info) in (0..).zip(infos) {
            let part = &node.gpus[info.gpu].part;
            units.push(unit::unit(number, info, part, node.scale, &mut network));
        }
        Ok(Self {
            now: Time::ZERO,
            scale: node.scale,
            agenda: Agenda::new(units.len() + 1),
            units,
            fabric,
            network,
            processes: IdMap::default(),
            streams: Slab::default(),
            stream_slots: IdMap::default(),
            events: Events::default(),
            heads: Heads::default(),
            delays: BinaryHeap::new(),
            setups: BTreeMap::new(),
            hosts: IdMap::default(),
            host_turns: Vec::new(),
            ledger: Ledger::default(),
            changed_units: Vec::new(),
            has_network_changed: false,
            ended: Vec::new(),
            begins: Vec::new(),
            spare_counts: Vec::new(),
            next_command: 0,
            next_process: 0,
            next_stream: 0,
            next_event: 0,
        })
    }

    /// Returns the number of GPUs and slices.
    #[must_use]
    pub const fn units(&self) -> usize {
        self.units.len()
    }

    /// Returns the properties of a GPU or slice; `None` if it does not exist.
    #[must_use]
    pub fn unit_info(&self, unit: u32) -> Option<UnitInfo> {
        self.units.get(unit as usize).map(|unit| unit.info.clone())
    }

    /// Returns the memory of a GPU or slice; `None` if it does not exist.
    #[must_use]
    pub fn memory(&self, unit: u32) -> Option<&Memory> {
        self.units.get(unit as usize).map(|unit| &unit.memory)
    }

    /// Returns the bandwidth of each link in bytes per second, by its number in the ledger; see [`Machine::new`].
    pub fn links(&self) -> impl Iterator<Item = u64> {
        self.network.capacities()
    }

    /// Returns the current virtual time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Enables or disables the ledger; it is enabled initially.
    pub const fn keep_ledger(&mut self, keep: bool) {
        self.ledger.keep(keep);
    }

    /// Returns the ledger entries since the last call. With `flush`, resources that are still held have an entry which ends now,
    /// and a further one later ([`Entry::joined`]). Without it, they have no entry yet.
    #[must_use]
    pub fn take_ledger(&mut self, flush: bool) -> Vec<Entry> {
        if flush {
            // No work ends here: whatever ends by now has already ended.
            for unit in &mut self.units {
                unit.compute
                    .advance(self.now, &mut self.ended, &mut self.ledger);
                unit.compute.write_all(&mut self.ledger);
                unit.memory.write_all(self.now, &mut self.ledger);
            }
            self.network
                .advance(self.now, &mut self.ended, &mut self.ledger);
            self.network.write_all(&mut self.ledger);
        }
        self.ledger.take()
    }

    /// Creates a stream of a process. The stream of an unknown process accepts no commands.
    pub fn stream(&mut self, process: ProcessId) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        if let Some(of) = self.processes.get_mut(&process) {
            let stream = Stream::new(id, process, of.unit, of.is_suspended);
            let slot = self.streams.insert(stream);
            of.streams.push(slot);
            self.stream_slots.insert(id, slot);
        }
        id
    }

    /// Destroys a stream: it accepts no further commands, and those submitted still run. Does nothing if the stream does not
    /// exist.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        let Some(slot) = self.stream_slots.remove(&stream) else {
            return;
        };
        if let Some(stream) = self.streams.get_mut(slot) {
            stream.is_destroyed = true;
        }
        self.remove_if_finished(slot);
    }

    /// Creates an event without a record. It belongs to no process and exists until it is destroyed.
    pub fn event(&mut self) -> EventId {
        let id = EventId(self.next_event);
        self.next_event += 1;
        self.events.add(id);
        id
    }

    /// Destroys an event: it can no longer be recorded or waited for. Commands submitted before are unaffected. Does nothing if
    /// the event does not exist.
    pub fn destroy_event(&mut self, event: EventId) {
        self.events.destroy(event);
    }

    /// Appends a command to a stream, to run from `not_before` on, and returns its number. It starts with the next
    /// [`Machine::advance`].
    ///
    /// # Errors
    ///
    /// Returns an error, without effect, if the stream, an event or a destination does not exist, or a copy to a peer names the
    /// process's own GPU or slice.
    pub fn submit(
        &mut self,
        stream: StreamId,
        not_before: Time,
        op: Op,
    ) -> Result<u64, SubmitError> {
        let known = self.stream_slots.get(&stream);
        let &slot = known.ok_or(SubmitError::NoStream(stream))?;
        let min_span = self.min_span(slot, &op)?;
        let id = self.next_command;
        let record = match &op {
            Op::Record(event) => {
                self.events.record(*event, id)?;
                Some(id)
            }
            Op::Wait(event) => self.events.latest(*event)?,
            _ => None,
        };
        self.next_command += 1;
        let Some(stream) = self.streams.get_mut(slot) else {
            return Err(SubmitError::NoStream(stream));
        };
        let from = stream.earliest_end.max(not_before).max(self.now);
        stream.earliest_end = from.after(min_span);
        stream.min_waiting = Span(stream.min_waiting.0.saturating_add(min_span.0));
        stream.waiting.push_back(Command {
            id,
            not_before,
            op,
            record,
            min_span,
        });
        self.queue_head(slot);
        Ok(id)
    }

    /// Returns the host functions that have started since the last call.
    #[must_use]
    pub fn take_host_turns(&mut self) -> Vec<HostTurn> {
        std::mem::take(&mut self.host_turns)
    }

    /// Ends a host function at `at`, or now if that is past. Returns `false` if it has not started or was already released.
    pub fn release(&mut self, work: WorkId, at: Time) -> bool {
        let Some(job) = self.hosts.remove(&work) else {
            return false;
        };
        let at = at.max(self.now);
        self.delays.push(Reverse((at, job)));
        if let Some(stream) = self.streams.get_mut(job.tag) {
            stream.ends_at(at);
        }
        true
    }

    /// Returns the earliest possible end of all commands submitted to a stream, not before now. It is exact if nothing competes
    /// with the stream from now on, it waits for no event or host function, and no graph in progress was delayed. Waiting for an
    /// event counts as no time, and so does a host function before its release. Returns `None` if the stream does not exist.
    #[must_use]
    pub fn earliest_end(&self, stream: StreamId) -> Option<Time> {
        let slot = *self.stream_slots.get(&stream)?;
        let stream = self.streams.get(slot)?;
        let current = self.earliest_end_of_current(stream).max(self.now);
        Some(current.after(stream.min_waiting).max(stream.earliest_end))
    }

    /// Returns a time before which the first `count` commands of a stream that have not ended cannot all have ended, never earlier than now: as
    /// [`Self::earliest_end`], from the first 64 that wait. Returns `None` if the stream does not exist.
    #[must_use]
    pub fn earliest_end_of(&self, stream: StreamId, count: u64) -> Option<Time> {
        let slot = *self.stream_slots.get(&stream)?;
        let stream = self.streams.get(slot)?;
        if count == 0 {
            return Some(self.now);
        }
        let current = self.earliest_end_of_current(stream).max(self.now);
        let others = count.saturating_sub(u64::from(stream.current.is_some()));
        let others = usize::try_from(others).unwrap_or(usize::MAX);
        let spans = stream.waiting.iter().take(others.min(COUNTED_MAX));
        let spans = spans.fold(0_u64, |sum, command| sum.saturating_add(command.min_span.0));
        Some(current.after(Span(spans)))
    }

    /// Returns the number of commands of a stream that have not ended; `None` if the stream does not exist.
    #[must_use]
    pub fn queued(&self, stream: StreamId) -> Option<u64> {
        let slot = *self.stream_slots.get(&stream)?;
        let stream = self.streams.get(slot)?;
        Some(stream.waiting.len() as u64 + u64::from(stream.current.is_some()))
    }

    /// Returns the time of the next event if nothing more is submitted or released; `None` if there is none.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        if self.heads.has_ready() {
            return Some(self.now);
        }
        let delay = self.delays.peek().map(|Reverse((at, _))| *at);
        let setup = self.setups.keys().next().map(|(at, _)| *at);
        let next = self
            .agenda
            .first()
            .min(self.heads.next_later())
            .min(delay.unwrap_or(Time::NEVER))
            .min(setup.unwrap_or(Time::NEVER));
        // Events at the end of time never occur.
        (next < Time::NEVER).then(|| next.max(self.now))
    }

    /// Advances the time to `to`. The commands that end by then are appended to `done` in the order of their end.
    pub fn advance(&mut self, to: Time, done: &mut Vec<Completion>) {
        self.start_heads(done);
        while let Some(next) = self.next().filter(|next| *next <= to) {
            self.settle(next, done);
            self.start_heads(done);
        }
        self.now = self.now.max(to);
    }

    /// Shares SMs and links out again, once everything that starts at this instant has started.
    fn share(&mut self) {
        while let Some(number) = self.changed_units.pop() {
            let unit = &mut self.units[number as usize];
            unit.is_changed = false;
            unit.compute
                .advance(self.now, &mut self.ended, &mut self.ledger);
            unit.compute.share(&mut self.ledger);
            let next = unit.compute.next().unwrap_or(Time::NEVER);
            self.agenda.set(number as usize, next);
        }
        if std::mem::take(&mut self.has_network_changed) {
            self.network.share(&mut self.ledger);
            let next = self.network.next().unwrap_or(Time::NEVER);
            self.agenda.set(self.units.len(), next);
        }
    }

    fn unit_changes(&mut self, number: u32) {
        if !std::mem::replace(&mut self.units[number as usize].is_changed, true) {
            self.changed_units.push(number);
        }
    }

    /// Completes the work that ends at `at`, which must not be after [`Machine::next`].
    fn settle(&mut self, at: Time, done: &mut Vec<Completion>) {
        self.now = self.now.max(at);
        let mut ended = std::mem::take(&mut self.ended);
        while self.agenda.first() <= self.now && self.agenda.first() < Time::NEVER {
            let source = self.agenda.first_of();
            if let Some(unit) = self.units.get_mut(source) {
                unit.compute.advance(self.now, &mut ended, &mut self.ledger);
                self.unit_changes(u32::try_from(source).unwrap_or(u32::MAX));
            } else {
                self.network.advance(self.now, &mut ended, &mut self.ledger);
                self.has_network_changed = true;
            }
            self.agenda.set(source, Time::NEVER);
        }
        while let Some(&Reverse((end, job))) = self.delays.peek() {
            if end > self.now {
                break;
            }
            self.delays.pop();
            ended.push(job);
        }
        while let Some(setup) = self.setups.first_entry() {
            let (begin, job) = *setup.key();
            if begin > self.now {
                break;
            }
            let (bytes, route) = setup.remove();
            self.begin_transfer(job, bytes, route);
        }
        ended.sort_unstable_by_key(|job| job.work);
        for job in ended.drain(..) {
            self.end_work(job, done);
        }
        self.ended = ended;
    }

    /// Starts all commands that may start now. Commands that take no time may enable others.
    fn start_heads(&mut self, done: &mut Vec<Completion>) {
        self.heads.advance_to(self.now);
        while let Some(slot) = self.heads.pop_ready() {
            self.start_head(slot, done);
        }
        self.share();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Gpu;
    use crate::op::CopyKind;
    use crate::part::Part;

    #[test]
    fn removed_processes_and_streams_leave_no_state_behind() {
        let gpu = Gpu {
            part: Part::named("V100").unwrap(),
            slices: Vec::new(),
        };
        let node = Node {
            gpus: vec![gpu],
            ..Node::default()
        };
        let mut machine = Machine::new(&node).unwrap();
        let stays = machine.admit(0, &ProcessSettings::default()).unwrap();
        let mut done = Vec::new();
        for round in 0..30_u64 {
            let process = machine.admit(0, &ProcessSettings::default()).unwrap();
            let streams = [stays, process, process].map(|of| machine.stream(of));
            let event = machine.event();
            let at = machine.now();
            let kind = CopyKind::HostToDevice;
            for (stream, op) in [
                (0, Op::Delay(Span(500 * (round % 3)))),
                (0, Op::Record(event)),
                (1, Op::Host),
                (1, Op::Record(event)),
                (2, Op::Copy { kind, bytes: 1_000 }),
                (0, Op::Wait(event)),
                (2, Op::Wait(event)),
                (2, Op::Delay(Span(1_000_000))),
            ] {
                machine.submit(streams[stream], at, op).unwrap();
            }
            machine.destroy_event(event);
            machine.destroy_stream(streams[0]);
            machine.destroy_stream(streams[2]);
            machine.advance(at.after(Span(round * 50)), &mut done);
            match round % 3 {
                0 => machine.abort(process),
                1 => {
                    for turn in machine.take_host_turns() {
                        assert!(machine.release(turn.work, turn.at));
                    }
                }
                _ => {}
            }
            machine.advance(machine.now().after(Span(round * 50)), &mut done);
            machine.dismiss(process);
            machine.advance(machine.now().after(Span(2_000)), &mut done);
            assert_eq!(machine.next(), None);
            assert_eq!(machine.events.count(), (0, 0));
            assert!(machine.stream_slots.is_empty());
            assert!((0..9).all(|slot| machine.streams.get(slot).is_none()));
            assert_eq!(machine.processes.len(), 1);
            assert!(machine.hosts.is_empty() && machine.host_turns.is_empty());
            assert!(machine.delays.is_empty() && machine.setups.is_empty());
            assert_eq!(machine.units[0].compute.running(), 0);
        }
    }
}
