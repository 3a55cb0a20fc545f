//! Tracking of the frames of an HTTP/2 connection: incomplete heads, floods of control frames, and frame boundaries at
//! which the proxy may end the connection.
//!
//! hyper limits the size of a head but not its time. A client that sends a byte now and then would keep a connection
//! and up to a mebibyte indefinitely; such a head is aborted after a minute, as over HTTP/1. hyper does not limit frames
//! such as PING and PRIORITY either (RFC 9113 10.5): one connection full of them takes most of a core.

use std::sync::atomic::{AtomicBool, Ordering};

use policy::Time;
use policy::rate::Allowance;

/// Size of the preface before the first frame, RFC 9113 3.4.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// Size of a GOAWAY frame without debug data, RFC 9113 6.8.
pub(crate) const GOAWAY_BYTES: usize = FRAME_HEADER_BYTES + 8;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// Error code for a peer that generates excessive load, RFC 9113 7.
const ENHANCE_YOUR_CALM: u32 = 0xB;

/// Allowed number of control frames per second, which carry no part of a request: PING, PRIORITY, SETTINGS,
/// WINDOW_UPDATE and unknown ones. They cost a few percent of a core. gRPC's clients send some PINGs for each round trip
/// while they measure the bandwidth, and Go's servers close a connection with 10,000 such frames unanswered.
const CONTROLS_PER_SECOND: u32 = 1_000;
/// Additional control frames allowed for each request and for each DATA frame sent to the client: clients enlarge
/// windows as they read, usually with two frames for one.
const CONTROLS_PER_FRAME: u32 = 10;

/// Parser that splits bytes into frames, RFC 9113 4.1.
#[derive(Debug, Default)]
struct FrameWalker {
    /// Bytes to skip before the next frame's header: of the preface, or of a payload.
    passing: usize,
    header: [u8; FRAME_HEADER_BYTES],
    /// Number of bytes of the header that have been read.
    known: usize,
}

impl FrameWalker {
    /// Parses bytes and calls `begin` with the type, flags and stream of each frame whose header is complete.
    fn parse(&mut self, mut bytes: &[u8], mut begin: impl FnMut(u8, u8, u32)) {
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
                let [high, middle, low, kind, flags, a, b, c, d] = self.header;
                self.passing =
                    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                begin(kind, flags, u32::from_be_bytes([a & 0x7F, b, c, d]));
            }
        }
    }

    /// Returns whether the last frame is complete.
    const fn is_between_frames(&self) -> bool {
        self.passing == 0 && self.known == 0
    }
}

/// Tracker of the frames of a connection, in both directions.
#[derive(Debug)]
pub(crate) struct Frames {
    read: FrameWalker,
    written: FrameWalker,
    /// Whether the payload being skipped is part of a head.
    in_head: bool,
    /// Whether the last frame of a head is still to come.
    open: bool,
    /// Whether the first frame after the preface has begun.
    begun: bool,
    /// Highest stream that the client has opened.
    last_stream: u32,
    /// Control frames received since the allowance was last charged.
    controls: u32,
    allowance: Allowance,
}

/// State of an HTTP/2 connection, as shared with the connection's task.
#[derive(Debug)]
pub(crate) struct Http2State {
    /// Whether a head, or the first frame, is incomplete.
    unfinished: AtomicBool,
    /// Whether the client has sent more control frames than allowed.
    flooded: AtomicBool,
}

impl Default for Http2State {
    fn default() -> Self {
        Self {
            unfinished: AtomicBool::new(true),
            flooded: AtomicBool::new(false),
        }
    }
}

impl Http2State {
    /// Returns whether a head, or the first frame, is incomplete.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.unfinished.load(Ordering::Relaxed)
    }

    /// Returns whether the client has sent more control frames than allowed. It stays true from then on.
    pub(crate) fn is_flooded(&self) -> bool {
        self.flooded.load(Ordering::Relaxed)
    }
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            read: FrameWalker {
                passing: PREFACE_BYTES,
                ..FrameWalker::default()
            },
            written: FrameWalker::default(),
            in_head: true,
            open: false,
            begun: false,
            last_stream: 0,
            controls: 0,
            allowance: Allowance::new(CONTROLS_PER_SECOND),
        }
    }
}

