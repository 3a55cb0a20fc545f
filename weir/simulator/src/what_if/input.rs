//! Parsing of settings files in TOML, with errors that name file, line and key.

use std::ops::Range;

use serde::de::DeserializeOwned;
use thiserror::Error;
use toml::Spanned;

/// Error in a file of settings, with its location.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: line {line}: {what}")]
pub struct InputError {
    /// Name of the file, as given by the caller.
    pub file: String,
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Key with its table, such as `node.gpus`.
    pub key: String,
    /// Description of the error, and the allowed values.
    pub what: String,
}

/// Name and text of a file.
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
            let message = with_nearest(error.message().replace('\n', ", "));
            let what = if key.is_empty() || message.contains("unknown field") {
                message
            } else {
                format!("{key}: {message}")
            };
            self.error(span.start, key, what)
        })
    }

    /// Returns an error for the value at `span`, which is not allowed.
    pub(crate) fn wrong(self, span: Range<usize>, found: &str, allowed: &str) -> InputError {
        let key = self.key(span.start);
        let what = format!("{key} is {found}: {allowed} is needed");
        self.error(span.start, key, what)
    }

    /// Returns an error for a missing key, located at the heading of its table.
    pub(crate) fn missing(self, table: &str, key: &str) -> InputError {
        let heading = format!("[{table}]");
        let at = self.text.find(&heading).unwrap_or(0);
        let key = if table.is_empty() {
            key.to_owned()
        } else {
            format!("{table}.{key}")
        };
        let what = format!("{key} is missing: it is required unless like is given");
        self.error(at, key, what)
    }

    /// Returns the number if it is finite and within bounds, otherwise an error.
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

    /// Returns the key on the line of a position, with its table.
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

/// Appends the nearest known key to an error about an unknown one.
fn with_nearest(message: String) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let Some(found) = names
        .next()
        .filter(|_| message.starts_with("unknown field"))
    else {
        return message;
    };
    match nearest(found, names) {
        Some(name) => format!("{message}: did you mean `{name}`?"),
        None => message,
    }
}

/// Returns the name with the smallest edit distance, at most a third of its length; the first of equals.
pub(crate) fn nearest<'a>(found: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = |name: &str| distance(found, name);
    let near = names.map(|name| (far(name), name));
    let near = near.filter(|&(far, name)| far * 3 <= name.chars().count());
    near.min_by_key(|own| own.0).map(|own| own.1)
}

/// Returns the edit distance: the number of letters to insert, delete or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.chars().enumerate() {
        let mut before = at;
        row[0] = at + 1;
        for (to, own) in other.iter().enumerate() {
            let changed = before + usize::from(letter != *own);
            before = row[to + 1];
            row[to + 1] = changed.min(row[to] + 1).min(before + 1);
        }
    }
    row[other.len()]
}

/// Numbers above zero, with an upper bound beyond any machine's values.
pub(crate) const POSITIVE: Range<f64> = f64::MIN_POSITIVE..1e12;
/// [`POSITIVE`] in words, for error messages.
pub(crate) const ABOVE_ZERO: &str = "a number above 0 and below 1e12";
/// Numbers from zero, with the same upper bound as [`POSITIVE`].
pub(crate) const NOT_NEGATIVE: Range<f64> = 0.0..1e12;
/// [`NOT_NEGATIVE`] in words, for error messages.
pub(crate) const ZERO_OR_MORE: &str = "a number from 0 and below 1e12";

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
    fn errors_name_line_and_key() {
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
            "b: line 2: inner.rate is -1: a number above 0 and below 1e12 is needed"
        );
    }

    /// Edit distance by its recursive definition.
    fn naive(one: &[char], other: &[char]) -> usize {
        match (one, other) {
            ([], rest) | (rest, []) => rest.len(),
            ([a, one_rest @ ..], [b, other_rest @ ..]) => {
                let changed = naive(one_rest, other_rest) + usize::from(a != b);
                let fewer = naive(one_rest, other).min(naive(one, other_rest)) + 1;
                changed.min(fewer)
            }
        }
    }

    #[test]
    fn the_distance_agrees_with_its_definition() {
        let words = [
            "", "a", "gpu", "gpus", "gups", "pairs", "spare", "höst", "host",
        ];
        for one in words {
            for other in words {
                let letters = |word: &str| word.chars().collect::<Vec<_>>();
                assert_eq!(
                    distance(one, other),
                    naive(&letters(one), &letters(other)),
                    "{one} {other}"
                );
            }
        }
    }

    #[test]
    fn a_near_key_is_suggested() {
        let what = error("[inner]\nrats = 1\n").what;
        assert!(what.ends_with("did you mean `rate`?"), "{what}");
        let what = error("[inner]\ncolour = 1\n").what;
        assert!(
            what.contains("unknown field `colour`") && !what.contains("did you"),
            "{what}"
        );
        let names = ["models_gb", "memory_gb"];
        assert_eq!(nearest("model_gb", names.into_iter()), Some("models_gb"));
        assert_eq!(nearest("price", names.into_iter()), None);
    }
}
