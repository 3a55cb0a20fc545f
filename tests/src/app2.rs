//! The user container over HTTP/2 with prior knowledge.

use std::convert::Infallible;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Boxed body of an answer.
pub type Body = BoxBody<Bytes, Infallible>;

/// A user container over HTTP/2, stopped when dropped.
#[derive(Debug)]
pub struct App2 {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Number of requests being served.
    pub live: Arc<AtomicUsize>,
    /// Number of accepted connections.
    pub connections: Arc<AtomicUsize>,
    /// Number of ended connections.
    pub ended: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl App2 {
    /// Starts a user container which answers every request with the response that `answer` returns.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn serving<F, S>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> S + Send + Sync + Clone + 'static,
        S: Future<Output = Response<Body>> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let live = Arc::<AtomicUsize>::default();
        let connections = Arc::<AtomicUsize>::default();
        let ended = Arc::<AtomicUsize>::default();
        let task = tokio::spawn({
            let (live, connections) = (Arc::clone(&live), Arc::clone(&connections));
            let ended = Arc::clone(&ended);
            async move {
                let mut tasks = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    connections.fetch_add(1, Ordering::SeqCst);
                    let (live, answer) = (Arc::clone(&live), answer.clone());
                    let ended = Arc::clone(&ended);
                    let service = service_fn(move |request| {
                        live.fetch_add(1, Ordering::SeqCst);
                        let guard = Live(Arc::clone(&live));
                        let response = answer(request);
                        async move {
                            let _guard = guard;
                            Ok::<_, Infallible>(response.await)
                        }
                    });
                    tasks.spawn(async move {
                        // Connections are broken by tests on purpose.
                        let _broken = http2::Builder::new(TokioExecutor::new())
                            .serve_connection(TokioIo::new(stream), service)
                            .await;
                        ended.fetch_add(1, Ordering::SeqCst);
                    });
                }
            }
        });
        Self {
            port,
            live,
            connections,
            ended,
            task,
        }
    }

    /// Returns the number of requests being served.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }
}

impl Drop for App2 {
    fn drop(&mut self) {
        self.task.abort();
    }
}
