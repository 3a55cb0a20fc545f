//! SVG drawing of a ledger: time on the horizontal axis, one band for each resource, one colour for each process.

use markup::{Markup, fine_px, px};

use crate::bands::{Band, Bands, Kind, Rectangle};
use crate::ledger::Ledger;
use crate::names::Names;

/// Colours of processes, chosen to be distinguishable; they repeat for more processes.
const COLOURS: [&str; 10] = [
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f",
    "#ff9da7", "#79706e",
];
/// Largest number of processes in the legend.
const LEGEND_MAX: usize = 24;
/// Largest number of bands; those of a GPU are adjacent, and the first GPUs come first.
const BANDS_MAX: usize = 96;

const WIDTH: f64 = 1_280.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 90.0;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
const GAP: f64 = 16.0;
/// Number of columns in the legend.
const LEGEND_COLUMNS: usize = 6;

const fn height(kind: Kind) -> f64 {
    match kind {
        Kind::Sms => 88.0,
        Kind::Memory => 44.0,
        Kind::Link => 32.0,
    }
}

/// Text above the bands.
#[derive(Clone, Debug, Default)]
pub struct Heading {
    /// Title of the drawing, in large letters.
    pub title: String,
    /// Subtitle of the drawing, in small letters.
    pub subtitle: String,
}

