//! What all plots share: a figure with its words, drawn once for wide pages and once for narrow ones; a frame with
//! axes; colours that are told apart also by dashes.

use super::axis::Axis;
use super::markup::{Markup, px};
use crate::statistics::Unit;

/// As many lines have a look of their own.
pub(super) const LOOKS: usize = 8;
/// A dash for each look; the first is solid.
const DASHES: [&str; LOOKS] = [
    "", "7 4", "2 3", "10 3 2 3", "4 4", "12 5", "1 4", "6 2 1 2",
];

/// How large a drawing is, in its own units: about pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) width: f64,
    /// For a telephone.
    pub(super) narrow: bool,
    /// For names that must differ within the page.
    pub(super) figure: usize,
}

impl Size {
    /// A name that no other drawing has.
    pub(super) fn name(&self, what: &str) -> String {
        let which = if self.narrow { "n" } else { "w" };
        format!("f{}{which}-{what}", self.figure)
    }
}

/// What a figure says in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words<'a> {
    pub(super) title: &'a str,
    /// How to read it.
    pub(super) how: &'a str,
    /// What is to be seen, for who does not see it.
    pub(super) seen: &'a str,
}

/// A figure: its title, what `before` writes, and its two drawings of the height that `draw` is asked for first.
pub(super) fn figure(
    page: &mut Markup,
    words: Words<'_>,
    before: impl FnOnce(&mut Markup),
    height: impl Fn(&Size) -> f64,
    draw: impl Fn(&mut Markup, &Size),
) {
    let figure = page.next_figure();
    page.open("figure", &[]);
    page.open("figcaption", &[]);
    page.element("h3", &[], words.title);
    if !words.how.is_empty() {
        page.element("p", &[("class", "how")], words.how);
    }
    page.close();
    before(page);
    for (narrow, width, class) in [(false, 960.0, "wide"), (true, 360.0, "narrow")] {
        let size = Size {
            width,
            narrow,
            figure,
        };
        let (title, seen) = (size.name("title"), size.name("seen"));
        let (named, view) = (
            format!("{title} {seen}"),
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
        page.element("title", &[("id", &title)], words.title);
        page.element("desc", &[("id", &seen)], words.seen);
        draw(page, &size);
        page.close();
    }
    page.close();
}

/// The key of a line, for a legend.
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

/// A line of a look.
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

/// Text at a place; `class` says how it is aligned.
pub(super) fn label(page: &mut Markup, class: &str, x: f64, y: f64, text: &str) {
    page.element(
        "text",
        &[("class", class), ("x", &px(x)), ("y", &px(y))],
        text,
    );
}

/// A place on an axis of time, in nanoseconds.
pub(super) fn moment(at: f64) -> String {
    if at == 0.0 {
        "0".to_owned()
    } else {
        Unit::Nanoseconds.write(at)
    }
}

/// A rectangle; a side that is not positive is drawn as a hair.
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

/// Axes around a plot.
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
    /// Lines at the ticks with their labels, and the names of the axes: that of y above it, so that nobody has to
    /// turn their head.
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
