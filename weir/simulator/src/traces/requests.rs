//! Traces with one row for every request: checked in a first pass, and read in a second.

use std::collections::BTreeMap;

use policy::Time;

use super::lines::Source;
use super::records::{Record, Records};
use super::{
    Arrival, FUNCTIONS_MAX, Format, FunctionInfo, LENGTH_MAX, Problem, ROWS_MAX, SORTED_MAX,
    TraceError, Workload,
};

type Ids = BTreeMap<Box<str>, u32>;

/// Origin of the arrivals.
#[derive(Debug)]
enum ArrivalSource {
    /// The file, in which they are ordered.
    File {
        records: Box<Records>,
        ids: Ids,
        /// Number of remaining rows, according to the first pass.
        left: u64,
    },
    /// Memory, for a file that is not ordered.
    Sorted(std::vec::IntoIter<Arrival>),
    /// No more records, since an error was returned.
    Nothing,
}

/// Requests of a trace, in the order of time; of equal times, in the order of the file.
#[derive(Debug)]
pub struct Requests {
    from: ArrivalSource,
    /// Time zero on the trace's clock, in nanoseconds.
    zero: i64,
    last: Time,
}

impl Iterator for Requests {
    type Item = Result<Arrival, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (records, ids, left) = match &mut self.from {
            ArrivalSource::File { records, ids, left } => (records, ids, left),
            ArrivalSource::Sorted(arrivals) => return arrivals.next().map(Ok),
            ArrivalSource::Nothing => return None,
        };
        let result = match records.next() {
            Ok(None) if *left == 0 => return None,
            Ok(None) => Err(records.error_of_file(Problem::Changed)),
            Ok(Some(record)) => {
                let arrival = ids
                    .get(records.name())
                    .map(|&function| arrival(record, function, self.zero))
                    .filter(|arrival| arrival.at >= self.last && *left > 0);
                if let Some(arrival) = arrival {
                    self.last = arrival.at;
                    *left -= 1;
                    return Some(Ok(arrival));
                }
                Err(records.error(Problem::Changed))
            }
            Err(error) => Err(error),
        };
        self.from = ArrivalSource::Nothing;
        Some(result)
    }
}

fn arrival(record: Record, function: u32, zero: i64) -> Arrival {
    Arrival {
        at: Time(u64::try_from(record.at.saturating_sub(zero)).unwrap_or(0)),
        function,
        work: record.work,
        objective: record.objective,
    }
}

/// Results of the first pass.
struct Check {
    ids: Ids,
    functions: Vec<FunctionInfo>,
    first: i64,
    rows: u64,
    /// Records with their functions, if the file is not ordered; otherwise empty.
    kept: Vec<(Record, u32)>,
}

pub(super) fn open(source: &Source, format: Format) -> Result<Workload<Requests>, TraceError> {
    let sorts = matches!(format, Format::AzureFunctions2021);
    let check = check(source, format, sorts)?;
    let zero = match format {
        Format::Weir | Format::Mooncake => 0,
        _ => check.first,
    };
    let from = if sorts {
        let mut arrivals: Vec<Arrival> = check
            .kept
            .into_iter()
            .map(|(record, function)| arrival(record, function, zero))
            .collect();
        arrivals.sort_by_key(|arrival| arrival.at);
        ArrivalSource::Sorted(arrivals.into_iter())
    } else {
        ArrivalSource::File {
            records: Box::new(Records::open(source, format)?),
            ids: check.ids,
            left: check.rows,
        }
    };
    Ok(Workload {
        functions: check.functions,
        arrivals: Requests {
            from,
            zero,
            last: Time::ZERO,
        },
    })
}

fn check(source: &Source, format: Format, sorts: bool) -> Result<Check, TraceError> {
    let mut records = Records::open(source, format)?;
    let mut check = Check {
        ids: Ids::new(),
        functions: Vec::new(),
        first: i64::MAX,
        rows: 0,
        kept: Vec::new(),
    };
    let (mut before, mut last) = (i64::MIN, i64::MIN);
    while let Some(record) = records.next()? {
        if !sorts && record.at < before {
            let column = records.time_column();
            return Err(records.error(Problem::Order { column }));
        }
        before = record.at;
        check.rows += 1;
        if check.rows > ROWS_MAX {
            let (what, max) = ("rows", usize::try_from(ROWS_MAX).unwrap_or(usize::MAX));
            return Err(records.error(Problem::TooMany { what, max }));
        }
        check.first = check.first.min(record.at);
        last = last.max(record.at);
        if last.abs_diff(check.first) > LENGTH_MAX {
            let column = records.time_column();
            return Err(records.error(Problem::TooLate { column }));
        }
        let function = match check.ids.get(records.name()) {
            Some(&function) => function,
            None => check.add(&records)?,
        };
        if sorts {
            if check.kept.len() >= SORTED_MAX {
                let (what, max) = ("rows to be sorted", SORTED_MAX);
                return Err(records.error(Problem::TooMany { what, max }));
            }
            check.kept.push((record, function));
        }
    }
    if check.functions.is_empty() {
        let empty = matches!(format, Format::Mooncake);
        let problem = if empty {
            Problem::Empty
        } else {
            Problem::NoRows
        };
        return Err(records.error_of_file(problem));
    }
    Ok(check)
}

impl Check {
    fn add(&mut self, records: &Records) -> Result<u32, TraceError> {
        let function = u32::try_from(self.functions.len()).unwrap_or(u32::MAX);
        if function >= FUNCTIONS_MAX {
            let (what, max) = ("functions", FUNCTIONS_MAX as usize);
            return Err(records.error(Problem::TooMany { what, max }));
        }
        self.ids.insert(records.name().into(), function);
        self.functions
            .push(FunctionInfo::named(records.name().to_owned()));
        Ok(function)
    }
}
