//! Terminal drawing of a ledger: for each GPU or slice, and each process on it, a row of blocks whose height is the
//! process's share of the SMs over a span of time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::bands::column_sums;
use crate::ledger::{Entry, Ledger};
use crate::names::Names;
use crate::summary::{SMS, by_resource};
use crate::svg::ms_text;

/// Blocks by height in eighths. Zero is a space, and any other amount at least the lowest block.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Largest number of rows for one GPU or slice; processes that held most are kept.
const ROWS_MAX: usize = 24;
/// Number of columns before the blocks.
const MARGIN: usize = 16;

/// Returns a drawing of at most `width` columns, or an empty text if no SMs were held.
#[must_use]
pub fn draw(ledger: &Ledger, names: &Names, width: usize) -> String {
    let columns = width.saturating_sub(MARGIN + 1).clamp(10, 1_000);
    let length = ledger.span().div_ceil(columns as u64).max(1);
    let mut text = String::new();
    for ((kind, number), entries) in by_resource(ledger) {
        if kind == SMS {
            unit(&mut text, ledger, names, number, &entries, columns, length);
        }
    }
    if !text.is_empty() {
        axis(&mut text, ledger, columns, length);
    }
    text
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _written = text.write_fmt(line);
    text.push('\n');
}

fn unit(
    text: &mut String,
    ledger: &Ledger,
    names: &Names,
    number: u32,
    entries: &[&Entry],
    columns: usize,
    length: u64,
) {
    let mut rows: BTreeMap<usize, (u128, Vec<u128>)> = BTreeMap::new();
    for (column, sums) in column_sums(entries, ledger.from, length) {
        let column = usize::try_from(column).unwrap_or(columns).min(columns - 1);
        for (process, sum) in sums {
            let (all, row) = rows.entry(process).or_insert_with(|| (0, vec![0; columns]));
            *all += sum;
            row[column] += sum;
        }
    }
    let sms = names.units.get(number as usize).map(|unit| unit.sms);
    let of = sms.map_or_else(String::new, |sms| format!(", {sms} SMs"));
    push(text, format_args!("{}{of}", names.unit(number)));
    // Amount in a column if all SMs are held throughout.
    let most = entries.iter().map(|entry| entry.amount).max().unwrap_or(1);
    let capacity = sms.map_or(most, |sms| u64::from(sms) * 1_000);
    let full = u128::from(capacity.max(1)) * u128::from(length);
    let mut rows: Vec<_> = rows.into_iter().collect();
    let left_out = rows.len().saturating_sub(ROWS_MAX);
    rows.sort_by_key(|(process, (all, _))| (std::cmp::Reverse(*all), *process));
    rows.truncate(ROWS_MAX);
    rows.sort_by_key(|(process, _)| *process);
    for (process, (_, row)) in rows {
        let pid = ledger.processes[process].pid;
        let blocks: String = row.iter().map(|sum| block(*sum, full)).collect();
        let name = format!("process {pid}");
        push(
            text,
            format_args!("{name:>width$} {blocks}", width = MARGIN - 1),
        );
    }
    if left_out > 0 {
        push(
            text,
            format_args!("{:>MARGIN$}and {left_out} more processes", ""),
        );
    }
}

fn block(sum: u128, full: u128) -> char {
    let eighths = (sum * 8 + full / 2) / full;
    let eighths = usize::try_from(eighths).unwrap_or(8).min(8);
    BLOCKS[if sum > 0 { eighths.max(1) } else { 0 }]
}

fn axis(text: &mut String, ledger: &Ledger, columns: usize, length: u64) {
    let (from, to) = (ms_text(ledger.from, length), ms_text(ledger.to, length));
    let to = format!("{to} ms");
    let width = columns.saturating_sub(from.chars().count());
    push(text, format_args!("{:>MARGIN$}{from}{to:>width$}", ""));
}

#[cfg(test)]
mod tests {
    use softgpu_wire::config::Config;
    use softgpu_wire::ledger::LineKind;

    use super::*;
    use crate::ledger::Process;

    #[test]
    fn blocks_are_proportional_to_the_share_of_the_sms() {
        let entry = |process, amount, from, to| Entry {
            kind: LineKind::Sms(0),
            process,
            amount,
            from,
            to,
            command: None,
        };
        let process = |pid| Process { pid, unit: 0 };
        let ledger = Ledger {
            processes: vec![process(41), process(42)],
            entries: vec![
                entry(0, 132_000, 0, 5_000_000),
                entry(0, 66_000, 5_000_000, 10_000_000),
                entry(1, 10, 9_000_000, 10_000_000),
            ],
            names: BTreeMap::new(),
            from: 0,
            to: 10_000_000,
        };
        let names = Names::new(std::path::Path::new("/nonexistent"), &Config::default()).unwrap();
        let text = draw(&ledger, &names, MARGIN + 11);
        assert_eq!(
            text,
            "GPU 0, 132 SMs\n\
             \u{20}    process 41 █████▄▄▄▄▄\n\
             \u{20}    process 42          ▁\n\
             \u{20}               0    10 ms\n"
        );
        assert_eq!(draw(&Ledger::default(), &names, 80), "");
    }
}
