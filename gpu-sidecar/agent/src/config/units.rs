//! Durations, quantities, shares and whole numbers as people write them. A text that cannot be read gives back what is allowed.

use std::time::Duration;

/// A Go duration of zero or more: decimal numbers with units `ns us µs ms s m h`, as `100ms`, `1.5s` or `1m30s`; `0` alone
/// needs no unit.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || "a duration is needed, as 250us, 100ms, 1.5s or 1m30s".to_owned();
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

/// A decimal number times a whole one; digits beyond the whole are dropped.
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
    // Beyond twenty places nothing is left of any unit.
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

/// A duration as [`duration`] reads it, in the largest unit in which it is whole.
pub(crate) fn show_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    for (unit, unit_ns) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns >= unit_ns && ns.is_multiple_of(unit_ns) {
            return format!("{}{unit}", ns / unit_ns);
        }
    }
    match ns {
        0 => "0".to_owned(),
        ns => format!("{ns}ns"),
    }
}

/// A Kubernetes quantity of bytes: `8Gi`, `500M`, `1.5Gi` or a plain number.
pub(crate) fn quantity(text: &str) -> Result<u64, String> {
    let bad = || "a quantity of bytes is needed, as 8Gi, 512Mi, 1.5G or 1000000".to_owned();
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

/// A quantity as [`quantity`] reads it, in the largest binary unit in which it is whole.
pub(crate) fn show_quantity(bytes: u64) -> String {
    for (unit, shift) in [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Decimal digits with at most `places` behind the point, as a whole number of units of that place.
pub(crate) fn decimal(text: &str, places: u32) -> Option<u64> {
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

/// A decimal number as [`decimal`] reads it.
pub(crate) fn show_decimal(value: u64, places: u32) -> String {
    let unit = 10_u64.saturating_pow(places);
    let (whole, fraction) = (value / unit, value % unit);
    let width = usize::try_from(places).unwrap_or(0);
    let fraction = format!("{fraction:0>width$}");
    match fraction.trim_end_matches('0') {
        "" => whole.to_string(),
        fraction => format!("{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
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
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn quantities_are_kubernetes() {
        assert_eq!(quantity("8Gi"), Ok(8 << 30));
        assert_eq!(quantity("1.5Gi"), Ok(3 << 29));
        assert_eq!(quantity("500M"), Ok(500_000_000));
        assert_eq!(quantity("42"), Ok(42));
        for bad in ["", "Gi", "8GB", "-1", "8 Gi", "1e9", "99999999999Ti", "."] {
            assert!(quantity(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn decimals_have_so_many_places() {
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
    fn what_is_shown_can_be_read() {
        for text in ["0", "1s", "100ms", "250us", "1001us", "7ns", "90s"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
        for text in ["0", "8Gi", "1536Mi", "1000", "2Ti"] {
            assert_eq!(show_quantity(quantity(text).unwrap()), text);
        }
        for text in ["0", "100", "12.5", "0.01"] {
            assert_eq!(show_decimal(decimal(text, 2).unwrap(), 2), text);
        }
    }
}
