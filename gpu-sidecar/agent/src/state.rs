//! What the parts of the agent know in common, and the seam between them and the token service.
//!
//! The parts around the service (NVML, MPS, pods) find out what is there and send it as [`Command`]s; the service decides who
//! computes and publishes [`Figures`]. Metrics and the control API read figures and never ask the service for anything else,
//! so that a scrape costs it nothing but a copy.
//!
//! | from | to | by |
//! |---|---|---|
//! | NVML, MPS, pods, control API | service | [`ServiceHandle::send`]: at most [`COMMANDS_MAX`] under way, then the sender waits |
//! | service | metrics, control API | [`Inbox::publish`]: one set of figures, replaced as a whole |
//! | NVML | service | [`DeviceMemory`]: which process has how much memory, each second |

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use annotations::{Evict, Isolation, Settings, Variant};
use policy::tokens::RevokeReason;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use serde::{Serialize, Serializer};
use tokio::sync::oneshot;

use crate::config::TokenSettings;
use crate::events::Events;

/// Commands that the service has not yet taken, at most; who sends another waits.
pub const COMMANDS_MAX: usize = 1_024;
/// Pods of a node at a time.
pub const PODS_MAX: usize = 1_024;
/// How long [`ServiceHandle::refresh`] waits for figures.
pub const REFRESH_MAX: Duration = Duration::from_millis(50);
/// The service publishes figures no more often than this unless it is asked.
pub const PUBLISH_SPAN: Duration = Duration::from_millis(100);

/// A slot, as a number from 0. A slot that is lost and comes back has the number that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SlotKey(pub u32);

/// A pod, as a number from 0 below [`PODS_MAX`]. Given anew only when all numbers that were never used are, and then the one
/// that has been free for longest; [`Pod::serial`] is never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PodKey(pub u32);

/// How a slot is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotKind {
    /// Its SMs are shared by MPS.
    Mps,
    /// At most one instance computes on it.
    Exclusive,
}

impl SlotKind {
    /// As configuration and API write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mps => "mps",
            Self::Exclusive => "exclusive",
        }
    }
}

/// Which MIG instance a slot is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MigInstance {
    /// The UUID of the GPU of which it is a part.
    pub parent_uuid: String,
    /// Its number among the MIG devices of the GPU.
    pub number: u32,
    /// GPU instance and compute instance, where the UUID or a process on it tells them.
    pub instances: Option<(u32, u32)>,
    /// Its compute slices, 1 to [`SLICES_OF_GPU`], where NVML knows them.
    pub slices: Option<u32>,
}

/// The compute slices into which MIG divides a GPU.
pub const SLICES_OF_GPU: u32 = 7;

/// Where pods may compute: a whole GPU or a MIG instance, as NVML found it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Slot {
    /// Its number.
    pub key: SlotKey,
    /// Short and for people: `0` is the first GPU, `0:1` its second MIG instance.
    pub name: String,
    /// `GPU-…` or `MIG-…`.
    pub uuid: String,
    /// The product's name.
    pub product: String,
    /// How it is shared.
    pub kind: SlotKind,
    /// How many SMs it has, where that can be known. Else percentages are taken as they are given.
    pub sms: Option<u32>,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// CUDA's compute capability, where it is known.
    pub compute_capability: Option<(u32, u32)>,
    /// Client contexts that MPS allows on it.
    pub client_limit: u32,
    /// Pods that are placed on it, at most.
    pub seats: u32,
    /// Memory that stays with each context of a process, in bytes, as configured; `None`: each process measures it.
    pub context_residue: Option<u64>,
    /// The pipe directory of its MPS daemon, on slots of that kind.
    pub mps_pipe: Option<PathBuf>,
    /// `None`: a whole GPU.
    pub mig: Option<MigInstance>,
}

impl Slot {
    /// The UUID of the GPU of which it is a part, or which it is.
    #[must_use]
    pub fn gpu_uuid(&self) -> &str {
        self.mig.as_ref().map_or(&self.uuid, |mig| &mig.parent_uuid)
    }

    /// Returns its compute slices of [`SLICES_OF_GPU`]; `None`: NVML does not know those of the instance.
    #[must_use]
    pub fn slices(&self) -> Option<u32> {
        let of_instance = |mig: &MigInstance| mig.slices;
        self.mig.as_ref().map_or(Some(SLICES_OF_GPU), of_instance)
    }

