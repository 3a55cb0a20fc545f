//! The process's connection to the server of its software GPU, on which all calls rely.

use std::ffi::c_void;
use std::os::fd::AsRawFd as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use device::part::Part;
use device::{Span, Time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::thread::futex;
use softgpu_wire::config::Config;
use softgpu_wire::identity::{Identity, Unit};
use softgpu_wire::message::{Kind, Message, MessageError, Role, VERSION};
use softgpu_wire::page::{Awaited, Bell, IN_FLIGHT, Page, Shared, Sleep};
use softgpu_wire::record::{Command as Work, Record, StreamSlot, Token};
use softgpu_wire::{clock, softgpu_dir};

use crate::effects::Effects;
use crate::error::{Error, Result};
use crate::mps::{self, Mps};
use crate::state::State;
use crate::visible;

/// Interval at which a waiting thread checks that the server is alive.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A device of this process: a GPU or slice.
#[derive(Debug)]
pub(crate) struct Device {
    /// Number assigned by the server.
    pub(crate) unit: u32,
    /// Index of the GPU it is or is part of.
    pub(crate) gpu: usize,
    pub(crate) uuid: [u8; 16],
    pub(crate) name: String,
    pub(crate) sms: u32,
    /// Memory in bytes, after scaling.
    pub(crate) memory: u64,
    pub(crate) part: Part,
    pub(crate) is_slice: bool,
    /// Memory bandwidth in bytes per second, after scaling.
    pub(crate) memory_rate: u64,
}

/// The driver's state; see the [module](self).
pub(crate) struct Driver {
    folder: PathBuf,
    pub(crate) config: Config,
    pub(crate) devices: Vec<Device>,
    pub(crate) page: Shared<Page>,
    pub(crate) mps: Option<Mps>,
    pub(crate) effects: Effects,
    bell: Shared<Bell>,
    ring: OwnedFd,
    socket: Mutex<OwnedFd>,
    /// Error that every further call returns; 0 for none.
    lost: AtomicU32,
    state: Mutex<State>,
    /// Number of commands since the last check that the server is alive.
    since_check: AtomicU64,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static INIT: Mutex<()> = Mutex::new(());
/// Set in a forked child, which may not use its parent's connection.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

fn unpoisoned<'a, T>(
    lock: std::result::Result<MutexGuard<'a, T>, PoisonError<MutexGuard<'a, T>>>,
) -> MutexGuard<'a, T> {
    lock.unwrap_or_else(PoisonError::into_inner)
}

/// Connections a forked child closes: while any copy is open, the server takes this process for alive.
static CONNECTIONS: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

extern "C" fn forked() {
    if DRIVER.get().is_some() {
        IS_FORKED.store(true, Ordering::Relaxed);
        for connection in &CONNECTIONS {
            let file = connection.swap(-1, Ordering::Relaxed);
            if file >= 0 {
                // SAFETY: the child's own copy of a connection that it will never use.
                unsafe { libc::close(file) };
            }
        }
    }
}

