//! A table of figures in a full and a narrow form, with a legend of one line per column.

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table};

use crate::terminal::{Painter, Style, wrap};

/// Widest table in the narrow form, in columns of a terminal.
const NARROW: usize = 60;
/// Longest line of text, in columns of a terminal.
const WIDE: usize = 110;
/// Characters of a name in the narrow form.
const NAME_NARROW: usize = 8;
/// Characters of a name in the full form.
const NAME_WIDE: usize = 24;

/// A column of a [`FigureTable`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct FigureColumn {
    pub(crate) heading: &'static str,
    pub(crate) is_in_narrow: bool,
    /// Text for the legend; empty if the column has no line there.
    pub(crate) meaning: &'static str,
}

/// Returns a column with its heading, whether the narrow form has it, and its meaning for the legend.
pub(crate) const fn column(
    heading: &'static str,
    is_in_narrow: bool,
    meaning: &'static str,
) -> FigureColumn {
    FigureColumn {
        heading,
        is_in_narrow,
        meaning,
    }
}

/// A table in the widest form that fits the terminal.
#[derive(Debug)]
pub(crate) struct FigureTable {
    text: String,
    columns: Vec<FigureColumn>,
    /// Width of text beside the table, in columns of the terminal.
    width: usize,
}

impl FigureTable {
    /// Draws rows with one cell per column; the first `names` cells are names, the others numbers. `width` is the terminal's
    /// number of columns, `None` if stdout is no terminal.
    pub(crate) fn new(
        columns: &[FigureColumn],
        names: usize,
        rows: &[Vec<String>],
        width: Option<usize>,
    ) -> Self {
        let full = draw(columns, names, rows, false);
        let needed = full.lines().map(|line| line.chars().count()).max();
        let is_narrow = width.is_some_and(|width| width < needed.unwrap_or(0));
        let shown = |own: &&FigureColumn| own.is_in_narrow || !is_narrow;
        Self {
            text: if is_narrow {
                draw(columns, names, rows, true)
            } else {
                full
            },
            columns: columns.iter().filter(shown).copied().collect(),
            width: match width {
                Some(_) if is_narrow => NARROW,
                Some(width) => width.min(WIDE),
                None => WIDE,
            },
        }
    }

    /// Returns the width for text beside the table, in columns of the terminal.
    pub(crate) const fn width(&self) -> usize {
        self.width
    }

    /// Returns the drawn table as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the meanings of the columns, at least one line each.
    pub(crate) fn legend(&self, painter: Painter) -> String {
        let explained = self.columns.iter().filter(|own| !own.meaning.is_empty());
        let lines = explained.map(|own| {
            let line = format!("{:<9} {}", own.heading, own.meaning);
            painter.paint(Style::Faint, &wrap(&line, self.width, 10)) + "\n"
        });
        lines.collect()
    }
}

fn draw(columns: &[FigureColumn], names: usize, rows: &[Vec<String>], is_narrow: bool) -> String {
    let shown = |cells: &[String]| -> Vec<String> {
        let cells = cells.iter().zip(columns).enumerate();
        let kept = cells.filter(|(_, (_, own))| own.is_in_narrow || !is_narrow);
        let letters = if is_narrow { NAME_NARROW } else { NAME_WIDE };
        kept.map(|(at, (cell, _))| {
            if at < names {
                cell.chars().take(letters).collect()
            } else {
                cell.clone()
            }
        })
        .collect()
    };
    let mut table = Table::new();
    table.load_style(if is_narrow {
        NOTHING
    } else {
        UTF8_FULL_CONDENSED
    });
    let kept = columns.iter().filter(|own| own.is_in_narrow || !is_narrow);
    table.set_header(kept.map(|own| own.heading));
    for row in rows {
        table.add_row(shown(row));
    }
    for column in table.column_iter_mut().skip(names) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if is_narrow {
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [FigureColumn; 3] = [
        column("name", true, ""),
        column("requests", false, "sent"),
        column("in time", true, "answered within the objective"),
    ];

    #[test]
    fn uses_the_narrow_form_where_the_full_one_does_not_fit() {
        let rows = [vec![
            "a-long-name-indeed".to_owned(),
            "7".to_owned(),
            "50.0 %".to_owned(),
        ]];
        let of = |width| FigureTable::new(&COLUMNS, 1, &rows, width);
        let full = of(None);
        assert!(full.text().contains("a-long-name-indeed") && full.text().contains("requests"));
        assert!(
            full.legend(Painter::plain())
                .starts_with("requests  sent\nin time   answered")
        );
        let narrow = of(Some(20));
        assert!(
            narrow.text().lines().all(|line| line.chars().count() <= 20),
            "{}",
            narrow.text()
        );
        assert!(!narrow.text().contains("requests") && narrow.text().contains("a-long-n "));
        assert_eq!(narrow.width(), NARROW);
        assert_eq!(of(Some(80)).width(), 80);
    }
}
