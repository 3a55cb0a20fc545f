//! The administrative servers: `/v1/functions` on port 9475 and `/metrics` on port 9476.

#[cfg(feature = "kubernetes")]
pub(crate) mod access;
#[cfg(feature = "kubernetes")]
pub(crate) mod remote;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use proxy::body::ProxyBody;
use proxy::client_tls::TrustStore;
use proxy::connection::{Client, Handler};
use proxy::tls::Tls;
use proxy::{respond, scrape};
use tower::util::BoxCloneSyncService;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::autoscaler::Reports;
use crate::metrics::{Metrics, ProcessFigures};
use crate::registry::Registry;
use crate::source::SourceFailures;

/// Largest number of `/v1/functions` requests served at a time; further ones are shed.
const CONCURRENCY_MAX: usize = 16;
/// Longest time spent on one answer of `/v1/functions`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The functions which a client may see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All functions of the cluster.
    All,
    /// The functions of one namespace.
    #[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "for tokens"))]
    Namespace(String),
}

/// The handler of `/v1/functions`: describes the served functions as JSON.
#[derive(Debug)]
pub(crate) struct Functions(
    BoxCloneSyncService<Request<Scope>, Response<ProxyBody>, tower::BoxError>,
);

/// The handler of `/metrics`, which Prometheus scrapes.
#[derive(Debug)]
pub(crate) struct Scrape {
    /// The metrics of this process.
    pub(crate) metrics: Arc<Metrics>,
    /// The registry of served functions, whose figures are read at each scrape.
    pub(crate) registry: Arc<Registry>,
    /// Counts of reports sent and dropped, and of failed connections to the autoscaler.
    pub(crate) reports: Arc<Reports>,
    /// Counts of failures at the source of views.
    pub(crate) failed: Arc<SourceFailures>,
    /// The serving certificate, for the number of its failed reloads; `None`: requests do not arrive by TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    /// The authorities of the pods' certificates, for their number of failed reloads; `None`: pods have no TLS.
    pub(crate) trust: Option<Arc<TrustStore>>,
    /// Knative's instruments, if they are exported for scraping.
    pub(crate) knative: Option<prometheus::Registry>,
}

impl Functions {
    /// Returns a handler that describes the functions served by `registry`.
    #[must_use]
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        let answer = move |request: Request<Scope>| {
            let answer = functions(&registry, &request);
            async move { Ok::<_, Infallible>(answer) }
        };
        let service = ServiceBuilder::new()
            .load_shed()
            .concurrency_limit(CONCURRENCY_MAX)
            .timeout(TIMEOUT)
            .service(service_fn(answer));
        Self(BoxCloneSyncService::new(service))
    }

    /// Returns the answer for a client that may see the functions of `scope`.
    pub(crate) async fn respond(&self, request: Request<()>, scope: Scope) -> Response<ProxyBody> {
        // Browsers send Origin: a web page must not read this.
        if request.headers().contains_key(http::header::ORIGIN) {
            return respond::error(StatusCode::FORBIDDEN, "requests with an Origin are refused");
        }
        match self.0.clone().oneshot(request.map(|()| scope)).await {
            Ok(response) => response,
            Err(error) => respond::error(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
        }
    }
}

fn functions(registry: &Registry, request: &Request<Scope>) -> Response<ProxyBody> {
    scrape::answer(request, "/v1/functions", || {
        let namespace = match request.body() {
            Scope::All => None,
            Scope::Namespace(namespace) => Some(&**namespace),
        };
        let described = registry.describe(namespace).to_string();
        let mut response = Response::new(ProxyBody::full(described));
        let kind = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    })
}

impl Handler for Functions {
    type Slot = ();

    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        self.respond(request.map(drop), Scope::All).await
    }
}

impl Handler for Scrape {
    type Slot = ();

    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        scrape::answer(&request, "/metrics", || {
            let tls = self.tls.as_ref().map(|tls| tls.reload_failures());
            let trust = self.trust.as_ref().map(|trust| trust.reload_failures());
            let mut families = self.metrics.gather(
                |visit| self.registry.figures(visit),
                &ProcessFigures {
                    revisions: self.registry.served().len(),
                    reports: &self.reports,
                    failed: &self.failed,
                    certificate_failures: tls.unwrap_or(0) + trust.unwrap_or(0),
                },
            );
            families.extend(self.knative.iter().flat_map(prometheus::Registry::gather));
            scrape::metrics(&families)
        })
    }
}
