//! OpenTelemetry's HTTP instruments, with the names, units, buckets and labels of Knative's programs.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::metrics::{Histogram, MeterProvider};
use opentelemetry::{InstrumentationScope, KeyValue};

/// Bucket bounds of durations in seconds, as in OpenTelemetry's HTTP conventions and in Knative.
pub const DURATION_BOUNDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
];
/// Largest number of distinct label values that clients choose, hosts with their ports and tags each; further ones count
/// as [`OTHER`]. Combinations beyond OpenTelemetry's own limit of 2,000 go to its overflow series.
const VALUES_MAX: usize = 32;
const OTHER: &str = "_OTHER";
/// Largest size of a label value, in bytes: that of a DNS name.
const VALUE_BYTES_MAX: usize = 253;
/// Prefix of the tags that Knative itself assigns.
const OWN_TAGS: &str = "kn:";
/// Instrumentation scope of Knative's programs, by which dashboards select.
const HTTP_SCOPE: &str = "go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp";

/// Instruments of one process, as a server of requests and as a client of upstreams.
#[derive(Debug)]
pub struct HttpInstruments {
    server_duration: Histogram<f64>,
    server_request_size: Histogram<u64>,
    server_response_size: Histogram<u64>,
    client_duration: Histogram<f64>,
    client_request_size: Histogram<u64>,
    /// Time at the upstream, under the program's own name for it.
    invocation_duration: Option<Histogram<f64>>,
    hosts: BoundedValues,
    tags: BoundedValues,
}

/// Measurements of one ended request.
#[derive(Debug, Clone)]
pub struct Measurement<'a> {
    /// Method of the request, of which only standard ones become label values.
    pub method: &'a http::Method,
    /// HTTP version of the request.
    pub version: http::Version,
    /// Host of the request, with its port if stated.
    pub host: &'a str,
    /// Whether the request came over TLS.
    pub secure: bool,
    /// Value of the label `kn.route.tag`.
    pub tag: &'a str,
    /// Status of the response.
    pub status: u16,
    /// Time from arrival to the end of the response, in seconds.
    pub seconds: f64,
    /// Size of the request's body, in bytes.
    pub request_bytes: u64,
    /// Size of the response's body, in bytes.
    pub response_bytes: u64,
    /// Measurements at the upstream; `None` if the request was not dispatched.
    pub upstream: Option<UpstreamMeasurement>,
}

/// Measurements of one ended request at its upstream.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamMeasurement {
    /// Address of the upstream.
    pub address: SocketAddr,
    /// Time from dispatch to the head of the answer, in seconds.
    pub head_seconds: f64,
    /// Status of the answer; `None` without an answer.
    pub status: Option<u16>,
    /// Time from dispatch to the end of the answer, in seconds.
    pub seconds: f64,
}

/// A bounded set of label values that clients choose.
#[derive(Debug, Default)]
struct BoundedValues(Mutex<HashSet<Arc<str>>>);

impl BoundedValues {
    fn intern(&self, value: &str) -> Arc<str> {
        if value.len() > VALUE_BYTES_MAX {
            return OTHER.into();
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.get(value) {
            return Arc::clone(value);
        }
        if known.len() >= VALUES_MAX {
            return OTHER.into();
        }
        let value: Arc<str> = value.into();
        known.insert(Arc::clone(&value));
        value
    }
}

impl HttpInstruments {
    /// Creates the instruments. The time at the upstream is also recorded in `invocation_duration`, if given.
    pub fn new(provider: &impl MeterProvider, invocation_duration: Option<Histogram<f64>>) -> Self {
        let meter = provider.meter_with_scope(
            InstrumentationScope::builder(HTTP_SCOPE)
                .with_version(env!("CARGO_PKG_VERSION"))
                .build(),
        );
        let duration = |name, text| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(text)
                .with_boundaries(DURATION_BOUNDS.to_vec())
                .build()
        };
        let size = |name, text| {
            meter
                .u64_histogram(name)
                .with_unit("By")
                .with_description(text)
                .build()
        };
        Self {
            server_duration: duration(
                "http.server.request.duration",
                "Duration of HTTP server requests.",
            ),
            server_request_size: size(
                "http.server.request.body.size",
                "Size of HTTP server request bodies.",
            ),
            server_response_size: size(
                "http.server.response.body.size",
                "Size of HTTP server response bodies.",
            ),
            client_duration: duration(
                "http.client.request.duration",
                "Duration of HTTP client requests.",
            ),
            client_request_size: size(
                "http.client.request.body.size",
                "Size of HTTP client request bodies.",
            ),
            invocation_duration,
            hosts: BoundedValues::default(),
            tags: BoundedValues::default(),
        }
    }

