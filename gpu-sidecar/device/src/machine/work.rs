//! Streams, and the work that their commands consist of.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Done, HostTurn, Machine, StreamId, SubmitError};
use crate::compute::Kernel;
use crate::ledger::{Job, ProcessId, WorkId};
use crate::network::Route;
use crate::node::Direction;
use crate::op::{Graph, Op, Way};
use crate::{Span, Time};

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) process: ProcessId,
    pub(super) unit: u32,
    pub(super) waiting: VecDeque<Command>,
    pub(super) current: Option<Current>,
    /// Its first command is among the heads, or waits for a record.
    pub(super) is_queued: bool,
    /// Its process is suspended.
    pub(super) is_suspended: bool,
    /// It takes no more commands.
    pub(super) is_destroyed: bool,
    /// All that was submitted cannot have ended earlier, as it was known when it was submitted.
    pub(super) least_end: Time,
    /// What the commands that wait take at least, all together.
    pub(super) least_waiting: Span,
}

#[derive(Debug)]
pub(super) struct Command {
    pub(super) id: u64,
    pub(super) not_before: Time,
    pub(super) op: Op,
    /// Of a record: its own number. Of a wait: that of the record for which it waits, if it does.
    pub(super) record: Option<u64>,
    /// What it takes at least.
    pub(super) least: Span,
}

/// The command that a stream is at.
#[derive(Debug)]
pub(super) struct Current {
    id: u64,
    started: Time,
    least: Span,
    doing: Doing,
}

#[derive(Debug)]
enum Doing {
    /// One piece of work, the copy engine it needs, and where it stands.
    Work(Option<Direction>, Place),
    Graph(GraphRun),
}

/// Where the work of a command stands.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Among the kernels of its unit.
    Kernel(u32),
    /// Among the transfers.
    Transfer(u32),
    /// In the queue for a copy engine.
    Engine,
    /// It ends at a time of its own.
    Until(Time),
    /// With the host.
    Host,
}

#[derive(Debug)]
struct GraphRun {
    graph: Arc<Graph>,
    /// For each piece of work: how many before it have not ended.
    open: Vec<u32>,
    left: usize,
}

impl Stream {
    pub(super) const fn new(
        id: StreamId,
        process: ProcessId,
        unit: u32,
        is_suspended: bool,
    ) -> Self {
        Self {
            id,
            process,
            unit,
            waiting: VecDeque::new(),
            current: None,
            is_queued: false,
            is_suspended,
            is_destroyed: false,
            least_end: Time::ZERO,
            least_waiting: Span::ZERO,
        }
    }

    /// Drops what it has.
    pub(super) fn drop_all(&mut self) {
        self.waiting.clear();
        self.current = None;
        self.is_queued = false;
        (self.least_end, self.least_waiting) = (Time::ZERO, Span::ZERO);
    }

    /// Its function of the host ends at a time that is known now.
    pub(super) const fn ends_at(&mut self, at: Time) {
        if let Some(current) = &mut self.current
            && let Doing::Work(_, place) = &mut current.doing
        {
            *place = Place::Until(at);
        }
    }
}

impl Command {
    /// The record that it makes.
    pub(super) const fn own_record(&self) -> Option<u64> {
        match self.op {
            Op::Record(_) => self.record,
            _ => None,
        }
    }
}

impl Current {
    /// The copy engine that a piece of its work needs.
    pub(super) fn engine(&self, node: u32) -> Option<Direction> {
        match &self.doing {
            Doing::Work(engine, _) => *engine,
            Doing::Graph(run) => run.graph.nodes.get(node as usize)?.op.engine(),
        }
    }
}

impl Machine {
    /// Sees to it that a stream's first command starts when it may.
    pub(super) fn queue_head(&mut self, place: u32) {
        let Some(stream) = self.streams.get_mut(place) else {
            return;
        };
        if stream.is_queued || stream.is_suspended || stream.current.is_some() {
            return;
        }
        let Some(head) = stream.waiting.front() else {
            return;
        };
        stream.is_queued = true;
        let (id, not_before) = (head.id, head.not_before);
        if let (Op::Wait(_), Some(record)) = (&head.op, head.record)
            && self.events.wait(record, place, id)
        {
            return;
        }
        self.heads.add(self.now, not_before, id, place);
    }

    /// A stream that takes no more commands and has none is no more.
    pub(super) fn remove_if_over(&mut self, place: u32) {
        let is_over = |stream: &&Stream| {
            stream.is_destroyed && stream.current.is_none() && stream.waiting.is_empty()
        };
        let Some(stream) = self.streams.get(place).filter(is_over) else {
            return;
        };
        if let Some(process) = self.processes.get_mut(&stream.process) {
            process.streams.retain(|&own| own != place);
        }
        self.streams.remove(place);
    }

