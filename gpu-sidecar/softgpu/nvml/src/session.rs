//! What this process has of NVML between its first initialisation and its last shutdown.
//!
//! One lock for the whole process. A child of `fork` begins uninitialised, with a lock of its own: that of its parent may have
//! been held by a thread that the child does not have.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use softgpu_wire::clock;
use softgpu_wire::config::Config;
use softgpu_wire::message::{Kind, Message, ProcessLine};
use softgpu_wire::place;

use crate::answer::{Answer, Return};
use crate::border::own_folder;
use crate::events::EventSet;
use crate::handle::{Handle, Thing};
use crate::node::{Device, Node};
use crate::samples::{History, Share};
use crate::server::{Server, Told};

/// Device memory, in bytes. What is not used is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// How busy a GPU was of late, in percent of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Busy {
    pub(crate) sms: u32,
    pub(crate) memory: u32,
}

/// What programs may set of a GPU. It is kept in this process: the timeline does not depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) compute_mode: u32,
    pub(crate) is_persistent: u32,
}

/// NVML, initialised.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) node: Node,
    server: Server,
    settings: Vec<Settings>,
    histories: BTreeMap<usize, History>,
    pub(crate) sets: BTreeMap<u32, EventSet>,
    pub(crate) sets_made: u32,
    /// How often it was initialised and not shut down since.
    users: u64,
}

/// The session of one process, and after it, where that process is a child of `fork`, those of its children.
struct Own {
    pid: u32,
    session: Mutex<Option<Session>>,
    next: OnceLock<Box<Self>>,
}

static FIRST: OnceLock<Own> = OnceLock::new();

impl Own {
    fn new() -> Self {
        Self {
            pid: std::process::id(),
            session: Mutex::new(None),
            next: OnceLock::new(),
        }
    }
}

fn lock() -> MutexGuard<'static, Option<Session>> {
    let pid = std::process::id();
    let mut own = FIRST.get_or_init(Own::new);
    while own.pid != pid {
        // The parent's connections are not for its children: an end of theirs would keep them open.
        match own.session.try_lock() {
            Ok(mut session) => *session = None,
            Err(TryLockError::Poisoned(session)) => *session.into_inner() = None,
            Err(TryLockError::WouldBlock) => {}
        }
        own = own.next.get_or_init(|| Box::new(Own::new()));
    }
    own.session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Initialises, or counts one more who has.
pub(crate) fn open() -> Answer {
    let mut own = lock();
    match own.as_mut() {
        Some(session) => session.users += 1,
        None => *own = Some(Session::new()?),
    }
    Ok(())
}

/// Counts one less, and forgets all when it was the last.
pub(crate) fn close() -> Answer {
    let mut own = lock();
    let session = own.as_mut().ok_or(Return::UNINITIALIZED)?;
    session.users -= 1;
    if session.users == 0 {
        *own = None;
    }
    Ok(())
}

/// With the session, if NVML is initialised.
pub(crate) fn with<T>(does: impl FnOnce(&mut Session) -> Answer<T>) -> Answer<T> {
    does(lock().as_mut().ok_or(Return::UNINITIALIZED)?)
}

/// With a device that is not lost.
pub(crate) fn with_device<T>(
    handle: Handle,
    does: impl FnOnce(&mut Session, Device) -> Answer<T>,
) -> Answer<T> {
    with(|session| {
        let device = session.device(handle)?;
        session.check(session.node.gpu_of(device))?;
        does(session, device)
    })
}

/// With a GPU that is not lost; a MIG device does not have what is asked for.
pub(crate) fn with_gpu<T>(
    handle: Handle,
    does: impl FnOnce(&mut Session, usize) -> Answer<T>,
) -> Answer<T> {
    with_device(handle, |session, device| match device {
        Device::Gpu(gpu) => does(session, gpu),
        Device::Slice(_) => Err(Return::NOT_SUPPORTED),
    })
}

impl Session {
    fn new() -> Answer<Self> {
        let folder = place::folder(own_folder().as_deref()).ok_or(Return::DRIVER_NOT_LOADED)?;
        if !folder.is_dir() {
            return Err(Return::DRIVER_NOT_LOADED);
        }
        let mut server = Server::new(folder.clone());
        let config = match server.config() {
            Some(config) => config,
            None => read_config(folder.join(place::CONFIG))?,
        };
        let node = Node::new(&folder, config)?;
        let settings = Settings {
            compute_mode: 0,
            is_persistent: 1,
        };
        Ok(Self {
            settings: vec![settings; node.gpus()],
            node,
            server,
            histories: BTreeMap::new(),
            sets: BTreeMap::new(),
            sets_made: 0,
            users: 1,
        })
    }

