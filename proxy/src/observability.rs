//! Parser for `OBSERVABILITY_CONFIG`, the part of Knative's `config-observability` for the queue-proxy.
//!
//! Absent and `null` parts have Knative's defaults, keys are matched in any case as in Go (see `go_json`), unknown keys
//! are ignored, durations are whole nanoseconds. The part for the control plane (`metrics`) is ignored.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::de::{IgnoredAny, MapAccess};

use crate::go_json::{self, Fields, MergeInto, set};

/// Default port of user metrics, which an endpoint may override.
pub const USER_METRICS_PORT: u16 = 9091;

/// Knative's default template of the request log.
pub const REQUEST_LOG_TEMPLATE: &str = concat!(
    r#"{"httpRequest": {"requestMethod": "{{.Request.Method}}", "#,
    r#""requestUrl": "{{js .Request.RequestURI}}", "requestSize": "{{.Request.ContentLength}}", "#,
    r#""status": {{.Response.Code}}, "responseSize": "{{.Response.Size}}", "#,
    r#""userAgent": "{{js .Request.UserAgent}}", "remoteIp": "{{js .Request.RemoteAddr}}", "#,
    r#""serverIp": "{{.Revision.PodIP}}", "referer": "{{js .Request.Referer}}", "#,
    r#""latency": "{{.Response.Latency}}s", "protocol": "{{.Request.Proto}}"}, "#,
    r#""traceId": "{{.TraceID}}"}"#
);

/// Parsed configuration of traces, metrics, logs and profiles.
#[derive(Debug, Clone, PartialEq)]
pub struct Observability {
    /// Export of spans of requests.
    pub tracing: Tracing,
    /// Export of metrics of requests.
    pub request_metrics: Metrics,
    /// Whether CPU profiles are served.
    pub profiling: bool,
    /// Template of the request log; `None` if it is disabled.
    pub request_log: Option<String>,
    /// Whether the request log includes probes.
    pub log_probes: bool,
}

impl Default for Observability {
    fn default() -> Self {
        Self {
            tracing: Tracing::None,
            request_metrics: Metrics::None,
            profiling: false,
            request_log: None,
            log_probes: false,
        }
    }
}

/// Transport protocol of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// OTLP over gRPC, the protocol `grpc`.
    Grpc,
    /// OTLP over HTTP with protobuf bodies, the protocol `http/protobuf`.
    Http,
}

/// Destination of the spans of requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Tracing {
    /// No spans are created, and no trace header is added.
    None,
    /// Spans are written to standard output as one JSON object per line; all traces are sampled.
    Stdout,
    /// Spans are pushed to a collector by OTLP.
    Otlp {
        /// Transport protocol to the collector.
        transport: Transport,
        /// URL of the collector; empty if OpenTelemetry's environment variables name it.
        endpoint: String,
        /// Share of the traces begun here that are sampled, 0 to 1.
        sampling_rate: f64,
    },
}

/// Destination of the metrics of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metrics {
    /// Metrics are not recorded.
    None,
    /// Metrics are served to Prometheus.
    Prometheus {
        /// Address to listen on; `None` for the process's own.
        host: Option<IpAddr>,
        /// Port to listen on, at least 1024.
        port: u16,
    },
    /// Metrics are pushed to a collector by OTLP.
    Otlp {
        /// Transport protocol to the collector.
        transport: Transport,
        /// URL of the collector; empty if OpenTelemetry's environment variables name it.
        endpoint: String,
        /// Interval between exports; `None` for OpenTelemetry's default of a minute.
        interval: Option<Duration>,
    },
}

#[derive(Default)]
struct Raw {
    tracing: RawExport,
    request_metrics: RawExport,
    runtime: RawRuntime,
    enable_request_log: Option<bool>,
    request_log_template: Option<String>,
    enable_probe_request_log: Option<bool>,
}

