//! HTTP/1 messages as sent on the wire.

use std::io;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// A request or response: first line, header lines in their original order and case, body without framing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Request line or status line, without its line end.
    pub start: String,
    /// Names and values of the header lines, as received.
    pub headers: Vec<(String, String)>,
    /// Body without framing, so far as it was read.
    pub body: Vec<u8>,
    /// Trailers of a chunked body.
    pub trailers: Vec<(String, String)>,
}

/// Rule for the end of a body when no header states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Without such a header there is no body.
    Request,
    /// Without such a header the body extends to the end of input.
    Response,
    /// There is no body whatever the headers state.
    Bodiless,
}

impl Message {
    /// Returns the only value of a header, in any case; `None` if there is none.
    ///
    /// # Panics
    /// If there are several.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.values(name);
        let first = values.next();
        assert!(
            values.next().is_none(),
            "several {name} headers in {self:?}"
        );
        first
    }

    /// Returns all values of a header.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &str> {
        let name = name.to_owned();
        self.headers
            .iter()
            .filter(move |(n, _)| n.eq_ignore_ascii_case(&name))
            .map(|(_, value)| value.as_str())
    }

    /// Returns the status of a response.
    ///
    /// # Panics
    /// If the first line is not a status line.
    #[must_use]
    pub fn status(&self) -> u16 {
        let status = self
            .start
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok());
        status.unwrap_or_else(|| panic!("not a status line: {:?}", self.start))
    }

    /// Returns the target of a request.
    #[must_use]
    pub fn target(&self) -> &str {
        self.start.split(' ').nth(1).unwrap_or("")
    }

    /// Returns the body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Reads a head; `None` at the end of input before its first byte.
///
/// # Errors
/// The input is incomplete or malformed.
pub async fn read_head<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
) -> io::Result<Option<Message>> {
    let mut message = Message::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).await? == 0 {
            return if message.start.is_empty() {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
        let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        if message.start.is_empty() {
            message.start = text;
        } else if text.is_empty() {
            return Ok(Some(message));
        } else {
            let (name, value) = text.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            message
                .headers
                .push((name.to_owned(), value.trim().to_owned()));
        }
    }
}

/// Reads the body of a message with this head, and appends to `message.body` as bytes arrive.
///
/// # Errors
/// The body is incomplete; `message` has the received part.
pub async fn read_body<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
    message: &mut Message,
    kind: Kind,
) -> io::Result<()> {
    let chunked = message
        .values("transfer-encoding")
        .any(|value| value.eq_ignore_ascii_case("chunked"));
    let length: Option<usize> = message
        .header("content-length")
        .and_then(|value| value.parse().ok());
    match (kind, chunked, length) {
        (Kind::Bodiless, ..) => Ok(()),
        (_, true, _) => read_chunked(reader, message).await,
        (_, false, Some(length)) => {
            let mut left = length;
            while left > 0 {
                let available = reader.fill_buf().await?;
                if available.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let n = available.len().min(left);
                message.body.extend_from_slice(&available[..n]);
                reader.consume(n);
                left -= n;
            }
            Ok(())
        }
        (Kind::Request, false, None) => Ok(()),
        (Kind::Response, false, None) => {
            reader.read_to_end(&mut message.body).await?;
            Ok(())
        }
    }
}

/// Reads one chunk; empty at the last one, before the trailers.
///
/// # Errors
/// The input is incomplete or malformed.
pub async fn read_chunk<R: AsyncRead + Unpin>(reader: &mut BufReader<R>) -> io::Result<Vec<u8>> {
    let mut line = String::new();
    if reader.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let size = line.trim().split(';').next().unwrap_or("");
    let size = usize::from_str_radix(size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
    if size == 0 {
        return Ok(Vec::new());
    }
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).await?;
    if !chunk.ends_with(b"\r\n") {
        return Err(io::ErrorKind::InvalidData.into());
    }
    chunk.truncate(size);
    Ok(chunk)
}

async fn read_chunked<R: AsyncRead + Unpin>(
    reader: &mut BufReader<R>,
    message: &mut Message,
) -> io::Result<()> {
    loop {
        let chunk = read_chunk(reader).await?;
        if chunk.is_empty() {
            break;
        }
        message.body.extend_from_slice(&chunk);
    }
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                message
                    .trailers
                    .push((name.to_owned(), value.trim().to_owned()));
            }
            None if line.trim_end().is_empty() => return Ok(()),
            None => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
