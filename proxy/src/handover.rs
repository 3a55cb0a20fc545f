//! Handing a request over to another instance of its function, which is to start it in place of this one (contracts §7).
//!
//! The request goes to the other instance's queue-proxy. As long as that has not started it, it can be taken back: nothing of a body is sent before
//! `100 Continue` over HTTP/1. Over HTTP/2, where there is no such answer, only a body is sent of which all is here, so that a copy of it is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{EXPECT, HeaderValue};
use http::{HeaderName, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::ext::on_informational;

use crate::client_body::{ClientBody, ReadAhead};
use crate::forward::{RequestKind, to_upstream_form};
use crate::relay::Source;
use crate::server_timing;
use crate::upstream::{Upstream, UpstreamError};

/// Header with the UID of the pod to which a request is handed over.
pub const TARGET: HeaderName = HeaderName::from_static("weir-target");
/// Header of a request that has been handed over, with the value `1`: it is not handed over again.
pub const HOPS: HeaderName = HeaderName::from_static("weir-hops");
/// Largest body that is handed over via HTTP/2, in bytes.
pub const HTTP2_BODY_BYTES_MAX: usize = 256 * 1024;

/// The reason why another instance has not answered a request.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The other instance cannot be reached, or the connection broke before it started the request, which is as it was.
    #[error("not reached: {0}")]
    Unreachable(UpstreamError),
    /// The other instance has refused the request, which is as it was.
    #[error("refused with status {0}")]
    Refused(StatusCode),
    /// The request was not sent, since it cannot be kept until the other instance has started it.
    #[error("its body has not been received in full")]
    Incomplete,
    /// The request cannot be sent again: the other instance may have started it.
    #[error(transparent)]
    Started(UpstreamError),
}

/// Sends a request with the head of `message` and its own body to another instance, and returns once the head of the answer has arrived. `informed` is
/// set when an interim response other than 100 arrives. The request keeps its body unless it was started.
///
/// # Errors
/// Returns an error if the other instance has not answered it; see [`HandoverError`] for whether it may be started elsewhere.
pub async fn send(
    upstream: &Arc<Upstream>,
    request: &mut Request<ClientBody>,
    message: Request<()>,
    kind: &RequestKind,
    informed: Option<&Arc<AtomicBool>>,
    read_ahead: &Arc<ReadAhead>,
) -> Result<(Response<Incoming>, Source), HandoverError> {
    if kind.http2 {
        return send_http2(upstream, request, message, read_ahead).await;
    }
    let loan = if request.body().is_empty() {
        None
    } else {
        let (body, loan) = std::mem::take(request.body_mut()).lend();
        Some((body, loan))
    };
    let (body, loan) = loan.unzip();
    let mut message = message.map(|()| body.unwrap_or_default());
    message.headers_mut().remove(EXPECT);
    if loan.is_some() {
        let expected = HeaderValue::from_static("100-continue");
        message.headers_mut().insert(EXPECT, expected);
    }
    if loan.is_some() || informed.is_some() {
        let (loan, informed) = (loan.clone(), informed.cloned());
        on_informational(&mut message, move |interim| {
            if interim.status() == StatusCode::CONTINUE {
                if let Some(loan) = &loan {
                    loan.release();
                }
            } else if let Some(informed) = &informed {
                informed.store(true, Ordering::Relaxed);
            }
        });
    }
    let unstarted = |request: &mut Request<ClientBody>| match &loan {
        None => true,
        Some(loan) => loan
            .take_back()
            .map(|body| *request.body_mut() = body)
            .is_some(),
    };
    if to_upstream_form(&mut message, None, upstream.host()).is_err() {
        unstarted(request);
        return Err(HandoverError::Incomplete);
    }
    let sent = upstream.send(&mut message, |_| {}).await;
    // What has not been sent of the message must not hold the body.
    drop(message);
    match sent {
        Ok((response, connection)) => {
            let may_be_refusal = loan.is_some() || is_of_proxy(&response);
            if is_refusal(response.status()) && may_be_refusal && unstarted(request) {
                return Err(HandoverError::Refused(response.status()));
            }
            if let Some(loan) = &loan {
                loan.answered();
            }
            let source = Source::Http1(connection, Arc::clone(upstream));
            Ok((response, source))
        }
        // Without a body it is not known whether a written request was started.
        Err(error) if loan.is_none() && !matches!(error, UpstreamError::Dial { .. }) => {
            Err(HandoverError::Started(error))
        }
        Err(error) if unstarted(request) => Err(HandoverError::Unreachable(error)),
        Err(error) => Err(HandoverError::Started(error)),
    }
}

async fn send_http2(
    upstream: &Arc<Upstream>,
    request: &mut Request<ClientBody>,
    message: Request<()>,
    read_ahead: &Arc<ReadAhead>,
) -> Result<(Response<Incoming>, Source), HandoverError> {
    let copy = request
        .body_mut()
        .copy_of_whole(read_ahead, HTTP2_BODY_BYTES_MAX);
    let Some(copy) = copy else {
        return Err(HandoverError::Incomplete);
    };
    let mut message = message.map(|()| copy);
    message.headers_mut().remove(EXPECT);
    if to_upstream_form(&mut message, None, upstream.host()).is_err() {
        return Err(HandoverError::Incomplete);
    }
    match Box::pin(upstream.send_http2(&mut message, |_| {})).await {
        Ok((response, _)) if is_refusal(response.status()) && is_of_proxy(&response) => {
            Err(HandoverError::Refused(response.status()))
        }
        Ok((response, stream)) => Ok((response, Source::Http2(stream))),
        Err(error @ UpstreamError::Dial { .. }) => Err(HandoverError::Unreachable(error)),
        Err(error) => Err(HandoverError::Started(error)),
    }
}

/// Returns whether an answer of a queue-proxy means that it has not started the request: it is for another pod, cannot wait there, or has too many
/// header lines with those added for it.
fn is_refusal(status: StatusCode) -> bool {
    [
        StatusCode::MISDIRECTED_REQUEST,
        StatusCode::SERVICE_UNAVAILABLE,
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    ]
    .contains(&status)
}

/// Returns whether an answer is the queue-proxy's own: those of the user container state how long the request was queued.
fn is_of_proxy(response: &Response<Incoming>) -> bool {
    server_timing::read(response.headers(), server_timing::QUEUE).is_none()
}