    pub(super) fn start_head(&mut self, place: u32, done: &mut Vec<Done>) {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(place) else {
            return;
        };
        stream.is_queued = false;
        let Some(command) = stream.waiting.pop_front() else {
            return;
        };
        stream.least_waiting = stream.least_waiting.less(command.least);
        let job = Job {
            work: WorkId {
                command: command.id,
                node: 0,
            },
            process: stream.process,
            tag: place,
        };
        let (id, unit) = (stream.id, stream.unit);
        let mut current = Current {
            id: command.id,
            started: now,
            least: command.least,
            doing: Doing::Work(command.op.engine(), Place::Until(now)),
        };
        match command.op {
            Op::Record(_) | Op::Wait(_) => {
                if let (Op::Record(_), Some(record)) = (&command.op, command.record) {
                    self.happen(record);
                }
                self.end_command(place, &current, done);
                return;
            }
            Op::Graph(graph) if graph.is_empty() => {
                self.end_command(place, &current, done);
                return;
            }
            Op::Graph(graph) => {
                for &root in &graph.roots {
                    let work = WorkId {
                        node: root,
                        ..job.work
                    };
                    let op = &graph.nodes[root as usize].op;
                    self.start_work(Job { work, ..job }, id, unit, op);
                }
                let mut open = self.spare_counts.pop().unwrap_or_default();
                open.extend(graph.nodes.iter().map(|node| node.before));
                let left = graph.len();
                current.doing = Doing::Graph(GraphRun { graph, open, left });
            }
            op => {
                let engine = op.engine();
                current.doing = Doing::Work(engine, self.start_work(job, id, unit, &op));
            }
        }
        if let Some(stream) = self.streams.get_mut(place) {
            stream.current = Some(current);
        }
    }

    fn start_work(&mut self, job: Job, stream: StreamId, unit: u32, op: &Op) -> Place {
        let there = &mut self.units[unit as usize];
        match op {
            Op::Kernel(kernel) => {
                let kernel = Kernel {
                    duration: self.scale.span(kernel.duration),
                    ..*kernel
                };
                there
                    .compute
                    .advance(self.now, &mut self.ended, &mut self.ledger);
                let place = there.compute.start(job, &kernel);
                self.unit_changes(unit);
                place.map_or(Place::Until(self.now), Place::Kernel)
            }
            Op::Copy { way, bytes } => {
                let route = self.route(unit, *way);
                let Some(direction) = way.direction() else {
                    return self.transfer(job, 2 * u128::from(*bytes), route);
                };
                let engine = self.units[unit as usize].engine(direction);
                if engine.free == 0 {
                    engine.waiting.push_back((job, *bytes, route));
                    return Place::Engine;
                }
                engine.free -= 1;
                self.transfer(job, u128::from(*bytes), route)
            }
            Op::Set { bytes } => {
                let route = there.within;
                self.transfer(job, u128::from(*bytes), route)
            }
            Op::Delay(span) => {
                let end = self.now.after(self.scale.span(*span));
                self.delays.push(Reverse((end, job)));
                Place::Until(end)
            }
            Op::Host => {
                self.hosts.insert(job.work, job);
                self.host_turns.push(HostTurn {
                    work: job.work,
                    stream,
                    at: self.now,
                });
                Place::Host
            }
            // No part of a graph, and seen to before.
            Op::Graph(_) | Op::Record(_) | Op::Wait(_) => Place::Until(self.now),
        }
    }

    fn transfer(&mut self, job: Job, bytes: u128, route: Route) -> Place {
        self.network
            .advance(self.now, &mut self.ended, &mut self.ledger);
        self.has_network_changed = true;
        Place::Transfer(self.network.start(job, bytes, route))
    }

    /// The links that a copy of a unit crosses.
    fn route(&self, unit: u32, way: Way) -> Route {
        let there = &self.units[unit as usize];
        let gpu = there.info.gpu;
        match way {
            Way::HostToDevice => self.fabric.to_host(gpu, Direction::ToDevice),
            Way::DeviceToHost => self.fabric.to_host(gpu, Direction::FromDevice),
            Way::Peer(other) => {
                let to = self.units.get(other as usize);
                self.fabric.to_peer(gpu, to.map_or(gpu, |to| to.info.gpu))
            }
            Way::Within => there.within,
        }
    }

    /// A copy has ended or was dropped: the next one has its engine.
    pub(super) fn free_engine(&mut self, unit: u32, direction: Direction) {
        let engine = self.units[unit as usize].engine(direction);
        let Some((job, bytes, route)) = engine.waiting.pop_front() else {
            engine.free += 1;
            return;
        };
        let started = self.transfer(job, bytes.into(), route);
        let stream = self.streams.get_mut(job.tag);
        if let Some(current) = stream.and_then(|stream| stream.current.as_mut())
            && let Doing::Work(_, place) = &mut current.doing
        {
            *place = started;
        }
    }