    /// The UUID as the driver API tells it: sixteen bytes. `None`: it is not written as one, as those of MIG instances of old
    /// drivers.
    #[must_use]
    pub fn uuid_bytes(&self) -> Option<[u8; 16]> {
        let digits = self
            .uuid
            .strip_prefix("GPU-")
            .or_else(|| self.uuid.strip_prefix("MIG-"))?;
        let mut bytes = [0_u8; 16];
        let mut count = 0;
        for digit in digits.chars().filter(|digit| *digit != '-') {
            let value = u8::try_from(digit.to_digit(16)?).ok()?;
            let byte = bytes.get_mut(count / 2)?;
            *byte = *byte << 4 | value;
            count += 1;
        }
        (count == 32).then_some(bytes)
    }
}

/// What a pod's annotations ask for, checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PodSettings {
    /// `weir.dev/isolation`.
    #[serde(serialize_with = "isolation_name")]
    pub isolation: Isolation,
    /// `weir.dev/sm-percent`, in hundredths of a per cent: 100 to [`ALL_HUNDREDTHS`](annotations::ALL_HUNDREDTHS).
    pub sm_hundredths: u32,
    /// `weir.dev/quota-request`, in millionths: 0 to [`ALL_PPM`](annotations::ALL_PPM), at most the limit.
    pub quota_request_ppm: u32,
    /// `weir.dev/quota-limit`, in millionths: 1 to [`ALL_PPM`](annotations::ALL_PPM).
    pub quota_limit_ppm: u32,
    /// `weir.dev/gpu-memory`, in bytes; `None`: as much as the slot has.
    pub gpu_memory: Option<u64>,
    /// `weir.dev/evict`.
    #[serde(serialize_with = "evict_name")]
    pub evict: Evict,
    /// `weir.dev/slo`.
    pub slo: Option<Duration>,
    /// `weir.dev/variant` is `pipeline`.
    pub is_pipeline: bool,
}

impl From<&Settings> for PodSettings {
    fn from(asked: &Settings) -> Self {
        Self {
            isolation: asked.isolation,
            sm_hundredths: asked.sm_hundredths,
            quota_request_ppm: asked.quota_request_ppm,
            quota_limit_ppm: asked.quota_limit_ppm,
            gpu_memory: asked.gpu_memory,
            evict: asked.evict,
            slo: asked.slo,
            is_pipeline: asked.variant == Variant::Pipeline,
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands it by reference"
)]
fn isolation_name<S: Serializer>(isolation: &Isolation, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(isolation.name())
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde hands it by reference"
)]
fn evict_name<S: Serializer>(evict: &Evict, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(evict.name())
}

/// A pod that is served here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// Its number.
    pub key: PodKey,
    /// Counted up with each pod, never given twice.
    pub serial: u64,
    /// Its name: that of its folder.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// The function of which its revision is a variant.
    pub function: String,
    /// Its revision.
    pub revision: String,
    /// Its UID, where it is known: processes of other pods are told by it.
    pub uid: Option<String>,
    /// Its cgroup, where it is known.
    pub cgroup: Option<PathBuf>,
    /// Its name in the cluster, where that is another than its folder's.
    pub pod_name: Option<String>,
    /// Where its containers see the pipe of their MPS daemon; `None`: where the daemon has it.
    pub mps_mount: Option<PathBuf>,
    /// What it asks for.
    pub settings: PodSettings,
    /// Where it was placed, for life.
    pub slot: SlotKey,
    /// Its folder; the service's own files go there.
    pub folder: PathBuf,
}

impl Pod {
    /// As messages to people name it.
    #[must_use]
    pub fn display(&self) -> String {
        let name = self.pod_name.as_ref().unwrap_or(&self.name);
        format!("{}/{name}", self.namespace)
    }
}

/// What an operator asked for was not done, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Declined(pub String);

/// Where the answer to a question goes.
pub type Answer = oneshot::Sender<Result<(), Declined>>;

