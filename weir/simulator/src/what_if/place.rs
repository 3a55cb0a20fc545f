//! Files of settings in TOML: whatever is wrong with one is told with file, line and key.

use std::ops::Range;

use serde::de::DeserializeOwned;
use thiserror::Error;
use toml::Spanned;

/// What is wrong with a file of settings, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: line {line}: {what}")]
pub struct InputError {
    /// As the file was named.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// The key with its table: `node.gpus`.
    pub key: String,
    /// What is wrong with it, and what is allowed.
    pub what: String,
}

/// A file's text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) file: &'a str,
    pub(crate) text: &'a str,
}

impl Text<'_> {
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, InputError> {
        toml::from_str(self.text).map_err(|error| {
            let span = error.span().unwrap_or(0..0);
            let key = self.key(span.start);
            let message = error.message().replace('\n', ", ");
            let what = if key.is_empty() || message.contains("unknown field") {
                message
            } else {
                format!("{key}: {message}")
            };
            self.error(span.start, key, what)
        })
    }

    /// A value that is not allowed.
    pub(crate) fn wrong(self, span: Range<usize>, found: &str, allowed: &str) -> InputError {
        let key = self.key(span.start);
        let what = format!("{key} is {found}: {allowed} is needed");
        self.error(span.start, key, what)
    }

    /// Something is missing in the table that begins at a place.
    pub(crate) fn missing(self, table: &str, key: &str) -> InputError {
        let heading = format!("[{table}]");
        let at = self.text.find(&heading).unwrap_or(0);
        let key = if table.is_empty() {
            key.to_owned()
        } else {
            format!("{table}.{key}")
        };
        let what = format!("{key} is missing: it is needed unless like is given");
        self.error(at, key, what)
    }

    /// A number within bounds.
    pub(crate) fn number(
        self,
        value: &Spanned<f64>,
        within: Range<f64>,
        allowed: &str,
    ) -> Result<f64, InputError> {
        let number = *value.get_ref();
        if number.is_finite() && within.contains(&number) {
            Ok(number)
        } else {
            Err(self.wrong(value.span(), &number.to_string(), allowed))
        }
    }

    fn error(self, at: usize, key: String, what: String) -> InputError {
        let before = self.text.get(..at).unwrap_or(self.text);
        InputError {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            key,
            what,
        }
    }

    /// The key whose value is at a place, with its table.
    fn key(self, at: usize) -> String {
        let at = at.min(self.text.len());
        let begin = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        let line = self.text[begin..].lines().next().unwrap_or_default();
        let Some((own, _)) = line.split_once('=') else {
            return String::new();
        };
        let own = own.trim();
        let table = self.text[..begin].lines().rev().find_map(|line| {
            let name = line.trim().strip_prefix('[')?;
            let name = name.split(']').next()?;
            Some(name.trim_start_matches('[').trim())
        });
        match table {
            Some(table) => format!("{table}.{own}"),
            None => own.to_owned(),
        }
    }
}

/// Above zero, up to a bound that no machine has.
pub(crate) const POSITIVE: Range<f64> = f64::MIN_POSITIVE..1e12;
/// The same in words.
pub(crate) const ABOVE_ZERO: &str = "a number above 0";
/// Zero, or more.
pub(crate) const NOT_NEGATIVE: Range<f64> = 0.0..1e12;
/// The same in words.
pub(crate) const ZERO_OR_MORE: &str = "a number from 0";

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outer {
        #[expect(dead_code, reason = "only read")]
        first: Option<u32>,
        inner: Inner,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        rate: Spanned<f64>,
    }

    fn error(text: &str) -> InputError {
        let file = "a.toml";
        Text { file, text }.read::<Outer>().unwrap_err()
    }

    #[test]
    fn line_and_key_are_named() {
        let wrong = error("first = 1\n\n[inner] # of all\nrate = \"x\"\n");
        assert_eq!((wrong.line, wrong.key.as_str()), (4, "inner.rate"));
        assert!(
            wrong
                .to_string()
                .starts_with("a.toml: line 4: inner.rate: invalid type")
        );
        let unknown = error("[inner]\nrate = 1\nrates = 2\n");
        assert_eq!((unknown.line, unknown.key.as_str()), (3, "inner.rates"));
        assert!(unknown.what.contains("`rates`") && unknown.what.contains("`rate`"));
        assert_eq!(error("first = \n").line, 1);
        let missing = error("[inner]\n");
        assert!(missing.what.contains("missing field `rate`"), "{missing}");
        let text = "[inner]\nrate = -1\n";
        let text = Text { file: "b", text };
        let rate = text.read::<Outer>().unwrap().inner.rate;
        let wrong = text.number(&rate, POSITIVE, ABOVE_ZERO).unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "b: line 2: inner.rate is -1: a number above 0 is needed"
        );
    }
}
