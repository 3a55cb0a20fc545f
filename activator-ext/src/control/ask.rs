//! What role `control` asks of Weir's other programs: JSON over mutual TLS (design 4.3).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use mutual_tls::{Identity, name_of};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
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
        let asked = async {
            let mut connection = self.connect(identity, ip).await?;
            let answer = connection.get(path, ANSWER_BYTES_MAX).await?;
            Ok::<_, BoxError>(serde_json::from_slice(&answer)?)
        };
        timeout(ASK_MAX, asked).await?
    }

    async fn connect(self, identity: &Identity, ip: IpAddr) -> Result<Connection, BoxError> {
        let name = name_of(self.name);
        let stream = TcpStream::connect(SocketAddr::new(ip, self.port)).await?;
        let stream = identity.connect(stream, &name).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Its end is seen by the next request.
            let _ended = connection.await;
        });
        Ok(Connection {
            sender,
            name,
            _driver: driver,
        })
    }
}

/// A connection to a program. Closed when dropped.
#[derive(Debug)]
struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    name: String,
    _driver: JoinSet<()>,
}

impl Connection {
    async fn get(&mut self, path: &str, bytes_max: usize) -> Result<Bytes, BoxError> {
        self.sender.ready().await?;
        let request = Request::get(path)
            .header(http::header::HOST, &self.name)
            .body(Empty::<Bytes>::new())?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max);
        let body = body.collect().await?.to_bytes();
        if !status.is_success() {
            return Err(BoxError::from(format!("{path}: {status}")));
        }
        Ok(body)
    }
}

/// A program that is asked again and again, over one connection as long as it holds.
#[derive(Debug)]
pub(crate) struct Respondent {
    program: Program,
    ip: IpAddr,
    connection: Option<Connection>,
}

impl Respondent {
    /// The program at this address, to which there is no connection yet.
    pub(crate) const fn new(program: Program, ip: IpAddr) -> Self {
        Self {
            program,
            ip,
            connection: None,
        }
    }

    /// Returns its address.
    pub(crate) const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns what it answers on `path`. A connection that has ended since the last time is made anew; one whose answer is not awaited is
    /// closed.
    ///
    /// # Errors
    /// It cannot be reached, is not that program, or answers nothing of use or more than `bytes_max`.
    pub(crate) async fn get(
        &mut self,
        identity: &Identity,
        path: &str,
        bytes_max: usize,
    ) -> Result<Bytes, BoxError> {
        if let Some(mut connection) = self.connection.take()
            && let Ok(body) = connection.get(path, bytes_max).await
        {
            self.connection = Some(connection);
            return Ok(body);
        }
        let mut connection = self.program.connect(identity, self.ip).await?;
        let body = connection.get(path, bytes_max).await?;
        self.connection = Some(connection);
        Ok(body)
    }
}
