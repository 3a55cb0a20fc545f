//! Tracking of an HTTP/1 client's position in its input: before a head, within one, or in a body (RFC 9112 2.1, 6, 7.1).
//!
//! hyper reads and parses the input but does not expose whether a head is incomplete, for which a timeout applies: it
//! reads several requests at once, discards unread bodies, and does not report what it has buffered. So each piece that
//! is read is followed here as well. The framing of a body is taken from the head that hyper has parsed
//! ([`Framing::begin`]); until then the bytes after that head are kept.
//!
//! hyper is lax about line ends in trailers: a line feed alone does not end them, so that the body `0\r\n\n` would
//! swallow the request after it. Here it makes the message malformed.

use bytes::{Buf as _, BytesMut};

/// Largest number of digits in a chunk size: those of 64 bits. Go's server refuses more; hyper accepts any number of zeros.
const CHUNK_DIGITS_MAX: u32 = 16;

/// Framing of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// Body with this number of bytes, 0 without a body.
    Length(u64),
    /// Body with the chunked transfer coding.
    Chunked,
    /// Framing that cannot be determined.
    Unknown,
}

/// Position of an HTTP/1 client in its input.
#[derive(Debug)]
pub(crate) struct Framing {
    at: Position,
    /// Whether no request has been served yet: the first head begins with the connection.
    is_new: bool,
    /// Bytes read after a head while its request has not begun to be served.
    after_head: BytesMut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Before a head, where empty lines are skipped.
    Between,
    /// Within a head, in a line of this state.
    Head(Line),
    /// After a complete head with unknown framing of its body.
    AfterHead,
    /// In a body with this number of bytes to come.
    Body(u64),
    /// In the line with a chunk's size: the value so far, its number of digits, and whether the digits have ended.
    Size(u64, u32, bool),
    /// In a chunk with this number of bytes to come, including its line end.
    Chunk(u64),
    /// In the trailers: the state of the line, and whether the last byte was a CR.
    Trailers(Line, bool),
    /// After a chunked body that violates RFC 9112 7.1, when no later byte may be read as a request.
    Malformed,
    /// At an unknown position.
    Lost,
}

/// State of a line that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// No byte has been read except possibly the CR of the line end.
    Empty,
    /// At least one byte has been read.
    Begun,
}

impl Framing {
    /// Creates the position at the start of a connection.
    pub(crate) fn new() -> Self {
        Self {
            at: Position::Between,
            is_new: true,
            after_head: BytesMut::new(),
        }
    }

    /// Returns whether a head has begun and is not complete. An unknown position counts as one, so that its time is
    /// limited.
    pub(crate) const fn is_within_head(&self) -> bool {
        self.is_new
            || matches!(
                self.at,
                Position::Head(_) | Position::Malformed | Position::Lost
            )
    }

    /// Returns whether a chunked body violated RFC 9112 7.1. It stays true from then on.
    pub(crate) const fn is_malformed(&self) -> bool {
        matches!(self.at, Position::Malformed)
    }