    pub(super) fn end_work(&mut self, job: Job, done: &mut Vec<Done>) {
        let Some(stream) = self.streams.get_mut(job.tag) else {
            return;
        };
        let (id, unit) = (stream.id, stream.unit);
        let Some(mut current) = stream.current.take() else {
            return;
        };
        if let Some(direction) = current.engine(job.work.node) {
            self.free_engine(unit, direction);
        }
        let Doing::Graph(run) = &mut current.doing else {
            self.end_command(job.tag, &current, done);
            return;
        };
        run.left -= 1;
        for &next in &run.graph.nodes[job.work.node as usize].next {
            let open = &mut run.open[next as usize];
            *open -= 1;
            if *open == 0 {
                let work = WorkId {
                    node: next,
                    ..job.work
                };
                let op = &run.graph.nodes[next as usize].op;
                self.start_work(Job { work, ..job }, id, unit, op);
            }
        }
        if run.left == 0 {
            self.end_command(job.tag, &current, done);
            if let Doing::Graph(run) = current.doing {
                self.keep_counts(run.open);
            }
        } else if let Some(stream) = self.streams.get_mut(job.tag) {
            stream.current = Some(current);
        }
    }

    fn keep_counts(&mut self, mut counts: Vec<u32>) {
        counts.clear();
        self.spare_counts.push(counts);
    }

    /// What was recorded has happened, or never will: nobody waits for it any more.
    pub(super) fn happen(&mut self, record: u64) {
        let waiting = self.events.happen(record);
        for &(place, command) in &waiting {
            let Some(stream) = self.streams.get_mut(place) else {
                continue;
            };
            // It may have been dropped since, and its place given to another stream.
            if stream
                .waiting
                .front()
                .is_some_and(|head| head.id == command)
            {
                stream.is_queued = false;
                self.queue_head(place);
            }
        }
        self.events.keep(waiting);
    }

    fn end_command(&mut self, place: u32, current: &Current, done: &mut Vec<Done>) {
        let Some(stream) = self.streams.get(place) else {
            return;
        };
        done.push(Done {
            command: current.id,
            stream: stream.id,
            started: current.started,
            ended: self.now,
        });
        if stream.is_destroyed {
            self.remove_if_over(place);
        }
        self.queue_head(place);
    }

    /// What a command of a stream takes at least: so long, if nothing else runs and no one has to be waited for.
    pub(super) fn least_span(&mut self, place: u32, op: &Op) -> Result<Span, SubmitError> {
        let Some(stream) = self.streams.get(place) else {
            return Ok(Span::ZERO);
        };
        let (process, unit) = (stream.process, stream.unit);
        let Op::Graph(graph) = op else {
            return self.least_span_of_work(process, unit, op);
        };
        // The longest way through it: for each piece of work, when it can begin at the earliest.
        let mut begins = std::mem::take(&mut self.begins);
        begins.clear();
        begins.resize(graph.len(), 0);
        let mut least = 0;
        for (node, at) in graph.nodes.iter().zip(0..) {
            let span = self.least_span_of_work(process, unit, &node.op)?;
            let end = u64::saturating_add(begins[at], span.0);
            for &next in &node.next {
                let begins = &mut begins[next as usize];
                *begins = end.max(*begins);
            }
            least = end.max(least);
        }
        self.begins = begins;
        Ok(Span(least))
    }

    fn least_span_of_work(
        &mut self,
        process: ProcessId,
        unit: u32,
        op: &Op,
    ) -> Result<Span, SubmitError> {
        match op {
            Op::Kernel(kernel) => {
                let kernel = Kernel {
                    duration: self.scale.span(kernel.duration),
                    ..*kernel
                };
                let compute = &mut self.units[unit as usize].compute;
                Ok(compute.span_alone(process, &kernel))
            }
            Op::Copy { way, bytes } => {
                if let Way::Peer(other) = *way {
                    if other as usize >= self.units.len() {
                        return Err(SubmitError::NoPeer(other));
                    }
                    if other == unit {
                        return Err(SubmitError::OwnPeer(other));
                    }
                }
                let times = if *way == Way::Within { 2 } else { 1 };
                let route = self.route(unit, *way);
                Ok(self.network.span_alone(times * u128::from(*bytes), route))
            }
            Op::Set { bytes } => {
                let route = self.units[unit as usize].within;
                Ok(self.network.span_alone((*bytes).into(), route))
            }
            Op::Delay(span) => Ok(self.scale.span(*span)),
            Op::Host | Op::Graph(_) | Op::Record(_) | Op::Wait(_) => Ok(Span::ZERO),
        }
    }

    /// The earliest time at which the command that a stream is at can have ended.
    pub(super) fn least_end_of_current(&self, stream: &Stream) -> Time {
        let Some(current) = &stream.current else {
            return self.now;
        };
        let unit = &self.units[stream.unit as usize];
        match current.doing {
            Doing::Work(_, Place::Kernel(place)) => unit.compute.least_end(place, self.now),
            Doing::Work(_, Place::Transfer(place)) => self.network.least_end(place, self.now),
            Doing::Work(_, Place::Engine) => self.now.after(current.least),
            Doing::Work(_, Place::Until(end)) => end,
            Doing::Work(_, Place::Host) => self.now,
            Doing::Graph(_) => current.started.after(current.least),
        }
    }
}
