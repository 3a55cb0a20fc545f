//! State of NVML in this process, from its first initialization to its last shutdown.
//!
//! One lock protects the state. A child of `fork` starts uninitialized, with a lock of its own: its parent's may have
//! been held by a thread that does not exist in the child.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use softgpu_wire::clock;
use softgpu_wire::config::Config;
use softgpu_wire::message::{Kind, Message, ProcessLine};
use softgpu_wire::softgpu_dir;

use crate::answer::{Answer, Return};
use crate::events::EventSet;
use crate::handle::{Handle, Object};
use crate::node::{Device, Node};
use crate::pointer::own_folder;
use crate::samples::{History, Share};
use crate::server::{Server, ServerReply};

/// Device memory in bytes; the rest is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// Recent utilization of a GPU, in percent of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Busy {
    pub(crate) sms: u32,
    pub(crate) memory: u32,
}

/// Settings of a GPU, stored in this process only: the timeline does not depend on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) compute_mode: u32,
    pub(crate) is_persistent: u32,
}

/// State of initialized NVML.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) node: Node,
    server: Server,
    settings: Vec<Settings>,
    histories: BTreeMap<usize, History>,
    pub(crate) sets: BTreeMap<u32, EventSet>,
    pub(crate) last_set: u32,
    /// Number of initializations not yet matched by a shutdown.
    users: u64,
}

/// Session of a process, followed by those of its forked children.
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
        // Closes the parent's connections, which the child would otherwise keep open after the parent's end.
        match own.session.try_lock() {
            Ok(mut session) => *session = None,
            Err(TryLockError::Poisoned(session)) => *session.into_inner() = None,
            Err(TryLockError::WouldBlock) => {}
        }
        own = own.next.get_or_init(|| Box::new(Own::new()));
    }
    own.session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Initializes NVML, or counts one more initialization.
pub(crate) fn open() -> Answer {
    let mut own = lock();
    match own.as_mut() {
        Some(session) => session.users += 1,
        None => *own = Some(Session::new()?),
    }
    Ok(())
}

/// Counts one shutdown, and drops the session with the last.
pub(crate) fn close() -> Answer {
    let mut own = lock();
    let session = own.as_mut().ok_or(Return::UNINITIALIZED)?;
    session.users -= 1;
    if session.users == 0 {
        *own = None;
    }
    Ok(())
}

/// Calls `body` with the session; fails unless NVML is initialized.
pub(crate) fn with<T>(body: impl FnOnce(&mut Session) -> Answer<T>) -> Answer<T> {
    body(lock().as_mut().ok_or(Return::UNINITIALIZED)?)
}

/// Calls `body` with a device; fails if its GPU is lost.
pub(crate) fn with_device<T>(
    handle: Handle,
    body: impl FnOnce(&mut Session, Device) -> Answer<T>,
) -> Answer<T> {
    with(|session| {
        let device = session.device(handle)?;
        session.check(session.node.gpu_of(device))?;
        body(session, device)
    })
}

/// Calls `body` with a GPU; fails if it is lost, or for a MIG device.
pub(crate) fn with_gpu<T>(
    handle: Handle,
    body: impl FnOnce(&mut Session, usize) -> Answer<T>,
) -> Answer<T> {
    with_device(handle, |session, device| match device {
        Device::Gpu(gpu) => body(session, gpu),
        Device::Slice(_) => Err(Return::NOT_SUPPORTED),
    })
}

