//! Weir's queue-proxy: Knative's sidecar, contract for contract, with deadline-ordered queues.
//!
//! The process is [`main`]: environment, listeners, service, drain. A request's way is `service`; each part of
//! it is a module of its own. Decisions are `policy`'s; this crate holds the sockets around them.
#![forbid(unsafe_code)]

mod activator;
mod admin;
mod admission;
#[doc(hidden)]
pub mod bench;
mod body;
mod buffered;
mod client_body;
mod clock;
mod config;
mod connection;
mod deadline;
mod drain;
mod env;
mod exchange;
mod frames;
mod framing;
#[doc(hidden)]
pub mod fuzz;
mod go_json;
mod headers;
mod io;
mod limits;
mod lines;
mod listen;
mod metrics;
mod observability;
mod options;
mod podinfo;
mod probe;
mod process_log;
mod profiling;
mod readiness;
mod relay;
mod request_log;
mod respond;
mod retry;
mod service;
mod sniff;
mod socket;
mod stat;
mod telemetry;
mod template;
mod timeouts;
mod tls;
mod traces;
mod tunnel;
mod upstream;
mod workers;

use std::ffi::OsString;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::admission::Admission;
use crate::clock::Clock;
use crate::config::{ADMIN_PORT, Config, STAT_PORT};
use crate::connection::{Handler, Shutdown, accept};
use crate::env::ProcessEnvironment;
use crate::exchange::Observer;
use crate::limits::Limits;
use crate::metrics::{ServingMetrics, WeirMetrics};
use crate::observability::{Metrics, Tracing, USER_METRICS_PORT};
use crate::process_log::Identity;
use crate::profiling::{PROFILING_PORT, Profiling};
use crate::request_log::RequestLog;
use crate::telemetry::Telemetry;
use crate::template::RevisionInfo;
use crate::tls::Tls;
use crate::traces::Traces;
use crate::upstream::Upstream;

/// Tunnels may delay the exit by this long after the quiet period. Fixed by Knative.
const TUNNELS_MAX: Duration = Duration::from_secs(60);
/// Idle connections to the user container are looked through this often.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// The exit code for arguments that are not known.
const USAGE_ERROR: u8 = 2;

const USAGE: &str = "\
Usage: queue-proxy [--help | --version]

Runs Knative's sidecar of a revision's pod until it is drained. All settings are variables of the environment, as
Knative sets them, and annotations (weir.dev/...) of the revision; there are no other arguments.
";

/// Runs the program; `arguments` are those behind its name. Exit code 2 for one that is not known, else as [`main`].
#[must_use]
pub fn main_with_arguments(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Some(argument) = arguments.into_iter().next() else {
        return main();
    };
    match argument.to_str() {
        Some("-h" | "--help") => print(USAGE),
        Some("-V" | "--version") => print(concat!("queue-proxy ", env!("CARGO_PKG_VERSION"), "\n")),
        _ => {
            let lines = [format!("{}: not known", argument.display())];
            fail(lines.into_iter().chain(USAGE.lines().map(str::to_owned)));
            ExitCode::from(USAGE_ERROR)
        }
    }
}

