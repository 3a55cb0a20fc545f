//! Traces that give the number of requests of a function in each minute.

use std::collections::BTreeMap;
use std::vec::IntoIter;

use policy::Time;

use super::fields::{Row, Table};
use super::functions_2019::{NAME, add_durations, add_memory, name, name_columns};
use super::lines::{Lines, Source};
use super::{
    Arrival, CELLS_MAX, FUNCTIONS_MAX, Format, FunctionInfo, Options, Problem, TraceError, Work,
    Workload,
};
use crate::generate::{Merged, nanos};
use crate::random::{Purpose, Stream};

const MINUTE: u64 = 60_000_000_000;
/// Largest number of minutes: 45 days.
const MINUTES_MAX: usize = u16::MAX as usize;
const COUNT_MAX: u32 = 100_000_000;

/// Arrival times within a minute of the requests of its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Independently and uniformly at random, from the function's arrival stream: a Poisson process with that count.
    #[default]
    Random,
    /// In the middles of as many equal parts of the minute.
    Even,
}

/// Iterator over the arrivals of one function.
#[derive(Clone, Debug)]
struct FunctionMinutes {
    /// Minutes with requests, each with its count.
    counts: IntoIter<(u16, u32)>,
    minute: u16,
    count: u32,
    given: u32,
    /// Share of the minute that is past; only used with random placement.
    past: f64,
    /// Stream for random placement; `None` for even placement.
    stream: Option<Stream>,
}

impl Iterator for FunctionMinutes {
    type Item = Time;

    fn next(&mut self) -> Option<Time> {
        if self.given == self.count {
            (self.minute, self.count) = self.counts.next()?;
            (self.given, self.past) = (0, 0.0);
        }
        let part = if let Some(stream) = &mut self.stream {
            // The earliest of the remaining arrivals, each uniform in the remainder of the minute: thus the minute's
            // arrivals are drawn in order without being stored.
            let left = f64::from(self.count - self.given);
            let later = libm::exp(libm::log(stream.unit()) / left);
            self.past = 1.0 - (1.0 - self.past) * later;
            self.past
        } else {
            (2.0 * f64::from(self.given) + 1.0) / (2.0 * f64::from(self.count))
        };
        self.given += 1;
        let within = nanos(part * 60e9).min(MINUTE - 1);
        Some(Time(u64::from(self.minute) * MINUTE + within))
    }
}

/// Arrivals of a trace of counts, ordered by time, then function.
#[derive(Clone, Debug)]
pub struct MinuteCounts {
    merged: Merged<FunctionMinutes>,
    /// Streams and distributions for functions with known service times.
    services: Vec<Option<(Stream, super::Quantiles)>>,
}

impl Iterator for MinuteCounts {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let (at, function) = self.merged.next()?;
        let work = match self.services.get_mut(function as usize) {
            Some(Some((stream, quantiles))) => Work::Service(quantiles.at(stream.unit())),
            _ => Work::Unstated,
        };
        Some(Arrival {
            at,
            function,
            work,
            objective: None,
        })
    }
}

/// Columns of a function's name.
enum Name {
    One(usize),
    /// Owner, app and function.
    Three([usize; 3]),
}

/// Columns of a trace of counts.
struct Columns {
    name: Name,
    /// Columns of the minutes, in the order of time.
    minutes: Vec<usize>,
}

const fn prefix(format: Format) -> &'static str {
    match format {
        Format::TorporSamples => "minute_",
        _ => "",
    }
}

/// Returns the number of the minute that a column is for.
fn minute(format: Format, name: &str) -> Option<u32> {
    name.strip_prefix(prefix(format))?.parse().ok()
}

/// Returns whether a heading has a column for a minute.
pub(super) fn has_minutes(table: &Table, format: Format) -> bool {
    let mut names = table.heading().iter();
    names.any(|name| minute(format, name).is_some())
}

