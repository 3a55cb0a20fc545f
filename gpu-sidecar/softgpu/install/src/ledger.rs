//! Who held what, when: the files `ledger.old` and `ledger` of a folder, read as one.
//!
//! Times are nanoseconds since the begin, which is that of the first line. A process has one place in [`Ledger::processes`]
//! for each GPU or slice that it has used.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use device::Time;
use softgpu_wire::ledger::{LINE, Line, What, head, name_of_word};
use softgpu_wire::place;

/// The ledger cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// There is none.
    #[error("{folder}: no ledger: no server has run there", folder = .folder.display())]
    None {
        /// Where.
        folder: PathBuf,
    },
    /// A file cannot be read.
    #[error("{path}: {error}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A file is something else.
    #[error("{path}: not a ledger of this version", path = .path.display())]
    Form {
        /// Which.
        path: PathBuf,
    },
}

/// What of a ledger is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// From this time on, in ns since the begin.
    pub from: Option<u64>,
    /// Up to this time, in ns since the begin.
    pub to: Option<u64>,
    /// What processes on this GPU or slice held.
    pub unit: Option<u32>,
    /// What the process with this number in the system held.
    pub pid: Option<u32>,
}

impl Select {
    fn takes(&self, process: &Process) -> bool {
        self.unit.is_none_or(|unit| unit == process.unit)
            && self.pid.is_none_or(|pid| pid == process.pid)
    }
}

/// A process on a GPU or slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number in the system; 0 if the ledger does not say any more.
    pub pid: u32,
    /// The GPU or slice.
    pub unit: u32,
}

/// Something was held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What: SMs, a link or memory.
    pub what: What,
    /// By whom: a place in [`Ledger::processes`].
    pub process: usize,
    /// How much of it: thousandths of SMs, bytes per second, bytes.
    pub amount: u64,
    /// Since when.
    pub from: u64,
    /// Until when.
    pub to: u64,
    /// For which command; `None` for none.
    pub command: Option<u64>,
}

/// What was selected of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Processes that are selected, whether they held anything or not.
    pub processes: Vec<Process>,
    /// What they held within the selected time, cut to it, in the order in which it ended.
    pub entries: Vec<Entry>,
    /// Programs' names by the number of the process in the system, their first eight letters; of those that the ledger knows.
    pub names: BTreeMap<u32, String>,
    /// The selected time; without one, that of all entries.
    pub from: u64,
    /// Its end.
    pub to: u64,
}

impl Ledger {
    /// Reads what is selected. A running server is to be asked before to write what it has
    /// ([`crate::observer::Observer::write_ledger`]).
    ///
    /// Memory is needed for what is selected, not for the whole ledger.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn read(folder: &Path, select: &Select) -> Result<Self, LedgerError> {
        let (old, new) = open_both(folder)?;
        let introduced = introductions(&new)?;
        let old = match old {
            Some(old) => is_before(&introductions(&old)?, &introduced).then_some(old),
            None => None,
        };
        let mut reading = Reading {
            select: *select,
            ..Reading::default()
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

    /// The begin from which its times count, on the clock of all stamps (CLOCK_MONOTONIC); `None`: it is empty.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
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

    /// How long the selected time is, in ns.
    #[must_use]
    pub const fn span(&self) -> u64 {
        self.to - self.from
    }

    /// The numbers in the system of all processes that held something, in the order in which they came.
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

/// A file of lines.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: File,
    inode: u64,
}

impl Source {
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

    /// When its first line begins.
    fn first(&self) -> Result<Option<Time>, LedgerError> {
        let mut first = None;
        self.each(|line| {
            first.get_or_insert(line.from);
        })?;
        Ok(first)
    }

