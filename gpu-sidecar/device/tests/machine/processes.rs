//! Processes: memory, aborts, suspension and dismissal.

use device::ledger::{Entry, Resource};
use device::machine::{Machine, MachineError, ProcessSettings, SubmitError, SuspendError};
use device::memory::MemoryError;
use device::op::{CopyKind, Op};
use device::{Span, Time};

use crate::{ALONE, CLIENT, ended, kernel, machine, pass, run, submit};

const MIB: u64 = 1 << 20;
/// Copy of 25 MB at 25 GB/s, which takes 1 ms.
const COPY: Op = Op::Copy {
    kind: CopyKind::HostToDevice,
    bytes: 25_000_000,
};

#[test]
fn contexts_need_memory() {
    let mut machine = machine(&[]);
    machine.admit(0, &ALONE).unwrap();
    assert_eq!(machine.memory(0).unwrap().free(), (81_920 - 300) * MIB);
    let settings = ProcessSettings {
        memory_limit: Some(299 * MIB),
        ..ALONE
    };
    let error = machine.admit(0, &settings).unwrap_err();
    assert!(matches!(
        error,
        MachineError::Memory(MemoryError::Limit { .. })
    ));
    assert!(matches!(
        machine.admit(1, &ALONE),
        Err(MachineError::NoUnit(1))
    ));
}

#[test]
fn aborted_commands_never_complete_and_memory_stays_held() {
    let mut machine = machine(&[]);
    let [fails, stays] = [(); 2].map(|()| machine.admit(0, &CLIENT).unwrap());
    machine.allocate(fails, 100).unwrap();
    let [runs, copies, hosts, delays] = [(); 4].map(|()| machine.stream(fails));
    let (other, waits) = (machine.stream(stays), machine.stream(stays));
    let event = machine.event();
    submit(&mut machine, runs, Time(0), kernel(10_000));
    submit(&mut machine, runs, Time(0), Op::Record(event));
    submit(&mut machine, copies, Time(0), COPY);
    submit(&mut machine, hosts, Time(0), Op::Host);
    submit(&mut machine, delays, Time(0), Op::Delay(Span(900_000)));
    submit(&mut machine, delays, Time(700_000), kernel(1));
    let copy = submit(&mut machine, other, Time(0), COPY);
    let wait = submit(&mut machine, waits, Time(0), Op::Wait(event));
    assert_eq!(pass(&mut machine, 500), []);
    let turn = machine.take_host_turns()[0];
    machine.abort(fails);
    assert!(!machine.release(turn.work, Time(0)));
    // The ledger has what it held until now, and its memory is still held.
    let held: Vec<_> = machine
        .take_ledger(false)
        .iter()
        .map(|entry| (entry.resource, entry.amount, entry.from.0, entry.to.0))
        .collect();
    assert_eq!(
        held,
        [
            (Resource::Memory { unit: 0 }, 0, 0, 0),
            (Resource::Sms { unit: 0 }, 108_000, 0, 500_000),
            (Resource::Link { link: 0 }, 25_000_000_000, 0, 500_000),
        ][1..]
    );
    assert_eq!(machine.memory(0).unwrap().held(fails), 300 * MIB + 100);
    // It runs new commands, the waiting stream continues, and the copy engine is free.
    let again = submit(&mut machine, runs, Time(0), kernel(1_000));
    let done = run(&mut machine);
    assert_eq!(done.len(), 3);
    assert_eq!(ended(&done, waits, wait), 500);
    assert_eq!(ended(&done, other, copy), 1_500);
    assert_eq!(ended(&done, runs, again), 1_500);
}

#[test]
fn a_dismissed_process_has_its_resources_in_the_ledger() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    let stream = machine.stream(process);
    submit(&mut machine, stream, Time(0), kernel(10_000));
    pass(&mut machine, 2_000);
    machine.dismiss(process);
    assert!(matches!(
        machine.submit(stream, Time(0), COPY),
        Err(SubmitError::NoStream(_))
    ));
    let held: Vec<_> = machine
        .take_ledger(false)
        .iter()
        .map(|entry| (entry.resource, entry.amount, entry.to.0))
        .collect();
    assert_eq!(
        held,
        [
            (Resource::Sms { unit: 0 }, 108_000, 2_000_000),
            (Resource::Memory { unit: 0 }, 300 * MIB, 2_000_000),
        ]
    );
    assert_eq!(run(&mut machine), []);
    assert_eq!(machine.take_ledger(true), []);
    assert_eq!(machine.memory(0).unwrap().free(), 81_920 * MIB);
}

#[test]
fn dropping_copies_that_wait_for_an_engine_passes_it_to_the_next() {
    let mut machine = machine(&[]);
    let [gone, stays] = [(); 2].map(|()| machine.admit(0, &CLIENT).unwrap());
    let [first, second] = [(); 2].map(|()| machine.stream(gone));
    let (third, fourth) = (machine.stream(stays), machine.stream(stays));
    for stream in [first, second] {
        submit(&mut machine, stream, Time(0), COPY);
    }
    let one = submit(&mut machine, third, Time(0), COPY);
    let two = submit(&mut machine, fourth, Time(0), COPY);
    pass(&mut machine, 400);
    machine.dismiss(gone);
    let done = run(&mut machine);
    assert_eq!(ended(&done, third, one), 1_400);
    assert_eq!(ended(&done, fourth, two), 2_400);
}

