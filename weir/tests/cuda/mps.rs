//! Processes side by side, under the daemon that `weir softgpu path` installs.

use std::time::{Duration, Instant};

use device::part::Part;
use rustix::process::Signal;

use crate::place::{Place, signal, until};
use crate::time::shared;

const CLIENT_TERMINATED: u32 = 810;
const CONNECTION_FAILED: u32 = 805;
const DEVICE_UNAVAILABLE: u32 = 46;
const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;
const MAX_CLIENTS_REACHED: u32 = 808;
const OUT_OF_MEMORY: u32 = 2;
const SERVER_NOT_READY: u32 = 807;

fn with_daemon(part: &str) -> Place {
    let place = Place::new(&["--gpu", part]);
    place.mps(&[]);
    place
}

#[test]
fn two_clients_run_side_by_side() {
    let place = with_daemon("H100");
    let both = shared(&place, &["--kernels", "50", "--us", "1000"]);
    let pids: Vec<_> = both.pids().into_iter().collect();
    let [one, other] = pids[..] else {
        panic!("{both:?}");
    };
    // Each asks for the whole device: they have half of it each, all the time.
    assert_eq!(both.most(), 132_000);
    let [one, other] = [one, other].map(|pid| both.of(pid));
    let busy: u64 = one.runs.iter().map(|run| run.to.since(run.from).0).sum();
    assert!(one.overlap(&other) * 10 >= busy * 9, "{both:?}");
}

#[test]
fn a_percentage_is_rounded_up_to_whole_units_and_kept_to() {
    let place = with_daemon("H100");
    let part = Part::named("H100").unwrap();
    let name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let mut clients = ["25", "50"].map(|percent| place.ready_with(&[(name, percent)]));
    // Each is longer than it takes to start the other.
    for client in &mut clients {
        client.does_all("event 0\nevent 1");
        client.tell("record 0 0\nspin 0 400000000 132 1\nrecord 1 0\nsync 0\nelapsed 0 1");
    }
    let told = clients.each_mut().map(|client| {
        for _ in 0..4 {
            assert_eq!(client.answer().result, 0);
        }
        client.answer().milliseconds()
    });
    let ledger = place.ledger();
    let of = clients.each_ref().map(|client| ledger.of(client.pid()));
    for ((hundredths, told), own) in [2_500, 5_000].into_iter().zip(told).zip(&of) {
        let sms = part.sms_of_percentage(hundredths);
        assert_eq!(own.most(), u64::from(sms) * 1_000, "{hundredths}");
        // The longer for it, from the record before it to the one after it.
        let alone = 400.0 * f64::from(part.sms) / f64::from(sms);
        let ran = own.runs.last().unwrap();
        let ran = ran.to.since(ran.from).0;
        let ran = Duration::from_nanos(ran).as_secs_f64() * 1e3;
        assert!((ran - alone).abs() < 1e-3, "{ran} ms, not {alone}");
        assert!(f64::from(told) >= alone - 1e-3, "{told} ms, not {alone}");
    }
    assert!(of[0].overlap(&of[1]) > 0);
    let lines = place.observer().processes();
    let mut sms: Vec<_> = lines.iter().map(|line| line.sms).collect();
    sms.sort_unstable();
    assert_eq!(sms, [34, 66]);
}

#[test]
fn what_is_set_for_all_clients_holds_for_each() {
    let place = with_daemon("V100");
    let say = |line: &str| place.mps_say(line);
    assert_eq!(say("set_default_active_thread_percentage 12"), "12.0\n");
    assert_eq!(say("set_default_device_pinned_mem_limit 0 2G"), "");
    let mut client = place.ready();
    client.does("spin 0 1000000 80 1");
    client.does("sync 0");
    // 9.6 SMs are 5 units of 2.
    assert_eq!(place.ledger().of(client.pid()).most(), 10_000);
    // Less is allowed, more is not.
    let name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    for (percent, sms) in [("5", 4), ("50", 10)] {
        let client = place.ready_with(&[(name, percent)]);
        let lines = place.observer().processes();
        let line = lines.iter().find(|line| line.pid == client.pid());
        assert_eq!(line.unwrap().sms, sms, "{percent}");
    }

    client.does("alloc 0 1073741824");
    assert_eq!(client.result("alloc 1 1073741824"), OUT_OF_MEMORY);
    let mut other = place.ready();
    other.does("alloc 0 1073741824");
    client.does("free 0");
    client.does("alloc 1 1073741824");
    let own = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")];
    let mut limited = place.ready_with(&own);
    assert_eq!(limited.result("alloc 0 536870912"), OUT_OF_MEMORY);
    limited.does("alloc 0 134217728");
}

#[test]
fn a_memory_limit_is_of_the_memory_that_is_left_by_the_scale() {
    let place = Place::new(&["--gpu", "H100", "--bytes", "16"]);
    place.mps(&[]);
    let own = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")];
    let mut limited = place.ready_with(&own);
    limited.does("alloc 0 268435456");
    assert_eq!(limited.result("alloc 1 268435456"), OUT_OF_MEMORY);
}

