//! Streams, events, graphs, processes and slices of a node.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use device::compute::Kernel;
use device::law::Law;
use device::machine::{Done, Machine, MachineError, ProcessSettings, StreamId};
use device::node::{Gpu, Node};
use device::op::{Graph, Op, Way};
use device::part::Part;
use device::{Span, Time};

const SETTINGS: ProcessSettings = ProcessSettings {
    active_thread_percentage_hundredths: None,
    memory_limit: None,
};

fn machine(slices: &[&str], mps: bool) -> Machine {
    let gpu = Gpu {
        part: Part::named("A100").unwrap(),
        slices: slices.iter().map(|&name| name.to_owned()).collect(),
        mps,
    };
    let gpus = vec![gpu];
    Machine::new(&Node {
        gpus,
        ..Node::default()
    })
    .unwrap()
}

const fn kernel(micros: u64) -> Op {
    Op::Kernel(Kernel {
        duration: Span(micros * 1_000),
        sms: 108,
        law: Law::Linear,
        interference_millionths: 0,
    })
}

fn run(machine: &mut Machine) -> Vec<Done> {
    let mut done = Vec::new();
    machine.advance(Time(3_600_000_000_000), &mut done);
    assert_eq!(machine.next(), None);
    done
}

fn ended(done: &[Done], stream: StreamId, command: u64) -> u64 {
    let of = |done: &&Done| done.stream == stream && done.command == command;
    done.iter().find(of).unwrap().ended.0 / 1_000
}

#[test]
fn a_turn_lasts_over_the_kernels_of_a_stream() {
    let mut machine = machine(&[], false);
    let streams = [0, 0].map(|unit| {
        let process = machine.admit(unit, &SETTINGS).unwrap();
        machine.stream(process)
    });
    let mut last = [0; 2];
    for _ in 0..20 {
        for (n, stream) in streams.into_iter().enumerate() {
            last[n] = machine.submit(stream, Time(0), kernel(100));
        }
    }
    // Twenty of 100 µs are one turn of 2 ms, at the end of which the first has nothing left.
    let done = run(&mut machine);
    assert_eq!(ended(&done, streams[0], last[0]), 2_000);
    assert_eq!(ended(&done, streams[1], last[1]), 4_200);
}

#[test]
fn a_slice_slows_a_kernel_down_as_its_law_says() {
    for (law, slowdown) in [
        (Law::Linear, 108.0 / 14.0),
        (
            Law::Power { exponent: 0.598 },
            (108.0_f64 / 14.0).powf(0.598),
        ),
    ] {
        let mut machine = machine(&["1g.10gb"], false);
        let process = machine.admit(0, &SETTINGS).unwrap();
        let stream = machine.stream(process);
        let kernel = Kernel {
            duration: Span::from_millis(10),
            sms: 108,
            law,
            interference_millionths: 0,
        };
        let command = machine.submit(stream, Time(0), Op::Kernel(kernel));
        #[expect(clippy::cast_precision_loss, reason = "some milliseconds")]
        let took = ended(&run(&mut machine), stream, command) as f64 / 10_000.0;
        assert!((took / slowdown - 1.0).abs() < 1e-3, "{law:?}: {took}");
    }
}

#[test]
fn a_wait_is_for_the_record_before_it_whatever_is_recorded_later() {
    let mut machine = machine(&[], true);
    let process = machine.admit(0, &SETTINGS).unwrap();
    let [slow, waits, idle] = [(); 3].map(|()| machine.stream(process));
    let event = machine.event();
    machine.submit(slow, Time(0), Op::Delay(Span::from_millis(5)));
    machine.submit(slow, Time(0), Op::Record(event));
    machine.submit(waits, Time(0), Op::Wait(event));
    let after = machine.submit(waits, Time(0), Op::Delay(Span::from_millis(1)));
    machine.submit(idle, Time(0), Op::Record(event));
    assert_eq!(ended(&run(&mut machine), waits, after), 6_000);
}

#[test]
fn who_waits_for_a_process_that_is_gone_goes_on() {
    let mut machine = machine(&[], true);
    let [gone, stays] = [(); 2].map(|()| machine.admit(0, &SETTINGS).unwrap());
    let (records, waits) = (machine.stream(gone), machine.stream(stays));
    let event = machine.event();
    machine.submit(records, Time(0), kernel(10_000));
    machine.submit(records, Time(0), Op::Record(event));
    let command = machine.submit(waits, Time(0), Op::Wait(event));
    let mut done = Vec::new();
    machine.advance(Time(3_000_000), &mut done);
    assert!(done.is_empty());
    machine.dismiss(gone);
    assert_eq!(ended(&run(&mut machine), waits, command), 3_000);
}

