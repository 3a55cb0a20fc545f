//! Rows of a CSV, with columns found by name.

use std::ops::Range;

use super::lines::Lines;
use super::{Format, Problem, TraceError};

/// Largest number of characters of the input that an error message repeats.
const FOUND_MAX: usize = 80;
/// Largest length of a name, in bytes.
pub(super) const NAME_MAX: usize = 256;
pub(super) const NAME_ALLOWED: &str = "a name of 1 to 256 bytes without control characters";

pub(super) fn shortened(text: &str) -> String {
    text.chars().take(FOUND_MAX).collect()
}

pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(char::is_control)
}

/// A CSV file: a heading, then rows with the same number of fields. Fields are trimmed; one in double quotes may contain commas,
/// but no quotes and no line ends.
#[derive(Debug)]
pub(super) struct Table {
    lines: Lines,
    heading: Vec<Box<str>>,
    ranges: Vec<Range<usize>>,
}

impl Table {
    /// Reads the heading, which must not contain a name twice.
    pub(super) fn new(mut lines: Lines) -> Result<Self, TraceError> {
        let mut ranges = Vec::new();
        if !lines.advance()? {
            return Err(TraceError::new(lines.file(), None, Problem::Empty));
        }
        let line = lines.line();
        let bad = split(line, &mut ranges).err();
        let mut heading: Vec<Box<str>> = Vec::with_capacity(ranges.len());
        heading.extend(ranges.iter().map(|range| line[range.clone()].into()));
        if let Some(at) = bad {
            let column = format!("column {}", at + 1);
            return Err(lines.error(Problem::Quote { column }));
        }
        let mut sorted: Vec<&str> = heading.iter().map(|name| &**name).collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let column = shortened(pair[0]);
            return Err(lines.error(Problem::ColumnTwice { column }));
        }
        Ok(Self {
            lines,
            heading,
            ranges,
        })
    }

    pub(super) fn heading(&self) -> &[Box<str>] {
        &self.heading
    }

    pub(super) const fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Returns the index of a column.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.heading.iter().position(|column| &**column == name)
    }

    /// Returns the index of a required column, or [`Problem::ColumnMissing`].
    pub(super) fn need(&self, name: &str) -> Result<usize, TraceError> {
        self.find(name).ok_or_else(|| {
            self.lines.error(Problem::ColumnMissing {
                column: name.to_owned(),
            })
        })
    }

    /// Returns an error for a heading without a known format.
    pub(super) fn unknown_heading(&self) -> TraceError {
        let formats: Vec<String> = Format::ALL
            .iter()
            .filter(|format| !format.columns().is_empty())
            .map(|format| format.described())
            .collect();
        self.lines.error(Problem::Heading {
            found: shortened(&self.heading.join(",")),
            allowed: format!(
                "one with these columns is needed: {}; or lines of JSON",
                formats.join(" or ")
            ),
        })
    }

    /// Reads the next row; `None` after the last.
    pub(super) fn row(&mut self) -> Result<Option<Row<'_>>, TraceError> {
        if !self.lines.advance()? {
            return Ok(None);
        }
        if let Err(at) = split(self.lines.line(), &mut self.ranges) {
            let column = self
                .heading
                .get(at)
                .map_or_else(|| format!("column {}", at + 1), |name| shortened(name));
            return Err(self.lines.error(Problem::Quote { column }));
        }
        let (found, needed) = (self.ranges.len(), self.heading.len());
        if found != needed {
            return Err(self.lines.error(Problem::Fields { found, needed }));
        }
        Ok(Some(Row {
            lines: &self.lines,
            ranges: &self.ranges,
            heading: &self.heading,
        }))
    }
}

/// Finds the fields of a line. The error is the index of a field with invalid quotes.
fn split(line: &str, ranges: &mut Vec<Range<usize>>) -> Result<(), usize> {
    ranges.clear();
    let mut from = 0;
    loop {
        let rest = &line[from..];
        let blank = rest.len() - rest.trim_start().len();
        if rest[blank..].starts_with('"') {
            let begin = from + blank + 1;
            let Some(length) = line[begin..].find('"') else {
                return Err(ranges.len());
            };
            ranges.push(begin..begin + length);
            let after = line[begin + length + 1..].trim_start();
            if after.is_empty() {
                return Ok(());
            }
            if !after.starts_with(',') {
                return Err(ranges.len() - 1);
            }
            from = line.len() - after.len() + 1;
        } else {
            let length = rest.find(',').unwrap_or(rest.len());
            let field = &rest[..length];
            let begin = from + length - field.trim_start().len();
            ranges.push(begin..begin + field.trim().len());
            if length == rest.len() {
                return Ok(());
            }
            from += length + 1;
        }
    }
}

/// A row, valid until the next one is read.
#[derive(Debug)]
pub(super) struct Row<'a> {
    lines: &'a Lines,
    ranges: &'a [Range<usize>],
    heading: &'a [Box<str>],
}

