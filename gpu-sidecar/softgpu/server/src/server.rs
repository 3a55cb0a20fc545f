//! The server's loop, and the state of all clients.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use device::ledger::ProcessId;
use device::machine::{Completion, EventId, Machine, MachineError};
use device::{Span, Time};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use softgpu_wire::config::{Config, ConfigError};
use softgpu_wire::page::{Bell, Shared, Sleep};
use softgpu_wire::record::Token;
use softgpu_wire::softgpu_dir::SoftGpuDirError;
use softgpu_wire::{clock, softgpu_dir};

use crate::client::{Client, ClientId, Rings};
use crate::ledger::LedgerFile;
use crate::memory::Allocations;
use crate::mps::MpsServers;
use crate::shared::{SharedEvents, SharedId};
use crate::statistics::Statistics;

/// Interval at which results for which no client waits are published.
pub(crate) const TICK: Span = Span::from_millis(2);
/// Time without clients after which a detached server ends.
const IDLE_MAX: Span = Span::from_secs(5);
/// Largest number of clients; further connections remain in the backlog.
const CLIENTS_MAX: usize = 4096;

/// A failure to start or continue the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error(transparent)]
    Place(#[from] SoftGpuDirError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("{what}: {error}")]
    System { what: &'static str, error: Errno },
    #[error("{path}: {error}", path = path.display())]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> ServerError {
    move |error| ServerError::System { what, error }
}

/// Client-side facts about a command of the timeline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) client: ClientId,
    pub(crate) context: u32,
    pub(crate) slot: u32,
    pub(crate) token: Option<Token>,
    pub(crate) kind: RunningKind,
}

/// What else happens when a command ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RunningKind {
    Plain,
    /// Record of an event: its slot, its event on the timeline, and the record's number.
    Record {
        event: u32,
        id: EventId,
        number: u64,
    },
    /// Record of an event shared between processes: its number.
    SharedRecord {
        event: SharedId,
        number: u64,
    },
    /// Wait for a shared event: the number of its records so far.
    SharedWait {
        records: u64,
    },
    /// A copy of a checkpoint, of no stream.
    Checkpoint,
}

/// State of the server; see the [module](self).
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) folder: PathBuf,
    pub(crate) config: Config,
    pub(crate) machine: Machine,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) running: HashMap<u64, Running>,
    /// Client of each process on the timeline.
    pub(crate) owners: HashMap<ProcessId, ClientId>,
    pub(crate) allocations: Allocations,
    pub(crate) shared: SharedEvents,
    pub(crate) mps: MpsServers,
    pub(crate) checkpoints: Vec<crate::checkpoint::Pending>,
    pub(crate) ledger: LedgerFile,
    pub(crate) statistics: Statistics,
    /// Indices of lost GPUs.
    pub(crate) lost: Vec<usize>,
    pub(crate) bell: Shared<Bell>,
    pub(crate) bell_file: OwnedFd,
    pub(crate) ring: OwnedFd,
    /// Clients that are looked at in the present round of the loop.
    pub(crate) busy: Vec<ClientId>,
    /// Buffer for ended commands, kept to reuse its allocation.
    pub(crate) done: Vec<Completion>,
    listener: OwnedFd,
    epoll: OwnedFd,
    next_client: u64,
    /// Whether the listening socket is polled.
    is_listening: bool,
    stays: bool,
    idle_since: Time,
    _lock: OwnedFd,
}

const LISTENER: u64 = u64::MAX;
const RING: u64 = u64::MAX - 1;

