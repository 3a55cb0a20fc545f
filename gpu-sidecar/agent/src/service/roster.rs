//! Which processes of a pod had pages, kept in its folder: an agent that is started anew gives no token on a slot before each of
//! them has said hello or is dead (invariant 6).
//!
//! A line is `PID START SM`: the process's number, the time of its start as `/proc` tells it, since numbers are given again,
//! and its share of SMs in hundredths of a per cent.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The file in the pod's folder.
const NAME: &str = "processes";
/// Lines that are read at most: a pod has fewer processes.
const LINES_MAX: usize = 1_024;
/// No longer file was written by an agent.
const BYTES_MAX: u64 = 64 << 10;

/// A process that had pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// Its number.
    pub(super) pid: u32,
    /// When it was started, in clock ticks since the machine's own start.
    pub(super) start: u64,
    /// Its share of SMs.
    pub(super) sm_hundredths: u32,
}

fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Those that were there and still live.
pub(super) fn survivors(folder: &Path) -> Vec<Known> {
    let path = path(folder);
    if fs::symlink_metadata(&path).map_or(0, |data| data.len()) > BYTES_MAX {
        return Vec::new();
    }
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .take(LINES_MAX)
        .filter_map(parse)
        .filter(lives)
        .collect()
}

fn parse(line: &str) -> Option<Known> {
    let mut words = line.split(' ');
    let known = Known {
        pid: words.next()?.parse().ok()?,
        start: words.next()?.parse().ok()?,
        sm_hundredths: words.next()?.parse().ok()?,
    };
    words.next().is_none().then_some(known)
}

/// Writes who is there now. It comes into its place whole; a full disk leaves the old one, which names more or fewer processes
/// than there are for the two seconds after the next start.
pub(super) fn write(folder: &Path, known: &[Known]) -> std::io::Result<()> {
    let mut text = String::new();
    for Known {
        pid,
        start,
        sm_hundredths,
    } in known
    {
        let _string = writeln!(text, "{pid} {start} {sm_hundredths}");
    }
    let new = folder.join(".processes.new");
    fs::write(&new, text)?;
    fs::rename(new, path(folder))
}

/// When a process was started; `None`: there is none of that number, or it is a corpse.
pub(super) fn start_of(pid: u32) -> Option<u64> {
    let stat = stat(pid)?;
    let is_corpse = matches!(stat.state, 'Z' | 'X') && stat.threads < 2;
    (!is_corpse).then_some(stat.start)
}

/// Whether a process is still there. What cannot be looked at counts as being there.
pub(super) fn lives(known: &Known) -> bool {
    match fs::metadata(format!("/proc/{}", known.pid)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(_) => true,
        Ok(_) => match stat(known.pid) {
            Some(_) => start_of(known.pid) == Some(known.start),
            // Gone between the two, or no file can be opened.
            None => fs::metadata(format!("/proc/{}", known.pid)).is_ok(),
        },
    }
}

/// The process does nothing until it is continued.
pub(super) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
}

struct Stat {
    /// Of the first thread: that one may have ended before others.
    state: char,
    threads: u64,
    start: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may contain anything.
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
    fn those_that_live_are_found_again_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let start = start_of(own).unwrap();
        let known = |pid, start| Known {
            pid,
            start,
            sm_hundredths: 1_200,
        };
        let all = [known(own, start), known(own, start + 1), known(u32::MAX, 1)];
        write(folder.path(), &all).unwrap();
        assert_eq!(survivors(folder.path()), all[..1]);
    }

    #[test]
    fn a_file_that_is_none_of_ours_is_nobody() {
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
