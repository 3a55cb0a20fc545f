//! Event times and the ledger against the device's figures. Nothing here depends on the speed of this machine: the compared times
//! are those of the device's timeline.

use std::time::Duration;

use device::part::Part;

use softgpu_harness::puppet::Puppet;
use softgpu_harness::soft_gpu_dir::{Ledger, SoftGpuDir};

const MS: u64 = 1_000_000;

/// Asserts that the driver's float of milliseconds is exactly this many ns.
fn is_exactly(milliseconds: f32, ns: u64) {
    is_about(milliseconds, ns, 0);
}

/// Asserts the same where each of `kernels` kernels may be rounded up to a nanosecond.
fn is_about(milliseconds: f32, ns: u64, kernels: u32) {
    let reported = f64::from(milliseconds) * 1e6;
    let exact = Duration::from_nanos(ns).as_secs_f64() * 1e9;
    // Half of the float's last digit, and a rounded nanosecond.
    let precision = exact * f64::from(f32::EPSILON) / 2.0 + 1.0 + f64::from(kernels);
    assert!(
        (reported - exact).abs() <= precision,
        "{reported} ns, not {exact} ns"
    );
}

/// Returns the time of queued commands between two events, in ms. They are queued behind a kernel of 20 ms, so that all are there
/// before the first begins; repeated where queueing took longer.
fn takes(puppet: &mut Puppet, commands: &str) -> f32 {
    for _ in 0..20 {
        puppet.send("now\nspin 0 20000000 132 1\nrecord 0 0");
        puppet.send(commands);
        puppet.send("record 1 0\nnow");
        let begin = puppet.answer().number(0);
        for _ in 0..commands.lines().count() + 3 {
            assert_eq!(puppet.answer().result, 0, "{commands}");
        }
        let end = puppet.answer().number(0);
        puppet.run("sync_all");
        if end - begin < 20 * MS {
            return puppet.run("elapsed 0 1").milliseconds();
        }
    }
    panic!("queueing took 20 ms each time");
}

fn with_events(softgpu: &SoftGpuDir) -> Puppet {
    let mut puppet = softgpu.ready();
    puppet.run_all("event 0\nevent 1\nevent 2\nstream 1\nstream 2");
    puppet
}

#[test]
fn kernels_in_a_row_take_their_time_to_the_nanosecond() {
    let softgpu = SoftGpuDir::h100();
    let mut puppet = with_events(&softgpu);
    for (ns, blocks, count) in [
        (1_000, 132, 1),
        (100_000, 132, 200),
        (137_137, 1, 100),
        (1, 7, 500),
        (20 * MS, 66, 3),
        // A second wave of blocks takes as long again.
        (100_000, 132 * 2 + 1, 10),
    ] {
        let waves = if blocks > 264 { 2 } else { 1 };
        let reported = takes(&mut puppet, &format!("spin 0 {ns} {blocks} {count}"));
        is_exactly(reported, ns * count * waves);
    }
}

#[test]
fn copies_take_their_bytes_over_the_links_rate() {
    for (part, bytes_scale) in [("H100", 1), ("V100", 1), ("A100", 64)] {
        let scale = bytes_scale.to_string();
        let softgpu = SoftGpuDir::new(&["--gpu", part, "--bytes", &scale]);
        let part = Part::named(part).unwrap();
        let mut puppet = with_events(&softgpu);
        puppet.run_all("alloc 0 67108864\nalloc 1 67108864\nhost 0 67108864");
        let link = part.host_link_bytes_per_second / bytes_scale;
        let memory = part.memory_bytes_per_second / bytes_scale;
        let setup = part.copy_setup().0;
        for bytes in [4, 4096, 1_000_003, 64 << 20] {
            let by = |rate: u64, times: u64| (bytes * times * 1_000_000_000).div_ceil(rate);
            for (copy, ns) in [
                (format!("push 0 0 0 {bytes}"), setup + by(link, 1)),
                (format!("pull 0 0 0 {bytes}"), setup + by(link, 1)),
                // A move reads and writes the device's own memory.
                (format!("move 0 0 1 {bytes}"), by(memory, 2)),
            ] {
                is_exactly(takes(&mut puppet, &copy), ns);
            }
        }
        // Copies in one stream follow one another.
        let copies = "push 0 0 0 1000000\npull 0 0 0 1000000\npush 0 1 0 1000000";
        let one = (1_000_000 * 1_000_000_000_u64).div_ceil(link);
        is_exactly(takes(&mut puppet, copies), 3 * (setup + one));
        // Pageable memory passes the driver's staging buffers.
        puppet.run("pages 1 60000");
        let staging = part.pageable_bytes_per_second / bytes_scale;
        let ns = setup + (60_000 * 1_000_000_000_u64).div_ceil(staging);
        is_exactly(takes(&mut puppet, "push 0 0 1 60000"), ns);
    }
}

