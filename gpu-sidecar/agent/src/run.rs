//! The agent as a process: its parts, started in order, and ended in the other.

use std::fs::DirBuilder;
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
use crate::pods::{Keeper, Pods, preload_folder};
use crate::recent::Recent;
use crate::state::{Command, DeviceMemory, ServiceHandle, ServiceSettings};
use crate::stop::Stop;
use crate::{http, mps, service};

/// Names where the agent listens, as long as it runs; in the run directory.
pub const STATE_FILE: &str = "agent.json";
/// Locked by the agent that runs; in the run directory.
const LOCK_FILE: &str = "agent.lock";
/// A connection to the metrics ends after this time: no scraper keeps one from the others.
const SCRAPE_LIFETIME: Duration = Duration::from_secs(300);
/// The service's thread has this long to end.
const SERVICE_SPAN: Duration = Duration::from_secs(2);
/// How often it is looked whether it has ended too early.
pub(crate) const ALIVE_SPAN: Duration = Duration::from_millis(500);

/// What is not in the configuration file.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunOptions {
    /// At the end, MPS daemons end too, and with them the contexts of all programs. Else they go on for the next agent.
    pub stop_mps: bool,
    /// MPS daemons are those of `gpu-sidecar mps`: the agent watches them, and starts and ends none.
    pub external_mps: bool,
}

/// The agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Another runs with this run directory.
    #[error("{}: another {program} runs there", directory.display())]
    Running {
        /// What it is.
        program: &'static str,
        /// The run directory.
        directory: PathBuf,
    },
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
    /// A thread that looks after GPUs or MPS daemons has ended on its own.
    #[error("a thread that keeps MPS daemons has ended")]
    MpsEnded,
}

/// What [`STATE_FILE`] says.
#[derive(Debug, Serialize)]
struct Listening {
    pid: u32,
    control: SocketAddr,
    metrics: SocketAddr,
}

/// Makes the folder in which programs of a node find each other.
///
/// # Errors
/// It cannot be made.
pub(crate) fn make_run_directory(directory: &Path) -> Result<(), RunError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o755).create(directory);
    made.map_err(|error| RunError::File {
        path: directory.to_path_buf(),
        error,
    })
}

/// Runs the agent until the process is told to end by SIGTERM or SIGINT.
///
/// # Errors
/// It cannot run, or its token service has ended.
pub fn run(config: Config, options: RunOptions) -> Result<(), RunError> {
    let directory = config.node.run_directory.clone();
    make_run_directory(&directory)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Scrapes and questions wait for figures there.
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
    let events = Arc::new(Events::of_a_new_agent());
    let node = Arc::new(Node::default());
    node.lock().plan = Plan(config.slots.plan);
    let pods = Arc::new(Pods::default());
    let recent = Arc::new(Recent::new(config.metrics.pods));
    let directory = config.node.run_directory.clone();
    let supervisor = if options.external_mps {
        Supervisor::Other
    } else {
        Supervisor::Own
    };
    let parts = Parts::start(&config, supervisor, &events, &node, &pods, &recent)?;
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
        supervisor: Supervisor,
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
            supervisor,
            Arc::clone(node),
            Arc::clone(events),
            Some(service.clone()),
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
