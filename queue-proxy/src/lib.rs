//! Weir's queue-proxy: a compatible replacement of Knative's sidecar, with deadline-ordered queues.
//!
//! [`main`] runs the process: environment, listeners, service, drain. `service` handles a request, with one module for
//! each stage. Scheduling decisions are made by `policy`; this crate connects them to sockets.
//!
//! Where the agent has made a socket for the pod, requests start under leases of its slot (`lease`, `link`).
//!
//! Deliberately absent: knowledge of other pods of the function (activator-ext has it), of GPUs (the agent has it), and any call to the
//! Kubernetes API. Start reading in `service`, which has the layers of a request in order; `admission` joins `policy::gate` to futures.
#![forbid(unsafe_code)]

mod activator;
mod admin;
mod admission;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod config;
mod drain;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod inbox;
mod lease;
mod link;
mod metrics;
mod options;
mod probe;
mod readiness;
mod service;
mod sibling;
mod sniff;
pub mod standalone;
mod stat;

use std::ffi::OsString;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use proxy::clock::Clock;
use proxy::connection::Shutdown;
use proxy::env::ProcessEnvironment;
use proxy::exchange::{Observer, Recorder};
use proxy::instruments::HttpInstruments;
use proxy::observability::{Metrics, Tracing, USER_METRICS_PORT};
use proxy::process::{self, Servers, Signals, complain, print};
use proxy::process_log::Identity;
use proxy::profiling::{PROFILING_PORT, Profiling};
use proxy::request_log::RequestLog;
use proxy::telemetry::{Owner, Telemetry, TelemetryError};
use proxy::template::RevisionInfo;
use proxy::tls::{Tls, TlsError};
use proxy::traces::{SpanNames, Traces};
use proxy::{lines, listen, settings};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::admission::Admission;
use crate::config::{ADMIN_PORT, Config, STAT_PORT};
use crate::link::Link;
use crate::metrics::WeirMetrics;
use crate::standalone::Addresses;

/// Name of the program and of its container.
const NAME: &str = "queue-proxy";
/// Names of the spans, as in Knative.
const SPAN_NAMES: SpanNames = SpanNames {
    scope: "knative.dev/serving/pkg/queue",
    proxy: "kn.queueproxy.proxy",
    wait: "kn.queueproxy.wait",
};
/// Longest time for which open tunnels delay the exit after the quiet period. Fixed by Knative.
const TUNNELS_MAX: Duration = Duration::from_secs(60);

/// Exit code for unknown arguments.
const USAGE_ERROR: u8 = 2;

const USAGE: &str = "\
Usage: queue-proxy [--help | --version]

Runs the Knative sidecar of a revision's pod until it is drained. All settings are environment variables, as set by
Knative, and annotations (weir.dev/...) of the revision; there are no other arguments.
";

/// Runs the program with the arguments after its name. Returns exit code 2 for an unknown argument, else that of [`main`].
#[must_use]
pub fn main_with_arguments(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Some(argument) = arguments.into_iter().next() else {
        return main();
    };
    match argument.to_str() {
        Some("-h" | "--help") => print(USAGE),
        Some("-V" | "--version") => print(concat!("queue-proxy ", env!("CARGO_PKG_VERSION"), "\n")),
        _ => {
            let lines = [format!("{}: unknown argument", argument.display())];
            let usage = USAGE.lines().map(str::to_owned);
            complain(NAME, USAGE_ERROR, lines.into_iter().chain(usage))
        }
    }
}