    /// Hands on all whole lines, from the first on.
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

/// Both files, as they belong together: while they are opened, the server may make the one into the other.
fn open_both(folder: &Path) -> Result<(Option<Source>, Source), LedgerError> {
    let (old_path, path) = (folder.join(place::LEDGER_OLD), folder.join(place::LEDGER));
    let mut old = Source::open(old_path.clone())?;
    loop {
        let new = Source::open(path.clone())?;
        let again = Source::open(old_path.clone())?;
        let inode = |source: &Option<Source>| source.as_ref().map(|source| source.inode);
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

/// Who a ledger's numbers stand for: process in the system, unit, begin.
type Introductions = BTreeMap<u32, (u64, u32, Time)>;

fn introductions(source: &Source) -> Result<Introductions, LedgerError> {
    let mut found = Introductions::new();
    source.each(|line| {
        if let What::Process(unit) = line.what {
            found.insert(line.process, (line.amount, unit, line.from));
        }
    })?;
    Ok(found)
}

/// Whether the old file is of the same server as the new one. Another server counts its processes from the first again.
fn is_before(old: &Introductions, new: &Introductions) -> bool {
    let last = old.keys().next_back();
    new.iter().all(|(number, who)| match old.get(number) {
        Some(same) => same == who,
        None => last.is_none_or(|last| number > last),
    })
}

#[derive(Debug, Default)]
struct Reading {
    select: Select,
    begin: Option<Time>,
    /// Where the process with this number in the lines is; `None`: it is not selected.
    places: HashMap<u32, Option<usize>>,
    known: HashMap<(u32, u32), usize>,
    ledger: Ledger,
}

impl Reading {
    fn take(&mut self, line: &Line) {
        let begin = *self.begin.get_or_insert(line.from);
        let unit = match line.what {
            What::Process(unit) => {
                let pid = u32::try_from(line.amount).unwrap_or(0);
                if let Some(name) = name_of_word(line.command) {
                    self.ledger.names.insert(pid, name);
                }
                self.introduce(line.process, Process { pid, unit });
                return;
            }
            What::Sms(unit) | What::Memory(unit) => unit,
            What::Link(_) => 0,
        };
        // One that was not introduced cannot be told from others.
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
                what: line.what,
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

    /// A line, with times in µs.
    pub(crate) fn line(what: What, process: u32, amount: u64, from: u64, to: u64) -> Line {
        Line {
            what,
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

    fn read(folder: &Path, select: Select) -> Ledger {
        Ledger::read(folder, &select).unwrap()
    }

    #[test]
    fn both_files_of_one_server_are_read_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let error = Ledger::read(folder, &Select::default()).unwrap_err();
        assert!(error.to_string().contains("no ledger"), "{error}");

        let first = line(What::Process(0), 0, 41, 0, 0);
        let second = line(What::Process(0), 1, 42, 5, 5);
        let third = line(What::Process(1), 2, 42, 30, 30);
        let (old, new) = (folder.join(place::LEDGER_OLD), folder.join(place::LEDGER));
        write(&old, &[first, line(What::Sms(0), 0, 1_000, 0, 10), second]);
        let held = line(What::Sms(1), 2, 500, 30, 50);
        write(
            &new,
            &[second, line(What::Sms(0), 1, 2_000, 10, 20), third, held],
        );
        let all = read(folder, Select::default());
        assert_eq!(all.entries.len(), 3);
        assert_eq!(all.pids(), [41, 42]);
        assert_eq!((all.from, all.to), (0, 50_000));
        assert_eq!(Ledger::begin(folder).unwrap(), Some(Time(1_000_000_000)));
        assert_eq!(all.processes.len(), 3);
        assert_eq!(all.entries[2].amount, 500);

        let some = read(
            folder,
            Select {
                from: Some(5_000),
                to: Some(15_000),
                ..Select::default()
            },
        );
        let times: Vec<_> = some
            .entries
            .iter()
            .map(|entry| (entry.from, entry.to))
            .collect();
        assert_eq!(times, [(5_000, 10_000), (10_000, 15_000)]);
        let select = Select {
            unit: Some(1),
            pid: Some(42),
            ..Select::default()
        };
        assert_eq!(read(folder, select).entries.len(), 1);

        // Another server has begun anew: what the one before it left is not its.
        let again = line(What::Process(0), 0, 77, 100, 100);
        write(&new, &[again, line(What::Sms(0), 0, 1_000, 100, 110)]);
        let all = read(folder, Select::default());
        assert_eq!((all.pids(), all.to), (vec![77], 10_000));
    }

    #[test]
    fn what_is_no_ledger_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(place::LEDGER);
        for bytes in [
            &b"short"[..],
            &[0; 96],
            &[head().as_slice(), &[9; LINE]].concat(),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = Ledger::read(folder.path(), &Select::default()).unwrap_err();
            assert!(error.to_string().contains("not a ledger"), "{error}");
        }
        // A line that is being written is not there yet.
        std::fs::write(&path, [head().as_slice(), &[1; 7]].concat()).unwrap();
        assert_eq!(read(folder.path(), Select::default()), Ledger::default());
    }
}
