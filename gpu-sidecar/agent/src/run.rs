//! The agent as a process: its parts, started in order, and ended in the other.

use std::fs::DirBuilder;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mutual_tls::Identity;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::control::{Control, EVENT_STREAMS_MAX, Scrape};
use crate::csi::{self, Kubelet, Volumes};
use crate::events::{EventKind, Events};
use crate::metrics::Metrics;
use crate::mps::daemon::Daemons;
use crate::node::{Node, Plan};
use crate::nvml::Nvml;
use crate::nvml::real::Library;
use crate::nvml::watch::{Change, Listener, Watcher};
use crate::pods::{Keeper, Pods, preload_folder};
use crate::recent::Recent;
use crate::state::{Command, DeviceMemory, ServiceHandle, ServiceSettings, SlotKind};
use crate::stop::Stop;
use crate::{http, service};

/// Names where the agent listens, as long as it runs; in the run directory.
pub const STATE_FILE: &str = "agent.json";
/// Locked by the agent that runs; in the run directory.
const LOCK_FILE: &str = "agent.lock";
/// Another agent ends within this time, or it runs there. One that was killed while it started a program leaves the lock
/// to that until it has begun.
const LOCK_SPAN: Duration = Duration::from_secs(1);
/// A connection to the metrics ends after this time: no scraper keeps one from the others.
const SCRAPE_LIFETIME: Duration = Duration::from_secs(300);
/// The service's thread has this long to end.
const SERVICE_SPAN: Duration = Duration::from_secs(2);
/// How often it is looked whether it has ended too early.
const ALIVE_SPAN: Duration = Duration::from_millis(500);

/// What is not in the configuration file.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions {
    /// At the end, MPS daemons end too, and with them the contexts of all programs. Else they go on for the next agent.
    pub stop_mps: bool,
}

/// The agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another runs with this run directory.
    #[error("{}: another agent runs there", .0.display())]
    Running(PathBuf),
    /// A file or folder cannot be made.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address} ({key}): {error}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// As the configuration names it.
        key: &'static str,
        /// Why.
        error: std::io::Error,
    },
    /// The kernel has no threads or descriptors left.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// No volumes can be published for the kubelet.
    #[error("[csi]: {0}")]
    Volumes(std::io::Error),
    /// The token service has ended on its own; gates follow their own rule for a lost agent.
    #[error("the token service has ended")]
    ServiceEnded,
}

/// What [`STATE_FILE`] says.
#[derive(Debug, Serialize)]
struct Listening {
    pid: u32,
    control: SocketAddr,
    metrics: SocketAddr,
}

/// Runs the agent until the process is told to end by SIGTERM or SIGINT.
///
/// # Errors
/// It cannot run, or its token service has ended.
pub fn run(config: Config, options: RunOptions) -> Result<(), RunError> {
    let directory = config.node.run_directory.clone();
    let file = |path: PathBuf| move |error| RunError::File { path, error };
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&directory)
        .map_err(file(directory.clone()))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Scrapes and questions wait for figures there.
        .max_blocking_threads(16)
        .build()?;
    let lock = runtime.block_on(lock(&directory, LOCK_SPAN))?;
    let outcome = runtime.block_on(serve(config, options));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let _gone = std::fs::remove_file(directory.join(STATE_FILE));
    drop(lock);
    outcome
}

async fn lock(directory: &Path, span: Duration) -> Result<OwnedFd, RunError> {
    let path = directory.join(LOCK_FILE);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600));
    let wrong = |errno: rustix::io::Errno| RunError::File {
        path: path.clone(),
        error: errno.into(),
    };
    let file = opened.map_err(wrong)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        Err(errno) => return Err(wrong(errno)),
    }
    // The kernel waits for a lock without end: a thread does, and one that has it too late gives it back.
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new()
        .name("lock".to_owned())
        .spawn(move || {
            let locked = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
            let _too_late = tell.send(locked.map(|()| file));
        })?;
    match tokio::time::timeout(span, told).await {
        Ok(Ok(locked)) => locked.map_err(wrong),
        Ok(Err(_)) | Err(_) => Err(RunError::Running(directory.to_path_buf())),
    }
}

async fn listen(address: SocketAddr, key: &'static str) -> Result<TcpListener, RunError> {
    TcpListener::bind(address)
        .await
        .map_err(|error| RunError::Listen {
            address,
            key,
            error,
        })
}

fn say_where(directory: &Path, listening: &Listening) -> std::io::Result<()> {
    let mut file = tempfile_in(directory)?;
    let text = serde_json::to_vec(listening)?;
    file.1.write_all(&text)?;
    std::fs::rename(file.0, directory.join(STATE_FILE))
}