impl Server {
    pub(crate) fn new(
        folder: &Path,
        config: Config,
        lock: OwnedFd,
        stays: bool,
    ) -> Result<Self, ServerError> {
        let machine = Machine::new(&config.node()?)?;
        let listener = softgpu_dir::listen_in(folder)?;
        rustix::io::ioctl_fionbio(&listener, true).map_err(system("socket"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ring = eventfd(0, flags).map_err(system("eventfd"))?;
        let (bell, bell_file) = Shared::<Bell>::create().map_err(system("memory"))?;
        for (file, data) in [(&listener, LISTENER), (&ring, RING)] {
            epoll::add(
                &epoll,
                file,
                epoll::EventData::new_u64(data),
                epoll::EventFlags::IN,
            )
            .map_err(system("epoll"))?;
        }
        let ledger = LedgerFile::create(folder, config.ledger_mib)?;
        let statistics = Statistics::new(machine.units(), machine.links().count());
        // Sleeps end on time, instead of up to 50 µs late.
        let _slack = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        // If permitted: results are then published on time, however busy the machine is.
        let _priority = rustix::process::setpriority_process(None, -10);
        let mut server = Self {
            folder: folder.to_path_buf(),
            config,
            machine,
            clients: BTreeMap::new(),
            running: HashMap::new(),
            owners: HashMap::new(),
            allocations: Allocations::default(),
            shared: SharedEvents::default(),
            mps: MpsServers::default(),
            checkpoints: Vec::new(),
            ledger,
            statistics,
            lost: Vec::new(),
            bell,
            bell_file,
            ring,
            busy: Vec::new(),
            done: Vec::new(),
            listener,
            epoll,
            next_client: 0,
            is_listening: true,
            stays,
            idle_since: clock::now(),
            _lock: lock,
        };
        server.machine.advance(clock::now(), &mut Vec::new());
        Ok(server)
    }

    /// Serves clients until it has had none for [`IDLE_MAX`], unless it stays.
    pub(crate) fn run(&mut self) -> Result<(), ServerError> {
        let mut events = Vec::with_capacity(64);
        loop {
            self.find_busy();
            let horizon = clock::now();
            self.take_busy();
            self.advance_up_to(horizon);
            self.publish_all();
            self.drive_checkpoints();
            self.ledger_tick();
            let wake = self.wake_at();
            if !self.stays
                && self.clients.is_empty()
                && clock::now() >= self.idle_since.after(IDLE_MAX)
            {
                let _gone = rustix::fs::unlink(self.folder.join(softgpu_dir::SOCKET));
                return Ok(());
            }
            self.sleep(wake)?;
            events.clear();
            epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                Some(&clock::timespec(Span::ZERO)),
            )
            .map_err(system("epoll"))?;
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    RING => {
                        let _rung = rustix::io::read(&self.ring, &mut [0_u8; 8]);
                    }
                    client => self.serve(ClientId(client)),
                }
            }
        }
    }

    /// Finds the clients that need to be looked at: most of many clients do nothing most of the time. One that begins to wait or appends a command
    /// from now on keeps the server from its sleep.
    fn find_busy(&mut self) {
        self.busy.clear();
        for (id, client) in &mut self.clients {
            if let Some(rings) = &mut client.rings
                && rings.is_busy()
            {
                self.busy.push(*id);
            }
        }
    }

    /// Returns the time of the next scheduled work, or `None` to sleep until a client rings.
    fn wake_at(&mut self) -> Option<Time> {
        let now = clock::now();
        let awaited = self.earliest_awaited();
        let is_idle = self.running.is_empty() && self.checkpoints.is_empty();
        let tick = (!is_idle || self.statistics.has_news).then(|| now.after(TICK));
        self.statistics.has_news = false;
        let alone =
            (!self.stays && self.clients.is_empty()).then(|| self.idle_since.after(IDLE_MAX));
        [awaited, tick, alone, self.ledger.due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn sleep(&mut self, wake: Option<Time>) -> Result<(), ServerError> {
        let soon = clock::now().after(TICK);
        let sleep = match wake {
            Some(wake) if wake <= soon => Sleep::Short,
            _ => Sleep::Deep,
        };
        self.bell.set(sleep);
        // A client that made a request, or appended a command to an idle server's ring, before the server was marked
        // asleep has not rung.
        let needs_attention = |rings: &Rings| {
            let has_command = sleep == Sleep::Deep && rings.page.has_commands(rings.head);
            has_command
                || rings.has_news
                || rings.has_last_effects()
                || rings.page.attention() != rings.attention
        };
        let mut rings = self
            .clients
            .values()
            .filter_map(|client| client.rings.as_ref());
        let timeout = if rings.any(needs_attention) {
            Some(Span::ZERO)
        } else {
            wake.map(|wake| wake.since(clock::now()))
        };
        let timeout = timeout.map(clock::timespec);
        let epoll = self.epoll.as_fd();
        match poll(
            &mut [PollFd::from_borrowed_fd(epoll, PollFlags::IN)],
            timeout.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(system("poll")(error)),
        }
        self.bell.set(Sleep::Awake);
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            if self.clients.len() >= CLIENTS_MAX {
                self.stop_listening();
                return;
            }
            let accepted =
                accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            let socket = match accepted {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                // No file descriptor is left for it.
                Err(_) => {
                    self.stop_listening();
                    return;
                }
            };
            let pid = rustix::net::sockopt::socket_peercred(&socket)
                .map_or(0, |credentials| credentials.pid.as_raw_nonzero().get());
            let id = ClientId(self.next_client);
            self.next_client += 1;
            let data = epoll::EventData::new_u64(id.0);
            if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_err() {
                continue;
            }
            let client = Client {
                socket,
                pid: u32::try_from(pid).unwrap_or_default(),
                name: String::new(),
                role: None,
                rings: None,
                processes: HashMap::new(),
                allocations: HashMap::new(),
                watches: false,
                mps: None,
                checkpoint: crate::checkpoint::State::default(),
            };
            self.clients.insert(id, client);
        }
    }

    /// Stops accepting; further connections wait until a client leaves.
    fn stop_listening(&mut self) {
        if std::mem::replace(&mut self.is_listening, false) {
            let _deleted = epoll::delete(&self.epoll, &self.listener);
        }
    }

    fn resume_listening(&mut self) {
        let data = epoll::EventData::new_u64(LISTENER);
        if !self.is_listening
            && epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN).is_ok()
        {
            self.is_listening = true;
        }
    }

    /// Removes a client and everything it holds.
    pub(crate) fn remove(&mut self, id: ClientId) {
        // Commands still in its ring are discarded.
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        // What it has held was held until now.
        self.advance_to_now();
        for process in client.processes.values() {
            self.machine.dismiss(process.id);
            self.owners.remove(&process.id);
        }
        // Its pending records of shared events count as occurred, so that no other process waits for them.
        let now = self.machine.now();
        let dropped: Vec<_> = self
            .running
            .extract_if(|_, running| running.client == id)
            .collect();
        let events = client.rings.as_ref().map(|rings| &rings.events);
        for (_, running) in dropped {
            let shared = match running.kind {
                RunningKind::SharedRecord { event, number } => Some((event, number)),
                // Recorded before the event was offered to others.
                RunningKind::Record { event, id, number } => events
                    .and_then(|events| events.get(&event))
                    .filter(|event| event.id == id)
                    .and_then(|event| event.shared)
                    .map(|event| (event, number)),
                _ => None,
            };
            if let Some((event, number)) = shared {
                self.shared_happened(event, number, now);
            }
        }
        self.forget_allocations(&client);
        if let Some(rings) = &client.rings {
            for event in rings.events.values().filter(|event| event.shared.is_none()) {
                self.machine.destroy_event(event.id);
            }
        }
        self.leave_shared(id);
        if let Some(server) = client.mps {
            self.end_mps_server(server);
        }
        self.mps.client_gone(id);
        self.end_checkpoints_of(id);
        drop(client);
        self.resume_listening();
        self.idle_since = clock::now();
        self.statistics.has_news = true;
    }

    /// Returns whether the GPU of a unit is lost.
    pub(crate) fn is_lost(&self, unit: u32) -> bool {
        self.machine
            .unit_info(unit)
            .is_some_and(|info| self.lost.contains(&info.gpu))
    }
}
