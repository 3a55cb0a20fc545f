//! Streams, events, graphs, processes and slices of a node.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod host;
mod processes;
mod sharing;
mod streams;
mod units;

use device::compute::Kernel;
use device::law::Law;
use device::machine::{Completion, Machine, MpsServer, ProcessSettings, StreamId};
use device::node::{Gpu, Node};
use device::op::Op;
use device::part::Part;
use device::{Span, Time};

/// Settings of a process without MPS.
const ALONE: ProcessSettings = ProcessSettings {
    mps: None,
    active_thread_percentage_hundredths: None,
    memory_limit: None,
    without_context: false,
};

/// Settings of a client of MPS server 0.
const CLIENT: ProcessSettings = ProcessSettings {
    mps: Some(MpsServer(0)),
    ..ALONE
};

/// Returns a node of one GPU whose copies need no setup, so that their times are those of their bytes.
fn node(part: &str, slices: &[&str]) -> Node {
    let gpu = Gpu {
        part: Part {
            copy_setup_us: 0,
            ..Part::named(part).unwrap()
        },
        slices: slices.iter().map(|&name| name.to_owned()).collect(),
    };
    Node {
        gpus: vec![gpu],
        ..Node::default()
    }
}

fn machine(slices: &[&str]) -> Machine {
    Machine::new(&node("A100", slices)).unwrap()
}

const fn kernel(micros: u64) -> Op {
    Op::Kernel(Kernel {
        duration: Span(micros * 1_000),
        sms: 108,
        law: Law::Linear,
        interference_millionths: 0,
    })
}

fn submit(machine: &mut Machine, stream: StreamId, not_before: Time, op: Op) -> u64 {
    machine.submit(stream, not_before, op).unwrap()
}

/// Advances the time to this many microseconds, and returns the commands that ended.
fn pass(machine: &mut Machine, micros: u64) -> Vec<Completion> {
    let mut done = Vec::new();
    machine.advance(Time(micros * 1_000), &mut done);
    done
}

fn run(machine: &mut Machine) -> Vec<Completion> {
    let done = pass(machine, 3_600_000_000);
    assert_eq!(machine.next(), None);
    done
}

/// Returns the end of a command in microseconds.
fn ended(done: &[Completion], stream: StreamId, command: u64) -> u64 {
    let of = |done: &&Completion| done.stream == stream && done.command == command;
    done.iter().find(of).unwrap().ended.0 / 1_000
}