fn columns(table: &Table, format: Format) -> Result<Columns, TraceError> {
    let name = match format {
        Format::TorporSamples => Name::One(table.need("function")?),
        _ => Name::Three(name_columns(table)?),
    };
    let prefix = prefix(format);
    let heading = table.heading();
    let mut numbered: Vec<(u32, usize)> = heading
        .iter()
        .enumerate()
        .filter_map(|(at, name)| Some((minute(format, name)?, at)))
        .collect();
    // "007" is a minute's column as well as "7".
    numbered.sort_unstable();
    let Some(&(begin, _)) = numbered.first() else {
        let column = format!("{prefix}1 (the first minute)");
        return Err(table.lines().error(Problem::ColumnMissing { column }));
    };
    if numbered.len() > MINUTES_MAX {
        let (what, max) = ("minutes", MINUTES_MAX);
        return Err(table.lines().error(Problem::TooMany { what, max }));
    }
    // A missing minute would shift all that follow.
    for (expected, &(found, at)) in (begin..).zip(&numbered) {
        if found < expected {
            let column = format!("{prefix}{found}");
            return Err(table.lines().error(Problem::ColumnTwice { column }));
        }
        if found != expected {
            let column = format!("{prefix}{expected}, but {} after it", heading[at]);
            return Err(table.lines().error(Problem::ColumnMissing { column }));
        }
    }
    let minutes = numbered.into_iter().map(|(_, at)| at).collect();
    Ok(Columns { name, minutes })
}

pub(super) fn open(
    source: &Source,
    format: Format,
    options: &Options,
) -> Result<Workload<MinuteCounts>, TraceError> {
    let mut table = Table::new(Lines::open(source)?)?;
    let columns = columns(&table, format)?;
    let mut ids: BTreeMap<String, u32> = BTreeMap::new();
    let mut functions: Vec<FunctionInfo> = Vec::new();
    let mut counts = Vec::new();
    let mut cells = 0;
    while let Some(row) = table.row()? {
        let name = match columns.name {
            Name::Three(columns) => name(&row, columns)?,
            Name::One(column) => row.need_name(column)?.to_owned(),
        };
        let id = u32::try_from(functions.len()).unwrap_or(u32::MAX);
        if id >= FUNCTIONS_MAX {
            let (what, max) = ("functions", FUNCTIONS_MAX as usize);
            return Err(row.error(Problem::TooMany { what, max }));
        }
        if ids.insert(name.clone(), id).is_some() {
            let column = match columns.name {
                Name::One(column) => row.name(column),
                Name::Three(_) => NAME.to_owned(),
            };
            let found = name;
            return Err(row.error(Problem::Twice { column, found }));
        }
        let row_counts = row_counts(&row, &columns, &mut cells)?;
        functions.push(FunctionInfo::named(name));
        counts.push(row_counts);
    }
    if functions.is_empty() {
        return Err(TraceError::new(table.lines().file(), None, Problem::NoRows));
    }
    if let Some(durations) = &options.durations {
        add_durations(durations, &ids, &mut functions)?;
    }
    if let Some(memory) = &options.memory {
        add_memory(memory, &ids, &mut functions)?;
    }
    let services = (0..)
        .zip(&functions)
        .map(|(id, function)| {
            let stream = options.streams.stream(Purpose::Service, id);
            Some((stream, function.service.clone()?))
        })
        .collect();
    let arrivals = (0..)
        .zip(counts)
        .map(|(id, counts)| FunctionMinutes {
            counts: counts.into_iter(),
            minute: 0,
            count: 0,
            given: 0,
            past: 0.0,
            stream: match options.placement {
                Placement::Random => Some(options.streams.stream(Purpose::Arrival, id)),
                Placement::Even => None,
            },
        })
        .collect();
    Ok(Workload {
        functions,
        arrivals: MinuteCounts {
            merged: Merged::new(arrivals),
            services,
        },
    })
}

/// Parses the minutes of a row that have requests.
fn row_counts(
    row: &Row<'_>,
    columns: &Columns,
    cells: &mut usize,
) -> Result<Vec<(u16, u32)>, TraceError> {
    let mut counts = Vec::new();
    for (minute, &column) in (0..).zip(&columns.minutes) {
        let count = row.whole(column, COUNT_MAX)?;
        if count > 0 {
            counts.push((minute, count));
        }
    }
    *cells += counts.len();
    if *cells > CELLS_MAX {
        let (what, max) = ("minutes with requests", CELLS_MAX);
        return Err(row.error(Problem::TooMany { what, max }));
    }
    counts.shrink_to_fit();
    Ok(counts)
}
