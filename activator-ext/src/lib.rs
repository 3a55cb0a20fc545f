//! Weir's activator-ext: one deadline queue per function in front of all its instances.
//!
//! [`main_with_arguments`] runs the process. Role `data` takes requests in place of Knative's activator; `service`
//! handles each of them. `policy::routing` decides which instance serves which request; this crate does its input and
//! output. Role `control` attaches revisions to role `data`, serves the webhooks, and is the only writer to the Kubernetes API.
//!
//! Deliberately absent: the number of replicas, which Knative's autoscaler alone sets, and the GPUs of a node, which its agent alone knows.
//! Start reading in `service` for a request, in `control::attach` for a revision.
#![forbid(unsafe_code)]

mod admin;
mod autoscaler;
mod config;
#[cfg(feature = "kubernetes")]
mod control;
mod function;
mod instance;
mod metrics;
mod pass;
mod probe;
mod registry;
mod reporter;
mod service;
mod source;
mod stat;
mod telemetry;

mod view;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "kubernetes")]
use mutual_tls::Identity;
use proxy::buffered::Buffered;
use proxy::client_body::ReadAhead;
use proxy::client_tls::TrustStore;
use proxy::clock::Clock;
use proxy::connection::Shutdown;
use proxy::env::ProcessEnvironment;
use proxy::limits::Limits;
use proxy::process::{self, Servers, Signals, complain, print};
use proxy::process_log::{self, LogConfig};
use proxy::profiling::{PROFILING_PORT, Profiling};
use proxy::telemetry::{Telemetry, TelemetryError};
use proxy::tls::{self, Tls, TlsError};
use proxy::{lines, listen};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch as channel};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

#[cfg(feature = "kubernetes")]
use crate::admin::access::Access;
#[cfg(feature = "kubernetes")]
use crate::admin::remote::{Remote, Resource};
use crate::admin::{Functions, Scrape};
use crate::autoscaler::{QUEUED_MAX, Reports};
use crate::config::{Config, Role, Source};
#[cfg(feature = "kubernetes")]
use crate::control::ControlConfig;
use crate::metrics::Metrics;
use crate::pass::PassThrough;
use crate::registry::Registry;
use crate::reporter::Reporter;
use crate::service::Data;
use crate::source::SourceFailures;
#[cfg(feature = "kubernetes")]
use crate::source::kubernetes;
use crate::source::manifests::Manifests;
use crate::telemetry::Instruments;
use crate::view::View;

/// Name of the program.
const NAME: &str = "activator-ext";
/// Ports for requests, the same as those of Knative's activator.
const PORTS: [u16; 2] = [8012, 8013];
/// Port for requests by TLS, which is open if there is a serving certificate.
const TLS_PORT: u16 = 8112;
/// File name of the authority of the pods' certificates.
const AUTHORITY: &str = "ca.crt";
/// Port of `/v1/functions`.
const FUNCTIONS_PORT: u16 = 9475;
/// Port of `/metrics`.
const METRICS_PORT: u16 = 9476;
/// Longest time after SIGTERM for open requests and connections.
const DRAIN_MAX: Duration = Duration::from_secs(600);
/// Period at which idle connections are checked.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);
/// Exit code for a usage error.
const USAGE_ERROR: u8 = 2;

/// Runs the program with `arguments`, which exclude the program's name. Returns exit code 0 after a drain; 2 for
/// invalid arguments, variables or manifests, or ports that cannot be bound; 1 for a second signal.
#[must_use]
pub fn main_with_arguments(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let role = match config::parse(arguments) {
        Ok(role) => role,
        Err(error) if error.use_stderr() => {
            let text = error.render().to_string();
            return complain(NAME, USAGE_ERROR, [text.trim_end().to_owned()]);
        }
        Err(help) => return print(&help.render().to_string()),
    };
    match role {
        Role::Data(arguments) => match Config::new(arguments, &ProcessEnvironment) {
            Ok(config) => {
                start_log(&config.log, &config.pod, "activator");
                block_on(run(config))
            }
            Err(problems) => complain(NAME, USAGE_ERROR, problems),
        },
        #[cfg(feature = "kubernetes")]
        Role::Control(arguments) => match ControlConfig::new(arguments, &ProcessEnvironment) {
            Ok(config) => {
                start_log(&config.log, &config.pod, "control");
                block_on(control::run(config))
            }
            Err(problems) => complain(NAME, USAGE_ERROR, problems),
        },
        #[cfg(feature = "kubernetes")]
        Role::Detach(arguments) => block_on(async { Ok(control::detach(arguments).await) }),
        #[cfg(feature = "kubernetes")]
        Role::Check(arguments) => block_on(async { Ok(control::check(arguments).await) }),
    }
}

