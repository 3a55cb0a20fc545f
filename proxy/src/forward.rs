//! Forwarding of one request to an upstream, and of its answer to the client, in the protocol of the request.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use annotations::MidStreamTimeout;
use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::response;
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::ext::on_informational;
use hyper::upgrade::OnUpgrade;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::body::ProxyBody;
use crate::buffered::Buffered;
use crate::client_body::{ClientBody, ReadAhead};
use crate::connection::Client;
use crate::exchange::Exchange;
use crate::headers::{self, BadLength};
use crate::limits::HEAD_LINES_MAX;
use crate::outcome::Outcome;
use crate::relay::{InFlight, Relay, Source, UpstreamSlot};
use crate::respond;
use crate::timeouts::Timeouts;
use crate::traces::TraceIds;
use crate::tunnel::Tunnel;
use crate::upstream::{Upstream, UpstreamError};

/// Properties of a request that are needed to pass on its answer.
#[derive(Debug)]
pub struct RequestKind {
    /// Whether the request came over HTTP/2.
    pub http2: bool,
    /// Whether the request is a gRPC call.
    pub grpc: bool,
    /// Whether the method is HEAD, so that the answer has no body whatever its head states.
    pub head_only: bool,
    /// Protocol to which the request asks to switch, with the client's side of the tunnel.
    pub upgrade: Option<(HeaderValue, OnUpgrade)>,
}

impl RequestKind {
    /// Returns the properties of a request. The pending upgrade is taken from it.
    pub fn of(client: &Client, request: &mut Request<ClientBody>) -> Self {
        let protocol = client
            .http1
            .as_ref()
            .and_then(|_| headers::upgrade_protocol(request.headers()));
        Self {
            http2: request.version() == Version::HTTP_2,
            grpc: respond::is_grpc(request.headers()),
            head_only: request.method() == Method::HEAD,
            upgrade: protocol.map(|protocol| (protocol, hyper::upgrade::on(request))),
        }
    }
}

/// Response extension for an answer without a content type, which is to be detected from its first bytes.
#[derive(Debug, Clone, Copy)]
pub struct Untyped;

/// Notes how a request ends, if it is observed.
pub fn note(exchange: Option<&Arc<Exchange>>, outcome: Outcome) {
    if let Some(exchange) = exchange {
        exchange.note(outcome);
    }
}

/// Returns the identifiers of a request's trace and span in hexadecimal, if it is traced, for the log fields `trace_id`
/// and `span_id`.
#[must_use]
pub fn trace_of(exchange: Option<&Arc<Exchange>>) -> (Option<String>, Option<String>) {
    let ids = exchange.and_then(|exchange| exchange.trace());
    ids.map(TraceIds::texts).unzip()
}

/// Returns the host which the client named, if it is a valid one.
#[must_use]
pub fn host_of(request: &Request<ClientBody>) -> Option<HeaderValue> {
    let authority = request.uri().authority().and_then(|authority| {
        let host = authority.as_str().rsplit('@').next()?;
        HeaderValue::from_str(host).ok()
    });
    match request.version() {
        Version::HTTP_2 => authority.or_else(|| request.headers().get(HOST).cloned()),
        _ => request.headers().get(HOST).cloned().or(authority),
    }
    .filter(headers::is_host)
}

/// Returns the length of a request's body in bytes, or `None` if it is not known.
#[must_use]
pub fn body_length(request: &Request<ClientBody>) -> Option<u64> {
    if request.body().is_empty() {
        Some(0)
    } else {
        headers::content_length(request.headers())
    }
}

/// Awaits `wait` and meanwhile reads ahead in the request's body, so that a client that leaves is detected.
pub async fn read_ahead_while<T>(
    mut wait: Pin<&mut impl Future<Output = T>>,
    client: &Client,
    request: &mut Request<ClientBody>,
    read_ahead: &Arc<ReadAhead>,
) -> T {
    // hyper sends `100 Continue` as soon as the body is polled, which is too early for a client that expects it.
    let reads = client.http1.is_some() && !headers::expects_continue(request.headers());
    poll_fn(|cx| {
        let output = wait.as_mut().poll(cx);
        if output.is_pending() && reads {
            request.body_mut().read_ahead(read_ahead, cx);
        }
        output
    })
    .await
}

/// Drops the body of a request that is answered without it.
pub fn discard(request: &mut Request<ClientBody>) {
    drop(std::mem::take(request));
}