/// Formats an amount with its unit.
#[must_use]
pub fn amount_text(kind: Kind, amount: u64) -> String {
    match kind {
        Kind::Sms => format!("{} SMs", trimmed(amount as f64 / 1e3)),
        Kind::Memory => bytes_text(amount),
        Kind::Link => format!("{}/s", rate_text(amount)),
    }
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

fn scaled(amount: u64, step: f64, units: [&str; 5]) -> String {
    let mut number = amount as f64;
    let mut unit = 0;
    while number >= step && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    format!("{} {}", trimmed(number), units[unit])
}

/// Formats bytes of memory with binary prefixes (powers of 1,024).
#[must_use]
pub fn bytes_text(bytes: u64) -> String {
    scaled(bytes, 1024.0, ["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Formats bytes on links with decimal prefixes (powers of 1,000), as vendors count them.
#[must_use]
pub fn rate_text(bytes: u64) -> String {
    scaled(bytes, 1000.0, ["B", "kB", "MB", "GB", "TB"])
}

/// Formats a time in ms, with the decimals that marks `step` ns apart require.
pub(crate) fn ms_text(ns: u64, step: u64) -> String {
    let decimals = match step {
        1_000_000.. => 0,
        100_000.. => 1,
        10_000.. => 2,
        1_000.. => 3,
        _ => 6,
    };
    format!("{:.decimals$}", ns as f64 / 1e6)
}

/// Returns the step and the marks of an axis: at most about `most`, at multiples of 1, 2 or 5 times a power of ten.
pub(crate) fn marks(from: u64, to: u64, most: u64) -> (u64, Vec<u64>) {
    let span = to.saturating_sub(from).max(1);
    let mut step = 1_u64;
    'found: loop {
        for factor in [1, 2, 5] {
            if span / (step * factor) <= most {
                step *= factor;
                break 'found;
            }
        }
        step *= 10;
    }
    let first = from.div_ceil(step) * step;
    let mut marks = Vec::new();
    let mut at = first;
    while at <= to {
        marks.push(at);
        at += step;
    }
    (step, marks)
}

/// Returns the amount that the height of a band represents. For memory, it is the next power of two above the largest
/// amount held, so that small amounts remain visible.
fn scale(band: &Band) -> u64 {
    if band.kind != Kind::Memory {
        return band.capacity;
    }
    let most = band
        .rectangles
        .iter()
        .map(|own| own.base + own.amount)
        .max();
    let most = most.unwrap_or(0).max(1);
    most.checked_next_power_of_two()
        .map_or(band.capacity, |scale| scale.min(band.capacity))
}

/// Rules of the drawing, for light and dark.
const STYLE: &str = "svg{color-scheme:light dark}text{fill:#333}.title{font-size:18px;font-weight:600}.note{fill:#595959}\
    .end{text-anchor:end}.tick{text-anchor:middle;fill:#595959}.small{font-size:11px;fill:#595959}\
    .paper{fill:#fff}.lane{fill:#f2f4f7;stroke:#ccd}.grid{stroke:#ddd}\
    @media (prefers-color-scheme:dark){text{fill:#e9ecef}.note,.tick,.small{fill:#a6aeb8}.paper{fill:#14171a}\
    .lane{fill:#20252a;stroke:#363c43}.grid{stroke:#363c43}}";

/// Returns the drawing as a complete SVG file.
#[must_use]
pub fn draw(ledger: &Ledger, names: &Names, heading: &Heading) -> String {
    let mut bands = Bands::new(ledger, names);
    let left_out = bands.bands.len().saturating_sub(BANDS_MAX);
    bands.bands.truncate(BANDS_MAX);
    let pids = ledger.pids();
    let rows = pids.len().min(LEGEND_MAX + 1).div_ceil(LEGEND_COLUMNS);
    let top = 78.0 + rows as f64 * 20.0;
    let plot_height: f64 = bands.bands.iter().map(|band| height(band.kind) + GAP).sum();
    let bottom = top + plot_height.max(40.0);
    let mut drawing = Drawing {
        svg: Markup::default(),
        ledger,
        pids: &pids,
    };
    drawing.begin(bottom + 44.0);
    drawing.heading(heading, &bands, left_out);
    drawing.legend();
    drawing.axis(top - 6.0, bottom);
    let mut y = top;
    for band in &bands.bands {
        drawing.band(band, y);
        y += height(band.kind) + GAP;
    }
    if bands.bands.is_empty() {
        drawing.label(
            LEFT + 12.0,
            top + 20.0,
            "note",
            "Nothing was held in this time.",
        );
    }
    drawing.svg.finish()
}

struct Drawing<'a> {
    svg: Markup,
    ledger: &'a Ledger,
    pids: &'a [u32],
}

impl Drawing<'_> {
    fn label(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let attributes = [("x", &*px(x)), ("y", &*px(y)), ("class", class)];
        self.svg.element("text", &attributes, text);
    }

    fn begin(&mut self, height: f64) {
        let view = format!("0 0 {} {}", px(WIDTH), px(height));
        self.svg.open(
            "svg",
            &[
                ("xmlns", "http://www.w3.org/2000/svg"),
                ("width", "100%"),
                ("viewBox", &view),
                ("font-family", "system-ui, sans-serif"),
                ("font-size", "12"),
            ],
        );
        self.svg.style(STYLE);
        let (width, height) = (px(WIDTH), px(height));
        self.svg.leaf(
            "rect",
            &[("width", &width), ("height", &height), ("class", "paper")],
        );
    }

    fn heading(&mut self, heading: &Heading, bands: &Bands, left_out: usize) {
        self.label(16.0, 28.0, "title", &heading.title);
        let mut note = heading.subtitle.clone();
        if let Some(length) = bands.averaged {
            let length = length as f64 / 1e6;
            note.push_str(&format!(
                " · averaged over {length:.3} ms: there are too many changes to draw each"
            ));
        }
        if left_out > 0 {
            note.push_str(&format!(" · {left_out} more bands are left out"));
        }
        self.label(16.0, 48.0, "note", &note);
    }

    fn colour(&self, pid: u32) -> &'static str {
        let place = self.pids.iter().position(|own| *own == pid).unwrap_or(0);
        COLOURS[place % COLOURS.len()]
    }

    /// Returns a label such as "weir, process 41".
    fn label_of(&self, pid: u32) -> String {
        match self.ledger.names.get(&pid) {
            Some(name) => format!("{name}, process {pid}"),
            None => format!("process {pid}"),
        }
    }

    fn legend(&mut self) {
        let width = (WIDTH - 32.0) / LEGEND_COLUMNS as f64;
        let pids = self.pids;
        for (place, pid) in pids.iter().enumerate().take(LEGEND_MAX + 1) {
            let x = 16.0 + (place % LEGEND_COLUMNS) as f64 * width;
            let y = 60.0 + (place / LEGEND_COLUMNS) as f64 * 20.0;
            if place == LEGEND_MAX {
                let more = format!("and {} more", pids.len() - LEGEND_MAX);
                self.label(x, y + 10.0, "note", &more);
                break;
            }
            let colour = self.colour(*pid);
            self.svg.leaf(
                "rect",
                &[
                    ("x", &px(x)),
                    ("y", &px(y)),
                    ("width", "12"),
                    ("height", "12"),
                    ("rx", "2"),
                    ("fill", colour),
                ],
            );
            let label = self.label_of(*pid);
            self.label(x + 18.0, y + 10.0, "pid", &label);
        }
    }

    fn x(&self, at: u64) -> f64 {
        let span = self.ledger.span().max(1) as f64;
        let since = at.clamp(self.ledger.from, self.ledger.to) - self.ledger.from;
        LEFT + since as f64 / span * PLOT
    }

    fn axis(&mut self, top: f64, bottom: f64) {
        let (step, marks) = marks(self.ledger.from, self.ledger.to, 10);
        for mark in marks {
            let x = self.x(mark);
            self.svg.leaf(
                "line",
                &[
                    ("x1", &px(x)),
                    ("y1", &px(top)),
                    ("x2", &px(x)),
                    ("y2", &px(bottom)),
                    ("class", "grid"),
                ],
            );
            self.label(x, bottom + 16.0, "tick", &ms_text(mark, step));
        }
        self.label(
            LEFT + PLOT / 2.0,
            bottom + 34.0,
            "tick",
            "ms since the start of the ledger",
        );
    }

    fn band(&mut self, band: &Band, y: f64) {
        let height = height(band.kind);
        self.svg.leaf(
            "rect",
            &[
                ("x", &px(LEFT)),
                ("y", &px(y)),
                ("width", &px(PLOT)),
                ("height", &px(height)),
                ("class", "lane"),
                ("fill-opacity", "0.7"),
                ("stroke-width", "0.5"),
            ],
        );
        self.label(LEFT - 10.0, y + height / 2.0 + 4.0, "end", &band.title);
        let scale = scale(band);
        let most = amount_text(band.kind, scale);
        self.label(LEFT + PLOT + 6.0, y + 10.0, "small", &most);
        if scale < band.capacity {
            let of = format!("of {}", amount_text(band.kind, band.capacity));
            self.label(LEFT + PLOT + 6.0, y + 23.0, "small", &of);
        }
        self.label(LEFT + PLOT + 6.0, y + height, "small", "0");
        for rectangle in &band.rectangles {
            self.rectangle(band, rectangle, y);
        }
    }

    fn rectangle(&mut self, band: &Band, one: &Rectangle, y: f64) {
        let height = height(band.kind);
        let part = |amount: u64| amount as f64 / scale(band) as f64 * height;
        let pid = self.ledger.processes[one.process].pid;
        let (x, to) = (self.x(one.from), self.x(one.to));
        let (base, own) = (part(one.base), part(one.amount));
        let (width, colour) = (to - x, self.colour(pid));
        let top = y + height - base - own;
        let (from, until) = (one.from as f64 / 1e6, one.to as f64 / 1e6);
        let amount = amount_text(band.kind, one.amount);
        let label = self.label_of(pid);
        self.svg.open(
            "rect",
            &[
                ("x", &fine_px(x)),
                ("y", &fine_px(top)),
                ("width", &fine_px(width)),
                ("height", &fine_px(own)),
                ("fill", colour),
            ],
        );
        let title = format!("{label}: {amount}, {from:.3} to {until:.3} ms");
        self.svg.element("title", &[], &title);
        self.svg.close();
    }
}

