//! Queries of role `control` to Weir's other programs: JSON over mutual TLS (contracts §3).

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

/// Longest time for a query.
const QUERY_MAX: Duration = Duration::from_secs(5);
/// Largest answer to a query, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Largest number of programs queried at a time.
pub(crate) const CONCURRENCY: usize = 32;

/// A kind of program that can be queried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// Name of the program in its certificate, without the suffix `.weir.dev`.
    pub(crate) name: &'static str,
    /// Port of the program's TLS server.
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
    /// Returns the answer to a GET of `path` by the program at `ip`, parsed from JSON.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be reached, has another name in its certificate, or does not answer with valid JSON
    /// of at most 16 MiB within 5 s.
    pub(crate) async fn query<T: DeserializeOwned>(
        self,
        identity: &Identity,
        ip: IpAddr,
        path: &str,
    ) -> Result<T, BoxError> {
        let query = async {
            let mut connection = self.connect(identity, ip).await?;
            let answer = connection.get(path, ANSWER_BYTES_MAX).await?;
            Ok::<_, BoxError>(serde_json::from_slice(&answer)?)
        };
        timeout(QUERY_MAX, query).await?
    }

    async fn connect(self, identity: &Identity, ip: IpAddr) -> Result<Connection, BoxError> {
        let name = name_of(self.name);
        let stream = TcpStream::connect(SocketAddr::new(ip, self.port)).await?;
        let stream = identity.connect(stream, &name).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The next request notices the connection's end.
            let _ended = connection.await;
        });
        Ok(Connection {
            sender,
            name,
            _driver: driver,
        })
    }
}

/// A connection to a program, which is closed when dropped.
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

/// A program which is queried repeatedly, over one connection while it lasts.
#[derive(Debug)]
pub(crate) struct ProgramClient {
    program: Program,
    ip: IpAddr,
    connection: Option<Connection>,
}

impl ProgramClient {
    /// Returns a client of the program at `ip`, without a connection yet.
    pub(crate) const fn new(program: Program, ip: IpAddr) -> Self {
        Self {
            program,
            ip,
            connection: None,
        }
    }

    /// Returns the program's address.
    pub(crate) const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the body of the answer to a GET of `path`. Connects again if the connection has ended since the last
    /// query. The connection is closed if this future is dropped before the answer.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be reached, has another name in its certificate, answers with an error status, or
    /// answers with more than `bytes_max`.
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
