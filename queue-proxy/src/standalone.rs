//! The queue-proxy in front of any HTTP server, without a pod around it.
//!
//! It listens on the address that requests come to and on the one of metrics, and on no other: there is no autoscaler that would ask for
//! its stat, and no kubelet that would wait for its drain. A signal ends it once the requests that are here are served.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use proxy::process::{self, complain};
use proxy::process_log::Identity;

use crate::config::Config;
use crate::{NAME, run};

/// What it does with requests.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where requests come to; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The server that they go to.
    pub target: SocketAddr,
    /// Where Prometheus may scrape; port 0 takes a free one.
    pub metrics: SocketAddr,
    /// How long a request may take, waiting included; whole seconds, less are one.
    pub timeout: Duration,
    /// Requests at the server at once.
    pub concurrency: u32,
    /// Requests that may wait; none: ten for each that may be at the server.
    pub queue_depth: Option<u32>,
    /// The latency objective; none: first in, first out, as with Knative's settings.
    pub slo: Option<Duration>,
    /// Whether requests that cannot be in time any more are refused at once; else they are served after all others.
    pub sheds_late: bool,
}

/// Where it listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// For requests.
    pub requests: SocketAddr,
    /// For metrics, if anything serves them.
    pub metrics: Option<SocketAddr>,
}

/// Serves until a signal has come and the requests that are here are served; `listening` is called once it listens. Exit code 1: a port is
/// taken, or a second signal has come.
#[must_use]
pub fn serve(settings: &Settings, listening: impl FnOnce(Addresses)) -> ExitCode {
    let config = match Config::from_environment(&environment(settings)) {
        Ok(config) => Config {
            bind: settings.listen.ip(),
            target: settings.target,
            standalone_metrics: Some(settings.metrics),
            ..config
        },
        Err(problems) => return complain(NAME, 1, problems.iter().map(ToString::to_string)),
    };
    if !config.options.problems.is_empty() {
        return complain(NAME, 1, config.options.problems.iter().cloned());
    }
    config.log.clone().start(Identity {
        key: config.revision.clone(),
        pod: config.pod.clone(),
        logger: "queueproxy",
        silent: &[],
    });
    match process::runtime() {
        Ok(runtime) => {
            let code = runtime.block_on(run(config, listening));
            runtime.shutdown_background();
            code.unwrap_or_else(|error| complain(NAME, 1, [error.to_string()]))
        }
        Err(error) => complain(NAME, 1, [format!("cannot start the runtime: {error}")]),
    }
}

/// What Knative would set, so that there is one way in which settings are read.
fn environment(settings: &Settings) -> BTreeMap<&'static str, String> {
    let mut all: BTreeMap<&'static str, String> = [
        ("SERVING_NAMESPACE", "default"),
        ("SERVING_CONFIGURATION", "standalone"),
        ("SERVING_REVISION", "standalone"),
        ("SERVING_POD", "standalone"),
        ("SERVING_POD_IP", ""),
        ("SERVING_LOGGING_CONFIG", ""),
        ("SERVING_LOGGING_LEVEL", "warn"),
        (
            "OBSERVABILITY_CONFIG",
            r#"{"requestMetrics":{"protocol":"prometheus"}}"#,
        ),
        ("QUEUE_SERVING_TLS_PORT", "0"),
        ("WEIR_CERTIFICATES", "/nonexistent"),
        ("WEIR_PODINFO", "/nonexistent"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into();
    let depth = settings.queue_depth;
    let late = if settings.sheds_late { "shed" } else { "serve" };
    // What the target replaces: a port has to be there.
    all.insert("USER_PORT", settings.target.port().to_string());
    all.insert("QUEUE_SERVING_PORT", settings.listen.port().to_string());
    all.insert("CONTAINER_CONCURRENCY", settings.concurrency.to_string());
    all.insert(
        "REVISION_TIMEOUT_SECONDS",
        settings.timeout.as_secs().max(1).to_string(),
    );
    if let Some(slo) = settings.slo {
        all.insert("WEIR_SLO", format!("{}us", slo.as_micros()));
        all.insert("WEIR_LATE", late.to_owned());
    }
    if let Some(depth) = depth {
        all.insert("WEIR_QUEUE_DEPTH", depth.to_string());
    }
    all
}
