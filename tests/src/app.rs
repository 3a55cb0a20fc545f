//! The user container over HTTP/1: a server with scripted answers, delays and faults.

use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::message::{Kind, Message, read_body, read_head};

/// A user container, stopped when dropped.
#[derive(Debug)]
pub struct App {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Requests and connections so far.
    pub log: Arc<RequestLog>,
    task: JoinHandle<()>,
}

/// Record of the requests and connections at a user container.
#[derive(Debug, Default)]
pub struct RequestLog {
    requests: Mutex<Vec<Message>>,
    connections: AtomicUsize,
    live: AtomicUsize,
    live_max: AtomicUsize,
    cancelled: AtomicUsize,
}

impl RequestLog {
    /// Returns all requests, in the order in which their heads arrived.
    pub fn requests(&self) -> Vec<Message> {
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns all requests but an activator's probes.
    pub fn served(&self) -> Vec<Message> {
        let mut requests = self.requests();
        requests.retain(|request| request.header("k-network-probe").is_none());
        requests
    }

    /// Returns the last request.
    ///
    /// # Panics
    /// If there was none.
    pub fn last(&self) -> Message {
        self.requests()
            .pop()
            .expect("a request at the user container")
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of requests being served.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Returns the largest number of requests served at once.
    pub fn live_max(&self) -> usize {
        self.live_max.load(Ordering::SeqCst)
    }

    /// Returns the number of requests abandoned by the other side before their answer.
    pub fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::SeqCst)
    }

    fn note(&self, request: &Message) {
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(request.clone());
    }
}

/// A connection at the user container.
#[derive(Debug)]
pub struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    log: Arc<RequestLog>,
}

impl App {
    /// Starts a user container which runs `serve` for every connection.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn raw<F, S>(serve: F) -> Self
    where
        F: Fn(Connection) -> S + Send + Sync + 'static,
        S: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let log = Arc::<RequestLog>::default();
        let task = tokio::spawn({
            let log = Arc::clone(&log);
            async move {
                let mut connections = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    log.connections.fetch_add(1, Ordering::SeqCst);
                    connections.spawn(serve(Connection::new(stream, Arc::clone(&log))));
                }
            }
        });
        Self { port, log, task }
    }

    /// Starts a user container which answers every request with the bytes that `answer` returns, on persistent connections.
    pub async fn serving<F, S>(answer: F) -> Self
    where
        F: Fn(Message) -> S + Send + Sync + 'static,
        S: Future<Output = Vec<u8>> + Send + 'static,
    {
        let answer = Arc::new(answer);
        Self::raw(move |mut connection| {
            let answer = Arc::clone(&answer);
            async move {
                while let Some(request) = connection.request().await {
                    let Some(bytes) = connection.run_unless_closed(answer(request)).await else {
                        return;
                    };
                    if connection.try_write(bytes).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await
    }

    /// Starts a user container which answers every request with 200 and this body.
    pub async fn saying(body: &'static str) -> Self {
        Self::serving(move |_| async move { ok(body) }).await
    }

    /// Starts a user container which answers after as many milliseconds as the target's last segment states; 0 if it is not a
    /// number.
    pub async fn delaying() -> Self {
        Self::serving(|request| async move {
            let last = request.target().rsplit('/').next().unwrap_or("");
            let delay = Duration::from_millis(last.parse().unwrap_or(0));
            tokio::time::sleep(delay).await;
            ok("done")
        })
        .await
    }

    /// Starts a user container which reads requests and never answers.
    pub async fn silent() -> Self {
        Self::serving(|_| std::future::pending::<Vec<u8>>()).await
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a 200 response with a body.
#[must_use]
pub fn ok(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Returns a body chunk in chunked transfer coding.
#[must_use]
pub fn chunk(data: &str) -> Vec<u8> {
    format!("{:x}\r\n{data}\r\n", data.len()).into_bytes()
}

impl Connection {
    fn new(stream: TcpStream, log: Arc<RequestLog>) -> Self {
        stream.set_nodelay(true).expect("a socket");
        let (reader, writer) = stream.into_split();
        Self {
            reader: BufReader::new(reader),
            writer,
            log,
        }
    }

    /// Reads a request with its body; `None` if the other side has closed.
    pub async fn request(&mut self) -> Option<Message> {
        let mut request = self.request_head_unseen().await?;
        read_body(&mut self.reader, &mut request, Kind::Request)
            .await
            .ok()?;
        self.log.note(&request);
        Some(request)
    }

    /// Reads a request's head and leaves its body unread; `None` if the other side has closed.
    pub async fn request_head(&mut self) -> Option<Message> {
        let request = self.request_head_unseen().await?;
        self.log.note(&request);
        Some(request)
    }

    async fn request_head_unseen(&mut self) -> Option<Message> {
        read_head(&mut self.reader).await.ok().flatten()
    }

    /// Reads the body of a request whose head was read.
    ///
    /// # Errors
    /// The body is incomplete.
    pub async fn body(&mut self, request: &mut Message) -> io::Result<()> {
        read_body(&mut self.reader, request, Kind::Request).await
    }

    /// Writes bytes; a closed connection is ignored.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        // Tests which write to a possibly closed connection check the other side.
        let _written = self.try_write(bytes).await;
    }

    /// Writes bytes to the connection.
    ///
    /// # Errors
    /// The other side has closed.
    pub async fn try_write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.writer.write_all(bytes.as_ref()).await
    }

    /// Writes the same bytes repeatedly until a write blocks for half a second or fails. Returns the number of completed writes.
    pub async fn write_until_stalled(&mut self, bytes: impl AsRef<[u8]>) -> usize {
        let mut written = 0;
        while let Ok(Ok(())) =
            tokio::time::timeout(Duration::from_millis(500), self.try_write(bytes.as_ref())).await
        {
            written += 1;
        }
        written
    }

    /// Records once more, now with its body, a request whose head was recorded.
    pub fn note(&self, request: &Message) {
        self.log.note(request);
    }

    /// Reads available bytes; empty if the other side has closed.
    pub async fn read(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 64 * 1024];
        let n = self.reader.read(&mut bytes).await.unwrap_or(0);
        bytes.truncate(n);
        bytes
    }

    /// Waits until the other side closes.
    pub async fn closed(&mut self) {
        while !self.read().await.is_empty() {}
    }

    /// Runs `work` as a request being served; `None` if the other side closes first, which is counted.
    pub async fn run_unless_closed<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let live = self.log.live.fetch_add(1, Ordering::SeqCst) + 1;
        self.log.live_max.fetch_max(live, Ordering::SeqCst);
        let log = Arc::clone(&self.log);
        let output = tokio::select! {
            output = work => Some(output),
            () = self.closed() => None,
        };
        log.live.fetch_sub(1, Ordering::SeqCst);
        if output.is_none() {
            log.cancelled.fetch_add(1, Ordering::SeqCst);
        }
        output
    }
}
