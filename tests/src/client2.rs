//! An HTTP/2 client with prior knowledge.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::app2::Body;

/// A client connection over HTTP/2, for concurrent requests.
#[derive(Debug, Clone)]
pub struct Client2 {
    sender: SendRequest<Body>,
    address: SocketAddr,
}

/// Returns a body without bytes.
#[must_use]
pub fn empty() -> Body {
    Full::new(Bytes::new()).boxed()
}

/// Returns a body of these bytes.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

impl Client2 {
    /// Connects to a server.
    ///
    /// # Panics
    /// If the connection is refused, or the server does not speak HTTP/2.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address)
            .await
            .expect("a listening server");
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        Self { sender, address }
    }

    /// Returns a builder of a request for `path` on this connection.
    #[must_use]
    pub fn builder(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
    }

    /// Sends a request and awaits the response's head.
    ///
    /// # Errors
    /// The stream is reset, or the connection ends.
    pub async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        self.sender.send_request(request).await
    }

    /// Sends a GET for a path and reads the response.
    ///
    /// # Panics
    /// If no complete response arrives.
    pub async fn get(&mut self, path: &str) -> (http::response::Parts, Bytes) {
        let request = self.builder("GET", path).body(empty()).expect("a request");
        let (parts, body, _) = whole(self.send(request).await.expect("an answer"))
            .await
            .expect("whole");
        (parts, body)
    }
}

/// Reads a response to its end: head, bytes, trailers.
///
/// # Errors
/// The response is incomplete.
pub async fn whole(
    response: Response<Incoming>,
) -> hyper::Result<(http::response::Parts, Bytes, Option<HeaderMap>)> {
    let (parts, body) = response.into_parts();
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned();
    Ok((parts, collected.to_bytes(), trailers))
}
