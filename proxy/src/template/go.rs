//! Formatting and parsing of texts as in Go's `fmt`, `net/url` and `net/http`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// Values by name, in the order in which Go prints them.
pub(super) type Values<'a> = BTreeMap<Cow<'a, str>, Vec<Cow<'a, str>>>;

/// Placeholder for a memory address, which under Go differs from line to line.
pub(super) const ADDRESS: &str = "0xc000000000";

/// Characters that Go escapes in a path.
const PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// Characters that Go escapes in a query, except the space, which becomes a plus.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b' ');

/// Returns `URL.Path`: the decoded path.
pub(super) fn decoded_path(path: &str) -> Cow<'_, str> {
    percent_decode_str(path).decode_utf8_lossy()
}

/// Returns `URL.RawPath`: the path as received if it differs from Go's own escaping, else the empty string.
pub(super) fn raw_path(path: &str) -> &str {
    if path == "*" || default_escape(path) == path {
        ""
    } else {
        path
    }
}

/// Returns `URL.EscapedPath`: the path as received if all its characters are legal, else with Go's own escaping.
pub(super) fn escaped_path(path: &str) -> Cow<'_, str> {
    let is_legal = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+,/:;=@!'()*[]%".contains(&b);
    if path.bytes().all(is_legal) {
        Cow::Borrowed(path)
    } else {
        Cow::Owned(default_escape(path))
    }
}

fn default_escape(path: &str) -> String {
    let decoded: Cow<'_, [u8]> = percent_decode_str(path).into();
    percent_encode(&decoded, PATH).to_string()
}

/// Returns a text with all characters escaped that have a meaning in a query.
pub(super) fn escape_query(text: &str) -> String {
    percent_encode(text.as_bytes(), QUERY)
        .to_string()
        .replace(' ', "+")
}

/// Parses a query. Pairs with a semicolon or an invalid escape are omitted, as by `url.ParseQuery`.
pub(super) fn parse_query(query: &str) -> Values<'_> {
    let mut values = Values::new();
    for pair in query.split('&') {
        if pair.is_empty() || pair.contains(';') {
            continue;
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if let (Some(key), Some(value)) = (unescape_query(key), unescape_query(value)) {
            values.entry(key).or_default().push(value);
        }
    }
    values
}

fn unescape_query(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    if !crate::headers::has_valid_escapes(text) {
        return None;
    }
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8_lossy();
    Some(Cow::Owned(decoded.into_owned()))
}

/// Encodes a query in the order of its keys, as `Values.Encode` does.
pub(super) fn encode_query(values: &Values<'_>) -> String {
    let pairs = values.iter().flat_map(|(key, values)| {
        let pair = |value| format!("{}={}", escape_query(key), escape_query(value));
        values.iter().map(move |value| pair(value))
    });
    pairs.collect::<Vec<_>>().join("&")
}

/// Formats a map as Go's `fmt` does: `map[a:[1 2] b:[3]]`.
pub(super) fn map_text<'v>(
    values: impl IntoIterator<Item = (&'v str, Vec<Cow<'v, str>>)>,
) -> String {
    let entries = values
        .into_iter()
        .map(|(key, values)| format!("{key}:[{}]", values.join(" ")));
    format!("map[{}]", entries.collect::<Vec<_>>().join(" "))
}

/// A cookie of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cookie<'a> {
    pub name: &'a str,
    pub value: &'a str,
    pub quoted: bool,
}

impl<'a> Cookie<'a> {
    /// Parses the cookies of one header line. Cookies that Go's server ignores are omitted.
    pub(super) fn parse_line(line: &'a [u8]) -> impl Iterator<Item = Self> {
        line.split(|&b| b == b';').filter_map(Self::parse)
    }

    fn parse(part: &'a [u8]) -> Option<Self> {
        let part = trim(part);
        let at = part.iter().position(|&b| b == b'=').unwrap_or(part.len());
        let name = trim(&part[..at]);
        let value = part.get(at + 1..).unwrap_or_default();
        let is_quoted = value.len() > 1 && value.starts_with(b"\"") && value.ends_with(b"\"");
        let value = if is_quoted {
            &value[1..value.len() - 1]
        } else {
            value
        };
        let is_legal = |b: &u8| (b' '..0x7f).contains(b) && !b"\";\\".contains(b);
        let is_token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
        if name.is_empty() || !name.iter().all(is_token) || !value.iter().all(is_legal) {
            return None;
        }
        Some(Self {
            name: std::str::from_utf8(name).ok()?,
            value: std::str::from_utf8(value).ok()?,
            quoted: is_quoted,
        })
    }

    /// Formats the cookie as in a header.
    pub(super) fn text(&self) -> String {
        let Self {
            name,
            value,
            quoted,
        } = self;
        if !value.is_empty() && (*quoted || value.contains([' ', ','])) {
            format!("{name}=\"{value}\"")
        } else {
            format!("{name}={value}")
        }
    }
}

