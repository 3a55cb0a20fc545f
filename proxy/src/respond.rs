//! Answers that the proxy makes itself: one table of what is said when.

use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use policy::Span;

use crate::body::ProxyBody;
use crate::relay::Place;
use crate::upstream::UpstreamError;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// Marks a refusal for lateness: Envoy does not send the request again.
pub const ENVOY_RATELIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");
const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// `Retry-After` says at most this many seconds.
const RETRY_AFTER_MAX_SECS: u64 = 60;

/// gRPC status codes that the proxy uses.
const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;
const DEADLINE_EXCEEDED: u16 = 4;

/// Whether a request is a gRPC call, whose errors carry a `grpc-status` besides the HTTP one.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// A response with a status and nothing else.
#[must_use]
pub fn empty<P: Place>(status: StatusCode) -> Response<ProxyBody<P>> {
    let mut response = Response::new(ProxyBody::empty());
    *response.status_mut() = status;
    response
}

/// A response with a text as Go's server sends it.
#[must_use]
pub fn text<P: Place>(status: StatusCode, body: impl Into<bytes::Bytes>) -> Response<ProxyBody<P>> {
    let mut response = Response::new(ProxyBody::full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

/// An error as Go's `http.Error` sends it: the text with a line end, not to be sniffed.
#[must_use]
pub fn error<P: Place>(status: StatusCode, message: &str) -> Response<ProxyBody<P>> {
    let mut response = text(status, format!("{message}\n"));
    response
        .headers_mut()
        .insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    response
}

/// No such path on a server of a few fixed ones.
#[must_use]
pub fn not_found<P: Place>() -> Response<ProxyBody<P>> {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

/// A request that cannot be served as HTTP: Go's server closes the connection after it.
#[must_use]
pub fn bad_request<P: Place>(why: &str) -> Response<ProxyBody<P>> {
    let body = if why.is_empty() {
        "400 Bad Request".to_owned()
    } else {
        format!("400 Bad Request: {why}")
    };
    let mut response = text(StatusCode::BAD_REQUEST, body);
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A transfer coding other than `chunked`, as Go's server answers it.
#[must_use]
pub fn unsupported_coding<P: Place>() -> Response<ProxyBody<P>> {
    let mut response = text(
        StatusCode::NOT_IMPLEMENTED,
        "501 Not Implemented: unsupported transfer encoding",
    );
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// `CONNECT`, which no gateway in front of a pod sends.
#[must_use]
pub fn connect<P: Place>() -> Response<ProxyBody<P>> {
    error(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported")
}

/// More header lines than are taken.
#[must_use]
pub fn too_many_headers<P: Place>() -> Response<ProxyBody<P>> {
    error(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "Request Header Fields Too Large",
    )
}

/// `Expect` asks for something else than `100-continue`.
#[must_use]
pub fn expectation_failed<P: Place>() -> Response<ProxyBody<P>> {
    let mut response = empty(StatusCode::EXPECTATION_FAILED);
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A timeout struck before the response began; `text_of_timeout` says whose.
#[must_use]
pub fn timeout<P: Place>(text_of_timeout: &'static str, grpc: bool) -> Response<ProxyBody<P>> {
    with_grpc_status(
        text(StatusCode::GATEWAY_TIMEOUT, text_of_timeout),
        grpc,
        DEADLINE_EXCEEDED,
    )
}

/// The upstream gave no answer. Why is for the log as well; nothing in it is secret.
#[must_use]
pub fn bad_gateway<P: Place>(why: &UpstreamError, grpc: bool) -> Response<ProxyBody<P>> {
    with_grpc_status(
        error(StatusCode::BAD_GATEWAY, &why.to_string()),
        grpc,
        UNAVAILABLE,
    )
}

/// As many requests wait as may.
#[must_use]
pub fn queue_full<P: Place>(grpc: bool) -> Response<ProxyBody<P>> {
    with_grpc_status(
        error(
            StatusCode::SERVICE_UNAVAILABLE,
            "pending request queue full",
        ),
        grpc,
        UNAVAILABLE,
    )
}

/// The request is late, and late requests are shed. `again_after`: when another may be in time.
#[must_use]
pub fn late<P: Place>(again_after: Span, grpc: bool) -> Response<ProxyBody<P>> {
    let mut response = with_grpc_status(
        error(
            StatusCode::SERVICE_UNAVAILABLE,
            "the deadline cannot be met",
        ),
        grpc,
        RESOURCE_EXHAUSTED,
    );
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, retry_after(again_after));
    // Envoy does not retry what is rate limited.
    headers.insert(ENVOY_RATELIMITED, HeaderValue::from_static("1"));
    if grpc {
        headers.insert(GRPC_PUSHBACK, HeaderValue::from_static("-1"));
    }
    response
}

fn retry_after(span: Span) -> HeaderValue {
    HeaderValue::from(
        span.0
            .div_ceil(1_000_000_000)
            .clamp(1, RETRY_AFTER_MAX_SECS),
    )
}

fn with_grpc_status<P: Place>(
    mut response: Response<ProxyBody<P>>,
    grpc: bool,
    status: u16,
) -> Response<ProxyBody<P>> {
    if grpc {
        // A head alone: gRPC clients take data behind a status in the head for a broken stream.
        *response.body_mut() = ProxyBody::empty();
        let headers = response.headers_mut();
        headers.remove(CONTENT_TYPE);
        headers.remove(NOSNIFF);
        headers.insert(GRPC_STATUS, HeaderValue::from(status));
    }
    response
}