impl Row<'_> {
    /// Returns the text of a field; empty if there is none.
    pub(super) fn text(&self, column: usize) -> &str {
        self.ranges
            .get(column)
            .map_or("", |range| &self.lines.line()[range.clone()])
    }

    /// Returns an error located at this row.
    pub(super) fn error(&self, problem: Problem) -> TraceError {
        self.lines.error(problem)
    }

    /// Returns an error for a field with an invalid value.
    pub(super) fn bad(&self, column: usize, allowed: &str) -> TraceError {
        self.error(Problem::Field {
            column: self.name(column),
            found: shortened(self.text(column)),
            allowed: allowed.to_owned(),
        })
    }

    /// Returns the name of a column, shortened for messages.
    pub(super) fn name(&self, column: usize) -> String {
        self.heading
            .get(column)
            .map_or_else(String::new, |name| shortened(name))
    }

    /// Returns a field which must be a name of 1 to 256 bytes.
    pub(super) fn need_name(&self, column: usize) -> Result<&str, TraceError> {
        let text = self.text(column);
        if is_name(text) {
            Ok(text)
        } else {
            Err(self.bad(column, NAME_ALLOWED))
        }
    }

    /// Parses a whole number from 0 to `max`.
    pub(super) fn whole(&self, column: usize, max: u32) -> Result<u32, TraceError> {
        let value: Option<u32> = self.text(column).parse().ok();
        value
            .filter(|&value| value <= max)
            .ok_or_else(|| self.bad(column, &format!("a whole number from 0 to {max}")))
    }

    /// Parses a number from `min` to `max`.
    pub(super) fn number(&self, column: usize, min: f64, max: f64) -> Result<f64, TraceError> {
        let value: Option<f64> = self.text(column).parse().ok();
        value
            .filter(|value| (min..=max).contains(value))
            .ok_or_else(|| self.bad(column, &format!("a number from {min} to {max}")))
    }

    /// Parses a time in units of `unit` nanoseconds, from 0 to `max` units, and rounds it to nanoseconds.
    pub(super) fn nanos(&self, column: usize, unit: u64, max: u64) -> Result<u64, TraceError> {
        decimal(self.text(column), unit)
            .filter(|&nanos| nanos <= max.saturating_mul(unit))
            .ok_or_else(|| self.bad(column, &format!("a number from 0 to {max}")))
    }
}

/// Parses a number in decimal notation and multiplies it by `unit`, rounding halves up. Digits are not converted
/// to a double, so that the output of [`super::write_csv`] is read back without a change.
pub(super) fn decimal(text: &str, unit: u64) -> Option<u64> {
    if text.bytes().any(|byte| matches!(byte, b'e' | b'E')) {
        // Only small numbers are written in this notation, for which a double is exact enough.
        let value: f64 = text.parse().ok()?;
        #[expect(clippy::cast_precision_loss, reason = "a unit of time")]
        let value = value * unit as f64;
        return (0.0..9e15)
            .contains(&value)
            .then(|| crate::generate::nanos(value));
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && part.is_empty()) || !digits(whole) || !digits(part) {
        return None;
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let mut rest: u128 = 0;
    let mut scale: u128 = 1;
    for digit in part.bytes().take(18) {
        rest = rest * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    let rest = (rest * u128::from(unit) * 2 + scale) / (scale * 2);
    whole
        .checked_mul(unit)?
        .checked_add(u64::try_from(rest).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_split_at_commas_outside_of_quotes() {
        let fields = |line: &str| {
            let mut ranges = Vec::new();
            split(line, &mut ranges).map(|()| {
                let texts = ranges.iter().map(|range| line[range.clone()].to_owned());
                texts.collect::<Vec<_>>()
            })
        };
        let good = |line: &str, expected: &[&str]| assert_eq!(fields(line).unwrap(), expected);
        good("a,b", &["a", "b"]);
        good(" a , b\t,", &["a", "b", ""]);
        good("", &[""]);
        good(",", &["", ""]);
        good("\"a,b\" ,\"\",c", &["a,b", "", "c"]);
        good("ä,\"ö\"", &["ä", "ö"]);
        good("a\"b,c", &["a\"b", "c"]);
        assert_eq!(fields("a,\"b"), Err(1));
        assert_eq!(fields("\"a\"b,c"), Err(0));
    }

    #[test]
    fn numbers_are_parsed_to_the_nanosecond() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1.5", Some(1_500_000_000)),
            ("0.000000001", Some(1)),
            ("0.0000000005", Some(1)),
            ("0.00000000049", Some(0)),
            ("123456789.123456789", Some(123_456_789_123_456_789)),
            ("0.9999999999", Some(1_000_000_000)),
            (".5", Some(500_000_000)),
            ("5e-05", Some(50_000)),
            ("-1", None),
            ("+1", None),
            ("", None),
            (".", None),
            ("1.2.3", None),
            ("nan", None),
            ("inf", None),
            ("1e30", None),
            ("18446744073709551615", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(decimal(text, 1_000_000_000), expected, "{text}");
        }
    }
}
