//! HTML page of a measurement.

use std::time::Duration;

use policy::{Span, Time};
use simulator::report::{
    Activity, Busy, Cell, Column, Course, Figure, Part, Report as Page, Section, Series, Slots,
    Table, Turn,
};
use simulator::statistics::{Timeline, Unit};

use super::Outcome;
use super::measure::{Stretch, float, union};
use super::report::{allowed, error, quota_sum_above_one, rate};

/// Length of the part of the ledger which is drawn turn by turn.
const WINDOW: Duration = Duration::from_millis(250);
/// Points of a line over time.
const POINTS: u64 = 50;
/// Bins of the ledger's timeline.
const BINS: usize = 400;

/// Returns the HTML page of an outcome.
pub(super) fn html(outcome: &Outcome) -> String {
    let plan = &outcome.plan;
    let names: Vec<&str> = plan.pods.iter().map(|pod| pod.name.as_str()).collect();
    let met = (0..plan.pods.len())
        .filter(|&pod| error(outcome, pod).abs() <= allowed(outcome, pod))
        .count();
    let sentence = format!(
        "{met} of {} pods got their entitled share of the GPU's time, within the allowed error.",
        plan.pods.len()
    );
    let mut more = Vec::new();
    if let Some(sum) = quota_sum_above_one(outcome) {
        more.push(format!(
            "Quotas add up to {:.0} %: the entitlements are scaled to add up to 100 %.",
            sum * 100.0
        ));
    }
    if let Some(why) = &outcome.disturbed {
        more.push(format!("Disturbed: {why}."));
    }
    Page {
        title: "One GPU, several pods".to_owned(),
        answer: vec![(sentence, more.join(" "))],
        scenario: format!(
            "{} pods on one GPU for {} s: real programs under the preload library, the node's agent, measured by the device's ledger.",
            plan.pods.len(),
            plan.seconds
        ),
        date: crate::date::now(),
        seeds: Vec::new(),
        parameters: vec![
            ("rule".to_owned(), plan.rule.name()),
            ("pods".to_owned(), names.join(", ")),
            ("computed on".to_owned(), outcome.device.line()),
        ],
        sections: vec![figures(outcome), over_time(outcome), ledger(outcome), table(outcome)],
        footer: "Measured on this machine by weir demo --scenario shares.".to_owned(),
    }
    .html()
}

fn figures(outcome: &Outcome) -> Section {
    let pods = outcome.plan.pods.iter().enumerate();
    let mut each: Vec<Figure> = pods
        .map(|(at, pod)| Figure {
            name: format!("{}, achieved", pod.name),
            value: outcome.achieved[at].share,
            unit: Unit::Share,
            note: format!("asked: {}", Unit::Share.write(outcome.entitled[at])),
        })
        .collect();
    each.push(Figure {
        name: "idle while a pod waited".to_owned(),
        value: outcome.idle_while_waiting,
        unit: Unit::Share,
        note: "although it had quota left".to_owned(),
    });
    Section {
        title: "Shares of time".to_owned(),
        text: "The share of the measured span in which at least one kernel of the pod ran."
            .to_owned(),
        parts: vec![Part::Figures(each)],
    }
}

fn over_time(outcome: &Outcome) -> Section {
    let span = outcome.ledger.span;
    let step = ((span.1 - span.0) / POINTS).max(1);
    let lines = outcome.plan.pods.iter().zip(&outcome.ledger.kernels);
    let lines = lines.map(|(pod, kernels)| {
        let points = (0..POINTS).map(|point| {
            let bin = (span.0 + point * step, span.0 + (point + 1) * step);
            // The stretches are sorted: only those near the bin are visited.
            let first = kernels.partition_point(|own| own.1 <= bin.0);
            let end = kernels.partition_point(|own| own.0 < bin.1);
            let busy: u64 = union(&kernels[first.min(end)..end], bin)
                .iter()
                .map(|own| own.1 - own.0)
                .sum();
            let at = float(bin.1 - span.0) / 1e9;
            (at, float(busy) / float(step))
        });
        Series {
            name: pod.name.clone(),
            points: points.collect(),
        }
    });
    Section {
        title: "Over time".to_owned(),
        text: String::new(),
        parts: vec![Part::Course(Course {
            title: "Share of time in which the pod computed".to_owned(),
            how: "In each fiftieth of the measured span.".to_owned(),
            unit: Unit::Share,
            is_stack: false,
            seconds: float(span.1 - span.0) / 1e9,
            marks: vec![0.0, 1.0],
            lines: lines.collect(),
        })],
    }
}

