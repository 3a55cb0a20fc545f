//! The user container: answers with as many bytes as the path states, leaves bodies unread, or echoes without an end.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Either;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// One frame of a large answer.
const PIECE: &[u8] = &[b'x'; 64 * 1024];
/// One frame of an answer in small pieces.
const CRUMB: &[u8] = &[b'x'; 100];

/// A body of `left` bytes in frames of `piece`.
pub(crate) struct Repeated {
    left: usize,
    piece: &'static [u8],
}

impl Body for Repeated {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let piece = self.piece;
        let size = piece.len().min(self.left);
        self.left -= size;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&piece[..size])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

/// Argument which runs this program as the user container.
pub(crate) const ROLE: &str = "--app";

/// The user container's process, separate so that attackers and measuring clients do not compete with it. Killed when dropped.
#[derive(Debug)]
pub(crate) struct App {
    pub port: u16,
    _child: Child,
}

impl App {
    /// Starts the user container and waits for its port.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ROLE)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().context("its output is piped")?;
        let line = BufReader::new(output).lines().next_line().await?;
        let port = line.context("the user container has ended")?.parse()?;
        Ok(Self {
            port,
            _child: child,
        })
    }
}

/// Serves until killed; prints its port as the first line.
pub(crate) async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(stream));
    }
}

async fn serve(stream: TcpStream) {
    let mut begin = [0; 3];
    let peeked = stream.peek(&mut begin).await;
    let speaks_http2 = peeked.is_ok_and(|_| begin == *b"PRI");
    let io = TokioIo::new(stream);
    let service = service_fn(answer);
    // Connections are broken by the attackers.
    if speaks_http2 {
        let _ended = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .serve_connection(io, service)
            .await;
    } else {
        let _ended = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .serve_connection(io, service)
            .with_upgrades()
            .await;
    }
}

type Answer = Response<Either<Repeated, http_body_util::Empty<Bytes>>>;

async fn answer(mut request: Request<Incoming>) -> Result<Answer, Infallible> {
    match request.uri().path() {
        "/ignore" => {
            // The body is neither read nor dropped.
            let () = std::future::pending().await;
        }
        "/tunnel" => {
            tokio::spawn(async move {
                let Ok(upgraded) = hyper::upgrade::on(&mut request).await else {
                    return;
                };
                let mut tunnel = TokioIo::new(upgraded);
                while tunnel.write_all(PIECE).await.is_ok() {}
            });
            let mut answer = Response::new(Either::Right(http_body_util::Empty::new()));
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = answer.headers_mut();
            headers.insert(header::CONNECTION, "Upgrade".parse().expect("a value"));
            headers.insert(header::UPGRADE, "flood".parse().expect("a value"));
            return Ok(answer);
        }
        _ => {}
    }
    let path = request.uri().path();
    let (piece, bytes) = match path.strip_prefix("/crumbs/") {
        Some(bytes) => (CRUMB, bytes),
        None => (PIECE, &path[1..]),
    };
    Ok(Response::new(Either::Left(Repeated {
        left: bytes.parse().unwrap_or(0),
        piece,
    })))
}
