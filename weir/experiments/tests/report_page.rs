//! The page is well formed, fetches nothing, escapes all text, and is the same each time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "report_page/reader.rs"]
mod reader;
#[path = "report_page/sample.rs"]
mod sample;

use std::path::Path;

use policy::{Span, Time};
use reader::{Element, read};
use simulator::report::{
    Activity, Attainment, Busy, Curve, Latencies, Line, Part, Report, Section, Slots, Turn,
};
use simulator::statistics::{Histogram, Interval, Percentile, Timeline, Unit};
use testing::Random;

fn with(parts: Vec<Part>) -> Vec<Element> {
    let html = Report {
        sections: vec![Section {
            parts,
            ..Section::default()
        }],
        ..Report::default()
    };
    let elements = read(&html.html());
    drawn_inside(&elements);
    elements
}

/// Checks that every number of a drawing is finite, and that every rectangle is within its drawing.
fn drawn_inside(elements: &[Element]) {
    let mut view = (0.0, 0.0);
    for element in elements {
        if let Some(box_) = element.get("viewBox") {
            let sides: Vec<f64> = box_.split(' ').map(|n| n.parse().unwrap()).collect();
            view = (sides[2], sides[3]);
        }
        for (name, value) in &element.attributes {
            let drawn = ["d", "x", "y", "cx", "cy", "width", "height", "viewBox"];
            if drawn.contains(&name.as_str()) {
                let odd = value.contains("NaN") || value.contains("inf");
                assert!(!odd, "{name} is {value}");
            }
        }
        let number = |name| element.get(name).and_then(|n| n.parse::<f64>().ok());
        let (Some(x), Some(width)) = (number("x"), number("width")) else {
            continue;
        };
        let (y, height) = (number("y").unwrap(), number("height").unwrap());
        assert!(width > 0.0 && height > 0.0, "{element:?}");
        // A stripe may extend beyond the drawing by its width.
        let fits = x >= -3.1 && x + width <= view.0 + 3.1 && y >= 0.0 && y + height <= view.1;
        assert!(fits, "{element:?} in {view:?}");
    }
}

/// Compares the headings with the expected outline.
#[test]
fn a_page_with_every_part_has_its_outline() {
    let html = sample::report("").html();
    // Kept in the build directory, so that the page can be opened.
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    std::fs::write(&path, &html).unwrap();
    let elements = read(&html);
    drawn_inside(&elements);
    let titles: Vec<_> = elements
        .iter()
        .filter(|element| ["h1", "h2", "h3", "caption"].contains(&element.tag.as_str()))
        .map(|element| format!("{} {}", element.tag, element.text))
        .collect();
    assert_eq!(
        titles,
        [
            "h1 One node, from 160 to 640 functions",
            "h2 At a glance",
            "h3 Functions that keep their objective, over load",
            "caption functions that keep their objective, mean and 95 % interval",
            "caption Policies at 560 functions",
            "h2 Latency",
            "h3 By model",
            "h3 By function",
            "h2 Slots",
            "h3 GPU occupancy, 0.7 s",
            "h3 The same, one minute",
            "h3 How busy the GPUs were in the whole run",
            "h2 The papers&#39; claims",
            "h3 Structural claims",
        ]
    );
    let facts: Vec<_> = elements.iter().filter(|e| e.tag == "dd").collect();
    assert_eq!(facts[0].text, "2026-11-22");
    assert_eq!(facts[1].text, "20250707 to 20250716 (10)");
    let count = |tag: &str| elements.iter().filter(|e| e.tag == tag).count();
    assert_eq!(count("figure"), 6);
    assert_eq!(count("pattern"), 4, "one for each drawing of slots");
    // Each figure is drawn for both widths, with a title and a description for screen readers.
    let drawings: Vec<_> = elements
        .iter()
        .filter(|e| e.get("role") == Some("img"))
        .collect();
    assert_eq!(drawings.len(), 12);
    for drawing in drawings {
        assert!(drawing.get("aria-labelledby").is_some(), "{drawing:?}");
    }
    let described = elements.iter().filter(|e| e.tag == "desc");
    assert!(described.clone().all(|desc| desc.text.len() > 20));
    assert_eq!(described.count(), 12);
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    assert_eq!(sample::report("").html(), sample::report("").html());
    assert_ne!(sample::report("").html(), sample::report("x").html());
}

