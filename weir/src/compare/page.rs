//! HTML page of the verdict.

use policy::Span;
use simulator::report::{
    Cell, Column, Course, Curve, Figure, Latencies, Part, Report, Section, Series, Table,
};
use simulator::statistics::{Histogram, Interval, Percentile, Unit};

use super::Arguments;
use super::client::Outcome;
use super::load::Load;
use super::rounds::Trial;
use super::text;
use super::verdict::{Counts, Verdict};

/// Points per round in the line over time.
const POINTS: u32 = 12;
const NAMES: [&str; 2] = ["Knative's settings", "Weir"];

/// Returns the HTML page of a trial: figures, plots and warnings.
pub(super) fn html(arguments: &Arguments, load: &Load, trial: &Trial, verdict: &Verdict) -> String {
    let warnings = verdict
        .warnings
        .iter()
        .map(|own| format!("Warning: {own}."));
    let requests: usize = load.rounds.iter().map(Vec::len).sum();
    let mut parameters = vec![
        ("server".to_owned(), arguments.target.authority.clone()),
        ("objective".to_owned(), format!("{:?}", arguments.slo())),
        (
            "at the server at once".to_owned(),
            arguments.concurrency.to_string(),
        ),
        (
            "rounds".to_owned(),
            format!(
                "{} of {:.1} s each",
                trial.rounds.len(),
                load.length.as_secs_f64()
            ),
        ),
    ];
    if let Some(rate) = arguments.rate {
        parameters.push(("rate".to_owned(), format!("{rate} a second")));
    }
    for path in [&arguments.trace, &arguments.requests]
        .into_iter()
        .flatten()
    {
        parameters.push(("requests of".to_owned(), path.display().to_string()));
    }
    Report {
        title: "Would Weir help this server?".to_owned(),
        answer: vec![(
            verdict.sentence.clone(),
            warnings.collect::<Vec<_>>().join(" "),
        )],
        scenario: format!(
            "{requests} requests with each setting, sent when they were due whatever had been answered, in rounds that alternate."
        ),
        date: crate::date::now(),
        seeds: Vec::new(),
        parameters,
        sections: vec![
            figures(verdict),
            over_time(load, trial),
            latencies(arguments, trial),
            rounds(trial),
            total(trial, verdict),
        ],
        footer: "Measured on this machine by weir compare. Latencies count from when a request was due to be sent.".to_owned(),
    }
    .html()
}

fn figures(verdict: &Verdict) -> Section {
    let share = |name: &str, own: Interval| Figure {
        name: format!("{name}, in time"),
        value: own.mean,
        unit: Unit::Share,
        note: format!(
            "{}, 95 % interval over {} rounds",
            Unit::Share.write_range(own.low, own.high),
            own.seeds
        ),
    };
    let mut each = vec![
        share(NAMES[0], verdict.in_time.stock),
        share(NAMES[1], verdict.in_time.weir),
        Figure {
            name: "the server was busy".to_owned(),
            value: verdict.server.busy,
            unit: Unit::Share,
            note: "of the time, with Weir".to_owned(),
        },
    ];
    if let Some(ms) = verdict.server.execution_ms {
        each.push(Figure {
            name: "it takes, a request".to_owned(),
            value: ms,
            unit: Unit::Milliseconds,
            note: "on average, without waiting".to_owned(),
        });
    }
    Section {
        title: "What it rests on".to_owned(),
        text: format!("{}.", text::capital(&verdict.why)),
        parts: vec![Part::Figures(each)],
    }
}

