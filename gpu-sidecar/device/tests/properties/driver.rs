//! Runs a machine through random steps, and tracks separately the memory held and the commands to complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::ledger::{Entry, ProcessId};
use device::machine::{
    Completion, EventId, HostTurn, Machine, MpsServer, ProcessSettings, StreamId, SuspendError,
};
use device::memory::MemoryError;
use device::node::{Gpu, Node, NvLink, Scale, Switch};
use device::op::{CopyKind, Graph, Op};
use device::part::Part;
use device::{Span, Time};
use proptest::prelude::*;

/// One random operation on the machine.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Kernel {
        stream: usize,
        micros: u64,
        sms: u32,
    },
    Copy {
        stream: usize,
        kind: u8,
        bytes: u64,
    },
    Graph {
        stream: usize,
        micros: u64,
    },
    Delay {
        stream: usize,
        micros: u64,
        later: u64,
    },
    Host {
        stream: usize,
    },
    Join {
        from: usize,
        to: usize,
        destroy: bool,
    },
    Record {
        stream: usize,
        event: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    Pass {
        micros: u64,
    },
    Allocate {
        process: usize,
        mib: u64,
    },
    Free {
        process: usize,
        mib: u64,
    },
    Abort {
        process: usize,
    },
    Replace {
        process: usize,
    },
    Suspend {
        process: usize,
    },
    Resume {
        process: usize,
    },
    DestroyStream {
        stream: usize,
    },
}

pub(crate) const PROCESSES: usize = 7;
const STREAMS: usize = 2 * PROCESSES;
const EVENTS: usize = 3;

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..80)
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    let process = 0..PROCESSES;
    let event = 0..EVENTS;
    prop_oneof![
        12 => (stream.clone(), 0..3_000_u64, 0..200_u32)
            .prop_map(|(stream, micros, sms)| Step::Kernel { stream, micros, sms }),
        8 => (stream.clone(), 0..6_u8, 0..40_000_000_u64)
            .prop_map(|(stream, kind, bytes)| Step::Copy { stream, kind, bytes }),
        2 => (stream.clone(), 0..500_u64).prop_map(|(stream, micros)| Step::Graph { stream, micros }),
        2 => (stream.clone(), 0..500_u64, 0..3_000_u64)
            .prop_map(|(stream, micros, later)| Step::Delay { stream, micros, later }),
        2 => stream.clone().prop_map(|stream| Step::Host { stream }),
        2 => (stream.clone(), stream.clone(), any::<bool>())
            .prop_map(|(from, to, destroy)| Step::Join { from, to, destroy }),
        2 => (stream.clone(), event.clone()).prop_map(|(stream, event)| Step::Record { stream, event }),
        2 => (stream.clone(), event).prop_map(|(stream, event)| Step::Wait { stream, event }),
        8 => (0..2_000_u64).prop_map(|micros| Step::Pass { micros }),
        3 => (process.clone(), 0..30_000_u64).prop_map(|(process, mib)| Step::Allocate { process, mib }),
        2 => (process.clone(), 0..20_000_u64).prop_map(|(process, mib)| Step::Free { process, mib }),
        1 => process.clone().prop_map(|process| Step::Abort { process }),
        1 => process.clone().prop_map(|process| Step::Replace { process }),
        2 => process.clone().prop_map(|process| Step::Suspend { process }),
        2 => process.prop_map(|process| Step::Resume { process }),
        1 => stream.prop_map(|stream| Step::DestroyStream { stream }),
    ]
}

/// Returns a node with a whole A100 and one with three slices, both behind one switch and with an NVLink.
pub(crate) fn node(scale: Scale) -> Node {
    let part = Part::named("A100").unwrap();
    let gpu = |slices: &[&str]| Gpu {
        part: part.clone(),
        slices: slices.iter().map(|&name| name.to_owned()).collect(),
    };
    Node {
        gpus: vec![gpu(&[]), gpu(&["4g.40gb", "2g.20gb", "1g.10gb"])],
        switches: vec![Switch {
            gpus: vec![0, 1],
            uplink_bytes_per_second: 30_000_000_000,
        }],
        nvlinks: vec![NvLink {
            gpus: [0, 1],
            bytes_per_second: 100_000_000_000,
        }],
        scale,
    }
}

