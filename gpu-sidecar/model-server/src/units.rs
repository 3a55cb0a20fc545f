//! Parsing of sizes, times and shares in options.

use annotations::values::with_unit;

/// Parses a size such as `512`, `4KiB`, `1.5MiB`, `1GiB` or `102MB`, as the server's options take. Returns it in bytes; `None` if it is no size.
#[must_use]
pub fn bytes(text: &str) -> Option<u64> {
    with_unit(
        text,
        &[
            ("KiB", 1 << 10),
            ("MiB", 1 << 20),
            ("GiB", 1 << 30),
            ("TiB", 1 << 40),
            ("kB", 1_000),
            ("MB", 1_000_000),
            ("GB", 1_000_000_000),
            ("B", 1),
            ("", 1),
        ],
    )
}

/// Parses a time such as `250us`, `1.5ms`, `2s` or `800ns`; returns nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Option<u64> {
    with_unit(
        text,
        &[
            ("ns", 1),
            ("us", 1_000),
            ("µs", 1_000),
            ("ms", 1_000_000),
            ("s", 1_000_000_000),
        ],
    )
}

/// Parses a share from 0 to 1 such as `0.25`; returns millionths.
pub(crate) fn millionths(text: &str) -> Option<u32> {
    let value = with_unit(text, &[("", 1_000_000)])?;
    u32::try_from(value)
        .ok()
        .filter(|&value| value <= 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_times_and_shares_are_parsed() {
        for (text, value) in [
            ("0", Some(0)),
            ("512", Some(512)),
            ("1GiB", Some(1 << 30)),
            ("1.5MiB", Some(3 << 19)),
            ("102.228MB", Some(102_228_000)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("16777216TiB", None),
            ("-1", None),
            ("1 GiB", None),
            ("1e9", None),
            ("GiB", None),
            ("1.", None),
            (".5MiB", None),
            ("1.2.3MiB", None),
            ("", None),
        ] {
            assert_eq!(bytes(text), value, "{text}");
        }
        for (text, value) in [
            ("250us", Some(250_000)),
            ("1.5ms", Some(1_500_000)),
            ("2s", Some(2_000_000_000)),
            ("0.0005us", Some(0)),
            ("3µs", Some(3_000)),
            ("250", None),
            ("2m", None),
        ] {
            assert_eq!(nanoseconds(text), value, "{text}");
        }
        for (text, value) in [
            ("0.25", Some(250_000)),
            ("1", Some(1_000_000)),
            ("0", Some(0)),
            ("1.000001", None),
            ("25%", None),
        ] {
            assert_eq!(millionths(text), value, "{text}");
        }
    }
}
