//! Parsers for values in annotations and configuration files: durations in Go's format, quantities and names in
//! Kubernetes' format.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

/// Parses a duration in Go's format: decimal numbers with units `ns us µs ms s m h`, as in `1m30s` or `1.5s`, or `0`
/// without a unit.
///
/// # Errors
/// Returns a message with the allowed format.
pub fn duration(text: &str) -> Result<Duration, String> {
    let bad = || "allowed: a duration such as 250us, 100ms, 1.5s or 1m30s".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut ns = 0_u64;
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, tail) = rest.split_at(unit_at.ok_or_else(bad)?);
        let next_at = tail.find(|c: char| c.is_ascii_digit() || c == '.');
        let (unit, tail) = tail.split_at(next_at.unwrap_or(tail.len()));
        let unit_ns = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(bad()),
        };
        let part = scaled(number, unit_ns).ok_or_else(bad)?;
        ns = ns.checked_add(part).ok_or_else(bad)?;
        rest = tail;
    }
    Ok(Duration::from_nanos(ns))
}

/// Parses a duration in the format of [`duration`], and rejects zero.
///
/// # Errors
/// Returns a message with the allowed format.
pub fn positive_duration(text: &str) -> Result<Duration, String> {
    let bad = || "allowed: a duration above zero such as 200ms, 1.5s or 1m30s".to_owned();
    duration(text)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(bad)
}

/// Returns a decimal number multiplied by `unit`, rounded down; `None` if the text is malformed or the product overflows.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = match whole {
        "" => 0,
        whole if whole.bytes().all(|byte| byte.is_ascii_digit()) => {
            whole.parse::<u64>().ok()?.checked_mul(unit)?
        }
        _ => return None,
    };
    let mut part = u128::from(unit);
    let mut rest = 0_u128;
    // Digits beyond the nineteenth decimal place are ignored, which may round down by one where the unit is a power of two.
    for (place, digit) in fraction.chars().enumerate() {
        let digit = u128::from(digit.to_digit(10)?);
        if place < 19 {
            part *= 10;
            rest = rest * 10 + digit * u128::from(unit);
        }
    }
    let divisor = part / u128::from(unit.max(1));
    let rest = rest.checked_div(divisor)?;
    value = value.checked_add(u64::try_from(rest).ok()?)?;
    Some(value)
}

/// Parses a decimal number with one of these units and returns it multiplied by the unit's factor, rounded down; a number
/// without a unit has the unit `""`.
///
/// Returns `None` for another unit, a sign, an exponent, a number which begins or ends with a point, and a product above
/// [`u64::MAX`].
///
/// # Examples
///
/// ```
/// use annotations::values::with_unit;
///
/// const SIZES: [(&str, u64); 2] = [("MiB", 1 << 20), ("", 1)];
/// assert_eq!(with_unit("1.5MiB", &SIZES), Some(3 << 19));
/// assert_eq!(with_unit("1.5GiB", &SIZES), None);
/// ```
#[must_use]
pub fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    if number.starts_with('.') || number.ends_with('.') {
        return None;
    }
    scaled(number, *factor)
}

/// Parses a Kubernetes quantity and returns its number of bytes: `8Gi`, `500M`, `1.5Gi` or a plain number.
///
/// # Errors
/// Returns a message with the allowed format.
pub fn quantity(text: &str) -> Result<u64, String> {
    let bad = || "allowed: a quantity of bytes such as 8Gi, 512Mi, 1.5G or 1000000".to_owned();
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_bytes = match unit {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return Err(bad()),
    };
    scaled(number, unit_bytes).ok_or_else(bad)
}

