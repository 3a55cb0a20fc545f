//! The queue-proxy in front of any HTTP server, outside of a pod.
//!
//! It listens only on the address for requests and on the one for metrics, since there is no autoscaler that reads its
//! stat and no kubelet that waits for its drain. After a signal it exits as soon as the current requests are served.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use proxy::process::{self, complain};
use proxy::process_log::Identity;

use crate::config::Config;
use crate::{NAME, run};

/// Settings of a standalone queue-proxy.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address to listen on for requests; port 0 selects a free one.
    pub listen: SocketAddr,
    /// Address of the server to which requests are forwarded.
    pub target: SocketAddr,
    /// Address to listen on for Prometheus; port 0 selects a free one.
    pub metrics: SocketAddr,
    /// Time limit of a request including its wait, rounded down to whole seconds, at least one.
    pub timeout: Duration,
    /// Largest number of concurrent requests at the server; 0 without a limit.
    pub concurrency: u32,
    /// Number of requests that may wait; `None` for ten times the concurrency.
    pub queue_depth: Option<u32>,
    /// Latency objective; `None` for first in, first out, as with Knative's settings.
    pub slo: Option<Duration>,
    /// Whether late requests are shed; otherwise they are served after all timely ones.
    pub sheds_late: bool,
}

/// Addresses on which a queue-proxy listens.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// Address of the serving port.
    pub requests: SocketAddr,
    /// Address of the first metrics port; `None` if metrics are not served.
    pub metrics: Option<SocketAddr>,
}

/// Serves requests until a signal arrives and the current requests are served. `listening` is called once the ports are
/// open. Returns exit code 0, or 1 for invalid settings, a port in use, or a second signal.
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

/// Returns the environment that Knative would set, so that the settings are parsed by the same code as in a pod.
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
    // The variable is required; the target replaces its value.
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
