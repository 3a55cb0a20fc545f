//! The agent's process: starts its parts in order, and stops them in reverse order.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mutual_tls::Identity;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::control::{Control, EVENT_STREAMS_MAX, Scrape};
use crate::csi::{self, Kubelet, Volumes};
use crate::events::{EventKind, Events};
use crate::lock::{LOCK_SPAN, lock};
use crate::metrics::Metrics;
use crate::mps::daemon::{Daemons, Supervisor};
use crate::node::{Node, Plan};
use crate::nvml::Nvml;
use crate::nvml::real::Library;
use crate::nvml::watch::{Change, Listener, Watcher};
use crate::pods::{PodWatcher, Pods, preload_folder};
use crate::state::{Command, DeviceMemory, ServiceHandle, ServiceSettings};
use crate::stop::Stop;
use crate::usage_history::UsageHistory;
use crate::{cgroup_memory, config, http, mps, service};

/// File in the run directory with the agent's process ID and addresses, present while the agent runs.
pub const STATE_FILE: &str = "agent.json";
/// File in the run directory which the running agent locks.
const LOCK_FILE: &str = "agent.lock";
/// Longest lifetime of a connection to the metrics, so that no scraper occupies one for good.
const SCRAPE_LIFETIME: Duration = Duration::from_secs(300);
/// Time for the service's thread to end at shutdown.
const SERVICE_SPAN: Duration = Duration::from_secs(2);
/// Interval of the checks whether a thread has ended prematurely.
pub(crate) const ALIVE_SPAN: Duration = Duration::from_millis(500);

/// Options from the command line that are not in the configuration file.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// Whether MPS daemons stop with the agent, and with them the contexts of all programs. Otherwise they keep running for the
    /// next agent.
    pub stop_mps: bool,
    /// Whether `gpu-sidecar mps` runs the MPS daemons: the agent watches them, but neither starts nor stops any.
    pub external_mps: bool,
    /// File to which the token service appends its events and actions; `None`: it does not.
    pub record: Option<PathBuf>,
}

/// Error that prevents the agent from running, or ends it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another program of the same kind uses this run directory.
    #[error("{}: another {program} is running", directory.display())]
    Running {
        /// Kind of program, as shown to the operator.
        program: &'static str,
        /// Run directory in use.
        directory: PathBuf,
    },
    /// A file or directory cannot be created.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system call.
        error: std::io::Error,
    },
    /// The agent cannot listen on an address.
    #[error("cannot listen on {address} ({key}): {error}")]
    Listen {
        /// Address of the listener.
        address: SocketAddr,
        /// Configuration key of the address.
        key: &'static str,
        /// Error of the system call.
        error: std::io::Error,
    },
    /// Threads or file descriptors are exhausted.
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
    /// The volumes for the kubelet cannot be served.
    #[error("[csi]: {0}")]
    Volumes(std::io::Error),
    /// The token service has ended unexpectedly; gates follow their own rule for a lost agent.
    #[error("the token service has ended unexpectedly")]
    ServiceEnded,
    /// A thread that watches GPUs or MPS daemons has ended unexpectedly.
    #[error("a thread that watches GPUs or MPS daemons has ended unexpectedly")]
    MpsEnded,
}

/// Contents of [`STATE_FILE`]: process ID and addresses of the running agent.
#[derive(Debug, Serialize)]
struct Listening {
    pid: u32,
    control: SocketAddr,
    metrics: SocketAddr,
}

/// Creates the directory in which the programs of a node find each other.
///
/// # Errors
/// Returns [`RunError::File`] when it cannot be created.
pub(crate) fn make_run_directory(directory: &Path) -> Result<(), RunError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(directory);
    made.map_err(|error| RunError::File {
        path: directory.to_path_buf(),
        error,
    })
}

