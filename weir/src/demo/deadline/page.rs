//! HTML page of the scenario `deadline`.

use std::time::Duration;

use policy::{Span, Time};
use simulator::report::{
    Activity, Cell, Column, Course as Lines, Curve, Figure, Latencies, Part, Report as Page,
    Section, Series, Slots, Table, Turn,
};
use simulator::statistics::{Histogram, Percentile, Unit};

use super::super::replay::Outcome;
use super::super::workload::Workload;
use super::queue::{RequestHistory, RunHistory};
use super::report::Report;

/// Length of the window with the details of the queue.
const WINDOW: Duration = Duration::from_secs(2);
/// Requests listed for the window, per run.
const ROWS: usize = 40;
/// Span over which a share in time is taken.
const OVER: Duration = Duration::from_secs(3);
/// Points of a line over time.
const POINTS: u32 = 60;

/// Returns the page. Courses are in the order of the report's runs.
pub(super) fn html(report: &Report, workload: &Workload, courses: &[RunHistory]) -> String {
    let mut more = String::new();
    if let Some(why) = &report.disturbed_why {
        more = format!("Disturbed: {why}.");
    }
    let (from, inside) = inside(report, workload, courses);
    Page {
        title: "Deadline order on one instance".to_owned(),
        answer: vec![(report.sentence(), more)],
        scenario: format!(
            "Real programs on loopback: {} requests of a trace in {:.1} s to an instance that serves one at a time, first with Knative's settings, \
             then with Weir's.",
            workload.requests.len(),
            workload.span.as_secs_f64()
        ),
        date: crate::date::now(),
        seeds: Vec::new(),
        parameters: vec![
            ("load".to_owned(), format!("{:.2}", report.load)),
            ("slice of the trace".to_owned(), report.seed.to_string()),
            ("computed on".to_owned(), report.device.line()),
        ],
        sections: vec![
            figures(report),
            over_time(report, workload, courses),
            latencies(report, courses),
            inside,
            table(report),
        ],
        footer: format!(
            "Measured on this machine by weir demo; the queue from inside begins {:.1} s into the run.",
            from.as_secs_f64()
        ),
    }
    .html()
}

fn name(run: &str) -> &'static str {
    if run == "stock" {
        "Knative's settings"
    } else {
        "Weir"
    }
}

fn figures(report: &Report) -> Section {
    let each = report.bars().into_iter().map(|(name, value)| Figure {
        name: name.to_owned(),
        value,
        unit: Unit::Share,
        note: "answered 200 within the objective, of all that were sent".to_owned(),
    });
    Section {
        title: "Requests in time".to_owned(),
        text: String::new(),
        parts: vec![Part::Figures(each.collect())],
    }
}

fn over_time(report: &Report, workload: &Workload, courses: &[RunHistory]) -> Section {
    let span = workload.span.max(Duration::from_millis(1));
    let lines = report.runs.iter().zip(courses).map(|(run, course)| {
        let points = (1..=POINTS).map(|point| {
            let to = span * point / POINTS;
            let from = to.saturating_sub(OVER);
            let begin = course.requests.partition_point(|own| own.due < from);
            let end = course.requests.partition_point(|own| own.due <= to);
            let sent = &course.requests[begin..end];
            let hits = sent.iter().filter(|own| own.is_in_time).count();
            #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
            let share = if sent.is_empty() {
                f64::NAN
            } else {
                hits as f64 / sent.len() as f64
            };
            (to.as_secs_f64(), share)
        });
        Series {
            name: name(run.name).to_owned(),
            points: points.collect(),
        }
    });
    Section {
        title: "Over time".to_owned(),
        text: String::new(),
        parts: vec![Part::Course(Lines {
            title: "Share of requests in time".to_owned(),
            how: format!(
                "Of those that were sent within {} s before.",
                OVER.as_secs()
            ),
            unit: Unit::Share,
            is_stack: false,
            seconds: span.as_secs_f64(),
            marks: vec![0.0, 1.0],
            lines: lines.collect(),
        })],
    }
}

fn latencies(report: &Report, courses: &[RunHistory]) -> Section {
    let curves = report.runs.iter().zip(courses).map(|(run, course)| {
        let mut histogram = Histogram::new();
        let served = |own: &&RequestHistory| own.outcome == Some(Outcome::Served);
        for own in course.requests.iter().filter(served) {
            histogram.record(Span::from(own.ended - own.due));
        }
        Curve::new(name(run.name), &histogram, None)
    });
    Section {
        title: "Latencies".to_owned(),
        text: "Of requests that were answered 200, from the time they were due to be sent. Each request has an objective of its own, so a long \
               latency may be in time and a short one late."
            .to_owned(),
        parts: vec![Part::Latencies(Latencies {
            title: "Share of requests answered within a latency".to_owned(),
            percentile: Percentile::P99,
            curves: curves.collect(),
        })],
    }
}

