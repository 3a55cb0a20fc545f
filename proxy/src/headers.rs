//! Inspection and rewriting of request and response heads.

use std::fmt::Write as _;
use std::net::IpAddr;

use bytes::BytesMut;
use http::header::{
    self, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, StatusCode, Uri};
use hyper::ext::ReasonPhrase;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

/// Header with the `Host` of the original request, which replaces that of the forwarded one.
pub const ORIGINAL_HOST: HeaderName = HeaderName::from_static("k-original-host");
/// Header by which Knative's components mark probes; its value selects what is probed.
pub const NETWORK_PROBE: HeaderName = HeaderName::from_static("k-network-probe");
/// Header with the hash that a network probe expects to be echoed.
pub const NETWORK_HASH: HeaderName = HeaderName::from_static("k-network-hash");
/// Header that marks a request of the kubelet's probes.
pub const KUBELET_PROBE: HeaderName = HeaderName::from_static("k-kubelet-probe");
/// Header with the name of the Knative component that forwarded the request.
pub const PROXY_REQUEST: HeaderName = HeaderName::from_static("k-proxy-request");
/// Header with the tag of the route by which the request came.
pub const SERVING_TAG: HeaderName = HeaderName::from_static("knative-serving-tag");
/// Header that states whether the request came by the route without a tag.
pub const SERVING_DEFAULT_ROUTE: HeaderName =
    HeaderName::from_static("knative-serving-default-route");
/// Header with the name of the revision that is to serve the request.
pub const SERVING_REVISION: HeaderName = HeaderName::from_static("knative-serving-revision");
/// Header with the namespace of the revision that is to serve the request.
pub const SERVING_NAMESPACE: HeaderName = HeaderName::from_static("knative-serving-namespace");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Hop-by-hop headers, RFC 9110 7.6.1, except `Connection` itself and `TE`.
static HOP_BY_HOP: [HeaderName; 7] = [
    KEEP_ALIVE,
    PROXY_CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
    UPGRADE,
    HTTP2_SETTINGS,
];

/// Largest `X-Forwarded-For`, in bytes, that is converted to `Forwarded`, which may be six times as long.
const FORWARDED_FOR_BYTES_MAX: usize = 16 * 1024;

/// Characters that are illegal in the path of a URL but are accepted from clients and escaped.
const PATH_ILLEGAL: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Returns whether a header has this token among its comma-separated values, ignoring case.
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        value
            .as_bytes()
            .split(|&b| b == b',')
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    })
}

/// Returns the protocol to which a request asks, or a 101 agrees, to switch. Upgrades to `h2c` are ignored.
pub fn upgrade_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers
        .get(UPGRADE)
        .filter(|_| has_token(headers, &CONNECTION, "upgrade"))?;
    (!protocol.as_bytes().eq_ignore_ascii_case(b"h2c")).then(|| protocol.clone())
}

/// Removes hop-by-hop headers (RFC 9110 7.6.1), and those that `Connection` names. `TE: trailers` and `Trailer` stay,
/// since trailers are forwarded.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|&b| b == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            .collect();
        for name in named {
            // `TE` is handled below and `Trailer` stays. `Host` and `Content-Length` belong to the message and must not
            // be removed at a client's request.
            if ![TE, TRAILER, HOST, CONTENT_LENGTH].contains(&name) {
                headers.remove(name);
            }
        }
        headers.remove(CONNECTION);
    }
    // Most heads have none of these: one pass over the names is cheaper than a lookup for each.
    while let Some(name) = headers.keys().find(|name| HOP_BY_HOP.contains(name)) {
        let name = name.clone();
        headers.remove(name);
    }
    if headers.contains_key(TE) {
        let trailers = has_token(headers, &TE, "trailers");
        headers.remove(TE);
        if trailers {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// Removes trailers that would change a message's framing or its connection (RFC 9110 6.5.1).
pub fn remove_bad_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    for name in [CONTENT_LENGTH, TRAILER, TE, HOST] {
        trailers.remove(name);
    }
}

/// Removes the headers that are meant for the proxy: Knative's routing headers, and the original `Host`, which is
/// returned if it is a valid host.
pub fn take_knative(headers: &mut HeaderMap) -> Option<HeaderValue> {
    headers.remove(SERVING_REVISION);
    headers.remove(SERVING_NAMESPACE);
    headers.remove(ORIGINAL_HOST).filter(is_host)
}

/// Returns the value of the label `kn.route.tag` for a request, from the headers in which Knative states its route.
pub fn route_tag(headers: &HeaderMap) -> &str {
    let text = |name: HeaderName| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.filter(|value| !value.is_empty())
    };
    match (text(SERVING_TAG), text(SERVING_DEFAULT_ROUTE)) {
        (None, None) => "kn:disabled",
        (None, Some(_)) => "kn:default",
        (Some(_), Some("true")) => "kn:undefined",
        (Some(tag), _) => tag,
    }
}

