//! Routes of the server, and streamed responses.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::{mpsc, oneshot, watch};

use crate::checksum::CheckedBlocks;
use crate::failure::Failure;
use crate::queue::Job;
use crate::request::{Answer, Request as Inference, monotonic_ns};
use crate::server::{Condition, Server};

/// Maximum size of a request body, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of lines per chunk.
const LINES_MAX: u64 = 256;
/// Maximum number of chunks queued for a slow client.
const CHUNKS_MAX: usize = 4;

const ROUTES: &str = "known: POST /infer, GET /ready, GET /health, GET /health?gpu=1, GET /served, GET /stats, \
                     GET /checksum?first=N&count=N&seed=N";

/// Body of a response.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// The whole body; `None` after it was sent.
    Whole(Option<Bytes>),
    /// Chunks of lines as they are computed; an error closes the connection.
    Lines(mpsc::Receiver<io::Result<Bytes>>),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Whole(whole) => Poll::Ready(whole.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Lines(lines) => lines
                .poll_recv(context)
                .map(|lines| lines.map(|lines| lines.map(Frame::data))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(Some(bytes)) => {
                SizeHint::with_exact(u64::try_from(bytes.len()).unwrap_or(u64::MAX))
            }
            Self::Whole(None) => SizeHint::with_exact(0),
            Self::Lines(_) => SizeHint::default(),
        }
    }
}

fn respond(status: StatusCode, kind: &'static str, body: String) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::Whole(Some(Bytes::from(body))));
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static(kind);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, kind);
    response
}

fn text(status: StatusCode, body: impl Into<String>) -> Response<ResponseBody> {
    respond(status, "text/plain", body.into())
}

fn json(body: String) -> Response<ResponseBody> {
    respond(StatusCode::OK, "application/json", body)
}

fn failed(failure: &Failure) -> Response<ResponseBody> {
    text(StatusCode::INTERNAL_SERVER_ERROR, failure.to_string())
}

/// Routes a request and returns its response.
pub(crate) async fn answer(
    server: Arc<Server>,
    request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    Ok(match (request.method(), request.uri().path()) {
        (&Method::POST, "/infer") => infer(&server, request).await,
        (_, "/ready") => match server.condition() {
            Condition::Ready => text(StatusCode::OK, "ready"),
            Condition::Loading => text(StatusCode::SERVICE_UNAVAILABLE, "loading"),
            Condition::Failed(failure) => {
                text(StatusCode::SERVICE_UNAVAILABLE, failure.to_string())
            }
        },
        (_, "/health") => health(&server, &query).await,
        (_, "/served") => text(StatusCode::OK, server.served().to_string()),
        // Serialisation of numbers and strings cannot fail.
        (_, "/stats") => json(serde_json::to_string(&server.stats()).unwrap_or_default()),
        (_, "/checksum") => checksum(server, &query).await,
        _ => text(StatusCode::NOT_FOUND, ROUTES),
    })
}

async fn health(server: &Server, query: &str) -> Response<ResponseBody> {
    if let Condition::Failed(failure) = server.condition() {
        return failed(&failure);
    }
    if !query.split('&').any(|pair| pair == "gpu=1") {
        return text(StatusCode::OK, "healthy");
    }
    let (reply, checked) = oneshot::channel();
    if server.condition() == Condition::Loading || !server.queue.probe(reply) {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "no worker is available to check the GPU",
        );
    }
    match checked.await.unwrap_or(Err(Failure::Worker)) {
        Ok(()) => text(StatusCode::OK, "healthy"),
        Err(failure) => failed(&failure),
    }
}

/// Returns the expected checksum for the query's blocks and seed.
async fn checksum(server: Arc<Server>, query: &str) -> Response<ResponseBody> {
    let number = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let mut value = pairs
            .filter(|(own, _)| *own == name)
            .map(|(_, value)| value);
        value
            .next_back()
            .map_or(Some(0), |value| value.parse::<u64>().ok())
    };
    let (Some(first), Some(count), Some(seed)) = (number("first"), number("count"), number("seed"))
    else {
        return text(
            StatusCode::BAD_REQUEST,
            "first, count and seed: allowed: whole numbers",
        );
    };
    let blocks = server.reference.blocks().len();
    let (Ok(first), Ok(count)) = (usize::try_from(first), usize::try_from(count)) else {
        return text(StatusCode::BAD_REQUEST, "first and count: out of range");
    };
    if count > blocks {
        let why = format!("count = {count}: allowed: at most {blocks} blocks");
        return text(StatusCode::BAD_REQUEST, why);
    }
    // Takes as long as generating the weights.
    let right = tokio::task::spawn_blocking(move || {
        server
            .reference
            .checksum(CheckedBlocks { first, count }, seed)
    });
    match right.await {
        Ok(right) => text(StatusCode::OK, format!("{right:016x}")),
        Err(_) => failed(&Failure::Worker),
    }
}