/// Converts a request to the form that is sent to the upstream. `host` replaces the request's own `Host`, if given;
/// `default_host` is used for a request without one.
///
/// # Errors
/// Returns an error if the target is too long after escaping.
pub fn to_upstream_form(
    request: &mut Request<ClientBody>,
    host: Option<HeaderValue>,
    default_host: &HeaderValue,
) -> Result<(), http::Error> {
    if request.version() == Version::HTTP_2 {
        let own = request.headers_mut().remove(HOST);
        let own = own.filter(|_| request.uri().authority().is_none());
        let host = host.or(own);
        *request.uri_mut() = absolute(request.uri(), host.as_ref())?;
        return Ok(());
    }
    *request.version_mut() = Version::HTTP_11;
    let host = host.or_else(|| {
        let authority = request.uri().authority()?;
        let host = authority.as_str().rsplit('@').next()?;
        HeaderValue::from_str(host).ok()
    });
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    } else if !request.headers().contains_key(HOST) {
        // `Host` is optional in HTTP/1.0 requests but required in HTTP/1.1.
        request.headers_mut().insert(HOST, default_host.clone());
    }
    if !headers::is_origin_form(request.uri()) {
        *request.uri_mut() = Uri::try_from(headers::origin_form(request.uri()))?;
    }
    let is_empty = request.body().is_empty();
    let headers = request.headers_mut();
    if !is_empty && !headers.contains_key(CONTENT_LENGTH) {
        // Without this header hyper sends no body with a GET.
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    } else {
        headers.remove(TRAILER);
    }
    Ok(())
}

/// Returns the absolute form of a target, with scheme and authority, as HTTP/2 requires.
fn absolute(uri: &Uri, host: Option<&HeaderValue>) -> Result<Uri, http::Error> {
    let mut parts = uri.clone().into_parts();
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    parts.authority = authority
        .or(parts.authority)
        .or_else(|| Some(Authority::from_static("localhost")));
    parts.scheme = Some(Scheme::HTTP);
    parts.path_and_query = Some(headers::origin_form(uri).try_into()?);
    Ok(Uri::from_parts(parts)?)
}

/// Sends a request in the protocol in which it came, and returns once the head of the answer has arrived. `informed` is
/// set when an interim response arrives; `refresh` updates the headers before the request is sent a second time.
pub async fn send(
    upstream: &Arc<Upstream>,
    request: &mut Request<ClientBody>,
    kind: &RequestKind,
    informed: Option<&Arc<AtomicBool>>,
    refresh: impl Fn(&mut HeaderMap),
) -> Result<(Response<Incoming>, Source), UpstreamError> {
    if kind.http2 {
        let sent = upstream.send_http2(request, refresh);
        let (response, stream) = Box::pin(sent).await?;
        return Ok((response, Source::Http2(stream)));
    }
    let waits = headers::expects_continue(request.headers()) && !request.body().is_empty();
    let hold = waits.then(|| request.body_mut().hold());
    if hold.is_some() || informed.is_some() {
        let (hold, informed) = (hold.clone(), informed.cloned());
        on_informational(request, move |interim| {
            if let Some(informed) = &informed {
                informed.store(true, Ordering::Relaxed);
            }
            if let Some(hold) = hold.as_ref().filter(|_| interim.status() == 100) {
                hold.release();
            }
        });
    }
    let sent = upstream.send(request, refresh).await;
    if let Some(hold) = hold {
        hold.answered();
    }
    let (response, connection) = sent?;
    Ok((response, Source::Http1(connection, Arc::clone(upstream))))
}

/// Context for passing on an answer to the client.
#[derive(Debug)]
pub struct AnswerContext<'a> {
    /// Client that receives the answer.
    pub client: &'a Client,
    /// Name of the upstream in error messages.
    pub peer: &'static str,
    /// Time limits of the request.
    pub timeouts: &'a Timeouts,
    /// Account of the bytes buffered for slow clients.
    pub buffered: &'a Arc<Buffered>,
    /// How a response that has begun is ended at a timeout.
    pub mid_stream_timeout: MidStreamTimeout,
    /// Tracker of the open tunnels.
    pub tunnels: &'a TaskTracker,
}

