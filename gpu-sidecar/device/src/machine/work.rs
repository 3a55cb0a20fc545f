//! Streams, and execution of their commands.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Completion, HostTurn, Machine, StreamId, SubmitError};
use crate::compute::Kernel;
use crate::ledger::{Job, ProcessId, WorkId};
use crate::network::Route;
use crate::node::Direction;
use crate::op::{CopyKind, Graph, Op};
use crate::{Span, Time};

/// State of a stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) process: ProcessId,
    pub(super) unit: u32,
    pub(super) waiting: VecDeque<Command>,
    pub(super) current: Option<Current>,
    /// Whether the stream's first command is among the heads or waits for a record.
    pub(super) is_queued: bool,
    /// Whether the stream's process is suspended.
    pub(super) is_suspended: bool,
    /// Whether the stream accepts no further commands.
    pub(super) is_destroyed: bool,
    /// Earliest possible end of all submitted commands, as computed at their submission.
    pub(super) earliest_end: Time,
    /// Sum of the shortest spans of the waiting commands.
    pub(super) min_waiting: Span,
}

/// Command that has not started.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) id: u64,
    pub(super) not_before: Time,
    pub(super) op: Op,
    /// For a record, its own number. For a wait, the number of the record it waits for, if any.
    pub(super) record: Option<u64>,
    /// Shortest span that the command can take.
    pub(super) min_span: Span,
}

/// Command that a stream is executing.
#[derive(Debug)]
pub(super) struct Current {
    id: u64,
    started: Time,
    min_span: Span,
    progress: Progress,
}

/// Progress of a command.
#[derive(Debug)]
enum Progress {
    /// One piece of work, with the copy engine that it needs and its state.
    Work(Option<Direction>, WorkState),
    Graph(GraphRun),
}

/// State of a piece of work.
#[derive(Clone, Copy, Debug)]
enum WorkState {
    /// Runs as a kernel, in this slot of its unit.
    Kernel(u32),
    /// Runs as a transfer, in this slot of the network.
    Transfer(u32),
    /// Waits for a copy engine.
    Engine,
    /// Ends at this time.
    Until(Time),
    /// Waits for the host.
    Host,
}

/// Execution of a graph.
#[derive(Debug)]
struct GraphRun {
    graph: Arc<Graph>,
    /// Number of unfinished predecessors of each node.
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
            earliest_end: Time::ZERO,
            min_waiting: Span::ZERO,
        }
    }

    /// Drops all commands.
    pub(super) fn drop_all(&mut self) {
        self.waiting.clear();
        self.current = None;
        self.is_queued = false;
        (self.earliest_end, self.min_waiting) = (Time::ZERO, Span::ZERO);
    }

    /// Sets the end of the stream's host function, once it is known.
    pub(super) const fn ends_at(&mut self, at: Time) {
        if let Some(current) = &mut self.current
            && let Progress::Work(_, slot) = &mut current.progress
        {
            *slot = WorkState::Until(at);
        }
    }
}

impl Command {
    /// Returns the number of the record that the command makes, if any.
    pub(super) const fn own_record(&self) -> Option<u64> {
        match self.op {
            Op::Record(_) => self.record,
            _ => None,
        }
    }
}

impl Current {
    /// Returns the copy engine that a piece of its work needs.
    pub(super) fn engine(&self, node: u32) -> Option<Direction> {
        match &self.progress {
            Progress::Work(engine, _) => *engine,
            Progress::Graph(run) => run.graph.nodes.get(node as usize)?.op.engine(),
        }
    }
}

