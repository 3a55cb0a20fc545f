//! Parts common to all plots: a figure with its texts, drawn once for wide pages and once for narrow ones; a frame with
//! axes; lines that differ in dashes as well as in colour.

use super::axis::Axis;
use crate::statistics::Unit;
use markup::{Markup, px};

/// Number of distinct looks of lines.
pub(super) const LOOKS: usize = 8;
/// Dash pattern of each look; the first is solid.
const DASHES: [&str; LOOKS] = [
    "", "7 4", "2 3", "10 3 2 3", "4 4", "12 5", "1 4", "6 2 1 2",
];

/// Size of a drawing in its own units, which are about pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) width: f64,
    /// Whether the drawing is for narrow screens, such as a phone's.
    pub(super) narrow: bool,
    /// Number of the figure, for ids that must differ within the page.
    pub(super) figure: usize,
}

impl Size {
    /// Returns an id that no other drawing has.
    pub(super) fn name(&self, what: &str) -> String {
        let which = if self.narrow { "n" } else { "w" };
        format!("f{}{which}-{what}", self.figure)
    }
}

/// Texts of a figure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texts<'a> {
    pub(super) title: &'a str,
    /// Explanation of how to read the figure.
    pub(super) how: &'a str,
    /// Description of the content, for screen readers.
    pub(super) summary: &'a str,
}

/// Draws a figure: its title, the output of `before`, and its two drawings with the height that `height` returns.
pub(super) fn figure(
    page: &mut Markup,
    texts: Texts<'_>,
    before: impl FnOnce(&mut Markup),
    height: impl Fn(&Size) -> f64,
    draw: impl Fn(&mut Markup, &Size),
) {
    let figure = page.next_figure();
    page.open("figure", &[]);
    page.open("figcaption", &[]);
    page.element("h3", &[], texts.title);
    if !texts.how.is_empty() {
        page.element("p", &[("class", "how")], texts.how);
    }
    page.close();
    before(page);
    for (narrow, width, class) in [(false, 960.0, "wide"), (true, 360.0, "narrow")] {
        let size = Size {
            width,
            narrow,
            figure,
        };
        let (title, summary) = (size.name("title"), size.name("desc"));
        let (named, view) = (
            format!("{title} {summary}"),
            format!("0 0 {} {}", px(width), px(height(&size))),
        );
        page.open(
            "svg",
            &[
                ("class", class),
                ("viewBox", &view),
                ("role", "img"),
                ("aria-labelledby", &named),
            ],
        );
        page.element("title", &[("id", &title)], texts.title);
        page.element("desc", &[("id", &summary)], texts.summary);
        draw(page, &size);
        page.close();
    }
    page.close();
}

/// Draws the key of a line for a legend.
pub(super) fn key(page: &mut Markup, look: usize) {
    let class = format!("key look{}", look % LOOKS);
    page.open(
        "svg",
        &[
            ("class", &class),
            ("viewBox", "0 0 28 10"),
            ("aria-hidden", "true"),
        ],
    );
    line(page, look, "M1 5H27");
    page.close();
}

/// Draws a line with one of the looks.
pub(super) fn line(page: &mut Markup, look: usize, path: &str) {
    let class = format!("line look{}", look % LOOKS);
    let dash = DASHES[look % LOOKS];
    let attributes = [
        ("class", class.as_str()),
        ("d", path),
        ("stroke-dasharray", dash),
    ];
    let dashed = if dash.is_empty() { 2 } else { 3 };
    page.leaf("path", &attributes[..dashed]);
}

/// Draws text at a position; `class` sets its alignment.
pub(super) fn label(page: &mut Markup, class: &str, x: f64, y: f64, text: &str) {
    page.element(
        "text",
        &[("class", class), ("x", &px(x)), ("y", &px(y))],
        text,
    );
}

/// Formats a position on an axis of time, in nanoseconds.
pub(super) fn moment(at: f64) -> String {
    if at == 0.0 {
        "0".to_owned()
    } else {
        Unit::Nanoseconds.write(at)
    }
}

/// Draws a rectangle; a side which is not positive is drawn as a hairline.
pub(super) fn rect(
    page: &mut Markup,
    class: &str,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
) {
    page.leaf(
        "rect",
        &[
            ("class", class),
            ("x", &px(x)),
            ("y", &px(y)),
            ("width", &px(width.max(0.1))),
            ("height", &px(height.max(0.1))),
        ],
    );
}

/// A plot's area with its axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) x_name: &'a str,
    pub(super) y_name: &'a str,
}

impl Frame<'_> {
    /// Draws lines at the ticks with their labels, and the names of the axes: that of y above its axis, so that it can be read
    /// horizontally.
    pub(super) fn draw(
        &self,
        page: &mut Markup,
        x_ticks: &[(f64, String)],
        y_ticks: &[(f64, String)],
    ) {
        for (value, text) in y_ticks {
            let y = self.y.at(*value);
            let path = format!("M{} {}H{}", px(self.left), px(y), px(self.right));
            page.leaf("path", &[("class", "grid"), ("d", &path)]);
            label(page, "end", self.left - 8.0, y + 4.5, text);
        }
        for (value, text) in x_ticks {
            let x = self.x.at(*value);
            let path = format!("M{} {}V{}", px(x), px(self.top), px(self.bottom));
            page.leaf("path", &[("class", "grid"), ("d", &path)]);
            label(page, "middle", x, self.bottom + 19.0, text);
        }
        let path = format!("M{} {}H{}", px(self.left), px(self.bottom), px(self.right));
        page.leaf("path", &[("class", "axis"), ("d", &path)]);
        label(page, "name", 0.0, self.top - 14.0, self.y_name);
        label(
            page,
            "name end",
            self.right,
            self.bottom + 40.0,
            self.x_name,
        );
    }
}
