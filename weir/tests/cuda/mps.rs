//! Concurrent processes under the MPS daemon that `weir softgpu path` installs.

use std::time::{Duration, Instant};

use device::part::Part;
use rustix::process::Signal;

use crate::time::shared;
use softgpu_harness::soft_gpu_dir::{SoftGpuDir, signal};
use testing::until;

const CLIENT_TERMINATED: u32 = 810;
const CONNECTION_FAILED: u32 = 805;
const DEVICE_UNAVAILABLE: u32 = 46;
const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;
const MAX_CLIENTS_REACHED: u32 = 808;
const OUT_OF_MEMORY: u32 = 2;
const SERVER_NOT_READY: u32 = 807;

fn with_daemon(part: &str) -> SoftGpuDir {
    let softgpu = SoftGpuDir::new(&["--gpu", part]);
    softgpu.mps(&[]);
    softgpu
}

#[test]
fn two_clients_run_side_by_side() {
    let softgpu = with_daemon("H100");
    let both = shared(&softgpu, &["--kernels", "50", "--us", "1000"]);
    let pids: Vec<_> = both.pids().into_iter().collect();
    let [one, other] = pids[..] else {
        panic!("{both:?}");
    };
    // Each requests the whole device and gets half of it all the time.
    assert_eq!(both.most(), 132_000);
    let [one, other] = [one, other].map(|pid| both.of(pid));
    let busy: u64 = one.runs.iter().map(|run| run.to.since(run.from).0).sum();
    assert!(one.overlap(&other) * 10 >= busy * 9, "{both:?}");
}

#[test]
fn a_percentage_is_rounded_up_to_whole_units_and_enforced() {
    let softgpu = with_daemon("H100");
    let part = Part::named("H100").unwrap();
    let name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let mut clients = ["25", "50"].map(|percent| softgpu.ready_with(&[(name, percent)]));
    // Each kernel is longer than it takes to start the other process.
    for client in &mut clients {
        client.run_all("event 0\nevent 1");
        client.send("record 0 0\nspin 0 400000000 132 1\nrecord 1 0\nsync 0\nelapsed 0 1");
    }
    let measured = clients.each_mut().map(|client| {
        for _ in 0..4 {
            assert_eq!(client.answer().result, 0);
        }
        client.answer().milliseconds()
    });
    let ledger = softgpu.ledger();
    let of = clients.each_ref().map(|client| ledger.of(client.pid()));
    for ((hundredths, measured), own) in [2_500, 5_000].into_iter().zip(measured).zip(&of) {
        let sms = part.sms_of_percentage(hundredths);
        assert_eq!(own.most(), u64::from(sms) * 1_000, "{hundredths}");
        // The limited device takes longer, from the record before the kernel to the one after it.
        let alone = 400.0 * f64::from(part.sms) / f64::from(sms);
        let ran = own.runs.last().unwrap();
        let ran = ran.to.since(ran.from).0;
        let ran = Duration::from_nanos(ran).as_secs_f64() * 1e3;
        assert!((ran - alone).abs() < 1e-3, "{ran} ms, not {alone}");
        assert!(
            f64::from(measured) >= alone - 1e-3,
            "{measured} ms, not {alone}"
        );
    }
    assert!(of[0].overlap(&of[1]) > 0);
    let lines = softgpu.observer().processes();
    let mut sms: Vec<_> = lines.iter().map(|line| line.sms).collect();
    sms.sort_unstable();
    assert_eq!(sms, [34, 66]);
}

#[test]
fn settings_for_all_clients_apply_to_each() {
    let softgpu = with_daemon("V100");
    let say = |line: &str| softgpu.mps_command(line);
    assert_eq!(say("set_default_active_thread_percentage 12"), "12.0\n");
    assert_eq!(say("set_default_device_pinned_mem_limit 0 2G"), "");
    let mut client = softgpu.ready();
    client.run("spin 0 1000000 80 1");
    client.run("sync 0");
    // 9.6 SMs are 5 units of 2.
    assert_eq!(softgpu.ledger().of(client.pid()).most(), 10_000);
    // A client may lower the percentage, not raise it.
    let name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    for (percent, sms) in [("5", 4), ("50", 10)] {
        let client = softgpu.ready_with(&[(name, percent)]);
        let lines = softgpu.observer().processes();
        let line = lines.iter().find(|line| line.pid == client.pid());
        assert_eq!(line.unwrap().sms, sms, "{percent}");
    }

    client.run("alloc 0 1073741824");
    assert_eq!(client.result("alloc 1 1073741824"), OUT_OF_MEMORY);
    let mut other = softgpu.ready();
    other.run("alloc 0 1073741824");
    client.run("free 0");
    client.run("alloc 1 1073741824");
    let own = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")];
    let mut limited = softgpu.ready_with(&own);
    assert_eq!(limited.result("alloc 0 536870912"), OUT_OF_MEMORY);
    limited.run("alloc 0 134217728");
}

#[test]
fn a_memory_limit_applies_to_scaled_memory() {
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--bytes", "16"]);
    softgpu.mps(&[]);
    let own = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=512M")];
    let mut limited = softgpu.ready_with(&own);
    limited.run("alloc 0 268435456");
    assert_eq!(limited.result("alloc 1 268435456"), OUT_OF_MEMORY);
}

