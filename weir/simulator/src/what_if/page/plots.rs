//! Plots of one run.

use std::collections::BTreeMap;

use policy::{Span, Time};

use super::named;
use crate::report::{Activity, Busy, Curve, Latencies, Part, Section, Slots, Turn};
use crate::statistics::{Histogram, Percentile, Unit};
use crate::what_if::answer::Answer;
use crate::what_if::table::{number, short, worst_first};

/// Largest number of functions in the plot of latencies, worst first.
const CURVES: usize = 24;
/// Largest number of slots that are drawn one by one.
const SLOTS: usize = 64;
/// Target number of slot occupancies in the plot of a busy moment.
const TURNS: usize = 600;

pub(super) fn latencies(shown: &Answer) -> Section {
    let mut all = Histogram::new();
    for own in &shown.detail.latencies {
        all.merge(own);
    }
    let mut curves = vec![Curve::new("all functions", &all, None)];
    let order = worst_first(shown);
    let drawn = order
        .iter()
        .filter_map(|&at| Some((at, shown.detail.latencies.get(at)?)))
        .filter(|(_, own)| !own.is_empty())
        .take(CURVES);
    for (at, own) in drawn {
        let objective = shown.detail.objectives.get(at).copied().flatten();
        curves.push(Curve::new(short(&shown.functions[at].name), own, objective));
    }
    // The most common percentile, for the mark.
    let mut percentiles: BTreeMap<u32, usize> = BTreeMap::new();
    for own in &shown.functions {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "50 to 99.9"
        )]
        let thousandths = libm::round(own.percentile * 1e3) as u32;
        *percentiles.entry(thousandths).or_default() += 1;
    }
    let most = percentiles.iter().max_by_key(|entry| entry.1);
    let percentile = most.and_then(|(&own, _)| Percentile::from_thousandths(own).ok());
    let many = if order.len() > CURVES {
        format!("The {CURVES} worst functions of {}. ", order.len())
    } else {
        String::new()
    };
    Section {
        title: "Latencies".to_owned(),
        text: format!(
            "{many}Answered requests only, {}; {}.",
            seeds(shown),
            named(shown)
        ),
        parts: vec![Part::Latencies(Latencies {
            title: "Share of requests answered within a latency".to_owned(),
            percentile: percentile.unwrap_or(Percentile::P98),
            curves,
        })],
    }
}

fn seeds(shown: &Answer) -> String {
    match shown.seeds {
        1 => "under one seed".to_owned(),
        many => format!("of all {many} seeds"),
    }
}

pub(super) fn slots(shown: &Answer) -> Section {
    let timeline = &shown.detail.timeline;
    let slots = timeline.slots();
    let name = |slot: usize| {
        let gpus = shown.gpus_per_node as usize;
        if shown.nodes == 1 {
            format!("GPU {slot}")
        } else {
            format!("node {}, GPU {}", slot / gpus, slot % gpus)
        }
    };
    let mut section = Section {
        title: "GPUs over time".to_owned(),
        text: if shown.seeds > 1 {
            "Under the first seed.".to_owned()
        } else {
            String::new()
        },
        ..Section::default()
    };
    if slots > SLOTS {
        section.text = format!("{slots} GPUs are too many to be drawn one by one.");
        return section;
    }
    let names: Vec<String> = (0..slots).map(name).collect();
    section.parts.push(Part::Busy(Busy {
        title: "Busy share of each GPU".to_owned(),
        slots: names.clone(),
        timeline: timeline.clone(),
    }));
    if let Some(part) = moment(shown, names) {
        section.parts.push(part);
    }
    section
}

/// Returns the occupancy of GPUs around the busiest step of the timeline, for as many occupancies as can be drawn.
fn moment(shown: &Answer, slots: Vec<String>) -> Option<Part> {
    let (timeline, taken) = (&shown.detail.timeline, &shown.detail.taken);
    let share = |bin: usize| -> f64 {
        let each = (0..timeline.slots()).filter_map(|slot| timeline.share(slot, bin));
        each.sum()
    };
    // The first of equals.
    let busiest = (0..timeline.len())
        .rev()
        .max_by(|&one, &other| share(one).total_cmp(&share(other)))?;
    let begin = timeline
        .begin()
        .after(Span(timeline.width().0 * busiest as u64));
    let first = taken.partition_point(|own| own.to <= begin);
    let last = taken.get((first + TURNS).min(taken.len()).checked_sub(1)?)?;
    let end = Time(begin.0.saturating_add(timeline.width().0));
    let (from, to) = (begin, last.to.min(end).max(begin));
    // Includes long occupancies that end later.
    let turns = taken[first..]
        .iter()
        .filter(|own| own.from < to)
        .take(4 * TURNS);
    let mut holders: BTreeMap<u32, usize> = BTreeMap::new();
    let mut names = Vec::new();
    let mut drawn = Vec::new();
    for own in turns {
        let holder = *holders.entry(own.function).or_insert_with(|| {
            let name = shown
                .functions
                .get(own.function as usize)
                .map(|of| short(&of.name));
            names.push(name.unwrap_or_default());
            names.len() - 1
        });
        let turn = |from, to, activity| Turn {
            slot: own.slot as usize,
            holder,
            from,
            to,
            activity,
        };
        if own.loaded > own.from {
            drawn.push(turn(own.from, own.loaded, Activity::Load));
        }
        drawn.push(turn(own.from, own.to, Activity::Compute));
    }
    let at = Unit::Nanoseconds.write(number(from.0));
    Some(Part::Slots(Slots {
        title: format!("GPU occupancy at the busiest moment, from {at}"),
        from,
        to,
        slots,
        holders: names,
        turns: drawn,
    }))
}