#[test]
fn one_client_more_than_there_may_be_is_refused() {
    let place = with_daemon("H100");
    let most = Part::named("H100").unwrap().mps_clients;
    let mut clients: Vec<_> = (0..most).map(|_| place.puppet()).collect();
    for client in &mut clients {
        client.tell("open");
    }
    for client in &mut clients {
        assert_eq!(client.answer().result, 0);
    }
    let mut more = place.puppet();
    assert_eq!(more.result("open"), MAX_CLIENTS_REACHED);
    clients.pop().unwrap().leave();
    until("there is room for another", || {
        place.puppet().result("open") == 0
    });
}

#[test]
fn a_fault_is_everybodys_and_over_when_all_are_gone() {
    let place = with_daemon("H100");
    let [mut culprit, mut victim] = [(); 2].map(|()| place.ready());
    victim.does("spin 0 30000000000 132 1");
    victim.tell("sync 0");
    culprit.does("wild 0");
    assert_eq!(culprit.result("sync 0"), ILLEGAL_ADDRESS);
    assert_eq!(victim.answer().result, LAUNCH_FAILED);
    assert_eq!(victim.result("alloc 0 4096"), LAUNCH_FAILED);
    assert_eq!(culprit.result("alloc 0 4096"), ILLEGAL_ADDRESS);
    let refused = || {
        let mut late = place.puppet();
        let result = late.result("open");
        late.leave();
        result
    };
    assert_eq!(refused(), SERVER_NOT_READY);
    culprit.leave();
    assert_eq!(refused(), SERVER_NOT_READY);
    victim.kill();
    until("clients are let in again", || match refused() {
        0 => true,
        result => {
            assert_eq!(result, SERVER_NOT_READY);
            false
        }
    });
    place.succeeds(&mut place.program("vector_add"));
}

#[test]
fn a_client_that_is_terminated_ends_alone() {
    let place = with_daemon("H100");
    let [mut one, mut other] = [(); 2].map(|()| place.ready());
    one.does("spin 0 30000000000 66 1");
    one.tell("sync 0");
    other.does("alloc 0 4096");
    let server = place.mps_say("get_server_list");
    let line = format!("terminate_client {} {}", server.trim(), one.pid());
    assert_eq!(place.mps_say(&line), "0\n");
    assert_eq!(one.answer().result, CLIENT_TERMINATED);
    assert_eq!(one.result("alloc 0 4096"), CLIENT_TERMINATED);
    other.does_all("fill 0 0 1024 7\nsync 0");
    assert_eq!(other.does("sum 0 1024").number(0), 7 * 1024);
}

#[test]
fn who_loses_the_daemon_learns_of_it_while_its_kernel_runs() {
    let place = with_daemon("H100");
    let [mut waiting, mut idle] = [(); 2].map(|()| place.ready());
    waiting.does("spin 0 30000000000 132 1");
    waiting.tell("sync 0");
    let begin = Instant::now();
    signal(place.daemon(), Signal::KILL);
    assert_eq!(waiting.answer().result, CONNECTION_FAILED);
    let told = begin.elapsed();
    // The kernel takes half a minute.
    assert!(told < Duration::from_secs(25), "{told:?}");
    until("who does nothing learns of it", || {
        match idle.result("alloc 0 4096") {
            0 => {
                idle.does("free 0");
                false
            }
            result => {
                assert_eq!(result, CONNECTION_FAILED);
                true
            }
        }
    });
    // Without a daemon, it is without MPS.
    place.succeeds(&mut place.program("vector_add"));
    let alone = place.ready();
    let lines = place.observer().processes();
    let line = lines.iter().find(|line| line.pid == alone.pid());
    assert_eq!(line.unwrap().mps, 0);
}

#[test]
fn the_daemon_goes_on_with_the_next_server_of_the_device() {
    let place = with_daemon("H100");
    let mut client = place.ready();
    let before = place.mps_say("get_server_list");
    signal(place.server(), Signal::KILL);
    until("the client is told", || {
        client.result("info") == DEVICE_UNAVAILABLE
    });
    client.leave();
    until("a client is let in", || place.puppet().result("open") == 0);
    let next = place.ready();
    let lines = place.observer().processes();
    let line = lines.iter().find(|line| line.pid == next.pid());
    assert_ne!(line.unwrap().mps, 0);
    assert_ne!(place.mps_say("get_server_list"), before);
}

#[test]
fn a_folder_may_have_any_name() {
    let own = tempfile::tempdir().unwrap();
    let name = format!("a folder, \u{fc}nd {}", "long".repeat(40));
    let place = Place::at(own.path().join(name), &[]);
    place.mps(&[]);
    place.succeeds(&mut place.program("vector_add"));
    let both = shared(&place, &["--kernels", "20", "--us", "1000"]);
    assert_eq!(both.most(), 132_000);
}
