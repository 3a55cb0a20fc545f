//! Lines of a file, plain or gzip, one at a time and each within a bound.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor};
use std::path::PathBuf;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

use super::{LINE_MAX, Problem, TraceError};

const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Where a trace is. It is opened more than once, so a pipe cannot be one.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// Bytes in memory, such as of a trace that comes with a program.
    Bytes {
        /// What errors call it.
        name: Arc<str>,
        /// What would be in the file.
        bytes: Arc<[u8]>,
    },
}

impl Source {
    /// Bytes in memory.
    #[must_use]
    pub fn bytes(name: &str, bytes: &[u8]) -> Self {
        Self::Bytes {
            name: name.into(),
            bytes: bytes.into(),
        }
    }

    fn name(&self) -> Arc<str> {
        match self {
            Self::File(path) => path.display().to_string().into(),
            Self::Bytes { name, .. } => Arc::clone(name),
        }
    }

    fn reader(&self) -> io::Result<Box<dyn BufRead + Send>> {
        Ok(match self {
            Self::File(path) => Box::new(BufReader::new(File::open(path)?)),
            Self::Bytes { bytes, .. } => Box::new(Cursor::new(Arc::clone(bytes))),
        })
    }
}

/// The first byte of the text; none if it is empty.
pub(super) fn first_byte(source: &Source) -> Result<Option<u8>, TraceError> {
    let mut lines = Lines::open(source)?;
    lines.advance()?;
    Ok(lines.line().bytes().next())
}

pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    gzip: bool,
    file: Arc<str>,
    buffer: Vec<u8>,
    line: String,
    number: u64,
    ended: bool,
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, number, .. } = self;
        f.debug_struct("Lines")
            .field("file", file)
            .field("number", number)
            .finish_non_exhaustive()
    }
}

impl Lines {
    pub(super) fn open(source: &Source) -> Result<Self, TraceError> {
        let file = source.name();
        let unreadable =
            |error: io::Error| TraceError::new(&file, None, Problem::Unreadable(error.to_string()));
        let mut input = source.reader().map_err(unreadable)?;
        let gzip = input
            .fill_buf()
            .map_err(unreadable)?
            .starts_with(&GZIP_MAGIC);
        if gzip {
            input = Box::new(BufReader::new(MultiGzDecoder::new(input)));
        }
        Ok(Self {
            input,
            gzip,
            file,
            buffer: Vec::new(),
            line: String::new(),
            number: 0,
            ended: true,
        })
    }

    /// Goes to the next line that is not blank; false after the last.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            self.buffer = std::mem::take(&mut self.line).into_bytes();
            if !self.fill()? {
                return Ok(false);
            }
            if self.number == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.drain(..BYTE_ORDER_MARK.len());
            }
            if !self.buffer.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        // The bytes become the line and go back with the next call: nothing is copied.
        match String::from_utf8(std::mem::take(&mut self.buffer)) {
            Ok(line) => {
                self.line = line;
                Ok(true)
            }
            Err(error) => Err(self.error(Problem::NotUtf8 {
                byte: error.utf8_error().valid_up_to() + 1,
            })),
        }
    }

    /// The line that was read last, without its end.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    /// Reads one line into the buffer; false after the last.
    fn fill(&mut self) -> Result<bool, TraceError> {
        self.buffer.clear();
        self.number += 1;
        let mut any = false;
        self.ended = loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let problem = self.reading(&error);
                    return Err(self.error(problem));
                }
            };
            if chunk.is_empty() {
                break false;
            }
            any = true;
            let end = chunk.iter().position(|&byte| byte == b'\n');
            let part = end.map_or(chunk, |end| &chunk[..end]);
            if self.buffer.len() + part.len() > LINE_MAX {
                return Err(self.error(Problem::LineTooLong { max: LINE_MAX }));
            }
            self.buffer.extend_from_slice(part);
            let used = end.map_or(part.len(), |end| end + 1);
            self.input.consume(used);
            if end.is_some() {
                break true;
            }
        };
        if self.buffer.last() == Some(&b'\r') {
            self.buffer.pop();
        }
        Ok(any)
    }

    fn reading(&self, error: &io::Error) -> Problem {
        match error.kind() {
            io::ErrorKind::UnexpectedEof if self.gzip => Problem::GzipCut,
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.gzip => {
                Problem::GzipBroken(error.to_string())
            }
            _ => Problem::Unreadable(error.to_string()),
        }
    }

    pub(super) const fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// The line that was read last had a line end.
    pub(super) const fn ended(&self) -> bool {
        self.ended
    }

    /// An error at the line that was read last.
    pub(super) fn error(&self, problem: Problem) -> TraceError {
        TraceError::new(&self.file, Some(self.number), problem)
    }
}
