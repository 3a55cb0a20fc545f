//! The server on port 9475 for other pods: TLS under the cluster's authority. Role `control` authenticates by
//! certificate, other clients by token (contracts §3).

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::header::{AUTHORIZATION, CONNECTION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use live::page::Page;
use live::server::bound_silence;
use mutual_tls::{Identity, PendingHandshakes, is_program, name_of};
use proxy::body::ProxyBody;
use proxy::buffered::Piece;
use proxy::relay::BodyError;
use proxy::respond;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tower::BoxError;

use super::access::{Access, NoAccess};
use super::{Functions, Scope};

/// Largest number of connections of clients with tokens.
const CLIENTS_MAX: usize = 64;
/// Largest number of connections of role `control` and of the pod's own loopback. They are counted apart, so that
/// clients with tokens cannot exhaust them: a browser opens six.
const CONTROLS_MAX: usize = 64;
/// Largest number of connections in a handshake; beyond it the oldest is closed.
const HANDSHAKES_MAX: usize = 256;
/// Longest time until a request's head is complete, and until an idle connection is closed.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Largest request head in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest life of a connection, after which the client has to authenticate again.
const LIFETIME: Duration = Duration::from_secs(600);
/// Time after [`LIFETIME`] for answers in flight.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// Pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The resource served on port 9475.
#[derive(Debug)]
pub(crate) enum Resource {
    /// Of role `data`: `/v1/functions`.
    Functions(Arc<Functions>),
    /// Of role `control`: `/live/`, for clients that may see all functions.
    Live(Arc<Page>),
}

/// The body of a response.
type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// Serves a resource to other pods.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) resource: Resource,
    pub(crate) identity: Arc<Identity>,
    /// The reviewer of tokens; `None` where views come from manifests: tokens are refused.
    pub(crate) access: Option<Access>,
}

/// The authenticated origin of a connection.
#[derive(Debug, Clone, Copy)]
enum Peer {
    /// The pod's loopback: its own containers, and forwarded ports.
    Local,
    /// Role `control`, authenticated by its certificate.
    Control,
    /// A client at this address, which has to send a token.
    Client(IpAddr),
}

/// Permits for connections, by kind of client.
#[derive(Debug)]
struct ConnectionPermits {
    clients: Semaphore,
    controls: Semaphore,
}

impl Remote {
    /// Accepts connections and serves them; never returns.
    pub(crate) async fn run(self: Arc<Self>, listener: TcpListener) {
        let permits = Arc::new(ConnectionPermits {
            clients: Semaphore::new(CLIENTS_MAX),
            controls: Semaphore::new(CONTROLS_MAX),
        });
        let mut handshakes = PendingHandshakes::new(HANDSHAKES_MAX);
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to port 9475");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (own, permits) = (Arc::clone(&self), Arc::clone(&permits));
            let displaced = handshakes.begin();
            tokio::spawn(async move { own.connection(stream, displaced, &permits).await });
        }
    }

    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        displaced: oneshot::Receiver<()>,
        permits: &ConnectionPermits,
    ) {
        bound_silence(&stream);
        let Ok(peer) = stream.peer_addr() else {
            return;
        };
        let from = peer.ip().to_canonical();
        if stream.local_addr().is_ok_and(|local| is_own(local.ip())) {
            drop(displaced);
            if let Ok(_permit) = permits.controls.acquire().await {
                self.exchange(stream, Peer::Local).await;
            }
            return;
        }
        let shaken = tokio::select! {
            shaken = self.identity.accept_any(stream) => shaken,
            _late = displaced => return,
        };
        match shaken {
            Ok(stream) if is_program(&stream, &name_of("control")) => {
                if let Ok(_permit) = permits.controls.acquire().await {
                    self.exchange(stream, Peer::Control).await;
                }
            }
            // Over the limit the connection is closed at once: the client notices, and may retry.
            Ok(stream) => match permits.clients.try_acquire() {
                Ok(_permit) => self.exchange(stream, Peer::Client(from)).await,
                Err(_) => tracing::debug!(%from, "too many clients on port 9475"),
            },
            Err(error) => tracing::debug!(%error, "TLS handshake failed on port 9475"),
        }
    }

    /// Serves a connection until it ends, for at most [`LIFETIME`] and [`DRAIN_MAX`].
    async fn exchange(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
    ) {
        let service = service_fn(move |request: Request<Incoming>| {
            let own = Arc::clone(&self);
            async move { Ok::<_, Infallible>(own.answer(request, peer).await) }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
        );
        tokio::select! {
            // A client's error ends only its own connection.
            _ended = connection.as_mut() => return,
            () = tokio::time::sleep(LIFETIME) => connection.as_mut().graceful_shutdown(),
        }
        let _late = tokio::time::timeout(DRAIN_MAX, connection).await;
    }

    async fn answer(&self, request: Request<Incoming>, peer: Peer) -> Response<AnswerBody> {
        let scope = match peer {
            Peer::Local | Peer::Control => Ok(Scope::All),
            Peer::Client(from) => match (bearer(request.headers()), &self.access) {
                (Some(token), Some(access)) => access.scope(token, from).await,
                _ => Err(NoAccess::Unauthenticated),
            },
        };
        match scope {
            Ok(scope) => {
                let is_known = !matches!(peer, Peer::Local);
                self.resource
                    .respond(request.map(drop), scope, is_known)
                    .await
            }
            Err(refusal) => boxed(refuse(&refusal)),
        }
    }
}