/// Removes white space at both ends, as Go's `textproto.TrimBytes` does.
fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..]
    | [rest @ .., b' ' | b'\t' | b'\r' | b'\n'] = bytes
    {
        bytes = rest;
    }
    bytes
}

/// Returns a header name in Go's canonical form: `X-Request-Id` for `x-request-id`.
pub(super) fn canonical(name: &str) -> String {
    let mut upper = true;
    name.chars()
        .map(|c| {
            let c = if upper {
                c.to_ascii_uppercase()
            } else {
                c.to_ascii_lowercase()
            };
            upper = c == '-';
            c
        })
        .collect()
}

/// Formats a number as Go's `%v` does: with the shortest digits that identify it, and with an exponent below 10⁻⁴ and
/// from 10²¹ on.
pub(super) fn float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "NaN".to_owned()
        } else if value > 0.0 {
            "+Inf".to_owned()
        } else {
            "-Inf".to_owned()
        };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value != 0.0 && !(-4..21).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.unsigned_abs());
    }
    format!("{value}")
}

/// Returns the name of a key exchange group in Go's `tls.CurveID`.
pub(super) fn curve(id: u16) -> String {
    match id {
        0x0017 => "CurveP256".to_owned(),
        0x0018 => "CurveP384".to_owned(),
        0x0019 => "CurveP521".to_owned(),
        0x001d => "X25519".to_owned(),
        0x11eb => "SecP256r1MLKEM768".to_owned(),
        0x11ec => "X25519MLKEM768".to_owned(),
        0x11ed => "SecP384r1MLKEM1024".to_owned(),
        id => format!("CurveID({id})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_in_go() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.006_511_722, "0.006511722"),
            (2.1821e-05, "2.1821e-05"),
            (1e-4, "0.0001"),
            (123_456_789.0, "123456789"),
            (1e21, "1e+21"),
        ] {
            assert_eq!(float(value), text);
        }
    }

    // The expected values are the output of Knative's own queue-proxy (Go 1.26).
    #[test]
    fn paths_are_parsed_and_formatted_as_in_go() {
        for (path, decoded, raw, escaped) in [
            ("/a%20b/%41%2f", "/a b/A/", "/a%20b/%41%2f", "/a%20b/%41%2f"),
            ("/a", "/a", "", "/a"),
            ("*", "*", "", "*"),
            ("/a[]!b(c)'*", "/a[]!b(c)'*", "/a[]!b(c)'*", "/a[]!b(c)'*"),
            ("/a%C3%A9", "/aé", "", "/a%C3%A9"),
            ("/a+b", "/a+b", "", "/a+b"),
            (
                "/a\"b|d{e}^",
                "/a\"b|d{e}^",
                "/a\"b|d{e}^",
                "/a%22b%7Cd%7Be%7D%5E",
            ),
        ] {
            assert_eq!(decoded_path(path), decoded, "{path}");
            assert_eq!(raw_path(path), raw, "{path}");
            assert_eq!(escaped_path(path), escaped, "{path}");
        }
    }

    #[test]
    fn queries_are_parsed_and_formatted_as_in_go() {
        for (query, map, encoded) in [
            ("x=1&y=2&x=3", "map[x:[1 3] y:[2]]", "x=1&x=3&y=2"),
            ("x=%20a+b", "map[x:[ a b]]", "x=+a+b"),
            ("", "map[]", ""),
            ("a=b=c&&=d&e", "map[:[d] a:[b=c] e:[]]", "=d&a=b%3Dc&e="),
            ("%C3%A9=%C3%A9", "map[é:[é]]", "%C3%A9=%C3%A9"),
            ("a=1;b=2&c=3", "map[c:[3]]", "c=3"),
            ("a=%zz&b=%4", "map[]", ""),
            ("a+b=c+d", "map[a b:[c d]]", "a+b=c+d"),
            ("x=\"y\"", "map[x:[\"y\"]]", "x=%22y%22"),
        ] {
            let values = parse_query(query);
            let entries = values.iter().map(|(key, values)| (&**key, values.clone()));
            assert_eq!(map_text(entries), map, "{query}");
            assert_eq!(encode_query(&values), encoded, "{query}");
        }
    }

    #[test]
    fn cookies_are_parsed_and_formatted_as_in_go() {
        for (line, texts) in [
            ("a=1; b=\"two\"; c", &["a=1", "b=\"two\"", "c="][..]),
            ("b=\"x y\"; a=1", &["b=\"x y\"", "a=1"]),
            ("a=1,2; d=x y", &["a=\"1,2\"", "d=\"x y\""]),
            ("a=1; =x; ;b; c d=3; e=\"; f=é; g=a\\b", &["a=1", "b="]),
            ("  a = 1 ;b=2", &["a=\" 1\"", "b=2"]),
            ("a=\"1\"", &["a=\"1\""]),
            ("a=\"\"", &["a="]),
            ("", &[]),
        ] {
            let read = Cookie::parse_line(line.as_bytes());
            let read: Vec<_> = read.map(|cookie| cookie.text()).collect();
            assert_eq!(read, texts, "{line}");
        }
    }
}
