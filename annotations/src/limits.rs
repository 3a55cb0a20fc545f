//! Keys that tighten the share of the process's resources that one client may use.

use std::time::Duration;

use crate::values::{duration, integer};

/// Largest allowed limit on a request head, in bytes: 1 MiB and the 4 KiB that Go's server allows beyond it.
pub const HEAD_BYTES_MAX: usize = 1024 * 1024 + 4096;
/// Smallest allowed limit on a request head, in bytes. A smaller one would reject requests with long cookies and tokens,
/// which other servers accept.
const HEAD_BYTES_MIN: usize = 8 * 1024;
/// Largest allowed limit on the number of lines in a request head. Go's server has no such limit; its 1 MiB has room for
/// more lines.
pub const HEAD_LINES_MAX: usize = 1_000;
/// Smallest allowed limit on the number of lines in a request head: those of a browser and those that gateways add.
const HEAD_LINES_MIN: usize = 32;
/// Longest allowed time until a request head is complete, as under Knative.
pub const HEAD_TIME_MAX: Duration = Duration::from_secs(60);
const HEAD_TIME_MIN: Duration = Duration::from_secs(1);
/// Largest allowed number of concurrent streams on one HTTP/2 connection, as under Knative.
pub const STREAMS_MAX: u32 = 250;
/// Largest allowed limit on the bytes buffered for slow readers: together with the other memory of a thousand
/// connections it stays within 160 MiB.
pub const BUFFERED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Smallest allowed limit on the bytes buffered for slow readers: enough for a few bodies at full speed.
const BUFFERED_BYTES_MIN: usize = 1024 * 1024;

/// Limits of one client; `None` stands for the largest allowed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// `weir.dev/limit-head-bytes`: 8,192 to [`HEAD_BYTES_MAX`].
    pub head_bytes: Option<usize>,
    /// `weir.dev/limit-head-lines`: 32 to [`HEAD_LINES_MAX`].
    pub head_lines: Option<usize>,
    /// `weir.dev/limit-head-time`: 1 s to [`HEAD_TIME_MAX`].
    pub head_time: Option<Duration>,
    /// `weir.dev/limit-streams`: 1 to [`STREAMS_MAX`].
    pub streams: Option<u32>,
    /// `weir.dev/limit-buffered-bytes`: 1 MiB to [`BUFFERED_BYTES_MAX`].
    pub buffered_bytes: Option<usize>,
}

impl Limits {
    /// Sets the limit named by a key of [`Part::Limit`](crate::Part::Limit).
    ///
    /// # Errors
    /// Returns a message with the allowed values if `value` is out of range or malformed.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "limit-head-bytes" => {
                self.head_bytes = Some(integer(value, HEAD_BYTES_MIN, HEAD_BYTES_MAX)?);
            }
            "limit-head-lines" => {
                self.head_lines = Some(integer(value, HEAD_LINES_MIN, HEAD_LINES_MAX)?);
            }
            "limit-head-time" => {
                let time = duration(value).ok();
                let in_range = |time: &Duration| (HEAD_TIME_MIN..=HEAD_TIME_MAX).contains(time);
                let time = time.filter(in_range);
                self.head_time = Some(time.ok_or("allowed: a duration from 1s to 60s")?);
            }
            "limit-streams" => self.streams = Some(integer(value, 1, STREAMS_MAX)?),
            _ => {
                let bytes = integer(value, BUFFERED_BYTES_MIN, BUFFERED_BYTES_MAX)?;
                self.buffered_bytes = Some(bytes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{KEYS, Part};

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
            head_bytes: Some(8192),
            head_lines: Some(32),
            head_time: Some(Duration::from_millis(1_500)),
            streams: Some(1),
            buffered_bytes: Some(1 << 20),
        };
        assert_eq!(limits, tightest);
        for (key, bad) in [
            ("limit-head-bytes", "8191"),
            ("limit-head-lines", "31"),
            ("limit-head-time", "999ms"),
            ("limit-head-time", "1"),
            ("limit-streams", "0"),
            ("limit-buffered-bytes", "1048575"),
        ] {
            assert!(limits.set(key, bad).is_err(), "{key}");
        }
        assert_eq!(limits, tightest);
    }

    #[test]
    fn each_key_sets_its_own_limit_only() {
        for (key, value) in [
            ("limit-buffered-bytes", "1048576"),
            ("limit-head-bytes", "8192"),
            ("limit-head-lines", "32"),
            ("limit-head-time", "1s"),
            ("limit-streams", "1"),
        ] {
            assert!(KEYS.iter().any(|known| known.name == key));
            let mut limits = Limits::default();
            limits.set(key, value).unwrap();
            let set = [
                ("limit-buffered-bytes", limits.buffered_bytes.is_some()),
                ("limit-head-bytes", limits.head_bytes.is_some()),
                ("limit-head-lines", limits.head_lines.is_some()),
                ("limit-head-time", limits.head_time.is_some()),
                ("limit-streams", limits.streams.is_some()),
            ];
            for (name, is_set) in set {
                assert_eq!(is_set, name == key, "{key}: {name}");
            }
        }
        assert_eq!(KEYS.iter().filter(|key| key.part == Part::Limit).count(), 5);
    }
}