/// Runs the agent until the process receives SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error when the agent cannot start, or its token service or its volumes fail.
pub fn run(config: Config, options: RunOptions) -> Result<(), RunError> {
    let directory = config.node.run_directory.clone();
    make_run_directory(&directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Scrapes and API queries wait for figures on these threads.
        .max_blocking_threads(16)
        .build()?;
    let lock = runtime.block_on(lock(&directory, LOCK_FILE, "agent", LOCK_SPAN))?;
    let outcome = runtime.block_on(serve(config, options));
    runtime.shutdown_timeout(Duration::from_secs(1));
    let _gone = std::fs::remove_file(directory.join(STATE_FILE));
    drop(lock);
    outcome
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

fn write_state_file(directory: &Path, listening: &Listening) -> std::io::Result<()> {
    let mut file = tempfile_in(directory)?;
    let text = serde_json::to_vec(listening)?;
    file.1.write_all(&text)?;
    std::fs::rename(file.0, directory.join(STATE_FILE))
}

fn tempfile_in(directory: &Path) -> std::io::Result<(PathBuf, std::fs::File)> {
    // The lock is held: no other process writes the file.
    let path = directory.join(format!(".{STATE_FILE}.new"));
    let file = std::fs::File::create(&path)?;
    Ok((path, file))
}

/// Waits until the volume server fails, and returns the error; waits forever where there is none.
async fn unpublished(
    serving: Option<&mut tokio::task::JoinHandle<std::io::Result<()>>>,
) -> std::io::Error {
    match serving {
        Some(serving) => match serving.await {
            Ok(Ok(())) => std::io::Error::other("the volume server has ended unexpectedly"),
            Ok(Err(error)) => error,
            Err(panicked) => panicked.into(),
        },
        None => std::future::pending().await,
    }
}

/// Returns how models are moved between devices and host, within the memory that this program may have; with a warning if that is less than
/// configured.
fn memory_settings(config: &Config) -> agent_core::MemorySettings {
    let node = rustix::system::sysinfo();
    let node_bytes = node.totalram.saturating_mul(u64::from(node.mem_unit));
    let settings = config.memory_settings(node_bytes);
    let Some(limit) = cgroup_memory::limit() else {
        return settings;
    };
    let bounded = config::within(settings, limit);
    if bounded.host_bytes < settings.host_bytes {
        tracing::warn!(
            limit,
            host_bytes = bounded.host_bytes,
            "the memory limit of the agent's cgroup leaves less for models than node.host-memory"
        );
    }
    bounded
}

/// Returns the node's name: `NODE_NAME` as set by the manifests, else the host name.
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

/// Parts of the agent with threads of their own.
struct Parts {
    stop: Arc<Stop>,
    daemons: Arc<Daemons>,
    service: ServiceHandle,
    /// Host memory for copies of models, in bytes.
    host_bytes: u64,
    threads: Vec<JoinHandle<()>>,
}

async fn serve(config: Config, options: RunOptions) -> Result<(), RunError> {
    // Before anything is created that would have to be undone.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let control = listen(config.node.control_address, "node.control-address").await?;
    let scrape = listen(config.node.metrics_address, "node.metrics-address").await?;
    let kubelet = config.csi.as_ref().map(Kubelet::find).transpose();
    let kubelet = kubelet.map_err(RunError::Volumes)?;
    let events = Arc::new(Events::of_a_new_agent());
    let node = Arc::new(Node::default());
    {
        let mut node = node.lock();
        node.plan = Plan(config.slots.plan);
        node.placement = config.slots.placement;
    }
    let pods = Arc::new(Pods::default());
    let usage = Arc::new(UsageHistory::new(config.metrics.pods));
    let directory = config.node.run_directory.clone();
    let supervisor = if options.external_mps {
        Supervisor::Other
    } else {
        Supervisor::Own
    };
    let record = options.record.clone();
    if let Some(path) = &record {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.map_err(|error| RunError::File {
            path: path.clone(),
            error,
        })?;
    }
    let parts = Parts::start(&config, supervisor, &events, &node, &pods, &usage, record)?;
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
        usage,
        service: parts.service.clone(),
        gpu_hour: config.price.gpu_hour,
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
        host_memory: Some(parts.host_bytes),
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
    let written = write_state_file(&directory, &listening);
    if let Err(error) = written {
        tracing::warn!(%error, "{STATE_FILE} cannot be written");
    }
    let text = format!(
        "control API on {}, metrics on {}",
        listening.control, listening.metrics
    );
    events.record(EventKind::AgentStarted, "", "", text);
    let outcome = tokio::select! {
        _signal = terminate.recv() => Ok(()),
        _signal = interrupt.recv() => Ok(()),
        () = ended(&parts.service) => Err(RunError::ServiceEnded),
        error = unpublished(published.as_mut()) => Err(RunError::Volumes(error)),
    };
    let text = match (&outcome, options.stop_mps) {
        (Err(error), _) => error.to_string(),
        (Ok(()), true) => "MPS daemons stop too".to_owned(),
        (Ok(()), false) => "MPS daemons keep running".to_owned(),
    };
    events.record(EventKind::AgentStopping, "", "", text);
    cancel.cancel();
    for task in serving {
        let _panicked = task.await;
    }
    // Its sockets must be removed before the process ends.
    if let Some(task) = published.filter(|task| !task.is_finished()) {
        let _panicked = task.await;
    }
    let stop_mps = options.stop_mps && outcome.is_ok();
    let _panicked = tokio::task::spawn_blocking(move || parts.end(stop_mps)).await;
    outcome
}

/// Waits until the service has ended.
async fn ended(service: &ServiceHandle) {
    while !service.is_ended() {
        tokio::time::sleep(ALIVE_SPAN).await;
    }
}

impl Parts {
    fn start(
        config: &Config,
        supervisor: Supervisor,
        events: &Arc<Events>,
        node: &Arc<Node>,
        pods: &Arc<Pods>,
        usage: &Arc<UsageHistory>,
        record: Option<PathBuf>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let device_memory = Arc::new(DeviceMemory::default());
        let memory = memory_settings(config);
        let service = service::start(ServiceSettings {
            tokens: config.tokens,
            memory,
            events: Arc::clone(events),
            device_memory: Arc::clone(&device_memory),
            record,
        })?;
        let daemons = Arc::new(Daemons::new(
            config.clone(),
            supervisor,
            Arc::clone(node),
            Arc::clone(events),
            Some(service.clone()),
        ));
        let mut parts = Self {
            stop,
            daemons,
            service,
            host_bytes: memory.host_bytes,
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
        let pod_watcher = PodWatcher::new(
            config.pods.directory.clone(),
            preload_folder(config.node.preload.as_deref()),
            Arc::clone(node),
            Arc::clone(pods),
            Arc::clone(events),
            parts.service.clone(),
        );
        parts.spawn("pods", move |stop| pod_watcher.run(stop))?;
        let (usage, service, node) = (Arc::clone(usage), parts.service.clone(), Arc::clone(node));
        parts.spawn("figures", move |stop| usage.run(stop, &service, &node))?;
        Ok(parts)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce(&Stop) + Send + 'static,
    ) -> std::io::Result<()> {
        let stop = Arc::clone(&self.stop);
        let builder = std::thread::Builder::new().name(name.to_owned());
        self.threads.push(builder.spawn(move || body(&stop))?);
        Ok(())
    }

    /// Returns the listener of slot changes: it notifies the service first, which has to know a slot before its daemon reports
    /// a state.
    fn listener(&self) -> Listener {
        let service = self.service.clone();
        let mut to_daemons = mps::program::listener(Arc::clone(&self.daemons));
        Box::new(move |change| {
            let sent = match &change {
                Change::Added(slot) => service.send(Command::SlotAdded(Arc::clone(slot))),
                Change::Lost(slot, reason) => service.send(Command::SlotLost {
                    slot: *slot,
                    reason: reason.clone(),
                }),
                Change::Back(slot) => service.send(Command::SlotBack(Arc::clone(slot))),
                Change::Memory(slot, processes) => service.send(Command::DeviceMemory {
                    slot: *slot,
                    processes: processes.clone(),
                }),
                Change::Fault(_) => Ok(()),
            };
            if sent.is_ok() {
                to_daemons(change);
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
