//! Configuration from the environment of knative-serving's queue-proxy, parsed once at start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use annotations::LenientSettings;
use proxy::env::{Environment, Problem, Reader};
use proxy::observability::Observability;
use proxy::process_log::LogConfig;
use proxy::timeouts::TimeLimits;
use proxy::tls;

use crate::options;
use crate::readiness::Probe;

/// Port of the admin server with `/wait-for-drain`. Fixed by Knative.
pub(crate) const ADMIN_PORT: u16 = 8022;
/// Port of the autoscaler's stat. Fixed by Knative.
pub(crate) const STAT_PORT: u16 = 9090;
/// Number of idle connections kept to the user container without a concurrency limit.
pub(crate) const IDLE_CONNECTIONS_UNLIMITED: usize = 1_000;

/// Configuration of the process, fixed for its lifetime.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Namespace of the revision.
    pub namespace: String,
    /// Name of the Knative Service; may be empty.
    pub service: String,
    /// Name of the Configuration; may be empty.
    pub configuration: String,
    /// Name of the revision.
    pub revision: String,
    /// Name of the pod, by which the autoscaler identifies its reports.
    pub pod: String,
    /// Address of the pod, for the request log.
    pub pod_ip: String,
    /// Address of the node, if known: the only peer from which `K-Kubelet-Probe` is trusted.
    pub host_ip: Option<IpAddr>,
    /// Address to listen on: all interfaces unless `WEIR_BIND` is set.
    pub bind: IpAddr,
    /// Port of the plain listener.
    pub serving_port: u16,
    /// Port of the TLS listener, which only runs if there is a certificate.
    pub tls_port: u16,
    /// TLS settings of the environment.
    pub tls: tls::Settings,
    /// Directory of the serving certificate, which may be missing.
    pub certificates: PathBuf,
    /// Address of the user container: in a pod a port of 127.0.0.1.
    pub target: SocketAddr,
    /// Largest number of concurrent requests at the user container; `None` without a limit.
    pub container_concurrency: Option<u32>,
    /// Time limit of a request from its arrival, including the wait. Zero answers every request with 504 at once.
    pub request_timeout: Duration,
    /// Time limit for the response head; `None` without a limit.
    pub response_start_timeout: Option<Duration>,
    /// Time limit between two response bytes; `None` without a limit.
    pub idle_timeout: Option<Duration>,
    /// Whether readiness probes try HTTP/2 first.
    pub http2_auto_detection: bool,
    /// Readiness probes of the user containers, all of which must pass. Without probes the pod is always ready.
    pub readiness: Vec<Probe>,
    /// Format and level of the process's log.
    pub log: LogConfig,
    /// Configuration of traces, metrics, the request log and profiles.
    pub observability: Observability,
    /// Weir's own options, from annotations and the environment.
    pub options: LenientSettings,
    /// Socket of the agent over which leases pass; `None`: the pod has none, and requests need no lease.
    pub queue_socket: Option<PathBuf>,
    /// Address of the metrics server outside of a pod; `None` in a pod. Outside of a pod the other auxiliary servers do
    /// not run, and a drain has no quiet period.
    pub standalone_metrics: Option<SocketAddr>,
}

/// Path of the socket over which leases pass, in a pod with the agent's volume.
const QUEUE_SOCKET_DEFAULT: &str = "/weir/queue.sock";

/// Returns the socket named by the environment, or the default one if it is there.
fn queue_socket(environment: &impl Environment) -> Option<PathBuf> {
    match environment.get("WEIR_QUEUE_SOCKET") {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(path.into()),
        None => {
            let path = Path::new(QUEUE_SOCKET_DEFAULT);
            path.exists().then(|| path.to_owned())
        }
    }
}

