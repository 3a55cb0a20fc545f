//! What a template may speak of, and how values are written.

use std::borrow::Cow;
use std::fmt::Write as _;

use http::{HeaderMap, Uri, Version};

/// What does not change from request to request.
#[derive(Debug, Clone, Default)]
pub(crate) struct RevisionInfo {
    pub name: String,
    pub namespace: String,
    pub service: String,
    pub configuration: String,
    pub pod_name: String,
    pub pod_ip: String,
}

/// One request and its response.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub method: http::Method,
    pub uri: Uri,
    pub version: Version,
    pub headers: HeaderMap,
    pub remote_address: String,
    /// The response's status.
    pub code: u16,
    /// The response's body in bytes.
    pub size: u64,
    /// From arrival to the end of the response.
    pub latency_seconds: f64,
}

/// A value in the course of running a template.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    Nil,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<Cow<'a, str>>),
    Root,
    Request,
    Response,
    Revision,
    Url,
    Headers,
}

/// Both that a template speaks of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub record: &'a Record,
    pub revision: &'a RevisionInfo,
}

impl<'a> Subject<'a> {
    /// A field of a value, or a method without arguments. `None`: there is none of that name.
    pub(super) fn field(self, of: &Value<'a>, name: &str) -> Option<Value<'a>> {
        let text = |text: &'a str| Value::Text(Cow::Borrowed(text));
        let record = self.record;
        Some(match (of, name) {
            (Value::Root, "Request") => Value::Request,
            (Value::Root, "Response") => Value::Response,
            (Value::Root, "Revision") => Value::Revision,
            (Value::Root, "TraceID") => text(trace_id(&record.headers)),
            (Value::Response, "Code") => Value::Integer(record.code.into()),
            (Value::Response, "Size") => {
                Value::Integer(i64::try_from(record.size).unwrap_or(i64::MAX))
            }
            (Value::Response, "Latency") => Value::Float(record.latency_seconds),
            (Value::Revision, "Name") => text(&self.revision.name),
            (Value::Revision, "Namespace") => text(&self.revision.namespace),
            (Value::Revision, "Service") => text(&self.revision.service),
            (Value::Revision, "Configuration") => text(&self.revision.configuration),
            (Value::Revision, "PodName") => text(&self.revision.pod_name),
            (Value::Revision, "PodIP") => text(&self.revision.pod_ip),
            (Value::Request, name) => return self.request(name),
            (Value::Url, name) => return self.url(name),
            (Value::Headers, name) => self.header_values(name)?,
            _ => return None,
        })
    }

    fn request(self, name: &str) -> Option<Value<'a>> {
        let text = |text: &'a str| Value::Text(Cow::Borrowed(text));
        let record = self.record;
        Some(match name {
            "Method" => text(record.method.as_str()),
            "RequestURI" => Value::Text(self.request_uri()),
            "Proto" => text(match record.version {
                Version::HTTP_10 => "HTTP/1.0",
                Version::HTTP_2 => "HTTP/2.0",
                _ => "HTTP/1.1",
            }),
            "ProtoMajor" => Value::Integer(if record.version == Version::HTTP_2 {
                2
            } else {
                1
            }),
            "ProtoMinor" => Value::Integer((record.version == Version::HTTP_11).into()),
            "Host" => Value::Text(self.host()),
            "RemoteAddr" => text(&record.remote_address),
            "UserAgent" => Value::Text(self.header("user-agent")),
            "Referer" => Value::Text(self.header("referer")),
            "ContentLength" => Value::Integer(self.content_length()),
            "TransferEncoding" => Value::List(
                if record.headers.contains_key(http::header::TRANSFER_ENCODING) {
                    vec![Cow::Borrowed("chunked")]
                } else {
                    Vec::new()
                },
            ),
            "Header" => Value::Headers,
            "URL" => Value::Url,
            _ => return None,
        })
    }

