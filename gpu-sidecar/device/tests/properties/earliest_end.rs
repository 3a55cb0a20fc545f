//! The earliest possible end of a stream is its actual end if nothing competes with it.

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::machine::{Machine, MpsServer, ProcessSettings};
use device::node::Scale;
use device::op::{CopyKind, Graph, Op};
use device::{Span, Time};
use proptest::prelude::*;

use crate::driver::node;

fn kernel() -> impl Strategy<Value = Op> {
    let law = prop_oneof![
        Just(Law::Linear),
        Just(Law::Amdahl { serial: 0.2 }),
        Just(Law::Saturating { at: 0.24 }),
        Just(Law::Power { exponent: 0.6 }),
    ];
    (0..3_000_000_u64, 0..120_u32, law).prop_map(|(nanos, sms, law)| {
        Op::Kernel(Kernel {
            duration: Span(nanos),
            sms,
            law,
            interference_millionths: 500_000,
        })
    })
}

fn work() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        Just(CopyKind::HostToDevice),
        Just(CopyKind::DeviceToHost),
        Just(CopyKind::Peer(0)),
        Just(CopyKind::Within),
    ];
    prop_oneof![
        3 => kernel(),
        2 => (kind, 0..50_000_000_u64).prop_map(|(kind, bytes)| Op::Copy { kind, bytes }),
        1 => (0..50_000_000_u64).prop_map(|bytes| Op::Set { bytes }),
        1 => (0..3_000_000_u64).prop_map(|nanos| Op::Delay(Span(nanos))),
    ]
}

/// Pieces of work in sequence, with concurrent delays, which hold no resource.
fn graph() -> impl Strategy<Value = Op> {
    prop::collection::vec((work(), 0..3_000_000_u64), 0..6).prop_map(|works| {
        let mut graph = Graph::default();
        let mut before = Vec::new();
        for (op, nanos) in works {
            let own = graph.add(op, &before).unwrap();
            before = vec![own];
            graph.add(Op::Delay(Span(nanos)), &before).unwrap();
        }
        Op::Graph(Arc::new(graph))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_earliest_end_of_a_lone_stream_is_its_end(
        steps in prop::collection::vec((prop_oneof![4 => work(), 1 => graph()], 0..5_000_000_u64, 0..3_000_000_u64), 1..20),
        unit in 1..4_u32,
        percent in 1..10_000_u32,
        time in 1..4_u32,
    ) {
        let mut machine = Machine::new(&node(Scale { time, bytes: 3 })).unwrap();
        let settings = ProcessSettings {
            mps: Some(MpsServer(0)),
            active_thread_percentage_hundredths: Some(percent),
            memory_limit: None,
            without_context: false,
        };
        let process = machine.admit(unit, &settings).unwrap();
        let stream = machine.stream(process);
        let mut done = Vec::new();
        let mut expected = Vec::new();
        for (op, later, pass) in steps {
            let not_before = machine.now().after(Span(later));
            let command = machine.submit(stream, not_before, op).unwrap();
            let end = machine.earliest_end(stream).unwrap();
            expected.push((command, end));
            machine.advance(machine.now().after(Span(pass)), &mut done);
            prop_assert_eq!(machine.earliest_end(stream), Some(end.max(machine.now())));
        }
        machine.advance(Time(3_600_000_000_000), &mut done);
        let ended: Vec<_> = done.iter().map(|done| (done.command, done.ended)).collect();
        prop_assert_eq!(ended, expected);
    }
}
