//! Reader of the ledger: the files `ledger.old` and `ledger` of a folder, as one.
//!
//! Times are nanoseconds since the first line. A process has one index in [`Ledger::processes`] for each GPU or slice
//! it has used.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use device::Time;
use softgpu_wire::ledger::{LINE, Line, LineKind, head, name_of_word};
use softgpu_wire::softgpu_dir;

/// A failure to read the ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The folder has no ledger.
    #[error("{folder}: no ledger: no server has run there", folder = .folder.display())]
    None { folder: PathBuf },
    /// A file cannot be read.
    #[error("{path}: {error}", path = .path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    /// A file is not a ledger, or of another version.
    #[error("{path}: not a ledger of this version", path = .path.display())]
    Form { path: PathBuf },
}

/// Criteria for the entries to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Start of the interval, in ns since the start of the ledger.
    pub from: Option<u64>,
    /// End of the interval, in ns since the start of the ledger.
    pub to: Option<u64>,
    /// GPU or slice of the processes.
    pub unit: Option<u32>,
    /// PID of the processes.
    pub pid: Option<u32>,
}

impl Selection {
    fn takes(&self, process: &Process) -> bool {
        self.unit.is_none_or(|unit| unit == process.unit)
            && self.pid.is_none_or(|pid| pid == process.pid)
    }
}

/// A process on a GPU or slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// PID; 0 if the line that introduced the process is lost.
    pub pid: u32,
    /// Number of the GPU or slice.
    pub unit: u32,
}

/// An amount of a resource that a process held over an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Kind of resource: SMs, a link or memory.
    pub kind: LineKind,
    /// Index in [`Ledger::processes`].
    pub process: usize,
    /// Amount in thousandths of SMs, bytes per second, or bytes.
    pub amount: u64,
    /// Begin of the interval, in ns since the start of the ledger.
    pub from: u64,
    /// End of the interval, in ns since the start of the ledger.
    pub to: u64,
    /// Command for which the resource was held; `None` for none.
    pub command: Option<u64>,
}

/// Selected part of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Selected processes, whether they held anything or not.
    pub processes: Vec<Process>,
    /// Their entries within the selected interval, cut to it, ordered by end.
    pub entries: Vec<Entry>,
    /// First eight bytes of programs' names by PID, as far as known.
    pub names: BTreeMap<u32, String>,
    /// Start of the selected interval; by default, of the first entry.
    pub from: u64,
    /// End of the selected interval; by default, of the last entry.
    pub to: u64,
}

impl Ledger {
    /// Reads the selected part. A running server should first write its pending lines
    /// ([`crate::observer::Observer::write_ledger`]).
    ///
    /// Memory use is proportional to the selected part, not to the whole ledger.
    ///
    /// # Errors
    /// Fails when there is no ledger, or it cannot be read.
    pub fn read(folder: &Path, select: &Selection) -> Result<Self, LedgerError> {
        let (old, new) = open_both(folder)?;
        let introduced = introductions(&new)?;
        let old = match old {
            Some(old) => is_before(&introductions(&old)?, &introduced).then_some(old),
            None => None,
        };
        let mut reading = Reader {
            select: *select,
            ..Reader::default()
        };
        for source in old.iter().chain([&new]) {
            source.each(|line| reading.take(line))?;
        }
        let mut ledger = reading.ledger;
        let (first, last) = (
            ledger.entries.iter().map(|entry| entry.from).min(),
            ledger.entries.iter().map(|entry| entry.to).max(),
        );
        ledger.from = select.from.or(first).unwrap_or(0);
        ledger.to = select.to.or(last).unwrap_or(0).max(ledger.from);
        Ok(ledger)
    }

    /// Returns the time of the first line on CLOCK_MONOTONIC, from which other times count; `None` if the ledger is
    /// empty.
    ///
    /// # Errors
    /// Fails when there is no ledger, or it cannot be read.
    pub fn begin(folder: &Path) -> Result<Option<Time>, LedgerError> {
        let (old, new) = open_both(folder)?;
        let introduced = introductions(&new)?;
        let mut begin = None;
        if let Some(old) = old
            && is_before(&introductions(&old)?, &introduced)
        {
            begin = old.first()?;
        }
        match begin {
            Some(begin) => Ok(Some(begin)),
            None => new.first(),
        }
    }

    /// Returns the length of the selected interval in ns.
    #[must_use]
    pub const fn span(&self) -> u64 {
        self.to - self.from
    }

