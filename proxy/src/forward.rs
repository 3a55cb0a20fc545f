//! One request's way to an upstream, and its answer's way back, in the protocol in which it came.

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
use crate::relay::{InFlight, Place, Relay, Source};
use crate::respond;
use crate::timeouts::Timeouts;
use crate::traces::TraceIds;
use crate::tunnel::Tunnel;
use crate::upstream::{Upstream, UpstreamError};

/// What has to be known of a request when its answer comes.
#[derive(Debug)]
pub struct RequestKind {
    /// It came over HTTP/2.
    pub http2: bool,
    /// It is a gRPC call.
    pub grpc: bool,
    /// HEAD: the answer has no body whatever its head says.
    pub head_only: bool,
    /// The protocol it wants to switch to, and the client's side of the tunnel then.
    pub upgrade: Option<(HeaderValue, OnUpgrade)>,
}

impl RequestKind {
    /// Returns what has to be known of this one. What it wants to switch to is taken off the request.
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

/// The mark on a response whose type is to be found in its first bytes.
#[derive(Debug, Clone, Copy)]
pub struct Untyped;

/// Notes how a request ends, where somebody observes it.
pub fn note(exchange: Option<&Arc<Exchange>>, outcome: Outcome) {
    if let Some(exchange) = exchange {
        exchange.note(outcome);
    }
}

/// Returns the names of a request's trace and span as hexadecimal digits, where it has them: the keys `trace_id` and `span_id` of lines
/// in the log.
#[must_use]
pub fn trace_of(exchange: Option<&Arc<Exchange>>) -> (Option<String>, Option<String>) {
    let ids = exchange.and_then(|exchange| exchange.trace());
    ids.map(TraceIds::texts).unzip()
}

/// Returns the length of a request's body, in bytes; `None`: it is not known.
#[must_use]
pub fn body_length(request: &Request<ClientBody>) -> Option<u64> {
    if request.body().is_empty() {
        Some(0)
    } else {
        headers::content_length(request.headers())
    }
}

/// Awaits `wait` and reads of the request's body meanwhile, so that a client that leaves is noticed.
pub async fn read_ahead_while<T>(
    mut wait: Pin<&mut impl Future<Output = T>>,
    client: &Client,
    request: &mut Request<ClientBody>,
    read_ahead: &Arc<ReadAhead>,
) -> T {
    // A client that expects `100 Continue` would take reading for it.
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

/// A request is answered without its body.
pub fn discard(request: &mut Request<ClientBody>) {
    drop(std::mem::take(request));
}

/// Gives a request the form in which it goes to the upstream. `host`: the one that it is to name, where that is not what
/// it came with; `default_host`: the one for a request that names none.
///
/// # Errors
/// Its target is too long once it is escaped.
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
        // HTTP/1.0 may come without; HTTP/1.1 may not.
        request.headers_mut().insert(HOST, default_host.clone());
    }
    if !headers::is_origin_form(request.uri()) {
        *request.uri_mut() = Uri::try_from(headers::origin_form(request.uri()))?;
    }
    let is_empty = request.body().is_empty();
    let headers = request.headers_mut();
    if !is_empty && !headers.contains_key(CONTENT_LENGTH) {
        // hyper sends no body with a GET unless told so.
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    } else {
        headers.remove(TRAILER);
    }
    Ok(())
}

/// An HTTP/2 request names its scheme and authority in its target.
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

/// Sends a request in the protocol in which it came; returns at the head of the answer. `refresh` brings its
/// headers up to date before it is sent a second time.
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

/// What an answer is passed on with.
#[derive(Debug)]
pub struct Passage<'a> {
    /// To whom.
    pub client: &'a Client,
    /// What error messages call the upstream.
    pub peer: &'static str,
    /// The limits of the request.
    pub timeouts: &'a Timeouts,
    /// Where what is held for slow clients is accounted for.
    pub buffered: &'a Arc<Buffered>,
    /// How a response that has begun ends at a timeout.
    pub mid_stream_timeout: MidStreamTimeout,
    /// Tunnels that are open.
    pub tunnels: &'a TaskTracker,
}

impl Passage<'_> {
    /// Passes an answer on: a head, then a body. `begun`: when the request was dispatched, if the client is to hear how
    /// long it took.
    pub fn relay<P: Place>(
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
        // A failure says nothing of how long the work takes.
        let learn = !answer.status.is_server_error();
        if incoming.is_end_stream() {
            // It stays a head alone: gRPC's errors are such, and a trailer would hide the status in the head.
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

    /// Opens a tunnel, if the upstream switched to the protocol that the client asked for.
    pub async fn switch<P: Place>(
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
                    "{} switched to a protocol that was not asked for",
                    self.peer
                ),
            );
        };
        // The client's connection is a tunnel's from here on: its end of input is the tunnel's.
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

/// Makes the head of the upstream's answer that of the proxy's: what concerns their connection alone is
/// taken away. Returns the protocol it says to switch to.
///
/// # Errors
/// It cannot be passed on.
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
        // RFC 9112 6.3: the length is of no account then.
        answer.headers.remove(CONTENT_LENGTH);
    }
    if answer.status == StatusCode::NO_CONTENT {
        // RFC 9110 8.6: it has none.
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

/// Neither a type nor an encoding is stated.
fn is_untyped(headers: &HeaderMap) -> bool {
    !headers.contains_key(CONTENT_TYPE) && !headers.contains_key(CONTENT_ENCODING)
}