#[test]
fn refuses_clients_above_the_maximum() {
    let softgpu = with_daemon("H100");
    let most = Part::named("H100").unwrap().mps_clients;
    let mut clients: Vec<_> = (0..most).map(|_| softgpu.puppet()).collect();
    for client in &mut clients {
        client.send("open");
    }
    for client in &mut clients {
        assert_eq!(client.answer().result, 0);
    }
    let mut more = softgpu.puppet();
    assert_eq!(more.result("open"), MAX_CLIENTS_REACHED);
    clients.pop().unwrap().leave();
    until("there is room for another", || {
        softgpu.puppet().result("open") == 0
    });
}

#[test]
fn a_fault_hits_all_clients_and_ends_with_the_last() {
    let softgpu = with_daemon("H100");
    let [mut culprit, mut victim] = [(); 2].map(|()| softgpu.ready());
    victim.run("spin 0 30000000000 132 1");
    victim.send("sync 0");
    culprit.run("wild 0");
    assert_eq!(culprit.result("sync 0"), ILLEGAL_ADDRESS);
    assert_eq!(victim.answer().result, LAUNCH_FAILED);
    assert_eq!(victim.result("alloc 0 4096"), LAUNCH_FAILED);
    assert_eq!(culprit.result("alloc 0 4096"), ILLEGAL_ADDRESS);
    let refused = || {
        let mut late = softgpu.puppet();
        let result = late.result("open");
        late.leave();
        result
    };
    assert_eq!(refused(), SERVER_NOT_READY);
    culprit.leave();
    assert_eq!(refused(), SERVER_NOT_READY);
    victim.kill();
    until("clients are admitted again", || match refused() {
        0 => true,
        result => {
            assert_eq!(result, SERVER_NOT_READY);
            false
        }
    });
    softgpu.succeeds(&mut softgpu.program("vector_add"));
}

#[test]
fn a_client_that_is_terminated_ends_alone() {
    let softgpu = with_daemon("H100");
    let [mut one, mut other] = [(); 2].map(|()| softgpu.ready());
    one.run("spin 0 30000000000 66 1");
    one.send("sync 0");
    other.run("alloc 0 4096");
    let server = softgpu.mps_command("get_server_list");
    let line = format!("terminate_client {} {}", server.trim(), one.pid());
    assert_eq!(softgpu.mps_command(&line), "0\n");
    assert_eq!(one.answer().result, CLIENT_TERMINATED);
    assert_eq!(one.result("alloc 0 4096"), CLIENT_TERMINATED);
    other.run_all("fill 0 0 1024 7\nsync 0");
    assert_eq!(other.run("sum 0 1024").number(0), 7 * 1024);
}

#[test]
fn clients_notice_the_loss_of_the_daemon_during_a_kernel() {
    let softgpu = with_daemon("H100");
    let [mut waiting, mut idle] = [(); 2].map(|()| softgpu.ready());
    waiting.run("spin 0 30000000000 132 1");
    waiting.send("sync 0");
    let begin = Instant::now();
    signal(softgpu.daemon(), Signal::KILL);
    assert_eq!(waiting.answer().result, CONNECTION_FAILED);
    let measured = begin.elapsed();
    // The kernel takes half a minute.
    assert!(measured < Duration::from_secs(25), "{measured:?}");
    until("the idle client notices", || {
        // It may notice between the two.
        let results = ["alloc 0 4096", "free 0"].map(|command| idle.result(command));
        let failed = results.into_iter().find(|result| *result != 0);
        assert!(
            matches!(failed, None | Some(CONNECTION_FAILED)),
            "{results:?}"
        );
        failed.is_some()
    });
    // Without a daemon, programs run without MPS.
    softgpu.succeeds(&mut softgpu.program("vector_add"));
    let alone = softgpu.ready();
    let lines = softgpu.observer().processes();
    let line = lines.iter().find(|line| line.pid == alone.pid());
    assert_eq!(line.unwrap().mps, 0);
}

#[test]
fn the_daemon_continues_with_the_next_server() {
    let softgpu = with_daemon("H100");
    let mut client = softgpu.ready();
    let before = softgpu.mps_command("get_server_list");
    signal(softgpu.server(), Signal::KILL);
    until("the client notices", || {
        client.result("info") == DEVICE_UNAVAILABLE
    });
    client.leave();
    until("a client is admitted", || {
        softgpu.puppet().result("open") == 0
    });
    let next = softgpu.ready();
    let lines = softgpu.observer().processes();
    let line = lines.iter().find(|line| line.pid == next.pid());
    assert_ne!(line.unwrap().mps, 0);
    assert_ne!(softgpu.mps_command("get_server_list"), before);
}

#[test]
fn a_folder_may_have_any_name() {
    let own = tempfile::tempdir().unwrap();
    let name = format!("a folder, \u{fc}nd {}", "long".repeat(40));
    let softgpu = SoftGpuDir::at(own.path().join(name), &[]);
    softgpu.mps(&[]);
    softgpu.succeeds(&mut softgpu.program("vector_add"));
    // Longer than one of them is kept off a busy machine's processors.
    let both = shared(&softgpu, &["--kernels", "200", "--us", "1000"]);
    assert_eq!(both.most(), 132_000);
}