    /// Returns the distinct PIDs of all processes with entries, in order of appearance.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        let mut has = vec![false; self.processes.len()];
        for entry in &self.entries {
            has[entry.process] = true;
        }
        let mut pids = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for (process, has) in self.processes.iter().zip(has) {
            if has && seen.insert(process.pid) {
                pids.push(process.pid);
            }
        }
        pids
    }
}

/// A file of the ledger.
#[derive(Debug)]
struct LedgerFile {
    path: PathBuf,
    file: File,
    inode: u64,
}

impl LedgerFile {
    fn open(path: PathBuf) -> Result<Option<Self>, LedgerError> {
        let wrong = |error| LedgerError::File {
            path: path.clone(),
            error,
        };
        match File::open(&path) {
            Ok(file) => {
                let inode = file.metadata().map_err(wrong)?.ino();
                Ok(Some(Self { path, file, inode }))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(wrong(error)),
        }
    }

    /// Returns the start of the first line.
    fn first(&self) -> Result<Option<Time>, LedgerError> {
        let mut first = None;
        self.each(|line| {
            first.get_or_insert(line.from);
        })?;
        Ok(first)
    }

    /// Calls `take` for every complete line, in order.
    fn each(&self, mut take: impl FnMut(&Line)) -> Result<(), LedgerError> {
        let wrong = |error| LedgerError::File {
            path: self.path.clone(),
            error,
        };
        let form = || LedgerError::Form {
            path: self.path.clone(),
        };
        let mut file = &self.file;
        std::io::Seek::rewind(&mut file).map_err(wrong)?;
        let mut reader = BufReader::with_capacity(LINE << 10, file);
        let mut bytes = [0; LINE];
        let mut is_head = true;
        loop {
            match reader.read_exact(&mut bytes) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return if is_head { Err(form()) } else { Ok(()) };
                }
                Err(error) => return Err(wrong(error)),
            }
            if is_head {
                if bytes != head() {
                    return Err(form());
                }
                is_head = false;
            } else {
                take(&Line::decode(&bytes).ok_or_else(form)?);
            }
        }
    }
}

/// Opens both files consistently, even if the server replaces the old one by the new one meanwhile.
fn open_both(folder: &Path) -> Result<(Option<LedgerFile>, LedgerFile), LedgerError> {
    let (old_path, path) = (
        folder.join(softgpu_dir::LEDGER_OLD),
        folder.join(softgpu_dir::LEDGER),
    );
    let mut old = LedgerFile::open(old_path.clone())?;
    loop {
        let new = LedgerFile::open(path.clone())?;
        let again = LedgerFile::open(old_path.clone())?;
        let inode = |source: &Option<LedgerFile>| source.as_ref().map(|source| source.inode);
        if inode(&old) != inode(&again) {
            old = again;
            continue;
        }
        return match new {
            Some(new) => Ok((old, new)),
            None => Err(LedgerError::None {
                folder: folder.to_path_buf(),
            }),
        };
    }
}

/// Identity of each process number: PID, unit, start.
type Introductions = BTreeMap<u32, (u64, u32, Time)>;

fn introductions(source: &LedgerFile) -> Result<Introductions, LedgerError> {
    let mut found = Introductions::new();
    source.each(|line| {
        if let LineKind::Process(unit) = line.kind {
            found.insert(line.process, (line.amount, unit, line.from));
        }
    })?;
    Ok(found)
}

/// Returns whether the old file precedes the new one of the same server. Another server restarts its process numbers.
fn is_before(old: &Introductions, new: &Introductions) -> bool {
    let last = old.keys().next_back();
    new.iter().all(|(number, identity)| match old.get(number) {
        Some(same) => same == identity,
        None => last.is_none_or(|last| number > last),
    })
}

#[derive(Debug, Default)]
struct Reader {
    select: Selection,
    begin: Option<Time>,
    /// Index of each process number; `None` if the process is not selected.
    places: HashMap<u32, Option<usize>>,
    known: HashMap<(u32, u32), usize>,
    ledger: Ledger,
}

