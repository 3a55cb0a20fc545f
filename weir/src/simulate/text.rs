//! Tables of a report as text for a terminal.

use std::fmt::Write as _;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use simulator::report::{Part, Section};

/// Returns the titles and tables of sections as text. Plots are left to the page.
pub(super) fn of(sections: &[Section]) -> String {
    let mut text = String::new();
    for section in sections {
        let _infallible = writeln!(text, "{}", section.text);
        for part in &section.parts {
            if let Part::Table(table) = part {
                let _infallible = writeln!(text, "\n{}\n{}", table.title, draw(table));
            }
        }
        text.push('\n');
    }
    text
}

fn draw(table: &simulator::report::Table) -> Table {
    let mut drawn = Table::new();
    drawn.load_style(UTF8_FULL_CONDENSED);
    drawn.set_header(table.columns.iter().map(simulator::report::Column::name));
    for row in &table.rows {
        drawn.add_row(row.iter().map(simulator::report::Cell::text));
    }
    for (column, own) in drawn.column_iter_mut().zip(&table.columns) {
        if own.is_number() {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    drawn
}