    /// Follows received bytes, up to the end of a head; the rest is kept for [`begin`](Self::begin).
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        let followed = self.follow(bytes);
        self.after_head.extend_from_slice(&bytes[followed..]);
    }

    /// Continues after the last complete head, whose request begins to be served with this framing of its body.
    pub(crate) fn begin(&mut self, body: BodyFraming) {
        self.is_new = false;
        self.at = match (self.at, body) {
            (Position::AfterHead, BodyFraming::Length(0)) => Position::Between,
            (Position::AfterHead, BodyFraming::Length(left)) => Position::Body(left),
            (Position::AfterHead, BodyFraming::Chunked) => Position::Size(0, 0, false),
            (Position::Malformed, _) => Position::Malformed,
            _ => Position::Lost,
        };
        let mut after_head = std::mem::take(&mut self.after_head);
        let followed = self.follow(&after_head);
        // Advanced in place, since copying the rest for each of many pipelined requests would take quadratic time.
        after_head.advance(followed);
        self.after_head = after_head;
    }

    /// Follows bytes to their end, or to the end of a head. Returns the number of bytes followed.
    fn follow(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && self.at != Position::AfterHead {
            rest = self.step(rest);
        }
        bytes.len() - rest.len()
    }

    /// Follows one element of `bytes`, which must not be empty. Returns the rest.
    fn step<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match self.at {
            Position::Between => {
                let blank = bytes.iter().take_while(|byte| b"\r\n".contains(byte));
                let rest = &bytes[blank.count()..];
                if !rest.is_empty() {
                    self.at = Position::Head(Line::Begun);
                }
                rest
            }
            Position::Head(line) => self.head(bytes, line),
            Position::Trailers(line, is_after_cr) => self.trailers(bytes, line, is_after_cr),
            Position::Body(left) => {
                let (left, rest) = skip(bytes, left);
                self.at = if left == 0 {
                    Position::Between
                } else {
                    Position::Body(left)
                };
                rest
            }
            Position::Chunk(left) => {
                let (left, rest) = skip(bytes, left);
                self.at = if left == 0 {
                    Position::Size(0, 0, false)
                } else {
                    Position::Chunk(left)
                };
                rest
            }
            Position::Size(value, digits, ended) => {
                self.size(bytes[0], value, digits, ended);
                &bytes[1..]
            }
            Position::AfterHead | Position::Malformed | Position::Lost => &[],
        }
    }

    /// Follows one line of a head, up to the empty line that ends it. Returns the rest.
    fn head<'a>(&mut self, bytes: &'a [u8], line: Line) -> &'a [u8] {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            let is_empty = line == Line::Empty && bytes == b"\r";
            self.at = Position::Head(if is_empty { Line::Empty } else { Line::Begun });
            return &[];
        };
        let is_empty = line == Line::Empty && matches!(&bytes[..end], b"" | b"\r");
        self.at = if is_empty {
            Position::AfterHead
        } else {
            Position::Head(Line::Empty)
        };
        &bytes[end + 1..]
    }

    /// Follows one line of the trailers, up to the empty line that ends them. Returns the rest. Each line must end with
    /// CR LF, since hyper ignores a line feed alone.
    fn trailers<'a>(&mut self, bytes: &'a [u8], line: Line, is_after_cr: bool) -> &'a [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let content = &bytes[..end.unwrap_or(bytes.len())];
        let is_cr = content.last().map_or(is_after_cr, |&byte| byte == b'\r');
        let is_empty = line == Line::Empty && matches!(content, b"" | b"\r");
        self.at = match end {
            None if is_empty => Position::Trailers(Line::Empty, is_cr),
            None => Position::Trailers(Line::Begun, is_cr),
            Some(_) if !is_cr => Position::Malformed,
            Some(_) if is_empty => Position::Between,
            Some(_) => Position::Trailers(Line::Empty, false),
        };
        end.map_or(&[], |end| &bytes[end + 1..])
    }

    /// Follows one byte of the line with a chunk's size.
    fn size(&mut self, byte: u8, value: u64, digits: u32, ended: bool) {
        let digit = char::from(byte).to_digit(16).filter(|_| !ended);
        self.at = match (byte, digit) {
            (_, Some(_)) if digits == CHUNK_DIGITS_MAX => Position::Malformed,
            (_, Some(digit)) => Position::Size(value << 4 | u64::from(digit), digits + 1, false),
            (b'\n', _) if digits == 0 => Position::Malformed,
            (b'\n', _) if value == 0 => Position::Trailers(Line::Empty, false),
            // hyper requires CR LF after a chunk's bytes.
            (b'\n', _) => Position::Chunk(value.saturating_add(2)),
            _ => Position::Size(value, digits, true),
        };
    }
}

