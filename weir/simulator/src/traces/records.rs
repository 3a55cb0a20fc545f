//! Formats with one row for every request: parsing of a row into a record.

use policy::Span;
use serde::Deserialize;

use super::fields::{Row, Table};
use super::lines::{Lines, Source};
use super::timestamp::timestamp;
use super::{Format, Problem, TraceError, Work};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// Ten years, the bound on a trace's length, in seconds.
const SECONDS_MAX: u64 = 316_224_000;
const MILLISECONDS_MAX: u64 = SECONDS_MAX * 1_000;
const TOKENS_MAX: u32 = 100_000_000;
const TIMESTAMP_ALLOWED: &str = "a time such as 2023-11-16 18:15:46.6805900";
const MOONCAKE_ALLOWED: &str = "an object with timestamp (ms from the start), input_length and output_length \
                                (tokens), whole numbers from 0,";

/// A request as stated by a row; the name of its function is returned by [`Records::name`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Arrival time in nanoseconds on the trace's own clock.
    pub(super) at: i64,
    pub(super) work: Work,
    pub(super) objective: Option<Span>,
}

/// Indexes of a format's columns.
#[derive(Debug, Clone, Copy)]
enum Columns {
    Weir {
        arrival: usize,
        function: usize,
        service: Option<usize>,
        objective: Option<usize>,
        input: Option<usize>,
        output: Option<usize>,
    },
    AzureFunctions2021 {
        app: usize,
        function: usize,
        end: usize,
        duration: usize,
    },
    AzureLlm2023 {
        time: usize,
        input: usize,
        output: usize,
    },
    Alibaba {
        time: usize,
        service: usize,
        model: usize,
    },
}

#[derive(Debug)]
enum Rows {
    Table { table: Table, columns: Columns },
    Json(Lines),
}

/// Reader of requests in the order of the file.
#[derive(Debug)]
pub(super) struct Records {
    rows: Rows,
    name: String,
}

#[derive(Deserialize)]
struct Mooncake {
    timestamp: u64,
    input_length: u32,
    output_length: u32,
}

impl Records {
    pub(super) fn open(source: &Source, format: Format) -> Result<Self, TraceError> {
        let lines = Lines::open(source)?;
        let mut name = String::new();
        let rows = match format {
            Format::Mooncake => {
                name.push_str("mooncake");
                Rows::Json(lines)
            }
            _ => {
                let table = Table::new(lines)?;
                let columns = columns(&table, format)?;
                if matches!(columns, Columns::AzureLlm2023 { .. }) {
                    name.push_str("azure-llm");
                }
                Rows::Table { table, columns }
            }
        };
        Ok(Self { rows, name })
    }

    /// Returns the function of the record read last.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns an error located at the row read last.
    pub(super) fn error(&self, problem: Problem) -> TraceError {
        self.lines().error(problem)
    }

    /// Returns an error that does not concern a single row.
    pub(super) fn error_of_file(&self, problem: Problem) -> TraceError {
        TraceError::new(self.lines().file(), None, problem)
    }

    const fn lines(&self) -> &Lines {
        match &self.rows {
            Rows::Table { table, .. } => table.lines(),
            Rows::Json(lines) => lines,
        }
    }

    /// Returns the name of the column of arrival times.
    pub(super) fn time_column(&self) -> String {
        match &self.rows {
            Rows::Json(_) => "timestamp".to_owned(),
            Rows::Table { table, columns } => {
                let (Columns::Weir { arrival: at, .. }
                | Columns::AzureFunctions2021 { end: at, .. }
                | Columns::AzureLlm2023 { time: at, .. }
                | Columns::Alibaba { time: at, .. }) = columns;
                table
                    .heading()
                    .get(*at)
                    .map_or_else(String::new, ToString::to_string)
            }
        }
    }

    /// Reads the next record; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Record>, TraceError> {
        match &mut self.rows {
            Rows::Table { table, columns } => {
                let ends = matches!(columns, Columns::Weir { .. });
                let Some(row) = table.row()? else {
                    return Ok(None);
                };
                let record = columns.record(&row, &mut self.name)?;
                if ends && !table.lines().ended() {
                    return Err(table.lines().error(Problem::LineEnd));
                }
                Ok(Some(record))
            }
            Rows::Json(lines) => {
                if !lines.advance()? {
                    return Ok(None);
                }
                mooncake(lines).map(Some)
            }
        }
    }
}

fn columns(table: &Table, format: Format) -> Result<Columns, TraceError> {
    Ok(match format {
        Format::AzureFunctions2021 => Columns::AzureFunctions2021 {
            app: table.need("app")?,
            function: table.need("func")?,
            end: table.need("end_timestamp")?,
            duration: table.need("duration")?,
        },
        Format::AzureLlm2023 => Columns::AzureLlm2023 {
            time: table.need("TIMESTAMP")?,
            input: table.need("ContextTokens")?,
            output: table.need("GeneratedTokens")?,
        },
        Format::AlibabaRequests => Columns::Alibaba {
            time: table.need("gmt_create")?,
            service: table.need("exec_time_seconds")?,
            model: table.need("checkpoint_model_version_id")?,
        },
        _ => Columns::Weir {
            arrival: table.need("arrival_s")?,
            function: table.need("function")?,
            service: table.find("service_ms"),
            objective: table.find("objective_ms"),
            input: table.find("input_tokens"),
            output: table.find("output_tokens"),
        },
    })
}

