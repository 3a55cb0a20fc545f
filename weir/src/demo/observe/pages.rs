//! Every dashboard as one HTML page, panel by panel, from its committed JSON and Prometheus' answers.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use dashboards::boards::boards;
use serde_json::Value;
use simulator::report::{Cell, Column, Course, Figure, Part, Report, Section, Series, Table};
use simulator::statistics::Unit;

use super::prometheus::{Prometheus, Window};
use super::queries::{shown, variables};

/// Approximate number of points of a line.
const POINTS: f64 = 120.0;

/// Checks that pages can be written to a folder: it or its parent exists.
///
/// # Errors
/// The path is not a folder, or its parent is missing.
pub(super) fn check(option: &str, folder: &Path) -> anyhow::Result<()> {
    let name = folder.display();
    if folder.exists() {
        ensure!(folder.is_dir(), "{option} {name}: is not a folder");
        return Ok(());
    }
    check_parent(option, folder)
}

/// Checks that a file's parent folder exists.
pub(super) fn check_parent(option: &str, path: &Path) -> anyhow::Result<()> {
    let name = path.display();
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let is_there = parent.is_none_or(Path::is_dir);
    ensure!(is_there, "{option} {name}: the folder above it is missing");
    Ok(())
}

/// Writes `UID.html` for each dashboard. Returns the number of pages.
///
/// # Errors
/// The file which cannot be written.
pub(super) async fn write(
    prometheus: &mut Prometheus,
    folder: &Path,
    window: Window,
) -> anyhow::Result<usize> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let window = Window {
        step: (window.seconds / POINTS).ceil().max(1.0),
        ..window
    };
    let all = boards();
    for board in &all {
        let json = board.json();
        let report = Report {
            title: board.title.to_owned(),
            scenario: board.description.to_owned(),
            parameters: vec![
                ("dashboard".to_owned(), board.uid.to_owned()),
                ("Prometheus".to_owned(), prometheus.version.clone()),
            ],
            sections: sections(prometheus, &json, window).await?,
            footer: "Drawn by weir demo --observe from the dashboard's JSON and Prometheus' answers; Grafana draws the same queries in its own way."
                .to_owned(),
            ..Report::default()
        };
        let path = folder.join(format!("{}.html", board.uid));
        fs::write(&path, report.html())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(all.len())
}

async fn sections(
    prometheus: &mut Prometheus,
    board: &Value,
    window: Window,
) -> anyhow::Result<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    for panel in board["panels"].as_array().into_iter().flatten() {
        let title = text(&panel["title"]);
        if panel["type"] == "row" {
            sections.push(Section {
                title,
                ..Section::default()
            });
            continue;
        }
        let part = match panel["type"].as_str() {
            Some("stat") => figures(prometheus, panel).await?,
            Some("table") => table(prometheus, panel).await?,
            _ => course(prometheus, panel, window).await?,
        };
        let Some(section) = sections.last_mut() else {
            continue;
        };
        match (section.parts.last_mut(), part) {
            // Figures of consecutive panels share a row.
            (Some(Part::Figures(known)), Part::Figures(more)) => known.extend(more),
            (_, part) => section.parts.push(part),
        }
    }
    Ok(sections)
}

/// Returns the queries of a panel, each with its legend.
fn targets(panel: &Value) -> Vec<(String, String)> {
    let chosen = shown();
    let all = panel["targets"].as_array().into_iter().flatten();
    all.map(|target| {
        (
            variables(&chosen).fill(&text(&target["expr"])),
            text(&target["legendFormat"]),
        )
    })
    .collect()
}

async fn figures(prometheus: &mut Prometheus, panel: &Value) -> anyhow::Result<Part> {
    let unit = unit(panel);
    let mut all = Vec::new();
    for (expr, _) in targets(panel) {
        let samples = prometheus.query(&expr).await?.unwrap_or_default();
        let value = samples.first().map_or(f64::NAN, |sample| sample.value);
        all.push(Figure {
            name: text(&panel["title"]),
            value: scaled(unit, value),
            unit,
            note: String::new(),
        });
    }
    Ok(Part::Figures(all))
}

