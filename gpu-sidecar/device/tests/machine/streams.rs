//! Streams, events and graphs.

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::ledger::Resource;
use device::machine::{Machine, StreamId, SubmitError};
use device::op::{CopyKind, Graph, Op};
use device::{Span, Time};

use crate::{ALONE, CLIENT, ended, kernel, machine, node, run, submit};

#[test]
fn a_turn_lasts_over_the_kernels_of_a_stream() {
    let mut machine = machine(&[]);
    let streams = [0, 0].map(|unit| {
        let process = machine.admit(unit, &ALONE).unwrap();
        machine.stream(process)
    });
    let mut last = [0; 2];
    for _ in 0..20 {
        for (n, stream) in streams.into_iter().enumerate() {
            last[n] = submit(&mut machine, stream, Time(0), kernel(100));
        }
    }
    // Twenty kernels of 100 µs are one turn of 2 ms, at the end of which the first stream is empty.
    let done = run(&mut machine);
    assert_eq!(ended(&done, streams[0], last[0]), 2_000);
    assert_eq!(ended(&done, streams[1], last[1]), 4_200);
}

#[test]
fn a_slice_slows_a_kernel_down_according_to_its_law() {
    for (law, slowdown) in [
        (Law::Linear, 108.0 / 14.0),
        (
            Law::Power { exponent: 0.598 },
            (108.0_f64 / 14.0).powf(0.598),
        ),
    ] {
        let mut machine = machine(&["1g.10gb"]);
        let process = machine.admit(0, &ALONE).unwrap();
        let stream = machine.stream(process);
        let kernel = Kernel {
            duration: Span::from_millis(10),
            sms: 108,
            law,
            interference_millionths: 0,
        };
        let command = submit(&mut machine, stream, Time(0), Op::Kernel(kernel));
        #[expect(clippy::cast_precision_loss, reason = "some milliseconds")]
        let took = ended(&run(&mut machine), stream, command) as f64 / 10_000.0;
        assert!((took / slowdown - 1.0).abs() < 1e-3, "{law:?}: {took}");
    }
}

#[test]
fn a_wait_is_for_the_last_record_submitted_before_it() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &CLIENT).unwrap();
    let [slow, waits, idle] = [(); 3].map(|()| machine.stream(process));
    let event = machine.event();
    submit(&mut machine, slow, Time(0), Op::Delay(Span::from_millis(5)));
    submit(&mut machine, slow, Time(0), Op::Record(event));
    submit(&mut machine, waits, Time(0), Op::Wait(event));
    let after = submit(
        &mut machine,
        waits,
        Time(0),
        Op::Delay(Span::from_millis(1)),
    );
    submit(&mut machine, idle, Time(0), Op::Record(event));
    assert_eq!(ended(&run(&mut machine), waits, after), 6_000);
}

#[test]
fn streams_that_wait_for_a_dismissed_process_continue() {
    let mut machine = machine(&[]);
    let [gone, stays] = [(); 2].map(|()| machine.admit(0, &CLIENT).unwrap());
    let (records, waits) = (machine.stream(gone), machine.stream(stays));
    let event = machine.event();
    submit(&mut machine, records, Time(0), kernel(10_000));
    submit(&mut machine, records, Time(0), Op::Record(event));
    let command = submit(&mut machine, waits, Time(0), Op::Wait(event));
    let mut done = Vec::new();
    machine.advance(Time(3_000_000), &mut done);
    assert!(done.is_empty());
    machine.dismiss(gone);
    assert_eq!(ended(&run(&mut machine), waits, command), 3_000);
}

#[test]
fn a_graph_runs_in_the_order_of_its_dependencies() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &CLIENT).unwrap();
    let stream = machine.stream(process);
    let delay = |millis| Op::Delay(Span::from_millis(millis));
    let mut graph = Graph::default();
    let first = graph.add(delay(1), &[]).unwrap();
    let left = graph.add(delay(2), &[first]).unwrap();
    let right = graph.add(delay(5), &[first, first]).unwrap();
    graph.add(delay(3), &[left, right]).unwrap();
    graph.add(delay(8), &[]).unwrap();
    let graph = Arc::new(graph);
    let one = submit(&mut machine, stream, Time(0), Op::Graph(Arc::clone(&graph)));
    let two = submit(&mut machine, stream, Time(0), Op::Graph(graph));
    let empty = submit(&mut machine, stream, Time(0), Op::Graph(Arc::default()));
    let done = run(&mut machine);
    assert_eq!(
        [one, two, empty].map(|command| ended(&done, stream, command)),
        [9_000, 18_000, 18_000]
    );
}

#[test]
fn copies_in_one_direction_wait_for_the_engine() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &CLIENT).unwrap();
    let [one, two, back] = [(); 3].map(|()| machine.stream(process));
    // 25 MB at 25 GB/s take 1 ms.
    let copy = |kind| Op::Copy {
        kind,
        bytes: 25_000_000,
    };
    let first = submit(&mut machine, one, Time(0), copy(CopyKind::HostToDevice));
    let second = submit(&mut machine, two, Time(0), copy(CopyKind::HostToDevice));
    let third = submit(&mut machine, back, Time(0), copy(CopyKind::DeviceToHost));
    let done = run(&mut machine);
    assert_eq!(ended(&done, one, first), 1_000);
    assert_eq!(ended(&done, two, second), 2_000);
    assert_eq!(ended(&done, back, third), 1_000);
}

