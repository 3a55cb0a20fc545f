//! 9475 with a certificate: TLS under the cluster's authority for others than this pod. Role `control` shows a certificate; anybody
//! else a token (design 4.3).

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mutual_tls::{Identity, is_program, name_of};
use proxy::body::ProxyBody;
use proxy::respond;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::access::{Access, NoAccess};
use super::{Functions, Scope};

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// A head has come within this time, and an idle connection is kept for as long.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Bytes of a head, at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Connections end after so long: who was let in is asked for a certificate anew.
const LIFETIME: Duration = Duration::from_secs(600);
/// Answers under way then have this long.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// After a failure to take a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Describes functions to other pods.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) functions: Arc<Functions>,
    pub(crate) identity: Arc<Identity>,
    /// Where views come from manifests, there is nobody who knows tokens.
    pub(crate) access: Option<Access>,
}

impl Remote {
    /// Serves for ever.
    pub(crate) async fn run(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // Never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection to 9475 cannot be taken");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let own = Arc::clone(&self);
            tokio::spawn(async move {
                let _place = place;
                own.connection(stream).await;
            });
        }
    }

    async fn connection(self: Arc<Self>, stream: TcpStream) {
        // It only makes answers later.
        let _slower = stream.set_nodelay(true);
        if stream.local_addr().is_ok_and(|local| is_own(local.ip())) {
            self.exchange(stream, true).await;
            return;
        }
        match self.identity.accept_any(stream).await {
            Ok(stream) => {
                let is_control = is_program(&stream, &name_of("control"));
                self.exchange(stream, is_control).await;
            }
            Err(error) => tracing::debug!(%error, "a client of 9475 is not taken"),
        }
    }

    /// Answers what comes on a connection, to the end of it.
    async fn exchange(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        is_trusted: bool,
    ) {
        let service = service_fn(move |request: Request<Incoming>| {
            let own = Arc::clone(&self);
            async move { Ok::<_, Infallible>(own.answer(request, is_trusted).await) }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service)
        );
        tokio::select! {
            // What a client does wrong ends its connection.
            _ended = connection.as_mut() => return,
            () = tokio::time::sleep(LIFETIME) => connection.as_mut().graceful_shutdown(),
        }
        let _late = tokio::time::timeout(DRAIN_MAX, connection).await;
    }

    async fn answer(&self, request: Request<Incoming>, is_trusted: bool) -> Response<ProxyBody> {
        let scope = if is_trusted {
            Ok(Scope::All)
        } else {
            match (bearer(request.headers()), &self.access) {
                (Some(token), Some(access)) => access.scope(token).await,
                _ => Err(NoAccess::Unauthenticated),
            }
        };
        match scope {
            Ok(scope) => self.functions.respond(request.map(drop), scope).await,
            Err(refusal) => refuse(&refusal),
        }
    }
}

/// Whether an address is that by which only this pod's own containers come.
fn is_own(local: IpAddr) -> bool {
    [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ]
    .contains(&local.to_canonical())
}

/// Returns the token of a request (RFC 6750, section 2.1).
fn bearer(head: &HeaderMap) -> Option<&str> {
    let (scheme, token) = head.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn refuse(refusal: &NoAccess) -> Response<ProxyBody> {
    match refusal {
        NoAccess::Unauthenticated => {
            let text = "a token is needed: Authorization: Bearer …, of a user of this cluster, or of a pod for the audience weir.dev";
            let mut answer = respond::error(StatusCode::UNAUTHORIZED, text);
            let challenge = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            answer
        }
        NoAccess::Forbidden(user) => {
            let text = format!("{user} may not get gpufunctions.weir.dev in all namespaces");
            respond::error(StatusCode::FORBIDDEN, &text)
        }
        NoAccess::Unavailable => {
            let text = "the Kubernetes API does not say whose token this is; try again";
            respond::error(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_is_one() {
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