fn ledger(outcome: &Outcome) -> Section {
    let (begin, end) = outcome.ledger.span;
    let names: Vec<String> = outcome
        .plan
        .pods
        .iter()
        .map(|pod| pod.name.clone())
        .collect();
    let time = |at: u64| Time(at.saturating_sub(begin));
    let width = Span(((end - begin) / BINS as u64).max(1));
    let mut parts = Vec::new();
    if let Ok(mut timeline) = Timeline::new(Time::ZERO, names.len(), BINS, width) {
        for (pod, kernels) in outcome.ledger.kernels.iter().enumerate() {
            for (from, to) in union(kernels, (begin, end)) {
                timeline.busy(pod, time(from), time(to));
            }
        }
        timeline.pass(time(end));
        parts.push(Part::Busy(Busy {
            title: "When each pod computed".to_owned(),
            slots: names.clone(),
            timeline,
        }));
    }
    let to = begin + u64::try_from(WINDOW.as_nanos()).unwrap_or(u64::MAX);
    let turn = |pod: usize, (from, to): Stretch| Turn {
        slot: pod,
        holder: pod,
        from: time(from),
        to: time(to),
        activity: Activity::Compute,
    };
    let turns = outcome
        .ledger
        .kernels
        .iter()
        .enumerate()
        .flat_map(|(pod, kernels)| {
            let shown = union(kernels, (begin, to));
            shown.into_iter().map(move |own| turn(pod, own))
        });
    parts.push(Part::Slots(Slots {
        title: "Turns of the pods".to_owned(),
        from: Time::ZERO,
        to: time(to),
        slots: names.clone(),
        holders: names,
        turns: turns.collect(),
    }));
    Section {
        title: "The ledger's timeline".to_owned(),
        text: format!(
            "Below, the first {} ms of the measured span.",
            WINDOW.as_millis()
        ),
        parts,
    }
}

fn table(outcome: &Outcome) -> Section {
    let share = |value: f64| Cell::Number(value, Unit::Share);
    let rows = outcome.plan.pods.iter().enumerate().map(|(at, pod)| {
        let achieved = outcome.achieved[at];
        vec![
            Cell::Text(pod.name.clone()),
            Cell::Text(pod.work.to_string()),
            Cell::Text(format!("{} / {}", pod.request, pod.limit)),
            Cell::Number(pod.sm_percent, Unit::Percent),
            share(outcome.entitled[at]),
            share(achieved.share),
            share(outcome.reported[at]),
            share(error(outcome, at)),
            share(allowed(outcome, at)),
            #[expect(clippy::cast_precision_loss, reason = "to be read")]
            Cell::Number(achieved.requests as f64, Unit::Count),
            Cell::Number(rate(outcome, at), Unit::PerSecond),
            achieved
                .p99_ms
                .map_or(Cell::Nothing, |ms| Cell::Number(ms, Unit::Milliseconds)),
        ]
    });
    let numbers = [
        "SMs",
        "asked",
        "achieved",
        "reported by the agent",
        "error",
        "allowed",
        "batches",
        "batches a second",
        "p99",
    ];
    let mut columns = ["pod", "work", "request / limit"]
        .map(Column::text)
        .to_vec();
    columns.extend(numbers.map(Column::number));
    Section {
        title: "By pod".to_owned(),
        text: String::new(),
        parts: vec![Part::Table(Table {
            title: "Entitled and achieved shares".to_owned(),
            columns,
            rows: rows.collect(),
        })],
    }
}