fn start_log(log: &LogConfig, pod: &str, logger: &'static str) {
    log.clone().start(process_log::Identity {
        key: NAME.to_owned(),
        pod: pod.to_owned(),
        logger,
        silent: &["kube_client", "kube_runtime"],
    });
}

/// Runs a role until it ends, on a runtime of its own.
fn block_on(role: impl Future<Output = Result<ExitCode, StartError>>) -> ExitCode {
    match process::runtime() {
        Ok(runtime) => {
            let code = runtime.block_on(role);
            // Tasks that still run are aborted.
            runtime.shutdown_background();
            code.unwrap_or_else(|error| complain(NAME, USAGE_ERROR, [error.to_string()]))
        }
        Err(error) => complain(NAME, 1, [format!("cannot start the runtime: {error}")]),
    }
}

/// The reason why the process cannot start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Listen(#[from] listen::ListenError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("a task failed during the start: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Manifests(#[from] source::manifests::ManifestError),
    #[cfg(feature = "kubernetes")]
    #[error("{0}")]
    Kubernetes(String),
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("cannot listen for signals, or start a thread: {0}")]
    System(#[from] std::io::Error),
}

async fn run(config: Config) -> Result<ExitCode, StartError> {
    let scrapes = listen::listen(config.bind, METRICS_PORT)?;
    let functions = listen::listen(config.bind_functions, FUNCTIONS_PORT)?;
    let profiles = if config.observability.profiling {
        Some(listen::listen(config.bind, PROFILING_PORT)?)
    } else {
        None
    };
    let mut signals = Signals::take()?;
    let limits = Limits::default();
    let clock = Clock::start();
    let buffered = Buffered::new(limits.buffered_bytes);
    let metrics = Arc::new(Metrics::new()?);
    let (observability, pod) = (config.observability.clone(), config.pod.clone());
    // The exporter of OTLP over HTTP creates a blocking client.
    let start = tokio::task::spawn_blocking(move || Instruments::start(&observability, &pod));
    let (instruments, telemetry) = start.await??;
    let mut source = SourceConnection::to(&config).await?;
    let (tls, trust) = encryption(&config, source.internal_tls)?;
    let secure = match &tls {
        Some(tls) => Some((listen::listen(config.bind, TLS_PORT)?, Arc::clone(tls))),
        None => None,
    };
    let registry = Registry::new(
        clock,
        Arc::clone(&buffered),
        config.waiting,
        config.rule,
        Arc::clone(&metrics),
        instruments,
        trust.clone(),
    );
    if let Some(meters) = &telemetry.meters {
        telemetry::observe_requests(meters, &registry);
    }
    let failed = Arc::<SourceFailures>::default();
    follow(
        &config,
        &source,
        &registry,
        trust.as_ref(),
        Arc::clone(&failed),
    )?;

    let reports = Arc::<Reports>::default();
    let sender = config.autoscaler.clone().map(|url| {
        let (sender, receiver) = mpsc::channel(QUEUED_MAX);
        let counts = Arc::clone(&reports);
        tokio::spawn(async move { autoscaler::run(url, receiver, &counts).await });
        sender
    });
    let reporter = Reporter::new(config.pod.clone(), sender, Arc::clone(&reports));
    tokio::spawn(Arc::clone(&reporter).run(Arc::clone(&registry)));

    let data = Arc::new(Data {
        registry: Arc::clone(&registry),
        metrics: Arc::clone(&metrics),
        pass: PassThrough::new(config.pass_to.clone(), Arc::clone(&buffered)),
        reporter,
        clock,
        read_ahead: ReadAhead::new(&buffered),
        buffered,
        tunnels: TaskTracker::new(),
        is_disabled: config.is_disabled,
        is_stopping: AtomicBool::new(false),
        last_request: channel::Sender::new(Instant::now()),
        head_lines: limits.head_lines,
    });
    // These ports are opened last: once one accepts connections, all others do.
    let listeners = PORTS.map(|port| listen::listen(config.bind, port));
    let servers = Servers {
        limits,
        shutdown: Arc::<Shutdown>::default(),
        connections: TaskTracker::new(),
    };
    for listener in listeners {
        servers.serve(listener?, None, &data);
    }
    if let Some(listener) = profiles {
        servers.serve(listener, None, &Arc::<Profiling>::default());
    }
    let described = Arc::new(Functions::new(Arc::clone(&registry)));
    serve_functions(&config, &source, &servers, functions, described);
    let scrape = Arc::new(Scrape {
        metrics,
        registry: Arc::clone(&registry),
        reports,
        failed,
        knative: telemetry.registry.clone(),
        tls,
        trust: trust.clone(),
    });
    servers.serve(scrapes, None, &scrape);
    if let Some((listener, tls)) = secure {
        tokio::spawn(Arc::clone(&tls).run_reload());
        servers.serve(listener, Some(tls), &data);
    }
    if let Some(trust) = trust {
        tokio::spawn(trust.run_reload());
    }
    tokio::spawn(sweep(Arc::clone(&data)));
    tracing::info!(bind = %config.bind, "activator-ext is listening");

    tokio::select! {
        () = signals.next() => {
            tracing::info!("Received TERM signal, attempting to gracefully shutdown servers.");
        }
        () = source.internal_tls_changed(&config) => {
            tracing::info!("system-internal-tls has changed: this process exits, and the next one uses the new value");
        }
    }
    Ok(tokio::select! {
        code = drain(&data, servers, config.quiet, telemetry) => code,
        () = signals.next() => ExitCode::FAILURE,
    })
}

