//! The small servers beside the main ones: `/v1/functions` on 9475, `/metrics` on 9476.

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

/// Requests that are answered at once, at most.
const CONCURRENCY_MAX: usize = 16;
/// An answer takes no longer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Which functions a client sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of them.
    All,
    /// Those of one namespace.
    #[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "for tokens"))]
    Namespace(String),
}

/// `/v1/functions`: what there is to know of functions.
#[derive(Debug)]
pub(crate) struct Functions(
    BoxCloneSyncService<Request<Scope>, Response<ProxyBody>, tower::BoxError>,
);

/// `/metrics`: what Prometheus scrapes.
#[derive(Debug)]
pub(crate) struct Scrape {
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
    /// Whose figures are read.
    pub(crate) registry: Arc<Registry>,
    /// What became of reports.
    pub(crate) reports: Arc<Reports>,
    /// What went wrong at the view's source.
    pub(crate) failed: Arc<SourceFailures>,
    /// The serving certificate, which is watched.
    pub(crate) tls: Option<Arc<Tls>>,
    /// The authorities of the pods' certificates, which are watched.
    pub(crate) trust: Option<Arc<TrustStore>>,
    /// Knative's instruments, where they are served for scraping.
    pub(crate) knative: Option<prometheus::Registry>,
}

impl Functions {
    /// Describes what `registry` serves.
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

    /// Answers a client that sees the functions of `scope`.
    pub(crate) async fn respond(&self, request: Request<()>, scope: Scope) -> Response<ProxyBody> {
        // A page that a browser shows has no business here.
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
    type Place = ();

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
    type Place = ();

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
