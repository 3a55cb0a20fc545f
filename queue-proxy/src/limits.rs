//! How much of the process one client's connection, and all slow readers together, may take.
//!
//! The defaults are no looser than Knative's, and are the most that is allowed: a revision may tighten them, by
//! annotation or variable as it sets other options. Doing so switches nothing else on.

use std::time::Duration;

use crate::options::{duration, integer};

/// Keys of the options that set limits.
pub(crate) const KEYS: [&str; 5] = [
    "limit-head-bytes",
    "limit-head-lines",
    "limit-head-time",
    "limit-streams",
    "limit-buffered-bytes",
];

/// The most that is allowed, and the default: 1 MiB and what Go's server allows beyond it.
pub(crate) const HEAD_BYTES_MAX: usize = 1024 * 1024 + 4096;
/// Less would refuse what other servers take: cookies and tokens are long.
const HEAD_BYTES_MIN: usize = 8 * 1024;
/// The most header lines in a head. Go's server has no such bound; within its 1 MiB it takes more.
pub(crate) const HEAD_LINES_MAX: usize = 1_000;
/// What a browser sends, and what gateways add to it.
const HEAD_LINES_MIN: usize = 32;
/// An incomplete request head is cut after this time, as Knative does it.
const HEAD_TIME_MAX: Duration = Duration::from_secs(60);
const HEAD_TIME_MIN: Duration = Duration::from_secs(1);
/// Streams on one HTTP/2 connection at once, as Knative's.
const STREAMS_MAX: u32 = 250;
/// Bytes held for slow readers: beside what a thousand connections take otherwise, within 160 MiB.
const BUFFERED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A few bodies at full speed.
const BUFFERED_BYTES_MIN: usize = 1024 * 1024;

/// See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
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

impl Limits {
    /// Sets the limit that a key names.
    ///
    /// # Errors
    /// What is allowed, if the value is not.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "limit-head-bytes" => {
                self.head_bytes = integer(value, HEAD_BYTES_MIN, HEAD_BYTES_MAX)?;
            }
            "limit-head-lines" => {
                self.head_lines = integer(value, HEAD_LINES_MIN, HEAD_LINES_MAX)?;
            }
            "limit-head-time" => {
                let time = duration(value)?;
                if !(HEAD_TIME_MIN..=HEAD_TIME_MAX).contains(&time) {
                    return Err("allowed: a duration from 1s to 60s".to_owned());
                }
                self.head_time = time;
            }
            "limit-streams" => self.streams = integer(value, 1, STREAMS_MAX)?,
            "limit-buffered-bytes" => {
                self.buffered_bytes = integer(value, BUFFERED_BYTES_MIN, BUFFERED_BYTES_MAX)?;
            }
            _ => return Err(format!("no limit; limits: {}", KEYS.join(", "))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_can_be_tightened_and_not_loosened() {
        let mut limits = Limits::default();
        for (key, good, bad) in [
            ("limit-head-bytes", "8192", "1052673"),
            ("limit-head-lines", "32", "1001"),
            ("limit-head-time", "1.5s", "61s"),
            ("limit-streams", "1", "251"),
            ("limit-buffered-bytes", "1048576", "67108865"),
        ] {
            assert_eq!(limits.set(key, good), Ok(()), "{key}");
            let why = limits.set(key, bad).unwrap_err();
            assert!(why.starts_with("allowed: "), "{why}");
        }
        let tightest = Limits {
            head_bytes: 8192,
            head_lines: 32,
            head_time: Duration::from_millis(1_500),
            streams: 1,
            buffered_bytes: 1 << 20,
        };
        assert_eq!(limits, tightest);
        for (key, bad) in [
            ("limit-head-bytes", "8191"),
            ("limit-head-time", "999ms"),
            ("limit-streams", "0"),
            ("limit-buffered-bytes", "1048575"),
        ] {
            assert!(limits.set(key, bad).is_err(), "{key}");
        }
    }

    #[test]
    fn every_key_names_a_limit() {
        let known = |key: &str| {
            !Limits::default()
                .set(key, "x")
                .unwrap_err()
                .contains("no limit")
        };
        assert!(KEYS.iter().all(|key| known(key)));
        assert!(!known("limit-nothing"));
    }
}
