//! All protocols at once, clients that disconnect, a user container that is restarted, and a drain at the end: every request is
//! accounted for, none reaches the user container twice, and no resource leaks.
//!
//! Thirty seconds, or `WEIR_SOAK_SECONDS`:
//! `WEIR_SOAK_SECONDS=600 cargo test --release -p tests --test soak -- --nocapture`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "reports the counts")]

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::version::TLS13;
use tests::client::Client;
use tests::client2::{Client2, full};
use tests::proxy::Builder;
use tests::tls::Certificate;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

const SECONDS: u64 = 30;
/// Time after which pools and tables have their final size, and counts are compared.
const WARM: Duration = Duration::from_secs(8);
/// Lifetime of the user container before a restart.
const LIFE: Duration = Duration::from_secs(5);
const CLIENTS: usize = 24;

/// Number of times that each request, by its id, reached the user container.
type Executions = Arc<Mutex<HashMap<u64, u32>>>;

/// Serves both protocols, and echoing tunnels, until dropped with all its connections.
fn start_app(port: u16, executions: &Executions) -> JoinSet<()> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket
        .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        .unwrap();
    let listener = socket.listen(1024).unwrap();
    let executions = Arc::clone(executions);
    let mut app = JoinSet::new();
    app.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(serve(stream, Arc::clone(&executions)));
            while connections.try_join_next().is_some() {}
        }
    });
    app
}

async fn serve(stream: TcpStream, executions: Executions) {
    let mut begin = [0; 3];
    let is_http2 = stream
        .peek(&mut begin)
        .await
        .is_ok_and(|_| begin == *b"PRI");
    let io = TokioIo::new(stream);
    let service = service_fn(move |request| answer(request, Arc::clone(&executions)));
    // Connections are broken by the proxy or by the restart.
    if is_http2 {
        let _ended = http2::Builder::new(TokioExecutor::new())
            .serve_connection(io, service)
            .await;
    } else {
        let _ended = http1::Builder::new()
            .serve_connection(io, service)
            .with_upgrades()
            .await;
    }
}

async fn answer(
    mut request: Request<Incoming>,
    executions: Executions,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let id: u64 = request.headers()["x-id"].to_str().unwrap().parse().unwrap();
    *executions.lock().unwrap().entry(id).or_default() += 1;
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                let mut stream = TokioIo::new(upgraded);
                let mut bytes = [0; 64];
                while let Ok(n @ 1..) = stream.read(&mut bytes).await {
                    if stream.write_all(&bytes[..n]).await.is_err() {
                        return;
                    }
                }
            }
        });
        let switched = Response::builder()
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "echo");
        return Ok(switched.body(Full::default()).unwrap());
    }
    // A request with an incomplete body gets no answer.
    let body = request
        .into_body()
        .collect()
        .await
        .map(|body| body.to_bytes());
    tokio::time::sleep(Duration::from_millis(id % 7)).await;
    let mut text = format!("{id}:").into_bytes();
    text.extend(body.unwrap_or_default());
    Ok(Response::new(Full::new(text.into())))
}

/// Outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Answered,
    Refused,
    Unavailable,
    Expired,
    Cancelled,
    Broken,
}

impl Outcome {
    fn of(status: u16) -> Self {
        match status {
            200 | 101 => Self::Answered,
            502 => Self::Unavailable,
            503 => Self::Refused,
            504 => Self::Expired,
            other => panic!("unexpected status {other}"),
        }
    }
}

#[derive(Clone)]
struct Soak {
    address: SocketAddr,
    secure: SocketAddr,
    certificate: Arc<Certificate>,
    next: Arc<AtomicU64>,
    outcomes: Arc<Mutex<HashMap<u64, Outcome>>>,
}

