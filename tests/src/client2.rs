//! An HTTP/2 client by prior knowledge.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use crate::app2::Body;

/// One connection, on which requests run side by side.
#[derive(Debug, Clone)]
pub struct Client2 {
    sender: SendRequest<Body>,
    address: SocketAddr,
}

/// A body without bytes.
#[must_use]
pub fn empty() -> Body {
    Full::new(Bytes::new()).boxed()
}

/// A body of these bytes.
#[must_use]
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

impl Client2 {
    /// Connects.
    ///
    /// # Panics
    /// If nobody listens or speaks HTTP/2.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("somebody listens");
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("HTTP/2");
        tokio::spawn(connection);
        Self { sender, address }
    }

    /// A request for `path` on this connection.
    #[must_use]
    pub fn builder(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
    }

    /// Sends a request.
    ///
    /// # Errors
    /// It is reset, or the connection ends.
    pub async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        self.sender.send_request(request).await
    }

    /// GETs a path.
    ///
    /// # Panics
    /// If no whole answer comes.
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
/// It breaks off.
pub async fn whole(
    response: Response<Incoming>,
) -> hyper::Result<(http::response::Parts, Bytes, Option<HeaderMap>)> {
    let (parts, body) = response.into_parts();
    let collected = body.collect().await?;
    let trailers = collected.trailers().cloned();
    Ok((parts, collected.to_bytes(), trailers))
}
