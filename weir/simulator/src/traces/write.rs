//! Writer of Weir's own CSV.

use std::io::{self, Write};

use policy::Span;

use super::fields::is_name;
use super::{Arrival, TraceError, Work, Workload};

/// Error in writing a workload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The workload could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The output could not be written.
    #[error("cannot write: {0}")]
    Write(#[from] io::Error),
    /// The name of a function is not allowed in the format.
    #[error(
        "the function's name is {name:?}: 1 to 256 bytes without quotes and control characters are needed"
    )]
    Name {
        /// Name of the function.
        name: String,
    },
    /// An arrival refers to a function that does not exist.
    #[error("an arrival refers to function {function}, but there are only {functions}")]
    Function {
        /// Index of the function.
        function: u32,
        /// Number of functions of the workload.
        functions: usize,
    },
}

/// Writes a workload as Weir's CSV and returns the number of requests. Reading it back yields the same arrivals to the
/// nanosecond; of functions it keeps the names of those with requests, in the order of their first request.
///
/// Every column is written: `arrival_s,function,service_ms,objective_ms,input_tokens,output_tokens`. The objective is
/// that of the request if it has one, otherwise that of its function.
///
/// # Errors
/// Returns errors of the workload, and [`WriteError`].
pub fn write_csv<A>(workload: Workload<A>, to: &mut impl Write) -> Result<u64, WriteError>
where
    A: Iterator<Item = Result<Arrival, TraceError>>,
{
    let functions = workload.functions;
    // A name with a comma, or with blanks at its ends, would be parsed differently without quotes.
    let mut names = Vec::with_capacity(functions.len());
    for function in &functions {
        let name = &function.name;
        if !is_name(name) || name.contains('"') {
            return Err(WriteError::Name { name: name.clone() });
        }
        let plain = name.trim() == name && !name.contains(',');
        names.push(if plain {
            name.clone()
        } else {
            format!("\"{name}\"")
        });
    }
    writeln!(
        to,
        "arrival_s,function,service_ms,objective_ms,input_tokens,output_tokens"
    )?;
    let mut written = 0;
    for arrival in workload.arrivals {
        let arrival = arrival?;
        let at = arrival.function as usize;
        let (Some(name), Some(function)) = (names.get(at), functions.get(at)) else {
            return Err(WriteError::Function {
                function: arrival.function,
                functions: functions.len(),
            });
        };
        let nanos = arrival.at.0;
        write!(
            to,
            "{}.{:09},{name},",
            nanos / 1_000_000_000,
            nanos % 1_000_000_000
        )?;
        if let Work::Service(span) = arrival.work {
            write_ms(to, span)?;
        }
        to.write_all(b",")?;
        if let Some(span) = arrival.objective.or(function.objective) {
            write_ms(to, span)?;
        }
        match arrival.work {
            Work::Tokens { input, output } => writeln!(to, ",{input},{output}")?,
            Work::Unstated | Work::Service(_) => writeln!(to, ",,")?,
        }
        written += 1;
    }
    Ok(written)
}

fn write_ms(to: &mut impl Write, span: Span) -> io::Result<()> {
    write!(to, "{}.{:06}", span.0 / 1_000_000, span.0 % 1_000_000)
}