impl Config {
    /// Reads the environment, and the podinfo file that `WEIR_PODINFO` or its default names.
    ///
    /// # Errors
    /// Returns every variable that is missing or invalid.
    pub(crate) fn from_environment(environment: &impl Environment) -> Result<Self, Vec<Problem>> {
        let mut read = Reader::new(environment);
        let namespace = read.required("SERVING_NAMESPACE");
        let service = read.optional("SERVING_SERVICE");
        let configuration = read.required("SERVING_CONFIGURATION");
        let revision = read.required("SERVING_REVISION");
        let serving_port = read.required_number("QUEUE_SERVING_PORT");
        let tls_port = read.required_number("QUEUE_SERVING_TLS_PORT");
        let container_concurrency: i64 = read.required_number("CONTAINER_CONCURRENCY");
        let request_timeout: i64 = read.required_number("REVISION_TIMEOUT_SECONDS");
        let response_start: i64 = read.optional_number("REVISION_RESPONSE_START_TIMEOUT_SECONDS");
        let idle: i64 = read.optional_number("REVISION_IDLE_TIMEOUT_SECONDS");
        let pod = read.required("SERVING_POD");
        let pod_ip = read.required("SERVING_POD_IP");
        let log_config = read.required("SERVING_LOGGING_CONFIG");
        let log_level = read.required("SERVING_LOGGING_LEVEL");
        let user_port = read.required_number("USER_PORT");
        let probe = read.optional("SERVING_READINESS_PROBE");
        let readiness = Probe::parse_list(&probe).unwrap_or_else(|why| {
            read.invalid("SERVING_READINESS_PROBE", probe, why);
            Vec::new()
        });
        let http2_auto_detection = read.optional_bool("ENABLE_HTTP2_AUTO_DETECTION");
        // These features are always on; only the values are validated, as in Knative.
        read.optional_bool("ENABLE_HTTP_FULL_DUPLEX");
        read.optional_bool("ENABLE_MULTI_CONTAINER_PROBES");
        let observability = read.optional("OBSERVABILITY_CONFIG");
        let observability = Observability::parse(&observability).unwrap_or_else(|why| {
            read.invalid("OBSERVABILITY_CONFIG", observability, why);
            Observability::default()
        });
        let tls = tls::Settings {
            min_version: read.optional("QUEUE_PROXY_TLS_MIN_VERSION"),
            max_version: read.optional("QUEUE_PROXY_TLS_MAX_VERSION"),
            cipher_suites: read.optional("QUEUE_PROXY_TLS_CIPHER_SUITES"),
            curve_preferences: read.optional("QUEUE_PROXY_TLS_CURVE_PREFERENCES"),
        };
        let certificates = match read.optional("WEIR_CERTIFICATES") {
            unset if unset.is_empty() => tls::CERTIFICATES_DEFAULT.into(),
            folder => folder.into(),
        };
        let host_ip = read.optional("HOST_IP").parse().ok();
        let bind = match read.optional("WEIR_BIND") {
            unset if unset.is_empty() => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            value => value.parse().unwrap_or_else(|_| {
                read.invalid(
                    "WEIR_BIND",
                    value,
                    "allowed: an IP address such as 127.0.0.7",
                );
                IpAddr::V6(Ipv6Addr::UNSPECIFIED)
            }),
        };
        let container_concurrency = u32::try_from(container_concurrency).ok().filter(|&n| n > 0);
        let options = options::read(environment, container_concurrency);

        let problems = read.into_problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self {
            namespace,
            service,
            configuration,
            revision,
            pod,
            pod_ip,
            host_ip,
            bind,
            serving_port,
            tls_port,
            tls,
            certificates,
            target: SocketAddr::from((Ipv4Addr::LOCALHOST, user_port)),
            queue_socket: queue_socket(environment),
            standalone_metrics: None,
            container_concurrency,
            request_timeout: seconds(request_timeout),
            response_start_timeout: Some(seconds(response_start)).filter(|d| !d.is_zero()),
            idle_timeout: Some(seconds(idle)).filter(|d| !d.is_zero()),
            http2_auto_detection,
            readiness,
            log: LogConfig::parse(&log_config, &log_level),
            observability,
            options,
        })
    }

    /// Returns the socket over which leases pass, if this revision can use it: its requests have a place each.
    #[must_use]
    pub(crate) fn lease_socket(&self) -> Option<&Path> {
        let socket = self.queue_socket.as_deref()?;
        let can_wait = self.options.opted_in() && self.concurrency().is_some();
        can_wait.then_some(socket)
    }

    /// Returns the name by which metrics label this revision: `weir.dev/function`, else the Knative Service's name, else
    /// the Configuration's, else the revision's. The first three outlive a roll-out, so that it does not begin new series.
    #[must_use]
    pub(crate) fn function(&self) -> &str {
        let names = [&*self.service, &self.configuration];
        self.options.label(names, &self.revision)
    }

    /// Returns the largest number of concurrent requests at the user container: Knative's `containerConcurrency`, else
    /// Weir's `concurrency`, else `None`.
    #[must_use]
    pub(crate) fn concurrency(&self) -> Option<u32> {
        self.options.concurrency(self.container_concurrency)
    }

    /// Returns the number of requests that may wait.
    #[must_use]
    pub(crate) fn queue_depth(&self) -> usize {
        let concurrency = self.concurrency().map_or(0, |n| n as usize);
        self.options.queue_depth(concurrency)
    }

    /// Returns the time limits of a request.
    #[must_use]
    pub(crate) const fn time_limits(&self) -> TimeLimits {
        TimeLimits {
            request: self.request_timeout,
            response_start: self.response_start_timeout,
            idle: self.idle_timeout,
            text: "request timeout",
        }
    }

    /// Returns the number of idle connections to keep to the user container.
    #[must_use]
    pub(crate) fn idle_connections(&self) -> usize {
        self.concurrency()
            .map_or(IDLE_CONNECTIONS_UNLIMITED, |n| n as usize)
    }
}

