//! Processes and servers that are killed, stopped, or do what they should not.

use rustix::process::Signal;

use crate::place::{Observer, Place, is_gone, signal, until};

const DEVICE_UNAVAILABLE: u32 = 46;
const ILLEGAL_ADDRESS: u32 = 700;
const NOT_READY: u32 = 600;
const MIB: u64 = 1 << 20;

#[test]
fn a_killed_process_leaves_nothing_behind() {
    let place = Place::h100();
    let mut other = place.ready();
    other.does_all("alloc 0 1048576\nfill 0 0 262144 3\nsync 0");
    let before = other.does("info").number(0);

    let mut killed = place.ready();
    killed.does_all("alloc 0 1073741824\nspin 0 1000000 132 1\nsync 0\nspin 0 20000000 132 500");
    let pid = killed.pid();
    killed.tell("sync 0");
    // Its memory, and what its context keeps.
    let during = other.does("info").number(0);
    assert_eq!(before - during, (1024 + 400) * MIB);
    let observer = place.observer();
    assert!(observer.processes().iter().any(|line| line.pid == pid));
    until("it computes", || !place.ledger().of(pid).runs.is_empty());
    killed.kill();
    until("its memory is free", || {
        other.does("info").number(0) == before
    });
    assert!(observer.processes().iter().all(|line| line.pid != pid));
    assert_eq!(observer.statistics()["clients"], 1);
    assert_eq!(other.does("sum 0 262144").number(0), 3 * 262_144);
    // Nothing of its ten seconds is in the way.
    other.does_all("event 0\nevent 1\nrecord 0 0\nspin 0 1000000 132 1\nrecord 1 0\nsync 0");
    let ledger = place.ledger();
    let last = |pid| ledger.of(pid).runs.last().copied().unwrap();
    assert!(last(pid).to <= last(other.pid()).from);
}

#[test]
fn when_the_server_is_killed_everybody_is_told_and_the_next_begins_anew() {
    let place = Place::h100();
    let server = place.ready_server();
    let [mut waiting, mut idle, mut launching] = [(); 3].map(|()| place.ready());
    for puppet in [&mut waiting, &mut idle, &mut launching] {
        puppet.does_all("alloc 0 1048576\nevent 0");
    }
    waiting.does("spin 0 30000000000 132 1");
    waiting.tell("sync 0");
    signal(server, Signal::KILL);
    assert_eq!(waiting.answer().result, DEVICE_UNAVAILABLE);
    for line in [
        "info",
        "alloc 1 4096",
        "free 0",
        "spin 0 1000 1 1",
        "record 0 0",
        "sync_all",
    ] {
        let result = idle.result(line);
        assert_eq!(result, DEVICE_UNAVAILABLE, "{line}");
    }
    // More than are put in before somebody looks.
    assert_eq!(launching.result("spin 0 1000 1 100000"), DEVICE_UNAVAILABLE);
    assert_eq!(launching.result("sync 0"), DEVICE_UNAVAILABLE);
    until("the server is gone", || is_gone(server));

    // The old ones do not come back, and are in nobody's way.
    let mut new = place.ready();
    assert_ne!(place.server(), server);
    new.does_all("alloc 0 4096\nfill 0 0 1024 5\nsync 0");
    assert_eq!(new.does("sum 0 1024").number(0), 5 * 1024);
    assert_eq!(idle.result("info"), DEVICE_UNAVAILABLE);
    assert_eq!(place.observer().statistics()["clients"], 1);
    for puppet in [waiting, idle, launching, new] {
        puppet.leave();
    }
    place.succeeds(&mut place.program("vector_add"));
}

#[test]
fn without_mps_a_fault_is_nobody_elses() {
    let place = Place::h100();
    let [mut culprit, mut other] = [(); 2].map(|()| place.ready());
    other.does_all("alloc 0 1048576\nfill 0 0 262144 9\nspin 0 50000000 132 1");
    culprit.does("wild 0");
    assert_eq!(culprit.result("sync 0"), ILLEGAL_ADDRESS);
    assert_eq!(culprit.result("alloc 0 4096"), ILLEGAL_ADDRESS);
    other.does("sync 0");
    assert_eq!(other.does("sum 0 262144").number(0), 9 * 262_144);
    place.succeeds(&mut place.program("vector_add"));
    assert_eq!(place.observer().statistics()["faults"], 1);
}

#[test]
fn a_server_that_stands_still_for_a_while_changes_no_time() {
    let place = Place::h100();
    let mut puppet = place.ready();
    // What follows is put in behind a kernel of a second.
    puppet.does_all("alloc 0 1048576\nevent 0\nevent 1\nspin 0 1000000000 132 1");
    let server = place.server();
    signal(server, Signal::STOP);
    puppet.does_all(
        "fill 0 0 262144 4\nrecord 0 0\nspin 0 1000000 132 30\nrecord 1 0\nfill 0 0 131072 6",
    );
    // All of it would have ended: the clock says so, and nobody else.
    let begin = puppet.does("now").number(0);
    until("its time is over", || {
        assert_eq!(puppet.result("query 1"), NOT_READY);
        puppet.does("now").number(0) > begin + 1_100_000_000
    });
    signal(server, Signal::CONT);
    puppet.does("sync 0");
    let told = puppet.does("elapsed 0 1").milliseconds();
    assert!((told - 30.0).abs() < 1e-5, "{told}");
    assert_eq!(puppet.does("sum 0 262144").number(0), 131_072 * 10);
}

#[test]
fn nothing_is_left_to_run_when_all_have_ended() {
    let place = Place::h100();
    place.ready().leave();
    let server = place.server();
    until("the server ends by itself", || is_gone(server));
    assert!(Observer::open(place.folder()).is_none());
    assert!(!place.folder().join("server.sock").exists());
}