#[cfg(test)]
mod tests {
    use softgpu_wire::config::Config;
    use softgpu_wire::ledger::LineKind;

    use super::*;
    use crate::ledger::{Entry, Process};

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(
            marks(0, 100, 10),
            (10, (0..=10).map(|at| at * 10).collect())
        );
        let (step, all) = marks(1_234_567, 9_876_543, 10);
        assert_eq!(step, 1_000_000);
        assert_eq!(
            (all.first(), all.last()),
            (Some(&2_000_000), Some(&9_000_000))
        );
        assert_eq!(marks(7, 7, 10).1, [7]);
        assert_eq!(ms_text(2_500_000, 500_000), "2.5");
        assert_eq!(ms_text(2_000_000, 1_000_000), "2");
    }

    #[test]
    fn amounts_have_their_units() {
        assert_eq!(amount_text(Kind::Sms, 66_500), "66.5 SMs");
        assert_eq!(amount_text(Kind::Memory, 80 << 30), "80 GiB");
        assert_eq!(amount_text(Kind::Link, 55_000_000_000), "55 GB/s");
        assert_eq!(amount_text(Kind::Link, 999), "999 B/s");
    }

    #[test]
    fn small_amounts_of_memory_remain_visible() {
        let band = |kind, amount| Band {
            title: String::new(),
            kind,
            capacity: 80 << 30,
            rectangles: vec![Rectangle {
                process: 0,
                from: 0,
                to: 1,
                base: 0,
                amount,
            }],
        };
        assert_eq!(scale(&band(Kind::Memory, 3 << 20)), 4 << 20);
        assert_eq!(scale(&band(Kind::Memory, 79 << 30)), 80 << 30);
        assert_eq!(scale(&band(Kind::Sms, 3)), 80 << 30);
    }

    #[test]
    fn processes_have_distinct_colours_and_texts_are_escaped() {
        let entry = |process, from, to| Entry {
            kind: LineKind::Sms(0),
            process,
            amount: 66_000,
            from,
            to,
            command: Some(1),
        };
        let process = |pid| Process { pid, unit: 0 };
        let ledger = Ledger {
            processes: vec![process(41), process(42)],
            entries: vec![entry(0, 0, 1_000_000), entry(1, 500_000, 2_000_000)],
            names: [(41, "weir".to_owned())].into(),
            from: 0,
            to: 2_000_000,
        };
        let names = Names::new(std::path::Path::new("/nonexistent"), &Config::default()).unwrap();
        let heading = Heading {
            title: "<a> & \"b\"\u{1}".to_owned(),
            subtitle: String::new(),
        };
        let text = draw(&ledger, &names, &heading);
        assert!(
            text.contains("&lt;a&gt; &amp; &quot;b&quot;\u{FFFD}<"),
            "{text}"
        );
        assert!(
            text.contains("weir, process 41: 66 SMs, 0.000 to 1.000 ms"),
            "{text}"
        );
        assert!(text.contains(">weir, process 41<") && text.contains(">process 42<"));
        assert!(text.contains("prefers-color-scheme:dark") && text.contains("width=\"100%\""));
        assert!(text.contains(COLOURS[0]) && text.contains(COLOURS[1]));
        assert!(text.contains(">132 SMs<"));
        let empty = draw(&Ledger::default(), &names, &heading);
        assert!(empty.contains("Nothing was held"));
    }
}