/// Longest timeout, in seconds: ten years, which can be added to any clock reading without overflow.
const SECONDS_MAX: u64 = 10 * 365 * 86_400;

fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0).min(SECONDS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn complete() -> BTreeMap<&'static str, String> {
        [
            ("SERVING_NAMESPACE", "ns"),
            ("SERVING_CONFIGURATION", ""),
            ("SERVING_REVISION", "rev"),
            ("QUEUE_SERVING_PORT", "8012"),
            ("QUEUE_SERVING_TLS_PORT", "8112"),
            ("CONTAINER_CONCURRENCY", "3"),
            ("REVISION_TIMEOUT_SECONDS", "300"),
            ("SERVING_POD", "pod"),
            ("SERVING_POD_IP", "10.0.0.1"),
            ("SERVING_LOGGING_CONFIG", ""),
            ("SERVING_LOGGING_LEVEL", ""),
            ("USER_PORT", "8080"),
            ("WEIR_PODINFO", "/nonexistent"),
        ]
        .into_iter()
        .map(|(name, value)| (name, value.to_owned()))
        .collect()
    }

    fn problems(change: &[(&'static str, &str)]) -> Vec<String> {
        let mut environment = complete();
        for (name, value) in change {
            environment.insert(name, (*value).to_owned());
        }
        match Config::from_environment(&environment) {
            Ok(_) => Vec::new(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn a_complete_environment_is_accepted() {
        let config = Config::from_environment(&complete()).unwrap();
        assert_eq!(config.concurrency(), Some(3));
        assert_eq!(config.queue_depth(), 30);
        assert_eq!(config.request_timeout, Duration::from_secs(300));
        assert_eq!(config.idle_timeout, None);
        assert!(!config.options.opted_in());
    }

    #[test]
    fn metrics_label_a_revision_by_a_name_that_outlives_it() {
        for (change, function) in [
            (&[][..], "rev"),
            (&[("SERVING_CONFIGURATION", "conf")], "conf"),
            (
                &[
                    ("SERVING_CONFIGURATION", "conf"),
                    ("SERVING_SERVICE", "svc"),
                ],
                "svc",
            ),
            (
                &[("SERVING_SERVICE", "svc"), ("WEIR_FUNCTION", "stated")],
                "stated",
            ),
        ] {
            let mut environment = complete();
            for (name, value) in change {
                environment.insert(name, (*value).to_owned());
            }
            let config = Config::from_environment(&environment).unwrap();
            assert_eq!(config.function(), function, "{change:?}");
        }
    }

    #[test]
    fn all_missing_variables_are_reported_at_once() {
        let mut environment = complete();
        environment.remove("USER_PORT");
        environment.remove("SERVING_POD");
        let problems = Config::from_environment(&environment).unwrap_err();
        assert_eq!(
            problems,
            [
                Problem::Missing("SERVING_POD"),
                Problem::Missing("USER_PORT")
            ]
        );
        assert_eq!(
            problems[0].to_string(),
            "required key SERVING_POD missing value"
        );
    }

    #[test]
    fn a_concurrency_below_one_is_no_limit() {
        for value in ["0", "-1"] {
            let mut environment = complete();
            environment.insert("CONTAINER_CONCURRENCY", value.to_owned());
            assert_eq!(
                Config::from_environment(&environment)
                    .unwrap()
                    .concurrency(),
                None
            );
        }
    }

    #[test]
    fn invalid_values_are_reported_with_the_allowed_ones() {
        assert_eq!(
            problems(&[("ENABLE_HTTP_FULL_DUPLEX", "Yes")]),
            [
                "ENABLE_HTTP_FULL_DUPLEX=\"Yes\": allowed: 1 t T TRUE true True 0 f F FALSE false False"
            ]
        );
        assert_eq!(
            problems(&[
                ("REVISION_TIMEOUT_SECONDS", "1s"),
                ("CONTAINER_CONCURRENCY", "x")
            ])
            .len(),
            2
        );
        assert_eq!(problems(&[("SERVING_READINESS_PROBE", "{")]).len(), 1);
        assert_eq!(problems(&[("OBSERVABILITY_CONFIG", "[")]).len(), 1);
        assert_eq!(problems(&[("WEIR_BIND", "lo")]).len(), 1);
    }

    #[test]
    fn unknown_variables_and_keys_are_ignored() {
        assert!(
            problems(&[
                ("SOMETHING", "else"),
                ("OBSERVABILITY_CONFIG", r#"{"new":1}"#)
            ])
            .is_empty()
        );
    }
}
