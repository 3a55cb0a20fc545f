//! OpenTelemetry's pipelines, set up from `OBSERVABILITY_CONFIG` and flushed at shutdown.
//!
//! The standard variables (`OTEL_EXPORTER_OTLP_*`, `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_TRACES_SAMPLER`, …) override the
//! configured values. Collectors with `https` URLs are verified with the system's root certificates, which
//! `SSL_CERT_FILE` may replace.

use std::error::Error;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::KeyValue;
use opentelemetry_otlp::tonic_types::transport::ClientTlsConfig;
use opentelemetry_otlp::{
    MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider, SpanData, SpanExporter as Export};
use serde_json::json;

use crate::env::Environment;
use crate::lines;
use crate::observability::{Metrics, Observability, Tracing, Transport};
use crate::process_log::COMMIT;

/// Longest time for delivering the last metrics, and for the last spans; together Knative's ten seconds.
const FLUSH_MAX: Duration = Duration::from_secs(5);

/// Resource attributes of the process's metrics and spans.
#[derive(Debug, Clone, Default)]
pub struct Owner {
    /// Name of the container, the attribute `container.name`.
    pub container: &'static str,
    /// Namespace of the pod, the attribute `k8s.namespace.name`.
    pub namespace: String,
    /// The attribute `service.name`, unless `OTEL_SERVICE_NAME` is set; the pod's name if empty.
    pub service: String,
    /// Further attributes by key; those with empty values are omitted.
    pub attributes: Vec<(&'static str, String)>,
}

/// OpenTelemetry pipelines of the process.
#[derive(Debug, Default)]
pub struct Telemetry {
    /// Provider of Knative's instruments; `None` if request metrics are disabled.
    pub meters: Option<SdkMeterProvider>,
    /// Provider of tracers; `None` if tracing is disabled.
    pub tracers: Option<SdkTracerProvider>,
    /// Registry of Knative's instruments for scraping; `None` if they are not served to Prometheus.
    pub registry: Option<prometheus::Registry>,
}

impl Telemetry {
    /// Sets up the configured pipelines. Blocks, so it must run on a thread of the runtime that may block.
    ///
    /// # Errors
    /// Returns an error if an exporter cannot be created, or if `OTEL_TRACES_SAMPLER_ARG` is not a number.
    pub fn start(
        observability: &Observability,
        owner: &Owner,
        environment: &impl Environment,
    ) -> Result<Self, TelemetryError> {
        let resource = resource(owner, environment);
        let mut telemetry = Self::default();
        match &observability.request_metrics {
            Metrics::None => {}
            Metrics::Prometheus { .. } => {
                let registry = prometheus::Registry::new();
                let reader = opentelemetry_prometheus::exporter()
                    .with_registry(registry.clone())
                    .build()
                    .map_err(|error| TelemetryError::new("requestMetrics", &error))?;
                let meters = SdkMeterProvider::builder()
                    .with_resource(resource.clone())
                    .with_reader(reader);
                telemetry.meters = Some(meters.build());
                telemetry.registry = Some(registry);
            }
            Metrics::Otlp {
                transport,
                endpoint,
                interval,
            } => {
                let endpoint = configured(endpoint, environment, "METRICS");
                let exporter = metric_exporter(*transport, endpoint)
                    .map_err(|error| TelemetryError::new("requestMetrics", &error))?;
                let mut reader = PeriodicReader::builder(exporter);
                let is_given = is_set(environment, "OTEL_METRIC_EXPORT_INTERVAL");
                if let Some(interval) = interval.filter(|_| !is_given) {
                    reader = reader.with_interval(interval);
                }
                let meters = SdkMeterProvider::builder()
                    .with_resource(resource.clone())
                    .with_reader(reader.build());
                telemetry.meters = Some(meters.build());
            }
        }
        let tracers = SdkTracerProvider::builder().with_resource(resource);
        let (tracers, rate) = match &observability.tracing {
            Tracing::None => return Ok(telemetry),
            Tracing::Stdout => (tracers.with_batch_exporter(StdoutExporter::default()), 1.0),
            Tracing::Otlp {
                transport,
                endpoint,
                sampling_rate,
            } => {
                let endpoint = configured(endpoint, environment, "TRACES");
                let exporter = span_exporter(*transport, endpoint)
                    .map_err(|error| TelemetryError::new("tracing", &error))?;
                let rate = sampling_rate_override(environment)?.unwrap_or(*sampling_rate);
                (tracers.with_batch_exporter(exporter), rate)
            }
        };
        let tracers = if is_set(environment, "OTEL_TRACES_SAMPLER") {
            tracers
        } else {
            tracers.with_sampler(sampler(rate))
        };
        telemetry.tracers = Some(tracers.build());
        Ok(telemetry)
    }

