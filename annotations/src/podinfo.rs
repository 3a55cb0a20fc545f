//! The annotations file that the kubelet's downward API writes.
//!
//! One line per annotation, `key="value"`, the value as a Go double-quoted string. Anything else in a line
//! is an error of that line alone: the others still hold.

use std::borrow::Cow;

/// Files larger than this are not read: the kubelet's own bound on all annotations of a pod.
pub const SIZE_MAX: u64 = 256 * 1024;

/// A line that is not `key="value"`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct BadLine {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Parses the file's text: annotations in file order, and the lines that are none.
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

/// Reads a Go double-quoted string.
fn unquote(quoted: &str) -> Result<String, &'static str> {
    let inner = quoted
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .ok_or("the value is not in double quotes")?;
    // \xNN and octal escapes name bytes, which need not be UTF-8 one by one.
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
    const BAD_NUMBER: &str = "a numeric escape is cut short or out of range";
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
        _ => return Err("an unknown escape"),
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
    fn every_escape_of_go_is_read() {
        assert_eq!(
            value(r#"k="\n\t\\\"\a\b\f\r\v""#),
            "\n\t\\\"\u{7}\u{8}\u{c}\r\u{b}"
        );
        assert_eq!(value(r#"k="\x41\101\u00e9\U0001F600""#), "AAé😀");
        assert_eq!(value(r#"k="\xc3\xa9""#), "é");
    }

    #[test]
    fn case_and_spaces_of_a_value_are_kept() {
        assert_eq!(value("k=\" A b \""), " A b ");
    }

    #[test]
    fn a_bad_line_is_named_and_the_others_hold() {
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