/// Unit, MPS server, percentage in hundredths, and memory limit in MiB of a process.
type Kind = (u32, Option<u32>, Option<u32>, Option<u64>);

const KINDS: [Kind; PROCESSES] = [
    (0, Some(0), Some(3_000), None),
    (0, Some(0), Some(5_000), Some(20_000)),
    (0, None, Some(1_000), None),
    (0, Some(1), None, Some(10_000)),
    (1, None, None, None),
    (3, Some(0), Some(5_000), Some(5_000)),
    (3, Some(0), None, None),
];

const MIB: u64 = 1 << 20;

/// Expected state of a process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessModel {
    pub(crate) unit: u32,
    /// Participant in time slicing: its MPS server, or the process itself.
    pub(crate) participant: (Option<u32>, ProcessId),
    pub(crate) sms: u32,
    pub(crate) memory_limit: u64,
    allocated: u64,
    is_suspended: bool,
    is_gone: bool,
    /// Integral of the memory held on the device, in bytes × nanoseconds.
    pub(crate) byte_nanos: u128,
}

/// Expected work of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ExpectedWork {
    /// Work of kernels in nanoseconds × SMs, on the scaled node.
    Kernels(u128),
    /// Transfer of bytes over each of a number of links.
    Bytes(u128, usize),
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct SubmittedCommand {
    pub(crate) process: ProcessId,
    pub(crate) stream: StreamId,
    pub(crate) expected: ExpectedWork,
    pub(crate) earliest_end: Time,
    /// Time at which the command was dropped, after which it must not complete.
    pub(crate) dropped: Option<Time>,
}

#[derive(Debug)]
pub(crate) struct RunRecord {
    pub(crate) done: Vec<Completion>,
    pub(crate) ledger: Vec<Entry>,
    pub(crate) submitted: BTreeMap<u64, SubmittedCommand>,
    pub(crate) known: BTreeMap<ProcessId, ProcessModel>,
    pub(crate) sms: Vec<u32>,
    pub(crate) memory: Vec<u64>,
    pub(crate) links: Vec<u64>,
}

struct Driver {
    machine: Machine,
    scale: Scale,
    residue: u64,
    processes: [Option<ProcessId>; PROCESSES],
    streams: [Option<StreamId>; STREAMS],
    events: [EventId; EVENTS],
    /// Host functions that are released at the next advance.
    turns: Vec<HostTurn>,
    done: Vec<Completion>,
    completed: BTreeSet<u64>,
    ledger: Vec<Entry>,
    submitted: BTreeMap<u64, SubmittedCommand>,
    known: BTreeMap<ProcessId, ProcessModel>,
    /// Time of the last update of `byte_nanos`.
    since: Time,
    stride: Option<u64>,
}

/// Runs the steps and then all remaining work. With a `stride`, time advances in pieces of that many nanoseconds, with the ledger
/// taken after each.
pub(crate) fn run(steps: &[Step], scale: Scale, stride: Option<u64>) -> RunRecord {
    let mut machine = Machine::new(&node(scale)).unwrap();
    let events = [(); EVENTS].map(|()| machine.event());
    let mut driver = Driver {
        machine,
        scale,
        residue: 300 * MIB / u64::from(scale.bytes),
        processes: [None; PROCESSES],
        streams: [None; STREAMS],
        events,
        turns: Vec::new(),
        done: Vec::new(),
        completed: BTreeSet::new(),
        ledger: Vec::new(),
        submitted: BTreeMap::new(),
        known: BTreeMap::new(),
        since: Time::ZERO,
        stride,
    };
    for process in 0..PROCESSES {
        driver.admit(process);
    }
    for step in steps {
        driver.step(step);
    }
    driver.finish();
    let infos = (0..4).map(|unit| driver.machine.unit_info(unit).unwrap());
    let (sms, memory) = infos.map(|info| (info.sms, info.memory)).unzip();
    RunRecord {
        sms,
        memory,
        links: driver.machine.links().collect(),
        done: driver.done,
        ledger: driver.ledger,
        submitted: driver.submitted,
        known: driver.known,
    }
}

impl Driver {
    fn kernel(&self, micros: u64, sms: u32) -> (Kernel, u128) {
        let kernel = Kernel {
            duration: Span(micros * 1_000),
            sms,
            law: Law::Linear,
            interference_millionths: 0,
        };
        let nanos = u128::from(kernel.duration.0) * u128::from(self.scale.time);
        (kernel, nanos * u128::from(sms.clamp(1, 108)))
    }