#[derive(Default)]
struct RawExport {
    protocol: Option<String>,
    endpoint: Option<String>,
    export_interval: Option<i64>,
    sampling_rate: Option<f64>,
}

#[derive(Default)]
struct RawRuntime {
    profiling: Option<String>,
}

impl Fields for Raw {
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "tracing" => map.next_value_seed(MergeInto(&mut self.tracing)),
            "requestmetrics" => map.next_value_seed(MergeInto(&mut self.request_metrics)),
            "runtime" => map.next_value_seed(MergeInto(&mut self.runtime)),
            "enablerequestlog" => set(&mut self.enable_request_log, map),
            "requestlogtemplate" => set(&mut self.request_log_template, map),
            "enableproberequestlog" => set(&mut self.enable_probe_request_log, map),
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }
}

impl Fields for RawExport {
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "protocol" => set(&mut self.protocol, map),
            "endpoint" => set(&mut self.endpoint, map),
            "exportinterval" => set(&mut self.export_interval, map),
            "samplingrate" => set(&mut self.sampling_rate, map),
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }
}

impl Fields for RawRuntime {
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "profiling" => set(&mut self.profiling, map),
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }
}

impl Observability {
    /// Parses the variable's value; an empty one yields the default.
    ///
    /// # Errors
    /// Returns a message with the position in the JSON, or with the key and its allowed values.
    pub fn parse(json: &str) -> Result<Self, String> {
        if json.trim().is_empty() {
            return Ok(Self::default());
        }
        let raw: Raw = go_json::parse(json).map_err(|error| error.to_string())?;
        let profiling = match raw.runtime.profiling.as_deref() {
            None | Some("" | "disabled") => false,
            Some("enabled") => true,
            Some(other) => {
                return Err(format!(
                    "runtime.profiling: {other:?}: allowed: enabled, disabled"
                ));
            }
        };
        let template = raw
            .request_log_template
            .unwrap_or_else(|| REQUEST_LOG_TEMPLATE.to_owned());
        let logs = raw.enable_request_log.unwrap_or_default() && !template.is_empty();
        Ok(Self {
            tracing: tracing(raw.tracing)?,
            request_metrics: metrics(raw.request_metrics)?,
            profiling,
            request_log: logs.then_some(template),
            log_probes: raw.enable_probe_request_log.unwrap_or_default(),
        })
    }
}

fn tracing(raw: RawExport) -> Result<Tracing, String> {
    let key = "tracing";
    let sampling_rate = raw.sampling_rate.unwrap_or_default();
    if !(0.0..=1.0).contains(&sampling_rate) {
        return Err(format!(
            "{key}.samplingRate: {sampling_rate}: allowed: a number from 0 to 1"
        ));
    }
    let endpoint = raw.endpoint.unwrap_or_default();
    Ok(match raw.protocol.as_deref().unwrap_or_default() {
        "" | "none" => Tracing::None,
        "stdout" => Tracing::Stdout,
        protocol => match transport(protocol) {
            Some(transport) => Tracing::Otlp {
                transport,
                endpoint: endpoint_url(key, &endpoint)?,
                sampling_rate,
            },
            None => {
                return Err(format!(
                    "{key}.protocol: {protocol:?}: allowed: none, grpc, http/protobuf, stdout"
                ));
            }
        },
    })
}

fn metrics(raw: RawExport) -> Result<Metrics, String> {
    let key = "requestMetrics";
    let endpoint = raw.endpoint.unwrap_or_default();
    Ok(match raw.protocol.as_deref().unwrap_or_default() {
        "" | "none" => Metrics::None,
        "prometheus" => {
            let (host, port) = listen_address(&endpoint).ok_or_else(|| {
                format!(
                    "{key}.endpoint: {endpoint:?}: allowed with prometheus: empty, or \"host:port\" \
                     with an address or localhost and a port from 1024 to 65535"
                )
            })?;
            Metrics::Prometheus { host, port }
        }
        protocol => match transport(protocol) {
            Some(transport) => {
                let interval = u64::try_from(raw.export_interval.unwrap_or_default())
                    .map_err(|_| format!("{key}.exportInterval: allowed: nanoseconds from 0"))?;
                Metrics::Otlp {
                    transport,
                    endpoint: endpoint_url(key, &endpoint)?,
                    interval: Some(Duration::from_nanos(interval)).filter(|d| !d.is_zero()),
                }
            }
            None => {
                return Err(format!(
                    "{key}.protocol: {protocol:?}: allowed: none, prometheus, grpc, http/protobuf"
                ));
            }
        },
    })
}

