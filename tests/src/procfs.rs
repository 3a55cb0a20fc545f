//! Process information from the kernel.

use std::fs;

/// Returns the resident memory in bytes; `None` if the process has ended.
#[must_use]
pub fn resident_bytes(pid: u32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kibibytes: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns the numbers of open files and of threads; `None` if the process has ended.
#[must_use]
pub fn files_and_threads(pid: u32) -> Option<(usize, usize)> {
    let count = |folder: &str| {
        let entries = fs::read_dir(format!("/proc/{pid}/{folder}")).ok()?;
        Some(entries.count())
    };
    Some((count("fd")?, count("task")?))
}
