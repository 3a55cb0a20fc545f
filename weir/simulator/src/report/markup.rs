//! Elements in the order of the page: whatever is opened is closed, and all text is escaped on its way in.

/// A page that grows.
#[derive(Debug, Default)]
pub(super) struct Markup {
    text: String,
    open: Vec<&'static str>,
    figures: usize,
}

/// Names and values.
type Attributes<'a> = &'a [(&'a str, &'a str)];

impl Markup {
    /// What stands before everything.
    pub(super) fn page() -> Self {
        Self {
            text: "<!DOCTYPE html>\n".to_owned(),
            ..Self::default()
        }
    }

    /// The whole, with everything closed.
    pub(super) fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.text
    }

    /// Opens an element.
    pub(super) fn open(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push('>');
        self.open.push(tag);
    }

    /// Closes what was opened last. Blocks end their line, so that a page can be compared by lines.
    pub(super) fn close(&mut self) {
        if let Some(tag) = self.open.pop() {
            self.text.push_str("</");
            self.text.push_str(tag);
            self.text.push('>');
            if !matches!(tag, "span" | "strong" | "text" | "title" | "a" | "code") {
                self.text.push('\n');
            }
        }
    }

    /// An element with text in it.
    pub(super) fn element(&mut self, tag: &'static str, attributes: Attributes<'_>, text: &str) {
        self.open(tag, attributes);
        self.text(text);
        self.close();
    }

    /// An element without content: of HTML only those that never have any.
    pub(super) fn leaf(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push_str("/>");
    }

    /// Text, escaped.
    pub(super) fn text(&mut self, text: &str) {
        escape(text, &mut self.text);
    }

    /// Rules of style: constant text of ours that holds nothing to escape.
    pub(super) fn style(&mut self, rules: &'static str) {
        self.open("style", &[]);
        self.text.push_str(rules);
        self.close();
    }

    /// A number of its own for each figure: names inside a page must differ.
    pub(super) fn next_figure(&mut self) -> usize {
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

/// What markup would take for its own becomes a reference; what no page may hold becomes a mark for that.
fn escape(text: &str, to: &mut String) {
    for letter in text.chars() {
        match letter {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            '\'' => to.push_str("&#39;"),
            '\n' | '\t' => to.push(letter),
            // Also what turns the direction of the text around it.
            '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FFFE}' | '\u{FFFF}' => {
                to.push('\u{FFFD}');
            }
            _ if letter.is_control() => to.push('\u{FFFD}'),
            _ => to.push(letter),
        }
    }
}

/// A length or place in a drawing: a tenth of a unit is finer than a screen.
pub(super) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0" } else { text }.to_owned()
}

/// What fits in a width, at about 7 units a letter; the rest is dots. `None` if that says nothing any more.
pub(super) fn fit(text: &str, width: f64) -> Option<String> {
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
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        assert_eq!(fit("resnet", 100.0).as_deref(), Some("resnet"));
        assert_eq!(fit("densenet-201", 60.0).as_deref(), Some("densene…"));
        assert_eq!(fit("densenet-201", 40.0), None);
        assert_eq!(fit("a", 8.0).as_deref(), Some("a"));
    }
}