fn with_setup() -> Machine {
    let mut node = node("A100", &[]);
    node.gpus[0].part.copy_setup_us = 100;
    Machine::new(&node).unwrap()
}

#[test]
fn a_copy_occupies_its_engine_before_its_first_byte() {
    let mut machine = with_setup();
    let process = machine.admit(0, &CLIENT).unwrap();
    let [one, two, back, within] = [(); 4].map(|()| machine.stream(process));
    let copy = |kind| Op::Copy {
        kind,
        bytes: 25_000_000,
    };
    let first = submit(&mut machine, one, Time(0), copy(CopyKind::HostToDevice));
    assert_eq!(machine.earliest_end(one), Some(Time(1_100_000)));
    let second = submit(&mut machine, two, Time(0), copy(CopyKind::HostToDevice));
    let third = submit(&mut machine, back, Time(0), copy(CopyKind::DeviceToHost));
    let fourth = submit(&mut machine, within, Time(0), copy(CopyKind::Within));
    let mut done = Vec::new();
    machine.advance(Time(50_000), &mut done);
    assert_eq!(machine.earliest_end(one), Some(Time(1_100_000)));
    done.extend(run(&mut machine));
    assert_eq!(ended(&done, one, first), 1_100);
    assert_eq!(ended(&done, two, second), 2_200);
    assert_eq!(ended(&done, back, third), 1_100);
    // Within the device the SMs copy.
    assert!(ended(&done, within, fourth) < 100);
    // No byte is on the link during a setup.
    let ledger = machine.take_ledger(true);
    let mut of_link: Vec<_> = ledger
        .iter()
        .filter(|entry| entry.resource == Resource::Link { link: 0 })
        .map(|entry| (entry.from.0, entry.to.0))
        .collect();
    of_link.sort_unstable();
    assert_eq!(of_link, [(100_000, 1_100_000), (1_200_000, 2_200_000)]);
}

#[test]
fn a_process_that_ends_in_the_setup_of_its_copy_frees_the_engine() {
    let mut machine = with_setup();
    let [one, two] = [(); 2].map(|()| machine.admit(0, &CLIENT).unwrap());
    let [first, second] = [one, two].map(|process| machine.stream(process));
    let copy = || Op::Copy {
        kind: CopyKind::HostToDevice,
        bytes: 25_000_000,
    };
    submit(&mut machine, first, Time(0), copy());
    let waits = submit(&mut machine, second, Time(0), copy());
    machine.advance(Time(40_000), &mut Vec::new());
    machine.abort(one);
    let done = run(&mut machine);
    assert_eq!(ended(&done, second, waits), 1_140);
    assert_eq!(done.len(), 1);
}

#[test]
fn copies_of_a_graph_have_their_setup_each() {
    let mut machine = with_setup();
    let process = machine.admit(0, &CLIENT).unwrap();
    let stream = machine.stream(process);
    let mut graph = Graph::default();
    let copy = |kind| Op::Copy {
        kind,
        bytes: 25_000_000,
    };
    let first = graph.add(copy(CopyKind::HostToDevice), &[]).unwrap();
    graph.add(copy(CopyKind::DeviceToHost), &[first]).unwrap();
    let graph = Op::Graph(Arc::new(graph));
    let command = submit(&mut machine, stream, Time(0), graph);
    assert_eq!(machine.earliest_end(stream), Some(Time(2_200_000)));
    assert_eq!(ended(&run(&mut machine), stream, command), 2_200);
}

#[test]
fn pageable_memory_is_copied_at_the_rate_of_the_staging() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &CLIENT).unwrap();
    let [one, two, three] = [(); 3].map(|()| machine.stream(process));
    // 8 MB at 8 GB/s.
    let copy = |kind| Op::Copy {
        kind,
        bytes: 8_000_000,
    };
    let to = submit(&mut machine, one, Time(0), copy(CopyKind::PageableToDevice));
    let from = submit(&mut machine, two, Time(0), copy(CopyKind::DeviceToPageable));
    let after = submit(&mut machine, three, Time(0), copy(CopyKind::HostToDevice));
    let done = run(&mut machine);
    assert_eq!(ended(&done, one, to), 1_000);
    assert_eq!(ended(&done, two, from), 1_000);
    assert_eq!(ended(&done, three, after), 1_320);
}

#[test]
fn every_command_completes_once() {
    let mut machine = machine(&["3g.40gb", "3g.40gb"]);
    let process = machine.admit(1, &ALONE).unwrap();
    let stream = machine.stream(process);
    let event = machine.event();
    let ops = [
        kernel(0),
        kernel(7),
        Op::Delay(Span::ZERO),
        Op::Copy {
            kind: CopyKind::Peer(0),
            bytes: 0,
        },
        Op::Copy {
            kind: CopyKind::Peer(0),
            bytes: 1,
        },
        Op::Wait(event),
        Op::Record(event),
        Op::Wait(event),
    ];
    let submitted: Vec<_> = ops
        .into_iter()
        .map(|op| submit(&mut machine, stream, Time(5), op))
        .collect();
    let done: Vec<_> = run(&mut machine).iter().map(|done| done.command).collect();
    assert_eq!(done, submitted);
}

