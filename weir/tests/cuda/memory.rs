//! Memory that nobody touches.

use std::fs;

use crate::place::Place;

const MIB: u64 = 1 << 20;

/// A line of `/proc/PID/smaps_rollup`, in bytes.
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
fn only_what_is_touched_takes_memory_of_the_host() {
    let place = Place::new(&["--gpu", "H100", "--bytes", "64"]);
    let mut puppet = place.ready();
    let before = resident(puppet.pid(), "Rss");
    for block in 0..16 {
        puppet.does(&format!("alloc {block} {}", 64 * MIB));
        puppet.does(&format!("poke {block} {} {}", 32 * MIB, block + 1));
    }
    // It is a GiB to the device.
    assert!(place.observer().used() >= 1024 * MIB);
    for pid in [puppet.pid(), place.server()] {
        assert!(resident(pid, "Rss") < before + 16 * MIB, "{pid}");
    }
    // Around what was touched there are zeros.
    for block in 0..16 {
        puppet.does(&format!("fill 0 {block} 1 1"));
        let sum = puppet.does(&format!("sum {block} 4096"));
        assert_eq!(sum.number(0), 1);
    }
    assert!(resident(puppet.pid(), "Rss") < before + 16 * MIB);
    // What is written is there, until it is freed.
    let words = 64 * MIB / 4;
    puppet.does_all(&format!("fill 0 0 {words} 3\nsync 0"));
    assert_eq!(puppet.does(&format!("sum 0 {words}")).number(0), 3 * words);
    assert!(resident(puppet.pid(), "Rss") >= before + 64 * MIB);
    for block in 0..16 {
        puppet.does(&format!("free {block}"));
    }
    assert!(resident(puppet.pid(), "Rss") < before + 16 * MIB);
    // Only the context is left.
    assert!(place.observer().used() < 16 * MIB);
}
