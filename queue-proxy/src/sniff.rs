//! Detection of the `Content-Type` of a body from its first bytes.
//!
//! Go's HTTP server adds a missing type to responses with a `Content-Length`, so that clients of Knative receive it. The
//! rules are those of the WHATWG MIME Sniffing standard, section 7, in the subset that Go implements.

/// Number of bytes that are inspected.
const SNIFF_MAX: usize = 512;

/// Media types by the first bytes of a body, in the order in which they are tried.
const PREFIXES: &[(&[u8], &str)] = &[
    (b"%PDF-", "application/pdf"),
    (b"%!PS-Adobe-", "application/postscript"),
    (b"\xFE\xFF", "text/plain; charset=utf-16be"),
    (b"\xFF\xFE", "text/plain; charset=utf-16le"),
    (b"\xEF\xBB\xBF", "text/plain; charset=utf-8"),
    (b"\x00\x00\x01\x00", "image/x-icon"),
    (b"\x00\x00\x02\x00", "image/x-icon"),
    (b"BM", "image/bmp"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"\x89PNG\x0D\x0A\x1A\x0A", "image/png"),
    (b"\xFF\xD8\xFF", "image/jpeg"),
    (b"OggS\x00", "application/ogg"),
    (b"MThd\x00\x00\x00\x06", "audio/midi"),
    (b"ID3", "audio/mpeg"),
    (b"\x1A\x45\xDF\xA3", "video/webm"),
    (b"\x00\x01\x00\x00", "font/ttf"),
    (b"OTTO", "font/otf"),
    (b"ttcf", "font/collection"),
    (b"wOFF", "font/woff"),
    (b"wOF2", "font/woff2"),
    (b"\x1F\x8B\x08", "application/x-gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"Rar!\x1A\x07\x00", "application/x-rar-compressed"),
    (b"Rar!\x1A\x07\x01\x00", "application/x-rar-compressed"),
    (b"\x00\x61\x73\x6D", "application/wasm"),
];

/// Media types of container formats by their first four bytes and by the bytes at offset 8.
const CONTAINERS: &[(&[u8; 4], &[u8], &str)] = &[
    (b"RIFF", b"WEBPVP", "image/webp"),
    (b"RIFF", b"WAVE", "audio/wave"),
    (b"RIFF", b"AVI ", "video/avi"),
    (b"FORM", b"AIFF", "audio/aiff"),
];

/// Tags at the beginning of an HTML document, after white space and in any case.
const HTML_TAGS: &[&[u8]] = &[
    b"<!DOCTYPE HTML",
    b"<HTML",
    b"<HEAD",
    b"<SCRIPT",
    b"<IFRAME",
    b"<H1",
    b"<DIV",
    b"<FONT",
    b"<TABLE",
    b"<A",
    b"<STYLE",
    b"<TITLE",
    b"<B",
    b"<BODY",
    b"<BR",
    b"<P",
    b"<!--",
];

/// Returns the media type of a body that begins with `data`.
#[must_use]
pub(crate) fn content_type(data: &[u8]) -> &'static str {
    let data = &data[..data.len().min(SNIFF_MAX)];
    let text = data.trim_ascii_start();
    let is_html = |tag: &&[u8]| {
        text.get(..tag.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(tag))
            && (tag.ends_with(b"--") || matches!(text.get(tag.len()), Some(b' ' | b'>')))
    };
    if HTML_TAGS.iter().any(is_html) {
        return "text/html; charset=utf-8";
    }
    if text.starts_with(b"<?xml") {
        return "text/xml; charset=utf-8";
    }
    if let Some((_, kind)) = PREFIXES.iter().find(|(prefix, _)| data.starts_with(prefix)) {
        return kind;
    }
    if let Some((.., kind)) = CONTAINERS.iter().find(|(outer, inner, _)| {
        data.starts_with(*outer) && data.get(8..).is_some_and(|rest| rest.starts_with(inner))
    }) {
        return kind;
    }
    if is_mp4(data) {
        return "video/mp4";
    }
    if is_embedded_font(data) {
        return "application/vnd.ms-fontobject";
    }
    let is_binary = |b: &u8| matches!(b, 0..=8 | 0x0B | 0x0E..=0x1A | 0x1C..=0x1F);
    if text.iter().any(is_binary) {
        "application/octet-stream"
    } else {
        "text/plain; charset=utf-8"
    }
}

/// Returns whether the data begins with an `ftyp` box that has a brand beginning with `mp4` (MIME Sniffing 6.2.1).
fn is_mp4(data: &[u8]) -> bool {
    let Some((size, rest)) = data.split_first_chunk::<4>() else {
        return false;
    };
    let size = u32::from_be_bytes(*size) as usize;
    data.len() >= 12
        && data.len() >= size
        && size.is_multiple_of(4)
        && rest.starts_with(b"ftyp")
        && (8..size)
            .step_by(4)
            .filter(|&at| at != 12)
            .any(|at| data.get(at..at + 3).is_some_and(|brand| brand == b"mp4"))
}

/// Returns whether the data is an embedded OpenType font, with `LP` at offset 34.
fn is_embedded_font(data: &[u8]) -> bool {
    data.get(34..36).is_some_and(|magic| magic == b"LP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_match_those_detected_by_go() {
        let cases: &[(&[u8], &str)] = &[
            (b"", "text/plain; charset=utf-8"),
            (b"hello", "text/plain; charset=utf-8"),
            (b"{\"a\":1}", "text/plain; charset=utf-8"),
            (b"\n <!doctype html>", "text/html; charset=utf-8"),
            (b"<HtMl><bOdY>", "text/html; charset=utf-8"),
            (b"<!-- x", "text/html; charset=utf-8"),
            (b"<article>", "text/plain; charset=utf-8"),
            (b"  <?xml version='1.0'?>", "text/xml; charset=utf-8"),
            (b"\x00\x01\x02", "application/octet-stream"),
            (b"%PDF-1.7", "application/pdf"),
            (b"\x89PNG\r\n\x1A\n", "image/png"),
            (b"RIFF....WEBPVP8 ", "image/webp"),
            (b"RIFF....WAVEfmt ", "audio/wave"),
            (
                b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00mp42isom",
                "video/mp4",
            ),
            (b"\x1F\x8B\x08\x00", "application/x-gzip"),
            (b"\xEF\xBB\xBFtext", "text/plain; charset=utf-8"),
            (b"caf\xC3\xA9", "text/plain; charset=utf-8"),
        ];
        for (data, kind) in cases {
            assert_eq!(content_type(data), *kind, "{data:?}");
        }
    }

    #[test]
    fn only_the_first_512_bytes_count() {
        let mut data = vec![b'a'; 512];
        data.push(0);
        assert_eq!(content_type(&data), "text/plain; charset=utf-8");
    }
}
