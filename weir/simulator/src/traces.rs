//! Recorded workloads: readers of public traces and of Weir's own CSV, and the writer of the latter.
//!
//! A file is plain or gzip, told by its first two bytes. Its format is told by its heading, or by the caller
//! ([`Options::format`]); [`Format`] lists what is read. Columns are found by name and may come in any order.
//! The whole file is read and checked before the first arrival is given, so a broken line is found before a run and
//! not in its middle; every [`TraceError`] names the file, the line, the column and what is allowed there. Blank lines
//! are passed over.
//!
//! | format | zero of time | one arrival is | work |
//! |---|---|---|---|
//! | Weir's CSV | as written | a row | as written |
//! | Azure Functions 2019 | begin of the first minute | one of a minute's count, see [`Placement`] | drawn from the durations, if given |
//! | Azure Functions 2021 | first arrival | a row, at its end less its duration | its duration |
//! | Azure LLM 2023 | first arrival | a row | tokens |
//! | Mooncake | as written | a row | tokens |
//! | Alibaba GenTD26 requests | first arrival | a row, whatever became of it | its execution time |
//! | Torpor samples | begin of the first minute | one of a minute's count | not stated |
//!
//! **Bounds.** A file has at most [`TEXT_MAX`] bytes of text; a gzip file at most [`UNPACKED_MAX`] times its own size, so that a small
//! file does not unpack to what fills the memory; a trace at most [`ROWS_MAX`] rows.
//!
//! **Memory.** A line has at most [`LINE_MAX`] bytes and a trace at most [`FUNCTIONS_MAX`] functions, whose names are
//! kept. Rows in the order of arrival are not kept: they are read when they are asked for, in a second pass. Azure
//! Functions 2021 is ordered by end and not by arrival: it is kept and sorted, 48 bytes a row and half as much again
//! while it is sorted, at most [`SORTED_MAX`] rows. Minute counts come function by function and are kept: 8 bytes for
//! every minute with requests, at most [`CELLS_MAX`] of these, and about 1 KB a function.
//!
//! A plain file that was cut within a number looks like a whole one, since several public traces end without a
//! line end; only Weir's own CSV must end with one, and a gzip file always shows it.

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

/// Most text of a file, unpacked, bytes: 16 GiB.
pub const TEXT_MAX: u64 = 16 << 30;
/// Most bytes of text for each byte of a gzip file, beyond the first [`UNPACKED_FREELY`]: names and times of requests do not repeat so
/// often, and a file that is made to fill the memory unpacks to a thousand times its size.
pub const UNPACKED_MAX: u64 = 200;
/// Text of a gzip file that is read whatever the file's size is, bytes.
pub const UNPACKED_FREELY: u64 = 16 << 20;
/// Most rows of a trace with a row for every request.
pub const ROWS_MAX: u64 = 200_000_000;
/// Longest line, bytes.
pub const LINE_MAX: usize = 1 << 20;
/// Most functions of a workload.
pub const FUNCTIONS_MAX: u32 = 1 << 20;
/// Most minutes with requests, over all functions, of a trace of minute counts.
pub const CELLS_MAX: usize = 1 << 26;
/// Most rows of a trace that has to be sorted.
pub const SORTED_MAX: usize = 1 << 24;
/// Longest time from the first arrival to the last, nanoseconds: ten years.
pub const LENGTH_MAX: u64 = 10 * 366 * 86_400 * 1_000_000_000;

/// What a trace is written in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `arrival_s,function` and, if wanted, `service_ms`, `objective_ms`, `input_tokens`, `output_tokens`; an empty field
    /// states nothing. Ordered by arrival, every line with a line end.
    Weir,
    /// Azure Functions 2019, invocations: `HashOwner,HashApp,HashFunction` and one column a minute, by whose numbers they are ordered;
    /// others, as `Trigger`, are passed over.
    AzureFunctions2019,
    /// Azure Functions 2021: `app,func,end_timestamp,duration`, seconds.
    AzureFunctions2021,
    /// Azure LLM inference 2023: `TIMESTAMP,ContextTokens,GeneratedTokens`.
    AzureLlm2023,
    /// Mooncake: JSON lines with `timestamp` (ms), `input_length`, `output_length`.
    Mooncake,
    /// Alibaba GenTD26, `lora_request_trace`: `gmt_create`, `exec_time_seconds`, `checkpoint_model_version_id` and
    /// others. The function is the base model; requests that name none belong to the function `none`.
    AlibabaRequests,
    /// Torpor's samples: `function`, then `minute_1`, `minute_2` …
    TorporSamples,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Weir,
        Self::AzureFunctions2019,
        Self::AzureFunctions2021,
        Self::AzureLlm2023,
        Self::Mooncake,
        Self::AlibabaRequests,
        Self::TorporSamples,
    ];

    /// Columns that it has to have and by which it is told; a file of JSON lines has none.
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

    /// Its name, for people.
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

    /// Whether it says how many requests there were in each minute, and not when each came.
    #[must_use]
    pub const fn has_counts(self) -> bool {
        matches!(self, Self::AzureFunctions2019 | Self::TorporSamples)
    }

    fn of_table(table: &Table) -> Option<Self> {
        Self::ALL.into_iter().find(|format| {
            let columns = format.columns();
            !columns.is_empty()
                && columns.iter().all(|name| table.find(name).is_some())
                // Else it is the file of durations or of memory.
                && (*format != Self::AzureFunctions2019 || minutes::has_minutes(table, *format))
        })
    }

    /// Returns its columns as an error lists them.
    fn described(self) -> String {
        let columns = self.columns().join(",");
        match self {
            Self::AzureFunctions2019 => columns + ",1,2 … (minutes)",
            _ => columns,
        }
    }
}

/// How a trace is read.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its format; none: its heading tells.
    pub format: Option<Format>,
    /// Where in a minute the requests of a minute's count arrive.
    pub placement: Placement,
    /// For [`Placement::Random`] and for service times that are drawn.
    pub streams: Streams,
    /// Azure Functions 2019: the file of durations.
    pub durations: Option<Source>,
    /// Azure Functions 2019: the file of memory.
    pub memory: Option<Source>,
}

impl Options {
    /// Format by heading, requests at random within their minutes.
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

/// The arrivals of a trace, in the order of time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Arrivals {
    /// Of a trace with a row for every request.
    Requests(Box<Requests>),
    /// Of a trace with counts.
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

/// Reads a trace: checks all of it and gives its functions and, lazily, its arrivals.
///
/// # Errors
/// The first broken line; also a file that cannot be read, is of no known format, or is beyond a bound.
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

/// Tells a file's format by its first line.
///
/// # Errors
/// [`Problem::Heading`] where it is of no known format, [`Problem::Empty`], and what reading finds.
pub fn recognise(source: &Source) -> Result<Format, TraceError> {
    if lines::first_byte(source)? == Some(b'{') {
        return Ok(Format::Mooncake);
    }
    let table = Table::new(Lines::open(source)?)?;
    Format::of_table(&table).ok_or_else(|| table.unknown_heading())
}
