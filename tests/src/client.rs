//! An HTTP/1 client with control over every byte sent and received.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::message::{Kind, Message, read_body, read_chunk, read_head};
use crate::{PATIENCE, eventually};

/// Time which a process may need to act on a request that it has read.
const MOMENT: Duration = Duration::from_millis(20);

/// Returns an address as in `/proc/net/tcp`: the IP in the machine's byte order, the port not.
fn table_address(address: SocketAddr) -> String {
    let SocketAddr::V4(address) = address else {
        panic!("{address}: tests speak IPv4");
    };
    let ip = u32::from_ne_bytes(address.ip().octets());
    format!("{ip:08X}:{:04X}", address.port())
}

/// A client connection over HTTP/1.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Panics
    /// If the connection is refused.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address)
            .await
            .unwrap_or_else(|error| panic!("cannot connect to {address}: {error}"));
        stream.set_nodelay(true).expect("a socket");
        let (reader, writer) = stream.into_split();
        Self {
            reader: BufReader::new(reader),
            writer,
        }
    }

    /// Writes bytes to the connection.
    ///
    /// # Panics
    /// If the connection is closed.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.writer
            .write_all(bytes.as_ref())
            .await
            .expect("the connection is open");
    }

    /// Waits until the other process has read everything sent, by `/proc/net/tcp`, and has had a moment to act on it.
    ///
    /// # Panics
    /// If it has not within [`PATIENCE`].
    pub async fn is_read(&self) {
        let [own, peer] = [self.writer.local_addr(), self.writer.peer_addr()]
            .map(|address| table_address(address.expect("a connection")));
        let all_read = || {
            let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of connections");
            // Fields: number, own address, peer's address, state, bytes not sent : bytes not read.
            let unread = |[one, other]: [&str; 2]| {
                table.lines().find_map(|line| {
                    let mut words = line.split_whitespace().skip(1);
                    let is_it = words.next() == Some(one) && words.next() == Some(other);
                    is_it.then(|| words.nth(1).map(str::to_owned)).flatten()
                })
            };
            let sent = unread([&own, &peer]).is_none_or(|queues| queues.starts_with("00000000:"));
            let read = unread([&peer, &own]).is_none_or(|queues| queues.ends_with(":00000000"));
            sent && read
        };
        eventually("all that was sent is read", all_read).await;
        tokio::time::sleep(MOMENT).await;
    }

    /// Writes bytes, if the connection is still open.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.writer.write_all(bytes.as_ref()).await
    }

    /// Shuts down the sending direction; responses can still be received.
    ///
    /// # Panics
    /// If the connection is closed.
    pub async fn half_close(&mut self) {
        self.writer
            .shutdown()
            .await
            .expect("the connection is open");
    }

    /// Reads a response with its body.
    ///
    /// # Panics
    /// If none arrives, or it is incomplete.
    pub async fn response(&mut self) -> Message {
        self.try_response().await.expect("a whole response")
    }

    /// Reads a response with its body.
    ///
    /// # Errors
    /// The response is incomplete.
    ///
    /// # Panics
    /// If none arrives within [`PATIENCE`].
    pub async fn try_response(&mut self) -> io::Result<Message> {
        let mut message = self.try_head().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let kind = match message.status() {
            101 | 204 | 304 => Kind::Bodiless,
            _ => Kind::Response,
        };
        self.body(&mut message, kind).await?;
        Ok(message)
    }

    /// Reads a response's head.
    ///
    /// # Panics
    /// If none arrives.
    pub async fn head(&mut self) -> Message {
        self.try_head()
            .await
            .expect("a head")
            .expect("a response before the end of input")
    }

    /// Reads a response's head; `None` at the end of input.
    ///
    /// # Errors
    /// The head is incomplete.
    ///
    /// # Panics
    /// If none arrives within [`PATIENCE`].
    pub async fn try_head(&mut self) -> io::Result<Option<Message>> {
        timeout(PATIENCE, read_head(&mut self.reader))
            .await
            .unwrap_or_else(|_| panic!("no answer within {PATIENCE:?}"))
    }

    /// Reads the body of a message with this head into it.
    ///
    /// # Errors
    /// The body is incomplete; `message` has the received part.
    ///
    /// # Panics
    /// If it does not end within [`PATIENCE`].
    pub async fn body(&mut self, message: &mut Message, kind: Kind) -> io::Result<()> {
        let read = read_body(&mut self.reader, message, kind);
        timeout(PATIENCE, read)
            .await
            .unwrap_or_else(|_| panic!("the body has not ended within {PATIENCE:?}"))
    }

    /// Reads one chunk of a chunked body.
    ///
    /// # Errors
    /// The chunk is incomplete.
    ///
    /// # Panics
    /// If none arrives within [`PATIENCE`].
    pub async fn chunk(&mut self) -> io::Result<Vec<u8>> {
        timeout(PATIENCE, read_chunk(&mut self.reader))
            .await
            .unwrap_or_else(|_| panic!("no chunk within {PATIENCE:?}"))
    }

    /// Reads exactly `n` bytes.
    ///
    /// # Panics
    /// If they do not arrive within [`PATIENCE`].
    pub async fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        let read = timeout(PATIENCE, self.reader.read_exact(&mut bytes)).await;
        read.unwrap_or_else(|_| panic!("not {n} bytes within {PATIENCE:?}"))
            .expect("as many bytes");
        bytes
    }

    /// Reads until the end of input, or until `limit` has passed.
    pub async fn rest_within(&mut self, limit: Duration) -> Vec<u8> {
        let mut rest = Vec::new();
        let reading = async {
            loop {
                let read = self.reader.read_buf(&mut rest).await;
                if !matches!(read, Ok(1..)) {
                    return;
                }
            }
        };
        // `rest` has everything received before a reset or the limit.
        let _ended = timeout(limit, reading).await;
        rest
    }

    /// Reads to the end of input; a reset counts as one.
    ///
    /// # Panics
    /// If the connection stays open for longer than [`PATIENCE`].
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // `rest` has everything received before a reset.
        let _end = timeout(PATIENCE, self.reader.read_to_end(&mut rest))
            .await
            .unwrap_or_else(|_| panic!("the connection is still open after {PATIENCE:?}"));
        rest
    }

    /// Sends a request and reads its response.
    pub async fn request(&mut self, request: impl AsRef<[u8]>) -> Message {
        self.send(request).await;
        self.response().await
    }

    /// Sends a GET for a target and reads the response.
    pub async fn get(&mut self, target: &str) -> Message {
        self.request(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n"))
            .await
    }

    /// Sends a POST with a body and reads the response.
    pub async fn post(&mut self, target: &str, body: &str) -> Message {
        let length = body.len();
        self.request(format!(
            "POST {target} HTTP/1.1\r\nHost: test\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .await
    }

    /// Sends a GET with additional header lines, each with its line end, and reads the response.
    pub async fn get_with(&mut self, target: &str, lines: &str) -> Message {
        self.request(format!(
            "GET {target} HTTP/1.1\r\nHost: test\r\n{lines}\r\n"
        ))
        .await
    }
}
