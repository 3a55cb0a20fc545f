//! Host functions, and the earliest possible end of a stream.

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::ledger::WorkId;
use device::machine::{HostTurn, Machine, ProcessSettings};
use device::op::{CopyKind, Graph, Op};
use device::{Span, Time};

use crate::{ALONE, CLIENT, ended, kernel, machine, pass, run, submit};

#[test]
fn a_host_function_ends_when_it_is_released() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    let stream = machine.stream(process);
    submit(&mut machine, stream, Time(0), kernel(100));
    let host = submit(&mut machine, stream, Time(0), Op::Host);
    let after = submit(&mut machine, stream, Time(0), kernel(100));
    let work = WorkId {
        command: host,
        node: 0,
    };
    assert!(!machine.release(work, Time(0)), "it has not started");
    pass(&mut machine, 50);
    assert_eq!(machine.take_host_turns(), []);
    pass(&mut machine, 400);
    let at = Time(100_000);
    assert_eq!(machine.take_host_turns(), [HostTurn { work, stream, at }]);
    assert_eq!(machine.take_host_turns(), []);
    assert_eq!(machine.next(), None, "only the host can continue");
    assert!(machine.release(work, Time(700_000)));
    assert!(!machine.release(work, Time(800_000)), "only once");
    assert_eq!(machine.earliest_end(stream), Some(Time(800_000)));
    let done = run(&mut machine);
    assert_eq!(ended(&done, stream, host), 700);
    assert_eq!(ended(&done, stream, after), 800);
}

#[test]
fn a_release_in_the_past_takes_effect_now() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    let stream = machine.stream(process);
    let host = submit(&mut machine, stream, Time(0), Op::Host);
    pass(&mut machine, 30);
    let turn = machine.take_host_turns()[0];
    assert!(machine.release(turn.work, Time(5_000)));
    assert_eq!(machine.next(), Some(Time(30_000)));
    assert_eq!(ended(&run(&mut machine), stream, host), 30);
}

#[test]
fn a_graph_waits_for_its_host_functions() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    let stream = machine.stream(process);
    let mut graph = Graph::default();
    let delay = graph.add(Op::Delay(Span(10_000)), &[]).unwrap();
    graph.add(Op::Host, &[]).unwrap();
    let late = graph.add(Op::Host, &[delay]).unwrap();
    graph.add(Op::Delay(Span(20_000)), &[late]).unwrap();
    let command = submit(&mut machine, stream, Time(0), Op::Graph(Arc::new(graph)));
    pass(&mut machine, 15);
    let turns = machine.take_host_turns();
    let started: Vec<_> = turns
        .iter()
        .map(|turn| (turn.work.command, turn.work.node, turn.at.0))
        .collect();
    assert_eq!(started, [(command, 1, 0), (command, 2, 10_000)]);
    assert!(machine.release(turns[0].work, Time(90_000)));
    assert!(machine.release(turns[1].work, Time(40_000)));
    assert_eq!(ended(&run(&mut machine), stream, command), 90);
}