    /// Delivers the remaining metrics and spans, and shuts the pipelines down. Blocks for at most five seconds for metrics
    /// and five for spans.
    pub fn shut_down(self) {
        let results = [
            self.meters
                .map(|meters| meters.shutdown_with_timeout(FLUSH_MAX)),
            self.tracers
                .map(|tracers| tracers.shutdown_with_timeout(FLUSH_MAX)),
        ];
        for error in results.into_iter().flatten().filter_map(Result::err) {
            tracing::warn!(%error, "the last metrics or spans may not have been delivered");
        }
    }
}

/// Failure to set up a pipeline.
#[derive(Debug, thiserror::Error)]
#[error("observability: {key}: {why}")]
pub struct TelemetryError {
    key: &'static str,
    why: String,
}

impl TelemetryError {
    fn new(key: &'static str, why: &dyn fmt::Display) -> Self {
        Self {
            key,
            why: why.to_string(),
        }
    }
}

/// Returns the rate in `OTEL_TRACES_SAMPLER_ARG`, which overrides the configured one even if no sampler is named.
fn sampling_rate_override(environment: &impl Environment) -> Result<Option<f64>, TelemetryError> {
    let Some(value) = environment
        .get("OTEL_TRACES_SAMPLER_ARG")
        .filter(|value| !value.is_empty())
    else {
        return Ok(None);
    };
    let rate = value.parse().map_err(|_| TelemetryError {
        key: "OTEL_TRACES_SAMPLER_ARG",
        why: format!("{value:?}: allowed: a number from 0 to 1"),
    })?;
    Ok(Some(rate))
}

/// Returns the sampler for a rate, by Knative's rule: at 1 every trace is sampled and at 0 none, regardless of the parent;
/// in between the parent decides, and the rate applies to root spans.
fn sampler(rate: f64) -> Sampler {
    if rate >= 1.0 {
        Sampler::AlwaysOn
    } else if rate <= 0.0 {
        Sampler::AlwaysOff
    } else {
        Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(rate)))
    }
}

/// Returns whether a variable is set; an empty one counts as not set, as in Go.
fn is_set(environment: &impl Environment, name: &str) -> bool {
    environment.get(name).is_some_and(|value| !value.is_empty())
}

/// Returns the configured endpoint, or `None` if it is empty or overridden by a variable.
fn configured(endpoint: &str, environment: &impl Environment, signal: &str) -> Option<String> {
    let names = [
        "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(),
        format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"),
    ];
    let is_named = names.iter().any(|name| is_set(environment, name));
    (!is_named && !endpoint.is_empty()).then(|| endpoint.to_owned())
}

fn metric_exporter(
    transport: Transport,
    endpoint: Option<String>,
) -> Result<MetricExporter, Box<dyn Error + Send + Sync>> {
    Ok(match transport {
        Transport::Grpc => {
            let builder = MetricExporter::builder().with_tonic();
            let builder = builder.with_tls_config(roots());
            match endpoint {
                Some(endpoint) => builder.with_endpoint(endpoint).build()?,
                None => builder.build()?,
            }
        }
        Transport::Http => {
            let builder = MetricExporter::builder().with_http();
            let builder = builder.with_http_client(http_client()?);
            match endpoint {
                Some(endpoint) => builder.with_endpoint(endpoint).build()?,
                None => builder.build()?,
            }
        }
    })
}

