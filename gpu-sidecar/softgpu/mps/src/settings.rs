//! Settings of clients: share of SMs, limits of memory, priority.

use std::fmt;

/// An active-thread percentage, above 0 and at most 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percentage {
    /// Hundredths of a percent: 1 to 10,000.
    hundredths: u16,
}

impl Percentage {
    /// 100 %, which permits all SMs.
    pub(crate) const ALL: Self = Self { hundredths: 10_000 };

    /// Parses `12` or `12.5`. Further digits are rounded to hundredths, but never to 0.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| {
            !text.is_empty() && text.len() <= 16 && text.bytes().all(|byte| byte.is_ascii_digit())
        };
        if !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let is_zero = text.bytes().all(|byte| matches!(byte, b'0' | b'.'));
        let digit = |at| fraction.as_bytes().get(at).map_or(0, |digit| digit - b'0');
        let whole: u64 = whole.parse().ok()?;
        let exact = whole.checked_mul(100)? + u64::from(digit(0)) * 10 + u64::from(digit(1));
        let rest_is_zero = fraction.bytes().skip(2).all(|digit| digit == b'0');
        if is_zero || exact > 10_000 || (exact == 10_000 && !rest_is_zero) {
            return None;
        }
        let rounded = exact + u64::from(digit(2) >= 5);
        u16::try_from(rounded.max(1))
            .ok()
            .map(|hundredths| Self { hundredths })
    }

    /// Returns the percentage in hundredths.
    pub(crate) fn hundredths(self) -> u64 {
        u64::from(self.hundredths)
    }
}

impl fmt::Display for Percentage {
    /// Formats with one decimal, or with two where needed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.hundredths / 100, self.hundredths % 100);
        if rest.is_multiple_of(10) {
            write!(formatter, "{whole}.{}", rest / 10)
        } else {
            write!(formatter, "{whole}.{rest:02}")
        }
    }
}

const MEBIBYTE: u64 = 1 << 20;
const GIBIBYTE: u64 = 1 << 30;

/// Parses a limit of device memory in bytes: a positive integer with the suffix G or M.
pub(crate) fn parse_limit(text: &str) -> Option<u64> {
    let (number, unit) = match text.as_bytes().last()? {
        b'G' => (text.strip_suffix('G')?, GIBIBYTE),
        b'M' => (text.strip_suffix('M')?, MEBIBYTE),
        _ => return None,
    };
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    number.checked_mul(unit).filter(|bytes| *bytes > 0)
}

/// Formats a limit: from 1 GiB on in whole GiB, like the driver (595.91), below in MiB.
pub(crate) fn limit_text(bytes: u64) -> String {
    if bytes >= GIBIBYTE {
        format!("{}G", bytes / GIBIBYTE)
    } else {
        format!("{}M", bytes / MEBIBYTE)
    }
}

/// Parses a client's priority: 0 normal, 1 below normal.
pub(crate) fn parse_priority(text: &str) -> Option<u8> {
    match text {
        "0" => Some(0),
        "1" => Some(1),
        _ => None,
    }
}

/// Settings that a server passes to its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Active-thread percentage; `None` for all SMs.
    pub(crate) percentage: Option<Percentage>,
    /// Limits of device memory in bytes, by unit; 0 or a missing entry for none.
    pub(crate) limits: Vec<u64>,
    /// Priority of streams without one of their own.
    pub(crate) priority: u8,
}

impl Settings {
    /// Returns the percentage, 100 % if none is set.
    pub(crate) fn percentage(&self) -> Percentage {
        self.percentage.unwrap_or(Percentage::ALL)
    }

    /// Returns the limit of a unit in bytes; 0 for none.
    pub(crate) fn limit(&self, unit: usize) -> u64 {
        self.limits.get(unit).copied().unwrap_or_default()
    }

    /// Sets the limit of a unit in bytes.
    pub(crate) fn set_limit(&mut self, unit: usize, bytes: u64) {
        if self.limits.len() <= unit {
            self.limits.resize(unit + 1, 0);
        }
        self.limits[unit] = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_above_0_and_at_most_100() {
        for (text, shown, hundredths) in [
            ("100", "100.0", 10_000),
            ("100.000", "100.0", 10_000),
            ("25", "25.0", 2_500),
            ("12.5", "12.5", 1_250),
            ("33.333", "33.33", 3_333),
            ("99.999", "100.0", 10_000),
            ("0.001", "0.01", 1),
        ] {
            let percentage = Percentage::parse(text).unwrap();
            assert_eq!(percentage.to_string(), shown);
            assert_eq!(percentage.hundredths(), hundredths);
        }
        for text in [
            "",
            ".",
            "0",
            "0.0",
            "-1",
            "+1",
            "100.001",
            "101",
            "1e1",
            "nan",
            "1.",
            ".5",
            "1.2.3",
            "99999999999999999999",
        ] {
            assert_eq!(Percentage::parse(text), None, "{text}");
        }
    }

    #[test]
    fn limits_are_integers_with_a_suffix() {
        assert_eq!(parse_limit("6G"), Some(6 << 30));
        assert_eq!(parse_limit("512M"), Some(512 << 20));
        for text in [
            "",
            "G",
            "6",
            "6K",
            "6g",
            "6GB",
            "-1G",
            "+1G",
            "1.5G",
            "0M",
            "99999999999999G",
        ] {
            assert_eq!(parse_limit(text), None, "{text}");
        }
        assert_eq!(limit_text(0), "0M");
        assert_eq!(limit_text(512 << 20), "512M");
        assert_eq!(limit_text(20_350 << 20), "19G");
    }

    #[test]
    fn a_unit_without_an_entry_has_no_limit() {
        let mut settings = Settings::default();
        settings.set_limit(2, 7);
        assert_eq!(settings.limits, [0, 0, 7]);
        assert_eq!((settings.limit(2), settings.limit(9)), (7, 0));
        assert_eq!(settings.percentage(), Percentage::ALL);
    }
}
