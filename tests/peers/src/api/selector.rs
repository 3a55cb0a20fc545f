//! Label and field selectors.

use serde_json::Value;

/// A conjunction of requirements on objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    /// Allowed values; `None` for any.
    values: Option<Vec<String>>,
    is_negated: bool,
}

impl Selector {
    /// Parses `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a` and `!a`, separated by commas.
    ///
    /// # Errors
    /// Returns the part that is malformed.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts = split(text).into_iter().map(str::trim);
        let each = parts.filter(|part| !part.is_empty()).map(requirement);
        Ok(Self(each.collect::<Result<_, _>>()?))
    }

    /// Returns whether an object's labels match.
    pub(super) fn fits_labels(&self, object: &Value) -> bool {
        self.fits(|key| object["metadata"]["labels"][key].as_str())
    }

    /// Returns whether an object's fields, named by dotted paths, match.
    pub(super) fn fits_fields(&self, object: &Value) -> bool {
        self.fits(|key| {
            let pointer = format!("/{}", key.replace('.', "/"));
            object.pointer(&pointer).and_then(Value::as_str)
        })
    }

    fn fits<'a>(&self, value: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| {
            let value = value(&requirement.key);
            let fits = match &requirement.values {
                None => value.is_some(),
                Some(values) => value.is_some_and(|value| values.iter().any(|own| own == value)),
            };
            fits != requirement.is_negated
        })
    }
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let parts = text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.collect()
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let new = |key: &str, values: Option<Vec<&str>>, is_negated| Requirement {
        key: key.trim().to_owned(),
        values: values.map(|values| values.iter().map(|value| value.trim().to_owned()).collect()),
        is_negated,
    };
    if let Some((key, value)) = part.split_once("!=") {
        return Ok(new(key, Some(vec![value]), true));
    }
    if let Some((key, value)) = part.split_once('=') {
        return Ok(new(key, Some(vec![value.trim_start_matches('=')]), false));
    }
    if let Some(rest) = part.strip_suffix(')') {
        let (key, values) = rest.split_once('(').ok_or_else(|| part.to_owned())?;
        let values = Some(values.split(',').collect());
        return match key.trim().rsplit_once(' ') {
            Some((key, "in")) => Ok(new(key, values, false)),
            Some((key, "notin")) => Ok(new(key, values, true)),
            _ => Err(part.to_owned()),
        };
    }
    match part.strip_prefix('!') {
        Some(key) => Ok(new(key, None, true)),
        None => Ok(new(part, None, false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_selected_as_kubernetes_does() {
        let object = serde_json::json!({"metadata": {"name": "x", "labels": {"a": "1", "b": "2"}}});
        for (text, fits) in [
            ("", true),
            ("a=1", true),
            ("a==1,b=2", true),
            ("a=2", false),
            ("a!=2", true),
            ("c!=2", true),
            ("a", true),
            ("c", false),
            ("!c", true),
            ("!a", false),
            ("a in (0,1),b", true),
            ("a notin (0, 1)", false),
        ] {
            let selector = Selector::parse(text).unwrap();
            assert_eq!(selector.fits_labels(&object), fits, "{text}");
        }
        assert!(Selector::parse("a of (1)").is_err());
        let named = Selector::parse("metadata.name=x").unwrap();
        assert!(named.fits_fields(&object));
    }
}
