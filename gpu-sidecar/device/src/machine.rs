//! The GPUs or slices of a node at work, and the streams that feed them.
//!
//! Commands of a stream run one after the other, those of different streams side by side as far as SMs, copy engines
//! and links allow. Commands are handed over with the time from which they may run, and in the order of those times:
//! [`Machine::submit`] takes one for later, too. [`Machine::advance`] goes on in time and tells what has ended. What is ready
//! at one instant starts in the order of its submission.
//!
//! A step costs what it touches: streams, processes, events, GPUs and links at rest cost nothing.

mod error;
mod process;
mod queue;
mod work;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub use self::error::{MachineError, SubmitError, SuspendError};
use self::process::Process;
use self::queue::{Events, Heads};
use self::work::{Command, Stream};
use crate::agenda::Agenda;
pub use crate::compute::MpsServer;
use crate::ids::{IdMap, Slab};
use crate::ledger::{Entry, Job, Ledger, ProcessId, WorkId};
use crate::memory::Memory;
use crate::network::Network;
use crate::node::{Fabric, Node, Scale};
use crate::op::Op;
use crate::unit::Unit;
pub use crate::unit::{SliceInfo, UnitInfo};
use crate::{Span, Time, unit};

/// A process wants a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessSettings {
    /// The MPS server whose client it is; `None`: it takes its turn by itself.
    pub mps: Option<MpsServer>,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` in hundredths; without MPS, and where it is absent, all SMs.
    pub active_thread_percentage_hundredths: Option<u32>,
    /// Device memory at most, its context's residue included.
    pub memory_limit: Option<u64>,
    /// It has no context: it holds memory and nothing else, and so no residue.
    pub without_context: bool,
}

/// A stream of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// An event, which streams record and wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub u64);

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

/// A function of the host has its turn; it has ended when [`Machine::release`] says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTurn {
    /// Which: the command and, in a graph, the node.
    pub work: WorkId,
    /// In which stream.
    pub stream: StreamId,
    /// Since when.
    pub at: Time,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Machine {
    now: Time,
    scale: Scale,
    units: Vec<Unit>,
    fabric: Fabric,
    network: Network,
    /// The next events of all units, and of the network behind them.
    agenda: Agenda,
    processes: IdMap<ProcessId, Process>,
    streams: Slab<Stream>,
    stream_places: IdMap<StreamId, u32>,
    events: Events,
    heads: Heads,
    /// Delays that have begun, and functions of the host that have been released, by their end.
    delays: BinaryHeap<Reverse<(Time, Job)>>,
    /// Functions of the host that have not been released.
    hosts: IdMap<WorkId, Job>,
    host_turns: Vec<HostTurn>,
    ledger: Ledger,
    /// Units whose SMs have to be shared out anew.
    changed_units: Vec<u32>,
    /// Links have to be shared out anew.
    has_network_changed: bool,
    /// What has ended at this instant; empty in between, and kept for its room, as the others here.
    ended: Vec<Job>,
    /// When each piece of work of a graph can begin.
    begins: Vec<u64>,
    /// How many pieces of work others in a graph wait for.
    spare_counts: Vec<Vec<u32>>,
    next_command: u64,
    next_process: u32,
    next_stream: u64,
    next_event: u64,
}

impl Machine {
    /// A node at rest, at time zero. Its GPUs and slices have numbers in the order of [`Node::gpus`], the slices of one
    /// GPU in the order in which they lie. Links have numbers in this order: of each GPU to the device and from it, of each
    /// switch the same, of each NVLink there and back, and of each GPU or slice its own memory.
    ///
    /// # Errors
    /// It cannot be made so.
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
            stream_places: IdMap::default(),
            events: Events::default(),
            heads: Heads::default(),
            delays: BinaryHeap::new(),
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

    /// How many GPUs and slices there are.
    #[must_use]
    pub const fn units(&self) -> usize {
        self.units.len()
    }

    /// What a GPU or slice is.
    #[must_use]
    pub fn unit_info(&self, unit: u32) -> Option<UnitInfo> {
        self.units.get(unit as usize).map(|unit| unit.info.clone())
    }

    /// The memory of a GPU or slice.
    #[must_use]
    pub fn memory(&self, unit: u32) -> Option<&Memory> {
        self.units.get(unit as usize).map(|unit| &unit.memory)
    }

    /// How many bytes per second each link lets through, by its number in the ledger; see [`Machine::new`].
    pub fn links(&self) -> impl Iterator<Item = u64> {
        self.network.capacities()
    }

    /// How far the machine has come.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Whether the ledger is kept from now on, as it is unless this says otherwise.
    pub const fn keep_ledger(&mut self, keep: bool) {
        self.ledger.keep(keep);
    }

    /// Who held what, as far as it was not told before. With `flush` up to now: what is still held has a line that ends
    /// now, and will have another ([`Entry::joined`]). Without it, what is still held has no line yet.
    #[must_use]
    pub fn take_ledger(&mut self, flush: bool) -> Vec<Entry> {
        if flush {
            // Nothing ends here: all that ends by now has ended.
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

    /// A new stream of a process; one of a process that is gone takes no commands.
    pub fn stream(&mut self, process: ProcessId) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        if let Some(of) = self.processes.get_mut(&process) {
            let stream = Stream::new(id, process, of.unit, of.is_suspended);
            let place = self.streams.insert(stream);
            of.streams.push(place);
            self.stream_places.insert(id, place);
        }
        id
    }

    /// A stream takes no more commands; what it has still runs. One that there is not is left out.
    pub fn destroy_stream(&mut self, stream: StreamId) {
        let Some(place) = self.stream_places.remove(&stream) else {
            return;
        };
        if let Some(stream) = self.streams.get_mut(place) {
            stream.is_destroyed = true;
        }
        self.remove_if_over(place);
    }

    /// A new event, in which nothing is recorded. It belongs to no process, and is there until it is destroyed.
    pub fn event(&mut self) -> EventId {
        let id = EventId(self.next_event);
        self.next_event += 1;
        self.events.add(id);
        id
    }

    /// An event can be recorded and waited for no more; what was submitted before goes on as if it still were there. One
    /// that there is not is left out.
    pub fn destroy_event(&mut self, event: EventId) {
        self.events.destroy(event);
    }

    /// Puts a command at the end of a stream, to run from `not_before` on. Returns its number. It starts with the next
    /// [`Machine::advance`].
    ///
    /// # Errors
    /// It names a stream, an event or a GPU or slice that there is not, or copies to its own as to another: nothing has
    /// changed.
    pub fn submit(
        &mut self,
        stream: StreamId,
        not_before: Time,
        op: Op,
    ) -> Result<u64, SubmitError> {
        let known = self.stream_places.get(&stream);
        let &place = known.ok_or(SubmitError::NoStream(stream))?;
        let least = self.least_span(place, &op)?;
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
        let Some(stream) = self.streams.get_mut(place) else {
            return Err(SubmitError::NoStream(stream));
        };
        let from = stream.least_end.max(not_before).max(self.now);
        stream.least_end = from.after(least);
        stream.least_waiting = Span(stream.least_waiting.0.saturating_add(least.0));
        stream.waiting.push_back(Command {
            id,
            not_before,
            op,
            record,
            least,
        });
        self.queue_head(place);
        Ok(id)
    }

    /// Functions of the host whose turn has come since this was asked last.
    #[must_use]
    pub fn take_host_turns(&mut self) -> Vec<HostTurn> {
        std::mem::take(&mut self.host_turns)
    }

    /// A function of the host ends at `at`, or now if that is past. Returns whether there is one that had its turn and
    /// was not released before.
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

    /// When all that has been submitted to a stream can have ended at the earliest, and not before now: exactly then, if
    /// nothing competes with it from now on, it waits for no event or host, and no graph of it is under way that was held
    /// up. Waiting for an event, and a function of the host before it is released, count as no time. `None`: there is no
    /// such stream.
    #[must_use]
    pub fn earliest_end(&self, stream: StreamId) -> Option<Time> {
        let place = *self.stream_places.get(&stream)?;
        let stream = self.streams.get(place)?;
        let current = self.least_end_of_current(stream).max(self.now);
        Some(current.after(stream.least_waiting).max(stream.least_end))
    }

    /// How many commands of a stream have not ended; `None`: there is no such stream.
    #[must_use]
    pub fn queued(&self, stream: StreamId) -> Option<u64> {
        let place = *self.stream_places.get(&stream)?;
        let stream = self.streams.get(place)?;
        Some(stream.waiting.len() as u64 + u64::from(stream.current.is_some()))
    }

    /// When something happens next, if nothing more is submitted or released; `None`: never.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        if self.heads.is_one_ready() {
            return Some(self.now);
        }
        let delay = self.delays.peek().map(|Reverse((at, _))| *at);
        let next = self
            .agenda
            .first()
            .min(self.heads.next_later())
            .min(delay.unwrap_or(Time::NEVER));
        // What would happen at the end of time does not happen.
        (next < Time::NEVER).then(|| next.max(self.now))
    }

    /// Goes on to `to`; what has ended by then is added to `done`, in the order of its time.
    pub fn advance(&mut self, to: Time, done: &mut Vec<Done>) {
        self.start_heads(done);
        while let Some(next) = self.next().filter(|next| *next <= to) {
            self.settle(next, done);
            self.start_heads(done);
        }
        self.now = self.now.max(to);
    }

    /// Shares SMs and links out anew, once all that starts at this moment has started.
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

    /// Lets end what ends at `at`, at most at [`Machine::next`].
    fn settle(&mut self, at: Time, done: &mut Vec<Done>) {
        self.now = self.now.max(at);
        let mut ended = std::mem::take(&mut self.ended);
        while self.agenda.first() <= self.now && self.agenda.first() < Time::NEVER {
            let thing = self.agenda.first_of();
            if let Some(unit) = self.units.get_mut(thing) {
                unit.compute.advance(self.now, &mut ended, &mut self.ledger);
                self.unit_changes(u32::try_from(thing).unwrap_or(u32::MAX));
            } else {
                self.network.advance(self.now, &mut ended, &mut self.ledger);
                self.has_network_changed = true;
            }
            self.agenda.set(thing, Time::NEVER);
        }
        while let Some(&Reverse((end, job))) = self.delays.peek() {
            if end > self.now {
                break;
            }
            self.delays.pop();
            ended.push(job);
        }
        ended.sort_unstable_by_key(|job| job.work);
        for job in ended.drain(..) {
            self.end_work(job, done);
        }
        self.ended = ended;
    }

    /// Starts whatever may start now, until nothing more does: what takes no time may let others start.
    fn start_heads(&mut self, done: &mut Vec<Done>) {
        self.heads.go_to(self.now);
        while let Some(place) = self.heads.pop_ready() {
            self.start_head(place, done);
        }
        self.share();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Gpu;
    use crate::op::Way;
    use crate::part::Part;

    #[test]
    fn nothing_is_left_of_what_is_gone() {
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
            let way = Way::HostToDevice;
            for (stream, op) in [
                (0, Op::Delay(Span(500 * (round % 3)))),
                (0, Op::Record(event)),
                (1, Op::Host),
                (1, Op::Record(event)),
                (2, Op::Copy { way, bytes: 1_000 }),
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
            assert!(machine.stream_places.is_empty());
            assert!((0..9).all(|place| machine.streams.get(place).is_none()));
            assert_eq!(machine.processes.len(), 1);
            assert!(machine.hosts.is_empty() && machine.host_turns.is_empty());
            assert!(machine.delays.is_empty());
            assert_eq!(machine.units[0].compute.running(), 0);
        }
    }
}
