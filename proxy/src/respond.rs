//! Responses that the proxy generates itself.

use http::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use policy::Span;

use crate::body::ProxyBody;
use crate::relay::UpstreamSlot;
use crate::upstream::UpstreamError;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
/// Header that marks a refusal for lateness, so that Envoy does not retry the request.
pub const ENVOY_RATELIMITED: HeaderName = HeaderName::from_static("x-envoy-ratelimited");
const NOSNIFF: HeaderName = HeaderName::from_static("x-content-type-options");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// Largest value of `Retry-After`, in seconds.
const RETRY_AFTER_MAX_SECS: u64 = 60;

// gRPC status codes.
const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;
const DEADLINE_EXCEEDED: u16 = 4;

/// Returns whether a request is a gRPC call, for which errors carry a `grpc-status` in addition to the HTTP status.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Returns a response with a status, and without headers and body.
#[must_use]
pub fn empty<P: UpstreamSlot>(status: StatusCode) -> Response<ProxyBody<P>> {
    let mut response = Response::new(ProxyBody::empty());
    *response.status_mut() = status;
    response
}

/// Returns a response with a plain text, as Go's server sends it.
#[must_use]
pub fn text<P: UpstreamSlot>(
    status: StatusCode,
    body: impl Into<bytes::Bytes>,
) -> Response<ProxyBody<P>> {
    let mut response = Response::new(ProxyBody::full(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

/// Returns an error in the form of Go's `http.Error`: the text with a line feed, marked as not to be sniffed.
#[must_use]
pub fn error<P: UpstreamSlot>(status: StatusCode, message: &str) -> Response<ProxyBody<P>> {
    let mut response = text(status, format!("{message}\n"));
    response
        .headers_mut()
        .insert(NOSNIFF, HeaderValue::from_static("nosniff"));
    response
}

/// Returns 404 for an unknown path.
#[must_use]
pub fn not_found<P: UpstreamSlot>() -> Response<ProxyBody<P>> {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

/// Returns 400 for a malformed request; the connection is closed after it, as by Go's server. `why` may be empty.
#[must_use]
pub fn bad_request<P: UpstreamSlot>(why: &str) -> Response<ProxyBody<P>> {
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

/// Returns 501 for a transfer coding other than `chunked`, as Go's server does, and closes the connection.
#[must_use]
pub fn unsupported_coding<P: UpstreamSlot>() -> Response<ProxyBody<P>> {
    let mut response = text(
        StatusCode::NOT_IMPLEMENTED,
        "501 Not Implemented: unsupported transfer encoding",
    );
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns 405 for `CONNECT`, which no gateway sends to a pod.
#[must_use]
pub fn connect<P: UpstreamSlot>() -> Response<ProxyBody<P>> {
    error(StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not supported")
}

/// Returns 431 for a head with too many header lines.
#[must_use]
pub fn too_many_headers<P: UpstreamSlot>() -> Response<ProxyBody<P>> {
    error(
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        "Request Header Fields Too Large",
    )
}

/// Returns 417 for an `Expect` header with another value than `100-continue`, and closes the connection.
#[must_use]
pub fn expectation_failed<P: UpstreamSlot>() -> Response<ProxyBody<P>> {
    let mut response = empty(StatusCode::EXPECTATION_FAILED);
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns 504 for a timeout before the response has begun; `text_of_timeout` is the body.
#[must_use]
pub fn timeout<P: UpstreamSlot>(
    text_of_timeout: &'static str,
    grpc: bool,
) -> Response<ProxyBody<P>> {
    with_grpc_status(
        text(StatusCode::GATEWAY_TIMEOUT, text_of_timeout),
        grpc,
        DEADLINE_EXCEEDED,
    )
}

/// Returns 502 for an upstream without a usable answer. The body is the error, which contains no secrets.
#[must_use]
pub fn bad_gateway<P: UpstreamSlot>(why: &UpstreamError, grpc: bool) -> Response<ProxyBody<P>> {
    with_grpc_status(
        error(StatusCode::BAD_GATEWAY, &why.to_string()),
        grpc,
        UNAVAILABLE,
    )
}

/// Returns 503 for a full queue.
#[must_use]
pub fn queue_full<P: UpstreamSlot>(grpc: bool) -> Response<ProxyBody<P>> {
    with_grpc_status(
        error(
            StatusCode::SERVICE_UNAVAILABLE,
            "pending request queue full",
        ),
        grpc,
        UNAVAILABLE,
    )
}

/// Returns 503 for a late request that is shed. `again_after` is the estimated time until another request may be in time.
#[must_use]
pub fn late<P: UpstreamSlot>(again_after: Span, grpc: bool) -> Response<ProxyBody<P>> {
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
    // Envoy does not retry rate-limited requests.
    headers.insert(ENVOY_RATELIMITED, HeaderValue::from_static("1"));
    if grpc {
        headers.insert(GRPC_PUSHBACK, HeaderValue::from_static("-1"));
    }
    response
}

/// Returns 503 for a request that could not start within its time limit, for this reason.
#[must_use]
pub fn unavailable<P: UpstreamSlot>(
    why: &'static str,
    again_after: Span,
    grpc: bool,
) -> Response<ProxyBody<P>> {
    let response = error(StatusCode::SERVICE_UNAVAILABLE, why);
    let mut response = with_grpc_status(response, grpc, UNAVAILABLE);
    response
        .headers_mut()
        .insert(RETRY_AFTER, retry_after(again_after));
    response
}

fn retry_after(span: Span) -> HeaderValue {
    HeaderValue::from(
        span.0
            .div_ceil(1_000_000_000)
            .clamp(1, RETRY_AFTER_MAX_SECS),
    )
}

fn with_grpc_status<P: UpstreamSlot>(
    mut response: Response<ProxyBody<P>>,
    grpc: bool,
    status: u16,
) -> Response<ProxyBody<P>> {
    if grpc {
        // Without a body, since gRPC clients treat data after a status in the head as a broken stream.
        *response.body_mut() = ProxyBody::empty();
        let headers = response.headers_mut();
        headers.remove(CONTENT_TYPE);
        headers.remove(NOSNIFF);
        headers.insert(GRPC_STATUS, HeaderValue::from(status));
    }
    response
}
