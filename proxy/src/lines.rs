//! Non-blocking lines on standard output, written by a dedicated thread.
//!
//! A stalled reader of standard output would otherwise block the writing task, and with it all requests. The backlog of
//! lines is bounded in number and bytes; lines beyond the bounds are dropped and counted.

use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Largest number of waiting lines.
const LINES_MAX: usize = 4_096;
/// Largest total size of waiting lines, in bytes.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest time that a flush waits for the backlog at the end of the process.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// A bounded backlog of lines for standard output.
#[derive(Debug)]
pub struct Lines {
    waiting: SyncSender<Line>,
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Line {
    Text(String),
    /// Marker of a flush: notifies the sender once all lines before it are written.
    Flush(SyncSender<()>),
}

/// Returns the backlog of standard output. The first call starts the thread that writes it.
pub fn stdout() -> &'static Lines {
    static STDOUT: OnceLock<Lines> = OnceLock::new();
    STDOUT.get_or_init(|| {
        let (waiting, written) = sync_channel(LINES_MAX);
        let thread = std::thread::Builder::new().name("stdout".to_owned());
        // If the thread cannot start, all lines are dropped and counted.
        let _started = thread.spawn(move || write_all(&written));
        Lines {
            waiting,
            bytes: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    })
}

fn write_all(lines: &Receiver<Line>) {
    // Each line is one write, since several processes may share the pipe. A closed pipe cannot be reported anywhere.
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
            Line::Flush(done) => {
                let _sent = done.send(());
            }
        }
    }
}

impl Lines {
    /// Queues a text, which must end with a line feed. Never blocks; the text is dropped if the backlog is full.
    pub fn write(&self, text: String) {
        let length = text.len();
        let before = self.bytes.fetch_add(length, Ordering::Relaxed);
        if before + length > BYTES_MAX || self.waiting.try_send(Line::Text(text)).is_err() {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of dropped texts since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Blocks until all lines queued so far are written, for at most one second.
    pub fn flush(&self) {
        let (sender, done) = sync_channel(1);
        if self.waiting.try_send(Line::Flush(sender)).is_ok() {
            // An error means that the time is up.
            let _flushed = done.recv_timeout(FLUSH_MAX);
        }
    }
}
