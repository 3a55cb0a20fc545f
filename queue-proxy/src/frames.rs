//! Where an HTTP/2 client stands in its frames: whether it has begun a head and not ended it.
//!
//! hyper bounds a head's size and not its time. A client that sends a byte now and then would keep a connection
//! and up to a mebibyte for ever; over HTTP/1 such a head is cut after a minute, and so it is here.

use std::sync::atomic::{AtomicBool, Ordering};

/// Before the first frame stands the preface, RFC 9113 3.4.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the frames of a connection, RFC 9113 4.1.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Bytes to pass over before the next frame's header: of the preface, or of a payload.
    passing: usize,
    /// The payload passed over is part of a head.
    in_head: bool,
    header: [u8; FRAME_HEADER_BYTES],
    /// How many bytes of the header have come.
    known: usize,
    /// A head's last frame has not come.
    open: bool,
    /// The first frame has begun: the preface alone is no beginning.
    begun: bool,
}

/// What the connection's task sees of it.
#[derive(Debug)]
pub(crate) struct Http2State {
    /// A head, or the first frame, has begun and not ended.
    unfinished: AtomicBool,
}

impl Default for Http2State {
    fn default() -> Self {
        Self {
            unfinished: AtomicBool::new(true),
        }
    }
}

impl Http2State {
    /// A head, or the first frame, has begun and not ended.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed)
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            passing: PREFACE_BYTES,
            in_head: true,
            header: [0; FRAME_HEADER_BYTES],
            known: 0,
            open: false,
            begun: false,
        }
    }
}

impl Frames {
    /// Bytes have come.
    pub(crate) fn read(&mut self, mut bytes: &[u8], state: &Http2State) {
        while !bytes.is_empty() {
            if self.passing > 0 {
                let passed = self.passing.min(bytes.len());
                self.passing -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let taken = (FRAME_HEADER_BYTES - self.known).min(bytes.len());
            self.header[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == FRAME_HEADER_BYTES {
                self.known = 0;
                self.begin_frame();
            }
        }
        let unfinished =
            !self.begun || self.open || self.known > 0 || (self.in_head && self.passing > 0);
        state.unfinished.store(unfinished, Ordering::Relaxed);
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.header;
        self.passing = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.begun = true;
        self.in_head = matches!(kind, HEADERS | CONTINUATION);
        if self.in_head {
            self.open = flags & END_HEADERS == 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u8::try_from(payload).unwrap();
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.resize(FRAME_HEADER_BYTES + payload, b'x');
        frame
    }

    /// Whether a head is unfinished after each of these pieces.
    fn after(pieces: &[&[u8]]) -> Vec<bool> {
        let (mut frames, state) = (Frames::default(), Http2State::default());
        pieces
            .iter()
            .map(|piece| {
                frames.read(piece, &state);
                state.is_unfinished()
            })
            .collect()
    }

    #[test]
    fn a_head_is_unfinished_until_its_last_frame_has_come() {
        let preface = [b'p'; PREFACE_BYTES];
        let settings = frame(4, 0, 0);
        let open = frame(HEADERS, 0, 20);
        let more = frame(CONTINUATION, 0, 5);
        let last = frame(CONTINUATION, END_HEADERS, 5);
        let data = frame(0, 0, 200);
        assert_eq!(after(&[&preface[..20], &preface[20..]]), [true, true]);
        let begun = [&preface[..], &settings].concat();
        assert_eq!(
            after(&[&begun, &open, &more, &last, &data[..100], &data[100..]]),
            [false, true, true, false, false, false]
        );
        let whole = frame(HEADERS, END_HEADERS, 20);
        assert_eq!(
            after(&[&begun, &whole[..4], &whole[4..15], &whole[15..]]),
            [false, true, true, false]
        );
    }

    #[test]
    fn it_does_not_matter_how_the_bytes_are_cut() {
        let mut bytes = vec![b'p'; PREFACE_BYTES];
        for (kind, flags, payload) in [
            (4, 0, 6),
            (HEADERS, 0, 50),
            (CONTINUATION, 4, 3),
            (0, 0, 90),
        ] {
            bytes.extend(frame(kind, flags, payload));
        }
        for size in 1..bytes.len() {
            let pieces: Vec<_> = bytes.chunks(size).collect();
            assert_eq!(after(&pieces).last(), Some(&false), "{size}");
        }
    }
}