async fn infer(server: &Server, request: Request<Incoming>) -> Response<ResponseBody> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX)
        .collect()
        .await;
    let body = match body {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            let why = format!("cannot read the body: {error}");
            return text(StatusCode::BAD_REQUEST, why);
        }
    };
    let inference = match Inference::parse(&body) {
        Ok(inference) => inference,
        Err(why) => return text(StatusCode::BAD_REQUEST, why),
    };
    match server.condition() {
        Condition::Ready => {}
        Condition::Loading => return text(StatusCode::SERVICE_UNAVAILABLE, "loading"),
        Condition::Failed(failure) => return failed(&failure),
    }
    let (reply, answer) = oneshot::channel();
    let (progress, units) = watch::channel(0);
    let is_waiting = server.queue.push(Job {
        request: inference,
        reply,
        progress: inference.stream.then_some(progress),
        arrived: Instant::now(),
        read_ns: monotonic_ns(),
    });
    if !is_waiting {
        return text(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many waiting requests, or the server is stopping",
        );
    }
    if inference.stream {
        return stream(inference.work.output, units, answer).await;
    }
    match answer.await.unwrap_or(Err(Failure::Worker)) {
        Ok(answer) => json(answer.json()),
        Err(failure) => failed(&failure),
    }
}

type AnswerReceiver = oneshot::Receiver<Result<Answer, Failure>>;

/// Returns a response with a line per unit as it is computed, and the answer as the last line.
async fn stream(
    output: u64,
    mut units: watch::Receiver<u64>,
    mut answer: AnswerReceiver,
) -> Response<ResponseBody> {
    // The head waits for the first unit, so that earlier failures set the status.
    let first = tokio::select! {
        biased;
        answer = &mut answer => Some(answer.unwrap_or(Err(Failure::Worker))),
        _changed = units.changed() => None,
    };
    if let Some(Err(failure)) = first {
        return failed(&failure);
    }
    let (lines, body) = mpsc::channel(CHUNKS_MAX);
    tokio::spawn(async move {
        let mut sent = 0;
        let mut ended = first;
        // A disconnected client ends this task, and the worker then skips the request.
        while ended.is_none() {
            let computed = *units.borrow_and_update();
            if send(&lines, &mut sent, computed).await.is_err() {
                return;
            }
            tokio::select! {
                biased;
                answer = &mut answer => ended = Some(answer.unwrap_or(Err(Failure::Worker))),
                changed = units.changed() => if changed.is_err() {
                    ended = Some((&mut answer).await.unwrap_or(Err(Failure::Worker)));
                },
            }
        }
        let last = match ended {
            Some(Ok(answer)) => {
                if send(&lines, &mut sent, output).await.is_err() {
                    return;
                }
                Ok(Bytes::from(answer.json() + "\n"))
            }
            Some(Err(failure)) => Err(io::Error::other(failure.to_string())),
            None => return,
        };
        // Fails when the client has disconnected.
        drop(lines.send(last).await);
    });
    let mut response = Response::new(ResponseBody::Lines(body));
    let kind = http::HeaderValue::from_static("application/x-ndjson");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, kind);
    response
}

/// Sends the lines of the units after `sent` up to `computed`.
async fn send(
    lines: &mpsc::Sender<io::Result<Bytes>>,
    sent: &mut u64,
    computed: u64,
) -> Result<(), mpsc::error::SendError<io::Result<Bytes>>> {
    while *sent < computed {
        let until = computed.min(sent.saturating_add(LINES_MAX));
        let chunk: String = (*sent + 1..=until)
            .map(|unit| format!("{{\"unit\":{unit}}}\n"))
            .collect();
        lines.send(Ok(Bytes::from(chunk))).await?;
        *sent = until;
    }
    Ok(())
}