impl Machine {
    /// Queues a stream's first command, to start when it may.
    pub(super) fn queue_head(&mut self, slot: u32) {
        let Some(stream) = self.streams.get_mut(slot) else {
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
            && self.events.wait(record, slot, id)
        {
            return;
        }
        self.heads.add(self.now, not_before, id, slot);
    }

    /// Removes a destroyed stream without commands.
    pub(super) fn remove_if_finished(&mut self, slot: u32) {
        let is_finished = |stream: &&Stream| {
            stream.is_destroyed && stream.current.is_none() && stream.waiting.is_empty()
        };
        let Some(stream) = self.streams.get(slot).filter(is_finished) else {
            return;
        };
        if let Some(process) = self.processes.get_mut(&stream.process) {
            process.streams.retain(|&own| own != slot);
        }
        self.streams.remove(slot);
    }

    pub(super) fn start_head(&mut self, slot: u32, done: &mut Vec<Completion>) {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(slot) else {
            return;
        };
        stream.is_queued = false;
        let Some(command) = stream.waiting.pop_front() else {
            return;
        };
        stream.min_waiting = stream.min_waiting.less(command.min_span);
        let job = Job {
            work: WorkId {
                command: command.id,
                node: 0,
            },
            process: stream.process,
            tag: slot,
        };
        let (id, unit) = (stream.id, stream.unit);
        let mut current = Current {
            id: command.id,
            started: now,
            min_span: command.min_span,
            progress: Progress::Work(command.op.engine(), WorkState::Until(now)),
        };
        match command.op {
            Op::Record(_) | Op::Wait(_) => {
                if let (Op::Record(_), Some(record)) = (&command.op, command.record) {
                    self.complete_record(record);
                }
                self.end_command(slot, &current, done);
                return;
            }
            Op::Graph(graph) if graph.is_empty() => {
                self.end_command(slot, &current, done);
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
                current.progress = Progress::Graph(GraphRun { graph, open, left });
            }
            op => {
                let engine = op.engine();
                current.progress = Progress::Work(engine, self.start_work(job, id, unit, &op));
            }
        }
        if let Some(stream) = self.streams.get_mut(slot) {
            stream.current = Some(current);
        }
    }

    /// Starts a piece of work and returns its state.
    fn start_work(&mut self, job: Job, stream: StreamId, unit: u32, op: &Op) -> WorkState {
        let device = &mut self.units[unit as usize];
        match op {
            Op::Kernel(kernel) => {
                let kernel = Kernel {
                    duration: self.scale.span(kernel.duration),
                    ..*kernel
                };
                device
                    .compute
                    .advance(self.now, &mut self.ended, &mut self.ledger);
                let slot = device.compute.start(job, &kernel);
                self.unit_changes(unit);
                slot.map_or(WorkState::Until(self.now), WorkState::Kernel)
            }
            Op::Copy { kind, bytes } => {
                let route = self.route(unit, *kind);
                let Some(direction) = kind.direction() else {
                    return self.transfer(job, 2 * u128::from(*bytes), route);
                };
                let engine = self.units[unit as usize].engine(direction);
                if engine.free == 0 {
                    engine.waiting.push_back((job, *bytes, route));
                    return WorkState::Engine;
                }
                engine.free -= 1;
                self.start_copy(job, unit, *bytes, route)
            }
            Op::Set { bytes } => {
                let route = device.within;
                self.transfer(job, u128::from(*bytes), route)
            }
            Op::Delay(span) => {
                let end = self.now.after(self.scale.span(*span));
                self.delays.push(Reverse((end, job)));
                WorkState::Until(end)
            }
            Op::Host => {
                self.hosts.insert(job.work, job);
                self.host_turns.push(HostTurn {
                    work: job.work,
                    stream,
                    at: self.now,
                });
                WorkState::Host
            }
            // Graphs cannot contain these, and they were handled before.
            Op::Graph(_) | Op::Record(_) | Op::Wait(_) => WorkState::Until(self.now),
        }
    }

    /// Starts a copy that has an engine, and returns its state.
    fn start_copy(&mut self, job: Job, unit: u32, bytes: u64, route: Route) -> WorkState {
        let setup = self.units[unit as usize].copy_setup;
        if setup == Span::ZERO {
            return self.transfer(job, bytes.into(), route);
        }
        let begin = self.now.after(setup);
        self.setups.insert((begin, job), (bytes, route));
        WorkState::Until(begin.after(self.network.span_alone(bytes.into(), route)))
    }

    /// Begins the transfer of a copy whose setup is over.
    pub(super) fn begin_transfer(&mut self, job: Job, bytes: u64, route: Route) {
        let state = self.transfer(job, bytes.into(), route);
        self.set_state(job, state);
    }

    /// Sets the state of a piece of work which is a command of its own; a graph keeps no states.
    fn set_state(&mut self, job: Job, state: WorkState) {
        let stream = self.streams.get_mut(job.tag);
        if let Some(current) = stream.and_then(|stream| stream.current.as_mut())
            && let Progress::Work(_, slot) = &mut current.progress
        {
            *slot = state;
        }
    }

    fn transfer(&mut self, job: Job, bytes: u128, route: Route) -> WorkState {
        self.network
            .advance(self.now, &mut self.ended, &mut self.ledger);
        self.has_network_changed = true;
        WorkState::Transfer(self.network.start(job, bytes, route))
    }

    /// Returns the links that a copy of a unit crosses.
    fn route(&self, unit: u32, kind: CopyKind) -> Route {
        let device = &self.units[unit as usize];
        let gpu = device.info.gpu;
        match kind {
            CopyKind::HostToDevice => self.fabric.to_host(gpu, Direction::ToDevice),
            CopyKind::DeviceToHost => self.fabric.to_host(gpu, Direction::FromDevice),
            CopyKind::PageableToDevice => self.fabric.to_pageable(gpu, Direction::ToDevice),
            CopyKind::DeviceToPageable => self.fabric.to_pageable(gpu, Direction::FromDevice),
            CopyKind::Peer(other) => {
                let to = self.units.get(other as usize);
                self.fabric.to_peer(gpu, to.map_or(gpu, |to| to.info.gpu))
            }
            CopyKind::Within => device.within,
        }
    }

    /// Frees a copy engine, or passes it to the next waiting copy.
    pub(super) fn free_engine(&mut self, unit: u32, direction: Direction) {
        let engine = self.units[unit as usize].engine(direction);
        let Some((job, bytes, route)) = engine.waiting.pop_front() else {
            engine.free += 1;
            return;
        };
        let started = self.start_copy(job, unit, bytes, route);
        self.set_state(job, started);
    }

    /// Ends a piece of work, and its command if that was the last piece.
    pub(super) fn end_work(&mut self, job: Job, done: &mut Vec<Completion>) {
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
        let Progress::Graph(run) = &mut current.progress else {
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
            if let Progress::Graph(run) = current.progress {
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

    /// Completes or drops a record, and queues the streams that waited for it.
    pub(super) fn complete_record(&mut self, record: u64) {
        let waiting = self.events.complete_record(record);
        for &(slot, command) in &waiting {
            let Some(stream) = self.streams.get_mut(slot) else {
                continue;
            };
            // The command may have been dropped since, and its slot reused by another stream.
            if stream
                .waiting
                .front()
                .is_some_and(|head| head.id == command)
            {
                stream.is_queued = false;
                self.queue_head(slot);
            }
        }
        self.events.recycle(waiting);
    }

    fn end_command(&mut self, slot: u32, current: &Current, done: &mut Vec<Completion>) {
        let Some(stream) = self.streams.get(slot) else {
            return;
        };
        done.push(Completion {
            command: current.id,
            stream: stream.id,
            started: current.started,
            ended: self.now,
        });
        if stream.is_destroyed {
            self.remove_if_finished(slot);
        }
        self.queue_head(slot);
    }

    /// Returns the shortest span of a command: its duration if nothing else runs and it waits for nothing.
    pub(super) fn min_span(&mut self, slot: u32, op: &Op) -> Result<Span, SubmitError> {
        let Some(stream) = self.streams.get(slot) else {
            return Ok(Span::ZERO);
        };
        let (process, unit) = (stream.process, stream.unit);
        let Op::Graph(graph) = op else {
            return self.min_span_of_work(process, unit, op);
        };
        // Longest path through the graph, from the earliest start of each node.
        let mut begins = std::mem::take(&mut self.begins);
        begins.clear();
        begins.resize(graph.len(), 0);
        let mut longest = 0;
        for (node, at) in graph.nodes.iter().zip(0..) {
            let span = self.min_span_of_work(process, unit, &node.op)?;
            let end = u64::saturating_add(begins[at], span.0);
            for &next in &node.next {
                let begins = &mut begins[next as usize];
                *begins = end.max(*begins);
            }
            longest = end.max(longest);
        }
        self.begins = begins;
        Ok(Span(longest))
    }

    fn min_span_of_work(
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
            Op::Copy { kind, bytes } => {
                if let CopyKind::Peer(other) = *kind {
                    if other as usize >= self.units.len() {
                        return Err(SubmitError::NoPeer(other));
                    }
                    if other == unit {
                        return Err(SubmitError::OwnPeer(other));
                    }
                }
                let times = if *kind == CopyKind::Within { 2 } else { 1 };
                let route = self.route(unit, *kind);
                let setup = match kind.direction() {
                    Some(_) => self.units[unit as usize].copy_setup,
                    None => Span::ZERO,
                };
                let transfer = self.network.span_alone(times * u128::from(*bytes), route);
                Ok(Span(setup.0.saturating_add(transfer.0)))
            }
            Op::Set { bytes } => {
                let route = self.units[unit as usize].within;
                Ok(self.network.span_alone((*bytes).into(), route))
            }
            Op::Delay(span) => Ok(self.scale.span(*span)),
            Op::Host | Op::Graph(_) | Op::Record(_) | Op::Wait(_) => Ok(Span::ZERO),
        }
    }

    /// Returns the earliest possible end of the command that a stream is executing.
    pub(super) fn earliest_end_of_current(&self, stream: &Stream) -> Time {
        let Some(current) = &stream.current else {
            return self.now;
        };
        let unit = &self.units[stream.unit as usize];
        match current.progress {
            Progress::Work(_, WorkState::Kernel(slot)) => unit.compute.earliest_end(slot, self.now),
            Progress::Work(_, WorkState::Transfer(slot)) => {
                self.network.earliest_end(slot, self.now)
            }
            Progress::Work(_, WorkState::Engine) => self.now.after(current.min_span),
            Progress::Work(_, WorkState::Until(end)) => end,
            Progress::Work(_, WorkState::Host) => self.now,
            Progress::Graph(_) => current.started.after(current.min_span),
        }
    }
}