#[test]
fn the_earliest_end_is_exact_if_nothing_competes() {
    let mut machine = machine(&[]);
    let settings = ProcessSettings {
        active_thread_percentage_hundredths: Some(2_500),
        ..CLIENT
    };
    let process = machine.admit(0, &settings).unwrap();
    let stream = machine.stream(process);
    assert_eq!(machine.earliest_end(stream), Some(Time(0)));
    // At a quarter of the SMs, rounded to 28 of 108.
    let part = Op::Kernel(Kernel {
        duration: Span(1_000_003),
        sms: 108,
        law: Law::Power { exponent: 0.7 },
        interference_millionths: 0,
    });
    let copy = |kind| Op::Copy {
        kind,
        bytes: 7_777_777,
    };
    let mut graph = Graph::default();
    let first = graph.add(part.clone(), &[]).unwrap();
    graph.add(copy(CopyKind::HostToDevice), &[first]).unwrap();
    graph.add(Op::Delay(Span(77)), &[first]).unwrap();
    let ops = [
        (0, part.clone()),
        (9_000_000, copy(CopyKind::Within)),
        (9_000_001, Op::Set { bytes: 12_345 }),
        (9_000_002, Op::Delay(Span(1_234))),
        (9_000_003, Op::Graph(Arc::new(graph))),
        (90_000_003, copy(CopyKind::DeviceToHost)),
        (90_000_004, part),
    ];
    let mut ends = Vec::new();
    for (not_before, op) in ops {
        submit(&mut machine, stream, Time(not_before), op);
        ends.push(machine.earliest_end(stream).unwrap());
    }
    let end = ends.last().copied();
    for micros in [3, 1_000, 8_999, 9_002, 9_700, 11_000, 12_000, 91_000] {
        pass(&mut machine, micros);
        assert_eq!(machine.earliest_end(stream), end, "at {micros} µs");
    }
    // All commands ran from the first advance on, and ended when predicted at their submission.
    let mut fresh = crate::machine(&[]);
    let process = fresh.admit(0, &settings).unwrap();
    let stream = fresh.stream(process);
    assert_eq!(run(&mut fresh), []);
    assert_eq!(fresh.earliest_end(stream), Some(fresh.now()));
    assert_eq!(run(&mut machine).last().map(|done| done.ended), end);
}

#[test]
fn the_earliest_end_of_the_first_commands_is_exact_if_nothing_competes() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    let stream = machine.stream(process);
    for _ in 0..3 {
        submit(&mut machine, stream, Time(0), kernel(100));
    }
    let ends = |machine: &Machine| {
        [0, 1, 2, 3, u64::MAX]
            .map(|count| machine.earliest_end_of(stream, count).unwrap().0 / 1_000)
    };
    assert_eq!(ends(&machine), [0, 100, 200, 300, 300]);
    pass(&mut machine, 130);
    assert_eq!(ends(&machine), [130, 200, 300, 300, 300]);
    run(&mut machine);
    let now = machine.now().0 / 1_000;
    assert_eq!(ends(&machine), [now; 5]);
    machine.destroy_stream(stream);
    assert_eq!(machine.earliest_end_of(stream, 1), None);
}

#[test]
fn many_commands_end_no_earlier_than_their_earliest_end() {
    let mut machine = machine(&[]);
    let streams = [(); 2].map(|()| {
        let process = machine.admit(0, &ALONE).unwrap();
        machine.stream(process)
    });
    for _ in 0..200 {
        for stream in streams {
            submit(&mut machine, stream, Time(0), kernel(100));
        }
    }
    let bounds = [1, 10, 64, 200].map(|count| machine.earliest_end_of(streams[0], count));
    let done = run(&mut machine);
    let own: Vec<Time> = done
        .iter()
        .filter(|done| done.stream == streams[0])
        .map(|done| done.ended)
        .collect();
    for (count, bound) in [1, 10, 64, 200].into_iter().zip(bounds) {
        let bound = bound.unwrap();
        assert!(bound <= own[count - 1] && bound > Time(0), "{count}");
    }
}

#[test]
fn the_earliest_end_is_never_late_under_contention() {
    let mut machine = machine(&[]);
    let streams = [(); 2].map(|()| {
        let process = machine.admit(0, &ALONE).unwrap();
        machine.stream(process)
    });
    for stream in streams {
        submit(&mut machine, stream, Time(0), kernel(5_000));
    }
    // Time slices of 2 ms, switches of 0.2 ms: the first ends at 9.8 ms, the second at 11 ms.
    for (at, first, second) in [
        (1_000, 5_000, 6_000),
        (3_000, 6_000, 7_200),
        (5_000, 7_400, 8_000),
        (9_000, 9_800, 10_000),
    ] {
        pass(&mut machine, at);
        let ends = streams.map(|stream| machine.earliest_end(stream).unwrap().0 / 1_000);
        assert_eq!(ends, [first, second], "at {at} µs");
    }
    assert_eq!(run(&mut machine)[1].ended, Time(11_000_000));
    machine.destroy_stream(streams[0]);
    assert_eq!(machine.earliest_end(streams[0]), None);
}