impl Soak {
    /// Runs one client: request after request, each of a random kind, until the end.
    async fn client(self, number: u64, until: Instant) {
        let mut two = Client2::connect(self.address).await;
        let mut random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        while Instant::now() < until {
            // xorshift: the kinds need only be mixed.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let outcome = match random % 7 {
                0 | 1 => self.http1(id, "").await,
                2 => self.http1(id, &"x".repeat(70_000)).await,
                3 => self.http2(&mut two, id).await,
                4 => self.cancelled(id).await,
                5 => self.tunnel(id).await,
                _ => self.over_tls(id).await,
            };
            self.outcomes.lock().unwrap().insert(id, outcome);
        }
    }

    fn head(method: &str, id: u64, more: &str) -> String {
        format!("{method} /soak HTTP/1.1\r\nHost: soak\r\nX-Id: {id}\r\n{more}\r\n")
    }

    async fn http1(&self, id: u64, body: &str) -> Outcome {
        let mut client = Client::connect(self.address).await;
        let more = format!("Content-Length: {}\r\n", body.len());
        // The proxy may answer and close before it has read everything.
        let _sent = client.try_send(Self::head("POST", id, &more) + body).await;
        let Ok(response) = client.try_response().await else {
            return Outcome::Broken;
        };
        if response.status() == 200 {
            assert_eq!(response.text(), format!("{id}:{body}"));
        }
        Outcome::of(response.status())
    }

    async fn http2(&self, client: &mut Client2, id: u64) -> Outcome {
        let request = client
            .builder("POST", "/soak")
            .header("x-id", id)
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let request = request.body(full("abc")).unwrap();
        let Ok(response) = client.send(request).await else {
            *client = Client2::connect(self.address).await;
            return Outcome::Broken;
        };
        let status = response.status().as_u16();
        match tests::client2::whole(response).await {
            Ok((_, body, _)) if status == 200 => assert_eq!(body, format!("{id}:abc")),
            Ok(_) => {}
            Err(_) => return Outcome::Broken,
        }
        Outcome::of(status)
    }

    async fn cancelled(&self, id: u64) -> Outcome {
        let mut client = Client::connect(self.address).await;
        client.send(Self::head("GET", id, "")).await;
        tokio::time::sleep(Duration::from_millis(id % 5)).await;
        Outcome::Cancelled
    }

    async fn tunnel(&self, id: u64) -> Outcome {
        let mut client = Client::connect(self.address).await;
        let more = "Connection: Upgrade\r\nUpgrade: echo\r\n";
        client.send(Self::head("GET", id, more)).await;
        let Ok(Some(head)) = client.try_head().await else {
            return Outcome::Broken;
        };
        if head.status() == 101 {
            if client.try_send("ping").await.is_err() {
                return Outcome::Broken;
            }
            let echoed = client.rest_within(Duration::from_millis(20)).await;
            assert!(b"ping".starts_with(&echoed), "{echoed:?}");
        }
        Outcome::of(head.status())
    }

    async fn over_tls(&self, id: u64) -> Outcome {
        let mut stream = self
            .certificate
            .connect(self.secure, &[&TLS13], &[b"http/1.1"])
            .await
            .unwrap();
        let request = Self::head("GET", id, "Connection: close\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        if stream.read_to_string(&mut answer).await.is_err() {
            return Outcome::Broken;
        }
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        if status == 200 {
            assert!(answer.ends_with(&format!("\r\n\r\n{id}:")), "{answer}");
        }
        Outcome::of(status)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_is_accounted_for_and_nothing_leaks() {
    let seconds = std::env::var("WEIR_SOAK_SECONDS");
    let seconds = seconds.ok().and_then(|value| value.parse().ok());
    let span = Duration::from_secs(seconds.unwrap_or(SECONDS).max(20));
    let port = {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        free.local_addr().unwrap().port()
    };
    let certificate = Arc::new(Certificate::new());
    let builder = Builder::new(env!("CARGO_BIN_EXE_queue-proxy-under-test"), port)
        .concurrency(8)
        .set("WEIR_SLO", "500ms")
        .set("WEIR_LATE", "shed")
        .set("REVISION_TIMEOUT_SECONDS", "10")
        .set(
            "OBSERVABILITY_CONFIG",
            r#"{"requestMetrics":{"protocol":"prometheus"}}"#,
        );
    certificate.write(&builder.certificates());
    let mut proxy = builder.start().await;
    let executions = Executions::default();
    let mut app = start_app(port, &executions);
    let soak = Soak {
        address: proxy.address(),
        secure: proxy.at(8112),
        certificate,
        next: Arc::default(),
        outcomes: Arc::default(),
    };

    let begin = Instant::now();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS as u64 {
        clients.spawn(soak.clone().client(number + 1, begin + span));
    }
    let mut warm = None;
    let mut next_restart = LIFE;
    while begin.elapsed() < span {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if begin.elapsed() > next_restart {
            next_restart += LIFE;
            app.shutdown().await;
            // No user container runs for this long.
            tokio::time::sleep(Duration::from_millis(50)).await;
            app = start_app(port, &executions);
        }
        if warm.is_none() && begin.elapsed() > WARM {
            warm = Some((proxy.files_and_threads(), proxy.resident_bytes()));
        }
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let ((files, threads), resident) = warm.unwrap();

    // All requests have ended, and the proxy has noticed.
    let mut quiet = false;
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        quiet = proxy.stat().await.average_concurrent_requests == 0.0;
        if quiet {
            break;
        }
    }
    assert!(quiet, "{:?}", proxy.stat().await);
    let metrics = proxy.metrics().await;
    for gauge in ["weir_requests_running", "weir_requests_waiting"] {
        assert_eq!(metrics.value(gauge, &[]), Some(0.0), "{gauge}");
    }
    let sent = soak.next.load(Ordering::Relaxed);
    let outcomes = soak.outcomes.lock().unwrap().clone();
    assert_eq!(outcomes.len() as u64, sent);
    let mut counts = BTreeMap::new();
    for outcome in outcomes.values() {
        *counts.entry(*outcome).or_insert(0_u64) += 1;
    }
    let counted = metrics
        .value("weir_requests_total", &[])
        .unwrap_or_default();
    eprintln!("{sent} requests: {counts:?}; the proxy counted {counted}");
    // A request cancelled before the proxy had read its head is not counted by it.
    let left = counts.get(&Outcome::Cancelled).copied().unwrap_or_default();
    assert!(counted <= sent as f64 && counted >= (sent - left) as f64);
    {
        let executions = executions.lock().unwrap();
        for (id, times) in executions.iter() {
            assert_eq!(
                *times, 1,
                "request {id} reached the user container {times} times"
            );
        }
        for (id, outcome) in &outcomes {
            assert!(
                *outcome != Outcome::Answered || executions.contains_key(id),
                "request {id} was never executed"
            );
        }
    }
    let answered = counts.get(&Outcome::Answered).copied().unwrap_or_default();
    assert!(answered * 2 > sent, "most are answered: {counts:?}");

    let (files_now, threads_now) = proxy.files_and_threads();
    let resident_now = proxy.resident_bytes();
    eprintln!(
        "files {files} → {files_now}, threads {threads} → {threads_now}, resident {resident} → {resident_now}"
    );
    assert!(files_now <= files && threads_now <= threads + 1);
    assert!(resident_now <= resident + resident / 5 + (4 << 20));
    let log = proxy.stderr();
    assert!(!log.contains("panicked"), "{log}");

    // A request in flight at SIGTERM is answered, and the process exits with 0.
    let last = tokio::spawn({
        let soak = soak.clone();
        async move { soak.http1(sent, "last").await }
    });
    assert_eq!(last.await.unwrap(), Outcome::Answered);
    proxy.terminate();
    proxy.drains().await;
    assert_eq!(
        soak.http1(sent + 1, "while it drains").await,
        Outcome::Answered
    );
    assert_eq!(proxy.exit_code(Duration::from_secs(60)).await, Some(0));
    drop(app);
}
