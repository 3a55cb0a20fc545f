//! Units of numbers, and their format for people.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Unit of a number. Reports, tables and plots format all numbers by [`Unit::write`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A count of items which the column's name states.
    Count,
    /// A count of functions.
    Functions,
    /// A count of GPUs.
    Gpus,
    /// A share from 0 to 1, written in percent.
    Share,
    /// A share from 0 to 100.
    Percent,
    /// A duration, written in the unit that suits its size.
    Nanoseconds,
    /// A duration, always written in milliseconds as papers print it.
    Milliseconds,
    /// An amount of memory, written in the binary unit that suits its size.
    Bytes,
    /// An amount of memory, always written in megabytes as papers print it.
    Megabytes,
    /// A rate per second.
    PerSecond,
    /// A rate per minute.
    PerMinute,
    /// A ratio of two values of the same kind.
    Ratio,
    /// A dimensionless number, written without a unit.
    Plain,
    /// A rank, counted from 1.
    Place,
    /// 1 where a condition holds, else 0; also the share of seeds in which it holds.
    Holds,
}

impl Unit {
    /// Formats a number with its unit: three significant digits, counts in full, thousands separated. A number which is not
    /// finite is a dash.
    #[must_use]
    pub fn write(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".to_owned();
        }
        match self {
            Self::Count | Self::Plain | Self::Place => number(value),
            Self::Functions if (value - 1.0).abs() < f64::EPSILON => "1 function".to_owned(),
            Self::Functions => format!("{} functions", number(value)),
            Self::Gpus if (value - 1.0).abs() < f64::EPSILON => "1 GPU".to_owned(),
            Self::Gpus => format!("{} GPUs", number(value)),
            Self::Share => percent(value * 100.0),
            Self::Percent => percent(value),
            Self::Nanoseconds => {
                scaled(value, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
            }
            Self::Milliseconds => format!("{} ms", number(value)),
            Self::Bytes => scaled(
                value,
                &[
                    (1_073_741_824.0, "GiB"),
                    (1_048_576.0, "MiB"),
                    (1024.0, "KiB"),
                    (1.0, "B"),
                ],
            ),
            Self::Megabytes => format!("{} MB", number(value)),
            Self::PerSecond => format!("{}/s", number(value)),
            Self::PerMinute => format!("{}/min", number(value)),
            Self::Ratio => format!("{}×", number(value)),
            Self::Holds if value == 1.0 => "yes".to_owned(),
            Self::Holds if value == 0.0 => "no".to_owned(),
            Self::Holds => percent(value * 100.0),
        }
    }

    /// Formats a range, with a common unit written once: "432 to 528 functions". If both numbers are formatted alike, one is
    /// written; for shares from 99 % to below 100 %, as "≥ 99.9 %", rounded down from the lower one.
    #[must_use]
    pub fn write_range(self, low: f64, high: f64) -> String {
        let per_cent = match self {
            Self::Share => Some(low * 100.0),
            Self::Percent => Some(low),
            _ => None,
        };
        let (low, high) = (self.write(low), self.write(high));
        if low == high {
            return match per_cent {
                Some(low) if (99.0..100.0).contains(&low) => {
                    format!("≥ {}", percent(libm::floor(low * 10.0) / 10.0))
                }
                _ => low,
            };
        }
        let unit = |text: &str| {
            let numeric = |c: char| c.is_ascii_digit() || "−,.e-".contains(c);
            text.trim_start_matches(numeric).len()
        };
        let (of_low, of_high) = (unit(&low), unit(&high));
        if low[low.len() - of_low..] == high[high.len() - of_high..] && of_low < low.len() {
            return format!("{} to {high}", &low[..low.len() - of_low]);
        }
        format!("{low} to {high}")
    }

    /// Returns the unit as written beside the name of a column or an axis; empty where the name states it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Functions => "functions",
            Self::Gpus => "GPUs",
            Self::Share | Self::Percent => "%",
            Self::Milliseconds => "ms",
            Self::Megabytes => "MB",
            Self::PerSecond => "per second",
            Self::PerMinute => "per minute",
            Self::Ratio => "ratio",
            Self::Count
            | Self::Nanoseconds
            | Self::Bytes
            | Self::Plain
            | Self::Place
            | Self::Holds => "",
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(self.name())
    }
}