impl Columns {
    /// Parses a row; overwrites `name` with the name of the function.
    fn record(&self, row: &Row<'_>, name: &mut String) -> Result<Record, TraceError> {
        match *self {
            Self::Weir {
                arrival,
                function,
                service,
                objective,
                input,
                output,
            } => {
                named(name, row.need_name(function)?);
                let objective = match stated(row, objective) {
                    None => None,
                    Some(at) => match row.nanos(at, MILLISECOND, MILLISECONDS_MAX)? {
                        0 => return Err(row.bad(at, "a number above 0")),
                        nanos => Some(Span(nanos)),
                    },
                };
                Ok(Record {
                    at: signed(row.nanos(arrival, SECOND, SECONDS_MAX)?),
                    work: weir_work(row, service, input, output)?,
                    objective,
                })
            }
            Self::AzureFunctions2021 {
                app,
                function,
                end,
                duration,
            } => {
                named(name, row.need_name(app)?);
                name.push('/');
                name.push_str(row.need_name(function)?);
                let duration = row.nanos(duration, SECOND, SECONDS_MAX)?;
                Ok(Record {
                    at: signed(row.nanos(end, SECOND, SECONDS_MAX)?) - signed(duration),
                    work: Work::Service(Span(duration)),
                    objective: None,
                })
            }
            Self::AzureLlm2023 {
                time,
                input,
                output,
            } => Ok(Record {
                at: time_of(row, time)?,
                work: Work::Tokens {
                    input: row.whole(input, TOKENS_MAX)?,
                    output: row.whole(output, TOKENS_MAX)?,
                },
                objective: None,
            }),
            Self::Alibaba {
                time,
                service,
                model,
            } => {
                if row.text(model).is_empty() {
                    named(name, "none");
                } else {
                    named(name, row.need_name(model)?);
                }
                Ok(Record {
                    at: time_of(row, time)?,
                    work: Work::Service(Span(row.nanos(service, SECOND, SECONDS_MAX)?)),
                    objective: None,
                })
            }
        }
    }
}

fn named(name: &mut String, text: &str) {
    name.clear();
    name.push_str(text);
}

/// Returns the column if it exists and its field is not empty.
fn stated(row: &Row<'_>, column: Option<usize>) -> Option<usize> {
    column.filter(|&at| !row.text(at).is_empty())
}

fn weir_work(
    row: &Row<'_>,
    service: Option<usize>,
    input: Option<usize>,
    output: Option<usize>,
) -> Result<Work, TraceError> {
    let service = stated(row, service);
    match (stated(row, input), stated(row, output)) {
        (None, None) => match service {
            None => Ok(Work::Unstated),
            Some(at) => {
                let nanos = row.nanos(at, MILLISECOND, MILLISECONDS_MAX)?;
                Ok(Work::Service(Span(nanos)))
            }
        },
        (Some(input), Some(output)) => match service {
            None => Ok(Work::Tokens {
                input: row.whole(input, TOKENS_MAX)?,
                output: row.whole(output, TOKENS_MAX)?,
            }),
            Some(at) => Err(row.bad(at, "an empty field beside tokens")),
        },
        (Some(at), None) => Err(row.bad(at, "an empty field, or output_tokens as well,")),
        (None, Some(at)) => Err(row.bad(at, "an empty field, or input_tokens as well,")),
    }
}

fn time_of(row: &Row<'_>, column: usize) -> Result<i64, TraceError> {
    timestamp(row.text(column)).ok_or_else(|| row.bad(column, TIMESTAMP_ALLOWED))
}

fn mooncake(lines: &Lines) -> Result<Record, TraceError> {
    let bad = |column: usize, message: String| {
        lines.error(Problem::Json {
            column,
            message,
            allowed: MOONCAKE_ALLOWED,
        })
    };
    let row: Mooncake = serde_json::from_str(lines.line()).map_err(|error| {
        let text = error.to_string();
        // The parser's "line 1" is omitted: it is given one line at a time.
        let message = text
            .rsplit_once(" at line ")
            .map_or(&*text, |parts| parts.0);
        bad(error.column(), message.chars().take(80).collect())
    })?;
    if row.timestamp > MILLISECONDS_MAX {
        return Err(bad(1, format!("timestamp is above {MILLISECONDS_MAX}")));
    }
    Ok(Record {
        at: signed(row.timestamp * MILLISECOND),
        work: Work::Tokens {
            input: row.input_length,
            output: row.output_length,
        },
        objective: None,
    })
}

/// Converts nanoseconds, of which ten years are far below the largest value.
fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