impl Reader {
    fn take(&mut self, line: &Line) {
        let begin = *self.begin.get_or_insert(line.from);
        let unit = match line.kind {
            LineKind::Process(unit) => {
                let pid = u32::try_from(line.amount).unwrap_or(0);
                if let Some(name) = name_of_word(line.command) {
                    self.ledger.names.insert(pid, name);
                }
                self.introduce(line.process, Process { pid, unit });
                return;
            }
            LineKind::Sms(unit) | LineKind::Memory(unit) => unit,
            LineKind::Link(_) => 0,
        };
        // A process without an introduction has no known PID.
        let place = match self.places.get(&line.process) {
            Some(place) => *place,
            None => self.introduce(line.process, Process { pid: 0, unit }),
        };
        let (from, to) = (line.from.since(begin).0, line.to.since(begin).0);
        let from = from.max(self.select.from.unwrap_or(0));
        let to = to.min(self.select.to.unwrap_or(u64::MAX));
        if let Some(process) = place
            && from < to
        {
            self.ledger.entries.push(Entry {
                kind: line.kind,
                process,
                amount: line.amount,
                from,
                to,
                command: (line.command != u64::MAX).then_some(line.command),
            });
        }
    }

    fn introduce(&mut self, number: u32, process: Process) -> Option<usize> {
        let place = self.select.takes(&process).then(|| {
            let processes = &mut self.ledger.processes;
            *self
                .known
                .entry((process.pid, process.unit))
                .or_insert_with(|| {
                    processes.push(process);
                    processes.len() - 1
                })
        });
        self.places.insert(number, place);
        place
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a line, with times in µs.
    pub(crate) fn line(kind: LineKind, process: u32, amount: u64, from: u64, to: u64) -> Line {
        Line {
            kind,
            process,
            amount,
            from: Time(1_000_000_000 + from * 1_000),
            to: Time(1_000_000_000 + to * 1_000),
            command: u64::MAX,
        }
    }

    pub(crate) fn write(path: &Path, lines: &[Line]) {
        let mut bytes = head().to_vec();
        for line in lines {
            bytes.extend(line.encode());
        }
        std::fs::write(path, bytes).unwrap();
    }

    fn read(folder: &Path, select: Selection) -> Ledger {
        Ledger::read(folder, &select).unwrap()
    }

    #[test]
    fn files_of_one_server_are_read_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let error = Ledger::read(folder, &Selection::default()).unwrap_err();
        assert!(error.to_string().contains("no ledger"), "{error}");

        let first = line(LineKind::Process(0), 0, 41, 0, 0);
        let second = line(LineKind::Process(0), 1, 42, 5, 5);
        let third = line(LineKind::Process(1), 2, 42, 30, 30);
        let (old, new) = (
            folder.join(softgpu_dir::LEDGER_OLD),
            folder.join(softgpu_dir::LEDGER),
        );
        write(
            &old,
            &[first, line(LineKind::Sms(0), 0, 1_000, 0, 10), second],
        );
        let held = line(LineKind::Sms(1), 2, 500, 30, 50);
        write(
            &new,
            &[
                second,
                line(LineKind::Sms(0), 1, 2_000, 10, 20),
                third,
                held,
            ],
        );
        let all = read(folder, Selection::default());
        assert_eq!(all.entries.len(), 3);
        assert_eq!(all.pids(), [41, 42]);
        assert_eq!((all.from, all.to), (0, 50_000));
        assert_eq!(Ledger::begin(folder).unwrap(), Some(Time(1_000_000_000)));
        assert_eq!(all.processes.len(), 3);
        assert_eq!(all.entries[2].amount, 500);

        let some = read(
            folder,
            Selection {
                from: Some(5_000),
                to: Some(15_000),
                ..Selection::default()
            },
        );
        let times: Vec<_> = some
            .entries
            .iter()
            .map(|entry| (entry.from, entry.to))
            .collect();
        assert_eq!(times, [(5_000, 10_000), (10_000, 15_000)]);
        let select = Selection {
            unit: Some(1),
            pid: Some(42),
            ..Selection::default()
        };
        assert_eq!(read(folder, select).entries.len(), 1);

        // A new server was started: the old file is of the previous one.
        let again = line(LineKind::Process(0), 0, 77, 100, 100);
        write(&new, &[again, line(LineKind::Sms(0), 0, 1_000, 100, 110)]);
        let all = read(folder, Selection::default());
        assert_eq!((all.pids(), all.to), (vec![77], 10_000));
    }

    #[test]
    fn errors_name_a_file_that_is_no_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(softgpu_dir::LEDGER);
        for bytes in [
            &b"short"[..],
            &[0; 96],
            &[head().as_slice(), &[9; LINE]].concat(),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = Ledger::read(folder.path(), &Selection::default()).unwrap_err();
            assert!(error.to_string().contains("not a ledger"), "{error}");
        }
        // An incomplete last line is ignored.
        std::fs::write(&path, [head().as_slice(), &[1; 7]].concat()).unwrap();
        assert_eq!(read(folder.path(), Selection::default()), Ledger::default());
    }
}
