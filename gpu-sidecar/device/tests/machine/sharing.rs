//! Sharing of the SMs of one GPU between clients of MPS servers and processes without MPS.

use device::Time;
use device::ledger::{Entry, Resource};
use device::machine::{Machine, MachineError, MpsServer, ProcessSettings, StreamId};

use crate::{ALONE, CLIENT, ended, kernel, machine, pass, run, submit};

fn stream(machine: &mut Machine, settings: ProcessSettings) -> StreamId {
    let process = machine.admit(0, &settings).unwrap();
    machine.stream(process)
}

const fn client(server: u32, percent_hundredths: u32) -> ProcessSettings {
    ProcessSettings {
        mps: Some(MpsServer(server)),
        active_thread_percentage_hundredths: Some(percent_hundredths),
        memory_limit: None,
        without_context: false,
    }
}

/// Returns the SMs of each process over time: process, thousandths of SMs, start and end in microseconds.
fn sms(ledger: &[Entry]) -> Vec<(u32, u64, u64, u64)> {
    let of = |entry: &&Entry| matches!(entry.resource, Resource::Sms { .. });
    let line = |entry: &Entry| {
        (
            entry.process.0,
            entry.amount,
            entry.from.0 / 1_000,
            entry.to.0 / 1_000,
        )
    };
    let mut lines: Vec<_> = ledger.iter().filter(of).map(line).collect();
    lines.sort_by_key(|line| (line.2, line.0));
    lines
}

#[test]
fn clients_of_one_server_share_one_turn() {
    let mut machine = machine(&[]);
    let [one, two] = [(); 2].map(|()| stream(&mut machine, client(0, 5_000)));
    let alone = stream(&mut machine, ALONE);
    let first = submit(&mut machine, one, Time(0), kernel(2_000));
    let second = submit(&mut machine, two, Time(0), kernel(1_500));
    let third = submit(&mut machine, alone, Time(0), kernel(3_000));
    // The process without MPS: 0 – 2, 4.4 – 5.4 ms. The clients, half of the SMs each: 2.2 – 4.2, 5.6 – 7.6 ms.
    let done = run(&mut machine);
    assert_eq!(ended(&done, alone, third), 5_400);
    assert_eq!(ended(&done, two, second), 6_600);
    assert_eq!(ended(&done, one, first), 7_600);
    assert_eq!(
        sms(&machine.take_ledger(true)),
        [
            (2, 108_000, 0, 2_000),
            (0, 54_000, 2_200, 4_200),
            (1, 54_000, 2_200, 4_200),
            (2, 108_000, 4_400, 5_400),
            (0, 54_000, 5_600, 7_600),
            (1, 54_000, 5_600, 6_600),
        ]
    );
}

#[test]
fn two_servers_take_turns() {
    let mut machine = machine(&[]);
    let [one, two] = [0, 1].map(|server| stream(&mut machine, client(server, 5_000)));
    let first = submit(&mut machine, one, Time(0), kernel(1_000));
    let second = submit(&mut machine, two, Time(0), kernel(500));
    let done = run(&mut machine);
    assert_eq!(ended(&done, one, first), 2_000);
    assert_eq!(ended(&done, two, second), 3_200);
}

#[test]
fn clients_of_one_server_run_without_turns() {
    let mut machine = machine(&[]);
    let [one, two] = [(); 2].map(|()| stream(&mut machine, client(0, 5_000)));
    stream(&mut machine, ALONE);
    let first = submit(&mut machine, one, Time(0), kernel(5_000));
    let second = submit(&mut machine, two, Time(0), kernel(5_000));
    let done = run(&mut machine);
    assert_eq!(ended(&done, one, first), 10_000);
    assert_eq!(ended(&done, two, second), 10_000);
}

#[test]
fn a_percentage_counts_only_under_mps() {
    let mut machine = machine(&[]);
    let quarter = ProcessSettings {
        active_thread_percentage_hundredths: Some(2_500),
        ..ALONE
    };
    let alone = machine.admit(0, &quarter).unwrap();
    let mps = Some(MpsServer(0));
    let client = machine
        .admit(0, &ProcessSettings { mps, ..quarter })
        .unwrap();
    // 27 of 108 SMs, rounded up to whole pairs.
    assert_eq!(machine.sms_of(alone), Some(108));
    assert_eq!(machine.sms_of(client), Some(28));
    machine.dismiss(client);
    assert_eq!(machine.sms_of(client), None);
}

#[test]
fn mps_admits_a_limited_number_of_clients_and_fewer_on_a_slice() {
    for (slices, clients) in [(&[][..], 48), (&["1g.10gb"], 6), (&["3g.40gb"], 20)] {
        let mut machine = machine(slices);
        for server in 0..clients {
            let mps = Some(MpsServer(server % 2));
            machine.admit(0, &ProcessSettings { mps, ..ALONE }).unwrap();
        }
        let error = machine.admit(0, &CLIENT).unwrap_err();
        assert!(
            matches!(error, MachineError::TooManyClients { clients: there } if there == clients),
            "{error}"
        );
        assert_eq!(machine.unit_info(0).unwrap().mps_clients_max, clients);
        // Processes without MPS do not count.
        let alone = machine.admit(0, &ALONE).unwrap();
        machine.dismiss(alone);
        assert!(machine.admit(0, &CLIENT).is_err());
    }
}

#[test]
fn sms_of_a_dismissed_client_go_to_the_servers_other_clients() {
    let mut machine = machine(&[]);
    let gone = machine.admit(0, &CLIENT).unwrap();
    let (one, two) = (machine.stream(gone), stream(&mut machine, CLIENT));
    submit(&mut machine, one, Time(0), kernel(10_000));
    let stays = submit(&mut machine, two, Time(0), kernel(10_000));
    pass(&mut machine, 4_000);
    machine.dismiss(gone);
    // 4 ms at half speed, then 8 ms alone.
    let done = run(&mut machine);
    assert_eq!(done.len(), 1);
    assert_eq!(ended(&done, two, stays), 12_000);
}

#[test]
fn a_process_without_a_context_holds_memory_and_no_residue() {
    let mut machine = machine(&[]);
    let holder = ProcessSettings {
        without_context: true,
        ..ALONE
    };
    let process = machine.admit(0, &holder).unwrap();
    assert_eq!(machine.memory(0).unwrap().held(process), 0);
    machine.allocate(process, 1 << 20).unwrap();
    assert_eq!(machine.memory(0).unwrap().held(process), 1 << 20);
    let stream = machine.stream(process);
    assert_eq!(machine.queued(stream), Some(0));
}