fn tempfile_in(directory: &Path) -> std::io::Result<(PathBuf, std::fs::File)> {
    // The lock is held: nobody else writes it.
    let path = directory.join(format!(".{STATE_FILE}.new"));
    let file = std::fs::File::create(&path)?;
    Ok((path, file))
}

/// Blocks until volumes can be published no more; without end where none are.
async fn unpublished(
    serving: Option<&mut tokio::task::JoinHandle<std::io::Result<()>>>,
) -> std::io::Error {
    match serving {
        Some(serving) => match serving.await {
            Ok(Ok(())) => std::io::Error::other("it has ended before its time"),
            Ok(Err(error)) => error,
            Err(panicked) => panicked.into(),
        },
        None => std::future::pending().await,
    }
}

/// Returns the node's name, as the manifests give it, or as the host has it.
fn node_name() -> String {
    let named = std::env::var("NODE_NAME")
        .ok()
        .filter(|name| !name.is_empty());
    named.unwrap_or_else(|| {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    })
}

/// The parts that have threads of their own.
struct Parts {
    stop: Arc<Stop>,
    daemons: Arc<Daemons>,
    service: ServiceHandle,
    threads: Vec<JoinHandle<()>>,
}

async fn serve(config: Config, options: RunOptions) -> Result<(), RunError> {
    // Before anything is there that would have to be taken back.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let control = listen(config.node.control_address, "node.control-address").await?;
    let scrape = listen(config.node.metrics_address, "node.metrics-address").await?;
    let kubelet = config.csi.as_ref().map(Kubelet::find).transpose();
    let kubelet = kubelet.map_err(RunError::Volumes)?;
    let events = Arc::new(Events::default());
    let node = Arc::new(Node::default());
    node.lock().plan = Plan(config.slots.plan);
    let pods = Arc::new(Pods::default());
    let recent = Arc::new(Recent::default());
    let directory = config.node.run_directory.clone();
    let parts = Parts::start(&config, &events, &node, &pods, &recent)?;
    let volumes = config.csi.clone().zip(kubelet).map(|(csi, kubelet)| {
        let (node, pods) = (Arc::clone(&node), Arc::clone(&pods));
        let directory = config.pods.directory.clone();
        let name = csi.node.clone().unwrap_or_else(node_name);
        let volumes = Volumes::new(csi, kubelet.clone(), directory, node, pods);
        (kubelet, name, Arc::new(volumes))
    });
    let metrics = Arc::new(Metrics {
        node,
        pods,
        recent,
        service: parts.service.clone(),
    });
    let cancel = CancellationToken::new();
    let listening = Listening {
        pid: std::process::id(),
        control: control.local_addr()?,
        metrics: scrape.local_addr()?,
    };
    let api = Control {
        metrics: Arc::clone(&metrics),
        events: Arc::clone(&events),
        host_memory: config.node.host_memory,
        streams: Arc::new(Semaphore::new(EVENT_STREAMS_MAX)),
        cancel: cancel.clone(),
    };
    let mut published = volumes.map(|(kubelet, name, volumes)| {
        let cancel = cancel.clone();
        tokio::spawn(async move { csi::serve(&kubelet, name, volumes, cancel).await })
    });
    let identity = config.node.certificates.clone().map(|folder| {
        let identity = Arc::<Identity>::default();
        tokio::spawn(Arc::clone(&identity).follow(folder));
        identity
    });
    let serving = [
        tokio::spawn(http::serve(
            control,
            Arc::new(api),
            http::Terms {
                lifetime: None,
                identity,
            },
            cancel.clone(),
        )),
        tokio::spawn(http::serve(
            scrape,
            Arc::new(Scrape(metrics)),
            http::Terms {
                lifetime: Some(SCRAPE_LIFETIME),
                identity: None,
            },
            cancel.clone(),
        )),
    ];
    let said = say_where(&directory, &listening);
    if let Err(error) = said {
        tracing::warn!(%error, "{STATE_FILE} cannot be written");
    }
    let text = format!(
        "control API on {}, metrics on {}",
        listening.control, listening.metrics
    );
    events.tell(EventKind::AgentStarted, "", "", text);
    let outcome = tokio::select! {
        _signal = terminate.recv() => Ok(()),
        _signal = interrupt.recv() => Ok(()),
        () = ended(&parts.service) => Err(RunError::ServiceEnded),
        error = unpublished(published.as_mut()) => Err(RunError::Volumes(error)),
    };
    let text = match (&outcome, options.stop_mps) {
        (Err(error), _) => error.to_string(),
        (Ok(()), true) => "MPS daemons are ended too".to_owned(),
        (Ok(()), false) => "MPS daemons go on".to_owned(),
    };
    events.tell(EventKind::AgentStopping, "", "", text);
    cancel.cancel();
    for task in serving {
        let _panicked = task.await;
    }
    // Its sockets are to go before the process does.
    if let Some(task) = published.filter(|task| !task.is_finished()) {
        let _panicked = task.await;
    }
    let stop_mps = options.stop_mps && outcome.is_ok();
    let _panicked = tokio::task::spawn_blocking(move || parts.end(stop_mps)).await;
    outcome
}