#[test]
fn calls_for_mapped_memory_take_their_time_on_the_host() {
    for time in [1, 4] {
        let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--time", &time.to_string()]);
        let times = Part::named("H100").unwrap().mappings;
        let each =
            times.create_us + times.map_us + times.access_us + times.unmap_us + times.release_us;
        assert!(each > 0);
        let mut puppet = with_events(&softgpu);
        puppet.run_all("record 0 0\nhandles 50\nrecord 1 0\nsync_all");
        let took = f64::from(puppet.run("elapsed 0 1").milliseconds());
        // The program itself takes time as well.
        let least = Duration::from_micros(50 * each * time).as_secs_f64() * 1e3;
        assert!(
            took >= least * (1.0 - 1e-6),
            "{took} ms, at least {least} ms"
        );
    }
}

/// Returns the time from event 0 until the commands in streams 1 and 2 are both done, in ms.
fn in_two_streams(puppet: &mut Puppet, first: &str, second: &str) -> f32 {
    let commands = format!(
        "wait 1 0\n{first}\nwait 2 0\n{second}\nrecord 2 1\nwait 0 2\nrecord 2 2\nwait 0 2"
    );
    takes(puppet, &commands)
}

#[test]
fn kernels_that_fit_run_concurrently_and_others_share() {
    let softgpu = SoftGpuDir::h100();
    let mut puppet = with_events(&softgpu);
    puppet.run_all("alloc 0 67108864\nalloc 1 67108864\nhost 0 67108864\nhost 1 67108864");
    let half = "spin STREAM 250000 66 40";
    let all = "spin STREAM 250000 132 40";
    let in_stream = |what: &str, stream: &str| what.replace("STREAM", stream);
    for (first, second, ns) in [
        (half, half, 10 * MS),
        // Together 1.5 times the device: both take 1.5 times as long.
        (half, all, 15 * MS),
        (all, all, 20 * MS),
    ] {
        let reported = in_two_streams(&mut puppet, &in_stream(first, "1"), &in_stream(second, "2"));
        is_about(reported, ns, 40);
    }
    // The directions of the link are independent; kernels do not wait for copies.
    let bytes = 52_000_000;
    let [push, pull] = ["push", "pull"].map(|way| format!("{way} STREAM M M {bytes}"));
    let push = push.replace("STREAM", "1").replace('M', "0");
    let pull = pull.replace("STREAM", "2").replace('M', "1");
    let setup = Part::named("H100").unwrap().copy_setup().0;
    is_exactly(in_two_streams(&mut puppet, &push, &pull), setup + MS);
    let kernels = "spin 2 100000 132 10";
    is_exactly(in_two_streams(&mut puppet, &push, kernels), setup + MS);
}

#[test]
fn all_times_are_multiplied_by_the_scale() {
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--time", "4"]);
    let mut puppet = with_events(&softgpu);
    is_exactly(takes(&mut puppet, "spin 0 1000000 132 5"), 20 * MS);
    puppet.run_all("alloc 0 52000000\nhost 0 52000000");
    let setup = Part::named("H100").unwrap().copy_setup().0;
    is_exactly(takes(&mut puppet, "push 0 0 0 52000000"), 4 * (setup + MS));
}

/// Returns the SM use of both processes of `share` while both were running.
pub(crate) fn shared(softgpu: &SoftGpuDir, arguments: &[&str]) -> Ledger {
    let mut program = softgpu.program("share");
    let output = program
        .args(["--processes", "2"])
        .args(arguments)
        .output()
        .unwrap();
    let printed = softgpu_harness::soft_gpu_dir::text(&output);
    assert!(output.status.success(), "{printed}");
    let ledger = softgpu.ledger();
    let processes: Vec<serde_json::Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(processes.len(), 2, "{printed}");
    let begun = processes
        .iter()
        .map(|process| process["wall_start_ns"].as_u64().unwrap())
        .max();
    let through = processes.iter().map(|process| {
        let pid = u32::try_from(process["pid"].as_u64().unwrap()).unwrap();
        ledger.of(pid).runs.last().unwrap().to.0
    });
    ledger.within(begun.unwrap(), through.min().unwrap())
}

#[test]
fn two_processes_take_turns() {
    for (part, arguments) in [
        ("H100", ["--kernels", "60", "--us", "1000"]),
        // A kernel longer than a turn continues in the next.
        ("V100", ["--kernels", "6", "--us", "7000"]),
    ] {
        let softgpu = SoftGpuDir::new(&["--gpu", part]);
        let both = shared(&softgpu, &arguments);
        let part = Part::named(part).unwrap();
        let pids: Vec<_> = both.pids().into_iter().collect();
        let [one, other] = pids[..] else {
            panic!("{both:?}");
        };
        assert_eq!(both.of(one).overlap(&both.of(other)), 0);
        assert!(both.most() <= u64::from(part.sms) * 1_000);
        let turns = both.turns();
        assert!(turns.len() > 10, "{turns:?}");
        for pair in turns.windows(2) {
            let [turn, next] = pair else { continue };
            assert!(turn.to.since(turn.from) <= part.time_slice(), "{pair:?}");
            assert!(next.from.since(turn.to) >= part.switch(), "{pair:?}");
        }
        // The turns are fair: each process has half of them, and these are whole ones.
        let whole = turns
            .iter()
            .filter(|turn| turn.to.since(turn.from) == part.time_slice());
        assert!(whole.count() + 4 >= turns.len(), "{turns:?}");
    }
}
