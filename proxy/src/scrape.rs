//! Metrics page for Prometheus, and request handling common to such small servers.

use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use prometheus::proto::MetricFamily;
use prometheus::{Encoder as _, TextEncoder};

use crate::body::ProxyBody;
use crate::respond;

/// Answers a GET or HEAD of `path` with the response of `page`, another path with 404, and another method with 405.
pub fn answer<B>(
    request: &Request<B>,
    path: &str,
    page: impl FnOnce() -> Response<ProxyBody>,
) -> Response<ProxyBody> {
    if request.uri().path() != path {
        return respond::not_found();
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut answer = respond::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        let allowed = HeaderValue::from_static("GET, HEAD");
        answer.headers_mut().insert(ALLOW, allowed);
        return answer;
    }
    page()
}

/// Returns a response with metrics in Prometheus' text format, version 0.0.4, or 500 if they cannot be encoded.
#[must_use]
pub fn metrics(families: &[MetricFamily]) -> Response<ProxyBody> {
    let mut page = Vec::new();
    if let Err(error) = TextEncoder::new().encode(families, &mut page) {
        tracing::error!(%error, "cannot encode metrics");
        return respond::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
    }
    let mut response = Response::new(ProxyBody::full(page));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
