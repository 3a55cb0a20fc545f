//! Processes and servers that are killed, stopped, or misbehave.

use rustix::process::Signal;

use softgpu_harness::soft_gpu_dir::{Observer, SoftGpuDir, is_gone, signal};
use testing::until;

const DEVICE_UNAVAILABLE: u32 = 46;
const ILLEGAL_ADDRESS: u32 = 700;
const NOT_READY: u32 = 600;
const MIB: u64 = 1 << 20;

#[test]
fn a_killed_process_leaves_nothing_behind() {
    let softgpu = SoftGpuDir::h100();
    let mut other = softgpu.ready();
    other.run_all("alloc 0 1048576\nfill 0 0 262144 3\nsync 0");
    let before = other.run("info").number(0);

    let mut killed = softgpu.ready();
    killed.run_all("alloc 0 1073741824\nspin 0 1000000 132 1\nsync 0\nspin 0 20000000 132 500");
    let pid = killed.pid();
    killed.send("sync 0");
    // The allocation, and the context's own memory.
    let during = other.run("info").number(0);
    assert_eq!(before - during, (1024 + 400) * MIB);
    let observer = softgpu.observer();
    assert!(observer.processes().iter().any(|line| line.pid == pid));
    until("it computes", || !softgpu.ledger().of(pid).runs.is_empty());
    killed.kill();
    until("its memory is free", || {
        other.run("info").number(0) == before
    });
    assert!(observer.processes().iter().all(|line| line.pid != pid));
    assert_eq!(observer.statistics()["clients"], 1);
    assert_eq!(other.run("sum 0 262144").number(0), 3 * 262_144);
    // The dead process's kernel of ten seconds delays nothing.
    other.run_all("event 0\nevent 1\nrecord 0 0\nspin 0 1000000 132 1\nrecord 1 0\nsync 0");
    let ledger = softgpu.ledger();
    let last = |pid| ledger.of(pid).runs.last().copied().unwrap();
    assert!(last(pid).to <= last(other.pid()).from);
}

#[test]
fn after_a_killed_server_its_clients_fail_and_the_next_one_starts_fresh() {
    let softgpu = SoftGpuDir::h100();
    let server = softgpu.ready_server();
    let [mut waiting, mut idle, mut launching] = [(); 3].map(|()| softgpu.ready());
    for puppet in [&mut waiting, &mut idle, &mut launching] {
        puppet.run_all("alloc 0 1048576\nevent 0");
    }
    waiting.run("spin 0 30000000000 132 1");
    waiting.send("sync 0");
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
    // More launches than are queued before a failure is noticed.
    assert_eq!(launching.result("spin 0 1000 1 100000"), DEVICE_UNAVAILABLE);
    assert_eq!(launching.result("sync 0"), DEVICE_UNAVAILABLE);
    until("the server is gone", || is_gone(server));

    // The old clients do not recover, and do not disturb new ones.
    let mut new = softgpu.ready();
    assert_ne!(softgpu.server(), server);
    new.run_all("alloc 0 4096\nfill 0 0 1024 5\nsync 0");
    assert_eq!(new.run("sum 0 1024").number(0), 5 * 1024);
    assert_eq!(idle.result("info"), DEVICE_UNAVAILABLE);
    assert_eq!(softgpu.observer().statistics()["clients"], 1);
    for puppet in [waiting, idle, launching, new] {
        puppet.leave();
    }
    softgpu.succeeds(&mut softgpu.program("vector_add"));
}

#[test]
fn without_mps_a_fault_affects_only_its_process() {
    let softgpu = SoftGpuDir::h100();
    let [mut culprit, mut other] = [(); 2].map(|()| softgpu.ready());
    other.run_all("alloc 0 1048576\nfill 0 0 262144 9\nspin 0 50000000 132 1");
    culprit.run("wild 0");
    assert_eq!(culprit.result("sync 0"), ILLEGAL_ADDRESS);
    assert_eq!(culprit.result("alloc 0 4096"), ILLEGAL_ADDRESS);
    other.run("sync 0");
    assert_eq!(other.run("sum 0 262144").number(0), 9 * 262_144);
    softgpu.succeeds(&mut softgpu.program("vector_add"));
    assert_eq!(softgpu.observer().statistics()["faults"], 1);
}

#[test]
fn a_paused_server_changes_no_device_time() {
    let softgpu = SoftGpuDir::h100();
    let mut puppet = softgpu.ready();
    // The following commands are queued behind a kernel of a second.
    puppet.run_all("alloc 0 1048576\nevent 0\nevent 1\nspin 0 1000000000 132 1");
    let server = softgpu.server();
    signal(server, Signal::STOP);
    puppet.run_all(
        "fill 0 0 262144 4\nrecord 0 0\nspin 0 1000000 132 30\nrecord 1 0\nfill 0 0 131072 6",
    );
    // By the clock all of it has ended, but no server has published it.
    let begin = puppet.run("now").number(0);
    until("its time is over", || {
        assert_eq!(puppet.result("query 1"), NOT_READY);
        puppet.run("now").number(0) > begin + 1_100_000_000
    });
    signal(server, Signal::CONT);
    puppet.run("sync 0");
    let measured = puppet.run("elapsed 0 1").milliseconds();
    assert!((measured - 30.0).abs() < 1e-5, "{measured}");
    assert_eq!(puppet.run("sum 0 262144").number(0), 131_072 * 10);
}

#[test]
fn nothing_keeps_running_after_the_last_client() {
    let softgpu = SoftGpuDir::h100();
    softgpu.ready().leave();
    let server = softgpu.server();
    until("the server ends by itself", || is_gone(server));
    assert!(Observer::open(softgpu.folder()).is_none());
    assert!(!softgpu.folder().join("server.sock").exists());
}