async fn table(prometheus: &mut Prometheus, panel: &Value) -> anyhow::Result<Part> {
    let unit = unit(panel);
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for (expr, legend) in targets(panel) {
        for sample in prometheus.query(&expr).await?.unwrap_or_default() {
            let name = if legend.contains("{{") {
                named(&legend, &sample.labels)
            } else {
                // The function first, such as "default/resnet".
                let own = ["namespace", "function"].map(|key| sample.labels[key].as_str());
                let own = own.into_iter().flatten().collect::<Vec<_>>().join("/");
                let others = sample.labels.as_object().into_iter().flatten();
                let others = others.filter(|(key, _)| *key != "namespace" && *key != "function");
                let others = others.map(|(_, value)| text(value));
                let parts = std::iter::once(own).chain(others).chain([legend.clone()]);
                let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
                parts.join(" ")
            };
            rows.push(vec![
                Cell::Text(name),
                Cell::Number(scaled(unit, sample.value), unit),
            ]);
        }
    }
    Ok(Part::Table(Table {
        title: text(&panel["title"]),
        columns: vec![Column::text("series"), Column::number("value")],
        rows,
    }))
}

async fn course(
    prometheus: &mut Prometheus,
    panel: &Value,
    window: Window,
) -> anyhow::Result<Part> {
    // A heatmap's unit is that of its bounds.
    let unit = if panel["type"] == "heatmap" {
        Unit::PerSecond
    } else {
        unit(panel)
    };
    let mut lines = Vec::new();
    for (expr, legend) in targets(panel) {
        for (labels, points) in prometheus.range(&expr, window).await?.unwrap_or_default() {
            let points = points
                .into_iter()
                .map(|(at, value)| (at, scaled(unit, value)));
            lines.push(Series {
                name: named(&legend, &labels),
                points: points.collect(),
            });
        }
    }
    let is_heatmap = panel["type"] == "heatmap";
    if is_heatmap {
        lines = buckets(lines);
    }
    let custom = &panel["fieldConfig"]["defaults"];
    let steps = custom["thresholds"]["steps"]
        .as_array()
        .into_iter()
        .flatten();
    let marks = steps.filter_map(|step| step["value"].as_f64());
    Ok(Part::Course(Course {
        title: text(&panel["title"]),
        how: text(&panel["description"]),
        unit,
        is_stack: is_heatmap || custom["custom"]["stacking"]["mode"] == "normal",
        seconds: window.seconds,
        marks: marks.map(|mark| scaled(unit, mark)).collect(),
        lines,
    }))
}

/// Returns the count of each bucket, named by its upper bound in seconds: a histogram's buckets are cumulative.
fn buckets(mut lines: Vec<Series>) -> Vec<Series> {
    let bound = |own: &Series| own.name.parse().unwrap_or(f64::INFINITY);
    lines.sort_by(|a, b| bound(a).total_cmp(&bound(b)));
    let mut below: Option<Vec<(f64, f64)>> = None;
    let mut own = Vec::new();
    for line in lines {
        let points = line.points.iter().enumerate().map(|(index, &(at, value))| {
            let less = below.as_ref().and_then(|below| below.get(index));
            (at, (value - less.map_or(0.0, |point| point.1)).max(0.0))
        });
        let points: Vec<_> = points.collect();
        below = Some(line.points);
        if points.iter().any(|point| point.1 > 0.0) {
            own.push(Series {
                name: format!("up to {} s", line.name),
                points,
            });
        }
    }
    own
}

/// Inserts labels into a legend.
fn named(legend: &str, labels: &Value) -> String {
    let mut name = legend.to_owned();
    for (key, value) in labels.as_object().into_iter().flatten() {
        name = name.replace(&format!("{{{{{key}}}}}"), &text(value));
    }
    if name.is_empty() {
        "value".to_owned()
    } else {
        name
    }
}

fn unit(panel: &Value) -> Unit {
    match panel["fieldConfig"]["defaults"]["unit"].as_str() {
        Some("percentunit") => Unit::Share,
        Some("s") => Unit::Nanoseconds,
        Some("bytes") => Unit::Bytes,
        Some("reqps" | "cps") => Unit::PerSecond,
        _ => Unit::Plain,
    }
}

/// Converts seconds to the report's nanoseconds; other units are unchanged.
fn scaled(unit: Unit, value: f64) -> f64 {
    if unit == Unit::Nanoseconds {
        value * 1e9
    } else {
        value
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
