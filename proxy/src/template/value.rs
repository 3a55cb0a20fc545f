//! What a template may speak of, and how values are written.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderMap, Uri, Version};

use super::go::{self, ADDRESS, Cookie, Values};
use crate::tls::Negotiated;

/// What does not change from request to request.
#[derive(Debug, Clone, Default)]
pub struct RevisionInfo {
    pub name: String,
    pub namespace: String,
    pub service: String,
    pub configuration: String,
    pub pod_name: String,
    pub pod_ip: String,
}

/// One request and its response.
#[derive(Debug, Clone)]
pub struct Record {
    pub method: http::Method,
    pub uri: Uri,
    pub version: Version,
    pub headers: HeaderMap,
    /// Those that came behind the body.
    pub trailers: HeaderMap,
    /// Bytes of the body that were read.
    pub body_bytes: u64,
    pub remote_address: String,
    /// The TLS of the connection, if it has any.
    pub tls: Option<Arc<Negotiated>>,
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
    /// A pointer to nothing.
    Nil,
    /// What a map does not have.
    Absent,
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
    Trailers(Values<'a>),
    /// Of a query or a form.
    Values(Values<'a>),
    Tls(&'a Negotiated),
    Cookies(Vec<Cookie<'a>>),
    Cookie(Cookie<'a>),
    Body,
}

/// All that a template speaks of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub record: &'a Record,
    pub revision: &'a RevisionInfo,
    /// `FormValue` or `PostFormValue` was called, after which Go has a `Form`.
    pub is_form_read: &'a Cell<bool>,
}

impl<'a> Subject<'a> {
    /// A field of a value, or a method without arguments. `None`: there is none of that name.
    pub(super) fn field(self, of: &Value<'a>, name: &str) -> Option<Value<'a>> {
        let text = |text: &'a str| Value::Text(Cow::Borrowed(text));
        let record = self.record;
        let entry = |found: Option<Vec<_>>| found.map_or(Value::Absent, Value::List);
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
            (Value::Tls(tls), name) => return tls_field(tls, name),
            (Value::Cookie(cookie), "Name") => text(cookie.name),
            (Value::Cookie(cookie), "Value") => text(cookie.value),
            (Value::Cookie(cookie), "Quoted") => Value::Bool(cookie.quoted),
            (Value::Cookie(cookie), "String") => Value::Text(Cow::Owned(cookie.text())),
            (Value::Values(values), "Encode") => Value::Text(Cow::Owned(go::encode_query(values))),
            (Value::Headers, name) => {
                let values = self.header_values(name);
                // Go finds only names written as it writes them.
                entry(Some(values).filter(|it| !it.is_empty() && go::canonical(name) == name))
            }
            (Value::Trailers(values) | Value::Values(values), name) => {
                entry(values.get(name).cloned())
            }
            _ => return None,
        })
    }

    /// Whether a condition holds: Go's rule, that nothing, zero and the empty are false.
    pub(super) fn is_true(self, value: &Value<'a>) -> bool {
        match value {
            Value::Nil | Value::Absent => false,
            Value::Bool(value) => *value,
            Value::Integer(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.is_empty(),
            Value::Headers => !self.record.headers.is_empty(),
            Value::Trailers(values) | Value::Values(values) => !values.is_empty(),
            Value::Cookies(cookies) => !cookies.is_empty(),
            Value::Root
            | Value::Request
            | Value::Response
            | Value::Revision
            | Value::Url
            | Value::Tls(_)
            | Value::Cookie(_)
            | Value::Body => true,
        }
    }

    /// Writes a value as Go's `fmt` does. `false`: it has no form.
    pub(super) fn write(self, value: &Value<'a>, out: &mut String) -> bool {
        // Writing to memory does not fail.
        let _written = match value {
            Value::Nil => out.write_str("<nil>"),
            Value::Absent => out.write_str("<no value>"),
            Value::Bool(value) => write!(out, "{value}"),
            Value::Integer(value) => write!(out, "{value}"),
            Value::Float(value) => out.write_str(&go::float(*value)),
            Value::Text(text) => out.write_str(text),
            Value::List(list) => write!(out, "[{}]", list.join(" ")),
            Value::Url => out.write_str(&self.url_text()),
            Value::Headers => out.write_str(&self.headers_text()),
            Value::Trailers(values) | Value::Values(values) => {
                let entries = values.iter().map(|(key, values)| (&**key, values.clone()));
                out.write_str(&go::map_text(entries))
            }
            Value::Cookies(cookies) => {
                let cookies: Vec<_> = cookies.iter().map(Cookie::text).collect();
                write!(out, "[{}]", cookies.join(" "))
            }
            Value::Cookie(cookie) => out.write_str(&cookie.text()),
            Value::Tls(tls) => out.write_str(&tls_text(tls)),
            Value::Body => out.write_str(&self.body_text()),
            Value::Response => {
                let Record { code, size, .. } = self.record;
                write!(
                    out,
                    "{{{code} {size} {}}}",
                    go::float(self.record.latency_seconds)
                )
            }
            Value::Revision => {
                let RevisionInfo {
                    name,
                    namespace,
                    service,
                    configuration,
                    pod_name,
                    pod_ip,
                } = self.revision;
                write!(
                    out,
                    "{{{name} {namespace} {service} {configuration} {pod_name} {pod_ip}}}"
                )
            }
            Value::Root | Value::Request => return false,
        };
        true
    }
}

impl Value<'_> {
    /// Go has a pointer to it, which `print` writes with an ampersand.
    pub(super) const fn is_pointer(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Response | Self::Revision)
    }

    /// Whether it equals nil, as far as there is an answer.
    pub(super) fn is_nil(&self) -> Option<bool> {
        match self {
            Self::Nil => Some(true),
            Self::Trailers(values) | Self::Values(values) => Some(values.is_empty()),
            Self::Cookies(cookies) => Some(cookies.is_empty()),
            Self::List(list) => Some(list.is_empty()),
            Self::Bool(_) | Self::Integer(_) | Self::Float(_) | Self::Text(_) | Self::Absent => {
                None
            }
            _ => Some(false),
        }
    }
}

fn tls_field<'a>(tls: &'a Negotiated, name: &str) -> Option<Value<'a>> {
    let text = |text: &'a str| Value::Text(Cow::Borrowed(text));
    Some(match name {
        "Version" => Value::Integer(tls.version.into()),
        "HandshakeComplete" | "NegotiatedProtocolIsMutual" => Value::Bool(true),
        "DidResume" => Value::Bool(tls.resumed),
        "CipherSuite" => Value::Integer(tls.cipher_suite.into()),
        "CurveID" => Value::Text(Cow::Owned(go::curve(tls.curve))),
        "NegotiatedProtocol" => text(&tls.protocol),
        "ServerName" => text(&tls.server_name),
        "ECHAccepted" => Value::Bool(false),
        "HelloRetryRequest" => Value::Bool(tls.hello_retry),
        _ => return None,
    })
}

/// Go's `tls.ConnectionState`: clients have no certificates here, and the last but one is a function.
fn tls_text(tls: &Negotiated) -> String {
    let Negotiated {
        version,
        resumed,
        cipher_suite,
        curve,
        protocol,
        server_name,
        hello_retry,
    } = tls;
    let curve = go::curve(*curve);
    format!(
        "{{{version} true {resumed} {cipher_suite} {curve} {protocol} true {server_name} [] [] [] [] [] false \
         {hello_retry} {ADDRESS} 0}}"
    )
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
