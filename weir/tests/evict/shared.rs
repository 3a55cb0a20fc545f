//! Blocks of a model that share handles of the driver.

use softgpu_harness::puppet::Puppet;
use testing::until;

use crate::{GRANULE, evict, node, on_device, process, program};

/// Number of blocks, and size of each in granules.
const BLOCKS: u64 = 24;
const BLOCK: u64 = 20;

#[test]
fn memory_that_a_program_frees_amid_blocks_which_share_handles_can_be_had_again() {
    let node = node("");
    let mut observer = node.softgpu.ready();
    let empty = on_device(&mut observer);
    let mut puppet = program(&node);
    let words = BLOCK * GRANULE / 4;
    for slot in 0..BLOCKS {
        puppet.run(&format!("alloc {slot} {}", BLOCK * GRANULE));
        puppet.run(&format!("fill 0 {slot} {words} {}", 77 + slot));
    }
    let check = |puppet: &mut Puppet, slot: u64| {
        let sum = puppet.run(&format!("sum {slot} {words}")).number(0);
        assert_eq!(sum, words * (77 + slot), "block {slot}");
    };
    until("the process has host memory", || {
        process(&node)["host_bytes"].as_u64() >= Some(BLOCKS * BLOCK * GRANULE)
    });
    for _ in 0..4 {
        evict(&node);
        for slot in 0..BLOCKS {
            check(&mut puppet, slot);
        }
    }
    let resident = on_device(&mut observer);
    for slot in (0..BLOCKS).step_by(2) {
        puppet.run(&format!("free {slot}"));
    }
    // It is reported as free, and can be allocated with all else, but for what the sums below need.
    let free = puppet.run("info").number(0);
    let all = free / GRANULE * GRANULE - 4 * GRANULE;
    let freed = BLOCKS / 2 * BLOCK * GRANULE;
    assert!(
        on_device(&mut observer) > resident - freed,
        "they share handles"
    );
    puppet.run(&format!("alloc 0 {all}"));
    puppet.run(&format!("fill 0 0 {words} 77"));
    for slot in (0..BLOCKS).filter(|slot| *slot == 0 || slot % 2 == 1) {
        check(&mut puppet, slot);
    }
    puppet.run("free 0");
    // What is left moves as before.
    evict(&node);
    assert_eq!(process(&node)["residency"], "host");
    for slot in (1..BLOCKS).step_by(2) {
        check(&mut puppet, slot);
    }
    for slot in (1..BLOCKS).step_by(2) {
        puppet.run(&format!("free {slot}"));
    }
    drop(puppet);
    until("all memory is returned", || {
        on_device(&mut observer) == empty
    });
}