/// Joins the rounds of each setting, as if each had had its own server.
fn over_time(load: &Load, trial: &Trial) -> Section {
    let length = load.length.as_secs_f64();
    let lines = NAMES.iter().enumerate().map(|(settings, name)| {
        let points = trial
            .answers
            .iter()
            .enumerate()
            .flat_map(|(round, answers)| {
                let own = &answers[settings];
                (0..POINTS).map(move |point| {
                    let (from, to) = (
                        length * f64::from(point) / f64::from(POINTS),
                        length * f64::from(point + 1) / f64::from(POINTS),
                    );
                    let due = |at: f64| (from..to).contains(&at);
                    let sent = || {
                        own.iter()
                            .filter(move |answer| due(answer.due.as_secs_f64()))
                    };
                    let hits = sent().filter(|answer| answer.is_in_time()).count();
                    let count = sent().count();
                    #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
                    let share = if count == 0 {
                        f64::NAN
                    } else {
                        hits as f64 / count as f64
                    };
                    (round as f64 * length + to, share)
                })
            });
        Series {
            name: (*name).to_owned(),
            points: points.collect(),
        }
    });
    Section {
        title: "Over time".to_owned(),
        text: "Rounds one behind the other; between them the other setting had its turn."
            .to_owned(),
        parts: vec![Part::Course(Course {
            title: "Share of requests in time".to_owned(),
            how: "In each twelfth of a round.".to_owned(),
            unit: Unit::Share,
            is_stack: false,
            seconds: length * trial.answers.len() as f64,
            marks: vec![0.0, 1.0],
            lines: lines.collect(),
        })],
    }
}

fn latencies(arguments: &Arguments, trial: &Trial) -> Section {
    let curves = NAMES.iter().enumerate().map(|(settings, name)| {
        let mut histogram = Histogram::new();
        for answer in trial.answers.iter().flat_map(|round| &round[settings]) {
            if matches!(answer.outcome, Outcome::Served(_)) {
                histogram.record(Span::from(answer.latency));
            }
        }
        Curve::new(*name, &histogram, Some(Span::from(arguments.slo())))
    });
    Section {
        title: "Latencies".to_owned(),
        text:
            "Of requests that the server answered without a server error, from when they were due."
                .to_owned(),
        parts: vec![Part::Latencies(Latencies {
            title: "Share of requests answered within a latency".to_owned(),
            percentile: Percentile::P99,
            curves: curves.collect(),
        })],
    }
}

fn rounds(trial: &Trial) -> Section {
    let share = |counts: &Counts| Cell::Number(counts.share(), Unit::Share);
    #[expect(clippy::cast_precision_loss, reason = "to be read")]
    let count = |value: u64| Cell::Number(value as f64, Unit::Count);
    let rows = trial.rounds.iter().enumerate().map(|(at, round)| {
        vec![
            Cell::Text((at + 1).to_string()),
            count(round.weir.requests),
            share(&round.stock),
            share(&round.weir),
            round
                .server
                .execution_ms
                .map_or(Cell::Nothing, |ms| Cell::Number(ms, Unit::Milliseconds)),
            Cell::Number(round.server.busy, Unit::Share),
        ]
    });
    Section {
        title: "Rounds".to_owned(),
        text: String::new(),
        parts: vec![Part::Table(Table {
            title: "In time, round by round".to_owned(),
            columns: vec![
                Column::text("round"),
                Column::number("requests"),
                Column::number(NAMES[0]),
                Column::number(NAMES[1]),
                Column::number("the server takes"),
                Column::number("it was busy"),
            ],
            rows: rows.collect(),
        })],
    }
}

fn total(trial: &Trial, verdict: &Verdict) -> Section {
    let names = [
        "settings",
        "requests",
        "in time",
        "p50 ms",
        "p99 ms",
        "p99 of all, ms",
        "refused",
        "shed",
        "failed",
        "lost",
    ];
    let columns = names.iter().enumerate().map(|(at, name)| {
        if at == 0 {
            Column::text(*name)
        } else {
            Column::number(*name)
        }
    });
    let rows = [&verdict.stock, &verdict.weir].into_iter().enumerate();
    let rows = rows.map(|(settings, counts)| {
        let row = text::row(trial, settings, NAMES[settings], counts);
        row.into_iter().map(Cell::Text).collect()
    });
    Section {
        title: "All figures".to_owned(),
        text: "Refused: the queue was full. Shed: it could not be in time any more. A dash: the percentile is of a request without an answer of the \
               server."
            .to_owned(),
        parts: vec![Part::Table(Table {
            title: "Both settings".to_owned(),
            columns: columns.collect(),
            rows: rows.collect(),
        })],
    }
}
