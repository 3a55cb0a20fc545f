//! A command allocates nothing once all lists have reached the capacity in use.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::machine::{Completion, EventId, Machine, MpsServer, ProcessSettings, StreamId};
use device::node::{Gpu, Node};
use device::op::{CopyKind, Graph, Op};
use device::part::Part;
use device::{Span, Time};

/// Submits to every stream kernels that exceed the SMs, copies in both directions and within the device, waits and a graph.
fn round(machine: &mut Machine, streams: &[StreamId], event: EventId, graph: &Arc<Graph>) {
    let at = machine.now();
    for (n, &stream) in (0..).zip(streams) {
        let kernel = Kernel {
            duration: Span(10_000 + n * 100),
            sms: 100,
            law: Law::Power { exponent: 0.6 },
            interference_millionths: 10_000,
        };
        let bytes = 100_000;
        for op in [
            Op::Kernel(kernel),
            Op::Record(event),
            Op::Copy {
                kind: CopyKind::HostToDevice,
                bytes,
            },
            Op::Wait(event),
            Op::Copy {
                kind: CopyKind::Within,
                bytes,
            },
            Op::Graph(Arc::clone(graph)),
            Op::Copy {
                kind: CopyKind::DeviceToHost,
                bytes,
            },
            Op::Delay(Span(500)),
        ] {
            machine.submit(stream, at, op).unwrap();
        }
    }
}

#[test]
fn commands_allocate_nothing_in_the_steady_state() {
    let gpu = Gpu {
        part: Part::named("H100").unwrap(),
        slices: Vec::new(),
    };
    let node = Node {
        gpus: vec![gpu],
        ..Node::default()
    };
    let mut machine = Machine::new(&node).unwrap();
    machine.keep_ledger(false);
    let streams: Vec<_> = [Some(0), Some(0), Some(1), None, None, Some(0)]
        .into_iter()
        .map(|server| {
            let settings = ProcessSettings {
                mps: server.map(MpsServer),
                active_thread_percentage_hundredths: Some(4_000),
                memory_limit: None,
                without_context: false,
            };
            let process = machine.admit(0, &settings).unwrap();
            machine.stream(process)
        })
        .collect();
    let event = machine.event();
    let mut graph = Graph::default();
    let first = graph.add(Op::Set { bytes: 1_000 }, &[]).unwrap();
    let second = graph.add(Op::Delay(Span(100)), &[first]).unwrap();
    graph.add(Op::Delay(Span(200)), &[first, second]).unwrap();
    let graph = Arc::new(graph);
    let mut done: Vec<Completion> = Vec::new();
    let rounds = |machine: &mut Machine, done: &mut Vec<Completion>| {
        for _ in 0..20 {
            round(machine, &streams, event, &graph);
            while machine.next().is_some() {
                let to = machine.now().after(Span(70_000));
                machine.advance(to, done);
            }
            assert_eq!(done.len(), streams.len() * 8);
            done.clear();
        }
    };
    rounds(&mut machine, &mut done);
    let allocations = allocation_counter::measure(|| rounds(&mut machine, &mut done));
    assert_eq!(allocations.count_total, 0);
    assert!(machine.now() > Time(10_000_000));
}
