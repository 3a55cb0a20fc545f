//! Alibaba GenTD26's series of measurements, such as load times of base models.

use std::collections::BTreeMap;

use policy::{Span, Time};

use super::fields::{Row, Table, is_name};
use super::lines::{Lines, Source};
use super::{FUNCTIONS_MAX, LENGTH_MAX, Problem, Quantiles, TraceError};

/// Largest value; memory in bytes is the largest of the published series.
const VALUE_MAX: f64 = 1e15;
const SECONDS_MAX: u64 = 1 << 33;

/// A measurement of a series.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample {
    /// Time of the measurement; zero is the first one's.
    pub at: Time,
    /// Value in the series' own unit: ms for latencies, % for duty cycles.
    pub value: f64,
    /// Index into [`Series::containers`]; `None` where the row names no container.
    pub container: Option<u32>,
}

/// A series of measurements: `timestamp_anon` (s), `value`, `container_ip`, in any order; other columns are ignored.
///
/// Rows are read on demand; only the names of containers are kept in memory, at most [`FUNCTIONS_MAX`].
#[derive(Debug)]
pub struct Series {
    table: Table,
    columns: [usize; 3],
    ids: BTreeMap<Box<str>, u32>,
    first: Option<u64>,
    last: u64,
    ended: bool,
}

impl Series {
    /// Opens a series and reads its heading.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or if a column is missing.
    pub fn open(source: &Source) -> Result<Self, TraceError> {
        let table = Table::new(Lines::open(source)?)?;
        let columns = [
            table.need("timestamp_anon")?,
            table.need("value")?,
            table.need("container_ip")?,
        ];
        Ok(Self {
            table,
            columns,
            ids: BTreeMap::new(),
            first: None,
            last: 0,
            ended: false,
        })
    }

    /// Returns the containers named so far, indexed by their ids.
    #[must_use]
    pub fn containers(&self) -> Vec<&str> {
        let mut names = vec![""; self.ids.len()];
        for (name, &id) in &self.ids {
            if let Some(slot) = names.get_mut(id as usize) {
                *slot = name;
            }
        }
        names
    }

    /// Reads all values as times in milliseconds and returns their distribution.
    ///
    /// # Errors
    /// Returns the first invalid line, or [`Problem::NoRows`].
    pub fn latencies(mut self) -> Result<Quantiles, TraceError> {
        let mut times = Vec::new();
        for sample in &mut self {
            times.push(Span(crate::generate::nanos(sample?.value * 1e6)));
        }
        Quantiles::of(times)
            .ok_or_else(|| TraceError::new(self.table.lines().file(), None, Problem::NoRows))
    }

    fn read(&mut self) -> Result<Option<Sample>, TraceError> {
        let [time, value, container] = self.columns;
        let Some(row) = self.table.row()? else {
            return Ok(None);
        };
        let at = row.nanos(time, 1_000_000_000, SECONDS_MAX)?;
        if at < self.last {
            let column = row.name(time);
            return Err(row.error(Problem::Order { column }));
        }
        let first = *self.first.get_or_insert(at);
        if at - first > LENGTH_MAX {
            let column = row.name(time);
            return Err(row.error(Problem::TooLate { column }));
        }
        let sample = Sample {
            at: Time(at - first),
            value: row.number(value, 0.0, VALUE_MAX)?,
            container: container_id(&row, container, &mut self.ids)?,
        };
        self.last = at;
        Ok(Some(sample))
    }
}

fn container_id(
    row: &Row<'_>,
    column: usize,
    ids: &mut BTreeMap<Box<str>, u32>,
) -> Result<Option<u32>, TraceError> {
    let name = row.text(column);
    if name.is_empty() {
        return Ok(None);
    }
    if let Some(&id) = ids.get(name) {
        return Ok(Some(id));
    }
    if !is_name(name) {
        return Err(row.bad(column, super::fields::NAME_ALLOWED));
    }
    let id = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if id >= FUNCTIONS_MAX {
        let (what, max) = ("containers", FUNCTIONS_MAX as usize);
        return Err(row.error(Problem::TooMany { what, max }));
    }
    ids.insert(name.into(), id);
    Ok(Some(id))
}

impl Iterator for Series {
    type Item = Result<Sample, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let result = self.read().transpose();
        self.ended = !matches!(result, Some(Ok(_)));
        result
    }
}
