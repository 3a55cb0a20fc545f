//! Requests that hyper accepts and Go's server rejects, with Go's answers.

use http::header::{CONTENT_LENGTH, EXPECT, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;

use crate::body::ProxyBody;
use crate::connection::Client;
use crate::headers;
use crate::relay::UpstreamSlot;
use crate::respond;

/// Returns the answer to a malformed request, or `None` if the request is to be served. Requests over HTTP/2 may have at
/// most `head_lines` header lines; hyper itself limits those over HTTP/1. Must be called before [`Client::begin`].
pub fn refuse<P: UpstreamSlot>(
    client: &Client,
    request: &mut Request<Incoming>,
    head_lines: usize,
) -> Option<Response<ProxyBody<P>>> {
    if request.version() == Version::HTTP_2 {
        return refuse_http2(request, head_lines);
    }
    // hyper may have parsed a request after a malformed body.
    if client.http1.as_ref().is_some_and(|own| own.is_malformed()) {
        return Some(respond::bad_request("malformed body before the request"));
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let first = hosts.next();
    if hosts.next().is_some() {
        return Some(respond::bad_request("too many Host headers"));
    }
    if first.is_none() && request.version() == Version::HTTP_11 {
        return Some(respond::bad_request("missing required Host header"));
    }
    if first.is_some_and(|host| !host.is_empty() && !headers::is_host(host)) {
        return Some(respond::bad_request("malformed Host header"));
    }
    if headers::has_strange_coding(request.headers()) {
        return Some(respond::unsupported_coding());
    }
    if request.method() == Method::CONNECT {
        return Some(respond::connect());
    }
    let has_host_only = request.uri().scheme().is_none() && request.uri().authority().is_some();
    if has_host_only {
        return Some(respond::bad_request(""));
    }
    if request.method() == Method::OPTIONS && request.uri().path() == "*" {
        let mut answer = respond::empty(StatusCode::OK);
        answer
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        return Some(answer);
    }
    if !headers::has_valid_escapes(request.uri().path()) {
        return Some(respond::bad_request(""));
    }
    if request.headers().contains_key(EXPECT) {
        if request.version() < Version::HTTP_11 {
            request.headers_mut().remove(EXPECT);
        } else if !headers::expects_continue(request.headers()) {
            return Some(respond::expectation_failed());
        }
    }
    None
}

/// Returns the answer to a malformed HTTP/2 request; its framing is checked by hyper.
fn refuse_http2<P: UpstreamSlot>(
    request: &Request<Incoming>,
    head_lines: usize,
) -> Option<Response<ProxyBody<P>>> {
    if request.headers().len() > head_lines {
        return Some(respond::too_many_headers());
    }
    if request.method() == Method::CONNECT {
        return Some(respond::connect());
    }
    let has_bad_length = request.headers().contains_key(CONTENT_LENGTH)
        && headers::content_length(request.headers()).is_none();
    if has_bad_length || !headers::has_valid_escapes(request.uri().path()) {
        return Some(respond::bad_request(""));
    }
    None
}