/// What the service is told. In the order in which things happened; a pod's slot was added before the pod.
#[derive(Debug)]
pub enum Command {
    /// A slot is there.
    SlotAdded(Arc<Slot>),
    /// A slot is lost: what computed on it has failed, nothing is granted there.
    SlotLost {
        /// Which.
        slot: SlotKey,
        /// Why, for people.
        reason: String,
    },
    /// A lost slot is there again, perhaps with other figures.
    SlotBack(Arc<Slot>),
    /// The MPS daemon of a slot answers, or does not.
    MpsState {
        /// Which slot.
        slot: SlotKey,
        /// It answers.
        is_up: bool,
        /// The same for people.
        text: String,
    },
    /// A pod is there. Its processes connect to the listener, a `SOCK_SEQPACKET` socket that does not block.
    PodAdded {
        /// Who.
        pod: Arc<Pod>,
        /// Listens already.
        listener: OwnedFd,
    },
    /// A pod's annotations have changed: same key, serial, slot and folder. What is fixed for a process's life (the SM share)
    /// holds for processes that come from now on.
    PodChanged(Arc<Pod>),
    /// A pod is gone. Its connections are closed.
    PodRemoved(PodKey),
    /// An operator wants a pod's model to leave its slot.
    Evict {
        /// Whose.
        pod: PodKey,
        /// Whether it does.
        answer: Answer,
    },
    /// An operator wants a pod's model back.
    Restore {
        /// Whose.
        pod: PodKey,
        /// Whether it comes.
        answer: Answer,
    },
    /// The agent ends. Gates stay as the processes' own rule for a lost agent says.
    Stop,
}

/// A number of observations by their size. Bounds are [`WAIT_BOUNDS_NS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Histogram {
    /// Observations of at most the bound of the same place, and more than the one before; the last: of more than all bounds.
    pub counts: [u64; WAIT_BOUNDS_NS.len() + 1],
    /// Of all observations.
    pub sum_ns: u64,
}

/// Bounds of waits for a token, in nanoseconds: 100 µs to 30 s.
pub const WAIT_BOUNDS_NS: [u64; 17] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

impl Histogram {
    /// Counts one.
    pub fn observe(&mut self, ns: u64) {
        let place = WAIT_BOUNDS_NS.partition_point(|bound| *bound < ns);
        if let Some(count) = self.counts.get_mut(place) {
            *count = count.saturating_add(1);
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another's observations.
    pub fn add(&mut self, other: &Self) {
        for (own, others) in self.counts.iter_mut().zip(other.counts) {
            *own = own.saturating_add(others);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }
}

/// What is counted of a pod since it came. All of it only grows, also when a process ends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PodCounters {
    /// Wall time in which at least one kernel of the pod ran.
    pub used_wall_ns: u64,
    /// SM time: Σ SMs × time, over its processes. In nanoseconds of one SM.
    pub used_sm_ns: u64,
    /// Wall time in which it had a token.
    pub given_ns: u64,
    /// Wall time in which it wanted to compute: a thread was parked, or it had a token and used it.
    pub asked_ns: u64,
    /// Tokens given.
    pub grants: u64,
    /// From asking to having a token.
    pub waits: Histogram,
    /// Tokens after whose end work was still in flight.
    pub overruns: u64,
    /// For how long.
    pub overrun_ns: u64,
    /// Tokens revoked since nothing was in flight while others waited.
    pub revoked_idle: u64,
    /// Tokens revoked since the process gave no sign of life when its work should have ended.
    pub revoked_unresponsive: u64,
    /// Charged time in which it had a token and nothing in flight while others waited.
    pub held_idle_ns: u64,
    /// Kernels, graphs and cooperative launches.
    pub launches: u64,
    /// Looked-up functions that the preload does not know.
    pub unknown_symbols: u64,
    /// Time for which gates stood open without an agent.
    pub ungated_ns: u64,
    /// Allocations refused because of the memory limit.
    pub refused_allocations: u64,
    /// Times at which the bound in flight could not be kept.
    pub bound_exceeded: u64,
    /// Connections that were refused, by [`protocol_refusal`]'s names.
    pub refused_connections: BTreeMap<&'static str, u64>,
}

impl PodCounters {
    /// Counts a token that was revoked.
    pub(crate) fn revoked(&mut self, reason: RevokeReason) {
        match reason {
            RevokeReason::Idle => self.revoked_idle += 1,
            RevokeReason::Unresponsive => self.revoked_unresponsive += 1,
        }
    }
}

/// One process of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ProcessFigures {
    /// As the agent sees it.
    pub pid: u32,
    /// As it names itself.
    pub program: String,
    /// Its share of SMs after the driver's rounding.
    pub sm_hundredths: u32,
    /// Its gate is open.
    pub is_open: bool,
    /// Threads parked at the gate.
    pub parked: u32,
    /// Kernels, graphs and cooperative launches.
    pub launches: u64,
    /// Time in which at least one kernel of it ran.
    pub busy_ns: u64,
    /// Bytes of the device that count against the limit.
    pub bytes_used: u64,
    /// Those of them that cannot be moved.
    pub bytes_fixed: u64,
    /// NVML's figure less `bytes_used`: what its context keeps. `None`: NVML does not name it.
    pub context_residue: Option<u64>,
    /// It is a client of an MPS server; `None`: not known.
    pub is_mps: Option<bool>,
    /// Looked-up functions that the preload does not know.
    pub unknown_symbols: u64,
    /// Time for which its gate stood open without an agent.
    pub ungated_ns: u64,
    /// The driver's error that stays; 0: none.
    pub last_error: u32,
}

/// How a pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFigures {
    /// Who.
    pub pod: Arc<Pod>,
    /// Those that are connected.
    pub processes: Vec<ProcessFigures>,
    /// What only grows.
    pub counters: PodCounters,
    /// What it has used beyond its quota and not yet paid back.
    pub debt_ns: u64,
    /// Device memory in all its processes.
    pub memory_used: u64,
    /// Its limit; `None`: none.
    pub memory_limit: Option<u64>,
    /// It has a token.
    pub has_token: bool,
    /// It waits for one.
    pub is_waiting: bool,
    /// Processes found in its cgroup that have not said `Hello`, while the service waits for them after a restart.
    pub silent_processes: u32,
}

