//! Host memory of allocations that are not touched.

use std::fs;

use softgpu_harness::soft_gpu_dir::SoftGpuDir;

const MIB: u64 = 1 << 20;

/// Returns a value of `/proc/PID/smaps_rollup`, in bytes.
fn resident(pid: u32, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(key));
    let kib = line
        .unwrap()
        .trim_start_matches(':')
        .trim()
        .trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

#[test]
fn only_touched_pages_take_host_memory() {
    let softgpu = SoftGpuDir::new(&["--gpu", "H100", "--bytes", "64"]);
    let mut puppet = softgpu.ready();
    let before = resident(puppet.pid(), "Rss");
    for block in 0..16 {
        puppet.run(&format!("alloc {block} {}", 64 * MIB));
        puppet.run(&format!("poke {block} {} {}", 32 * MIB, block + 1));
    }
    // On the device the whole GiB is in use.
    assert!(softgpu.observer().used() >= 1024 * MIB);
    for pid in [puppet.pid(), softgpu.server()] {
        assert!(resident(pid, "Rss") < before + 16 * MIB, "{pid}");
    }
    // The rest of touched pages is zero.
    for block in 0..16 {
        puppet.run(&format!("fill 0 {block} 1 1"));
        let sum = puppet.run(&format!("sum {block} 4096"));
        assert_eq!(sum.number(0), 1);
    }
    assert!(resident(puppet.pid(), "Rss") < before + 16 * MIB);
    // Written data stays until freed.
    let words = 64 * MIB / 4;
    puppet.run_all(&format!("fill 0 0 {words} 3\nsync 0"));
    assert_eq!(puppet.run(&format!("sum 0 {words}")).number(0), 3 * words);
    assert!(resident(puppet.pid(), "Rss") >= before + 64 * MIB);
    for block in 0..16 {
        puppet.run(&format!("free {block}"));
    }
    assert!(resident(puppet.pid(), "Rss") < before + 16 * MIB);
    // Only the context's memory remains.
    assert!(softgpu.observer().used() < 16 * MIB);
}