    fn url(self, name: &str) -> Option<Value<'a>> {
        let uri = &self.record.uri;
        let text = |text: &'a str| Value::Text(Cow::Borrowed(text));
        // Of an HTTP/2 request Go keeps the path alone; the authority is its Host.
        let is_absolute = self.is_absolute();
        Some(match name {
            "Path" | "EscapedPath" => text(uri.path()),
            "RawQuery" => text(uri.query().unwrap_or_default()),
            "Scheme" if is_absolute => text(uri.scheme_str().unwrap_or_default()),
            "Host" if is_absolute => text(uri.authority().map_or("", |it| it.as_str())),
            "Scheme" | "Host" => text(""),
            "RequestURI" | "String" => Value::Text(self.request_uri()),
            _ => return None,
        })
    }

    fn is_absolute(self) -> bool {
        self.record.version != Version::HTTP_2 && self.record.uri.scheme().is_some()
    }

    /// The target as it was sent.
    pub(super) fn request_uri(self) -> Cow<'a, str> {
        let uri = &self.record.uri;
        if self.is_absolute() {
            return Cow::Owned(uri.to_string());
        }
        Cow::Borrowed(uri.path_and_query().map_or("/", |it| it.as_str()))
    }

    fn host(self) -> Cow<'a, str> {
        match self.record.uri.authority() {
            Some(authority) => Cow::Borrowed(authority.as_str()),
            None => self.header("host"),
        }
    }

    fn content_length(self) -> i64 {
        let stated = crate::headers::content_length(&self.record.headers);
        match stated.map(i64::try_from) {
            Some(Ok(length)) => length,
            _ if self
                .record
                .headers
                .contains_key(http::header::TRANSFER_ENCODING) =>
            {
                -1
            }
            _ => 0,
        }
    }

    /// `Header.Get`: the first value, or nothing.
    pub(super) fn header(self, name: &str) -> Cow<'a, str> {
        self.record
            .headers
            .get(name)
            .map_or(Cow::Borrowed(""), |value| {
                String::from_utf8_lossy(value.as_bytes())
            })
    }

    /// `Header.Values`; `None` if there is none of that name.
    pub(super) fn header_values(self, name: &str) -> Option<Value<'a>> {
        let values = self.record.headers.get_all(name).iter();
        let values: Vec<_> = values
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        (!values.is_empty()).then_some(Value::List(values))
    }

    /// Whether a condition holds: Go's rule, that nothing, zero and the empty are false.
    pub(super) fn is_true(self, value: &Value<'a>) -> bool {
        match value {
            Value::Nil => false,
            Value::Bool(value) => *value,
            Value::Integer(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.is_empty(),
            Value::Headers => !self.record.headers.is_empty(),
            Value::Root | Value::Request | Value::Response | Value::Revision | Value::Url => true,
        }
    }

    /// Writes a value as Go's `fmt` does. `false`: it has no form.
    pub(super) fn write(self, value: &Value<'a>, out: &mut String) -> bool {
        // Writing to memory does not fail.
        let _written = match value {
            Value::Nil => out.write_str("<no value>"),
            Value::Bool(value) => write!(out, "{value}"),
            Value::Integer(value) => write!(out, "{value}"),
            Value::Float(value) => out.write_str(&go_float(*value)),
            Value::Text(text) => out.write_str(text),
            Value::List(list) => write!(out, "[{}]", list.join(" ")),
            Value::Url => out.write_str(&self.request_uri()),
            Value::Headers => self.write_headers(out),
            Value::Root | Value::Request | Value::Response | Value::Revision => return false,
        };
        true
    }

    fn write_headers(self, out: &mut String) -> std::fmt::Result {
        let headers = &self.record.headers;
        let mut names: Vec<_> = headers
            .keys()
            .filter(|name| *name != http::header::HOST)
            .collect();
        names.sort_by_key(|name| canonical(name.as_str()));
        out.write_str("map[")?;
        for (n, name) in names.into_iter().enumerate() {
            let separator = if n == 0 { "" } else { " " };
            let values: Vec<_> = headers
                .get_all(name)
                .iter()
                .map(|value| String::from_utf8_lossy(value.as_bytes()))
                .collect();
            write!(
                out,
                "{separator}{}:[{}]",
                canonical(name.as_str()),
                values.join(" ")
            )?;
        }
        out.write_str("]")
    }
}

/// `x-request-id` as `X-Request-Id`.
fn canonical(name: &str) -> String {
    let mut upper = true;
    name.chars()
        .map(|c| {
            let c = if upper { c.to_ascii_uppercase() } else { c };
            upper = c == '-';
            c
        })
        .collect()
}

/// The trace that a request belongs to: of `traceparent`, else of B3.
fn trace_id(headers: &HeaderMap) -> &str {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let w3c = text("traceparent").and_then(|value| value.split('-').nth(1));
    let id = w3c.or_else(|| text("x-b3-traceid")).unwrap_or_default();
    // It stands unescaped in Knative's own template: nothing else may come of it than an id.
    if id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        id
    } else {
        ""
    }
}

/// A number as Go's `%v` writes it: the shortest digits that tell it, with an exponent below 10⁻⁴ and from
/// 10²¹ on.
fn go_float(value: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_go_does() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.006_511_722, "0.006511722"),
            (2.1821e-05, "2.1821e-05"),
            (1e-4, "0.0001"),
            (123_456_789.0, "123456789"),
            (1e21, "1e+21"),
        ] {
            assert_eq!(go_float(value), text);
        }
    }
}