fn transport(protocol: &str) -> Option<Transport> {
    match protocol {
        "grpc" => Some(Transport::Grpc),
        "http/protobuf" => Some(Transport::Http),
        _ => None,
    }
}

/// Returns the collector's URL; without a scheme, as in `collector:4317`, it is `https`, as under Knative. An empty
/// endpoint stays empty, and OpenTelemetry's environment variables apply.
fn endpoint_url(key: &str, endpoint: &str) -> Result<String, String> {
    if endpoint.is_empty() {
        return Ok(String::new());
    }
    let mut url = String::new();
    if !endpoint.contains("://") {
        url.push_str("https://");
    }
    // Writing to memory does not fail.
    let _written = url.write_str(endpoint);
    match url.parse::<http::Uri>() {
        Ok(parsed)
            if matches!(parsed.scheme_str(), Some("http" | "https"))
                && parsed.authority().is_some() =>
        {
            Ok(url)
        }
        _ => Err(format!(
            "{key}.endpoint: {endpoint:?}: allowed: a URL such as http://collector.observability:4318/v1/metrics"
        )),
    }
}

/// Parses `host:port`, `[host]:port` or `:port`. An empty endpoint yields [`USER_METRICS_PORT`].
fn listen_address(endpoint: &str) -> Option<(Option<IpAddr>, u16)> {
    if endpoint.is_empty() {
        return Some((None, USER_METRICS_PORT));
    }
    let (host, port) = endpoint.rsplit_once(':')?;
    let bare = host
        .strip_prefix('[')
        .map_or(Some(host), |rest| rest.strip_suffix(']'))?;
    let is_bracketed = bare.len() != host.len();
    let port = port.parse().ok().filter(|&port: &u16| port >= 1024)?;
    if !is_bracketed && bare.contains(':') {
        return None;
    }
    // A name would have to be resolved, and may have several addresses.
    let ip = match bare {
        "" => None,
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        address => Some(address.parse().ok()?),
    };
    Some((ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(json: &str) -> String {
        Observability::parse(json).unwrap_err()
    }

    #[test]
    fn an_empty_configuration_disables_everything() {
        for json in [
            "",
            " ",
            "{}",
            "null",
            r#"{"tracing":null,"requestMetrics":{"protocol":null}}"#,
        ] {
            assert_eq!(
                Observability::parse(json),
                Ok(Observability::default()),
                "{json}"
            );
        }
    }

    #[test]
    fn reads_every_key() {
        let json = r#"{"tracing":{"protocol":"grpc","endpoint":"collector:4317","samplingRate":0.5},
            "metrics":{"protocol":"anything"},"runtime":{"profiling":"enabled","exportInterval":1},
            "requestMetrics":{"protocol":"http/protobuf","endpoint":"http://c:4318/v1/metrics","exportInterval":5000000000},
            "enableRequestLog":true,"requestLogTemplate":"{{.TraceID}}","enableProbeRequestLog":true,"new":1}"#;
        assert_eq!(
            Observability::parse(json),
            Ok(Observability {
                tracing: Tracing::Otlp {
                    transport: Transport::Grpc,
                    endpoint: "https://collector:4317".to_owned(),
                    sampling_rate: 0.5,
                },
                request_metrics: Metrics::Otlp {
                    transport: Transport::Http,
                    endpoint: "http://c:4318/v1/metrics".to_owned(),
                    interval: Some(Duration::from_secs(5)),
                },
                profiling: true,
                request_log: Some("{{.TraceID}}".to_owned()),
                log_probes: true,
            })
        );
    }

    #[test]
    fn keys_are_read_in_any_case() {
        let json = r#"{"EnableRequestLog":true,"REQUESTLOGTEMPLATE":"x","enableproberequestlog":true,
            "Tracing":{"Protocol":"stdout"},"Runtime":{"PROFILING":"enabled"},
            "requestmetrics":{"Protocol":"grpc","EndPoint":"c:1","ExportInterval":1000,"SamplingRate":1}}"#;
        assert_eq!(
            Observability::parse(json),
            Ok(Observability {
                tracing: Tracing::Stdout,
                request_metrics: Metrics::Otlp {
                    transport: Transport::Grpc,
                    endpoint: "https://c:1".to_owned(),
                    interval: Some(Duration::from_nanos(1000)),
                },
                profiling: true,
                request_log: Some("x".to_owned()),
                log_probes: true,
            })
        );
    }

    #[test]
    fn the_log_has_knatives_template_unless_another_or_none_is_given() {
        let log = |json| Observability::parse(json).unwrap().request_log;
        assert_eq!(
            log(r#"{"enableRequestLog":true}"#).as_deref(),
            Some(REQUEST_LOG_TEMPLATE)
        );
        assert_eq!(
            log(r#"{"enableRequestLog":true,"requestLogTemplate":""}"#),
            None
        );
        assert_eq!(log(r#"{"requestLogTemplate":"x"}"#), None);
    }

    #[test]
    fn prometheus_may_listen_elsewhere() {
        let address = |endpoint| {
            let json = format!(
                r#"{{"requestMetrics":{{"protocol":"prometheus","endpoint":"{endpoint}"}}}}"#
            );
            match Observability::parse(&json) {
                Ok(Observability {
                    request_metrics: Metrics::Prometheus { host, port },
                    ..
                }) => Ok((host, port)),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error),
            }
        };
        let ip = |text: &str| Some(text.parse::<IpAddr>().unwrap());
        assert_eq!(address(""), Ok((None, 9091)));
        assert_eq!(address(":9999"), Ok((None, 9999)));
        assert_eq!(address("[::1]:9999"), Ok((ip("::1"), 9999)));
        assert_eq!(address("127.0.0.1:9999"), Ok((ip("127.0.0.1"), 9999)));
        assert_eq!(address("localhost:9999"), Ok((ip("127.0.0.1"), 9999)));
        for bad in ["9999", ":80", "::1:9999", ":x", "name:9999"] {
            assert!(address(bad).unwrap_err().contains("host:port"), "{bad}");
        }
    }

    #[test]
    fn errors_name_the_key_and_the_allowed_values() {
        assert!(refused("{oops").contains("line 1 column 2"));
        assert!(
            refused(r#"{"tracing":{"protocol":"zipkin"}}"#)
                .starts_with("tracing.protocol: \"zipkin\": allowed")
        );
        assert!(
            refused(r#"{"requestMetrics":{"protocol":"stdout"}}"#)
                .starts_with("requestMetrics.protocol")
        );
        assert!(refused(r#"{"tracing":{"samplingRate":1.5}}"#).starts_with("tracing.samplingRate"));
        assert!(refused(r#"{"runtime":{"profiling":"yes"}}"#).starts_with("runtime.profiling"));
        assert!(
            refused(r#"{"requestMetrics":{"protocol":"grpc","endpoint":"ftp://x"}}"#)
                .starts_with("requestMetrics.endpoint")
        );
        assert!(
            refused(r#"{"requestMetrics":{"protocol":"grpc","endpoint":"http://x","exportInterval":-1}}"#)
                .starts_with("requestMetrics.exportInterval")
        );
    }
}
