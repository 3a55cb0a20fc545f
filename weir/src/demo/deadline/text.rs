//! The result as text for a terminal: a sentence, bars, a table, and its legend.

use super::super::workload::Workload;
use super::report::Report;
use crate::figure_table::{FigureColumn, FigureTable, column};
use crate::terminal::{Painter, Style, bar, wrap};

/// Columns of the result table.
const COLUMNS: [FigureColumn; 11] = [
    column("class", true, ""),
    column("run", true, ""),
    column("requests", false, "sent"),
    column(
        "in time",
        true,
        "answered 200 within the objective, of all that were sent",
    ),
    column(
        "p50",
        true,
        "ms from when it was due, of those answered 200",
    ),
    column("p95", false, "likewise"),
    column("p99", true, "likewise"),
    column(
        "p99 all",
        true,
        "of all that were sent; – : it is of one that was never answered 200",
    ),
    column("in time/s", false, "answered in time, a second"),
    column("refused", true, "503: the queue was full"),
    column("shed", true, "503: it could not be in time any more"),
];

/// Returns the text. `width` is the terminal's number of columns, `None` if stdout is no terminal.
pub(super) fn of(
    report: &Report,
    workload: &Workload,
    width: Option<usize>,
    painter: Painter,
) -> String {
    let table = FigureTable::new(&COLUMNS, 2, &rows(report, workload), width);
    let columns = table.width();
    let mut text = String::new();
    let mut line = |own: &str| {
        text.push_str(own);
        text.push('\n');
    };
    line(&painter.paint(Style::Strong, &wrap(&report.sentence(), columns, 0)));
    if let Some(why) = &report.disturbed_why {
        let why = format!("Disturbed: {why}.");
        line(&painter.paint(Style::Poor, &wrap(&why, columns, 0)));
    }
    line("");
    let styles = [Style::Poor, Style::Good, Style::Faint];
    for ((name, share), style) in report.bars().into_iter().zip(styles) {
        line(&bar(name, share, style, painter));
    }
    line("");
    let asked = format!(
        "One instance, {} requests in {:.1} s, load {:.2}, slice {}; containerConcurrency 1, queue depth 10; a request's latest start is its \
         objective less its service time.",
        workload.requests.len(),
        workload.span.as_secs_f64(),
        report.load,
        report.seed,
    );
    line(&wrap(&asked, columns, 0));
    line("");
    line(table.text());
    line("");
    line(&table.legend(painter));
    line(&painter.paint(Style::Faint, &wrap(&report.device.line(), columns, 0)));
    if !report.every_request_was_answered_once() {
        line(&painter.paint(Style::Poor, "Not every request was answered exactly once."));
    }
    text
}

/// Returns rows of all requests with each setting, then of each class.
fn rows(report: &Report, workload: &Workload) -> Vec<Vec<String>> {
    let total = report.runs.iter().map(|run| run.total.row("all", run.name));
    let mut rows: Vec<Vec<String>> = total.collect();
    for class in 0..workload.classes.len() {
        for run in &report.runs {
            let class = &run.classes[class];
            rows.push(class.figures.row(&class.name, run.name));
        }
    }
    rows
}
