//! Reads the lines of a file, plain or gzip, one at a time and each within a bound.

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

/// Origin of a trace. It is opened more than once, so it cannot be a pipe.
#[derive(Clone, Debug)]
pub enum Source {
    /// Path of a file.
    File(PathBuf),
    /// Bytes in memory, such as a trace included in a program.
    Bytes {
        /// Name used in error messages.
        name: Arc<str>,
        /// Content of the file.
        bytes: Arc<[u8]>,
    },
}

impl Source {
    /// Creates a source from bytes in memory; `name` is used in error messages.
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

/// Returns the first byte of the text; `None` if it is empty.
pub(super) fn first_byte(source: &Source) -> Result<Option<u8>, TraceError> {
    let mut lines = Lines::open(source)?;
    lines.advance()?;
    Ok(lines.line().bytes().next())
}

/// Reads the whole text of a file, plain or gzip, of at most `max` bytes.
///
/// # Errors
/// Returns an error if the file cannot be read, is longer than `max`, is not UTF-8, or if its gzip stream is corrupt or unpacks
/// to too much.
pub fn text(source: &Source, max: u64) -> Result<String, TraceError> {
    let mut lines = Lines::open(source)?;
    let mut text = String::new();
    // Blank lines are kept, so that a parser's line numbers are those of the file.
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

/// Reader which counts the bytes read of a packed file.
struct CountingReader {
    input: Box<dyn BufRead + Send>,
    read: Arc<AtomicU64>,
}

impl io::Read for CountingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl BufRead for CountingReader {
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
    /// Number of bytes read so far of a gzip file.
    packed: Arc<AtomicU64>,
    /// Number of bytes of text so far.
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
            input = Box::new(BufReader::new(MultiGzDecoder::new(CountingReader {
                input,
                read,
            })));
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

    /// Advances to the next line which is not blank; returns false after the last.
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
        // The buffer becomes the line and is reused by the next call: nothing is copied.
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

    /// Returns the line read last, without its line end.
    pub(super) fn line(&self) -> &str {
        &self.line
    }

    /// Reads one line into the buffer; returns false after the last.
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

    /// Checks the bounds on the text and on the ratio of unpacking.
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

    /// Returns whether the line read last had a line end.
    pub(super) const fn ended(&self) -> bool {
        self.ended
    }

    /// Returns an error located at the line read last.
    pub(super) fn error(&self, problem: Problem) -> TraceError {
        TraceError::new(&self.file, Some(self.number), problem)
    }
}
