//! Tables: numbers by unit and to the right, text to the left; wider than the page, they scroll by themselves.

use super::markup::Markup;
use crate::statistics::{Interval, Unit};

/// Rows under named columns.
#[derive(Clone, PartialEq, Debug)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows; the first cell of each names it. Cells beyond the columns are not shown.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    name: String,
    number: bool,
}

impl Column {
    /// Of words.
    pub fn text(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            number: false,
        }
    }

    /// Of numbers.
    pub fn number(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            number: true,
        }
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is one of numbers, which stand to the right.
    #[must_use]
    pub const fn is_number(&self) -> bool {
        self.number
    }

    const fn class(&self) -> &'static str {
        if self.number { "number" } else { "text" }
    }
}

/// What stands in a table.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// A dash.
    Nothing,
    /// Words.
    Text(String),
    /// A number of a unit.
    Number(f64, Unit),
    /// A mean of a unit, with its interval.
    Interval(Interval, Unit),
}

impl Cell {
    /// Returns what stands in it, without the range of an interval.
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
                // What does not differ from seed to seed has no range to tell.
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
        // Whoever has no mouse can scroll it with the keyboard.
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
