//! What the preload library takes of a process.

use std::fs::read_to_string;

use softgpu_harness::puppet::Puppet;
use testing::variables::print_line;

use crate::{filled, node, program, ready, sums};

/// Most anonymous memory that the library may take of a process, in KiB.
const KIB_MAX: u64 = 1_024;

/// Returns the anonymous memory of a process, in KiB: what no file or memory file has.
fn anonymous(puppet: &Puppet) -> u64 {
    let path = format!("/proc/{}/smaps_rollup", puppet.pid());
    let text = read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with("Anonymous:"));
    let words = line.and_then(|line| line.split_whitespace().nth(1));
    words.unwrap().parse().unwrap()
}

#[test]
fn a_process_needs_less_than_a_mebibyte_more_for_the_library() {
    let node = node("");
    let mut without = node.softgpu.ready();
    let of_sums = filled(&mut without);
    let mut with = program(&node);
    assert_eq!(filled(&mut with), of_sums);
    ready(&node);
    assert_eq!(sums(&mut with), of_sums);
    let [with, without] = [&with, &without].map(anonymous);
    print_line(&format!("{with} KiB with the library, {without} without"));
    let more = with.saturating_sub(without);
    assert!(more < KIB_MAX, "{more} KiB");
}
