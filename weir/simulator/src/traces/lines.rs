//! Lines of a file, plain or gzip, one at a time and each within a bound.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::{LINE_MAX, Problem, TEXT_MAX, TraceError, UNPACKED_FREELY, UNPACKED_MAX};

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

/// Returns the whole text of a file, plain or gzip, of at most `max` bytes.
///
/// # Errors
/// A file that cannot be read, is longer, is no UTF-8, or whose gzip stream is broken or unpacks to too much.
pub fn text(source: &Source, max: u64) -> Result<String, TraceError> {
    let mut lines = Lines::open(source)?;
    let mut text = String::new();
    // Blank lines stay, so that a parser's line numbers are the file's.
    loop {
        lines.buffer = std::mem::take(&mut lines.line).into_bytes();
        if !lines.fill()? {
            return Ok(text);
        }
        let line = std::str::from_utf8(&lines.buffer).map_err(|error| {
            let byte = error.valid_up_to() + 1;
            lines.error(Problem::NotUtf8 { byte })
        })?;
        if text.len() as u64 + line.len() as u64 + 1 > max {
            return Err(TraceError::new(
                lines.file(),
                None,
                Problem::TextTooLong { max },
            ));
        }
        text.push_str(line);
        text.push('\n');
    }
}

/// Counts what is read of a packed file.
struct Counted {
    input: Box<dyn BufRead + Send>,
    read: Arc<AtomicU64>,
}

impl io::Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl BufRead for Counted {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        self.input.consume(count);
    }
}

pub(super) struct Lines {
    input: Box<dyn BufRead + Send>,
    gzip: bool,
    /// Of a gzip file, how many bytes of it were read so far.
    packed: Arc<AtomicU64>,
    /// Bytes of text so far.
    unpacked: u64,
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
        let packed = Arc::new(AtomicU64::new(0));
        if gzip {
            let read = Arc::clone(&packed);
            input = Box::new(BufReader::new(MultiGzDecoder::new(Counted { input, read })));
        }
        Ok(Self {
            input,
            gzip,
            packed,
            unpacked: 0,
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
            self.unpacked += used as u64;
            self.check_size()?;
            if end.is_some() {
                break true;
            }
        };
        if self.buffer.last() == Some(&b'\r') {
            self.buffer.pop();
        }
        Ok(any)
    }

    /// Checks the bounds of text and of what a gzip file unpacks to.
    fn check_size(&self) -> Result<(), TraceError> {
        let problem = if self.unpacked > TEXT_MAX {
            Problem::TextTooLong { max: TEXT_MAX }
        } else if self.gzip
            && self.unpacked > UNPACKED_FREELY
            && self.unpacked / UNPACKED_MAX > self.packed.load(Ordering::Relaxed)
        {
            Problem::Unpacked {
                ratio: UNPACKED_MAX,
                freely: UNPACKED_FREELY,
            }
        } else {
            return Ok(());
        };
        Err(self.error(problem))
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