impl Frames {
    /// Follows received bytes, and updates `state`. `now` is only called if there are control frames among them.
    pub(crate) fn read(&mut self, bytes: &[u8], state: &Http2State, now: impl FnOnce() -> Time) {
        let Self {
            read,
            in_head,
            open,
            begun,
            last_stream,
            controls,
            allowance,
            ..
        } = self;
        read.parse(bytes, |kind, flags, stream| {
            *begun = true;
            *in_head = matches!(kind, HEADERS | CONTINUATION);
            if *in_head {
                *open = flags & END_HEADERS == 0;
            }
            match kind {
                HEADERS => {
                    *last_stream = stream.max(*last_stream);
                    allowance.earn(CONTROLS_PER_FRAME);
                }
                // hyper limits resets and empty DATA frames itself.
                DATA | RST_STREAM | CONTINUATION => {}
                _ => *controls += 1,
            }
        });
        let unfinished = !self.begun
            || self.open
            || self.read.known > 0
            || (self.in_head && self.read.passing > 0);
        state.unfinished.store(unfinished, Ordering::Relaxed);
        if self.controls > 0 {
            let controls = std::mem::take(&mut self.controls);
            if !self.allowance.spend(controls, now()) {
                state.flooded.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Follows bytes that have been written to the client.
    pub(crate) fn wrote(&mut self, bytes: &[u8]) {
        let allowance = &mut self.allowance;
        self.written.parse(bytes, |kind, _, _| {
            if kind == DATA {
                allowance.earn(CONTROLS_PER_FRAME);
            }
        });
    }

    /// Returns the GOAWAY frame that ends a flooded connection, or `None` while a frame to the client is only partly
    /// written.
    pub(crate) fn goaway(&self) -> Option<[u8; GOAWAY_BYTES]> {
        if !self.written.is_between_frames() {
            return None;
        }
        let mut frame = [0; GOAWAY_BYTES];
        frame[2] = 8;
        frame[3] = GOAWAY;
        frame[9..13].copy_from_slice(&self.last_stream.to_be_bytes());
        frame[13..].copy_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
        Some(frame)
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

    /// Returns whether a head is incomplete after each of these pieces.
    fn after(pieces: &[&[u8]]) -> Vec<bool> {
        let (mut frames, state) = (Frames::default(), Http2State::default());
        pieces
            .iter()
            .map(|piece| {
                frames.read(piece, &state, || Time(0));
                state.is_unfinished()
            })
            .collect()
    }

    #[test]
    fn a_head_is_unfinished_until_its_last_frame_is_complete() {
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
    fn the_state_does_not_depend_on_how_the_bytes_are_split() {
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

    const SECOND: u64 = 1_000_000_000;

    fn settled() -> (Frames, Http2State) {
        let (mut frames, state) = (Frames::default(), Http2State::default());
        let begin = [&[b'p'; PREFACE_BYTES][..], &frame(4, 0, 0)].concat();
        frames.read(&begin, &state, || Time(0));
        (frames, state)
    }

    #[test]
    fn more_control_frames_than_allowed_in_a_second_are_a_flood() {
        for kind in [2, 4, 6, 8, 0x42] {
            let (mut frames, state) = settled();
            let ping = frame(kind, 0, 8);
            for second in 1..4 {
                let now = Time(second * SECOND);
                for _ in 0..CONTROLS_PER_SECOND {
                    frames.read(&ping, &state, || now);
                }
                assert!(!state.is_flooded(), "type {kind}, second {second}");
            }
            frames.read(&ping, &state, || Time(4 * SECOND - 1));
            assert!(state.is_flooded(), "type {kind}");
        }
    }

    #[test]
    fn requests_and_answers_earn_allowance_for_control_frames() {
        let (mut frames, state) = settled();
        let now = || Time(SECOND);
        let (update, data) = (frame(8, 0, 4), frame(DATA, 0, 200));
        for _ in 0..CONTROLS_PER_SECOND {
            frames.wrote(&data);
            for _ in 0..CONTROLS_PER_FRAME {
                frames.read(&update, &state, now);
            }
        }
        let head = frame(HEADERS, END_HEADERS, 20);
        for _ in 0..CONTROLS_PER_SECOND {
            frames.read(&head, &state, now);
            frames.read(&update, &state, now);
        }
        assert!(!state.is_flooded());
    }

    #[test]
    fn a_goaway_is_sent_between_frames_and_names_the_last_stream() {
        let (mut frames, state) = settled();
        let mut head = frame(HEADERS, END_HEADERS, 20);
        head[8] = 7;
        frames.read(&head, &state, || Time(0));
        let data = frame(DATA, 0, 200);
        frames.wrote(&data[..30]);
        assert_eq!(frames.goaway(), None);
        frames.wrote(&data[30..]);
        let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0xB];
        assert_eq!(frames.goaway(), Some(goaway));
    }
}
