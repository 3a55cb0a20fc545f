//! The autoscaler's WebSocket server, which receives the reports of activators.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{SinkExt as _, StreamExt as _};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

/// One window of a pod's or an activator's requests (`pkg/autoscaler/metrics/stat.proto` of knative-serving).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Stat {
    /// Name of the reporting pod (field 1).
    #[prost(string, tag = "1")]
    pub pod_name: String,
    /// Mean number of concurrent requests (field 2).
    #[prost(double, tag = "2")]
    pub average_concurrent_requests: f64,
    /// Mean number of concurrent requests that were proxied (field 3).
    #[prost(double, tag = "3")]
    pub average_proxied_concurrent_requests: f64,
    /// Number of requests in the window (field 4).
    #[prost(double, tag = "4")]
    pub request_count: f64,
    /// Number of proxied requests in the window (field 5).
    #[prost(double, tag = "5")]
    pub proxied_request_count: f64,
    /// Uptime of the process in s (field 6).
    #[prost(double, tag = "6")]
    pub process_uptime: f64,
}

/// A window of one revision.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireStat {
    /// Namespace of the revision (field 1).
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Name of the revision (field 2).
    #[prost(string, tag = "2")]
    pub name: String,
    /// The window's figures (field 3).
    #[prost(message, optional, tag = "3")]
    pub stat: Option<Stat>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WireStats {
    #[prost(message, repeated, tag = "1")]
    messages: Vec<WireStat>,
}

#[derive(Debug, Default)]
struct Shared {
    received: Mutex<Vec<WireStat>>,
    connections: Mutex<usize>,
    close: Notify,
}

/// An autoscaler, stopped when dropped.
#[derive(Debug)]
pub struct Autoscaler {
    /// Address on which the autoscaler listens.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Autoscaler {
    /// Starts an autoscaler on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If there is none.
    pub async fn start() -> Self {
        Self::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    /// Starts an autoscaler at an address.
    ///
    /// # Panics
    /// If the port is taken.
    pub async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::<Shared>::default();
        let task = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Self {
            address,
            shared,
            task,
        }
    }

    /// Returns the WebSocket URL of the autoscaler.
    #[must_use]
    pub fn url(&self) -> String {
        format!("ws://{}/", self.address)
    }

    /// Returns the reports so far, in order.
    #[must_use]
    pub fn received(&self) -> Vec<WireStat> {
        lock(&self.shared.received).clone()
    }

    /// Returns the number of connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        *lock(&self.shared.connections)
    }

    /// Closes all connections as a terminating autoscaler does, with code 1012.
    pub fn close(&self) {
        self.shared.close.notify_waiters();
    }
}

impl Drop for Autoscaler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else {
                return;
            };
            *lock(&shared.connections) += 1;
            loop {
                tokio::select! {
                    message = socket.next() => match message {
                        Some(Ok(Message::Binary(bytes))) => {
                            let stats = WireStats::decode(bytes).expect("an activator's message");
                            lock(&shared.received).extend(stats.messages);
                        }
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => return,
                    },
                    () = shared.close.notified() => {
                        let frame = CloseFrame { code: CloseCode::Restart, reason: "".into() };
                        // The connection may be gone already.
                        let _closed = socket.send(Message::Close(Some(frame))).await;
                        return;
                    }
                }
            }
        });
    }
}
