//! How much of the process one client's connection, and all slow readers together, may take.
//!
//! The defaults are no looser than Knative's, and are the most that is allowed.

use std::time::Duration;

pub use annotations::{
    BUFFERED_BYTES_MAX, HEAD_BYTES_MAX, HEAD_LINES_MAX, HEAD_TIME_MAX, STREAMS_MAX,
};

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request head, with all its lines. HTTP/2 counts them as RFC 9113 6.5.2 does.
    pub head_bytes: usize,
    /// Lines of a request head.
    pub head_lines: usize,
    /// From the connection's beginning, the handshake of TLS included, or a later head's first byte, to the head's
    /// end.
    pub head_time: Duration,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of bodies that the process holds for readers that are slow, before it reads less from their sources.
    pub buffered_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: HEAD_BYTES_MAX,
            head_lines: HEAD_LINES_MAX,
            head_time: HEAD_TIME_MAX,
            streams: STREAMS_MAX,
            buffered_bytes: BUFFERED_BYTES_MAX,
        }
    }
}
