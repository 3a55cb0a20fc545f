//! Handlers of the auxiliary servers: `/wait-for-drain` on port 8022, the autoscaler's `/metrics` on 9090, and
//! `/metrics` for Prometheus on 9091, if metrics are enabled.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::Registry;
use proxy::body::ProxyBody;
use proxy::connection::{Client, Handler};
use proxy::tls::Tls;
use proxy::{respond, scrape};

use crate::drain::Drain;
use crate::service::Proxy;
use crate::stat::Stat;

/// Handler of `/wait-for-drain`, which answers when the drain is over.
#[derive(Debug)]
pub(crate) struct Admin(pub Arc<Drain>);

/// Handler of `/metrics` for the autoscaler: the stat of the last second.
#[derive(Debug)]
pub(crate) struct Stats(pub Arc<Stat>);

/// Handler of `/metrics` for Prometheus.
#[derive(Debug)]
pub(crate) struct Scrape {
    /// Proxy with Weir's own metrics.
    pub proxy: Arc<Proxy>,
    /// Knative's instruments; `None` if they are not served to Prometheus.
    pub registry: Option<Registry>,
    /// TLS acceptor, for its count of reload failures; `None` without TLS.
    pub tls: Option<Arc<Tls>>,
}

impl Handler for Admin {
    type Slot = ();

    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        if request.uri().path() != "/wait-for-drain" {
            return respond::not_found();
        }
        self.0.wait().await;
        respond::empty(StatusCode::OK)
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
            let knative = self.registry.as_ref().map(Registry::gather);
            let mut families = knative.unwrap_or_default();
            let failures = self.tls.as_ref().map_or(0, |tls| tls.reload_failures());
            families.extend(self.proxy.weir_metrics(failures));
            scrape::metrics(&families)
        })
    }
}

impl Handler for Stats {
    type Slot = ();

    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        if request.uri().path() != "/metrics" {
            return respond::not_found();
        }
        let mut response = Response::new(ProxyBody::full(self.0.report()));
        // The autoscaler compares the whole value of the content type.
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/protobuf"),
        );
        response
    }
}