/// Returns the memory of each process over time: process, MiB, start and end in microseconds.
fn memory(machine: &mut Machine) -> Vec<(u32, u64, u64, u64)> {
    let of = |entry: &&Entry| matches!(entry.resource, Resource::Memory { .. });
    let line = |entry: &Entry| {
        (
            entry.process.0,
            entry.amount / MIB,
            entry.from.0 / 1_000,
            entry.to.0 / 1_000,
        )
    };
    machine
        .take_ledger(true)
        .iter()
        .filter(of)
        .map(line)
        .collect()
}

#[test]
fn a_suspended_process_holds_nothing_and_runs_nothing_until_it_is_resumed() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &ALONE).unwrap();
    machine.allocate(process, 50_000 * MIB).unwrap();
    let (stream, waits) = (machine.stream(process), machine.stream(process));
    let event = machine.event();
    let running = submit(&mut machine, stream, Time(0), kernel(10));
    pass(&mut machine, 5);
    let streams = 1;
    assert_eq!(
        machine.suspend(process),
        Err(SuspendError::Running { process, streams })
    );
    assert_eq!(ended(&pass(&mut machine, 20), stream, running), 10);
    // Commands that have not started do not prevent suspension.
    let queued = submit(&mut machine, stream, Time(0), kernel(10));
    assert_eq!(machine.suspend(process), Ok(50_000 * MIB));
    assert_eq!(
        machine.suspend(process),
        Err(SuspendError::Suspended(process))
    );
    let other = machine.admit(0, &ALONE).unwrap();
    machine.allocate(other, 40_000 * MIB).unwrap();
    let records = machine.stream(other);
    let later = submit(&mut machine, stream, Time(70_000), kernel(10));
    submit(&mut machine, records, Time(0), Op::Delay(Span(5_000)));
    submit(&mut machine, records, Time(0), Op::Record(event));
    let waited = submit(&mut machine, waits, Time(0), Op::Wait(event));
    let made_meanwhile = machine.stream(process);
    let last = submit(
        &mut machine,
        made_meanwhile,
        Time(0),
        Op::Delay(Span(1_000)),
    );
    assert_eq!(
        pass(&mut machine, 40).len(),
        2,
        "the commands of the other process"
    );
    assert_eq!(machine.next(), None);
    assert!(matches!(
        machine.resume(process),
        Err(MemoryError::Full { .. })
    ));
    assert_eq!(pass(&mut machine, 50), []);
    machine.dismiss(other);
    machine.resume(process).unwrap();
    machine.resume(process).unwrap();
    let done = run(&mut machine);
    assert_eq!(ended(&done, stream, queued), 60);
    assert_eq!(ended(&done, stream, later), 80);
    assert_eq!(ended(&done, waits, waited), 50);
    assert_eq!(ended(&done, made_meanwhile, last), 51);
    machine.dismiss(process);
    assert_eq!(
        memory(&mut machine),
        [
            (0, 50_300, 0, 20),
            (1, 40_300, 20, 50),
            (0, 50_300, 50, 3_600_000_000),
        ]
    );
    assert_eq!(
        machine.resume(process),
        Err(MemoryError::NotHeld { held: 0 })
    );
}

#[test]
fn a_wait_from_before_a_suspension_continues_after_it() {
    let mut machine = machine(&[]);
    let [process, other] = [(); 2].map(|()| machine.admit(0, &ALONE).unwrap());
    let (waits, records) = (machine.stream(process), machine.stream(other));
    for happens_meanwhile in [true, false] {
        let event = machine.event();
        let at = machine.now();
        submit(&mut machine, records, at, Op::Delay(Span(10_000)));
        submit(&mut machine, records, at, Op::Record(event));
        submit(&mut machine, waits, at, Op::Wait(event));
        let micros = at.0 / 1_000;
        assert_eq!(pass(&mut machine, micros + 5), []);
        machine.suspend(process).unwrap();
        if happens_meanwhile {
            assert_eq!(pass(&mut machine, micros + 15).len(), 2);
        }
        machine.resume(process).unwrap();
        assert_eq!(
            pass(&mut machine, micros + 30)
                .iter()
                .filter(|done| done.stream == waits)
                .count(),
            1
        );
        assert_eq!(machine.next(), None);
    }
}

#[test]
fn a_flush_adds_resources_still_held_to_the_ledger() {
    let mut machine = machine(&[]);
    let process = machine.admit(0, &CLIENT).unwrap();
    let stream = machine.stream(process);
    submit(&mut machine, stream, Time(0), kernel(10_000));
    machine.advance(Time(4_000_000), &mut Vec::new());
    assert_eq!(machine.take_ledger(false), []);
    let ends: Vec<_> = machine
        .take_ledger(true)
        .iter()
        .map(|entry| entry.to.0)
        .collect();
    assert_eq!(ends, [4_000_000; 2]);
    run(&mut machine);
    let rest: Vec<_> = machine
        .take_ledger(true)
        .iter()
        .map(|entry| entry.from.0)
        .collect();
    assert_eq!(rest, [4_000_000; 2]);
}
