//! Rewriting of requests with the socket's path as the authority.
//!
//! The kubelet's gRPC client sends such requests when it registers a plugin (kubernetes/kubernetes #109081). HTTP/2's syntax
//! (RFC 9113 8.3.1) has no such authority, and the server would refuse the request. On a Unix socket the authority carries no
//! information, so it is replaced by `localhost` in the incoming bytes. The header block is walked (RFC 7541 6) but not
//! decoded: lengths suffice, and the entries of the peers' tables keep their indices.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// Length of the client preface, in bytes.
const PREFACE: usize = 24;
/// Length of a frame header, in bytes.
const HEAD: usize = 9;
/// Type of a frame with a header block, followed by its flags.
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x04;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;
/// Longest rewritten frame, in bytes; the kubelet sends no longer one, which is passed unchanged.
const FRAME_MAX: usize = 16 * 1024;
/// Index of `:authority` in the static table.
const AUTHORITY: usize = 1;
/// Authority after the rewrite.
const LOCALHOST: &[u8] = b"localhost";

/// A connection which presents `localhost` as the authority of its requests.
#[derive(Debug)]
pub(super) struct Localhost {
    stream: UnixStream,
    rewrite: Rewrite,
    /// Rewritten bytes; those before `taken` are read already.
    ready: Vec<u8>,
    taken: usize,
}

/// State of the rewriting.
#[derive(Debug)]
struct Rewrite {
    /// Number of bytes to pass unchanged.
    pass: usize,
    /// Received part of the current frame.
    part: Vec<u8>,
}

impl Localhost {
    pub(super) const fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            rewrite: Rewrite {
                pass: PREFACE,
                part: Vec::new(),
            },
            ready: Vec::new(),
            taken: 0,
        }
    }
}

impl Rewrite {
    /// Consumes received bytes and appends rewritten ones to `out`.
    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if self.pass > 0 {
                let count = self.pass.min(bytes.len());
                out.extend_from_slice(&bytes[..count]);
                bytes = &bytes[count..];
                self.pass -= count;
                continue;
            }
            let wanted = match self.part.get(..HEAD) {
                None => HEAD,
                Some(head) => HEAD + length(head),
            };
            let count = (wanted - self.part.len()).min(bytes.len());
            self.part.extend_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            let Some(head) = self.part.get(..HEAD) else {
                continue;
            };
            let length = length(head);
            if head[3] != HEADERS || head[4] & END_HEADERS == 0 || length > FRAME_MAX {
                out.append(&mut self.part);
                self.pass = length;
            } else if self.part.len() == HEAD + length {
                rewrite(&self.part, out);
                self.part.clear();
            }
        }
    }
}

/// Returns the length of a frame's payload, in bytes.
fn length(head: &[u8]) -> usize {
    let [high, middle, low] = [head[0], head[1], head[2]].map(usize::from);
    high << 16 | middle << 8 | low
}

/// Appends a whole frame of a header block, with `localhost` as its authority if it has one.
fn rewrite(frame: &[u8], out: &mut Vec<u8>) {
    let rewritten = || {
        let flags = frame[4];
        let mut begin = HEAD;
        let mut end = frame.len();
        if flags & PADDED != 0 {
            end = end.checked_sub(usize::from(*frame.get(begin)?))?;
            begin += 1;
        }
        if flags & PRIORITY != 0 {
            begin += 5;
        }
        let block = frame.get(begin..end)?;
        let (at, after) = authority(block)?;
        let (at, after) = (begin + at, begin + after);
        let mut new = frame[..at].to_vec();
        new.push(u8::try_from(LOCALHOST.len()).ok()?);
        new.extend_from_slice(LOCALHOST);
        new.extend_from_slice(&frame[after..]);
        let length = u32::try_from(new.len() - HEAD).ok()?.to_be_bytes();
        new[..3].copy_from_slice(&length[1..]);
        Some(new)
    };
    match rewritten() {
        Some(new) => out.extend(new),
        None => out.extend_from_slice(frame),
    }
}