#[test]
fn copies_of_one_instant_queue_in_the_order_of_their_submission() {
    for at in [0, 7] {
        let mut machine = machine(&[]);
        let process = machine.admit(0, &CLIENT).unwrap();
        let streams = [(); 3].map(|()| machine.stream(process));
        let copy = Op::Copy {
            kind: CopyKind::HostToDevice,
            bytes: 25_000_000,
        };
        let order = [2, 0, 1];
        let not_before = Time(at * 1_000);
        let commands = order.map(|n| submit(&mut machine, streams[n], not_before, copy.clone()));
        let done = run(&mut machine);
        let ends = [0, 1, 2].map(|n| ended(&done, streams[order[n]], commands[n]));
        assert_eq!(ends, [1_000 + at, 2_000 + at, 3_000 + at]);
    }
}

#[test]
fn simultaneous_completions_are_in_the_order_of_submission() {
    let mut machine = machine(&["3g.40gb", "3g.40gb"]);
    let streams = [1, 0, 0, 0, 1].map(|unit| {
        let process = machine.admit(unit, &CLIENT).unwrap();
        machine.stream(process)
    });
    // All commands take 1 ms.
    let small = Op::Kernel(Kernel {
        duration: Span::from_millis(1),
        sms: 1,
        law: Law::Linear,
        interference_millionths: 0,
    });
    let ops = [
        Op::Delay(Span::from_millis(1)),
        Op::Copy {
            kind: CopyKind::DeviceToHost,
            bytes: 25_000_000,
        },
        small.clone(),
        Op::Delay(Span::from_millis(1)),
        small,
    ];
    let commands: Vec<_> = streams
        .into_iter()
        .zip(ops)
        .map(|(stream, op)| submit(&mut machine, stream, Time(0), op))
        .collect();
    let done = run(&mut machine);
    assert!(done.iter().all(|done| done.ended == Time(1_000_000)));
    let completed: Vec<_> = done.iter().map(|done| done.command).collect();
    assert_eq!(completed, commands);
}

#[test]
fn invalid_commands_are_refused_without_effect() {
    let mut machine = machine(&["3g.40gb", "3g.40gb"]);
    let process = machine.admit(1, &ALONE).unwrap();
    let stream = machine.stream(process);
    let event = machine.event();
    machine.destroy_event(event);
    let peer = |unit| Op::Copy {
        kind: CopyKind::Peer(unit),
        bytes: 1,
    };
    let mut graph = Graph::default();
    let first = graph.add(peer(0), &[]).unwrap();
    graph.add(peer(2), &[first]).unwrap();
    for (op, error) in [
        (peer(2), SubmitError::NoPeer(2)),
        (peer(1), SubmitError::OwnPeer(1)),
        (Op::Graph(Arc::new(graph)), SubmitError::NoPeer(2)),
        (Op::Record(event), SubmitError::NoEvent(event)),
        (Op::Wait(event), SubmitError::NoEvent(event)),
    ] {
        assert_eq!(machine.submit(stream, Time(0), op), Err(error));
    }
    let unknown = StreamId(9);
    assert_eq!(
        machine.submit(unknown, Time(0), peer(0)),
        Err(SubmitError::NoStream(unknown))
    );
    assert_eq!(machine.next(), None);
    assert_eq!(submit(&mut machine, stream, Time(0), peer(0)), 0);
}

#[test]
fn a_destroyed_stream_finishes_its_commands() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    let stream = machine.stream(process);
    let commands = [(); 3].map(|()| submit(&mut machine, stream, Time(0), kernel(10)));
    let mut done = Vec::new();
    machine.advance(Time(5_000), &mut done);
    machine.destroy_stream(stream);
    machine.destroy_stream(stream);
    assert_eq!(
        machine.submit(stream, Time(0), kernel(1)),
        Err(SubmitError::NoStream(stream))
    );
    assert_eq!(machine.earliest_end(stream), None);
    let done: Vec<_> = run(&mut machine).iter().map(|done| done.command).collect();
    assert_eq!(done, commands);
    let next = machine.stream(process);
    assert!(next > stream, "ids are not reused");
}

#[test]
fn a_wait_outlasts_the_destruction_of_its_event() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    let (records, waits) = (machine.stream(process), machine.stream(process));
    let event = machine.event();
    submit(&mut machine, records, Time(0), Op::Delay(Span(10_000)));
    submit(&mut machine, records, Time(0), Op::Record(event));
    let wait = submit(&mut machine, waits, Time(0), Op::Wait(event));
    machine.destroy_event(event);
    machine.destroy_stream(records);
    assert_eq!(ended(&run(&mut machine), waits, wait), 10);
}
