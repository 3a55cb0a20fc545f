//! Standard output, written by a thread of its own.
//!
//! A reader that stands still would otherwise hold up whoever writes a line, and with it all requests. A bounded
//! number of bytes waits; what comes beyond them is dropped and counted.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that wait …
const LINES_MAX: usize = 4_096;
/// … and their bytes.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// At the end of the process, what waits has this long to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// See the [module](self).
#[derive(Debug)]
pub struct Lines {
    waiting: SyncSender<Line>,
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Line {
    Text(String),
    /// All before it has been written.
    Flushed(SyncSender<()>),
}

/// Standard output. The first call starts its thread.
pub fn stdout() -> &'static Lines {
    static STDOUT: OnceLock<Lines> = OnceLock::new();
    STDOUT.get_or_init(|| {
        let (waiting, written) = sync_channel(LINES_MAX);
        let thread = std::thread::Builder::new().name("stdout".to_owned());
        // Without a thread every line is dropped, and counted.
        let _started = thread.spawn(move || write_all(&written));
        Lines {
            waiting,
            bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    })
}

fn write_all(lines: &Receiver<Line>) {
    // Whole lines, one write each: several processes may share the pipe. If it is gone there is nobody to tell.
    for line in lines {
        match line {
            Line::Text(text) => {
                let mut stdout = std::io::stdout().lock();
                let _written = stdout
                    .write_all(text.as_bytes())
                    .and_then(|()| stdout.flush());
                self::stdout()
                    .bytes
                    .fetch_sub(text.len(), Ordering::Relaxed);
            }
            Line::Flushed(tell) => {
                let _told = tell.send(());
            }
        }
    }
}

impl Lines {
    /// Writes a text that ends its line, soon. Never blocks.
    pub fn write(&self, text: String) {
        let length = text.len();
        let before = self.bytes.fetch_add(length, Ordering::Relaxed);
        if before + length > BYTES_MAX || self.waiting.try_send(Line::Text(text)).is_err() {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all lines so far have been written, or for a second. Blocks.
    pub fn flush(&self) {
        let (tell, told) = sync_channel(1);
        if self.waiting.try_send(Line::Flushed(tell)).is_ok() {
            // An error is the end of the time.
            let _flushed = told.recv_timeout(FLUSH_MAX);
        }
    }
}