/// Returns the range of the value of a literal `:authority` in a header block, its length prefix included.
fn authority(block: &[u8]) -> Option<(usize, usize)> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        // Prefix length of the name's index in a field with a literal value; index 0: the name is literal too.
        let prefix = match first {
            0x80.. => {
                at = integer(block, at, 7)?.1;
                continue;
            }
            0x40.. => 6,
            0x20.. => {
                at = integer(block, at, 5)?.1;
                continue;
            }
            _ => 4,
        };
        let (name, mut next) = integer(block, at, prefix)?;
        if name == 0 {
            next = string(block, next)?;
        }
        let after = string(block, next)?;
        if name == AUTHORITY {
            return Some((next, after));
        }
        at = after;
    }
    None
}

/// Returns an integer with a prefix of `prefix` bits (RFC 7541 5.1) and the position of its end.
fn integer(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let max = (1_usize << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & max;
    let mut next = at + 1;
    if value < max {
        return Some((value, next));
    }
    for shift in (0..28).step_by(7) {
        let byte = usize::from(*block.get(next)?);
        next += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, next));
        }
    }
    None
}

/// Returns the position of the end of a string (RFC 7541 5.2), if it is complete.
fn string(block: &[u8], at: usize) -> Option<usize> {
    let (length, begin) = integer(block, at, 7)?;
    let end = begin.checked_add(length)?;
    (end <= block.len()).then_some(end)
}

impl AsyncRead for Localhost {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.taken == self.ready.len() {
            let mut bytes = [0; 4_096];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let own = &mut *self;
            own.ready.clear();
            own.taken = 0;
            own.rewrite.take(read.filled(), &mut own.ready);
        }
        let count = buffer.remaining().min(self.ready.len() - self.taken);
        buffer.put_slice(&self.ready[self.taken..self.taken + count]);
        self.taken += count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Localhost {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE_TEXT: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    /// Returns a header block: `:method` POST, `:authority` as a literal with indexing, and a field with a literal name.
    fn block(authority: &[u8]) -> Vec<u8> {
        let mut block = vec![0x83, 0x41, u8::try_from(authority.len()).unwrap()];
        block.extend_from_slice(authority);
        block.extend_from_slice(b"\x00\x02te\x08trailers");
        block
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
        frame.extend_from_slice(payload);
        frame
    }

    fn taken(bytes: &[u8], step: usize) -> Vec<u8> {
        let mut rewrite = Rewrite {
            pass: PREFACE,
            part: Vec::new(),
        };
        let mut out = Vec::new();
        bytes
            .chunks(step)
            .for_each(|bytes| rewrite.take(bytes, &mut out));
        out
    }

    #[test]
    fn the_authority_is_replaced_for_any_chunking() {
        let stream = |authority: &[u8]| {
            let mut priority = vec![0, 0, 0, 0, 16];
            priority.extend(block(authority));
            let mut padded = vec![3];
            padded.extend(block(authority));
            padded.extend([0; 3]);
            [
                PREFACE_TEXT.to_vec(),
                frame(4, 0, &[0; 6]),
                frame(HEADERS, END_HEADERS, &block(authority)),
                frame(0, 1, b"\0\0\0\0\x02\x08\x01"),
                frame(HEADERS, END_HEADERS | PRIORITY, &priority),
                frame(HEADERS, END_HEADERS | PADDED, &padded),
            ]
            .concat()
        };
        let (given, expected) = (stream(b"/var/lib/kubelet/x.sock"), stream(LOCALHOST));
        for step in [1, 7, 24, 1_000] {
            assert_eq!(taken(&given, step), expected, "{step}");
        }
    }

    #[test]
    fn incomplete_or_invalid_frames_pass_unchanged() {
        let cut = [
            PREFACE_TEXT.to_vec(),
            frame(HEADERS, END_HEADERS, &[0x41, 0x7f, 0xff, 0xff]),
            frame(HEADERS, 0, &block(b"/x")),
            frame(HEADERS, END_HEADERS | PADDED, &[200, 0x83]),
        ]
        .concat();
        assert_eq!(taken(&cut, 5), cut);
    }
}
