//! The small servers beside the main one: `/wait-for-drain` on 8022, the stat's `/metrics` on 9090, and
//! `/metrics` for Prometheus on 9091, where metrics are asked for.

use std::sync::Arc;

use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use prometheus::{Encoder as _, Registry, TextEncoder};
use proxy::body::ProxyBody;
use proxy::connection::{Client, Handler};
use proxy::respond;
use proxy::tls::Tls;

use crate::drain::Drain;
use crate::service::Proxy;
use crate::stat::Stat;

/// `/wait-for-drain`: answered when the drain is over.
#[derive(Debug)]
pub(crate) struct Admin(pub Arc<Drain>);

/// `/metrics`: the last second's stat.
#[derive(Debug)]
pub(crate) struct Stats(pub Arc<Stat>);

/// `/metrics`: what Prometheus scrapes.
#[derive(Debug)]
pub(crate) struct Scrape {
    /// Whose requests are measured.
    pub proxy: Arc<Proxy>,
    /// Knative's instruments, where they are served for scraping.
    pub registry: Option<Registry>,
    /// Whose certificates are watched.
    pub tls: Option<Arc<Tls>>,
}

impl Handler for Admin {
    type Place = ();

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
    type Place = ();

    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.begin(request.headers());
        if request.uri().path() != "/metrics" {
            return respond::not_found();
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            let mut answer = respond::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
            answer
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        let mut families = self
            .registry
            .as_ref()
            .map(Registry::gather)
            .unwrap_or_default();
        let failures = self.tls.as_ref().map_or(0, |tls| tls.reload_failures());
        families.extend(self.proxy.weir_metrics(failures));
        let mut page = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&families, &mut page) {
            tracing::error!(%error, "metrics cannot be written");
            return respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
        }
        let mut response = Response::new(ProxyBody::full(page));
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
        );
        response
    }
}

impl Handler for Stats {
    type Place = ();

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
        // The autoscaler compares the whole value.
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/protobuf"),
        );
        response
    }
}
