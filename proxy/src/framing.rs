//! Where an HTTP/1 client stands in what it sends: before a head, within one, or in a body (RFC 9112 2.1, 6, 7.1).
//!
//! hyper reads and parses; but whether a head is under way, whose time runs, only the bytes themselves tell: hyper
//! takes several requests in one read, throws away bodies that nobody wants, and does not say what it has left.
//! So each piece that is read is followed here, too. How a body is framed is learned from hyper's head
//! ([`Framing::begin`]); until then what stands behind that head is kept.
//!
//! hyper is lax about line ends in the trailers: a line feed alone does not end them for it, so that
//! `0\r\n\n` would swallow the request behind it. Here it makes the message malformed.

use bytes::{Buf as _, BytesMut};

/// Digits of a chunk's size, at most: those of 64 bits. Go's server refuses more; hyper takes any number of zeros.
const CHUNK_DIGITS_MAX: u32 = 16;

/// How a request's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// So many bytes.
    Length(u64),
    /// In chunks.
    Chunked,
    /// By nothing that is understood.
    Unknown,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Framing {
    at: At,
    /// The connection is new: its first head has begun with it.
    is_new: bool,
    /// What was read behind a head whose request has not begun to be served.
    behind: BytesMut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before a head: empty lines are skipped.
    Between,
    /// Within a head.
    Head(Line),
    /// Behind a whole head.
    Behind,
    /// In a body of which so many bytes are to come.
    Body(u64),
    /// In the line with a chunk's size: its value so far, the digits it has, and whether they have ended.
    Size(u64, u32, bool),
    /// In a chunk of which so many bytes are to come, its line end included.
    Chunk(u64),
    /// In the trailers; the last byte was a CR.
    Trailers(Line, bool),
    /// Behind a chunked body that breaks RFC 9112 7.1: nobody may read what follows as a request.
    Malformed,
    /// Lost: nothing is known of what follows.
    Lost,
}

/// What has come of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// Nothing, or the CR of its end.
    Empty,
    /// Something.
    Begun,
}

impl Framing {
    /// A new connection.
    pub(crate) fn new() -> Self {
        Self {
            at: At::Between,
            is_new: true,
            behind: BytesMut::new(),
        }
    }

    /// A head has begun and is not complete.
    pub(crate) const fn is_within_head(&self) -> bool {
        self.is_new || matches!(self.at, At::Head(_) | At::Malformed | At::Lost)
    }

    /// Returns whether a chunked body was not framed as RFC 9112 7.1 says. It stays so.
    pub(crate) const fn is_malformed(&self) -> bool {
        matches!(self.at, At::Malformed)
    }

