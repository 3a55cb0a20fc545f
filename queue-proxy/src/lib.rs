//! Weir's queue-proxy: Knative's sidecar, contract for contract, with deadline-ordered queues.
//!
//! The process is [`main`]: environment, listeners, service, drain. A request's way is `service`; each part of
//! it is a module of its own. Decisions are `policy`'s; this crate holds the sockets around them.
#![forbid(unsafe_code)]

mod admin;
mod admission;
#[doc(hidden)]
pub mod bench;
mod body;
mod class;
mod client_body;
mod clock;
mod config;
mod connection;
mod deadline;
mod drain;
mod env;
mod headers;
mod io;
mod listen;
mod options;
mod podinfo;
mod probe;
mod readiness;
mod relay;
mod respond;
mod service;
mod sniff;
mod stat;
mod timeouts;
mod tunnel;
mod upstream;
mod workers;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::config::{ADMIN_PORT, Config, STAT_PORT};
use crate::connection::{Shutdown, accept};

/// Tunnels may delay the exit by this long after the quiet period. Fixed by Knative.
const TUNNELS_MAX: Duration = Duration::from_secs(60);
/// Idle connections to the user container are looked through this often.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// Runs the queue-proxy until it is drained. Exit code 0 after a drain; 1 for a setting that cannot be used,
/// a port that is taken, or a second signal.
#[must_use]
pub fn main() -> ExitCode {
    let config = match Config::from_environment(&env::ProcessEnvironment) {
        Ok(config) => config,
        Err(problems) => {
            return fail(problems.iter().map(ToString::to_string));
        }
    };
    start_log(&config.log_level);
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
            code
        }
        Err(error) => fail([format!("cannot start the runtime: {error}")]),
    }
}

async fn run(config: Config) -> ExitCode {
    let drain = drain::Drain::new();
    let stat = stat::Stat::new(&config.pod, Instant::now());
    let listeners =
        [config.serving_port, ADMIN_PORT, STAT_PORT].map(|port| listen::listen(config.bind, port));
    let [Ok(main), Ok(admin), Ok(stats)] = listeners else {
        return fail(
            listeners
                .into_iter()
                .filter_map(Result::err)
                .map(|error| error.to_string()),
        );
    };
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return fail(["cannot listen for signals".to_owned()]);
    };
    tracing::info!(
        revision = format!("{}/{}", config.namespace, config.revision),
        bind = %config.bind,
        port = config.serving_port,
        "queue-proxy is listening"
    );

    let proxy = service::Proxy::new(config, Arc::clone(&stat), Arc::clone(&drain));
    let shutdown = Arc::<Shutdown>::default();
    let connections = TaskTracker::new();
    tokio::spawn(accept(
        main,
        Arc::clone(&proxy),
        Arc::clone(&shutdown),
        connections.clone(),
    ));
    let admin_handler = Arc::new(admin::Admin(Arc::clone(&drain)));
    tokio::spawn(accept(
        admin,
        admin_handler,
        Arc::clone(&shutdown),
        connections.clone(),
    ));
    let stats_handler = Arc::new(admin::Stats(Arc::clone(&stat)));
    tokio::spawn(accept(
        stats,
        stats_handler,
        Arc::clone(&shutdown),
        connections.clone(),
    ));
    tokio::spawn(stat.run());
    if let Some(admission) = proxy.admission() {
        tokio::spawn(Arc::clone(admission).run_shedding());
    }
    let upstream = Arc::clone(proxy.upstream());
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(SWEEP_PERIOD);
        loop {
            tick.tick().await;
            upstream.sweep();
        }
    });

    either(&mut terminate, &mut interrupt).await;
    tracing::info!(
        unusable_deadline_headers = proxy.unusable_headers(),
        "draining"
    );
    let drained = async {
        drain.on_signal().await;
        shutdown.begin();
        connections.close();
        connections.wait().await;
        proxy.tunnels().close();
        // Those that are left are cut.
        let _in_time = tokio::time::timeout(TUNNELS_MAX, proxy.tunnels().wait()).await;
        ExitCode::SUCCESS
    };
    tokio::select! {
        code = drained => code,
        () = either(&mut terminate, &mut interrupt) => ExitCode::FAILURE,
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _signal = terminate.recv() => {}
        _signal = interrupt.recv() => {}
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

/// JSON lines on stderr from `level` on: zap's names; anything else is `info`.
fn start_log(level: &str) {
    let level = match level {
        "debug" => tracing::Level::DEBUG,
        "warn" => tracing::Level::WARN,
        "error" | "dpanic" | "panic" | "fatal" => tracing::Level::ERROR,
        _ => tracing::Level::INFO,
    };
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .init();
}