/// Ends when the service has.
async fn ended(service: &ServiceHandle) {
    while !service.is_ended() {
        tokio::time::sleep(ALIVE_SPAN).await;
    }
}

impl Parts {
    fn start(
        config: &Config,
        events: &Arc<Events>,
        node: &Arc<Node>,
        pods: &Arc<Pods>,
        recent: &Arc<Recent>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let device_memory = Arc::new(DeviceMemory::default());
        let service = service::start(ServiceSettings {
            tokens: config.tokens,
            host_memory: config.node.host_memory,
            events: Arc::clone(events),
            device_memory: Arc::clone(&device_memory),
        })?;
        let daemons = Arc::new(Daemons::new(
            config.clone(),
            Arc::clone(node),
            Arc::clone(events),
            service.clone(),
        ));
        let mut parts = Self {
            stop,
            daemons,
            service,
            threads: Vec::new(),
        };
        let watcher = Watcher::new(
            config.clone(),
            Arc::clone(node),
            Arc::clone(events),
            device_memory,
            parts.listener(),
        );
        parts.spawn("nvml", move |stop| {
            watcher.run(stop, |path| {
                let library = Library::open(path)?;
                Ok(Box::new(library) as Box<dyn Nvml>)
            });
        })?;
        let keeper = Keeper::new(
            config.pods.directory.clone(),
            preload_folder(config.node.preload.as_deref()),
            Arc::clone(node),
            Arc::clone(pods),
            Arc::clone(events),
            parts.service.clone(),
        );
        parts.spawn("pods", move |stop| keeper.run(stop))?;
        let (recent, service, node) = (Arc::clone(recent), parts.service.clone(), Arc::clone(node));
        parts.spawn("figures", move |stop| recent.run(stop, &service, &node))?;
        Ok(parts)
    }

    fn spawn(
        &mut self,
        name: &str,
        does: impl FnOnce(&Stop) + Send + 'static,
    ) -> std::io::Result<()> {
        let stop = Arc::clone(&self.stop);
        let builder = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(builder.spawn(move || does(&stop))?);
        Ok(())
    }

    /// Who is told what NVML finds: the service first, which has to know a slot before its daemon says anything.
    fn listener(&self) -> Listener {
        let (service, daemons) = (self.service.clone(), Arc::clone(&self.daemons));
        Box::new(move |change| {
            let sent = match &change {
                Change::Added(slot) => service.send(Command::SlotAdded(Arc::clone(slot))),
                Change::Lost(slot, reason) => service.send(Command::SlotLost {
                    slot: *slot,
                    reason: reason.clone(),
                }),
                Change::Back(slot) => service.send(Command::SlotBack(Arc::clone(slot))),
                Change::Fault(_) => Ok(()),
            };
            if sent.is_err() {
                return;
            }
            match change {
                Change::Added(slot) if slot.kind == SlotKind::Mps => daemons.add(&slot),
                Change::Added(_) => {}
                Change::Lost(slot, _) => daemons.pause(slot),
                Change::Back(slot) => daemons.resume(&slot),
                Change::Fault(slot) => daemons.look(slot),
            }
        })
    }

    fn end(self, stop_mps: bool) {
        self.stop.set();
        for thread in self.threads {
            let _panicked = thread.join();
        }
        self.daemons.end(stop_mps);
        let _ended = self.service.send(Command::Stop);
        let waiting = Stop::default();
        let step = Duration::from_millis(5);
        let mut left = SERVICE_SPAN;
        while !self.service.is_ended() && !left.is_zero() {
            waiting.wait(step);
            left = left.saturating_sub(step);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_at_a_time_has_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let one = lock(directory.path(), Duration::ZERO).await.unwrap();
        let why = lock(directory.path(), Duration::ZERO).await.unwrap_err();
        assert!(matches!(why, RunError::Running(_)), "{why}");
        let other = lock(directory.path(), Duration::from_secs(60));
        tokio::join!(biased; other, async { drop(one) }).0.unwrap();
    }
}