    /// These bytes have come.
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        let followed = self.follow(bytes);
        self.behind.extend_from_slice(&bytes[followed..]);
    }

    /// The request whose head came last begins to be served.
    pub(crate) fn begin(&mut self, body: BodyFraming) {
        self.is_new = false;
        self.at = match (self.at, body) {
            (At::Behind, BodyFraming::Length(0)) => At::Between,
            (At::Behind, BodyFraming::Length(left)) => At::Body(left),
            (At::Behind, BodyFraming::Chunked) => At::Size(0, 0, false),
            (At::Malformed, _) => At::Malformed,
            _ => At::Lost,
        };
        let mut behind = std::mem::take(&mut self.behind);
        let followed = self.follow(&behind);
        // In place: many requests may stand there, of which each would copy the rest.
        behind.advance(followed);
        self.behind = behind;
    }

    /// Follows bytes to their end, or to that of a head. Returns how many that are.
    fn follow(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() && self.at != At::Behind {
            rest = self.step(rest);
        }
        bytes.len() - rest.len()
    }

    /// Follows as much of `bytes`, of which there are some, as belongs together. Returns the rest.
    fn step<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        match self.at {
            At::Between => {
                let blank = bytes.iter().take_while(|byte| b"\r\n".contains(byte));
                let rest = &bytes[blank.count()..];
                if !rest.is_empty() {
                    self.at = At::Head(Line::Begun);
                }
                rest
            }
            At::Head(line) => self.head(bytes, line),
            At::Trailers(line, is_after_cr) => self.trailers(bytes, line, is_after_cr),
            At::Body(left) => {
                let (left, rest) = skip(bytes, left);
                self.at = if left == 0 {
                    At::Between
                } else {
                    At::Body(left)
                };
                rest
            }
            At::Chunk(left) => {
                let (left, rest) = skip(bytes, left);
                self.at = if left == 0 {
                    At::Size(0, 0, false)
                } else {
                    At::Chunk(left)
                };
                rest
            }
            At::Size(value, digits, ended) => {
                self.size(bytes[0], value, digits, ended);
                &bytes[1..]
            }
            At::Behind | At::Malformed | At::Lost => &[],
        }
    }

    /// Follows a head's lines to the empty one.
    fn head<'a>(&mut self, bytes: &'a [u8], line: Line) -> &'a [u8] {
        let Some(end) = memchr::memchr(b'\n', bytes) else {
            let is_empty = line == Line::Empty && bytes == b"\r";
            self.at = At::Head(if is_empty { Line::Empty } else { Line::Begun });
            return &[];
        };
        let is_empty = line == Line::Empty && matches!(&bytes[..end], b"" | b"\r");
        self.at = if is_empty {
            At::Behind
        } else {
            At::Head(Line::Empty)
        };
        &bytes[end + 1..]
    }

    /// Follows trailers to the empty line. Each ends with CR LF, as hyper reads them: it does not see a line feed alone.
    fn trailers<'a>(&mut self, bytes: &'a [u8], line: Line, is_after_cr: bool) -> &'a [u8] {
        let end = memchr::memchr(b'\n', bytes);
        let content = &bytes[..end.unwrap_or(bytes.len())];
        let is_cr = content.last().map_or(is_after_cr, |&byte| byte == b'\r');
        let is_empty = line == Line::Empty && matches!(content, b"" | b"\r");
        self.at = match end {
            None if is_empty => At::Trailers(Line::Empty, is_cr),
            None => At::Trailers(Line::Begun, is_cr),
            Some(_) if !is_cr => At::Malformed,
            Some(_) if is_empty => At::Between,
            Some(_) => At::Trailers(Line::Empty, false),
        };
        end.map_or(&[], |end| &bytes[end + 1..])
    }

    /// One byte of the line with a chunk's size.
    fn size(&mut self, byte: u8, value: u64, digits: u32, ended: bool) {
        let digit = char::from(byte).to_digit(16).filter(|_| !ended);
        self.at = match (byte, digit) {
            (_, Some(_)) if digits == CHUNK_DIGITS_MAX => At::Malformed,
            (_, Some(digit)) => At::Size(value << 4 | u64::from(digit), digits + 1, false),
            (b'\n', _) if digits == 0 => At::Malformed,
            (b'\n', _) if value == 0 => At::Trailers(Line::Empty, false),
            // hyper takes nothing but CR LF behind a chunk's bytes.
            (b'\n', _) => At::Chunk(value.saturating_add(2)),
            _ => At::Size(value, digits, true),
        };
    }
}

/// Passes over at most `left` bytes. Returns how many are still to come, and the rest.
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

    /// Hands over pieces, and begins each request as soon as its head is there, as hyper does.
    fn follow(pieces: &[&[u8]], mut bodies: impl Iterator<Item = BodyFraming>) -> Framing {
        let mut framing = Framing::new();
        for piece in pieces {
            framing.read(piece);
            while framing.at == At::Behind {
                framing.begin(bodies.next().unwrap());
            }
        }
        framing
    }

    #[test]
    fn messages_in_any_two_pieces_leave_nothing_begun() {
        for (first, body) in MESSAGES {
            for (second, other) in MESSAGES {
                let both = format!("{first}{second}");
                for at in 0..=both.len() {
                    let (head, tail) = both.as_bytes().split_at(at);
                    let framing = follow(&[head, tail], [body, other].into_iter());
                    assert_eq!(framing.at, At::Between, "{both:?} at {at}");
                    assert!(framing.behind.is_empty());
                }
                let bytes: Vec<_> = both.as_bytes().chunks(1).collect();
                let framing = follow(&bytes, [body, other].into_iter());
                assert_eq!(framing.at, At::Between, "{both:?} by the byte");
            }
        }
    }

    #[test]
    fn what_stands_behind_a_message_begins_a_head() {
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
    fn a_body_under_way_is_no_head() {
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
    fn trailers_that_do_not_end_with_cr_lf_are_malformed_in_any_two_pieces() {
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
                assert!(framing.is_malformed(), "it stays so: {bad:?} at {at}");
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
    fn who_is_lost_counts_as_within_a_head() {
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
