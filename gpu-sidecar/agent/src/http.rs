//! A small HTTP server with bounded connections, heads and streams.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use mutual_tls::{Identity, PendingHandshakes, is_program, name_of};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum number of connections of one listener; later ones wait.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections in the TLS handshake, those on the loopback excluded; beyond it the oldest is dropped.
const HANDSHAKES_MAX: usize = 256;
/// Maximum size of an HTTP/1 request head, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Maximum size of an HTTP/2 header list, in bytes.
const HEAD_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Maximum number of header lines.
const HEAD_LINES_MAX: usize = 64;
/// Timeout for a request head, and for an idle connection.
const HEAD_SPAN: Duration = Duration::from_secs(10);
/// Maximum number of concurrent requests of one HTTP/2 connection.
const STREAMS_MAX: u32 = 16;
/// Time for requests in flight to finish at shutdown.
const DRAIN_SPAN: Duration = Duration::from_secs(1);
/// Pause after a failure to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Body of a response.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

/// Handler of requests. Request bodies are not read.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send;
}

/// Lifetime and authentication of the connections of a listener.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// Longest lifetime of a connection; `None`: unlimited.
    pub(crate) lifetime: Option<Duration>,
    /// Where set, connections from outside the loopback need mutual TLS as activator-ext's role `control`.
    pub(crate) identity: Option<Arc<Identity>>,
}

/// Accepts and serves connections until `cancel` is cancelled, then drains them for [`DRAIN_SPAN`].
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    handler: Arc<H>,
    terms: Terms,
    cancel: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut handshakes = PendingHandshakes::new(HANDSHAKES_MAX);
    let tasks = TaskTracker::new();
    loop {
        let accepted = async {
            // Clients with certificates get a permit after the handshake.
            let place = match terms.identity {
                None => Arc::clone(&places).acquire_owned().await.ok(),
                Some(_) => None,
            };
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = cancel.cancelled() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let _slower = stream.set_nodelay(true);
        let (handler, cancel) = (Arc::clone(&handler), cancel.clone());
        let is_local = stream
            .local_addr()
            .is_ok_and(|local| local.ip().to_canonical().is_loopback());
        let identity = terms.identity.clone().filter(|_| !is_local);
        let lifetime = terms.lifetime;
        let places = Arc::clone(&places);
        let handshake = identity.map(|identity| (identity, handshakes.begin()));
        tasks.spawn(async move {
            let Some((identity, displaced)) = handshake else {
                let _place = match place {
                    Some(place) => Some(place),
                    None => places.acquire_owned().await.ok(),
                };
                connection(TokioIo::new(stream), handler, lifetime, cancel).await;
                return;
            };
            let accepted = tokio::select! {
                accepted = identity.accept(stream) => accepted,
                _late = displaced => return,
                () = cancel.cancelled() => return,
            };
            match accepted {
                Ok(stream) if !is_program(&stream, &name_of("control")) => {
                    tracing::warn!("refused a connection to the control API: the certificate is not that of role `control`");
                }
                Ok(stream) => {
                    let _place = places.acquire_owned().await;
                    connection(TokioIo::new(stream), handler, lifetime, cancel).await;
                }
                Err(error) => tracing::debug!(%error, "TLS handshake of a control API client failed"),
            }
        });
    }
    drop(listener);
    tasks.close();
    let _left = tokio::time::timeout(DRAIN_SPAN, tasks.wait()).await;
}

async fn connection<H: Handler>(
    io: TokioIo<impl AsyncRead + AsyncWrite + Unpin + Send + 'static>,
    handler: Arc<H>,
    lifetime: Option<Duration>,
    cancel: CancellationToken,
) {
    let begun = Arc::new(Notify::new());
    let service = service_fn({
        let begun = Arc::clone(&begun);
        move |request| {
            begun.notify_one();
            let handler = Arc::clone(&handler);
            async move { Ok::<_, Infallible>(handler.handle(request).await) }
        }
    });
    // The detection of the HTTP version waits for the first bytes without a timeout of its own.
    let is_silent = async {
        if tokio::time::timeout(HEAD_SPAN, begun.notified())
            .await
            .is_ok()
        {
            pending::<()>().await;
        }
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_SPAN)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEAD_LINES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(HEAD_SPAN)
        .keep_alive_timeout(HEAD_SPAN)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_LIST_BYTES_MAX);
    let mut connection = pin!(builder.serve_connection(io, service));
    let end = async {
        match lifetime {
            Some(lifetime) => {
                let _cancelled = tokio::time::timeout(lifetime, cancel.cancelled()).await;
            }
            None => cancel.cancelled().await,
        }
    };
    tokio::select! {
        // A protocol error ends the connection.
        _ended = connection.as_mut() => return,
        () = is_silent => return,
        () = end => connection.as_mut().graceful_shutdown(),
    }
    let _late = tokio::time::timeout(DRAIN_SPAN, connection).await;
}

/// Returns a response with this status, content type and body.
pub(crate) fn answer(
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Bytes>,
) -> Response<AnswerBody> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Returns a response with `body` as JSON and a final newline.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response<AnswerBody> {
    match serde_json::to_vec(body) {
        Ok(mut text) => {
            text.push(b'\n');
            answer(status, "application/json", text)
        }
        Err(error) => answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            "text/plain; charset=utf-8",
            error.to_string(),
        ),
    }
}

/// Body of an error response: the error and the allowed values.
#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    allowed: &'a [&'a str],
}

/// Returns an error response with the allowed values.
pub(crate) fn error_response(
    status: StatusCode,
    error: &str,
    allowed: &[&str],
) -> Response<AnswerBody> {
    json(status, &ErrorBody { error, allowed })
}

/// A streamed response body with parts that are produced over time.
#[derive(Debug)]
pub(crate) struct Stream {
    parts: mpsc::Receiver<Bytes>,
    /// Final part, read after the channel of the parts is closed.
    last: tokio::sync::oneshot::Receiver<Bytes>,
    is_over: bool,
}

/// Sending side of a [`Stream`].
#[derive(Debug)]
pub(crate) struct StreamSender {
    /// Channel of the parts; closed when the client disconnects.
    pub(crate) parts: mpsc::Sender<Bytes>,
    /// Sends the final part, regardless of the room in `parts`.
    pub(crate) last: tokio::sync::oneshot::Sender<Bytes>,
}

impl Stream {
    /// Creates a body and its sender, with room for `parts` unread parts.
    pub(crate) fn new(parts: usize) -> (StreamSender, Self) {
        let (sender, receiver) = mpsc::channel(parts);
        let (last_sender, last) = tokio::sync::oneshot::channel();
        let stream = Self {
            parts: receiver,
            last,
            is_over: false,
        };
        let sender = StreamSender {
            parts: sender,
            last: last_sender,
        };
        (sender, stream)
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        match self.parts.poll_recv(context) {
            Poll::Ready(Some(part)) => Poll::Ready(Some(Ok(Frame::data(part)))),
            Poll::Ready(None) => {
                self.is_over = true;
                // The sender of the final part is used or dropped before that of the parts.
                match self.last.try_recv() {
                    Ok(last) => Poll::Ready(Some(Ok(Frame::data(last)))),
                    Err(_) => Poll::Ready(None),
                }
            }
            Poll::Pending => Poll::Pending,
        }
    }
}
