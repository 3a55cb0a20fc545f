//! Azure Functions 2019: the files of durations and memory that accompany the invocations.

use std::collections::BTreeMap;

use policy::Span;

use super::fields::{Row, Table};
use super::lines::{Lines, Source};
use super::{FunctionInfo, Problem, Quantiles, TraceError};

/// Columns `percentile_Average_N`, in milliseconds, with the share of each.
const PERCENTILES: [(&str, f64); 7] = [
    ("percentile_Average_0", 0.0),
    ("percentile_Average_1", 0.01),
    ("percentile_Average_25", 0.25),
    ("percentile_Average_50", 0.5),
    ("percentile_Average_75", 0.75),
    ("percentile_Average_99", 0.99),
    ("percentile_Average_100", 1.0),
];
/// Name of the three columns of a function's name in error messages.
pub(super) const NAME: &str = "HashOwner/HashApp/HashFunction";
const DURATION_MS_MAX: u64 = 1_000_000_000;

/// Returns the name of a row's function, `owner/app/function`.
pub(super) fn name(row: &Row<'_>, columns: [usize; 3]) -> Result<String, TraceError> {
    let [owner, app, function] = columns;
    Ok(format!(
        "{}/{}/{}",
        row.need_name(owner)?,
        row.need_name(app)?,
        row.need_name(function)?
    ))
}

/// Returns the indexes of the columns of the name.
pub(super) fn name_columns(table: &Table) -> Result<[usize; 3], TraceError> {
    Ok([
        table.need("HashOwner")?,
        table.need("HashApp")?,
        table.need("HashFunction")?,
    ])
}

/// Sets the distribution of service times of functions. Rows of other functions are checked and ignored.
pub(super) fn add_durations(
    source: &Source,
    ids: &BTreeMap<String, u32>,
    functions: &mut [FunctionInfo],
) -> Result<(), TraceError> {
    let mut table = Table::new(Lines::open(source)?)?;
    let columns = name_columns(&table)?;
    let mut percentiles = [0; PERCENTILES.len()];
    for (at, (name, _)) in percentiles.iter_mut().zip(PERCENTILES) {
        *at = table.need(name)?;
    }
    while let Some(row) = table.row()? {
        let name = name(&row, columns)?;
        let mut points = [(0.0, Span::ZERO); PERCENTILES.len()];
        let mut above = Span::ZERO;
        for ((point, &column), (_, share)) in points.iter_mut().zip(&percentiles).zip(PERCENTILES) {
            let time = Span(row.nanos(column, 1_000_000, DURATION_MS_MAX)?);
            if time < above {
                return Err(row.bad(column, "at least the percentile before it"));
            }
            above = time;
            *point = (share, time);
        }
        let function = ids
            .get(&name)
            .and_then(|&at| functions.get_mut(at as usize));
        let Some(function) = function else {
            continue;
        };
        if function.service.is_some() {
            return Err(twice(&row, name));
        }
        function.service = Quantiles::new(&points);
    }
    Ok(())
}

/// Sets the memory of functions: by function if the file has the column `HashFunction`, otherwise by app. Rows of
/// others are checked and ignored.
pub(super) fn add_memory(
    source: &Source,
    ids: &BTreeMap<String, u32>,
    functions: &mut [FunctionInfo],
) -> Result<(), TraceError> {
    let mut table = Table::new(Lines::open(source)?)?;
    let owner = table.need("HashOwner")?;
    let app = table.need("HashApp")?;
    let function = table.find("HashFunction");
    let memory = table.need("AverageAllocatedMb")?;
    while let Some(row) = table.row()? {
        let megabytes = row.number(memory, 0.0, 1e9)?;
        let (first, end) = if let Some(function) = function {
            let name = name(&row, [owner, app, function])?;
            (name.clone(), format!("{name}\0"))
        } else {
            // '0' follows '/': the range between contains the functions of the app.
            let name = format!("{}/{}", row.need_name(owner)?, row.need_name(app)?);
            (format!("{name}/"), format!("{name}0"))
        };
        for (name, &at) in ids.range(first..end) {
            let Some(function) = functions.get_mut(at as usize) else {
                continue;
            };
            if function.memory_mb.replace(megabytes).is_some() {
                return Err(twice(&row, name.clone()));
            }
        }
    }
    Ok(())
}

fn twice(row: &Row<'_>, found: String) -> TraceError {
    row.error(Problem::Twice {
        column: NAME.to_owned(),
        found,
    })
}