#[test]
fn a_page_fetches_nothing() {
    let html = sample::report("").html();
    let elements = read(&html);
    for element in &elements {
        let tag = element.tag.as_str();
        assert!(
            !["script", "link", "img", "iframe", "object", "use", "a"].contains(&tag),
            "{tag}"
        );
        for (name, value) in &element.attributes {
            assert!(!["src", "href", "style"].contains(&name.as_str()), "{name}");
            assert!(!name.starts_with("on"), "{name}");
            assert!(!value.contains("//"), "{value}");
        }
    }
    let style = &elements.iter().find(|e| e.tag == "style").unwrap().text;
    assert!(!style.contains("url(") && !style.contains("@import"));
    assert!(html.contains("default-src &#39;none&#39;"));
    assert!(html.len() < 1_000_000, "{} bytes", html.len());
}

/// Whatever text names contain, the elements are the same: text never becomes markup.
#[test]
fn hostile_names_change_no_element() {
    let hostile =
        "</title></style><script>alert(\"1\")</script>' onload='x' &lt;\u{0}\u{1b}\u{202e}]]>";
    let html = sample::report(hostile).html();
    let tags = |elements: Vec<Element>| -> Vec<_> {
        let names = |e: &Element| e.attributes.iter().map(|(name, _)| name.clone()).collect();
        let shape = |e: Element| -> (String, Vec<String>) { (e.tag.clone(), names(&e)) };
        elements.into_iter().map(shape).collect()
    };
    // Of the same length, since text that does not fit is omitted.
    let calm = "x".repeat(hostile.chars().count());
    assert_eq!(tags(read(&html)), tags(read(&sample::report(&calm).html())));
    assert!(!html.contains("<script") && !html.contains('\u{202e}') && !html.contains('\u{0}'));
    let escaped = html.matches("&lt;script&gt;alert(&quot;1&quot;)").count();
    assert!(escaped >= 20, "it is there {escaped} times, as text");
    assert!(html.contains("&amp;lt;"), "references in text are escaped");
}

#[test]
fn empty_parts_are_drawn() {
    let empty = Histogram::new();
    let elements = with(vec![
        Part::Latencies(Latencies {
            title: String::new(),
            percentile: Percentile::P98,
            curves: vec![Curve::new("no requests", &empty, None)],
        }),
        Part::Attainment(Attainment {
            title: String::new(),
            load_name: String::new(),
            load_unit: Unit::Count,
            share_name: String::new(),
            mark: None,
            chosen: Some((f64::NAN, "nowhere".to_owned())),
            lines: Vec::new(),
        }),
        Part::Slots(Slots {
            title: String::new(),
            from: Time(5),
            to: Time(5),
            slots: vec!["alone".to_owned()],
            holders: Vec::new(),
            turns: vec![Turn {
                slot: 3,
                holder: 9,
                from: Time(0),
                to: Time(9),
                activity: Activity::Load,
            }],
        }),
        Part::Busy(Busy {
            title: String::new(),
            slots: vec!["a".to_owned(), "b".to_owned()],
            timeline: Timeline::new(Time(0), 1, 2, Span(1)).unwrap(),
        }),
        Part::Figures(Vec::new()),
    ]);
    let texts: Vec<_> = elements.iter().map(|e| e.text.as_str()).collect();
    assert!(texts.contains(&"No request was answered."));
    assert!(texts.contains(&"Nothing was run."));
}

#[test]
fn a_single_value_is_drawn() {
    let mut one = Histogram::new();
    one.record(Span(0));
    with(vec![
        Part::Latencies(Latencies {
            title: String::new(),
            percentile: Percentile::P50,
            curves: vec![Curve::new("one", &one, Some(Span(u64::MAX)))],
        }),
        Part::Attainment(Attainment {
            title: String::new(),
            load_name: String::new(),
            load_unit: Unit::Ratio,
            share_name: String::new(),
            mark: Some((2.0, "beyond".to_owned())),
            chosen: None,
            lines: vec![Line {
                name: String::new(),
                points: vec![(1.0, Interval::of(&[1.0, 0.0]).unwrap())],
            }],
        }),
    ]);
}

