//! Recorded workloads: readers of public traces and of Weir's own CSV, and a writer of the latter.
//!
//! A file is plain or gzip, which is detected by its first two bytes. Its format is detected by its heading, or set by the caller
//! ([`Options::format`]); [`Format`] lists the formats. Columns are found by name and may be in any order.
//! The whole file is read and checked before the first arrival is returned, so an invalid line is reported before a run and
//! not during it; every [`TraceError`] names the file, the line, the column and what is allowed there. Blank lines
//! are skipped.
//!
//! | format | zero of time | one arrival is | work |
//! |---|---|---|---|
//! | Weir's CSV | as written | a row | as written |
//! | Azure Functions 2019 | begin of the first minute | one of a minute's count, see [`Placement`] | drawn from the durations, if given |
//! | Azure Functions 2021 | first arrival | a row, at its end less its duration | its duration |
//! | Azure LLM 2023 | first arrival | a row | tokens |
//! | Mooncake | as written | a row | tokens |
//! | Alibaba GenTD26 requests | first arrival | a row, whatever its outcome | its execution time |
//! | Torpor samples | begin of the first minute | one of a minute's count | not stated |
//!
//! **Bounds.** A file has at most [`TEXT_MAX`] bytes of text; a gzip file at most [`UNPACKED_MAX`] times its own size, so that a
//! small file cannot fill the memory when unpacked; a trace at most [`ROWS_MAX`] rows.
//!
//! **Memory.** A line has at most [`LINE_MAX`] bytes and a trace at most [`FUNCTIONS_MAX`] functions, with names that are
//! kept in memory. Rows in the order of arrival are not: they are read on demand, in a second pass. Azure
//! Functions 2021 is ordered by end and not by arrival: it is kept and sorted, 48 bytes a row and half as much again
//! while it is sorted, at most [`SORTED_MAX`] rows. Minute counts are given function by function and are kept: 8 bytes for
//! every minute with requests, at most [`CELLS_MAX`] of these, and about 1 KB a function.
//!
//! A plain file truncated within a number looks complete, since several public traces end without a
//! line end; only Weir's own CSV must end with one, and truncation of a gzip file is always detected.

mod error;
mod fields;
mod functions_2019;
mod lines;
mod minutes;
mod quantiles;
mod records;
mod requests;
mod series;
mod timestamp;
mod workload;
mod write;

pub use error::{Problem, TraceError};
pub use lines::{Source, text};
pub use minutes::{MinuteCounts, Placement};
pub use quantiles::Quantiles;
pub use requests::Requests;
pub use series::{Sample, Series};
pub use workload::{Arrival, FunctionInfo, Work, Workload};
pub use write::{WriteError, write_csv};

use crate::random::Streams;
use fields::Table;
use lines::Lines;

/// Largest size of a file's text, unpacked, in bytes: 16 GiB.
pub const TEXT_MAX: u64 = 16 << 30;
/// Largest number of bytes of text for each byte of a gzip file, beyond the first [`UNPACKED_FREELY`]: names and times of
/// requests are less repetitive, and a file made to fill the memory unpacks to a thousand times its size.
pub const UNPACKED_MAX: u64 = 200;
/// Amount of text of a gzip file that is read regardless of the file's size, in bytes.
pub const UNPACKED_FREELY: u64 = 16 << 20;
/// Largest number of rows of a trace with a row for every request.
pub const ROWS_MAX: u64 = 200_000_000;
/// Largest length of a line, in bytes.
pub const LINE_MAX: usize = 1 << 20;
/// Largest number of functions of a workload.
pub const FUNCTIONS_MAX: u32 = 1 << 20;
/// Largest number of minutes with requests, over all functions, of a trace of minute counts.
pub const CELLS_MAX: usize = 1 << 26;
/// Largest number of rows of a trace which has to be sorted.
pub const SORTED_MAX: usize = 1 << 24;
/// Longest time from the first arrival to the last, in nanoseconds: ten years.
pub const LENGTH_MAX: u64 = 10 * 366 * 86_400 * 1_000_000_000;

/// File format of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `arrival_s,function` and, optionally, `service_ms`, `objective_ms`, `input_tokens`, `output_tokens`; an empty field
    /// states no value. Ordered by arrival; every line must have a line end.
    Weir,
    /// Azure Functions 2019, invocations: `HashOwner,HashApp,HashFunction` and one column a minute, ordered by their numbers;
    /// other columns, such as `Trigger`, are ignored.
    AzureFunctions2019,
    /// Azure Functions 2021: `app,func,end_timestamp,duration`, seconds.
    AzureFunctions2021,
    /// Azure LLM inference 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`.
    AzureLlm2023,
    /// Mooncake: JSON lines with `timestamp` (ms), `input_length`, `output_length`.
    Mooncake,
    /// Alibaba GenTD26, `lora_request_trace`: `gmt_create`, `exec_time_seconds`, `checkpoint_model_version_id` and
    /// others. The function is the base model; requests without one belong to the function `none`.
    AlibabaRequests,
    /// Torpor's samples: `function`, then `minute_1`, `minute_2` …
    TorporSamples,
}

