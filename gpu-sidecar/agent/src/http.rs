//! A small HTTP server: bounded in connections, heads and streams.

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

/// Connections of one listener at a time; who comes later waits.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// Connections of others than the loopback whose clients have not shown a certificate yet; of more the oldest gives way.
const HANDSHAKES_MAX: usize = 256;
/// Bytes of a request's head, at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The same for HTTP/2.
const HEAD_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Lines of it.
const HEAD_LINES_MAX: usize = 64;
/// It has come within this time, and an idle connection is kept for as long.
const HEAD_SPAN: Duration = Duration::from_secs(10);
/// Requests of one HTTP/2 connection at a time.
const STREAMS_MAX: u32 = 16;
/// What is under way at the end has this long.
const DRAIN_SPAN: Duration = Duration::from_secs(1);
/// After a failure to take a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The body of an answer.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

/// Answers requests. Their bodies are not read.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<AnswerBody>> + Send;
}

/// How long connections live, and who may make them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms {
    /// Connections end after it, where there is one.
    pub(crate) lifetime: Option<Duration>,
    /// With it, connections that do not come in by the loopback are of activator-ext's role `control`, by mutual TLS.
    pub(crate) identity: Option<Arc<Identity>>,
}

/// Serves until it is cancelled.
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
            // Clients with certificates get a place after the handshake.
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
                tracing::warn!(%error, "a connection cannot be taken");
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
            let shaken = tokio::select! {
                shaken = identity.accept(stream) => shaken,
                _late = displaced => return,
                () = cancel.cancelled() => return,
            };
            match shaken {
                Ok(stream) if !is_program(&stream, &name_of("control")) => {
                    tracing::warn!("a program of Weir that is not role `control` asks for the control API; it is not taken");
                }
                Ok(stream) => {
                    let _place = places.acquire_owned().await;
                    connection(TokioIo::new(stream), handler, lifetime, cancel).await;
                }
                Err(error) => tracing::debug!(%error, "a client of the control API is not taken"),
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
    // What tells HTTP/1 from HTTP/2 waits for the first bytes without a bound of its own.
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
        // Whatever a client does wrong ends its connection.
        _ended = connection.as_mut() => return,
        () = is_silent => return,
        () = end => connection.as_mut().graceful_shutdown(),
    }
    let _late = tokio::time::timeout(DRAIN_SPAN, connection).await;
}

/// An answer with a text.
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

/// An answer in JSON.
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

/// What is wrong, and what is allowed.
#[derive(Debug, Serialize)]
struct Wrong<'a> {
    error: &'a str,
    allowed: &'a [&'a str],
}

/// An answer to a request that is wrong.
pub(crate) fn wrong(status: StatusCode, error: &str, allowed: &[&str]) -> Response<AnswerBody> {
    json(status, &Wrong { error, allowed })
}

/// A body whose parts come as they happen.
#[derive(Debug)]
pub(crate) struct Stream {
    parts: mpsc::Receiver<Bytes>,
    /// Taken when there are no more parts.
    last: tokio::sync::oneshot::Receiver<Bytes>,
    is_over: bool,
}

/// Where the parts come from.
#[derive(Debug)]
pub(crate) struct StreamSender {
    /// Ends when the client is gone.
    pub(crate) parts: mpsc::Sender<Bytes>,
    /// The last part, whether there is room or not.
    pub(crate) last: tokio::sync::oneshot::Sender<Bytes>,
}

impl Stream {
    /// A body that is at most `parts` behind.
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
                // Its sender is dropped, or has sent, before that of the parts is dropped.
                match self.last.try_recv() {
                    Ok(last) => Poll::Ready(Some(Ok(Frame::data(last)))),
                    Err(_) => Poll::Ready(None),
                }
            }
            Poll::Pending => Poll::Pending,
        }
    }
}
