//! The file of who held what, when. It is bounded: at half of its bound it becomes the old one, and a new one is begun.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use device::ledger::{Entry, Held};
use device::{Span, Time};
use softgpu_wire::ledger::{Line, What, head, name_word};
use softgpu_wire::{clock, place};

use crate::server::{Server, ServerError};

/// Lines are written when there are as many bytes of them, or after a while.
const BUFFER: usize = 64 << 10;
/// They are written after this long at the latest.
const WRITE_AFTER: Span = Span::from_millis(500);

/// A process as the ledger introduces it.
#[derive(Debug, Clone, Copy)]
struct Introduced {
    pid: u32,
    unit: u32,
    at: Time,
    /// The beginning of its program's name.
    name: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct LedgerFile {
    folder: PathBuf,
    file: File,
    buffer: Vec<u8>,
    written: u64,
    bound: u64,
    /// Processes that are there, to be introduced again in a new file.
    processes: BTreeMap<u32, Introduced>,
    since: Option<Time>,
    /// It could not be written to: nothing more is.
    is_broken: bool,
}

impl LedgerFile {
    pub(crate) fn create(folder: &Path, mib: u32) -> Result<Self, ServerError> {
        let path = folder.join(place::LEDGER);
        let wrong = |error| ServerError::File {
            path: path.clone(),
            error,
        };
        let mut file = File::create(&path).map_err(wrong)?;
        file.write_all(&head()).map_err(wrong)?;
        Ok(Self {
            folder: folder.to_path_buf(),
            file,
            buffer: Vec::new(),
            written: 0,
            bound: u64::from(mib) << 19,
            processes: BTreeMap::new(),
            since: None,
            is_broken: false,
        })
    }

    fn push(&mut self, line: &Line) {
        self.buffer.extend(line.encode());
        if self.since.is_none() {
            self.since = Some(clock::now());
        }
    }

    /// A process has begun.
    pub(crate) fn introduce(&mut self, process: u32, pid: u32, unit: u32, at: Time) {
        // One that has ended already has no name any more.
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let own = Introduced {
            pid,
            unit,
            at,
            name: name_word(name.trim_end()),
        };
        self.processes.insert(process, own);
        self.push(&introduction(process, own));
    }

    /// When it is to be written.
    pub(crate) fn due(&self) -> Option<Time> {
        self.since.map(|since| since.after(WRITE_AFTER))
    }

    fn write(&mut self, is_there: impl Fn(u32) -> bool) -> std::io::Result<()> {
        self.since = None;
        self.processes.retain(|process, _| is_there(*process));
        if self.is_broken {
            self.buffer.clear();
            return Ok(());
        }
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written < self.bound {
            return Ok(());
        }
        let (path, old) = (
            self.folder.join(place::LEDGER),
            self.folder.join(place::LEDGER_OLD),
        );
        std::fs::rename(&path, old)?;
        self.file = File::create(&path)?;
        self.file.write_all(&head())?;
        self.written = 0;
        for (process, own) in &self.processes {
            self.file
                .write_all(&introduction(*process, *own).encode())?;
        }
        Ok(())
    }
}

fn introduction(process: u32, own: Introduced) -> Line {
    Line {
        what: What::Process(own.unit),
        process,
        amount: own.pid.into(),
        from: own.at,
        to: own.at,
        command: own.name,
    }
}

fn line(entry: &Entry) -> Line {
    let what = match entry.held {
        Held::Sms { unit } => What::Sms(unit),
        Held::Link { link } => What::Link(link),
        Held::Memory { unit } => What::Memory(unit),
    };
    Line {
        what,
        process: entry.process.0,
        amount: entry.amount,
        from: entry.from,
        to: entry.to,
        command: entry.work.map_or(u64::MAX, |work| work.command),
    }
}

impl Server {
    /// Takes what the timeline has written down, and writes it to the file when it is time.
    pub(crate) fn ledger_tick(&mut self) {
        self.take_ledger(false);
        let is_due = self.ledger.due().is_some_and(|due| due <= clock::now());
        if is_due || self.ledger.buffer.len() >= BUFFER {
            self.write_ledger();
        }
    }

    /// Takes what the timeline has written down; with `flush` up to now.
    pub(crate) fn take_ledger(&mut self, flush: bool) {
        for entry in self.machine.take_ledger(flush) {
            self.statistics.count(&entry);
            self.ledger.push(&line(&entry));
        }
    }

    /// Writes it to the file.
    pub(crate) fn write_ledger(&mut self) {
        let owners = &self.owners;
        self.statistics
            .forget(|process| owners.contains_key(&process));
        let written = self
            .ledger
            .write(|process| owners.contains_key(&device::ledger::ProcessId(process)));
        if written.is_err() {
            // A full disk: what is computed stays right, and the statistics say that the ledger is not whole.
            self.ledger.is_broken = true;
            self.ledger.buffer = Vec::new();
            self.statistics.ledger_is_broken = true;
        }
    }
}
