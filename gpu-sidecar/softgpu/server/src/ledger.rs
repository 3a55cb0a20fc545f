//! The ledger file. At half of its size limit it replaces the old ledger, and a new one is begun.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use device::ledger::{Entry, Resource};
use device::{Span, Time};
use softgpu_wire::ledger::{Line, LineKind, head, name_word};
use softgpu_wire::{clock, softgpu_dir};

use crate::server::{Server, ServerError};

/// Number of buffered bytes at which lines are written.
const BUFFER: usize = 64 << 10;
/// Largest age of a buffered line before it is written.
const WRITE_AFTER: Span = Span::from_millis(500);

/// Fields of the line that introduces a process.
#[derive(Debug, Clone, Copy)]
struct Introduced {
    pid: u32,
    unit: u32,
    at: Time,
    /// First eight bytes of the name of the process's program.
    name: u64,
}

/// Writer of the ledger file; see the [module](self).
#[derive(Debug)]
pub(crate) struct LedgerFile {
    folder: PathBuf,
    file: File,
    buffer: Vec<u8>,
    written: u64,
    bound: u64,
    /// Live processes, which every new file introduces again.
    processes: BTreeMap<u32, Introduced>,
    since: Option<Time>,
    /// Set after a failed write: nothing more is written.
    is_broken: bool,
}

impl LedgerFile {
    pub(crate) fn create(folder: &Path, mib: u32) -> Result<Self, ServerError> {
        let path = folder.join(softgpu_dir::LEDGER);
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

    /// Writes the line that introduces a process.
    pub(crate) fn introduce(&mut self, process: u32, pid: u32, unit: u32, at: Time) {
        // A process that has ended already has no name.
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

    /// Returns when buffered lines are to be written; `None` if there are none.
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
            self.folder.join(softgpu_dir::LEDGER),
            self.folder.join(softgpu_dir::LEDGER_OLD),
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
        kind: LineKind::Process(own.unit),
        process,
        amount: own.pid.into(),
        from: own.at,
        to: own.at,
        command: own.name,
    }
}

fn line(entry: &Entry) -> Line {
    let kind = match entry.resource {
        Resource::Sms { unit } => LineKind::Sms(unit),
        Resource::Link { link } => LineKind::Link(link),
        Resource::Memory { unit } => LineKind::Memory(unit),
    };
    Line {
        kind,
        process: entry.process.0,
        amount: entry.amount,
        from: entry.from,
        to: entry.to,
        command: entry.work.map_or(u64::MAX, |work| work.command),
    }
}

impl Server {
    /// Moves new entries of the timeline to the ledger, and writes the buffer if it is full or due.
    pub(crate) fn ledger_tick(&mut self) {
        self.take_ledger(false);
        let is_due = self.ledger.due().is_some_and(|due| due <= clock::now());
        if is_due || self.ledger.buffer.len() >= BUFFER {
            self.write_ledger();
        }
    }

    /// Moves new entries of the timeline to the ledger; with `flush`, including intervals still open, up to now.
    pub(crate) fn take_ledger(&mut self, flush: bool) {
        for entry in self.machine.take_ledger(flush) {
            self.statistics.count(&entry);
            self.ledger.push(&line(&entry));
        }
    }

    /// Writes all buffered lines to the file.
    pub(crate) fn write_ledger(&mut self) {
        let owners = &self.owners;
        self.statistics
            .forget(|process| owners.contains_key(&process));
        let written = self
            .ledger
            .write(|process| owners.contains_key(&device::ledger::ProcessId(process)));
        if written.is_err() {
            // The disk may be full: the timeline stays correct, and the statistics report the ledger as incomplete.
            self.ledger.is_broken = true;
            self.ledger.buffer = Vec::new();
            self.statistics.ledger_is_broken = true;
        }
    }
}