/// Runs the queue-proxy until it is drained, with settings from the environment. Returns exit code 0 after a drain, or 1
/// for an invalid setting, a port in use, or a second signal.
#[must_use]
pub fn main() -> ExitCode {
    let config = match Config::from_environment(&ProcessEnvironment) {
        Ok(config) => config,
        Err(problems) => {
            return complain(NAME, 1, problems.iter().map(ToString::to_string));
        }
    };
    config.log.clone().start(Identity {
        key: format!("{}/{}", config.namespace, config.revision),
        pod: config.pod.clone(),
        logger: "queueproxy",
        silent: &[],
    });
    for problem in &config.options.problems {
        tracing::warn!(problem, "unusable option of Weir");
    }
    match process::runtime() {
        Ok(runtime) => {
            let code = runtime.block_on(run(config, |_| {}));
            // Aborts the remaining tasks: tunnels whose time is up, or everything after a second signal.
            runtime.shutdown_background();
            code.unwrap_or_else(|error| complain(NAME, 1, [error.to_string()]))
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
    Tls(#[from] TlsError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("cannot set up a socket or a signal handler: {0}")]
    System(#[from] std::io::Error),
    #[error("a start-up task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Serves requests until the pod is drained. `listening` is called once all ports are open, with the addresses of the
/// serving port and of the first metrics port.
async fn run(config: Config, listening: impl FnOnce(Addresses)) -> Result<ExitCode, StartError> {
    let bind = config.bind;
    let is_in_pod = config.standalone_metrics.is_none();
    let pod_listener = |port| is_in_pod.then(|| listen::listen(bind, port)).transpose();
    let admin = pod_listener(ADMIN_PORT)?;
    let stats = pod_listener(STAT_PORT)?;
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
    let mut signals = Signals::take()?;
    let drain = drain::Drain::new(if is_in_pod {
        drain::QUIET_PERIOD
    } else {
        Duration::ZERO
    });
    let stat = stat::Stat::new(&config.pod, config.concurrency(), Instant::now());
    let limits = settings::limits(&config.options);
    let clock = Clock::start();
    let gate = service::Proxy::gate(&config, clock);
    let weir = config
        .options
        .opted_in()
        .then(|| WeirMetrics::new(&config).map(Arc::new))
        .transpose()?;
    let trust = sibling::trust(&config, tls.is_some())?;
    let link = gate
        .as_ref()
        .zip(config.lease_socket())
        .map(|(gate, socket)| {
            let address = sibling::address(&config, tls.is_some(), trust.is_some());
            gate.require_lease(address, Arc::clone(&drain));
            Link {
                socket: socket.to_owned(),
                admission: Arc::clone(gate),
                metrics: weir.clone(),
                clock,
            }
        });
    if config.queue_socket.is_some() && link.is_none() {
        tracing::info!(
            "requests need no lease: the revision has no option of Weir, or no limit of concurrent requests"
        );
    }
    let (telemetry, observer) = observe(&config, gate.as_ref(), weir.as_ref()).await?;
    let registry = telemetry.registry.clone();
    // The serving port is opened last: when it is reachable, all other ports are, and the setup is complete.
    let main = listen::listen(bind, config.serving_port)?;
    listening(Addresses {
        requests: main.local_addr()?,
        metrics: scraped
            .first()
            .map(|first| first.local_addr())
            .transpose()?,
    });
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
        service::Shared {
            stat: Arc::clone(&stat),
            drain: Arc::clone(&drain),
            observer,
            weir,
            trust: trust.clone(),
        },
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
    if let Some(listener) = admin {
        servers.serve(listener, None, &Arc::new(admin::Admin(Arc::clone(&drain))));
    }
    if let Some(listener) = stats {
        servers.serve(listener, None, &Arc::new(admin::Stats(Arc::clone(&stat))));
    }
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
    if let Some(link) = link {
        tokio::spawn(link.run());
        tokio::spawn(Arc::clone(&proxy).sweep_siblings());
        if let Some(trust) = trust {
            tokio::spawn(trust.run_reload());
        }
    }
    tokio::spawn(process::sweep(Arc::clone(proxy.upstream())));

    signals.next().await;
    tracing::info!("Received TERM signal, attempting to gracefully shutdown servers.");
    let begun = Instant::now();
    let drained = async {
        drain.on_signal().await;
        tracing::info!(
            connections = connections.len(),
            "drained of new requests: listeners close, and connections after their current request"
        );
        shutdown.begin();
        connections.close();
        connections.wait().await;
        tracing::info!(
            upgraded = proxy.tunnels().len(),
            limit_seconds = TUNNELS_MAX.as_secs(),
            "all connections are closed: upgraded ones may end"
        );
        proxy.tunnels().close();
        // Tunnels that are still open afterwards are aborted.
        let _in_time = tokio::time::timeout(TUNNELS_MAX, proxy.tunnels().wait()).await;
        tracing::info!(
            seconds = begun.elapsed().as_secs_f64(),
            aborted = proxy.tunnels().len(),
            "the drain is complete"
        );
        let flushed = tokio::task::spawn_blocking(move || {
            telemetry.shut_down();
            lines::stdout().flush();
        });
        // The flush has its own time limits.
        let _flushed = flushed.await;
        ExitCode::SUCCESS
    };
    Ok(tokio::select! {
        code = drained => code,
        () = signals.next() => {
            tracing::warn!("ended by a second signal: requests in flight are aborted");
            ExitCode::FAILURE
        }
    })
}

/// Sets up the telemetry pipelines and the observer of requests.
async fn observe(
    config: &Config,
    gate: Option<&Arc<Admission>>,
    weir: Option<&Arc<WeirMetrics>>,
) -> Result<(Telemetry, Arc<Observer>), StartError> {
    let is_enabled = config.observability.request_metrics != Metrics::None
        || config.observability.tracing != Tracing::None;
    let telemetry = if is_enabled {
        let (observability, owner) = (config.observability.clone(), owner(config));
        // OTLP over HTTP creates a blocking client.
        tokio::task::spawn_blocking(move || {
            Telemetry::start(&observability, &owner, &ProcessEnvironment)
        })
        .await??
    } else {
        Telemetry::default()
    };
    let log = config.observability.request_log.as_ref();
    let observer = Observer {
        http: telemetry.meters.as_ref().map(|meters| {
            if let Some(gate) = gate {
                metrics::observe_depth(meters, gate);
            }
            let duration = metrics::invocation_duration(meters);
            Arc::new(HttpInstruments::new(meters, Some(duration)))
        }),
        recorder: weir.map(|weir| Arc::clone(weir) as Arc<dyn Recorder>),
        traces: telemetry
            .tracers
            .as_ref()
            .map(|tracers| Arc::new(Traces::new(tracers, SPAN_NAMES))),
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

/// Returns the resource attributes of the process's metrics and spans.
fn owner(config: &Config) -> Owner {
    let names = [&config.service, &config.configuration, &config.revision];
    Owner {
        container: NAME,
        namespace: config.namespace.clone(),
        service: names
            .into_iter()
            .find(|name| !name.is_empty())
            .cloned()
            .unwrap_or_default(),
        attributes: vec![
            ("kn.service.name", config.service.clone()),
            ("kn.configuration.name", config.configuration.clone()),
            ("kn.revision.name", config.revision.clone()),
        ],
    }
}

/// Returns the addresses for Prometheus: the configured one, and the default port if there are Weir's own metrics.
fn scrape_addresses(config: &Config) -> Vec<(IpAddr, u16)> {
    if let Some(metrics) = config.standalone_metrics {
        return vec![(metrics.ip(), metrics.port())];
    }
    let mut addresses = Vec::new();
    if config.options.opted_in() {
        addresses.push((config.bind, USER_METRICS_PORT));
    }
    if let Metrics::Prometheus { host, port } = config.observability.request_metrics {
        let ip = host.unwrap_or(config.bind);
        match addresses.first_mut() {
            // A port has one listener, on the more general address.
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
