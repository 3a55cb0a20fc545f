//! Clients and user containers that do not read.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame};
use tests::app::App;
use tests::app2::App2;
use tests::client::Client;
use tests::client2::{Client2, full};
use tests::proxy::{Builder, Proxy};

use crate::floods::{PREFACE, frame};
use crate::proxy;

const KIBIBYTE: usize = 1024;
const MEBIBYTE: usize = 1024 * KIBIBYTE;
/// Number of connections over HTTP/1.
const READERS: usize = 64;
/// Number of connections over HTTP/2.
const CONNECTIONS: usize = 4;
/// Number of streams on each connection over HTTP/2.
const STREAMS: u32 = 100;
/// Memory that the process may hold for an unread body, in bytes.
const EACH_MAX: usize = 128 * KIBIBYTE;
/// Memory in bytes that the process may hold for a connection or stream in addition to its body: its task, its tables,
/// and allocators' rounding.
const BESIDES: usize = 48 * KIBIBYTE;
/// Growth of a process in a test of any kind.
const SLACK_BYTES: usize = 8 * MEBIBYTE;
/// Longest wait for all buffers to be full, or empty again, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counter of the bytes that a user container could send.
#[derive(Debug, Clone, Default)]
struct Sent(Arc<AtomicUsize>);

impl Sent {
    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Waits until at least `bytes` have been sent, and then none for a second.
    async fn stalls_after(&self, bytes: usize) {
        let begin = Instant::now();
        let mut seen = 0;
        let mut since = Instant::now();
        while seen < bytes || since.elapsed() < Duration::from_secs(1) {
            let now = self.0.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "after {PATIENCE:?} bytes still pass, or too few have: {now} of {bytes}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// An endless body which counts the bytes sent.
struct Endless(Sent);

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        static PIECE: [u8; 16 * KIBIBYTE] = [b'x'; 16 * KIBIBYTE];
        self.0.add(PIECE.len());
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&PIECE)))))
    }
}

/// Starts an app that answers `/endless` without an end, leaves bodies to `/ignore` unread, and answers a mebibyte otherwise.
async fn app(sent: &Sent) -> App {
    let sent = sent.clone();
    App::raw(move |mut connection| {
        let sent = sent.clone();
        async move {
            while let Some(request) = connection.request_head().await {
                match request.target() {
                    "/endless" => {
                        let head =
                            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
                        connection.write(head).await;
                        let piece = vec![b'x'; 64 * KIBIBYTE];
                        while connection.try_write(&piece).await.is_ok() {
                            sent.add(piece.len());
                        }
                        return;
                    }
                    "/ignore" => std::future::pending::<()>().await,
                    _ => {
                        let body = "x".repeat(MEBIBYTE);
                        connection.write(tests::app::ok(&body)).await;
                    }
                }
            }
        }
    })
    .await
}

async fn app2(sent: &Sent) -> App2 {
    let sent = sent.clone();
    App2::serving(move |request| {
        let sent = sent.clone();
        async move {
            match request.uri().path() {
                "/endless" => Response::new(Endless(sent).boxed()),
                _ => Response::new(full(vec![b'x'; MEBIBYTE])),
            }
        }
    })
    .await
}

/// A warmed-up proxy, with its memory before an attack.
struct Target {
    proxy: Proxy,
    before: usize,
}

impl Target {
    async fn start(builder: Builder, speaks_http2: bool) -> Self {
        let proxy = builder.start().await;
        // The first answer makes allocations which stay.
        if speaks_http2 {
            Client2::connect(proxy.address()).await.get("/").await;
        } else {
            proxy.connect().await.get("/").await;
        }
        Self {
            before: proxy.resident_bytes(),
            proxy,
        }
    }

    fn grown(&self) -> usize {
        self.proxy.resident_bytes().saturating_sub(self.before)
    }

    /// Asserts that the proxy has grown by no more than `each` bytes for each of `count`.
    fn holds_at_most(&self, count: usize, each: usize) {
        let grown = self.grown();
        let limit = count * each + SLACK_BYTES;
        assert!(grown <= limit, "{grown} bytes for {count}, {limit} allowed");
    }

