//! An OpenTelemetry collector that keeps all received messages.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt as _;

use crate::app::{App, ok};
use crate::app2::App2;
use crate::client2::empty;

/// Received messages: the path, and the protobuf message.
pub type Received = Arc<Mutex<Vec<(String, Bytes)>>>;

/// A collector over HTTP, stopped when dropped.
#[derive(Debug)]
pub struct Collector {
    /// Port on 127.0.0.1.
    pub port: u16,
    received: Received,
    _server: Server,
}

#[derive(Debug)]
enum Server {
    Http(#[expect(dead_code, reason = "kept alive: dropping it stops the server")] App),
    Grpc(#[expect(dead_code, reason = "kept alive: dropping it stops the server")] App2),
}

impl Collector {
    /// Starts a collector for OTLP/HTTP with protobuf bodies.
    pub async fn http() -> Self {
        let received = Received::default();
        let app = App::serving({
            let received = Arc::clone(&received);
            move |request| {
                keep(&received, request.target(), request.body.clone().into());
                async { ok("") }
            }
        })
        .await;
        Self {
            port: app.port,
            received,
            _server: Server::Http(app),
        }
    }

    /// Starts a collector for OTLP/gRPC.
    pub async fn grpc() -> Self {
        let received = Received::default();
        let app = App2::serving({
            let received = Arc::clone(&received);
            move |request| {
                let received = Arc::clone(&received);
                async move {
                    let path = request.uri().path().to_owned();
                    if let Ok(body) = request.into_body().collect().await {
                        // Five bytes of gRPC framing precede the message.
                        let body = body.to_bytes();
                        keep(&received, &path, body.slice(body.len().min(5)..));
                    }
                    let mut response = Response::new(empty());
                    let headers = response.headers_mut();
                    headers.insert("content-type", "application/grpc".parse().expect("a value"));
                    headers.insert("grpc-status", "0".parse().expect("a value"));
                    response
                }
            }
        })
        .await;
        Self {
            port: app.port,
            received,
            _server: Server::Grpc(app),
        }
    }

    /// Returns the messages received at a path so far.
    #[must_use]
    pub fn received(&self, path: &str) -> Vec<Bytes> {
        self.received
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter(|(to, _)| to == path)
            .map(|(_, message)| message.clone())
            .collect()
    }
}

fn keep(received: &Received, path: &str, message: Bytes) {
    received
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push((path.to_owned(), message));
}
