//! A command allocates nothing once all lists have grown to what is in use.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::machine::{Done, EventId, Machine, MpsServer, ProcessSettings, StreamId};
use device::node::{Gpu, Node};
use device::op::{Graph, Op, Way};
use device::part::Part;
use device::{Span, Time};

/// Kernels that want more than there is, copies both ways and within, waits, a graph: on every stream.
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
                way: Way::HostToDevice,
                bytes,
            },
            Op::Wait(event),
            Op::Copy {
                way: Way::Within,
                bytes,
            },
            Op::Graph(Arc::clone(graph)),
            Op::Copy {
                way: Way::DeviceToHost,
                bytes,
            },
            Op::Delay(Span(500)),
        ] {
            machine.submit(stream, at, op).unwrap();
        }
    }
}

#[test]
fn a_command_allocates_nothing_once_warm() {
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
    let mut done: Vec<Done> = Vec::new();
    let rounds = |machine: &mut Machine, done: &mut Vec<Done>| {
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