    /// Waits until the proxy has released its memory after all slow readers have disconnected.
    async fn releases_memory(&self) {
        let limit = self.before + crate::GROWTH_MAX.max(self.before / 5);
        let begin = Instant::now();
        while self.proxy.resident_bytes() > limit {
            assert!(
                begin.elapsed() < PATIENCE,
                "after {PATIENCE:?} the process still has {} bytes, {limit} allowed",
                self.proxy.resident_bytes()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let log = self.proxy.stderr();
        assert!(!log.contains("panicked"), "{log}");
    }

    async fn serves(&self) {
        let answer = self.proxy.connect().await.get("/").await;
        assert_eq!((answer.status(), answer.body.len()), (200, MEBIBYTE));
    }

    async fn serves2(&self) {
        let mut client = Client2::connect(self.proxy.address()).await;
        let (head, body) = client.get("/").await;
        assert_eq!((head.status.as_u16(), body.len()), (200, MEBIBYTE));
    }

    /// Opens `count` connections which have sent these bytes.
    async fn attackers(&self, count: usize, begin: &[u8]) -> Vec<Client> {
        let mut clients = Vec::with_capacity(count);
        for _ in 0..count {
            let mut client = self.proxy.connect().await;
            client.send(begin).await;
            clients.push(client);
        }
        clients
    }
}

/// Returns requests for `/endless` on all streams; `window` is that of each.
fn streams(window: u32) -> Vec<u8> {
    let setting = [&[0, 4][..], &window.to_be_bytes()].concat();
    let mut bytes = [PREFACE, &frame(4, 0, 0, &setting)].concat();
    let path = b"/endless";
    let mut head = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    head.extend(path);
    head.extend([0x01, 1, b'a']);
    for stream in 0..STREAMS {
        bytes.extend(frame(1, 5, stream * 2 + 1, &head));
    }
    bytes
}

#[tokio::test]
async fn a_client_that_does_not_read_takes_128_kib() {
    let sent = Sent::default();
    let app = app(&sent).await;
    let target = Target::start(proxy(app.port), false).await;
    let begin = b"GET /endless HTTP/1.1\r\nHost: t\r\n\r\n";
    let attackers = target.attackers(READERS, begin).await;
    sent.stalls_after(READERS * EACH_MAX).await;
    target.holds_at_most(READERS, EACH_MAX + BESIDES);
    target.serves().await;
    drop(attackers);
    target.releases_memory().await;
}

#[tokio::test]
async fn a_stream_with_a_window_of_zero_takes_128_kib() {
    let sent = Sent::default();
    let app = app2(&sent).await;
    let target = Target::start(proxy(app.port), true).await;
    let attackers = target.attackers(CONNECTIONS, &streams(0)).await;
    let count = CONNECTIONS * STREAMS as usize;
    sent.stalls_after(count * 32 * KIBIBYTE).await;
    target.holds_at_most(count, EACH_MAX);
    target.serves2().await;
    drop(attackers);
    target.releases_memory().await;
}

#[tokio::test]
async fn a_stream_whose_client_takes_nothing_from_the_socket_takes_128_kib() {
    let sent = Sent::default();
    let app = app2(&sent).await;
    let target = Target::start(proxy(app.port), true).await;
    let mut begin = streams((1 << 31) - 1);
    begin.extend(frame(8, 0, 0, &(1_u32 << 30).to_be_bytes()));
    let attackers = target.attackers(CONNECTIONS, &begin).await;
    let count = CONNECTIONS * STREAMS as usize;
    sent.stalls_after(count * 32 * KIBIBYTE).await;
    target.holds_at_most(count, EACH_MAX);
    target.serves2().await;
    drop(attackers);
    target.releases_memory().await;
}

#[tokio::test]
async fn all_slow_readers_share_one_bound_and_other_requests_are_served() {
    let sent = Sent::default();
    let app = app2(&sent).await;
    let bounded = proxy(app.port).set("WEIR_LIMIT_BUFFERED_BYTES", MEBIBYTE);
    let target = Target::start(bounded, true).await;
    let attackers = target.attackers(CONNECTIONS, &streams(0)).await;
    let count = CONNECTIONS * STREAMS as usize;
    sent.stalls_after(count * 8 * KIBIBYTE).await;
    // Half a frame of window, the frame that is always allowed, and a stream's other memory.
    target.holds_at_most(count, 40 * KIBIBYTE);
    target.serves2().await;
    drop(attackers);
    target.releases_memory().await;
}

#[tokio::test]
async fn an_upload_that_the_user_container_does_not_read_takes_128_kib() {
    let app = app(&Sent::default()).await;
    let target = Target::start(proxy(app.port), false).await;
    let begin = b"POST /ignore HTTP/1.1\r\nHost: t\r\nContent-Length: 1099511627776\r\n\r\n";
    let attackers = target.attackers(READERS, begin).await;
    let sent = Sent::default();
    let mut uploads = tokio::task::JoinSet::new();
    for mut attacker in attackers {
        let sent = sent.clone();
        uploads.spawn(async move {
            let piece = vec![b'x'; 64 * KIBIBYTE];
            while attacker.try_send(&piece).await.is_ok() {
                sent.add(piece.len());
            }
        });
    }
    sent.stalls_after(READERS * EACH_MAX).await;
    target.holds_at_most(READERS, EACH_MAX + BESIDES);
    target.serves().await;
    drop(uploads);
    // The kernel holds the rest of the uploads before the end of input, so the user container must end these.
    drop(app);
    target.releases_memory().await;
}

#[tokio::test]
async fn a_tunnel_whose_client_does_not_read_takes_128_kib() {
    let sent = Sent::default();
    let counted = sent.clone();
    let app = App::raw(move |mut connection| {
        let sent = counted.clone();
        async move {
            if connection.request_head().await.is_none() {
                return;
            }
            connection
                .write(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
                )
                .await;
            let piece = vec![b'x'; 64 * KIBIBYTE];
            while connection.try_write(&piece).await.is_ok() {
                sent.add(piece.len());
            }
        }
    })
    .await;
    let target = Target::start(proxy(app.port), false).await;
    let begin = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n";
    let attackers = target.attackers(READERS, begin).await;
    sent.stalls_after(READERS * EACH_MAX).await;
    target.holds_at_most(READERS, EACH_MAX + BESIDES);
    drop(attackers);
    target.releases_memory().await;
}
