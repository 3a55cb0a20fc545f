//! Properties of the terminal: its width and colours.

use std::io::IsTerminal as _;

use clap::ValueEnum;

/// Width of a terminal that does not report one, in columns.
const WIDTH_UNKNOWN: u16 = 80;
/// Length of a bar, in columns.
const BAR: usize = 30;

/// When to color text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    Auto,
    /// Color any output.
    Always,
    /// Color no output.
    Never,
}

/// Emphasis of text, never essential to its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Strong,
    Faint,
    Good,
    Poor,
}

/// Applies colours, or leaves text plain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Painter {
    is_coloured: bool,
}

impl Painter {
    /// Creates a painter for text on stdout.
    pub(crate) fn stdout(color: Color) -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_coloured = match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb,
        };
        Self { is_coloured }
    }

    /// Creates a painter which leaves text plain.
    #[cfg(test)]
    pub(crate) const fn plain() -> Self {
        Self { is_coloured: false }
    }

    /// Returns the text in a style.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if !self.is_coloured {
            return text.to_owned();
        }
        // Only of the sixteen colours that every terminal's theme keeps legible.
        let code = match style {
            Style::Strong => "1",
            Style::Faint => "2",
            Style::Good => "32",
            Style::Poor => "33",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

/// Returns the number of columns of stdout; `None` if it is no terminal.
pub(crate) fn width() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let columns = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
    let columns = if columns == 0 { WIDTH_UNKNOWN } else { columns };
    Some(usize::from(columns))
}

/// Returns a share as a bar of at most 30 columns after its name, followed by its percentage:
/// "Weir               ███████████████▏      50.5 %"
pub(crate) fn bar(name: &str, share: f64, style: Style, painter: Painter) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a few columns"
    )]
    let eighths = (share.clamp(0.0, 1.0) * (BAR * 8) as f64).round() as usize;
    let filled = format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8]);
    let blank = " ".repeat(BAR - filled.chars().count());
    format!(
        "{name:<18} {}{blank} {:5.1} %",
        painter.paint(style, &filled),
        share * 100.0
    )
}

/// Returns the text in lines of at most `width` characters, the second and later ones indented by `indent` blanks. A longer word
/// has a line of its own.
pub(crate) fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_wider_than_allowed() {
        let text = "one instance, 463 requests in 25.0 s, load 1.00";
        let wrapped = wrap(text, 20, 2);
        assert_eq!(
            wrapped,
            "one instance, 463\n  requests in 25.0\n  s, load 1.00"
        );
        assert_eq!(wrapped.replace("\n ", ""), text);
        assert_eq!(wrap(text, 200, 0), text);
    }

    #[test]
    fn no_colour_leaves_the_text_as_it_is() {
        assert_eq!(Painter::plain().paint(Style::Good, "73 %"), "73 %");
    }
}