/// Returns whether a value is acceptable as `Host`: not empty, and only with characters that RFC 3986 3.2.2 or Go allows.
pub fn is_host(value: &HeaderValue) -> bool {
    let legal = |b: &u8| b.is_ascii_alphanumeric() || b"!$%&()*+,-.:;='[]_~".contains(b);
    !value.is_empty() && value.as_bytes().iter().all(legal)
}

/// Returns whether a message has a transfer coding other than a single `chunked`.
pub fn has_strange_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => false,
        (Some(only), None) => !only
            .as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => true,
    }
}

/// Returns whether a path has only characters that are legal in a URL.
fn is_legal_path(path: &str) -> bool {
    !path.is_empty()
        && path
            .bytes()
            .all(|b| b.is_ascii() && !PATH_ILLEGAL_TABLE[usize::from(b)])
}

/// Returns whether a target can be forwarded unchanged: in origin form, with a legal path.
pub fn is_origin_form(uri: &Uri) -> bool {
    uri.authority().is_none() && is_legal_path(uri.path())
}

/// Adds `Forwarded` (RFC 7239), made of the received `X-Forwarded-*` headers. Does nothing if it is present or if there
/// are none of those.
pub fn add_forwarded(headers: &mut HeaderMap) {
    if headers.contains_key(header::FORWARDED) {
        return;
    }
    let text = |name: HeaderName| {
        headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or("")
    };
    let (addresses, host, proto) = (
        text(FORWARDED_FOR),
        text(FORWARDED_HOST),
        text(FORWARDED_PROTO),
    );
    let is_nothing = addresses.is_empty() && host.is_empty() && proto.is_empty();
    if is_nothing || addresses.len() > FORWARDED_FOR_BYTES_MAX {
        return;
    }
    let mut forwarded = String::with_capacity(64);
    let mut members = addresses.split(',').map(str::trim);
    let first = members.next().filter(|_| !addresses.is_empty());
    let mut separator = "";
    if let Some(address) = first {
        push_for(&mut forwarded, address);
        separator = ";";
    }
    for (name, value) in [("host=", host), ("proto=", proto)] {
        if !value.is_empty() {
            forwarded.push_str(separator);
            forwarded.push_str(name);
            forwarded.push_str(value);
            separator = ";";
        }
    }
    for address in members {
        forwarded.push_str(", ");
        push_for(&mut forwarded, address);
    }
    if let Ok(value) = HeaderValue::from_str(&forwarded) {
        headers.insert(header::FORWARDED, value);
    }
}

fn push_for(forwarded: &mut String, address: &str) {
    // An IPv6 address is quoted and bracketed, RFC 7239 section 6.
    if address.contains(':') {
        forwarded.push_str("for=\"[");
        forwarded.push_str(address);
        forwarded.push_str("]\"");
    } else {
        forwarded.push_str("for=");
        forwarded.push_str(address);
    }
}

/// Appends the client's address to `X-Forwarded-For`, folding several lines into one.
pub fn append_forwarded_for(headers: &mut HeaderMap, peer: IpAddr) {
    let mut folded = BytesMut::with_capacity(48);
    for value in headers.get_all(FORWARDED_FOR) {
        folded.extend_from_slice(value.as_bytes());
        folded.extend_from_slice(b", ");
    }
    // Writing to memory does not fail.
    let _written = write!(folded, "{}", peer.to_canonical());
    if let Ok(value) = HeaderValue::from_maybe_shared(folded.freeze()) {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Returns whether every percent sign of a path begins a valid escape.
pub fn has_valid_escapes(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes
        .iter()
        .enumerate()
        .filter(|&(_, &b)| b == b'%')
        .all(|(at, _)| {
            bytes
                .get(at + 1..at + 3)
                .is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
        })
}

/// Returns the target in origin form. Only characters of the path that are illegal in a URL are escaped.
pub fn origin_form(uri: &Uri) -> String {
    let path = match uri.path() {
        "" => "/",
        path => path,
    };
    let mut target = if is_legal_path(path) {
        path.to_owned()
    } else {
        percent_encode(path.as_bytes(), PATH_ILLEGAL).to_string()
    };
    if let Some(query) = uri.query() {
        target.push('?');
        target.push_str(query);
    }
    target
}

const PATH_ILLEGAL_TABLE: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    let illegal = b" \"<>\\^`{|}";
    while at < illegal.len() {
        table[illegal[at] as usize] = true;
        at += 1;
    }
    table
};

/// Returns the reason phrase that Go sends for a status, if hyper's own differs.
pub fn reason_phrase(status: StatusCode) -> Option<ReasonPhrase> {
    let text: &'static [u8] = match status.as_u16() {
        203 => b"Non-Authoritative Information",
        413 => b"Request Entity Too Large",
        414 => b"Request URI Too Long",
        416 => b"Requested Range Not Satisfiable",
        code if status.canonical_reason().is_none() => {
            return ReasonPhrase::try_from(format!("status code {code}").into_bytes()).ok();
        }
        _ => return None,
    };
    Some(ReasonPhrase::from_static(text))
}

