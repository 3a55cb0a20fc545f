//! Values of a template, and their formatting.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderMap, Uri, Version};

use super::go::{self, ADDRESS, Cookie, Values};
use crate::tls::Negotiated;

/// The fields of `.Revision`, which are the same for all requests.
#[derive(Debug, Clone, Default)]
pub struct RevisionInfo {
    /// Name of the revision.
    pub name: String,
    /// Namespace of the revision.
    pub namespace: String,
    /// Name of the Knative Service; may be empty.
    pub service: String,
    /// Name of the Configuration; may be empty.
    pub configuration: String,
    /// Name of the pod.
    pub pod_name: String,
    /// IP address of the pod.
    pub pod_ip: String,
}

/// One request with its response, as input of a template.
#[derive(Debug, Clone)]
pub struct Record {
    /// Method of the request.
    pub method: http::Method,
    /// Target of the request, as sent by the client.
    pub uri: Uri,
    /// HTTP version of the request.
    pub version: Version,
    /// Headers of the request, as sent by the client.
    pub headers: HeaderMap,
    /// Trailers of the request.
    pub trailers: HeaderMap,
    /// Bytes read of the request's body.
    pub body_bytes: u64,
    /// Address and port of the client.
    pub remote_address: String,
    /// Negotiated TLS parameters of the connection; `None` for a plain one.
    pub tls: Option<Arc<Negotiated>>,
    /// Status of the response.
    pub code: u16,
    /// Size of the response's body, in bytes.
    pub size: u64,
    /// Time from arrival to the end of the response, in seconds.
    pub latency_seconds: f64,
}

/// A value during the execution of a template.
#[derive(Debug, Clone)]
pub(super) enum Value<'a> {
    /// A nil pointer, printed as `<nil>`.
    Nil,
    /// The value of a missing map key, printed as `<no value>`.
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
    /// Values of a query or a form, by name.
    Values(Values<'a>),
    Tls(&'a Negotiated),
    Cookies(Vec<Cookie<'a>>),
    Cookie(Cookie<'a>),
    Body,
}

/// The input of one execution of a template.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub record: &'a Record,
    pub revision: &'a RevisionInfo,
    /// Whether `FormValue` or `PostFormValue` has been called, after which Go's request has a `Form`.
    pub is_form_read: &'a Cell<bool>,
}

impl<'a> Subject<'a> {
    /// Returns a field of a value, or the result of a method without arguments; `None` for an unknown name.
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
                // Go's map only has canonical names as keys.
                entry(Some(values).filter(|it| !it.is_empty() && go::canonical(name) == name))
            }
            (Value::Trailers(values) | Value::Values(values), name) => {
                entry(values.get(name).cloned())
            }
            _ => return None,
        })
    }

    /// Returns whether a value is true by Go's rule: nil, zero and empty values are false.
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

    /// Appends a value to `out` as formatted by Go's `fmt`. Returns `false` if it has no printed form.
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
    /// Returns whether the value is a pointer in Go, which `print` formats with an ampersand.
    pub(super) const fn is_pointer(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Response | Self::Revision)
    }

    /// Returns whether the value equals nil, or `None` if it cannot be compared with nil.
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

/// Formats TLS parameters as Go's `tls.ConnectionState`. Clients have no certificates, and the last but one field is a
/// function.
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

/// Returns the identifier of a request's trace, from `traceparent` or else from B3; empty without a valid one.
fn trace_id(headers: &HeaderMap) -> &str {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let w3c = text("traceparent").and_then(|value| value.split('-').nth(1));
    let id = w3c.or_else(|| text("x-b3-traceid")).unwrap_or_default();
    // Knative's own template prints it unescaped, so other characters must not pass.
    if id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        id
    } else {
        ""
    }
}