    /// Records an ended request.
    pub fn record(&self, measured: &Measurement<'_>) {
        let host = self.hosts.intern(measured.host);
        let (host, port) = split_host(&host);
        let tag = match measured.tag {
            "kn:disabled" | "kn:default" | "kn:undefined" => measured.tag.into(),
            // A client must not be able to use another tag of Knative's.
            tag if tag.starts_with(OWN_TAGS) => OTHER.into(),
            tag => self.tags.intern(tag),
        };
        let mut server = vec![
            KeyValue::new("http.request.method", method_name(measured.method)),
            KeyValue::new("http.response.status_code", i64::from(measured.status)),
            KeyValue::new("kn.route.tag", tag),
            KeyValue::new("network.protocol.name", "http"),
            KeyValue::new("network.protocol.version", version_name(measured.version)),
            KeyValue::new("url.scheme", if measured.secure { "https" } else { "http" }),
        ];
        let mut client = measured.upstream.is_some().then(|| server.clone());
        server.push(KeyValue::new("server.address", host.to_owned()));
        let default_port = if measured.secure { 443 } else { 80 };
        if let Some(port) = port.filter(|&port| port != default_port) {
            server.push(KeyValue::new("server.port", i64::from(port)));
        }
        self.server_duration.record(measured.seconds, &server);
        self.server_request_size
            .record(measured.request_bytes, &server);
        self.server_response_size
            .record(measured.response_bytes, &server);
        if let (Some(client), Some(app)) = (&mut client, measured.upstream) {
            client[1] = match app.status {
                Some(status) => KeyValue::new("http.response.status_code", i64::from(status)),
                None => KeyValue::new("error.type", OTHER),
            };
            client[5] = KeyValue::new("url.scheme", "http");
            client.push(KeyValue::new(
                "server.address",
                app.address.ip().to_string(),
            ));
            client.push(KeyValue::new("server.port", i64::from(app.address.port())));
            self.client_duration.record(app.head_seconds, client);
            self.client_request_size
                .record(measured.request_bytes, client);
            let status = KeyValue::new("http.response.status_code", i64::from(measured.status));
            if let Some(duration) = &self.invocation_duration {
                duration.record(app.seconds, &[status]);
            }
        }
    }
}

/// Returns the label value of a method: its name if the conventions list it, else [`OTHER`], since clients may choose any.
fn method_name(method: &http::Method) -> &'static str {
    match method.as_str() {
        "CONNECT" => "CONNECT",
        "DELETE" => "DELETE",
        "GET" => "GET",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        "POST" => "POST",
        "PUT" => "PUT",
        "TRACE" => "TRACE",
        _ => OTHER,
    }
}

fn version_name(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "1.0",
        http::Version::HTTP_2 => "2.0",
        _ => "1.1",
    }
}

/// Splits a `Host` value into the name, without brackets, and the port.
fn split_host(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name.trim_matches(['[', ']']), port.parse().ok())
        }
        _ => (host.trim_matches(['[', ']']), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_split_into_name_and_port() {
        assert_eq!(split_host("a.example:8012"), ("a.example", Some(8012)));
        assert_eq!(split_host("a.example"), ("a.example", None));
        assert_eq!(split_host("[::1]:80"), ("::1", Some(80)));
        assert_eq!(split_host("[::1]"), ("::1", None));
        assert_eq!(split_host("a:b:c"), ("a:b:c", None));
    }

    #[test]
    fn label_values_chosen_by_clients_are_bounded() {
        let bounded = BoundedValues::default();
        for n in 0..VALUES_MAX {
            assert_eq!(*bounded.intern(&n.to_string()), *n.to_string());
        }
        assert_eq!(&*bounded.intern("another"), OTHER);
        assert_eq!(&*bounded.intern("3"), "3");
    }
}