impl Format {
    /// All formats, in the order in which headings are compared.
    pub const ALL: [Self; 7] = [
        Self::Weir,
        Self::AzureFunctions2019,
        Self::AzureFunctions2021,
        Self::AzureLlm2023,
        Self::Mooncake,
        Self::AlibabaRequests,
        Self::TorporSamples,
    ];

    /// Returns the columns which the format requires and by which it is detected; none for a file of JSON lines.
    #[must_use]
    pub const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Weir => &["arrival_s", "function"],
            Self::AzureFunctions2019 => &["HashOwner", "HashApp", "HashFunction"],
            Self::AzureFunctions2021 => &["app", "func", "end_timestamp", "duration"],
            Self::AzureLlm2023 => &["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
            Self::Mooncake => &[],
            Self::AlibabaRequests => &[
                "gmt_create",
                "exec_time_seconds",
                "checkpoint_model_version_id",
            ],
            Self::TorporSamples => &["function", "minute_1"],
        }
    }

    /// Returns the name of the format for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weir => "Weir's CSV",
            Self::AzureFunctions2019 => "Azure Functions 2019",
            Self::AzureFunctions2021 => "Azure Functions 2021",
            Self::AzureLlm2023 => "Azure LLM 2023",
            Self::Mooncake => "Mooncake",
            Self::AlibabaRequests => "Alibaba GenTD26",
            Self::TorporSamples => "Torpor's samples",
        }
    }

    /// Returns whether the format gives the number of requests in each minute, instead of their arrival times.
    #[must_use]
    pub const fn has_counts(self) -> bool {
        matches!(self, Self::AzureFunctions2019 | Self::TorporSamples)
    }

    fn of_table(table: &Table) -> Option<Self> {
        Self::ALL.into_iter().find(|format| {
            let columns = format.columns();
            !columns.is_empty()
                && columns.iter().all(|name| table.find(name).is_some())
                // Otherwise it is the file of durations or of memory.
                && (*format != Self::AzureFunctions2019 || minutes::has_minutes(table, *format))
        })
    }

    /// Returns the columns as listed in error messages.
    fn described(self) -> String {
        let columns = self.columns().join(",");
        match self {
            Self::AzureFunctions2019 => columns + ",1,2 … (minutes)",
            _ => columns,
        }
    }
}

/// Settings for reading a trace.
#[derive(Clone, Debug)]
pub struct Options {
    /// Format of the file; if `None`, it is detected by the heading.
    pub format: Option<Format>,
    /// Arrival times of a minute's requests, where a trace gives counts.
    pub placement: Placement,
    /// Random streams for [`Placement::Random`] and for service times drawn from durations.
    pub streams: Streams,
    /// File of durations, for Azure Functions 2019.
    pub durations: Option<Source>,
    /// File of memory, for Azure Functions 2019.
    pub memory: Option<Source>,
}

impl Options {
    /// Returns settings with detection of the format and random arrival times within a minute.
    #[must_use]
    pub const fn new(streams: Streams) -> Self {
        Self {
            format: None,
            placement: Placement::Random,
            streams,
            durations: None,
            memory: None,
        }
    }
}

/// Arrivals of a trace, in the order of time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Arrivals {
    /// Arrivals of a trace with a row for every request.
    Requests(Box<Requests>),
    /// Arrivals of a trace with minute counts.
    MinuteCounts(Box<MinuteCounts>),
}

impl Iterator for Arrivals {
    type Item = Result<Arrival, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Requests(requests) => requests.next(),
            Self::MinuteCounts(counts) => counts.next().map(Ok),
        }
    }
}

/// Reads and checks a whole trace, and returns its functions and, lazily, its arrivals.
///
/// # Errors
/// Returns the first invalid line; also an error if the file cannot be read, has no known format, or exceeds a bound.
pub fn open(source: &Source, options: &Options) -> Result<Workload<Arrivals>, TraceError> {
    let format = match options.format {
        Some(format) => format,
        None => recognise(source)?,
    };
    match format {
        Format::AzureFunctions2019 | Format::TorporSamples => {
            let workload = minutes::open(source, format, options)?;
            Ok(Workload {
                functions: workload.functions,
                arrivals: Arrivals::MinuteCounts(Box::new(workload.arrivals)),
            })
        }
        _ => {
            let workload = requests::open(source, format)?;
            Ok(Workload {
                functions: workload.functions,
                arrivals: Arrivals::Requests(Box::new(workload.arrivals)),
            })
        }
    }
}

/// Detects a file's format by its first line.
///
/// # Errors
/// Returns [`Problem::Heading`] if no format matches, [`Problem::Empty`], and errors of reading.
pub fn recognise(source: &Source) -> Result<Format, TraceError> {
    if lines::first_byte(source)? == Some(b'{') {
        return Ok(Format::Mooncake);
    }
    let table = Table::new(Lines::open(source)?)?;
    Format::of_table(&table).ok_or_else(|| table.unknown_heading())
}