/// How a slot stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlotFigures {
    /// Which.
    pub slot: SlotKey,
    /// Nothing is granted there.
    pub is_lost: bool,
    /// SMs under tokens or with unfinished work, in hundredths of a per cent of the slot's.
    pub held_hundredths: u32,
    /// Pods with a token.
    pub holders: u32,
    /// Pods that wait for one.
    pub waiters: u32,
    /// Tokens given.
    pub grants: u64,
    /// Time in which somebody who could have computed waited and SMs were free.
    pub idle_while_waiting_ns: u64,
    /// Wall time in which at least one kernel of any pod ran.
    pub busy_ns: u64,
    /// Processes of pods that are connected.
    pub processes: u32,
}

/// How the service itself stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct AgentFigures {
    /// Tokens given.
    pub grants: u64,
    /// CPU time of the service's thread.
    pub service_cpu_ns: u64,
    /// How often it was woken.
    pub wakeups: u64,
    /// Messages that were none.
    pub malformed_messages: u64,
}

/// Everything that the service tells, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// In the order of their keys.
    pub slots: Vec<SlotFigures>,
    /// In the order of their keys.
    pub pods: Vec<PodFigures>,
    /// The service.
    pub agent: AgentFigures,
}

impl Figures {
    /// Nothing was published yet.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            at_ns: 0,
            slots: Vec::new(),
            pods: Vec::new(),
            agent: AgentFigures {
                grants: 0,
                service_cpu_ns: 0,
                wakeups: 0,
                malformed_messages: 0,
            },
        }
    }

    /// Of one pod.
    #[must_use]
    pub fn pod(&self, serial: u64) -> Option<&PodFigures> {
        self.pods.iter().find(|own| own.pod.serial == serial)
    }

    /// Of one slot.
    #[must_use]
    pub fn slot(&self, key: SlotKey) -> Option<&SlotFigures> {
        self.slots.iter().find(|own| own.slot == key)
    }
}

/// The name of a reason for which a connection is refused, in figures and metrics.
#[must_use]
pub const fn protocol_refusal(reason: protocol::message::Refusal) -> &'static str {
    use protocol::message::Refusal;
    match reason {
        Refusal::Version => "version",
        Refusal::NotOfThisPod => "not-of-this-pod",
        Refusal::WrongDevice => "wrong-device",
        Refusal::SlotLost => "slot-lost",
        Refusal::TooManySms => "too-many-sms",
        Refusal::TooMany => "too-many",
        Refusal::NoMps => "no-mps",
        Refusal::Protocol => "protocol",
    }
}

