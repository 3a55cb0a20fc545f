//! Fields and methods of `.Request`, with the results of Go's `http.Request`.

use std::borrow::Cow;
use std::cell::Cell;

use http::Version;
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TRAILER, TRANSFER_ENCODING};

use super::go::{self, ADDRESS, Cookie, Values};
use super::value::{Record, RevisionInfo, Subject, Value};
use crate::headers::{content_length, has_token};

impl Record {
    /// Returns the line that Knative writes for a request on which the template fails.
    pub fn unwritten(&self) -> String {
        let url = Subject {
            record: self,
            revision: &RevisionInfo::default(),
            is_form_read: &Cell::new(false),
        }
        .url_text()
        .into_owned();
        format!(
            "Invalid request log template: method: {}, response code: {}, latency: {}, url: {url}\n",
            self.method,
            self.code,
            go::float(self.latency_seconds)
        )
    }
}

impl<'a> Subject<'a> {
    /// Returns a field of the request, or the result of a method without arguments; `None` for an unknown name.
    pub(super) fn request(self, name: &str) -> Option<Value<'a>> {
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
            "ProtoMajor" => Value::Integer(if self.is_http2() { 2 } else { 1 }),
            "ProtoMinor" => Value::Integer((record.version == Version::HTTP_11).into()),
            "Host" => Value::Text(self.host()),
            "RemoteAddr" => text(&record.remote_address),
            "UserAgent" => Value::Text(self.header("user-agent")),
            "Referer" => Value::Text(self.header("referer")),
            "ContentLength" => Value::Integer(self.content_length()),
            "TransferEncoding" => Value::List(if self.is_chunked() {
                vec![Cow::Borrowed("chunked")]
            } else {
                Vec::new()
            }),
            "Header" => Value::Headers,
            "URL" => Value::Url,
            "TLS" => record.tls.as_deref().map_or(Value::Nil, Value::Tls),
            "Form" if self.is_form_read.get() => Value::Values(self.query()),
            // The form has not been parsed, and the body has been passed on.
            "Form" | "PostForm" => Value::Values(Values::new()),
            "MultipartForm" => Value::Nil,
            "Cookies" => Value::Cookies(self.cookies().collect()),
            "Pattern" => text(""),
            "Trailer" => Value::Trailers(self.trailers()),
            "Close" => Value::Bool(self.closes()),
            "Body" => Value::Body,
            _ => return None,
        })
    }

    /// Returns a field of the URL, or the result of a method without arguments; `None` for an unknown name.
    pub(super) fn url(self, name: &str) -> Option<Value<'a>> {
        let uri = &self.record.uri;
        let text = |text: &'a str| Value::Text(Cow::Borrowed(text));
        // For an HTTP/2 request Go's URL has only the path; the authority becomes its Host.
        let authority = uri.authority().filter(|_| self.is_absolute());
        let host = || {
            let host = authority.map_or("", |authority| authority.as_str());
            host.rsplit_once('@').map_or(host, |(_, host)| host)
        };
        Some(match name {
            "Path" => Value::Text(go::decoded_path(uri.path())),
            "RawPath" => text(go::raw_path(uri.path())),
            "EscapedPath" => Value::Text(go::escaped_path(uri.path())),
            "RawQuery" => text(uri.query().unwrap_or_default()),
            "ForceQuery" => Value::Bool(uri.query() == Some("")),
            "Query" => Value::Values(self.query()),
            "Scheme" => text(
                uri.scheme_str()
                    .filter(|_| self.is_absolute())
                    .unwrap_or_default(),
            ),
            "Host" => text(host()),
            "Hostname" => text(authority.map_or("", |it| it.host().trim_matches(['[', ']']))),
            "Port" => text(
                authority
                    .and_then(|it| it.port())
                    .map_or("", |_| host().rsplit_once(':').map_or("", |(_, port)| port)),
            ),
            "IsAbs" => Value::Bool(self.is_absolute()),
            "Fragment" | "Opaque" => text(""),
            "RequestURI" => Value::Text(self.escaped_target()),
            "String" => Value::Text(self.url_text()),
            _ => return None,
        })
    }

    fn is_http2(self) -> bool {
        self.record.version == Version::HTTP_2
    }

    fn is_chunked(self) -> bool {
        self.record.headers.contains_key(TRANSFER_ENCODING)
    }

    fn is_absolute(self) -> bool {
        !self.is_http2() && self.record.uri.scheme().is_some()
    }

    /// Returns the target as sent by the client.
    fn request_uri(self) -> Cow<'a, str> {
        let uri = &self.record.uri;
        if self.is_absolute() {
            return Cow::Owned(uri.to_string());
        }
        Cow::Borrowed(uri.path_and_query().map_or("/", |it| it.as_str()))
    }

    /// Returns path and query, with illegal characters of the path escaped.
    fn escaped_target(self) -> Cow<'a, str> {
        let uri = &self.record.uri;
        let path = go::escaped_path(uri.path());
        match uri.query() {
            Some(query) => Cow::Owned(format!("{path}?{query}")),
            None => path,
        }
    }

    /// Returns the URL as formatted by Go.
    pub(super) fn url_text(self) -> Cow<'a, str> {
        let uri = &self.record.uri;
        let target = self.escaped_target();
        match (uri.scheme_str(), uri.authority()) {
            (Some(scheme), Some(authority)) if self.is_absolute() => {
                Cow::Owned(format!("{scheme}://{authority}{target}"))
            }
            _ => target,
        }
    }

    fn host(self) -> Cow<'a, str> {
        match self.record.uri.authority() {
            Some(authority) => Cow::Borrowed(authority.as_str()),
            None => self.header("host"),
        }
    }

    fn content_length(self) -> i64 {
        match content_length(&self.record.headers).map(i64::try_from) {
            Some(Ok(length)) => length,
            _ if self.is_chunked() => -1,
            _ => 0,
        }
    }

    /// Returns `Close`: whether the client asks to close the connection after the answer.
    fn closes(self) -> bool {
        let headers = &self.record.headers;
        let asks = has_token(headers, &CONNECTION, "close");
        match self.record.version {
            Version::HTTP_2 => false,
            Version::HTTP_10 => asks || !has_token(headers, &CONNECTION, "keep-alive"),
            _ => asks,
        }
    }

    pub(super) fn query(self) -> Values<'a> {
        go::parse_query(self.record.uri.query().unwrap_or_default())
    }

    pub(super) fn cookies(self) -> impl Iterator<Item = Cookie<'a>> {
        let lines = self.record.headers.get_all(COOKIE).into_iter();
        lines.flat_map(|line| Cookie::parse_line(line.as_bytes()))
    }

    /// Returns `Trailer`: the announced trailers with their received values. Over HTTP/1, if any trailers are announced,
    /// Go also includes those that are not.
    fn trailers(self) -> Values<'a> {
        let record = self.record;
        let mut trailers = Values::new();
        if !self.is_http2() && !self.is_chunked() {
            return trailers;
        }
        for line in record.headers.get_all(TRAILER) {
            let names = line
                .as_bytes()
                .split(|&b| b == b',')
                .map(<[u8]>::trim_ascii);
            for name in names.filter(|name| !name.is_empty()) {
                let name = go::canonical(&String::from_utf8_lossy(name));
                trailers.insert(Cow::Owned(name), Vec::new());
            }
        }
        if trailers.is_empty() {
            return trailers;
        }
        for (name, value) in &record.trailers {
            let name = Cow::Owned(go::canonical(name.as_str()));
            if !self.is_http2() || trailers.contains_key(&name) {
                let values = trailers.entry(name).or_default();
                values.push(String::from_utf8_lossy(value.as_bytes()));
            }
        }
        trailers
    }

    /// Returns `Header.Get`: the first value, or the empty string.
    pub(super) fn header(self, name: &str) -> Cow<'a, str> {
        self.record
            .headers
            .get(name)
            .map_or(Cow::Borrowed(""), |value| {
                String::from_utf8_lossy(value.as_bytes())
            })
    }

    /// Returns `Header.Values`: all values of the header, which may be none.
    pub(super) fn header_values(self, name: &str) -> Vec<Cow<'a, str>> {
        let values = self.record.headers.get_all(name).iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect()
    }

    /// Returns the headers as formatted by Go, without those that Go removes from the map.
    pub(super) fn headers_text(self) -> String {
        let headers = &self.record.headers;
        let has_trailers = self.is_chunked() || self.is_http2();
        let is_kept = |name: &&http::HeaderName| {
            **name != HOST && **name != TRANSFER_ENCODING && (**name != TRAILER || !has_trailers)
        };
        let names = headers.keys().filter(is_kept);
        let mut names: Vec<_> = names
            .map(|name| (go::canonical(name.as_str()), name))
            .collect();
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        let entries = names
            .iter()
            .map(|(shown, name)| (&**shown, self.header_values(name.as_str())));
        go::map_text(entries)
    }

    /// Returns `Body`: `{}` without a body, else the structure in Knative's own queue-proxy with the number of bytes read.
    pub(super) fn body_text(self) -> String {
        let record = self.record;
        let headers = &record.headers;
        let length = headers
            .get(CONTENT_LENGTH)
            .and_then(|_| content_length(headers));
        let has_body = self.is_chunked() || length.is_some_and(|length| length > 0);
        if !has_body && !self.is_http2() {
            return "{}".to_owned();
        }
        let end = if has_body || record.body_bytes > 0 {
            ADDRESS
        } else {
            "<nil>"
        };
        format!(
            "&{{{ADDRESS} {ADDRESS} {{{{}} {{0 0}}}} {} {end}}}",
            record.body_bytes
        )
    }
}
