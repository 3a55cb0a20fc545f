//! The verdict as text for a terminal, and the trial's progress.

use std::cell::RefCell;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::load::Load;
use super::rounds::Trial;
use super::verdict::{Counts, Verdict, Winner};
use super::{Arguments, latencies};
use crate::demo::percentile;
use crate::figure_table::{FigureColumn, FigureTable, column};
use crate::proxy::Late;
use crate::terminal::{Painter, Style, bar, wrap};

/// Interval between progress lines in a log.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of a trial on stderr: a bar on a terminal, else lines.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    rounds: usize,
    /// When the next line is due; `None` on a terminal.
    line_due: Option<RefCell<Instant>>,
}

impl Progress {
    /// Creates the progress of a load that is sent with both settings; shows nothing unless `is_wanted`.
    pub(super) fn new(load: &Load, is_wanted: bool) -> Self {
        let requests: usize = load.rounds.iter().map(Vec::len).sum();
        let is_terminal = std::io::stderr().is_terminal();
        let bar = if is_wanted && is_terminal {
            let bar = ProgressBar::new(2 * requests as u64);
            let template = "{msg:>18} {wide_bar} {percent} %, {elapsed}";
            match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        } else {
            ProgressBar::hidden()
        };
        Self {
            bar,
            rounds: load.rounds.len(),
            line_due: (is_wanted && !is_terminal)
                .then(|| RefCell::new(Instant::now() + LINE_EVERY)),
        }
    }

    /// Counts one more answer, with the settings of this name, in a round counted from 0.
    pub(super) fn advance(&self, name: &'static str, round: usize) {
        let message = format!("round {} of {}, {name}", round + 1, self.rounds);
        if let Some(due) = &self.line_due
            && Instant::now() >= *due.borrow()
        {
            *due.borrow_mut() = Instant::now() + LINE_EVERY;
            // A failed write to stderr cannot be reported.
            let _written = writeln!(std::io::stderr(), "{message}");
        }
        self.bar.set_message(message);
        self.bar.inc(1);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Columns of the result table.
const COLUMNS: [FigureColumn; 10] = [
    column("settings", true, ""),
    column("requests", false, "sent"),
    column(
        "in time",
        true,
        "answered without a server error within the objective",
    ),
    column("p50", true, "ms from when it was due, of those answered"),
    column("p99", true, "likewise"),
    column(
        "p99 all",
        true,
        "of all that were sent; – : it is of one without an answer of the server",
    ),
    column("refused", true, "503: the queue was full"),
    column("shed", true, "503: it could not be in time any more"),
    column(
        "failed",
        false,
        "a server error, or the server was not there",
    ),
    column(
        "lost",
        false,
        "no whole answer within a minute, or twice the objective",
    ),
];

/// Returns the verdict as text. `width` is the terminal's number of columns, `None` if stdout is no terminal.
pub(super) fn of(
    arguments: &Arguments,
    load: &Load,
    trial: &Trial,
    verdict: &Verdict,
    width: Option<usize>,
    painter: Painter,
) -> String {
    let rows = [(0, "stock", &verdict.stock), (1, "weir", &verdict.weir)];
    let rows = rows.map(|(settings, name, counts)| row(trial, settings, name, counts));
    let table = FigureTable::new(&COLUMNS, 1, &rows, width);
    let columns = table.width();
    let mut text = String::new();
    let mut line = |own: &str| {
        text.push_str(own);
        text.push('\n');
    };
    line(&painter.paint(Style::Strong, &wrap(&verdict.sentence, columns, 0)));
    if verdict.verdict != Winner::NoDifference {
        let why = format!("{}.", capital(&verdict.why));
        line(&wrap(&why, columns, 0));
    }
    for warning in &verdict.warnings {
        let warning = format!("Warning: {warning}.");
        line(&painter.paint(Style::Poor, &wrap(&warning, columns, 2)));
    }
    line("");
    let in_time = &verdict.in_time;
    for (name, share, style) in [
        ("Knative's settings", in_time.stock.mean, Style::Poor),
        ("Weir", in_time.weir.mean, Style::Good),
    ] {
        line(&bar(name, share, style, painter));
    }
    line("");
    let requests: usize = load.rounds.iter().map(Vec::len).sum();
    let takes = verdict.server.execution_ms.map_or_else(
        || "answered nothing".to_owned(),
        |ms| format!("takes {ms:.1} ms a request"),
    );
    line(&wrap(
        &format!(
            "{requests} requests with each setting, in {} rounds of {:.1} s that alternate; objective {:?}; {} at the server at once. The server {takes} \
             and was busy {:.0} % of the time with Weir. Ranges are 95 % intervals over rounds.",
            load.rounds.len(),
            load.length.as_secs_f64(),
            arguments.slo(),
            arguments.concurrency,
            verdict.server.busy * 100.0
        ),
        columns,
        0,
    ));
    line("");
    line(table.text());
    line("");
    line(table.legend(painter).trim_end());
    if verdict.verdict == Winner::Weir {
        line("");
        let mut kept = format!(
            "To keep it: weir proxy --target {} --slo {:?} --concurrency {}",
            arguments.target.authority,
            arguments.slo(),
            arguments.concurrency
        );
        if arguments.late == Late::Serve {
            kept.push_str(" --late serve");
        }
        if let Some(depth) = arguments.queue_depth {
            kept.push_str(&format!(" --queue-depth {depth}"));
        }
        kept.push_str("; on Knative: docs/install.md.");
        line(&wrap(&kept, columns, 0));
    }
    text
}

/// Returns the text with its first letter in upper case.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|own| own.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Returns the cells of one setting's row, in the order of the columns.
pub(super) fn row(trial: &Trial, settings: usize, name: &str, counts: &Counts) -> Vec<String> {
    let (sorted, all) = latencies(trial, settings);
    let ms = |percent: usize, count: usize| {
        percentile(&sorted, percent, count).map_or_else(
            || "–".to_owned(),
            |latency| format!("{:.0}", latency.as_secs_f64() * 1e3),
        )
    };
    vec![
        name.to_owned(),
        counts.requests.to_string(),
        format!("{:.1} %", counts.share() * 100.0),
        ms(50, sorted.len()),
        ms(99, sorted.len()),
        ms(99, all),
        counts.refused.to_string(),
        counts.shed.to_string(),
        counts.failed.to_string(),
        counts.lost.to_string(),
    ]
}
