//! Tables: numbers with units are aligned to the right, text to the left. Tables wider than the page scroll by themselves.

use crate::statistics::{Interval, Unit};
use markup::Markup;

/// A table with named columns.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// Caption of the table.
    pub title: String,
    /// Columns from left to right.
    pub columns: Vec<Column>,
    /// Rows; the first cell of each is its heading. Cells beyond the columns are not shown.
    pub rows: Vec<Vec<Cell>>,
}

/// Name and alignment of a column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    name: String,
    number: bool,
}

impl Column {
    /// Creates a column of text, aligned to the left.
    pub fn text(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            number: false,
        }
    }

    /// Creates a column of numbers, aligned to the right.
    pub fn number(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            number: true,
        }
    }

    /// Returns the heading of the column.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the column contains numbers, which are aligned to the right.
    #[must_use]
    pub const fn is_number(&self) -> bool {
        self.number
    }

    const fn class(&self) -> &'static str {
        if self.number { "number" } else { "text" }
    }
}

/// Content of a cell.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// No value, shown as a dash.
    Nothing,
    /// Text, aligned as the column is.
    Text(String),
    /// A number with its unit.
    Number(f64, Unit),
    /// A mean with its interval and unit.
    Interval(Interval, Unit),
}

impl Cell {
    /// Returns the content as text, without the range of an interval.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Nothing => "–".to_owned(),
            Self::Text(text) => text.clone(),
            Self::Number(value, unit) => unit.write(*value),
            Self::Interval(interval, unit) => unit.write(interval.mean),
        }
    }

    fn write(&self, page: &mut Markup) {
        match self {
            Self::Nothing => page.text("–"),
            Self::Text(text) => page.text(text),
            Self::Number(value, unit) => page.text(&unit.write(*value)),
            Self::Interval(interval, unit) => {
                page.text(&unit.write(interval.mean));
                // A value which is the same for all seeds has no range.
                if interval.low < interval.high {
                    page.text(" ");
                    let range = unit.write_range(interval.low, interval.high);
                    page.element("span", &[("class", "range")], &range);
                }
            }
        }
    }
}

impl Table {
    pub(super) fn draw(&self, page: &mut Markup) {
        // Focusable, so that it can be scrolled with the keyboard.
        let region = [
            ("class", "scroll"),
            ("role", "region"),
            ("tabindex", "0"),
            ("aria-label", self.title.as_str()),
        ];
        page.open("div", &region);
        page.open("table", &[]);
        page.element("caption", &[], &self.title);
        page.open("thead", &[]);
        page.open("tr", &[]);
        for column in &self.columns {
            let attributes = [("scope", "col"), ("class", column.class())];
            page.element("th", &attributes, &column.name);
        }
        page.close();
        page.close();
        page.open("tbody", &[]);
        for row in &self.rows {
            page.open("tr", &[]);
            for (at, (cell, column)) in row.iter().zip(&self.columns).enumerate() {
                if at == 0 {
                    page.open("th", &[("scope", "row"), ("class", column.class())]);
                } else {
                    page.open("td", &[("class", column.class())]);
                }
                cell.write(page);
                page.close();
            }
            page.close();
        }
        page.close();
        page.close();
        page.close();
    }
}
