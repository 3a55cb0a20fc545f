//! Host memory for copies as the process has it.

use std::fs::read_to_string;

use testing::variables::print_line;

use crate::{evict, filled, node, process, program, ready, sums};

/// Size of a huge page in bytes.
const HUGE: u64 = 2 << 20;

#[test]
fn windows_lie_where_huge_pages_need_no_page_tables() {
    let node = node("");
    let mut puppet = program(&node);
    let before = filled(&mut puppet);
    ready(&node);
    evict(&node);
    assert_eq!(sums(&mut puppet), before);
    let pid = process(&node)["pid"].as_u64().unwrap();
    let all = read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut windows, mut kib, mut in_huge_pages) = (0, 0, 0);
    let mut is_window = false;
    for line in all.lines() {
        if let Some((range, _)) = line.split_once(' ')
            && let Some((begin, end)) = range.split_once('-')
        {
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            is_window = line.contains("weir-host-memory");
            if is_window && address(end) - address(begin) >= HUGE {
                assert!(address(begin).is_multiple_of(HUGE), "{line}");
                windows += 1;
            }
        } else if is_window && let Some((key, value)) = line.split_once(':') {
            let number = || value.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            match key {
                "Rss" => kib += number(),
                "ShmemPmdMapped" => in_huge_pages += number(),
                _ => {}
            }
        }
    }
    // How many of them the kernel had is not for the test to say.
    print_line(&format!(
        "{windows} windows, {kib} KiB of them used, {in_huge_pages} KiB in huge pages"
    ));
    assert!(windows > 0 && in_huge_pages <= kib);
}
