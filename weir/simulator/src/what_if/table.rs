//! Answers as tables for a terminal.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

use super::answer::{Answer, FunctionAnswer};
use super::sweep::Axis;
use crate::statistics::{Interval, Unit};

/// Largest number of functions in a table, worst first.
const ROWS: usize = 20;

/// Returns a table with one row for each run.
#[must_use]
pub fn runs(answers: &[Answer], axis: Option<Axis>) -> String {
    let swept = axis.map_or("GPUs", Axis::name);
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        swept,
        "rule",
        "in time",
        "functions that keep",
        "GPUs busy, mean",
        "most",
        "busy",
        "loads",
        "cost/h",
        "binding limit",
    ]);
    for own in answers {
        table.add_row([
            Unit::Plain.write(value(own, axis)),
            own.rule.to_owned(),
            share(own.attainment),
            format!("{} of {}", own.functions_keeping, own.functions_called),
            Unit::Plain.write(own.slots_mean),
            own.slots_peak.to_string(),
            Unit::Share.write(own.gpu_busy.mean),
            Unit::Plain.write(number(own.loads)),
            money(own.cost_per_hour),
            format!(
                "{}{}",
                own.binding.limit.name(),
                if own.stopped { " (stopped)" } else { "" }
            ),
        ]);
    }
    for at in [0, 2, 3, 4, 5, 6, 7, 8] {
        if let Some(column) = table.column_mut(at) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

/// Returns the value of a run on the swept axis.
#[must_use]
pub fn value(own: &Answer, axis: Option<Axis>) -> f64 {
    match axis {
        None => f64::from(own.gpus),
        Some(Axis::Gpus) => f64::from(own.gpus_per_node),
        Some(Axis::Nodes) => f64::from(own.nodes),
        Some(Axis::ModelsGb) => own.models_gb,
        Some(Axis::HostGbPerS) => own.host_gb_per_s,
        Some(Axis::RateScale) => own.rate_scale,
    }
}

/// Returns the results of a run, in sentences.
#[must_use]
pub fn summary(own: &Answer) -> String {
    let mut text = format!(
        "{}: {} requests counted {}, {} in time; {} of {} functions keep their objectives.\n",
        own.rule,
        Unit::Count.write(number(own.requests)),
        counted(own),
        share(own.attainment),
        own.functions_keeping,
        own.functions_called,
    );
    text.push_str(&format!(
        "GPUs: {} of {} busy on average, {} at most; loads add {} of the busy time ({} loads, {} evictions{}).\n",
        Unit::Plain.write(own.slots_mean),
        own.gpus,
        own.slots_peak,
        Unit::Share.write(own.gpu_swapping),
        Unit::Count.write(number(own.loads)),
        Unit::Count.write(number(own.evictions)),
        if own.seeds > 1 {
            format!(" under all {} seeds", own.seeds)
        } else {
            String::new()
        },
    ));
    text.push_str(&format!(
        "Cost{}: {:.3} GPU hours; functions would be charged {:.3}, for time taken and a tenth of the time that their models wait in host \
         memory",
        if own.seeds > 1 { " of a run" } else { "" },
        own.gpu_hours,
        own.billed_gpu_hours
    ));
    if let (Some(cost), Some(hour)) = (own.cost, own.cost_per_hour) {
        text.push_str(&format!(
            "; {cost:.2} for the time counted, {hour:.2} an hour"
        ));
    }
    if let Some(million) = own.cost_per_million_in_time {
        text.push_str(&format!(", {million:.2} a million requests in time"));
    }
    text.push_str(".\n");
    if own.stopped {
        text.push_str("Stopped before the end: results cover the time until then.\n");
    }
    text
}

/// Returns the counted time: "in 1.20 s", or "in 10 runs of 1.20 s each, one a seed".
fn counted(own: &Answer) -> String {
    let time = Unit::Nanoseconds.write(own.counted_s * 1e9);
    if own.seeds > 1 {
        format!("in {} runs of {time} each, one a seed", own.seeds)
    } else {
        format!("in {time}")
    }
}

/// Returns a table of the functions of a run, worst first.
#[must_use]
pub fn functions(own: &Answer) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "function",
        "requests",
        "in time",
        "p50",
        "at percentile",
        "objective",
        "loads",
        "binding limit",
    ]);
    let order = worst_first(own);
    for &at in order.iter().take(ROWS) {
        let of = &own.functions[at];
        table.add_row([
            short(&of.name),
            Unit::Count.write(number(of.requests)),
            of.attainment.map_or_else(|| "–".to_owned(), share),
            span(of.p50_ms),
            format!("{} (p{})", span(of.at_percentile_ms), of.percentile),
            of.objective_ms
                .map_or_else(|| "by request".to_owned(), |ms| span(Some(ms))),
            Unit::Share.write(of.loads),
            of.limit.name().to_owned(),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n");
    if order.len() > ROWS {
        text.push_str(&format!(
            "The {ROWS} worst of {} functions; --json and --html list all of them.\n",
            order.len()
        ));
    }
    text
}

/// Returns the indexes of functions with requests: those that miss first, by attainment, then by requests.
#[must_use]
pub fn worst_first(own: &Answer) -> Vec<usize> {
    let mut order: Vec<usize> = (0..own.functions.len())
        .filter(|&at| own.functions[at].requests > 0)
        .collect();
    let key = |of: &FunctionAnswer| of.attainment.map_or(1.0, |share| share.low);
    order.sort_by(|&one, &other| {
        let (one, other) = (&own.functions[one], &own.functions[other]);
        one.keeps
            .cmp(&other.keeps)
            .then(key(one).total_cmp(&key(other)))
            .then(other.requests.cmp(&one.requests))
    });
    order
}

/// Shortens a name to fit a table: traces have hashes of 64 characters and more.
pub(super) fn short(name: &str) -> String {
    const MOST: usize = 28;
    let count = name.chars().count();
    if count <= MOST {
        return name.to_owned();
    }
    let begin: String = name.chars().take(13).collect();
    let end: String = name.chars().skip(count - 13).collect();
    format!("{begin}…{end}")
}

/// Formats the mean with its interval, which is omitted if seeds do not differ.
fn share(own: Interval) -> String {
    let mean = Unit::Share.write(own.mean);
    let ends = Unit::Share.write_range(own.low, own.high);
    if own.low == own.high {
        mean
    } else {
        format!("{mean} ({ends})")
    }
}

fn span(ms: Option<f64>) -> String {
    ms.map_or_else(|| "–".to_owned(), |ms| Unit::Nanoseconds.write(ms * 1e6))
}

pub(super) fn money(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.2}"))
}

#[expect(clippy::cast_precision_loss, reason = "to be read")]
pub(super) const fn number(value: u64) -> f64 {
    value as f64
}