/// Returns the value of `Content-Length`, or `None` if it is absent or not a number.
pub fn content_length(headers: &HeaderMap) -> Option<u64> {
    length(headers.get(CONTENT_LENGTH)?.as_bytes())
}

/// Parses a content length, which consists of digits alone (RFC 9110 8.6).
fn length(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text)
        .ok()
        .filter(|_| is_number)?
        .parse()
        .ok()
}

/// Error for an answer with an invalid `Content-Length`, or with several that differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadLength;

/// Merges equal lengths, stated in one line (`3, 3`, RFC 9110 8.6) or in several, into one. hyper checks lengths only if
/// a body follows.
///
/// # Errors
/// Returns an error, and changes nothing, if a length is not a number or if they differ.
pub fn normalize_content_length(headers: &mut HeaderMap) -> Result<(), BadLength> {
    let mut lengths = headers
        .get_all(CONTENT_LENGTH)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .map(length);
    let Some(first) = lengths.next() else {
        return Ok(());
    };
    let first = first.ok_or(BadLength)?;
    let mut is_single = true;
    for other in lengths {
        is_single = false;
        if other != Some(first) {
            return Err(BadLength);
        }
    }
    if !is_single {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(first));
    }
    Ok(())
}

/// Returns whether the client waits for `100 Continue`.
pub fn expects_continue(headers: &HeaderMap) -> bool {
    headers
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    fn forwarded(lines: &[(&'static str, &str)]) -> Option<String> {
        let mut headers = map(lines);
        add_forwarded(&mut headers);
        headers
            .get(header::FORWARDED)
            .map(|v| v.to_str().unwrap().to_owned())
    }

    #[test]
    fn forwarded_is_built_from_the_received_headers() {
        let cases: [(&[(&str, &str)], &str); 5] = [
            (
                &[
                    ("x-forwarded-for", "a, b"),
                    ("x-forwarded-host", "h"),
                    ("x-forwarded-proto", "https"),
                ],
                "for=a;host=h;proto=https, for=b",
            ),
            (&[("x-forwarded-for", "::1")], "for=\"[::1]\""),
            (&[("x-forwarded-host", "h")], "host=h"),
            (&[("x-forwarded-proto", "p")], "proto=p"),
            (&[("x-forwarded-for", ",,,")], "for=, for=, for=, for="),
        ];
        for (lines, expected) in cases {
            let lines: Vec<(&'static str, &str)> = lines
                .iter()
                .map(|(name, value)| match *name {
                    "x-forwarded-for" => ("x-forwarded-for", *value),
                    "x-forwarded-host" => ("x-forwarded-host", *value),
                    _ => ("x-forwarded-proto", *value),
                })
                .collect();
            assert_eq!(forwarded(&lines).as_deref(), Some(expected));
        }
        assert_eq!(forwarded(&[]), None);
        assert_eq!(
            forwarded(&[("forwarded", "for=z"), ("x-forwarded-for", "a")]).as_deref(),
            Some("for=z")
        );
    }

    #[test]
    fn forwarded_for_is_folded_and_the_peer_appended() {
        let mut headers = map(&[
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-for", "5.6.7.8"),
        ]);
        append_forwarded_for(&mut headers, "::ffff:9.9.9.9".parse().unwrap());
        assert_eq!(headers["x-forwarded-for"], "1.2.3.4, 5.6.7.8, 9.9.9.9");
        assert_eq!(headers.get_all("x-forwarded-for").iter().count(), 1);
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut headers = map(&[
            ("connection", "x-one, Keep-Alive"),
            ("x-one", "1"),
            ("keep-alive", "1"),
            ("te", "gzip, trailers"),
            ("trailer", "x-sum"),
            ("upgrade", "foo"),
            ("proxy-authorization", "x"),
            ("x-two", "2"),
        ]);
        remove_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers
            .iter()
            .map(|(n, v)| (n.as_str(), v.to_str().unwrap()))
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [("te", "trailers"), ("trailer", "x-sum"), ("x-two", "2")]
        );
        let mut headers = map(&[("te", "gzip")]);
        remove_hop_by_hop(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn targets_keep_every_legal_byte() {
        for target in ["/a;b%2F//../c?", "/?q=%zz&a=1&", "/a?b#c"] {
            let uri: Uri = target.parse().unwrap();
            assert_eq!(origin_form(&uri), target.split('#').next().unwrap());
        }
        assert_eq!(
            origin_form(&"/a|b^c?d|e".parse().unwrap()),
            "/a%7Cb%5Ec?d|e"
        );
        assert!(has_valid_escapes("/a%2fb%C3"));
        assert!(!has_valid_escapes("/a%2"));
        assert!(!has_valid_escapes("/a%zz"));
    }

    #[test]
    fn reason_phrases_match_go() {
        let phrase = |code: u16| reason_phrase(StatusCode::from_u16(code).unwrap());
        assert_eq!(phrase(299).unwrap().as_bytes(), b"status code 299");
        assert_eq!(phrase(413).unwrap().as_bytes(), b"Request Entity Too Large");
        assert_eq!(phrase(404), None);
    }
}