fn span_exporter(
    transport: Transport,
    endpoint: Option<String>,
) -> Result<SpanExporter, Box<dyn Error + Send + Sync>> {
    Ok(match transport {
        Transport::Grpc => {
            let builder = SpanExporter::builder().with_tonic();
            let builder = builder.with_tls_config(roots());
            match endpoint {
                Some(endpoint) => builder.with_endpoint(endpoint).build()?,
                None => builder.build()?,
            }
        }
        Transport::Http => {
            let builder = SpanExporter::builder().with_http();
            let builder = builder.with_http_client(http_client()?);
            match endpoint {
                Some(endpoint) => builder.with_endpoint(endpoint).build()?,
                None => builder.build()?,
            }
        }
    })
}

/// Returns a TLS configuration that verifies collectors with the system's root certificates.
fn roots() -> ClientTlsConfig {
    ClientTlsConfig::new().with_enabled_roots()
}

/// Creates an HTTP client that trusts the system's root certificates. If there are none, it trusts no server and only
/// works with `http` URLs.
fn http_client() -> Result<reqwest::blocking::Client, Box<dyn Error + Send + Sync>> {
    // A blocking client must not be created on a thread of the runtime.
    let made = std::thread::spawn(|| {
        let builder = || reqwest::blocking::Client::builder().timeout(FLUSH_MAX);
        builder().build().or_else(|error| {
            tracing::warn!(%error, "no root certificates: OTLP is limited to http endpoints");
            builder().tls_certs_only([]).build()
        })
    });
    let client = made
        .join()
        .map_err(|_| "the thread that creates the HTTP client panicked")?;
    Ok(client?)
}

/// Returns the attributes common to all metrics and spans of the process.
fn resource(owner: &Owner, environment: &impl Environment) -> Resource {
    let some = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let pod = some("POD_NAME")
        .or_else(|| some("HOSTNAME"))
        .unwrap_or_default();
    let service = some("OTEL_SERVICE_NAME").unwrap_or_else(|| {
        [&owner.service, &pod]
            .into_iter()
            .find(|name| !name.is_empty())
            .cloned()
            .unwrap_or_default()
    });
    let mut attributes = vec![
        KeyValue::new("container.name", owner.container),
        KeyValue::new("k8s.namespace.name", owner.namespace.clone()),
        KeyValue::new("k8s.pod.name", pod.clone()),
        KeyValue::new("service.version", COMMIT),
        KeyValue::new("service.name", service),
        KeyValue::new("service.instance.id", pod),
    ];
    for (key, value) in &owner.attributes {
        if !value.is_empty() {
            attributes.push(KeyValue::new(*key, value.clone()));
        }
    }
    Resource::builder().with_attributes(attributes).build()
}

/// Exporter that writes spans to standard output, one JSON object per line.
#[derive(Debug, Default)]
struct StdoutExporter {
    resource: Mutex<serde_json::Value>,
}

impl Export for StdoutExporter {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        let resource = self.resource.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = String::new();
        for span in batch {
            lines.push_str(&span_line(&span, &resource));
            lines.push('\n');
        }
        lines::stdout().write(lines);
        std::future::ready(Ok(()))
    }

    fn set_resource(&mut self, resource: &Resource) {
        let attributes = resource
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string().into()));
        *self
            .resource
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner) =
            serde_json::Value::Object(attributes.collect());
    }
}

fn span_line(span: &SpanData, resource: &serde_json::Value) -> String {
    let nanos = |time: std::time::SystemTime| {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    let attributes: serde_json::Map<_, _> = span
        .attributes
        .iter()
        .map(|pair| {
            let value = pair.value.to_string();
            (pair.key.to_string(), value.into())
        })
        .collect();
    json!({
        "name": span.name,
        "traceId": span.span_context.trace_id().to_string(),
        "spanId": span.span_context.span_id().to_string(),
        "parentSpanId": span.parent_span_id.to_string(),
        "kind": format!("{:?}", span.span_kind),
        "startTimeUnixNano": nanos(span.start_time),
        "endTimeUnixNano": nanos(span.end_time),
        "attributes": attributes,
        "status": format!("{:?}", span.status),
        "resource": resource,
    })
    .to_string()
}
