//! What role `control` asks of Weir's other programs: JSON over mutual TLS (design 4.3).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::rt::TokioIo;
use mutual_tls::{Identity, name_of};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::BoxError;

/// An answer takes no longer.
const ASK_MAX: Duration = Duration::from_secs(5);
/// Bytes of an answer, at most.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Programs that are asked at once.
pub(crate) const CONCURRENCY: usize = 32;

/// A program that is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// What it is called in its certificate, before `.weir.dev`.
    pub(crate) name: &'static str,
    /// Where it answers.
    pub(crate) port: u16,
}

/// The agent of a node.
pub(crate) const AGENT: Program = Program {
    name: "agent",
    port: 9470,
};
/// Role `data`.
pub(crate) const DATA: Program = Program {
    name: "activator",
    port: 9475,
};

impl Program {
    /// Returns what the program at `ip` answers on `path`.
    ///
    /// # Errors
    /// It cannot be reached, is not that program, or answers nothing of use within 5 s and 16 MiB.
    pub(crate) async fn ask<T: DeserializeOwned>(
        self,
        identity: &Identity,
        ip: IpAddr,
        path: &str,
    ) -> Result<T, BoxError> {
        let name = name_of(self.name);
        let asked = async {
            let stream = TcpStream::connect(SocketAddr::new(ip, self.port)).await?;
            let stream = identity.connect(stream, &name).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let asked = async {
                let request = Request::get(path)
                    .header(http::header::HOST, &name)
                    .body(Empty::<Bytes>::new())?;
                let response = sender.send_request(request).await?;
                let status = response.status();
                let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
                let body = body.collect().await?.to_bytes();
                if !status.is_success() {
                    return Err(BoxError::from(format!("{path}: {status}")));
                }
                Ok(serde_json::from_slice(&body)?)
            };
            tokio::select! {
                answer = asked => answer,
                ended = connection => {
                    ended?;
                    Err("the connection was closed before the answer".into())
                }
            }
        };
        timeout(ASK_MAX, asked).await?
    }
}