/// Returns the begin of the window and its section: the queue where it was fullest with Knative's settings.
fn inside(report: &Report, workload: &Workload, courses: &[RunHistory]) -> (Duration, Section) {
    let from = courses
        .first()
        .map_or(Duration::ZERO, |course| course.busiest(WINDOW));
    let to = from + WINDOW;
    let time = |at: Duration| Time(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
    let mut turns = Vec::new();
    let mut rows = Vec::new();
    for (slot, (run, course)) in report.runs.iter().zip(courses).enumerate() {
        for (at, own) in course.requests.iter().enumerate() {
            let class = workload.requests[at].class;
            if let Some((begin, end)) = own.computed
                && begin < to
                && end > from
            {
                turns.push(Turn {
                    slot,
                    holder: class,
                    from: time(begin),
                    to: time(end),
                    activity: Activity::Compute,
                });
            }
        }
        let shown = course.requests.iter().enumerate();
        let shown = shown.filter(|(_, own)| (from..to).contains(&own.due));
        for (at, own) in shown.take(ROWS) {
            rows.push(row(workload, course, at, own, name(run.name)));
        }
    }
    let section = Section {
        title: "The queue from inside".to_owned(),
        text: format!(
            "{} s in which the most requests waited. A request's latest start is its arrival and its objective less its service time: one that \
             begins later is late. Weir begins the request with the least time left to its latest start; Knative's settings begin the oldest.",
            WINDOW.as_secs()
        ),
        parts: vec![
            Part::Slots(Slots {
                title: "Requests computed by the instance".to_owned(),
                from: time(from),
                to: time(to),
                slots: report.runs.iter().map(|run| run.name.to_owned()).collect(),
                holders: workload.classes.clone(),
                turns,
            }),
            Part::Folded(
                "Request by request".to_owned(),
                Table {
                    title: format!("Start times and their reasons; the first {ROWS} of each run"),
                    columns: vec![
                        Column::text("with"),
                        Column::text("class"),
                        Column::text("outcome"),
                        Column::text("reason for its start time"),
                        Column::number("arrived, s"),
                        Column::number("objective"),
                        Column::number("service"),
                        Column::number("waited"),
                        Column::number("answered after"),
                    ],
                    rows,
                },
            ),
        ],
    };
    (from, section)
}

fn row(
    workload: &Workload,
    course: &RunHistory,
    at: usize,
    own: &RequestHistory,
    with: &str,
) -> Vec<Cell> {
    #[expect(clippy::cast_precision_loss, reason = "to be read")]
    let span = |span: Duration| Cell::Number(span.as_nanos() as f64, Unit::Nanoseconds);
    let request = &workload.requests[at];
    let outcome = match own.outcome {
        Some(Outcome::Served) if own.is_in_time => "in time".to_owned(),
        Some(Outcome::Served) => "late".to_owned(),
        Some(Outcome::Refused) => "refused: the queue was full".to_owned(),
        Some(Outcome::Shed) => "shed: it could not be in time any more".to_owned(),
        Some(Outcome::Other(status)) => format!("answered {status}"),
        None => "no answer".to_owned(),
    };
    let waited = own.computed.map(|(begin, _)| begin.saturating_sub(own.due));
    let answered = own
        .outcome
        .is_some()
        .then(|| own.ended.saturating_sub(own.due));
    vec![
        Cell::Text(with.to_owned()),
        Cell::Text(workload.classes[request.class].clone()),
        Cell::Text(outcome),
        Cell::Text(course.why(workload, at).unwrap_or_else(|| "–".to_owned())),
        Cell::Text(format!("{:.3}", own.due.as_secs_f64())),
        span(request.objective),
        span(request.service),
        waited.map_or(Cell::Nothing, span),
        answered.map_or(Cell::Nothing, span),
    ]
}

fn table(report: &Report) -> Section {
    let columns = [
        "class",
        "with",
        "requests",
        "in time",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "p99 of all, ms",
        "in time a second",
        "refused",
        "shed",
    ];
    let columns = columns.iter().enumerate().map(|(at, name)| {
        if at < 2 {
            Column::text(*name)
        } else {
            Column::number(*name)
        }
    });
    let cells = |row: Vec<String>| row.into_iter().map(Cell::Text).collect::<Vec<_>>();
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    for run in &report.runs {
        rows.push(cells(run.total.row("all", name(run.name))));
    }
    let classes = report.runs.first().map_or(0, |run| run.classes.len());
    for class in 0..classes {
        for run in &report.runs {
            let class = &run.classes[class];
            rows.push(cells(class.figures.row(&class.name, name(run.name))));
        }
    }
    Section {
        title: "All figures".to_owned(),
        text: "Percentiles are of requests answered 200; \u{201c}of all\u{201d} counts those that were not as longer than all others, and a dash says that \
               the percentile is one of them."
            .to_owned(),
        parts: vec![Part::Table(Table {
            title: "By class".to_owned(),
            columns: columns.collect(),
            rows,
        })],
    }
}
