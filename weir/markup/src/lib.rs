//! Writer of HTML and SVG elements: every opened element is closed, and all text is escaped, also in attributes.
//!
//! Names of elements and style rules are constants of the program, so nothing from outside can become markup. There is no parser and no
//! template.
//!
//! # Examples
//!
//! ```
//! use markup::{Markup, px};
//!
//! let mut drawing = Markup::default();
//! drawing.open("svg", &[("viewBox", "0 0 100 20")]);
//! drawing.leaf("rect", &[("width", &px(12.5)), ("height", "10")]);
//! drawing.element("text", &[], "a < b");
//! assert_eq!(
//!     drawing.finish(),
//!     "<svg viewBox=\"0 0 100 20\"><rect width=\"12.5\" height=\"10\"/><text>a &lt; b</text></svg>\n"
//! );
//! ```
#![forbid(unsafe_code)]

/// A page under construction.
#[derive(Debug, Default)]
pub struct Markup {
    text: String,
    open: Vec<&'static str>,
    figures: usize,
}

/// Names and values of an element's attributes.
pub type Attributes<'a> = &'a [(&'a str, &'a str)];

impl Markup {
    /// Returns a page that begins with the document type.
    #[must_use]
    pub fn page() -> Self {
        Self {
            text: "<!DOCTYPE html>\n".to_owned(),
            ..Self::default()
        }
    }

    /// Closes all open elements and returns the page.
    #[must_use]
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }

    /// Writes the start tag of an element, which [`close`](Self::close) closes.
    pub fn open(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push('>');
        self.open.push(tag);
    }

    /// Closes the element opened last. Block elements end their line, so that pages can be compared by lines.
    pub fn close(&mut self) {
        if let Some(tag) = self.open.pop() {
            self.text.push_str("</");
            self.text.push_str(tag);
            self.text.push('>');
            if !matches!(tag, "span" | "strong" | "text" | "title" | "a" | "code") {
                self.text.push('\n');
            }
        }
    }

    /// Writes an element which contains only text.
    pub fn element(&mut self, tag: &'static str, attributes: Attributes<'_>, text: &str) {
        self.open(tag, attributes);
        self.text(text);
        self.close();
    }

    /// Writes an element without content: of HTML only void elements.
    pub fn leaf(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push_str("/>");
    }

    /// Writes text with special characters escaped.
    pub fn text(&mut self, text: &str) {
        escape(text, &mut self.text);
    }

    /// Writes style rules. They are constant text of the program without characters to escape.
    pub fn style(&mut self, rules: &'static str) {
        self.open("style", &[]);
        self.text.push_str(rules);
        self.close();
    }

    /// Returns a unique number for each figure, for ids that must differ within a page.
    pub fn next_figure(&mut self) -> usize {
        self.figures += 1;
        self.figures
    }

    fn start(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.text.push('<');
        self.text.push_str(tag);
        for (name, value) in attributes {
            self.text.push(' ');
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(value, &mut self.text);
            self.text.push('"');
        }
    }
}

/// Replaces the special characters of markup by references, and characters not allowed in a page by U+FFFD.
fn escape(text: &str, to: &mut String) {
    for letter in text.chars() {
        match letter {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            '\'' => to.push_str("&#39;"),
            '\n' | '\t' => to.push(letter),
            // Includes characters that change the direction of the text around them.
            '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FFFE}' | '\u{FFFF}' => {
                to.push('\u{FFFD}');
            }
            _ if letter.is_control() => to.push('\u{FFFD}'),
            _ => to.push(letter),
        }
    }
}

/// Formats a length or position in a drawing, to a tenth of a unit, which is finer than a screen.
#[must_use]
pub fn px(value: f64) -> String {
    rounded(value, 1)
}

/// Formats a length or position which may be enlarged, to a hundredth of a unit.
#[must_use]
pub fn fine_px(value: f64) -> String {
    rounded(value, 2)
}

fn rounded(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0" } else { text }.to_owned()
}

/// Cuts text to a width, at about 7 units a letter, and marks the cut by dots. Returns `None` if too little would remain.
#[must_use]
pub fn fit(text: &str, width: f64) -> Option<String> {
    let letters = text.chars().count();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a width on a page"
    )]
    let room = (width.max(0.0) / 7.2) as usize;
    if letters <= room {
        return Some(text.to_owned());
    }
    let kept: String = text.chars().take(room.checked_sub(1)?).collect();
    (room >= 7).then(|| format!("{kept}…"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_text_is_escaped_and_all_elements_are_closed() {
        let mut page = Markup::default();
        page.open("p", &[("title", "\"<a>'&")]);
        page.text("<script>&\u{0}\u{202E}ä");
        assert_eq!(
            page.finish(),
            "<p title=\"&quot;&lt;a&gt;&#39;&amp;\">&lt;script&gt;&amp;\u{FFFD}\u{FFFD}ä</p>\n"
        );
    }

    #[test]
    fn lengths_are_short() {
        assert_eq!(
            [px(1.0), px(-0.04), px(2.25), px(-3.5)],
            ["1", "0", "2.2", "-3.5"]
        );
        assert_eq!([fine_px(10.0), fine_px(2.006)], ["10", "2.01"]);
    }

    #[test]
    fn text_that_does_not_fit_is_cut() {
        assert_eq!(fit("resnet", 100.0).as_deref(), Some("resnet"));
        assert_eq!(fit("densenet-201", 60.0).as_deref(), Some("densene…"));
        assert_eq!(fit("densenet-201", 40.0), None);
        assert_eq!(fit("a", 8.0).as_deref(), Some("a"));
    }
}