/// Marks all inherited files of the server process to be closed, apart from its standard streams.
fn prepare(command: &mut Command) {
    let close_others = || {
        // SAFETY: only files of the child are marked, before it becomes another program; an old kernel refuses, and the
        // files stay open.
        unsafe {
            libc::syscall(
                libc::SYS_close_range,
                3,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
        Ok(())
    };
    // SAFETY: one system call, which may be made after a fork.
    unsafe { command.pre_exec(close_others) };
}

/// Returns the folder that contains this library.
fn own_folder() -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let here = own_folder as fn() -> Option<PathBuf>;
    // SAFETY: the address is one in this library, the place for the answer is there.
    let found = unsafe { libc::dladdr(here as *const c_void, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: all its bytes were zero before, which is good for pointers and numbers.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr gives a C string that lives as long as the library.
    let path = unsafe { std::ffi::CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::new(path.to_str().ok()?)).canonicalize();
    path.ok()?.parent().map(Path::to_path_buf)
}

/// Returns the driver; fails before `cuInit`, in a forked child, in a host function, or after the connection is lost.
pub(crate) fn driver() -> Result<&'static Driver> {
    if IS_FORKED.load(Ordering::Relaxed) {
        return Err(Error::NOT_INITIALIZED);
    }
    if crate::effects::is_host_function() {
        // The interface forbids calls from a host function: the stream would wait for itself.
        return Err(Error::NOT_PERMITTED);
    }
    let driver = DRIVER.get().ok_or(Error::NOT_INITIALIZED)?;
    match driver.lost.load(Ordering::Relaxed) {
        0 => Ok(driver),
        lost => Err(Error(lost)),
    }
}

/// Implements `cuInit`: connects to the server, starting it if necessary.
pub(crate) fn init(flags: u32) -> Result {
    if flags != 0 {
        return Err(Error::INVALID_VALUE);
    }
    if IS_FORKED.load(Ordering::Relaxed) {
        return Err(Error::NOT_INITIALIZED);
    }
    let _only = unpoisoned(INIT.lock());
    if DRIVER.get().is_some() {
        return driver().map(|_| ());
    }
    let driver = Driver::connect()?;
    let socket = unpoisoned(driver.socket.lock()).as_raw_fd();
    CONNECTIONS[0].store(socket, Ordering::Relaxed);
    if let Some(mps) = &driver.mps {
        CONNECTIONS[1].store(mps.connection.as_raw_fd(), Ordering::Relaxed);
    }
    let _new = DRIVER.set(driver);
    // SAFETY: the handler touches atomics alone.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    Ok(())
}

/// Returns a unit's memory bandwidth in bytes per second, before scaling.
fn memory_rate(part: &Part, unit: &Unit) -> u64 {
    match (&unit.slice, &part.mig) {
        (Some(slice), Some(mig)) => {
            part.memory_bytes_per_second / u64::from(mig.memory_slices.max(1))
                * u64::from(slice.memory_slices)
        }
        _ => part.memory_bytes_per_second,
    }
}

fn name_of_this_program() -> Vec<u8> {
    let name = std::fs::read("/proc/self/comm").unwrap_or_default();
    name.trim_ascii().to_vec()
}

impl Driver {
    fn connect() -> Result<Self> {
        let own = own_folder();
        let folder = softgpu_dir::locate(own.as_deref()).ok_or(Error::SYSTEM_NOT_READY)?;
        let program = own
            .unwrap_or_else(|| folder.clone())
            .join(softgpu_dir::SERVER);
        let hello = Message::new(Kind::Hello, &[VERSION, Role::Cuda as u64])
            .with_bytes(name_of_this_program());
        let connect = || {
            softgpu_dir::connect_or_start(&folder, &program, prepare).map_err(|error| {
                report(&format!("no server: {error}"));
                Error::SYSTEM_NOT_READY
            })
        };
        let mut socket = connect()?;
        let mut answer = match exchange(&socket, &hello) {
            // The server was just ending because it had no clients.
            Err(None) => {
                socket = connect()?;
                exchange(&socket, &hello)
            }
            answer => answer,
        }
        .map_err(|refused| refused.unwrap_or(Error::SYSTEM_NOT_READY))?;
        let config = String::from_utf8(std::mem::take(&mut answer.bytes))
            .ok()
            .and_then(|text| Config::parse(&text).ok())
            .ok_or(Error::SYSTEM_NOT_READY)?;
        let identity = Identity::new(&folder, &config).map_err(|_| Error::SYSTEM_NOT_READY)?;
        let node = config.node().map_err(|_| Error::SYSTEM_NOT_READY)?;
        let [page, bell, ring] =
            <[OwnedFd; 3]>::try_from(answer.files).map_err(|_| Error::SYSTEM_NOT_READY)?;
        let devices = visible::units(&identity, visible::variable().as_deref())
            .into_iter()
            .map(|at| {
                let unit = &identity.units[at];
                let part = node.gpus[unit.gpu].part.clone();
                let rate = memory_rate(&part, unit) / u64::from(config.bytes);
                let name = identity.gpus[unit.gpu].name;
                Device {
                    unit: unit.number,
                    gpu: unit.gpu,
                    uuid: unit.uuid,
                    name: unit.slice.as_ref().map_or_else(
                        || name.to_owned(),
                        |slice| format!("{name} MIG {}", slice.profile),
                    ),
                    sms: unit.sms,
                    memory: unit.memory,
                    part,
                    is_slice: unit.slice.is_some(),
                    memory_rate: rate.max(1),
                }
            })
            .collect::<Vec<_>>();
        let page = Shared::<Page>::open(page).map_err(|_| Error::SYSTEM_NOT_READY)?;
        let bell = Shared::<Bell>::open(bell).map_err(|_| Error::SYSTEM_NOT_READY)?;
        let mps = mps::enter()?;
        let state = State::new(devices.len());
        Ok(Self {
            folder,
            config,
            devices,
            page,
            mps,
            effects: Effects::default(),
            bell,
            ring,
            socket: Mutex::new(socket),
            lost: AtomicU32::new(0),
            state: Mutex::new(state),
            since_check: AtomicU64::new(0),
        })
    }

    /// Locks the objects of this process.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        unpoisoned(self.state.lock())
    }

    /// Sends a request to the server and blocks until its answer arrives.
    pub(crate) fn request(&self, message: &Message) -> Result<Message> {
        let socket = unpoisoned(self.socket.lock());
        exchange(&socket, message).map_err(|refused| {
            refused.unwrap_or_else(|| {
                self.set_lost(Error::DEVICE_UNAVAILABLE);
                Error::DEVICE_UNAVAILABLE
            })
        })
    }

    /// Sends a long-running request over a connection of its own, so that other threads' requests need not wait for the
    /// answer.
    pub(crate) fn request_apart(&self, message: &Message) -> Result<Message> {
        let socket = softgpu_dir::connect_in(&self.folder).ok().flatten();
        let socket = socket.ok_or(Error::DEVICE_UNAVAILABLE)?;
        let hello = Message::new(Kind::Hello, &[VERSION, Role::Observer as u64])
            .with_bytes(name_of_this_program());
        let gone = |refused: Option<Error>| refused.unwrap_or(Error::DEVICE_UNAVAILABLE);
        exchange(&socket, &hello).map_err(gone)?;
        exchange(&socket, message).map_err(gone)
    }

    /// Makes every further call return `error`, unless an earlier one is set.
    pub(crate) fn set_lost(&self, error: Error) {
        let _first = self
            .lost
            .compare_exchange(0, error.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Locks the state and blocks until the rings have room for this many commands.
    pub(crate) fn room(&self, commands: u64) -> Result<MutexGuard<'_, State>> {
        // At most half of the ring is reserved; commands beyond are appended as room appears.
        let commands = commands.min(softgpu_wire::page::COMMANDS / 2);
        self.wait_unlocked()?;
        if self.since_check.fetch_add(1, Ordering::Relaxed) % 1024 == 1023 {
            self.check_alive()?;
        }
        loop {
            let state = self.state();
            let pushed = self.page.pushed();
            if pushed + commands > self.page.taken() + softgpu_wire::page::COMMANDS {
                let target = (pushed + commands).saturating_sub(softgpu_wire::page::COMMANDS / 2);
                drop(state);
                self.wait(Awaited::Taken(target.min(pushed)))?;
            } else if state.submitted + commands > self.page.retired() + IN_FLIGHT {
                let target = (state.submitted + commands).saturating_sub(IN_FLIGHT);
                drop(state);
                self.wait(Awaited::Retired(target))?;
            } else if self.effects.pending() > IN_FLIGHT {
                // Effects on memory lag behind the timeline: they are performed here before more are added.
                drop(state);
                if !self.effects.run(self) {
                    self.pause_for_others()?;
                }
            } else {
                return Ok(state);
            }
        }
    }

    /// Appends a command to the ring, which must have [room](Self::room).
    pub(crate) fn put(&self, stamp: Time, stream: StreamSlot, token: Option<Token>, command: Work) {
        let record = Record {
            stamp,
            stream,
            token,
            command,
        };
        // Only a command that a call cannot defer finds the ring full; the server then makes room without needing this
        // process.
        while !self.page.push(&record.encode()) {
            self.ring();
            clock::pause(Span(20_000));
            if self.check_alive().is_err() {
                return;
            }
        }
        let pushed = self.page.pushed();
        let is_half_full = pushed - self.page.taken() > softgpu_wire::page::COMMANDS / 2;
        match self.bell.sleep() {
            Sleep::Awake => {}
            Sleep::Short if !is_half_full => {}
            Sleep::Short | Sleep::Deep => self.ring(),
        }
    }

    /// Wakes the server through its eventfd.
    fn ring(&self) {
        let _rung = rustix::io::write(&self.ring, &1_u64.to_ne_bytes());
    }

    /// Requests that the server read the rings soon, without waiting for it.
    pub(crate) fn nudge(&self) {
        self.page.request_attention();
        if self.bell.sleep() != Sleep::Awake {
            self.ring();
        }
    }

    /// Returns whether a condition is reached on the timeline, regardless of effects on memory.
    pub(crate) fn is_reached(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Stream(stream, target) => self.page.stream_done(stream) >= target,
            Awaited::Event(event, target) => self.page.event(event).0 >= target,
            Awaited::Retired(target) => self.page.retired() >= target,
            Awaited::Taken(target) => self.page.taken() >= target,
        }
    }

    /// Blocks until a condition is reached and all effects on memory up to then are performed. The caller must hold no
    /// lock.
    pub(crate) fn wait(&self, awaited: Awaited) -> Result {
        while !self.is_reached(awaited) {
            let Some(place) = self.page.begin_wait(awaited) else {
                // All wait slots are taken.
                self.nudge();
                clock::pause(Span::from_millis(1));
                self.check_alive()?;
                continue;
            };
            self.nudge();
            let word = self.page.wait_word(&place);
            let timeout = clock::timespec(Span::from(CHECK_INTERVAL));
            let mut checked = Instant::now();
            let mut result = Ok(());
            while word.load(Ordering::Acquire) == 1 && !self.is_reached(awaited) {
                let _woken = futex::wait(word, futex::Flags::empty(), 1, Some(&timeout));
                // On time, even if signals keep interrupting the wait.
                if checked.elapsed() >= CHECK_INTERVAL {
                    checked = Instant::now();
                    result = self.check_alive();
                    if result.is_err() {
                        break;
                    }
                }
            }
            self.page.end_wait(place);
            result?;
        }
        while !self.effects.run(self) {
            self.pause_for_others()?;
        }
        Ok(())
    }

    /// Pauses because another process has an earlier effect to perform; fails if the server is gone.
    pub(crate) fn pause_for_others(&self) -> Result {
        clock::pause(Span(200_000));
        self.check_alive()
    }

    /// Returns whether a condition is reached, including effects on memory.
    pub(crate) fn has_happened(&self, awaited: Awaited) -> bool {
        if self.is_reached(awaited) {
            return self.effects.run(self);
        }
        self.nudge();
        false
    }

    /// Checks that the server, and the MPS daemon if there is one, are alive.
    pub(crate) fn check_alive(&self) -> Result {
        let socket = unpoisoned(self.socket.lock());
        let mut byte = [0_u8; 1];
        let seen = rustix::net::recv(
            socket.as_fd(),
            &mut byte,
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        drop(socket);
        match seen {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, bytes)) if bytes > 0 => {}
            _ => {
                self.set_lost(Error::DEVICE_UNAVAILABLE);
                return Err(Error::DEVICE_UNAVAILABLE);
            }
        }
        if let Some(mps) = &self.mps
            && !mps.is_connected()
        {
            self.set_lost(Error::MPS_CONNECTION_FAILED);
            return Err(Error::MPS_CONNECTION_FAILED);
        }
        Ok(())
    }

    /// Blocks while a checkpoint locks this process.
    pub(crate) fn wait_unlocked(&self) -> Result {
        let locked = self.page.locked();
        while locked.load(Ordering::Acquire) != 0 {
            let timeout = clock::timespec(Span::from(CHECK_INTERVAL));
            let _woken = futex::wait(locked, futex::Flags::empty(), 1, Some(&timeout));
            self.check_alive()?;
        }
        Ok(())
    }

    /// Returns the device with this ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|at| self.devices.get(at))
            .ok_or(Error::INVALID_DEVICE)
    }
}

/// Writes a message to standard error, for failures that no result code can express.
pub(crate) fn report(why: &str) {
    use std::io::Write as _;
    let _written = writeln!(std::io::stderr(), "softgpu: {why}");
}

/// Sends a message and receives the answer; the error is the server's, or `None` if the server is gone.
fn exchange(socket: &OwnedFd, message: &Message) -> std::result::Result<Message, Option<Error>> {
    message.send(socket, SendFlags::empty()).map_err(|_| None)?;
    match Message::receive(socket, RecvFlags::empty()) {
        Ok(answer) if answer.kind != message.kind => Err(None),
        Ok(answer) if answer.error != 0 => Err(Some(Error(answer.error))),
        Ok(answer) => Ok(answer),
        Err(MessageError::Closed | MessageError::Form | MessageError::System(_)) => Err(None),
    }
}