fn percent(value: f64) -> String {
    // Values other than exactly 0 and 100 are not rounded to them.
    let text = format!("{value:.1}");
    match text.as_str() {
        "100.0" if value != 100.0 => format!("{} %", apart(&format!("{value:.3}"))),
        "0.0" | "-0.0" if value != 0.0 => format!("{} %", apart(&format!("{value:.3}"))),
        "-0.0" => "0.0 %".to_owned(),
        _ => format!("{} %", apart(&text)),
    }
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // 999.6 µs is 1.00 ms, so the choice is based on the rounded value.
    let fits = |&&(size, _): &&(f64, &str)| value.abs() >= size * 0.9995;
    let (size, name) = units
        .iter()
        .find(fits)
        .or_else(|| units.last())
        .copied()
        .unwrap_or((1.0, ""));
    format!("{} {name}", number(value / size))
}

/// Formats a number with three significant digits, whole numbers in full.
fn number(value: f64) -> String {
    let size = value.abs();
    let text = if libm::trunc(value) == value || size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 {
        format!("{value:.2}")
    } else if size >= 0.000_999_5 {
        format!("{value:.3}")
    } else {
        format!("{value:.1e}")
    };
    let text = if text == "-0" { "0".to_owned() } else { text };
    apart(&text)
}

/// Separates thousands by commas.
fn apart(text: &str) -> String {
    let (sign, digits) = text
        .strip_prefix('-')
        .map_or(("", text), |digits| ("−", digits));
    let whole = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let mut out = sign.to_owned();
    for (at, digit) in digits[..whole].chars().enumerate() {
        if at > 0 && (whole - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out.push_str(&digits[whole..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_writes_its_unit_once() {
        for (unit, low, high, text) in [
            (Unit::Functions, 432.0, 528.0, "432 to 528 functions"),
            (Unit::Percent, -1.5, 2.0, "−1.5 to 2.0 %"),
            (Unit::Ratio, 1.5, 2.5, "1.50 to 2.50×"),
            (
                Unit::Nanoseconds,
                900_000.0,
                1_100_000.0,
                "900 µs to 1.10 ms",
            ),
            (Unit::Holds, 0.0, 1.0, "no to yes"),
            (Unit::Holds, 1.0, 1.0, "yes"),
            (Unit::Share, 0.9991, 0.9994, "≥ 99.9 %"),
            (Unit::Percent, 99.88, 99.93, "≥ 99.8 %"),
            (Unit::Share, 0.432_1, 0.432_2, "43.2 %"),
            (Unit::Share, 1.0, 1.0, "100.0 %"),
            (Unit::Share, 0.998, 1.0, "99.8 to 100.0 %"),
        ] {
            assert_eq!(unit.write_range(low, high), text);
        }
    }

    #[test]
    fn numbers_are_formatted_for_people() {
        for (unit, value, text) in [
            (Unit::Count, 1_234_567.0, "1,234,567"),
            (Unit::Count, -1_000.0, "−1,000"),
            (Unit::Count, 12.345, "12.3"),
            (Unit::Count, 0.012_34, "0.012"),
            (Unit::Count, 0.000_012_34, "1.2e-5"),
            (Unit::Count, -0.0, "0"),
            (Unit::Functions, 480.0, "480 functions"),
            (Unit::Functions, 1.0, "1 function"),
            (Unit::Gpus, 1.0, "1 GPU"),
            (Unit::Share, 0.987, "98.7 %"),
            (Unit::Share, 1.0, "100.0 %"),
            (Unit::Share, 0.999_99, "99.999 %"),
            (Unit::Percent, 0.004, "0.004 %"),
            (Unit::Nanoseconds, 35_240_000.0, "35.2 ms"),
            (Unit::Nanoseconds, 999_600.0, "1.00 ms"),
            (Unit::Nanoseconds, 1_200_000_000.0, "1.20 s"),
            (Unit::Nanoseconds, 0.0, "0 ns"),
            (Unit::Milliseconds, 1_250.0, "1,250 ms"),
            (Unit::Bytes, 1_610_612_736.0, "1.50 GiB"),
            (Unit::Megabytes, 9_282.0, "9,282 MB"),
            (Unit::PerSecond, 112.4, "112/s"),
            (Unit::Ratio, 12.04, "12.0×"),
            (Unit::Holds, 1.0, "yes"),
            (Unit::Holds, 0.9, "90.0 %"),
            (Unit::Ratio, f64::INFINITY, "–"),
        ] {
            assert_eq!(unit.write(value), text, "{unit:?} {value}");
        }
    }
}
