//! Roster of the processes with pages, kept in the pod's folder: a restarted agent grants no token on a slot before each of
//! them has greeted or died (invariant 6).
//!
//! A line is `PID START SM`: the process ID, its start time from `/proc`, since IDs are reused, and its share of the SMs in
//! hundredths of a percent.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use agent_core::ProcessRecord;

/// Name of the file in the pod's folder.
const NAME: &str = "processes";
/// Maximum number of lines read, above the number of processes that a pod may have.
const LINES_MAX: usize = 1_024;
/// Maximum size of a file written by an agent, in bytes; a larger one is ignored.
const BYTES_MAX: u64 = 64 << 10;

fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Returns the recorded processes that are still alive.
pub(super) fn survivors(folder: &Path) -> Vec<ProcessRecord> {
    let path = path(folder);
    if fs::symlink_metadata(&path).map_or(0, |data| data.len()) > BYTES_MAX {
        return Vec::new();
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .take(LINES_MAX)
        .filter_map(parse)
        .filter(is_alive)
        .collect()
}

fn parse(line: &str) -> Option<ProcessRecord> {
    let mut words = line.split(' ');
    let record = ProcessRecord {
        pid: words.next()?.parse().ok()?,
        start: words.next()?.parse().ok()?,
        sm_hundredths: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(record)
}

/// Writes the records, replacing the file atomically. On a full disk the old file stays, which lists more or fewer processes
/// than there are for the two seconds after the next start.
pub(super) fn write(folder: &Path, records: &[ProcessRecord]) -> std::io::Result<()> {
    let mut text = String::new();
    for ProcessRecord {
        pid,
        start,
        sm_hundredths,
    } in records
    {
        let _string = writeln!(text, "{pid} {start} {sm_hundredths}");
    }
    let new = folder.join(".processes.new");
    fs::write(&new, text)?;
    fs::rename(new, path(folder))
}

/// Returns the start time of a process; `None` when there is no such process, or it is a zombie.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    let stat = stat(pid)?;
    let is_zombie = matches!(stat.state, 'Z' | 'X') && stat.threads < 2;
    (!is_zombie).then_some(stat.start)
}

/// Returns whether a recorded process is alive. One that cannot be examined counts as alive.
pub(super) fn is_alive(record: &ProcessRecord) -> bool {
    match fs::metadata(format!("/proc/{}", record.pid)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(_) => true,
        Ok(_) => match stat(record.pid) {
            Some(_) => start_of(record.pid) == Some(record.start),
            // Ended between the two calls, or no file can be opened.
            None => fs::metadata(format!("/proc/{}", record.pid)).is_ok(),
        },
    }
}

/// Returns whether a process is stopped, until a `SIGCONT`.
pub(super) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
}

struct Stat {
    /// State of the first thread, which may have ended before others.
    state: char,
    threads: u64,
    start: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name is in parentheses and may contain any character.
    let (_, rest) = text.rsplit_once(')')?;
    let mut words = rest.split_whitespace();
    let state = words.next()?.chars().next()?;
    // The 20th and the 22nd field; the state is the third.
    let threads = words.nth(16)?.parse().ok()?;
    let start = words.nth(1)?.parse().ok()?;
    Some(Stat {
        state,
        threads,
        start,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_processes_survive() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let start = start_of(own).unwrap();
        let record = |pid, start| ProcessRecord {
            pid,
            start,
            sm_hundredths: 1_200,
        };
        let all = [
            record(own, start),
            record(own, start + 1),
            record(u32::MAX, 1),
        ];
        write(folder.path(), &all).unwrap();
        assert_eq!(survivors(folder.path()), all[..1]);
    }

    #[test]
    fn malformed_files_contain_no_processes() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(survivors(folder.path()), []);
        for text in ["", "x\n\n1 2\n1 2 3 4\n-1 2 3\n", "\u{0}"] {
            fs::write(path(folder.path()), text).unwrap();
            assert_eq!(survivors(folder.path()), [], "{text:?}");
        }
        fs::write(path(folder.path()), vec![b'1'; 1 << 20]).unwrap();
        assert_eq!(survivors(folder.path()), []);
    }
}
