//! Resource limits for one client's connection, and for all slow readers together.
//!
//! The defaults are no looser than Knative's, and are the largest allowed values.

use std::time::Duration;

pub use annotations::{
    BUFFERED_BYTES_MAX, HEAD_BYTES_MAX, HEAD_LINES_MAX, HEAD_TIME_MAX, STREAMS_MAX,
};

/// Resource limits of one listener's connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest size of a request head with all its lines, in bytes. Over HTTP/2 it is counted as in RFC 9113 6.5.2.
    pub head_bytes: usize,
    /// Largest number of header lines in a request head.
    pub head_lines: usize,
    /// Longest time until a request head is complete: from the start of the connection, including the TLS handshake, or
    /// from the first byte of a later head.
    pub head_time: Duration,
    /// Largest number of concurrent requests on one HTTP/2 connection.
    pub streams: u32,
    /// Body bytes buffered for slow readers in the whole process above which less is read from their sources.
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