#[test]
fn a_graph_runs_in_its_order() {
    let mut machine = machine(&[], true);
    let process = machine.admit(0, &SETTINGS).unwrap();
    let stream = machine.stream(process);
    let delay = |millis| Op::Delay(Span::from_millis(millis));
    let mut graph = Graph::default();
    let first = graph.add(delay(1), &[]).unwrap();
    let left = graph.add(delay(2), &[first]).unwrap();
    let right = graph.add(delay(5), &[first, first]).unwrap();
    graph.add(delay(3), &[left, right]).unwrap();
    graph.add(delay(8), &[]).unwrap();
    let graph = Arc::new(graph);
    let one = machine.submit(stream, Time(0), Op::Graph(Arc::clone(&graph)));
    let two = machine.submit(stream, Time(0), Op::Graph(graph));
    let empty = machine.submit(stream, Time(0), Op::Graph(Arc::default()));
    let done = run(&mut machine);
    assert_eq!(
        [one, two, empty].map(|command| ended(&done, stream, command)),
        [9_000, 18_000, 18_000]
    );
}

#[test]
fn copies_of_one_direction_wait_for_the_engine() {
    let mut machine = machine(&[], true);
    let process = machine.admit(0, &SETTINGS).unwrap();
    let [one, two, back] = [(); 3].map(|()| machine.stream(process));
    // 25 MB at 25 GB/s: 1 ms.
    let copy = |way| Op::Copy {
        way,
        bytes: 25_000_000,
    };
    let first = machine.submit(one, Time(0), copy(Way::HostToDevice));
    let second = machine.submit(two, Time(0), copy(Way::HostToDevice));
    let third = machine.submit(back, Time(0), copy(Way::DeviceToHost));
    let done = run(&mut machine);
    assert_eq!(ended(&done, one, first), 1_000);
    assert_eq!(ended(&done, two, second), 2_000);
    assert_eq!(ended(&done, back, third), 1_000);
}

#[test]
fn every_command_of_a_process_that_stays_is_done_once() {
    let mut machine = machine(&["3g.40gb", "3g.40gb"], false);
    let process = machine.admit(1, &SETTINGS).unwrap();
    let stream = machine.stream(process);
    let event = machine.event();
    let ops = [
        kernel(0),
        kernel(7),
        Op::Delay(Span::ZERO),
        Op::Copy {
            way: Way::Peer(0),
            bytes: 0,
        },
        Op::Copy {
            way: Way::Peer(0),
            bytes: 1,
        },
        Op::Wait(event),
        Op::Record(event),
        Op::Wait(event),
    ];
    let submitted: Vec<_> = ops
        .into_iter()
        .map(|op| machine.submit(stream, Time(5), op))
        .collect();
    let done: Vec<_> = run(&mut machine).iter().map(|done| done.command).collect();
    assert_eq!(done, submitted);
}

#[test]
fn mps_takes_so_many_clients_and_contexts_need_memory() {
    let mut machine = machine(&[], true);
    for _ in 0..48 {
        machine.admit(0, &SETTINGS).unwrap();
    }
    let error = machine.admit(0, &SETTINGS).unwrap_err();
    assert!(
        matches!(error, MachineError::TooManyClients { clients: 48 }),
        "{error}"
    );
    assert_eq!(
        machine.memory(0).unwrap().free(),
        (81_920 - 48 * 300) * 1024 * 1024
    );
    assert!(matches!(
        machine.admit(1, &SETTINGS),
        Err(MachineError::NoUnit(1))
    ));
}

#[test]
fn what_is_still_held_is_in_the_ledger() {
    let mut machine = machine(&[], true);
    let process = machine.admit(0, &SETTINGS).unwrap();
    let stream = machine.stream(process);
    machine.submit(stream, Time(0), kernel(10_000));
    machine.advance(Time(4_000_000), &mut Vec::new());
    let told: Vec<_> = machine
        .take_ledger()
        .iter()
        .map(|entry| entry.to.0)
        .collect();
    assert_eq!(told, [4_000_000; 2]);
    run(&mut machine);
    let rest: Vec<_> = machine
        .take_ledger()
        .iter()
        .map(|entry| entry.from.0)
        .collect();
    assert_eq!(rest, [4_000_000; 2]);
}