/// For any ledger, long turns are drawn by themselves and the rest as shades, nothing is outside the drawing, and the
/// page does not grow with the ledger.
#[test]
fn any_ledger_fits_its_drawing() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let length = 1_000 + random.below(1_000_000);
        let count = random.below(3_000);
        let turns: Vec<Turn> = (0..count)
            .map(|_| {
                let from = random.below(length * 2);
                Turn {
                    slot: random.index(4),
                    holder: random.index(12),
                    from: Time(from),
                    to: Time(from + random.below(length / 20)),
                    activity: if random.below(3) == 0 {
                        Activity::Load
                    } else {
                        Activity::Compute
                    },
                }
            })
            .collect();
        let elements = with(vec![Part::Slots(Slots {
            title: "any".to_owned(),
            from: Time(length / 3),
            to: Time(length),
            slots: (0..3).map(|n| format!("slot {n}")).collect(),
            holders: (0..11).map(|n| format!("holder {n}")).collect(),
            turns: turns.clone(),
        })]);
        let description = &elements.iter().find(|e| e.tag == "desc").unwrap().text;
        for slot in 0..3 {
            let share = |activity| {
                let of = turns
                    .iter()
                    .filter(|t| t.slot == slot && t.activity == activity);
                let known = of.filter(|t| t.holder < 11);
                let held = known.map(|t| {
                    let (from, to) = (t.from.0.max(length / 3), t.to.0.min(length));
                    to.saturating_sub(from)
                });
                held.sum::<u64>() as f64 / (length - length / 3) as f64 * 100.0
            };
            let (computes, loads) = (share(Activity::Compute), share(Activity::Load));
            let expected = format!("slot {slot}: computing {computes:.0} %, loading {loads:.0} %.");
            assert!(
                description.contains(&expected),
                "seed {seed}: {expected} in {description}"
            );
        }
        // Wide: the lane is 824 units for two thirds of the length.
        let unit = (length - length / 3) as f64 / 824.0;
        let mut long = 0;
        for turn in &turns {
            let (from, to) = (turn.from.0.max(length / 3), turn.to.0.min(length));
            let known = turn.slot < 3 && turn.holder < 11 && from < to;
            long += usize::from(known && (to - from) as f64 / unit >= 1.5 + 1e-6);
        }
        let narrow = elements
            .iter()
            .position(|e| e.get("class") == Some("narrow"))
            .unwrap();
        let drawn = elements[..narrow]
            .iter()
            .filter(|e| {
                e.get("class")
                    .is_some_and(|class| class.starts_with("turn "))
            })
            .count();
        assert!(drawn.abs_diff(long) <= 1, "seed {seed}: {drawn} and {long}");
    }
    let turns = (0..200_000_u64).map(|n| Turn {
        slot: 0,
        holder: 0,
        from: Time(n * 10),
        to: Time(n * 10 + 5),
        activity: Activity::Compute,
    });
    let elements = with(vec![Part::Slots(Slots {
        title: "many".to_owned(),
        from: Time(0),
        to: Time(2_000_000),
        slots: vec!["one".to_owned()],
        holders: vec!["many".to_owned()],
        turns: turns.collect(),
    })]);
    assert!(elements.len() < 600, "{} elements", elements.len());
}

/// Contrast by the rule of WCAG 2: 4.5 for text, 3 for lines and areas, on light and on dark paper.
#[test]
fn text_and_lines_have_enough_contrast() {
    let html = sample::report("").html();
    let blocks: Vec<&str> = html.split(":root {").skip(1).collect();
    assert_eq!(blocks.len(), 2, "light and dark");
    for block in blocks {
        let rules = block.split('}').next().unwrap();
        let colour = |name: &str| {
            let value = rules.split(&format!("--{name}: #")).nth(1).unwrap();
            luminance(&value[..6])
        };
        let contrast = |a: f64, b: f64| (a.max(b) + 0.05) / (a.min(b) + 0.05);
        let paper = colour("paper");
        for name in ["ink", "soft", "good", "fair", "poor", "plain"] {
            let found = contrast(colour(name), paper);
            assert!(found >= 4.5, "{name}: {found}");
            // Key figures are drawn on a lane.
            assert!(contrast(colour(name), colour("lane")) >= 4.5 || name != "soft");
        }
        for look in 0..8 {
            let found = contrast(colour(&format!("c{look}")), paper);
            // Names are drawn on them, in the colour of the paper.
            assert!(found >= 4.5, "c{look}: {found}");
        }
    }
}

fn luminance(hex: &str) -> f64 {
    let part = |at: usize| {
        let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        if value <= 0.040_45 {
            value / 12.92
        } else {
            libm::pow((value + 0.055) / 1.055, 2.4)
        }
    };
    0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4)
}