impl AnswerContext<'_> {
    /// Relays an answer with its body to the client. `begun` is the time of dispatch if the execution time is to be
    /// reported to the client, which is done over HTTP/2 only.
    pub fn relay<P: UpstreamSlot>(
        &self,
        kind: &RequestKind,
        (mut answer, incoming): (response::Parts, Incoming),
        source: Source,
        in_flight: InFlight<P>,
        begun: Option<Instant>,
    ) -> Response<ProxyBody<P>> {
        let length = headers::content_length(&answer.headers).filter(|_| !kind.head_only);
        if length.is_some() {
            answer.headers.remove(TRAILER);
        }
        // The duration of a failed execution is not representative.
        let learn = !answer.status.is_server_error();
        if incoming.is_end_stream() {
            // Adding trailers would hide the status in the head of a gRPC error, which has no body.
            in_flight.finish(source, learn);
            return Response::from_parts(answer, ProxyBody::empty());
        }
        let mut relay = Relay::new(
            incoming,
            source,
            in_flight,
            self.timeouts.clone(),
            learn,
            self.buffered,
        );
        relay.remaining = length;
        relay.mid_stream_timeout = self.mid_stream_timeout;
        relay.http1.clone_from(&self.client.http1);
        relay.server_timing_since = begun.filter(|_| kind.http2 && !kind.head_only);
        if length.is_some_and(|length| length > 0) && is_untyped(&answer.headers) {
            answer.extensions.insert(Untyped);
        }
        Response::from_parts(answer, ProxyBody::relay(relay))
    }

    /// Opens a tunnel if the upstream switched to the protocol that the client requested, else answers 502.
    pub async fn switch<P: UpstreamSlot>(
        &self,
        kind: RequestKind,
        (mut answer, switched): (response::Parts, Option<HeaderValue>),
        source: Source,
        mut in_flight: InFlight<P>,
    ) -> Response<ProxyBody<P>> {
        let agreed = kind.upgrade.zip(switched).filter(|((protocol, _), given)| {
            protocol.as_bytes().eq_ignore_ascii_case(given.as_bytes())
        });
        let (Source::Http1(connection, _), Some(((_, client_side), protocol))) = (source, agreed)
        else {
            note(in_flight.exchange.as_ref(), Outcome::Failed);
            return respond::error(
                StatusCode::BAD_GATEWAY,
                &format!(
                    "{} switched to a protocol that was not requested",
                    self.peer
                ),
            );
        };
        // From here on the client's connection is a tunnel, in which the end of input does not mean that the client is gone.
        in_flight.serving = None;
        if let Some(connection) = &self.client.http1 {
            connection.note_upgraded();
        }
        let (upstream, early) = connection.into_tunnel().await;
        answer
            .headers
            .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        answer.headers.insert(UPGRADE, protocol);
        let tunnel = Tunnel {
            client: client_side,
            upstream,
            early,
            in_flight,
            timeouts: self.timeouts.clone(),
        };
        self.tunnels.spawn(tunnel.run());
        Response::from_parts(answer, ProxyBody::empty())
    }
}

/// Converts the head of the upstream's answer to the proxy's: removes hop-by-hop headers and normalises the length.
/// Returns the protocol to which the upstream switches, if any.
///
/// # Errors
/// Returns an error if the answer cannot be passed on: too many header lines, an unsupported transfer coding, or an
/// invalid length.
pub fn prepare(
    answer: &mut response::Parts,
    peer: &'static str,
) -> Result<Option<HeaderValue>, UpstreamError> {
    answer.extensions = http::Extensions::new();
    answer.version = Version::HTTP_11;
    if answer.headers.len() > HEAD_LINES_MAX {
        return Err(UpstreamError::TooManyHeaders { peer });
    }
    let switched = headers::upgrade_protocol(&answer.headers);
    if answer.headers.contains_key(TRANSFER_ENCODING) {
        if headers::has_strange_coding(&answer.headers) {
            return Err(UpstreamError::StrangeCoding { peer });
        }
        // RFC 9112 6.3: the transfer coding overrides the length.
        answer.headers.remove(CONTENT_LENGTH);
    }
    if answer.status == StatusCode::NO_CONTENT {
        // RFC 9110 8.6: a 204 must not have a length.
        answer.headers.remove(CONTENT_LENGTH);
    }
    headers::normalize_content_length(&mut answer.headers)
        .map_err(|BadLength| UpstreamError::BadLength { peer })?;
    headers::remove_hop_by_hop(&mut answer.headers);
    if let Some(reason) = headers::reason_phrase(answer.status) {
        answer.extensions.insert(reason);
    }
    Ok(switched)
}

/// Returns whether the head states neither a content type nor an encoding.
fn is_untyped(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_TYPE) && !headers.contains_key(CONTENT_ENCODING)
}