/// Serves `/v1/functions`: to this pod only, or with a certificate to other pods as well.
#[cfg_attr(
    not(feature = "kubernetes"),
    expect(unused_variables, reason = "for others")
)]
fn serve_functions(
    config: &Config,
    source: &SourceConnection,
    servers: &Servers,
    listener: TcpListener,
    functions: Arc<Functions>,
) {
    #[cfg(feature = "kubernetes")]
    if let Some(folder) = config.identity.clone() {
        let identity = Arc::<Identity>::default();
        tokio::spawn(Arc::clone(&identity).follow(folder));
        let remote = Remote {
            resource: Resource::Functions(functions),
            identity,
            access: source.client.clone().map(Access::new),
        };
        tokio::spawn(Arc::new(remote).run(listener));
        return;
    }
    servers.serve(listener, None, &functions);
}

/// Returns the serving certificate, and the authorities of the pods' certificates. With both, requests go to pods by
/// TLS, as from Knative's activator, unless `internal_tls` is false: the certificates may be left from an earlier
/// configuration.
#[expect(
    clippy::type_complexity,
    reason = "two parts, each of which may be missing"
)]
fn encryption(
    config: &Config,
    internal_tls: Option<bool>,
) -> Result<(Option<Arc<Tls>>, Option<Arc<TrustStore>>), TlsError> {
    let tls = Tls::read(&config.certificates, &tls::Settings::default())?;
    let authority = config.certificates.join(AUTHORITY);
    if tls.is_none() || !authority.exists() || internal_tls == Some(false) {
        return Ok((tls, None));
    }
    let trust = TrustStore::read(vec![authority, config.trust_bundles.clone()])?;
    Ok((tls, Some(trust)))
}