/// Prints to standard output.
fn print(text: &str) -> ExitCode {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Runs the queue-proxy until it is drained, with settings from the environment alone. Exit code 0 after a drain;
/// 1 for a setting that cannot be used, a port that is taken, or a second signal.
#[must_use]
pub fn main() -> ExitCode {
    let config = match Config::from_environment(&ProcessEnvironment) {
        Ok(config) => config,
        Err(problems) => {
            return fail(problems.iter().map(ToString::to_string));
        }
    };
    config.log.clone().start(Identity {
        key: format!("{}/{}", config.namespace, config.revision),
        pod: config.pod.clone(),
    });
    for problem in &config.options.problems {
        tracing::warn!(problem, "an option of Weir cannot be used");
    }
    let workers = workers::count();
    let runtime = if workers == 1 {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    } else {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()
    };
    match runtime {
        Ok(runtime) => {
            let code = runtime.block_on(run(config));
            // What still runs now is cut: tunnels whose time is up, or everything after a second signal.
            runtime.shutdown_background();
            code.unwrap_or_else(|error| fail([error.to_string()]))
        }
        Err(error) => fail([format!("cannot start the runtime: {error}")]),
    }
}

/// Why the process cannot serve.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Listen(#[from] listen::ListenError),
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    #[error(transparent)]
    Telemetry(#[from] telemetry::TelemetryError),
    #[error("metrics cannot be set up: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] std::io::Error),
    #[error("a task of the start has ended before its time: {0}")]
    Task(#[from] tokio::task::JoinError),
}

async fn run(config: Config) -> Result<ExitCode, StartError> {
    let bind = config.bind;
    let admin = listen::listen(bind, ADMIN_PORT)?;
    let stats = listen::listen(bind, STAT_PORT)?;
    let tls = Tls::read(&config.certificates, &config.tls)?;
    let secure = match &tls {
        Some(tls) => Some((listen::listen(bind, config.tls_port)?, Arc::clone(tls))),
        None => None,
    };
    let scraped = scrape_addresses(&config)
        .into_iter()
        .map(|(ip, port)| listen::listen(ip, port))
        .collect::<Result<Vec<_>, _>>()?;
    let profiles = if config.observability.profiling {
        Some(listen::listen(bind, PROFILING_PORT)?)
    } else {
        None
    };
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
    };
    let drain = drain::Drain::new();
    let stat = stat::Stat::new(&config.pod, config.concurrency(), Instant::now());
    let limits = config.options.limits;
    let clock = Clock::start();
    let gate = service::Proxy::gate(&config, clock);
    let (telemetry, observer) = observe(&config, gate.as_ref()).await?;
    let registry = telemetry.registry.clone();
    // Last: who can reach the serving port can reach all others, and all is set up.
    let main = listen::listen(bind, config.serving_port)?;
    tracing::info!(
        bind = %config.bind,
        port = config.serving_port,
        tls = tls.is_some(),
        "queue-proxy is listening"
    );
    let proxy = service::Proxy::new(
        config,
        clock,
        gate,
        Arc::clone(&stat),
        Arc::clone(&drain),
        observer,
    );

    let shutdown = Arc::<Shutdown>::default();
    let connections = TaskTracker::new();
    let servers = Servers {
        limits,
        shutdown: Arc::clone(&shutdown),
        connections: connections.clone(),
    };
    servers.serve(main, None, &proxy);
    if let Some((listener, tls)) = secure {
        tokio::spawn(Arc::clone(&tls).run_reload());
        servers.serve(listener, Some(tls), &proxy);
    }
    servers.serve(admin, None, &Arc::new(admin::Admin(Arc::clone(&drain))));
    servers.serve(stats, None, &Arc::new(admin::Stats(Arc::clone(&stat))));
    let scrape = Arc::new(admin::Scrape {
        proxy: Arc::clone(&proxy),
        registry,
        tls,
    });
    for listener in scraped {
        servers.serve(listener, None, &scrape);
    }
    if let Some(listener) = profiles {
        servers.serve(listener, None, &Arc::<Profiling>::default());
    }
    tokio::spawn(stat.run());
    if let Some(admission) = proxy.admission() {
        tokio::spawn(Arc::clone(admission).run_shedding());
    }
    tokio::spawn(sweep(Arc::clone(proxy.upstream())));

    signals.next().await;
    tracing::info!("Received TERM signal, attempting to gracefully shutdown servers.");
    let drained = async {
        drain.on_signal().await;
        shutdown.begin();
        connections.close();
        connections.wait().await;
        proxy.tunnels().close();
        // Those that are left are cut.
        let _in_time = tokio::time::timeout(TUNNELS_MAX, proxy.tunnels().wait()).await;
        let flushed = tokio::task::spawn_blocking(move || {
            telemetry.shut_down();
            lines::stdout().flush();
        });
        // It has limits of its own.
        let _flushed = flushed.await;
        ExitCode::SUCCESS
    };
    Ok(tokio::select! {
        code = drained => code,
        () = signals.next() => ExitCode::FAILURE,
    })
}

/// Sets up what requests are observed with.
async fn observe(
    config: &Config,
    gate: Option<&Arc<Admission>>,
) -> Result<(Telemetry, Arc<Observer>), StartError> {
    let is_asked_for = config.observability.request_metrics != Metrics::None
        || config.observability.tracing != Tracing::None;
    let telemetry = if is_asked_for {
        let config = config.clone();
        // OTLP over HTTP sets up a client that blocks.
        tokio::task::spawn_blocking(move || Telemetry::start(&config, &ProcessEnvironment))
            .await??
    } else {
        Telemetry::default()
    };
    let log = config.observability.request_log.as_ref();
    let observer = Observer {
        serving: telemetry
            .meters
            .as_ref()
            .map(|meters| ServingMetrics::new(meters, config.user_port, gate)),
        weir: config
            .options
            .opted_in()
            .then(|| WeirMetrics::new(config))
            .transpose()?,
        traces: telemetry
            .tracers
            .as_ref()
            .map(|tracers| Traces::new(tracers, config.user_port)),
        log: log.and_then(|template| {
            let revision = RevisionInfo {
                name: config.revision.clone(),
                namespace: config.namespace.clone(),
                service: config.service.clone(),
                configuration: config.configuration.clone(),
                pod_name: config.pod.clone(),
                pod_ip: config.pod_ip.clone(),
            };
            RequestLog::start(template, config.observability.log_probes, revision)
        }),
    };
    Ok((telemetry, Arc::new(observer)))
}

/// Where Prometheus may scrape: as configured, and on the usual port wherever there are Weir's own metrics.
fn scrape_addresses(config: &Config) -> Vec<(IpAddr, u16)> {
    let mut addresses = Vec::new();
    if config.options.opted_in() {
        addresses.push((config.bind, USER_METRICS_PORT));
    }
    if let Metrics::Prometheus { host, port } = config.observability.request_metrics {
        let ip = host.unwrap_or(config.bind);
        match addresses.first_mut() {
            // One listener for a port: that which hears the most.
            Some((first, same)) if *same == port => {
                if ip.is_unspecified() && !first.is_unspecified() {
                    *first = ip;
                }
            }
            _ => addresses.push((ip, port)),
        }
    }
    addresses
}

/// Closes connections to the user container that have been idle for too long, for ever.
async fn sweep(upstream: Arc<Upstream>) {
    let mut tick = tokio::time::interval(SWEEP_PERIOD);
    loop {
        tick.tick().await;
        upstream.sweep();
    }
}

/// What all servers of the process share.
struct Servers {
    limits: Limits,
    shutdown: Arc<Shutdown>,
    connections: TaskTracker,
}

impl Servers {
    fn serve<H: Handler>(&self, listener: TcpListener, tls: Option<Arc<Tls>>, handler: &Arc<H>) {
        tokio::spawn(accept(
            listener,
            tls,
            self.limits,
            Arc::clone(handler),
            Arc::clone(&self.shutdown),
            self.connections.clone(),
        ));
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// The next one of either.
    async fn next(&mut self) {
        tokio::select! {
            _signal = self.terminate.recv() => {}
            _signal = self.interrupt.recv() => {}
        }
    }
}

/// Says what is wrong on stderr, before or without a log.
fn fail(lines: impl IntoIterator<Item = String>) -> ExitCode {
    let mut stderr = std::io::stderr().lock();
    for line in lines {
        // Nobody to tell if this fails.
        let _written = writeln!(stderr, "queue-proxy: {line}");
    }
    ExitCode::FAILURE
}
