//! Knative's own instruments, spans and request log, as configured by `OBSERVABILITY_CONFIG`.

use std::sync::{Arc, Weak};

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use proxy::env::ProcessEnvironment;
use proxy::exchange::{Observer, Recorder};
use proxy::instruments::HttpInstruments;
use proxy::observability::{Metrics, Observability, Tracing};
use proxy::request_log::RequestLog;
use proxy::telemetry::{Owner, Telemetry, TelemetryError};
use proxy::template::RevisionInfo;
use proxy::traces::{SpanNames, Traces};

use crate::NAME;
use crate::registry::Registry;
use crate::view::Revision;

/// The scope of the instruments and spans of Knative's activator.
const SCOPE: &str = "knative.dev/serving/pkg/activator";
const SPAN_NAMES: SpanNames = SpanNames {
    scope: SCOPE,
    proxy: "kn.activator.proxy",
    wait: "kn.activator.throttler",
};

/// The instruments which observe the requests of all revisions.
#[derive(Debug, Default)]
pub(crate) struct Instruments {
    http: Option<Arc<HttpInstruments>>,
    traces: Option<Arc<Traces>>,
    /// Template of the request log; `None`: no log.
    log: Option<String>,
}

/// The current numbers of a revision's requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RevisionFigures<'a> {
    /// The revision, with its labels.
    pub(crate) revision: &'a Revision,
    /// Number of requests in flight.
    pub(crate) carried: u64,
    /// Number of requests in flight at instances.
    pub(crate) active: u64,
}

impl Instruments {
    /// Starts the configured pipelines. Blocks until they are set up.
    ///
    /// # Errors
    ///
    /// Fails if an exporter cannot be created.
    pub(crate) fn start(
        observability: &Observability,
        pod: &str,
    ) -> Result<(Self, Telemetry), TelemetryError> {
        let is_asked_for = observability.request_metrics != Metrics::None
            || observability.tracing != Tracing::None;
        let owner = Owner {
            container: NAME,
            service: NAME.to_owned(),
            attributes: vec![("k8s.pod.name", pod.to_owned())],
            ..Owner::default()
        };
        let telemetry = if is_asked_for {
            Telemetry::start(observability, &owner, &ProcessEnvironment)?
        } else {
            Telemetry::default()
        };
        let http = telemetry
            .meters
            .as_ref()
            .map(|meters| HttpInstruments::new(meters, None));
        let traces = telemetry
            .tracers
            .as_ref()
            .map(|tracers| Traces::new(tracers, SPAN_NAMES));
        let instruments = Self {
            http: http.map(Arc::new),
            traces: traces.map(Arc::new),
            log: observability.request_log.clone(),
        };
        Ok((instruments, telemetry))
    }

    /// Returns the observer of a revision's requests.
    pub(crate) fn observer(
        &self,
        revision: &Revision,
        recorder: Arc<dyn Recorder>,
    ) -> Arc<Observer> {
        let log = self.log.as_ref().and_then(|template| {
            let info = RevisionInfo {
                name: revision.name.name.clone(),
                namespace: revision.name.namespace.clone(),
                service: revision.service.clone(),
                configuration: revision.configuration.clone(),
                // The activator does not know the pod when it writes the log.
                ..RevisionInfo::default()
            };
            // Probes are answered before the revision is looked up.
            RequestLog::start(template, false, info)
        });
        Arc::new(Observer {
            http: self.http.clone(),
            recorder: Some(recorder),
            traces: self.traces.clone(),
            log,
        })
    }
}

/// Registers the gauges `kn.revision.request.concurrency`, `.queued` and `.active`, which read the registry while it
/// exists.
pub(crate) fn observe_requests(meters: &SdkMeterProvider, registry: &Arc<Registry>) {
    let meter = meters.meter(SCOPE);
    let gauge = |name: &'static str, text: &'static str, value: fn(&RevisionFigures<'_>) -> u64| {
        let registry: Weak<Registry> = Arc::downgrade(registry);
        let _registered = meter
            .u64_observable_gauge(name)
            .with_unit("{request}")
            .with_description(text)
            .with_callback(move |observer| {
                let Some(registry) = registry.upgrade() else {
                    return;
                };
                registry.requests(&mut |figures| {
                    let Revision {
                        name,
                        service,
                        configuration,
                        ..
                    } = figures.revision;
                    observer.observe(
                        value(&figures),
                        &[
                            KeyValue::new("k8s.namespace.name", name.namespace.clone()),
                            KeyValue::new("kn.revision.name", name.name.clone()),
                            KeyValue::new("kn.service.name", service.clone()),
                            KeyValue::new("kn.configuration.name", configuration.clone()),
                        ],
                    );
                });
            })
            .build();
    };
    gauge(
        "kn.revision.request.concurrency",
        "Requests that are carried for the revision.",
        |figures| figures.carried,
    );
    gauge(
        "kn.revision.request.queued",
        "Requests that wait for an instance.",
        |figures| figures.carried.saturating_sub(figures.active),
    );
    gauge(
        "kn.revision.request.active",
        "Requests that are at an instance.",
        |figures| figures.active,
    );
}
