//! A strict reader of pages, which panics at unclosed elements, attributes without quotes, and special characters that are
//! not escaped.

use std::collections::BTreeSet;

/// An element with its start tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Element {
    pub(crate) tag: String,
    pub(crate) attributes: Vec<(String, String)>,
    /// Text directly in the element, before its first child.
    pub(crate) text: String,
}

impl Element {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let mut all = self.attributes.iter();
        all.find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Returns all elements in their order.
///
/// # Panics
///
/// Panics if the page is not well formed.
pub(crate) fn read(page: &str) -> Vec<Element> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let mut open: Vec<String> = Vec::new();
    let mut elements: Vec<Element> = Vec::new();
    let mut fresh = false;
    while !rest.is_empty() {
        let (text, after) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
        if open.last().is_none_or(|tag| tag != "style") {
            assert!(!text.contains('>'), "raw > in {text:?}");
            references(text);
        }
        if fresh {
            elements.last_mut().unwrap().text = text.to_owned();
        }
        fresh = false;
        if after.is_empty() {
            break;
        }
        let end = end_of_tag(after);
        let inside = &after[1..end];
        rest = &after[end + 1..];
        if let Some(tag) = inside.strip_prefix('/') {
            assert_eq!(
                open.pop().as_deref(),
                Some(tag),
                "closed in the wrong order"
            );
            continue;
        }
        let (inside, closed) = match inside.strip_suffix('/') {
            Some(inside) => (inside, true),
            None => (inside, false),
        };
        let element = element(inside);
        if closed {
            let never_filled = ["meta", "rect", "path"];
            assert!(
                never_filled.contains(&element.tag.as_str()),
                "{}",
                element.tag
            );
        } else {
            open.push(element.tag.clone());
            fresh = true;
        }
        elements.push(element);
    }
    assert!(open.is_empty(), "left open: {open:?}");
    let mut names = BTreeSet::new();
    for name in elements.iter().filter_map(|element| element.get("id")) {
        assert!(names.insert(name.to_owned()), "id {name} is used twice");
    }
    for element in &elements {
        let named = element.get("aria-labelledby").unwrap_or("");
        let filled = element
            .get("fill")
            .and_then(|fill| fill.strip_prefix("url(#"));
        let filled = filled.map(|fill| fill.strip_suffix(')').unwrap());
        for name in named.split_whitespace().chain(filled) {
            assert!(names.contains(name), "no element has the id {name}");
        }
    }
    elements
}

/// Returns the end of the tag; a `>` inside quotes does not end it.
fn end_of_tag(text: &str) -> usize {
    let mut quoted = false;
    for (at, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '>' if !quoted => return at,
            '<' if at > 0 => panic!("raw < in {:?}", &text[..at]),
            _ => {}
        }
    }
    panic!("a tag without an end");
}

fn element(inside: &str) -> Element {
    let (tag, mut rest) = inside.split_once(' ').unwrap_or((inside, ""));
    assert!(
        tag.chars().all(|c| c.is_ascii_alphanumeric()),
        "tag {tag:?}"
    );
    let mut attributes: Vec<(String, String)> = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap();
        let (value, after) = after.split_once('"').unwrap();
        references(value);
        assert!(
            attributes.iter().all(|(other, _)| other != name),
            "{name} twice"
        );
        let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        assert!(letters, "attribute {name:?}");
        attributes.push((name.to_owned(), value.to_owned()));
        rest = after.strip_prefix(' ').unwrap_or(after);
    }
    Element {
        tag: tag.to_owned(),
        attributes,
        text: String::new(),
    }
}

fn references(text: &str) {
    for (at, _) in text.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
        let is_known = known.iter().any(|known| text[at..].starts_with(known));
        assert!(is_known, "raw & in {text:?}");
    }
}