impl Session {
    fn new() -> Answer<Self> {
        let folder =
            softgpu_dir::locate(own_folder().as_deref()).ok_or(Return::DRIVER_NOT_LOADED)?;
        if !folder.is_dir() {
            return Err(Return::DRIVER_NOT_LOADED);
        }
        let mut server = Server::new(folder.clone());
        let config = match server.config() {
            Some(config) => config,
            None => read_config(folder.join(softgpu_dir::CONFIG))?,
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
            last_set: 0,
            users: 1,
        })
    }

    /// Returns the device of a handle; fails for other handles.
    pub(crate) fn device(&self, handle: Handle) -> Answer<Device> {
        let is_slice = |at: usize| {
            let unit = self.node.identity.units.get(at);
            unit.is_some_and(|unit| unit.slice.is_some())
        };
        match handle.object()? {
            Object::Gpu(gpu) if gpu < self.node.gpus() => Ok(Device::Gpu(gpu)),
            Object::Slice(at) if is_slice(at) => Ok(Device::Slice(at)),
            _ => Err(Return::INVALID_ARGUMENT),
        }
    }

    /// Fails if the given GPU is lost.
    pub(crate) fn check(&mut self, gpu: usize) -> Answer {
        match self.node.units(Device::Gpu(gpu)).first() {
            Some(&at) => self.query(Kind::MemoryInfo, at).map(|_| ()),
            None => Ok(()),
        }
    }

    pub(crate) fn settings(&mut self, gpu: usize) -> &mut Settings {
        &mut self.settings[gpu]
    }

    /// Returns the memory of a device; for a sliced GPU, the total of the GPU and the used memory of its slices.
    pub(crate) fn memory(&mut self, device: Device) -> Answer<Memory> {
        let mut memory = Memory {
            total: self.node.memory(device),
            used: 0,
        };
        for at in self.node.units(device).to_vec() {
            if let Some(answer) = self.query(Kind::MemoryInfo, at)? {
                let [free, total, ..] = answer.words;
                memory.used += total.saturating_sub(free);
            }
        }
        memory.used = memory.used.min(memory.total);
        Ok(memory)
    }

    /// Returns the recent utilization of a GPU; for a sliced one, the mean of its slices weighted by SMs.
    pub(crate) fn busy(&mut self, gpu: usize) -> Answer<Busy> {
        let mut sums = [0_u64; 2];
        for at in self.node.units(Device::Gpu(gpu)).to_vec() {
            if let Some(answer) = self.query(Kind::Utilisation, at)? {
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

    /// Returns the processes of a device, each with the index of its unit.
    pub(crate) fn processes(&mut self, device: Device) -> Answer<Vec<(usize, ProcessLine)>> {
        let mut processes = Vec::new();
        for at in self.node.units(device).to_vec() {
            if let Some(answer) = self.query(Kind::Processes, at)? {
                let number = self.node.unit(at).number;
                let lines = ProcessLine::decode_all(&answer.bytes).into_iter();
                let own = lines.filter(|line| line.unit == number);
                processes.extend(own.map(|line| (at, line)));
            }
        }
        Ok(processes)
    }

    /// Returns the shares of processes in a whole GPU, from samples later than `micros`.
    pub(crate) fn shares(&mut self, gpu: usize, micros: u64) -> Answer<Vec<Share>> {
        let processes = self.processes(Device::Gpu(gpu))?;
        let lines: Vec<_> = processes.into_iter().map(|(_, line)| line).collect();
        let sms = self.node.part(gpu).sms;
        let history = self.histories.entry(gpu).or_default();
        history.sample(clock::now(), micros_now(), sms, &lines);
        Ok(history.since(micros))
    }

    /// Queues pending events of a set, connecting it to the server if necessary.
    pub(crate) fn collect(&mut self, number: u32) -> Answer<&mut EventSet> {
        let set = self.sets.get_mut(&number);
        let set = set.ok_or(Return::INVALID_ARGUMENT)?;
        set.collect(&self.server, &self.node.config);
        Ok(set)
    }

    fn query(&mut self, kind: Kind, at: usize) -> Answer<Option<Message>> {
        let number = self.node.unit(at).number;
        match self.server.query(&self.node.config, kind, &[number.into()]) {
            Some(ServerReply::Answer(answer)) => Ok(Some(answer)),
            Some(ServerReply::Refusal) => Err(Return::GPU_IS_LOST),
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

/// Converts millionths to percent, rounded and at most 100.
fn percent(millionths: u64) -> u32 {
    u32::try_from(millionths.saturating_add(5_000) / 10_000).map_or(100, |percent| percent.min(100))
}

/// Returns the wall-clock time in microseconds since 1970.
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
    fn percentages_are_rounded_and_at_most_100() {
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
