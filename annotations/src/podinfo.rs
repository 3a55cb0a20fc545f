//! Parser for the annotations file that the kubelet's downward API writes.
//!
//! The file has one line per annotation, `key="value"`, with the value as a Go double-quoted string. A malformed line
//! is reported and does not affect the other lines.

use std::borrow::Cow;

/// Largest accepted file, in bytes: Kubernetes' own limit on all annotations of a pod.
pub const SIZE_MAX: u64 = 256 * 1024;

/// A line that is not `key="value"`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct BadLine {
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Description of the error.
    pub why: &'static str,
}

/// Parses the file's text. Returns the annotations in file order, and the malformed lines. Blank lines are skipped.
#[must_use]
pub fn parse(text: &str) -> (Vec<(&str, String)>, Vec<BadLine>) {
    let mut annotations = Vec::new();
    let mut bad = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let parsed = line
            .split_once('=')
            .ok_or("no '=' between key and value")
            .and_then(|(key, value)| Ok((key, unquote(value)?)));
        match parsed {
            Ok(annotation) => annotations.push(annotation),
            Err(why) => bad.push(BadLine {
                line: number + 1,
                why,
            }),
        }
    }
    (annotations, bad)
}

/// Decodes a Go double-quoted string. Invalid UTF-8 is replaced by U+FFFD.
fn unquote(quoted: &str) -> Result<String, &'static str> {
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .ok_or("the value is not in double quotes")?;
    // \xNN and octal escapes stand for single bytes, which need not be UTF-8 on their own.
    let mut bytes = Vec::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Err("a double quote inside the value is not escaped"),
            '\\' => unescape(&mut chars, &mut bytes)?,
            c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Ok(match String::from_utf8_lossy(&bytes) {
        Cow::Borrowed(text) => text.to_owned(),
        Cow::Owned(text) => text,
    })
}

fn unescape(chars: &mut std::str::Chars<'_>, bytes: &mut Vec<u8>) -> Result<(), &'static str> {
    const BAD_NUMBER: &str = "a numeric escape is truncated or out of range";
    let kind = chars.next().ok_or("a backslash ends the value")?;
    let byte = match kind {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' => b'\\',
        '"' => b'"',
        'x' => u8::try_from(number(chars, 2, 16).ok_or(BAD_NUMBER)?).map_err(|_| BAD_NUMBER)?,
        'u' | 'U' => {
            let digits = if kind == 'u' { 4 } else { 8 };
            let code = number(chars, digits, 16).ok_or(BAD_NUMBER)?;
            let c = char::from_u32(code).ok_or(BAD_NUMBER)?;
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            return Ok(());
        }
        '0'..='7' => {
            let rest = number(chars, 2, 8).ok_or(BAD_NUMBER)?;
            let first = kind.to_digit(8).ok_or(BAD_NUMBER)?;
            u8::try_from(first * 64 + rest).map_err(|_| BAD_NUMBER)?
        }
        _ => return Err("unknown escape sequence"),
    };
    bytes.push(byte);
    Ok(())
}

fn number(chars: &mut std::str::Chars<'_>, digits: usize, radix: u32) -> Option<u32> {
    let mut value = 0_u32;
    for _ in 0..digits {
        value = value
            .checked_mul(radix)?
            .checked_add(chars.next()?.to_digit(radix)?)?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(line: &str) -> String {
        let (annotations, bad) = parse(line);
        assert_eq!(bad, []);
        annotations[0].1.clone()
    }

    #[test]
    fn lines_are_split_at_the_first_equals_sign() {
        assert_eq!(
            parse("a.b/c=\"x=y\"\n\nd=\"\"").0,
            [("a.b/c", "x=y".to_owned()), ("d", String::new())]
        );
    }

    #[test]
    fn decodes_every_escape_of_go() {
        assert_eq!(
            value(r#"k="\n\t\\\"\a\b\f\r\v""#),
            "\n\t\\\"\u{7}\u{8}\u{c}\r\u{b}"
        );
        assert_eq!(value(r#"k="\x41\101\u00e9\U0001F600""#), "AAé😀");
        assert_eq!(value(r#"k="\xc3\xa9""#), "é");
    }

    #[test]
    fn keeps_case_and_spaces_of_a_value() {
        assert_eq!(value("k=\" A b \""), " A b ");
    }

    #[test]
    fn bad_lines_are_reported_and_do_not_affect_the_others() {
        let (annotations, bad) =
            parse("a=\"1\"\nnonsense\nb=2\nc=\"\\q\"\nd=\"\\x4\"\ne=\"\"\"\nf=\"6\"");
        assert_eq!(annotations, [("a", "1".to_owned()), ("f", "6".to_owned())]);
        assert_eq!(
            bad.iter().map(|b| b.line).collect::<Vec<_>>(),
            [2, 3, 4, 5, 6]
        );
        assert_eq!(bad[0].to_string(), "line 2: no '=' between key and value");
    }
}