/// Skips at most `left` bytes. Returns the number of bytes still to come, and the rest.
fn skip(bytes: &[u8], left: u64) -> (u64, &[u8]) {
    let here = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
    (left - here as u64, &bytes[here..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: [(&str, BodyFraming); 8] = [
        ("GET / HTTP/1.1\r\nHost: t\r\n\r\n", BodyFraming::Length(0)),
        ("GET / HTTP/1.0\n\n", BodyFraming::Length(0)),
        (
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n\r\n\r\nx",
            BodyFraming::Length(5),
        ),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            BodyFraming::Chunked,
        ),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n00A;x=\"1\"\r\n0\r\n\r\nGET /\r\n0\r\nX: y\r\n\r\n",
            BodyFraming::Chunked,
        ),
        ("\r\n\r\nGET / HTTP/1.1\r\n\r\n", BodyFraming::Length(0)),
        (
            "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
            BodyFraming::Length(1),
        ),
        (
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            BodyFraming::Chunked,
        ),
    ];

    /// Follows pieces, and begins each request as soon as its head is complete, as hyper does.
    fn follow(pieces: &[&[u8]], mut bodies: impl Iterator<Item = BodyFraming>) -> Framing {
        let mut framing = Framing::new();
        for piece in pieces {
            framing.read(piece);
            while framing.at == Position::AfterHead {
                framing.begin(bodies.next().unwrap());
            }
        }
        framing
    }

    #[test]
    fn messages_split_anywhere_end_between_heads() {
        for (first, body) in MESSAGES {
            for (second, other) in MESSAGES {
                let both = format!("{first}{second}");
                for at in 0..=both.len() {
                    let (head, tail) = both.as_bytes().split_at(at);
                    let framing = follow(&[head, tail], [body, other].into_iter());
                    assert_eq!(framing.at, Position::Between, "{both:?} at {at}");
                    assert!(framing.after_head.is_empty());
                }
                let bytes: Vec<_> = both.as_bytes().chunks(1).collect();
                let framing = follow(&bytes, [body, other].into_iter());
                assert_eq!(framing.at, Position::Between, "{both:?} by the byte");
            }
        }
    }

    #[test]
    fn bytes_after_a_message_begin_a_head() {
        for (message, body) in MESSAGES {
            for more in [
                "G",
                "GET / HTTP/1.1\r\n",
                "\r\nG",
                "GET / HTTP/1.1\r\nX: y\r\n\r",
            ] {
                let both = format!("{message}{more}");
                for at in 0..=both.len() {
                    let (head, tail) = both.as_bytes().split_at(at);
                    let framing = follow(&[head, tail], [body].into_iter());
                    assert!(framing.is_within_head(), "{both:?} at {at}");
                }
            }
        }
    }

    #[test]
    fn an_incomplete_body_is_not_within_a_head() {
        for (message, body) in MESSAGES {
            let end = message
                .find("\r\n\r\n")
                .filter(|at| *at > 0)
                .map_or(0, |at| at + 4);
            for at in end..message.len() {
                if body != BodyFraming::Length(0) {
                    let framing = follow(&[&message.as_bytes()[..at]], [body].into_iter());
                    assert!(!framing.is_within_head(), "{message:?} at {at}");
                }
            }
        }
    }

    #[test]
    fn trailers_without_cr_lf_are_malformed_wherever_they_are_split() {
        for bad in [
            "0\r\n\n",
            "0\r\nX: y\n\r\n",
            "0\r\nX: y\r\n\n",
            "0\r\nX: y\n\n",
            "0\r\nX: y\r\nZ\n: y\r\n\r\n",
            "1\r\nx\r\n0\r\n\n",
            "00000000000000001\r\nx\r\n0\r\n\r\n",
        ] {
            let all = format!("POST / HTTP/1.1\r\n\r\n{bad}GET / HTTP/1.1\r\n\r\n");
            for at in 0..=all.len() {
                let (head, tail) = all.as_bytes().split_at(at);
                let mut framing = follow(&[head, tail], [BodyFraming::Chunked].into_iter());
                assert!(framing.is_malformed(), "{bad:?} at {at}");
                framing.begin(BodyFraming::Length(0));
                assert!(
                    framing.is_malformed(),
                    "no longer malformed: {bad:?} at {at}"
                );
            }
        }
        for (message, body) in MESSAGES {
            for at in 0..=message.len() {
                let (head, tail) = message.as_bytes().split_at(at);
                let framing = follow(&[head, tail], [body].into_iter());
                assert!(!framing.is_malformed(), "{message:?} at {at}");
            }
        }
    }

    #[test]
    fn an_unknown_position_counts_as_within_a_head() {
        let unknown = [BodyFraming::Unknown];
        let framing = follow(&[b"GET / HTTP/1.1\r\n\r\n"], unknown.into_iter());
        assert!(framing.is_within_head());
        for bad in ["\r\n", "x\r\n", "12345678123456781\r\n"] {
            let message = format!("POST / HTTP/1.1\r\n\r\n{bad}");
            let framing = follow(&[message.as_bytes()], [BodyFraming::Chunked].into_iter());
            assert!(framing.is_within_head(), "{bad:?}");
        }
    }
}
