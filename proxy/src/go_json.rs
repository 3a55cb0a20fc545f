//! JSON deserialization with the rules of Go's `encoding/json`.
//!
//! Keys match fields in any case, later keys override earlier ones, `null` changes nothing, and an object that occurs
//! twice is merged into the same struct. Errors have serde's line and column.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde_json::de::StrRead;

/// A struct with fields that are read by key.
pub(crate) trait Fields {
    /// Reads the value of `map` for `key`, which is in lower case, into a field. The value of an unknown key is skipped.
    ///
    /// # Errors
    /// Returns an error if the value has another type than the field.
    fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Parses a text that is one JSON value. Fields without a value have their defaults.
///
/// # Errors
/// Returns an error with line and column if the text is not JSON or a value has the wrong type.
pub(crate) fn parse<T: Fields + Default>(json: &str) -> serde_json::Result<T> {
    let mut read = T::default();
    let mut deserializer = serde_json::Deserializer::new(StrRead::new(json));
    MergeInto(&mut read).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(read)
}

/// Sets a field to the next value of `map`, unless that is `null`.
///
/// # Errors
/// Returns an error if the value has another type than the field.
pub(crate) fn set<'de, V, A>(field: &mut Option<V>, map: &mut A) -> Result<(), A::Error>
where
    V: serde::Deserialize<'de>,
    A: MapAccess<'de>,
{
    if let Some(value) = map.next_value()? {
        *field = Some(value);
    }
    Ok(())
}

/// Seed that merges an object into a struct.
pub(crate) struct MergeInto<'a, T>(pub &'a mut T);

impl<'de, T: Fields> DeserializeSeed<'de> for MergeInto<'_, T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Fields> Visitor<'de> for MergeInto<'_, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object or null")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            self.0.read(&fold(&key), &mut map)?;
        }
        Ok(())
    }
}

/// Returns a key in lower case by Go's rule for keys: ASCII letters, and the two other characters that fold to ASCII ones.
fn fold(key: &str) -> String {
    key.chars()
        .map(|c| match c {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            c => c.to_ascii_lowercase(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;

    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Outer {
        task: Option<String>,
        inner: Inner,
    }

    #[derive(Debug, Default, PartialEq)]
    struct Inner {
        a: Option<bool>,
        b: Option<i64>,
    }

    impl Fields for Outer {
        fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
            match key {
                "task" => set(&mut self.task, map),
                "inner" => map.next_value_seed(MergeInto(&mut self.inner)),
                _ => map.next_value::<IgnoredAny>().map(drop),
            }
        }
    }

    impl Fields for Inner {
        fn read<'de, A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
            match key {
                "a" => set(&mut self.a, map),
                "b" => set(&mut self.b, map),
                _ => map.next_value::<IgnoredAny>().map(drop),
            }
        }
    }

    #[test]
    fn keys_match_in_any_case_and_the_last_one_wins() {
        for (json, task) in [
            (r#"{"TASK":"x"}"#, Some("x")),
            ("{\"ta\u{17f}\u{212a}\":\"x\"}", Some("x")),
            (r#"{"task":"x","Task":"y"}"#, Some("y")),
            (r#"{"Task":"y","task":"x"}"#, Some("x")),
            (r#"{"task":"x","TASK":null}"#, Some("x")),
            (r#"{"tasks":"x","other":{"task":1}}"#, None),
            ("null", None),
        ] {
            let read: Outer = parse(json).unwrap();
            assert_eq!(read.task.as_deref(), task, "{json}");
        }
    }

    #[test]
    fn a_repeated_object_is_merged_into_the_same_struct() {
        let read: Outer =
            parse(r#"{"inner":{"a":true,"b":1},"Inner":{"B":2},"INNER":null}"#).unwrap();
        assert_eq!(
            read.inner,
            Inner {
                a: Some(true),
                b: Some(2)
            }
        );
    }

    #[test]
    fn errors_name_the_position() {
        for (json, place) in [
            ("{oops", "line 1 column 2"),
            ("{\n\"Task\":1}", "line 2 column 8"),
            ("[]", "an object or null"),
            ("{} x", "line 1 column 4"),
            (r#"{"inner":1}"#, "an object or null"),
        ] {
            let error = parse::<Outer>(json).unwrap_err().to_string();
            assert!(error.contains(place), "{json}: {error}");
        }
    }
}