    /// What a handle stands for, if it is a device's.
    pub(crate) fn device(&self, handle: Handle) -> Answer<Device> {
        let is_slice = |at: usize| {
            let unit = self.node.identity.units.get(at);
            unit.is_some_and(|unit| unit.slice.is_some())
        };
        match handle.thing()? {
            Thing::Gpu(gpu) if gpu < self.node.gpus() => Ok(Device::Gpu(gpu)),
            Thing::Slice(at) if is_slice(at) => Ok(Device::Slice(at)),
            _ => Err(Return::INVALID_ARGUMENT),
        }
    }

    /// The GPU is not lost.
    pub(crate) fn check(&mut self, gpu: usize) -> Answer {
        match self.node.units(Device::Gpu(gpu)).first() {
            Some(&at) => self.ask(Kind::MemoryInfo, at).map(|_| ()),
            None => Ok(()),
        }
    }

    pub(crate) fn settings(&mut self, gpu: usize) -> &mut Settings {
        &mut self.settings[gpu]
    }

    /// Device memory; of a sliced GPU all of its own, and what is used of its slices.
    pub(crate) fn memory(&mut self, device: Device) -> Answer<Memory> {
        let mut memory = Memory {
            total: self.node.memory(device),
            used: 0,
        };
        for at in self.node.units(device).to_vec() {
            if let Some(answer) = self.ask(Kind::MemoryInfo, at)? {
                let [free, total, ..] = answer.words;
                memory.used += total.saturating_sub(free);
            }
        }
        memory.used = memory.used.min(memory.total);
        Ok(memory)
    }

    /// How busy a GPU was of late; of a sliced one the mean of its slices, each by its part of the SMs.
    pub(crate) fn busy(&mut self, gpu: usize) -> Answer<Busy> {
        let mut sums = [0_u64; 2];
        for at in self.node.units(Device::Gpu(gpu)).to_vec() {
            if let Some(answer) = self.ask(Kind::Utilisation, at)? {
                let sms = u64::from(self.node.unit(at).sms);
                for (sum, word) in sums.iter_mut().zip(answer.words) {
                    *sum += word.min(MILLION) * sms;
                }
            }
        }
        let all = u64::from(self.node.part(gpu).sms);
        let [sms, memory] = sums.map(|sum| percent(sum / all.max(1)));
        Ok(Busy { sms, memory })
    }

    /// The processes on a device, each with the place of the unit it is on.
    pub(crate) fn processes(&mut self, device: Device) -> Answer<Vec<(usize, ProcessLine)>> {
        let mut processes = Vec::new();
        for at in self.node.units(device).to_vec() {
            if let Some(answer) = self.ask(Kind::Processes, at)? {
                let number = self.node.unit(at).number;
                let lines = ProcessLine::decode_all(&answer.bytes).into_iter();
                let own = lines.filter(|line| line.unit == number);
                processes.extend(own.map(|line| (at, line)));
            }
        }
        Ok(processes)
    }

    /// What the processes of a GPU that is not sliced used of it, as far as that was seen later than `micros`.
    pub(crate) fn shares(&mut self, gpu: usize, micros: u64) -> Answer<Vec<Share>> {
        let processes = self.processes(Device::Gpu(gpu))?;
        let lines: Vec<_> = processes.into_iter().map(|(_, line)| line).collect();
        let sms = self.node.part(gpu).sms;
        let history = self.histories.entry(gpu).or_default();
        history.look(clock::now(), micros_now(), sms, &lines);
        Ok(history.since(micros))
    }

    /// Lets an event set connect with the server.
    pub(crate) fn collect(&mut self, number: u32) -> Answer<&mut EventSet> {
        let set = self.sets.get_mut(&number);
        let set = set.ok_or(Return::INVALID_ARGUMENT)?;
        set.collect(&self.server, &self.node.config);
        Ok(set)
    }

    fn ask(&mut self, kind: Kind, at: usize) -> Answer<Option<Message>> {
        let number = self.node.unit(at).number;
        match self.server.ask(&self.node.config, kind, &[number.into()]) {
            Some(Told::Answer(answer)) => Ok(Some(answer)),
            Some(Told::Refusal) => Err(Return::GPU_IS_LOST),
            None => Ok(None),
        }
    }
}

fn read_config(path: PathBuf) -> Answer<Config> {
    match std::fs::read_to_string(path) {
        Ok(text) => Config::parse(&text).map_err(|_| Return::DRIVER_NOT_LOADED),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(_) => Err(Return::DRIVER_NOT_LOADED),
    }
}

const MILLION: u64 = 1_000_000;

/// Of millionths.
fn percent(millionths: u64) -> u32 {
    u32::try_from(millionths.saturating_add(5_000) / 10_000).map_or(100, |percent| percent.min(100))
}

/// By the calendar, in microseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "NVML gives the wall clock's time"
)]
pub(crate) fn micros_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_time_are_rounded_and_never_more_than_all() {
        for (millionths, expected) in [
            (0, 0),
            (4_999, 0),
            (5_000, 1),
            (990_000, 99),
            (1_000_000, 100),
            (u64::MAX, 100),
        ] {
            assert_eq!(percent(millionths), expected, "{millionths}");
        }
    }
}