/// Continues to serve until no request has arrived for `quiet`, and then waits until open connections and tunnels have
/// ended, but not longer than [`DRAIN_MAX`].
async fn drain(data: &Data, servers: Servers, quiet: Duration, telemetry: Telemetry) -> ExitCode {
    data.is_stopping.store(true, Ordering::Relaxed);
    let mut last = data.last_request.subscribe();
    let begin = Instant::now();
    let end = begin + DRAIN_MAX;
    loop {
        let until = (*last.borrow_and_update()).max(begin) + quiet;
        tokio::select! {
            () = tokio::time::sleep_until(until.min(end)) => break,
            _request = last.changed() => {}
        }
    }
    servers.shutdown.begin();
    servers.connections.close();
    data.tunnels.close();
    let ended = async {
        servers.connections.wait().await;
        data.tunnels.wait().await;
    };
    // Connections that are still open are cut.
    let _in_time = tokio::time::timeout_at(end, ended).await;
    let flushed = tokio::task::spawn_blocking(move || {
        telemetry.shut_down();
        lines::stdout().flush();
    });
    // The shut-down has time limits of its own.
    let _flushed = flushed.await;
    ExitCode::SUCCESS
}

/// The connection to the source of views.
#[derive(Default)]
struct SourceConnection {
    #[cfg(feature = "kubernetes")]
    client: Option<kube::Client>,
    /// Whether requests go to pods by TLS; `None` if the source does not define it.
    internal_tls: Option<bool>,
}

impl SourceConnection {
    #[cfg(not(feature = "kubernetes"))]
    async fn to(_config: &Config) -> Result<Self, StartError> {
        std::future::ready(Ok(Self::default())).await
    }

    #[cfg(feature = "kubernetes")]
    async fn to(config: &Config) -> Result<Self, StartError> {
        if matches!(config.source, Source::Manifests(_)) {
            return Ok(Self::default());
        }
        let client = kubernetes::client().await.map_err(StartError::Kubernetes)?;
        let internal_tls = kubernetes::internal_tls(&client, &config.namespace).await;
        let internal_tls = internal_tls
            .inspect_err(|error| tracing::warn!(%error, "cannot read config-network; the presence of certificates decides whether pods have TLS"))
            .ok();
        Ok(Self {
            client: Some(client),
            internal_tls,
        })
    }

    /// Waits until the source changes whether requests go to pods by TLS.
    async fn internal_tls_changed(&mut self, config: &Config) {
        #[cfg(feature = "kubernetes")]
        if let (Some(client), Some(current)) = (self.client.take(), self.internal_tls) {
            kubernetes::internal_tls_changed(client, &config.namespace, current).await;
            return;
        }
        let _unused = config;
        std::future::pending().await
    }
}

/// Makes the registry follow the source. Manifests are read once before this returns, and later changes on a separate
/// thread.
#[cfg_attr(
    not(feature = "kubernetes"),
    expect(unused_variables, reason = "for that source")
)]
fn follow(
    config: &Config,
    source: &SourceConnection,
    registry: &Arc<Registry>,
    trust: Option<&Arc<TrustStore>>,
    failed: Arc<SourceFailures>,
) -> Result<(), StartError> {
    // With a capacity of one view, a view that is not applied yet delays the next.
    let (sender, views) = mpsc::channel(1);
    match &config.source {
        Source::Manifests(directory) => {
            let mut manifests = Manifests::new(directory.clone());
            registry.apply(&manifests.read()?.unwrap_or_default());
            std::thread::Builder::new()
                .name("manifests".to_owned())
                .spawn(move || {
                    manifests.watch(&failed, |view| sender.blocking_send(view).is_ok())
                })?;
        }
        #[cfg(feature = "kubernetes")]
        Source::Kubernetes => {
            let Some(client) = source.client.clone() else {
                return Err(StartError::Kubernetes("no client".to_owned()));
            };
            if let Some(trust) = trust.cloned() {
                let (client, namespace) = (client.clone(), config.namespace.clone());
                tokio::spawn(async move {
                    kubernetes::follow_bundles(client, &namespace, &trust).await;
                });
            }
            tokio::spawn(async move { kubernetes::follow(client, sender, &failed).await });
        }
    }
    tokio::spawn(apply(views, Arc::clone(registry)));
    Ok(())
}

async fn apply(mut views: mpsc::Receiver<View>, registry: Arc<Registry>) {
    while let Some(view) = views.recv().await {
        registry.apply(&view);
    }
}

/// Closes idle connections periodically; never returns.
async fn sweep(data: Arc<Data>) {
    let mut tick = tokio::time::interval(SWEEP_PERIOD);
    loop {
        tick.tick().await;
        data.registry.sweep();
        data.pass.sweep();
    }
}
