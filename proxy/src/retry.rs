//! Rules for retrying requests to the user container: which requests, and after which failures.
//!
//! An application may close an idle connection at the moment at which a request is written to it, so that it is unknown
//! whether the request was read. RFC 9110 9.2.2 allows a proxy to retry it if its method is idempotent. As in Go's
//! `net/http`, only requests without a body are retried, once, and only if the connection had served a request before:
//! a connection that is closed at its first request is closed because of that request.

use std::error::Error as _;
use std::io;

use http::{HeaderName, Method, Request};

use crate::client_body::ClientBody;

/// Headers by which a client declares its request to be idempotent, whatever the method. Go's `net/http` supports both.
const IDEMPOTENCY_KEYS: [HeaderName; 2] = [
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static("x-idempotency-key"),
];

/// Returns a copy of a request for a retry, or `None` if the request must not be retried. The copy is boxed, since a
/// request's future holds it until the answer begins.
#[must_use]
pub(crate) fn copy_of(request: &Request<ClientBody>) -> Option<Box<Request<ClientBody>>> {
    if !request.body().is_empty() || !is_idempotent(request) {
        return None;
    }
    let mut copy = Box::new(Request::new(ClientBody::default()));
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    *copy.version_mut() = request.version();
    copy.headers_mut().clone_from(request.headers());
    copy.extensions_mut().clone_from(request.extensions());
    Some(copy)
}

fn is_idempotent<B>(request: &Request<B>) -> bool {
    let is_safe = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE
    );
    is_safe
        || IDEMPOTENCY_KEYS
            .iter()
            .any(|name| request.headers().contains_key(name))
}

/// Returns whether an HTTP/2 connection was closed before a stream was answered, or the user container stated that it did
/// not process the stream (RFC 9113 8.7). A stream that was reset for another reason counts as processed.
#[must_use]
pub(crate) fn is_unprocessed(error: &hyper::Error) -> bool {
    let Some(source) = error.source() else {
        return false;
    };
    if source.is::<io::Error>() {
        return true;
    }
    source.downcast_ref::<h2::Error>().is_some_and(|error| {
        let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        // A GOAWAY only fails streams after the last one that it names.
        error.is_remote() && (is_refused || error.is_go_away())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_methods_and_idempotency_keys_allow_a_retry() {
        let request = |method: &str, key: Option<&str>| {
            let mut request = Request::builder().method(method);
            if let Some(key) = key {
                request = request.header(key, "1");
            }
            request.body(()).unwrap()
        };
        for method in ["GET", "HEAD", "OPTIONS", "TRACE"] {
            assert!(is_idempotent(&request(method, None)), "{method}");
        }
        // PUT and DELETE are idempotent by RFC 9110, but Go's transport does not repeat them.
        for method in ["POST", "PUT", "DELETE", "PATCH", "get"] {
            assert!(!is_idempotent(&request(method, None)), "{method}");
            for key in ["Idempotency-Key", "X-Idempotency-Key"] {
                assert!(is_idempotent(&request(method, Some(key))), "{method} {key}");
            }
        }
    }

    #[test]
    fn a_copy_has_the_whole_head() {
        let mut request = Request::builder()
            .uri("/a?b")
            .version(http::Version::HTTP_11)
            .header("x-a", "1")
            .body(ClientBody::default())
            .unwrap();
        request.extensions_mut().insert(7_u8);
        let copy = copy_of(&request).unwrap();
        assert_eq!((copy.method(), copy.uri()), (&Method::GET, request.uri()));
        assert_eq!(copy.version(), http::Version::HTTP_11);
        assert_eq!(copy.headers(), request.headers());
        assert_eq!(copy.extensions().get::<u8>(), Some(&7));
    }
}