/// What NVML says of a process on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProcessMemory {
    /// Where.
    pub slot: SlotKey,
    /// Device memory in bytes.
    pub bytes: u64,
    /// It is a client of an MPS server.
    pub is_mps: bool,
}

/// Which process has how much device memory, by pid, read from NVML each second.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    table: Mutex<Arc<BTreeMap<u32, ProcessMemory>>>,
}

impl DeviceMemory {
    /// The last table. A process on several slots is told by the one on which it has most.
    #[must_use]
    pub fn table(&self) -> Arc<BTreeMap<u32, ProcessMemory>> {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&table)
    }

    /// Replaces it.
    pub fn set(&self, table: BTreeMap<u32, ProcessMemory>) {
        let mut own = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        *own = Arc::new(table);
    }
}

/// All that the service is started with.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// Rule and lengths.
    pub tokens: TokenSettings,
    /// Host memory that models may take, in bytes; `None`: no bound.
    pub host_memory: Option<u64>,
    /// Where it tells what an operator wants to know.
    pub events: Arc<Events>,
    /// Which process has how much device memory.
    pub device_memory: Arc<DeviceMemory>,
}

/// A command could not be handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// So many wait that no more are taken.
    #[error("the token service has {COMMANDS_MAX} commands to carry out")]
    Busy,
    /// Its thread has ended.
    #[error("the token service has ended")]
    Ended,
}

/// The figures, where both sides reach them.
struct Board {
    figures: Mutex<(u64, Arc<Figures>)>,
    published: Condvar,
    is_wanted: AtomicBool,
    /// The service has dropped its end.
    is_ended: AtomicBool,
}

impl fmt::Debug for Board {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Board").finish_non_exhaustive()
    }
}

/// The way to the service. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServiceHandle {
    commands: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    board: Arc<Board>,
}

/// The service's end.
#[derive(Debug)]
pub struct Inbox {
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
    board: Arc<Board>,
}

/// Both ends of the way to a service.
///
/// # Errors
/// The kernel has no file descriptor left.
pub fn seam() -> Result<(ServiceHandle, Inbox), Errno> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = sync_channel(COMMANDS_MAX);
    let board = Arc::new(Board {
        figures: Mutex::new((0, Arc::new(Figures::none()))),
        published: Condvar::new(),
        is_wanted: AtomicBool::new(false),
        is_ended: AtomicBool::new(false),
    });
    let handle = ServiceHandle {
        commands: sender,
        wake: Arc::clone(&wake),
        board: Arc::clone(&board),
    };
    let inbox = Inbox {
        commands: receiver,
        wake,
        board,
    };
    Ok((handle, inbox))
}

fn ring(wake: &OwnedFd) {
    // It fails only when its counter is full, and then it has been rung.
    let _full = rustix::io::write(wake, &1_u64.to_ne_bytes());
}

impl ServiceHandle {
    /// Hands a command over, and wakes the service. Waits while [`COMMANDS_MAX`] are under way: not for async code.
    ///
    /// # Errors
    /// The service has ended.
    pub fn send(&self, command: Command) -> Result<(), SendError> {
        match self.try_or_return(command) {
            Ok(()) => Ok(()),
            Err((SendError::Ended, _)) => Err(SendError::Ended),
            Err((SendError::Busy, command)) => {
                self.commands.send(command).map_err(|_| SendError::Ended)?;
                ring(&self.wake);
                Ok(())
            }
        }
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// The service has ended, or has too much to do.
    pub fn try_send(&self, command: Command) -> Result<(), SendError> {
        self.try_or_return(command).map_err(|(error, _)| error)
    }

    fn try_or_return(&self, command: Command) -> Result<(), (SendError, Command)> {
        let sent = self.commands.try_send(command);
        ring(&self.wake);
        sent.map_err(|error| match error {
            TrySendError::Full(command) => (SendError::Busy, command),
            TrySendError::Disconnected(command) => (SendError::Ended, command),
        })
    }

    /// Whether the service has ended, as it should or not.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.board.is_ended.load(Ordering::Acquire)
    }

    /// The figures that were published last.
    #[must_use]
    pub fn figures(&self) -> Arc<Figures> {
        Arc::clone(&self.board.lock().1)
    }

