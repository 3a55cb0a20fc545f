//! The two small servers beside the main one: `/wait-for-drain` on 8022, the stat's `/metrics` on 9090.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::body::ProxyBody;
use crate::connection::{Client, Handler};
use crate::drain::Drain;
use crate::respond;
use crate::stat::Stat;

/// `/wait-for-drain`: answered when the drain is over.
#[derive(Debug)]
pub(crate) struct Admin(pub Arc<Drain>);

/// `/metrics`: the last second's stat.
#[derive(Debug)]
pub(crate) struct Stats(pub Arc<Stat>);

fn not_found() -> Response<ProxyBody> {
    respond::error(StatusCode::NOT_FOUND, "404 page not found")
}

impl Handler for Admin {
    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.http1.as_ref().map(|connection| connection.begin());
        if request.uri().path() != "/wait-for-drain" {
            return not_found();
        }
        self.0.wait().await;
        respond::empty(StatusCode::OK)
    }
}

impl Handler for Stats {
    async fn handle(
        self: Arc<Self>,
        client: Client,
        request: Request<Incoming>,
    ) -> Response<ProxyBody> {
        let _serving = client.http1.as_ref().map(|connection| connection.begin());
        if request.uri().path() != "/metrics" {
            return not_found();
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
