//! What the kernel says of a process.

use std::fs;

/// Returns the bytes of memory that are resident; `None`: it has ended.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kibibytes: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns how many files it has open, and how many threads; `None`: it has ended.
#[must_use]
pub fn files_and_threads(pid: u32) -> Option<(usize, usize)> {
    let count = |folder: &str| {
        let entries = fs::read_dir(format!("/proc/{pid}/{folder}")).ok()?;
        Some(entries.count())
    };
    Some((count("fd")?, count("task")?))
}
