//! What is wrong with a trace, and where.

use std::fmt;
use std::sync::Arc;

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The system cannot read it.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// The gzip stream ends too early.
    #[error("the gzip stream ends in its middle: the file was cut")]
    GzipCut,
    /// The gzip stream is broken.
    #[error("the gzip stream is broken: {0}")]
    GzipBroken(String),
    /// A byte is not UTF-8.
    #[error("byte {byte} of the line is not UTF-8: text in UTF-8 is needed")]
    NotUtf8 {
        /// From 1.
        byte: usize,
    },
    /// A line is too long.
    #[error("the line is too long: at most {max} bytes are allowed")]
    LineTooLong {
        /// The bound.
        max: usize,
    },
    /// There is nothing in it.
    #[error("the file is empty: a heading is needed")]
    Empty,
    /// It has a heading and nothing else.
    #[error("there is no row: at least one is needed")]
    NoRows,
    /// The heading is of no known format.
    #[error("the heading is of no known format: {found:?}; {allowed}")]
    Heading {
        /// How it begins.
        found: String,
        /// Formats that there are.
        allowed: String,
    },
    /// A column is missing.
    #[error("the heading has no column {column}")]
    ColumnMissing {
        /// Its name.
        column: String,
    },
    /// A column comes twice.
    #[error("the heading has the column {column} twice: once is needed")]
    ColumnTwice {
        /// Its name.
        column: String,
    },
    /// A row has more or fewer fields than the heading.
    #[error("{found} fields: {needed} are needed, as in the heading")]
    Fields {
        /// Of the row.
        found: usize,
        /// Of the heading.
        needed: usize,
    },
    /// A quoted field is not closed, or has a quote inside.
    #[error(
        "{column}: the quote is not closed before a comma: a text without quotes inside is needed"
    )]
    Quote {
        /// Its name.
        column: String,
    },
    /// A field is not what it has to be.
    #[error("{column} is {found:?}: {allowed} is needed")]
    Field {
        /// Its name.
        column: String,
        /// How it begins.
        found: String,
        /// What is possible.
        allowed: String,
    },
    /// A line of JSON is not what it has to be.
    #[error("column {column}: {message}: {allowed} is needed")]
    Json {
        /// In characters, from 1.
        column: usize,
        /// What the parser says.
        message: String,
        /// What is possible.
        allowed: &'static str,
    },
    /// It arrives before the line above it.
    #[error("{column} is earlier than in the row above: rows in the order of arrival are needed")]
    Order {
        /// The column of the time.
        column: String,
    },
    /// A function has two rows.
    #[error("{column} is {found:?}, as in a row above: one row a function is needed")]
    Twice {
        /// Columns of the name.
        column: String,
        /// The name.
        found: String,
    },
    /// There is more than is kept.
    #[error("there are more than {max} {what}: at most that many are allowed")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// There is more text than is read.
    #[error("there are more than {max} bytes of text: at most that many are read")]
    TextTooLong {
        /// The bound.
        max: u64,
    },
    /// A gzip file unpacks to far more than traces do.
    #[error(
        "the gzip stream unpacks to more than {ratio} times its size: at most that is read beyond the first {freely} bytes"
    )]
    Unpacked {
        /// The bound.
        ratio: u64,
        /// What is read in any case.
        freely: u64,
    },
    /// From the first arrival to this it is too long.
    #[error("{column} is more than ten years after the first: at most that is allowed")]
    TooLate {
        /// The column of the time.
        column: String,
    },
    /// The last line has no line end.
    #[error("the last line has no line end, so the file may have been cut: one is needed")]
    LineEnd,
    /// It is not what it was when it was checked.
    #[error("the file has changed since it was checked")]
    Changed,
}

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    file: Arc<str>,
    line: Option<u64>,
    problem: Problem,
}

/// What is wrong with a trace, and where.
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

    /// The file, as it was named.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.0.file
    }

    /// The line, from 1; none where the file as a whole is meant.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        self.0.line
    }

    /// What is wrong.
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