    fn submit_at(&mut self, stream: usize, not_before: Time, op: Op, expected: ExpectedWork) {
        let Some(stream) = self.streams[stream] else {
            return;
        };
        let process = self.process_of(stream);
        let command = self.machine.submit(stream, not_before, op).unwrap();
        let submitted = SubmittedCommand {
            process,
            stream,
            expected,
            earliest_end: self.machine.earliest_end(stream).unwrap(),
            dropped: None,
        };
        assert!(self.submitted.insert(command, submitted).is_none());
    }

    fn submit(&mut self, stream: usize, op: Op, expected: ExpectedWork) {
        self.submit_at(stream, self.machine.now(), op, expected);
    }

    fn process_of(&self, stream: StreamId) -> ProcessId {
        let at = self.streams.iter().position(|&own| own == Some(stream));
        self.processes[at.unwrap() / 2].unwrap()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Kernel {
                stream,
                micros,
                sms,
            } => {
                let (kernel, work) = self.kernel(micros, sms);
                self.submit(stream, Op::Kernel(kernel), ExpectedWork::Kernels(work));
            }
            Step::Copy {
                stream,
                kind,
                bytes,
            } => self.copy(stream, kind, bytes / u64::from(self.scale.bytes)),
            Step::Graph { stream, micros } => self.graph(stream, micros),
            Step::Delay {
                stream,
                micros,
                later,
            } => {
                let at = self.machine.now().after(Span(later * 1_000));
                self.submit_at(
                    stream,
                    at,
                    Op::Delay(Span(micros * 1_000)),
                    ExpectedWork::Other,
                );
            }
            Step::Host { stream } => self.submit(stream, Op::Host, ExpectedWork::Other),
            Step::Join { from, to, destroy } => {
                let event = self.machine.event();
                self.submit(from, Op::Record(event), ExpectedWork::Other);
                self.submit(to, Op::Wait(event), ExpectedWork::Other);
                if destroy {
                    self.machine.destroy_event(event);
                }
            }
            Step::Record { stream, event } => {
                self.submit(stream, Op::Record(self.events[event]), ExpectedWork::Other);
            }
            Step::Wait { stream, event } => {
                self.submit(stream, Op::Wait(self.events[event]), ExpectedWork::Other);
            }
            Step::Pass { micros } => self.pass(Span(micros * 1_000)),
            Step::Allocate { process, mib } => self.allocate(process, mib * MIB),
            Step::Free { process, mib } => self.free(process, mib * MIB),
            Step::Abort { process } => {
                if let Some(process) = self.processes[process] {
                    self.machine.abort(process);
                    self.drop_commands(process);
                }
            }
            Step::Replace { process } => {
                if self.processes[process].is_some() {
                    self.dismiss(process);
                }
                self.admit(process);
            }
            Step::Suspend { process } => self.suspend(process),
            Step::Resume { process } => {
                self.resume(process);
            }
            Step::DestroyStream { stream } => {
                if let Some(id) = self.streams[stream] {
                    self.machine.destroy_stream(id);
                    let process = self.processes[stream / 2].unwrap();
                    self.streams[stream] = Some(self.machine.stream(process));
                }
            }
        }
    }

    fn copy(&mut self, stream: usize, kind: u8, bytes: u64) {
        let sliced = stream / 2 >= 4;
        let (op, expected) = match kind {
            0 | 1 => (CopyKind::HostToDevice, 2),
            2 => (CopyKind::DeviceToHost, 2),
            // Across the NVLink.
            3 => (CopyKind::Peer(if sliced { 0 } else { 1 }), 1),
            // Between slices of one GPU: out and back in, bypassing the switch's uplink.
            4 if sliced => (CopyKind::Peer(2), 2),
            4 => (CopyKind::Within, 0),
            _ => {
                let expected = ExpectedWork::Bytes(bytes.into(), 1);
                return self.submit(stream, Op::Set { bytes }, expected);
            }
        };
        let expected = match expected {
            0 => ExpectedWork::Bytes(2 * u128::from(bytes), 1),
            links => ExpectedWork::Bytes(bytes.into(), links),
        };
        self.submit(stream, Op::Copy { kind: op, bytes }, expected);
    }

    fn graph(&mut self, stream: usize, micros: u64) {
        let mut graph = Graph::default();
        let mut work = 0;
        let mut kernel = |sms| {
            let (kernel, its) = self.kernel(micros, sms);
            work += its;
            Op::Kernel(kernel)
        };
        let (one, two, three) = (kernel(20), kernel(30), kernel(10));
        let first = graph.add(one, &[]).unwrap();
        let left = graph.add(two, &[first]).unwrap();
        let right = graph.add(Op::Delay(Span(micros)), &[first]).unwrap();
        let host = graph.add(Op::Host, &[]).unwrap();
        graph.add(three, &[left, right, host]).unwrap();
        let graph = Op::Graph(Arc::new(graph));
        self.submit(stream, graph, ExpectedWork::Kernels(work));
    }

    fn pass(&mut self, span: Span) {
        let to = self.machine.now().after(span);
        while let Some(stride) = self.stride.filter(|_| self.machine.now() < to) {
            let next = self.machine.now().after(Span(stride)).min(to);
            self.machine.advance(next, &mut self.done);
            self.ledger.extend(self.machine.take_ledger(true));
        }
        self.machine.advance(to, &mut self.done);
        self.ledger.extend(self.machine.take_ledger(false));
        self.count_memory();
        for done in &self.done[self.completed.len()..] {
            assert!(
                self.completed.insert(done.command),
                "{done:?} completed twice"
            );
        }
        for turn in std::mem::take(&mut self.turns) {
            // Host functions of dismissed processes no longer exist.
            let exists = self.submitted[&turn.work.command].dropped.is_none();
            assert_eq!(self.machine.release(turn.work, to), exists);
        }
        for turn in self.machine.take_host_turns() {
            assert!(turn.at <= to);
            if turn.work.command % 3 == 0 {
                let at = to.after(Span(turn.work.command * 37_000 % 400_000));
                assert!(self.machine.release(turn.work, at));
            } else {
                self.turns.push(turn);
            }
        }
    }

    fn finish(&mut self) {
        loop {
            let mut is_waiting = false;
            for process in 0..PROCESSES {
                is_waiting |= self.resume(process);
            }
            let before = self.done.len();
            let stride = self.stride.take();
            self.pass(Span::from_secs(100));
            self.stride = stride;
            if self.machine.next().is_some() || !self.turns.is_empty() || self.done.len() > before {
                continue;
            }
            if !is_waiting {
                break;
            }
            // The memory may not suffice to resume all suspended processes.
            for process in 0..PROCESSES {
                let id = self.processes[process];
                if id.is_some_and(|id| self.known[&id].is_suspended) {
                    self.dismiss(process);
                    break;
                }
            }
        }
        self.ledger.extend(self.machine.take_ledger(true));
    }

    /// Adds the memory held since the last update to `byte_nanos`.
    fn count_memory(&mut self) {
        let span = self.machine.now().since(self.since).0;
        self.since = self.machine.now();
        let residue = self.residue;
        for known in self.known.values_mut() {
            known.byte_nanos += u128::from(known.held(residue)) * u128::from(span);
        }
    }

    fn free_of(&self, unit: u32) -> u64 {
        let of = |known: &&ProcessModel| known.unit == unit;
        let held = self.known.values().filter(of);
        let held: u64 = held.map(|known| known.held(self.residue)).sum();
        self.machine.unit_info(unit).unwrap().memory - held
    }

    /// Returns whether the machine is expected to admit an allocation.
    fn fits(&self, unit: u32, held: u64, requested: u64, limit: u64) -> bool {
        held + requested <= limit && requested <= self.free_of(unit)
    }

    fn admit(&mut self, process: usize) {
        let (unit, server, percent, limit_mib) = KINDS[process];
        let limit = limit_mib.map(|mib| mib * MIB / u64::from(self.scale.bytes));
        let settings = ProcessSettings {
            mps: server.map(MpsServer),
            active_thread_percentage_hundredths: percent,
            memory_limit: limit,
            without_context: false,
        };
        let capacity = self.machine.unit_info(unit).unwrap().memory;
        let memory_limit = limit.unwrap_or(capacity);
        let fits = self.fits(unit, 0, self.residue, memory_limit);
        let admitted = self.machine.admit(unit, &settings);
        assert_eq!(admitted.is_ok(), fits, "{admitted:?}");
        self.processes[process] = admitted.ok();
        let streams = [2 * process, 2 * process + 1];
        let Some(id) = self.processes[process] else {
            for stream in streams {
                self.streams[stream] = None;
            }
            return;
        };
        for stream in streams {
            self.streams[stream] = Some(self.machine.stream(id));
        }
        let known = ProcessModel {
            unit,
            participant: (server, server.map_or(id, |_| ProcessId(u32::MAX))),
            sms: self.machine.sms_of(id).unwrap(),
            memory_limit,
            allocated: 0,
            is_suspended: false,
            is_gone: false,
            byte_nanos: 0,
        };
        self.known.insert(id, known);
    }

    fn dismiss(&mut self, process: usize) {
        let id = self.processes[process].take().unwrap();
        self.machine.dismiss(id);
        self.drop_commands(id);
        self.known.get_mut(&id).unwrap().is_gone = true;
        self.streams[2 * process] = None;
        self.streams[2 * process + 1] = None;
    }

    fn drop_commands(&mut self, process: ProcessId) {
        let now = self.machine.now();
        for (command, submitted) in &mut self.submitted {
            if submitted.process == process && !self.completed.contains(command) {
                submitted.dropped.get_or_insert(now);
            }
        }
    }

    fn allocate(&mut self, process: usize, bytes: u64) {
        let Some(id) = self.processes[process] else {
            return;
        };
        let bytes = bytes / u64::from(self.scale.bytes);
        let known = &self.known[&id];
        let held = known.held(self.residue);
        let fits = !known.is_suspended && self.fits(known.unit, held, bytes, known.memory_limit);
        let allocated = self.machine.allocate(id, bytes);
        assert_eq!(allocated.is_ok(), fits, "{allocated:?}");
        if fits {
            self.known.get_mut(&id).unwrap().allocated += bytes;
        }
        self.check_memory(id);
    }

    fn free(&mut self, process: usize, bytes: u64) {
        let Some(id) = self.processes[process] else {
            return;
        };
        let bytes = bytes / u64::from(self.scale.bytes);
        let known = self.known.get_mut(&id).unwrap();
        let fits = !known.is_suspended && bytes <= known.allocated;
        let freed = self.machine.free(id, bytes);
        assert_eq!(freed.is_ok(), fits, "{freed:?}");
        if fits {
            known.allocated -= bytes;
        }
        self.check_memory(id);
    }

    fn suspend(&mut self, process: usize) {
        let Some(id) = self.processes[process] else {
            return;
        };
        let known = self.known.get_mut(&id).unwrap();
        match self.machine.suspend(id) {
            Ok(allocated) => {
                assert!(!known.is_suspended);
                assert_eq!(allocated, known.allocated);
                known.is_suspended = true;
            }
            Err(SuspendError::Suspended(_)) => assert!(known.is_suspended),
            Err(error) => assert!(matches!(error, SuspendError::Running { .. }), "{error}"),
        }
        self.check_memory(id);
    }

    /// Resumes a process if it is suspended, and returns whether it is still suspended.
    fn resume(&mut self, process: usize) -> bool {
        let Some(id) = self.processes[process] else {
            return false;
        };
        let known = &self.known[&id];
        let whole = known.allocated + self.residue;
        let fits = !known.is_suspended || self.fits(known.unit, 0, whole, known.memory_limit);
        let resumed = self.machine.resume(id);
        assert_eq!(resumed.is_ok(), fits, "{resumed:?}");
        assert!(!matches!(resumed, Err(MemoryError::NotHeld { .. })));
        let known = self.known.get_mut(&id).unwrap();
        known.is_suspended &= resumed.is_err();
        let is_suspended = known.is_suspended;
        self.check_memory(id);
        is_suspended
    }

    fn check_memory(&self, process: ProcessId) {
        let known = &self.known[&process];
        let memory = self.machine.memory(known.unit).unwrap();
        assert_eq!(memory.held(process), known.held(self.residue));
        assert_eq!(memory.free(), self.free_of(known.unit));
    }
}

impl ProcessModel {
    fn held(&self, residue: u64) -> u64 {
        if self.is_suspended || self.is_gone {
            return 0;
        }
        self.allocated + residue
    }
}