/// Parses a decimal number and returns it in units of 10^-`places`; `None` if it has more places, a sign or an exponent.
#[must_use]
pub fn decimal(text: &str, places: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || text.ends_with('.') {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let places = usize::try_from(places).ok()?;
    if fraction.len() > places {
        return None;
    }
    format!("{whole}{fraction:0<places$}").parse().ok()
}

/// Parses a whole number from `min` to `max`.
///
/// # Errors
/// Returns a message with the allowed range.
pub fn integer<T: FromStr + PartialOrd + Display>(text: &str, min: T, max: T) -> Result<T, String> {
    text.parse()
        .ok()
        .filter(|n| *n >= min && *n <= max)
        .ok_or_else(|| format!("allowed: a whole number from {min} to {max}"))
}

/// Checks that a text is a DNS label (RFC 1123), the form of the names of namespaces and revisions.
///
/// # Errors
/// Returns a message with the allowed characters and length.
pub fn dns_label(text: &str) -> Result<(), String> {
    if is_dns(text, 63, false) {
        Ok(())
    } else {
        Err("allowed: 1 to 63 of a-z, 0-9 and -, no - at either end".to_owned())
    }
}

/// Checks that a text is a DNS subdomain (RFC 1123), the form of the names of pods.
///
/// # Errors
/// Returns a message with the allowed characters and length.
pub fn dns_subdomain(text: &str) -> Result<(), String> {
    if is_dns(text, 253, true) {
        Ok(())
    } else {
        Err("allowed: 1 to 253 of a-z, 0-9, - and ., no - or . at either end".to_owned())
    }
}

fn is_dns(text: &str, length_max: usize, has_dots: bool) -> bool {
    let is_inner = |byte: u8| {
        byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || byte == b'-'
            || has_dots && byte == b'.'
    };
    (1..=length_max).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_follow_go() {
        let ns = |text: &str| duration(text).map(|duration| duration.as_nanos());
        assert_eq!(ns("250us"), Ok(250_000));
        assert_eq!(ns("7µs"), Ok(7_000));
        assert_eq!(ns("1.5s"), Ok(1_500_000_000));
        assert_eq!(ns(".5ms"), Ok(500_000));
        assert_eq!(ns("1h2m3s4ms"), Ok(3_723_004_000_000));
        assert_eq!(ns("0"), Ok(0));
        assert_eq!(ns("0.123456789s"), Ok(123_456_789));
        assert_eq!(ns("1.0000000000000000000000000000001s"), Ok(1_000_000_000));
        for bad in [
            "",
            "5",
            "-1s",
            "1d",
            "s",
            "1..5s",
            ".s",
            "99999999999999h",
            "1 s",
            "1s ",
            // 2^64 ns and more, by a whole part which fits alone.
            "18446744073.9s",
            ".s1s",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn quantities_follow_kubernetes() {
        assert_eq!(quantity("8Gi"), Ok(8 << 30));
        assert_eq!(quantity("1.5Gi"), Ok(3 << 29));
        assert_eq!(quantity("500M"), Ok(500_000_000));
        assert_eq!(quantity("42"), Ok(42));
        for bad in ["", "Gi", "8GB", "-1", "8 Gi", "1e9", "99999999999Ti", "."] {
            assert!(quantity(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn decimals_have_at_most_the_given_places() {
        assert_eq!(decimal("24", 2), Some(2_400));
        assert_eq!(decimal("12.5", 2), Some(1_250));
        assert_eq!(decimal("0.3000", 2), Some(30));
        for bad in [
            "",
            ".5",
            "1.",
            "1.234",
            "-1",
            "1e2",
            "1.2.3",
            "+1",
            "99999999999999999999",
        ] {
            assert_eq!(decimal(bad, 2), None, "{bad}");
        }
    }

    #[test]
    fn names_follow_kubernetes() {
        for name in ["a", "resnet-00001", &"x".repeat(63)] {
            assert_eq!(dns_label(name), Ok(()));
        }
        for name in [
            "",
            "-a",
            "a-",
            "A",
            "a.b",
            "a_b",
            "a b",
            "ü",
            "a/b",
            &"x".repeat(64),
        ] {
            assert!(dns_label(name).is_err(), "{name}");
        }
        assert_eq!(dns_subdomain("resnet-00001.deployment-x"), Ok(()));
        for name in ["..", ".a", "a.", "a\n", "a%", "\u{202e}a"] {
            assert!(dns_subdomain(name).is_err(), "{name:?}");
        }
    }
}