    /// Asks for figures and waits for them for up to [`REFRESH_MAX`]; those that were last published if none come. Not for
    /// async code.
    #[must_use]
    pub fn refresh(&self) -> Arc<Figures> {
        let until = Instant::now() + REFRESH_MAX;
        let mut figures = self.board.lock();
        let before = figures.0;
        self.board.is_wanted.store(true, Ordering::Release);
        ring(&self.wake);
        while figures.0 == before && !self.is_ended() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.board.published.wait_timeout(figures, left);
            figures = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Arc::clone(&figures.1)
    }
}

impl Board {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, Arc<Figures>)> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Becomes readable when there is a command, or figures are wanted.
    #[must_use]
    pub fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes [`Inbox::wake`] unreadable again: before commands are taken, so that none is missed.
    pub fn clear_wake(&self) {
        let mut count = [0; 8];
        let _none = rustix::io::read(&*self.wake, &mut count);
    }

    /// The next command, if there is one. When every handle is gone, it is [`Command::Stop`] again and again.
    pub fn next(&self) -> Option<Command> {
        match self.commands.try_recv() {
            Ok(command) => Some(command),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Command::Stop),
        }
    }

    /// Whether somebody waits for figures; asked, it is forgotten.
    #[must_use]
    pub fn are_figures_wanted(&self) -> bool {
        self.board.is_wanted.swap(false, Ordering::AcqRel)
    }

    /// Replaces the figures, and lets go on who waits for them.
    pub fn publish(&self, figures: Figures) {
        let mut own = self.board.lock();
        *own = (own.0.wrapping_add(1), Arc::new(figures));
        drop(own);
        self.board.published.notify_all();
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.board.is_ended.store(true, Ordering::Release);
        // Under the lock, so that nobody begins to wait between.
        drop(self.board.lock());
        self.board.published.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_counted_at_its_bound() {
        let mut histogram = Histogram::default();
        for ns in [0, 100_000, 100_001, 30_000_000_000, 30_000_000_001] {
            histogram.observe(ns);
        }
        assert_eq!(histogram.counts[..2], [2, 1]);
        assert_eq!(histogram.counts[16..], [1, 1]);
        assert_eq!((histogram.count(), histogram.sum_ns), (5, 60_000_200_002));
        let mut twice = histogram;
        twice.add(&histogram);
        assert_eq!(twice.count(), 10);
    }

    #[test]
    fn a_uuid_is_read_as_the_driver_has_it() {
        let mut slot = crate::testing::slot(0);
        slot.uuid = "GPU-00112233-4455-6677-8899-aabbccddeeff".to_owned();
        let bytes = slot.uuid_bytes().unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[15]), (0x00, 0x11, 0xff));
        for wrong in [
            "GPU-0011",
            "00112233-4455-6677-8899-aabbccddeeff",
            "MIG-GPU-x/1/0",
        ] {
            slot.uuid = wrong.to_owned();
            assert_eq!(slot.uuid_bytes(), None, "{wrong}");
        }
    }

    #[test]
    fn a_refresh_waits_for_figures_and_not_for_ever() {
        let (handle, inbox) = seam().unwrap();
        let begin = Instant::now();
        assert_eq!(handle.refresh().at_ns, 0);
        assert!(begin.elapsed() >= REFRESH_MAX);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !inbox.are_figures_wanted() {
                    std::thread::yield_now();
                }
                inbox.publish(Figures {
                    at_ns: 7,
                    ..Figures::none()
                });
            });
            // The wish of the first call may have been fulfilled before this one waits.
            while handle.refresh().at_ns != 7 {}
        });
        assert_eq!(handle.figures().at_ns, 7);
    }

    #[test]
    fn commands_come_in_order_and_are_bounded() {
        let (handle, inbox) = seam().unwrap();
        for key in 0..u32::try_from(COMMANDS_MAX).unwrap() {
            handle.send(Command::PodRemoved(PodKey(key))).unwrap();
        }
        assert_eq!(handle.try_send(Command::Stop), Err(SendError::Busy));
        inbox.clear_wake();
        assert!(matches!(inbox.next(), Some(Command::PodRemoved(PodKey(0)))));
        assert!(matches!(inbox.next(), Some(Command::PodRemoved(PodKey(1)))));
        assert!(!handle.is_ended());
        drop(inbox);
        assert!(handle.is_ended());
        assert_eq!(handle.send(Command::Stop), Err(SendError::Ended));
    }
}
