//! Cost of a command. Target: a software GPU has 1 µs per command, of which a back-to-back kernel takes at most half here.

use device::compute::Kernel;
use device::law::Law;
use device::machine::{Completion, Machine, MpsServer, ProcessSettings, StreamId};
use device::node::{Gpu, Node};
use device::op::{CopyKind, Op};
use device::part::Part;
use device::{Span, Time};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

const COMMANDS: u64 = 1_000;

fn machine() -> Machine {
    let gpu = Gpu {
        part: Part::named("H200").expect("a built-in part"),
        slices: Vec::new(),
    };
    let node = Node {
        gpus: vec![gpu],
        ..Node::default()
    };
    Machine::new(&node).expect("a valid node")
}

fn kernel(micros: u64, sms: u32) -> Op {
    Op::Kernel(Kernel {
        duration: Span(micros * 1_000),
        sms,
        law: Law::Linear,
        interference_millionths: 0,
    })
}

fn stream(machine: &mut Machine, mps: Option<MpsServer>) -> StreamId {
    let settings = ProcessSettings {
        mps,
        active_thread_percentage_hundredths: mps.map(|_| 1_250),
        memory_limit: None,
        without_context: false,
    };
    let process = machine.admit(0, &settings).expect("room for the context");
    machine.stream(process)
}

/// Runs commands on the streams in turn, a thousand per iteration. Like a server, it submits each one when its time has come.
fn run(bencher: Bencher<'_, '_>, mut machine: Machine, streams: &[StreamId], op: &Op) {
    let mut done: Vec<Completion> = Vec::new();
    bencher
        .counter(ItemsCount::new(COMMANDS))
        .bench_local(move || {
            for n in 0..COMMANDS {
                let stream = streams[usize::try_from(n).unwrap_or(0) % streams.len()];
                let to = machine.now().after(Span(1_000));
                machine
                    .submit(stream, machine.now(), black_box(op.clone()))
                    .expect("the stream exists");
                machine.advance(to, &mut done);
            }
            machine.advance(machine.now().after(Span::from_secs(1)), &mut done);
            let counts = (done.len(), machine.take_ledger(false).len());
            done.clear();
            counts
        });
}

#[divan::bench]
fn one_stream_back_to_back(bencher: Bencher<'_, '_>) {
    let mut machine = machine();
    let streams = [stream(&mut machine, None)];
    run(bencher, machine, &streams, &kernel(1, 132));
}

#[divan::bench]
fn one_stream_submitted_at_once(bencher: Bencher<'_, '_>) {
    let mut machine = machine();
    let stream = stream(&mut machine, None);
    let mut done: Vec<Completion> = Vec::new();
    bencher
        .counter(ItemsCount::new(COMMANDS))
        .bench_local(move || {
            for _ in 0..COMMANDS {
                machine
                    .submit(stream, machine.now(), black_box(kernel(1, 132)))
                    .expect("the stream exists");
            }
            machine.advance(machine.now().after(Span::from_secs(1)), &mut done);
            let counts = (done.len(), machine.take_ledger(false).len());
            done.clear();
            counts
        });
}

#[divan::bench]
fn one_stream_of_copies(bencher: Bencher<'_, '_>) {
    let mut machine = machine();
    let streams = [stream(&mut machine, None)];
    let copy = Op::Copy {
        kind: CopyKind::HostToDevice,
        bytes: 4_096,
    };
    run(bencher, machine, &streams, &copy);
}

/// `share` is the percentage of the SMs that all kernels request together.
#[divan::bench(args = [100, 200])]
fn eight_streams_side_by_side(bencher: Bencher<'_, '_>, share: u32) {
    let mut machine = machine();
    let streams: Vec<_> = (0..8)
        .map(|_| stream(&mut machine, Some(MpsServer(0))))
        .collect();
    run(bencher, machine, &streams, &kernel(8, 132 * share / 800));
}

#[divan::bench]
fn eight_streams_in_turns(bencher: Bencher<'_, '_>) {
    let mut machine = machine();
    let streams: Vec<_> = (0..8).map(|_| stream(&mut machine, None)).collect();
    run(bencher, machine, &streams, &kernel(1, 132));
}

/// One busy stream beside a thousand idle streams and as many events.
#[divan::bench]
fn one_busy_beside_256_idle_processes(bencher: Bencher<'_, '_>) {
    let mut machine = machine();
    for _ in 0..256 {
        let settings = ProcessSettings::default();
        let process = machine.admit(0, &settings).expect("room for the context");
        for _ in 0..4 {
            machine.stream(process);
            machine.event();
        }
    }
    let streams = [stream(&mut machine, None)];
    run(bencher, machine, &streams, &kernel(1, 132));
}

#[divan::bench]
fn earliest_end(bencher: Bencher<'_, '_>) {
    let mut machine = machine();
    let stream = stream(&mut machine, None);
    for _ in 0..COMMANDS {
        machine
            .submit(stream, Time(0), kernel(1_000, 132))
            .expect("the stream exists");
    }
    machine.advance(Time(500_000), &mut Vec::new());
    bencher.bench_local(|| machine.earliest_end(black_box(stream)));
}