impl Resource {
    async fn respond(
        &self,
        request: Request<()>,
        scope: Scope,
        is_known: bool,
    ) -> Response<AnswerBody> {
        match (self, scope) {
            (Self::Functions(functions), scope) => boxed(functions.respond(request, scope).await),
            (Self::Live(page), Scope::All) => {
                let answer = page.respond(&request, is_known).await;
                answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
            }
            (Self::Live(_), Scope::Namespace(namespace)) => {
                let why = format!(
                    "a pod of {namespace} sees its own functions only, and this page has all"
                );
                boxed(respond::error(StatusCode::FORBIDDEN, &why))
            }
        }
    }
}

fn boxed(answer: Response<ProxyBody>) -> Response<AnswerBody> {
    answer.map(|body| BytesBody(body).map_err(BoxError::from).boxed_unsync())
}

/// A body produced by this process, with its frames converted to [`Bytes`].
#[derive(Debug)]
struct BytesBody(ProxyBody);

impl Body for BytesBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let polled = Pin::new(&mut self.0).poll_frame(context);
        let bytes = |mut piece: Piece| piece.copy_to_bytes(piece.remaining());
        polled.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Returns whether a local address is one of the loopback, which only this pod's own containers can reach.
fn is_own(local: IpAddr) -> bool {
    [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ]
    .contains(&local.to_canonical())
}

/// Returns the bearer token of a request (RFC 6750, section 2.1).
fn bearer(head: &HeaderMap) -> Option<&str> {
    let (scheme, token) = head.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns a refusal that closes the connection, so that another client may have its permit.
fn refuse(refusal: &NoAccess) -> Response<ProxyBody> {
    let mut answer = refusal_of(refusal);
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(CONNECTION, close);
    answer
}

fn refusal_of(refusal: &NoAccess) -> Response<ProxyBody> {
    match refusal {
        NoAccess::Unauthenticated => {
            let text = "a bearer token is required (Authorization: Bearer …): that of a user of this cluster, or of a pod for the audience weir.dev";
            let mut answer = respond::error(StatusCode::UNAUTHORIZED, text);
            let challenge = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            answer
        }
        NoAccess::Forbidden(user) => {
            let text = format!("{user} may not get gpufunctions.weir.dev in all namespaces");
            respond::error(StatusCode::FORBIDDEN, &text)
        }
        NoAccess::TooMany => {
            let text = "too many tokens from this address were refused; try again in a minute";
            respond::error(StatusCode::TOO_MANY_REQUESTS, text)
        }
        NoAccess::Unavailable => {
            let text = "the Kubernetes API did not review the token; try again";
            respond::error(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_is_accepted() {
        let token = |value: &'static str| {
            let mut head = HeaderMap::new();
            head.insert(AUTHORIZATION, HeaderValue::from_static(value));
            bearer(&head).map(str::to_owned)
        };
        assert_eq!(token("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(token("bearer  abc "), Some("abc".to_owned()));
        for other in ["Basic abc", "Bearer", "Bearer ", "abc"] {
            assert_eq!(token(other), None, "{other}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
