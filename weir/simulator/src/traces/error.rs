//! Errors in traces, with their location.

use std::fmt;
use std::sync::Arc;

/// Kind of an error in a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The system cannot read the file.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// The gzip stream ends too early.
    #[error("the gzip stream is truncated")]
    GzipCut,
    /// The gzip stream is corrupt.
    #[error("the gzip stream is corrupt: {0}")]
    GzipBroken(String),
    /// A byte is not UTF-8.
    #[error("byte {byte} of the line is not UTF-8")]
    NotUtf8 {
        /// Position of the byte in the line, counted from 1.
        byte: usize,
    },
    /// A line is too long.
    #[error("the line is too long: at most {max} bytes are allowed")]
    LineTooLong {
        /// Largest length of a line, in bytes.
        max: usize,
    },
    /// The file is empty.
    #[error("the file is empty: a heading is needed")]
    Empty,
    /// The file has a heading but no rows.
    #[error("there are no rows: at least one is needed")]
    NoRows,
    /// The heading matches no known format.
    #[error("the heading is of no known format: {found:?}; {allowed}")]
    Heading {
        /// Beginning of the heading.
        found: String,
        /// Known formats with their columns.
        allowed: String,
    },
    /// A column is missing.
    #[error("the heading has no column {column}")]
    ColumnMissing {
        /// Name of the column.
        column: String,
    },
    /// The heading names a column twice.
    #[error("the heading has the column {column} twice")]
    ColumnTwice {
        /// Name of the column.
        column: String,
    },
    /// A row has more or fewer fields than the heading.
    #[error("{found} fields: {needed} are needed, as in the heading")]
    Fields {
        /// Number of fields in the row.
        found: usize,
        /// Number of fields in the heading.
        needed: usize,
    },
    /// A quoted field is not closed, or contains a quote.
    #[error(
        "{column}: the quote is not closed before a comma: a text without quotes inside is needed"
    )]
    Quote {
        /// Name of the column.
        column: String,
    },
    /// A field has an invalid value.
    #[error("{column} is {found:?}: {allowed} is needed")]
    Field {
        /// Name of the column.
        column: String,
        /// Beginning of the field.
        found: String,
        /// Description of the allowed values.
        allowed: String,
    },
    /// A line of JSON is invalid.
    #[error("column {column}: {message}: {allowed} is needed")]
    Json {
        /// Position in characters, counted from 1.
        column: usize,
        /// Message of the parser.
        message: String,
        /// Description of the allowed values.
        allowed: &'static str,
    },
    /// A row arrives before the row above it.
    #[error("{column} is earlier than in the row above: rows in the order of arrival are needed")]
    Order {
        /// Column of the arrival time.
        column: String,
    },
    /// Two rows have the same function.
    #[error("{column} is {found:?}, as in a row above: one row for each function is needed")]
    Twice {
        /// Columns of the function's name.
        column: String,
        /// Name of the function.
        found: String,
    },
    /// A bound on the number of items is exceeded.
    #[error("there are more than {max} {what}: at most that many are allowed")]
    TooMany {
        /// Kind of the items.
        what: &'static str,
        /// Largest number of items.
        max: usize,
    },
    /// The text exceeds a bound.
    #[error("there are more than {max} bytes of text: at most that many are read")]
    TextTooLong {
        /// Largest size of the text, in bytes.
        max: u64,
    },
    /// A gzip file unpacks to far more than traces do.
    #[error(
        "the gzip stream unpacks to more than {ratio} times its size: at most that is read beyond the first {freely} bytes"
    )]
    Unpacked {
        /// Largest ratio of unpacked to packed size.
        ratio: u64,
        /// Amount of text that is read in any case, in bytes.
        freely: u64,
    },
    /// The time since the first arrival exceeds [`LENGTH_MAX`](super::LENGTH_MAX).
    #[error("{column} is more than ten years after the first: at most that is allowed")]
    TooLate {
        /// Column of the arrival time.
        column: String,
    },
    /// The last line has no line end.
    #[error("the last line has no line end: the file may be truncated")]
    LineEnd,
    /// The file differs between the check and the second pass.
    #[error("the file has changed since it was checked")]
    Changed,
}

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    file: Arc<str>,
    line: Option<u64>,
    problem: Problem,
}

/// Error in a trace, with file and line.
#[derive(Debug, PartialEq, Eq)]
pub struct TraceError(Box<Inner>);

impl TraceError {
    pub(super) fn new(file: &Arc<str>, line: Option<u64>, problem: Problem) -> Self {
        Self(Box::new(Inner {
            file: Arc::clone(file),
            line,
            problem,
        }))
    }

    /// Returns the name of the file, as the source gave it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// Returns the line, counted from 1; `None` if the error concerns the whole file.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.0.line
    }

    /// Returns the kind of the error.
    #[must_use]
    pub fn problem(&self) -> &Problem {
        &self.0.problem
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            file,
            line,
            problem,
        } = &*self.0;
        match line {
            Some(line) => write!(f, "{file}: line {line}: {problem}"),
            None => write!(f, "{file}: {problem}"),
        }
    }
}

impl std::error::Error for TraceError {}
