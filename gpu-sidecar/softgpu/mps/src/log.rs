//! The logs `control.log` and `server.log`, both written by the daemon. Times are UTC; a file that reaches
//! [`BYTES_MAX`] is renamed to `….log.old` and begun anew.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, fstat, open, openat, renameat};
use rustix::io::Errno;

/// Environment variable that names the directory.
const VARIABLE: &str = "CUDA_MPS_LOG_DIRECTORY";
/// Directory without the variable.
const DEFAULT: &str = "/var/log/nvidia-mps";
/// Largest size of a file in bytes.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
/// Largest length of a line in characters.
const LINE_MAX: usize = 1024;

/// Returns the directory of the logs.
pub(crate) fn path() -> PathBuf {
    match std::env::var_os(VARIABLE) {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => PathBuf::from(DEFAULT),
    }
}

/// Both logs. Failures to write are ignored: the daemon runs without logs.
#[derive(Debug)]
pub(crate) struct Log {
    folder: Option<OwnedFd>,
    control: LogFile,
    server: LogFile,
    is_echoing: bool,
    pid: u32,
}

#[derive(Debug)]
struct LogFile {
    name: &'static str,
    old: &'static str,
    file: Option<File>,
    bytes: u64,
}

impl LogFile {
    fn open(name: &'static str, old: &'static str, folder: Option<&OwnedFd>) -> Self {
        let mut file = Self {
            name,
            old,
            file: None,
            bytes: 0,
        };
        file.reopen(folder);
        file
    }

    fn reopen(&mut self, folder: Option<&OwnedFd>) {
        self.file = None;
        let Some(folder) = folder else {
            return;
        };
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = openat(folder, self.name, flags, Mode::from_raw_mode(0o644));
        let sized = opened.and_then(|file| Ok((fstat(&file)?.st_size, file)));
        if let Ok((bytes, file)) = sized {
            self.bytes = u64::try_from(bytes).unwrap_or_default();
            self.file = Some(File::from(file));
        }
    }

    fn write(&mut self, line: &str, folder: Option<&OwnedFd>) {
        let bytes = line.len() as u64;
        if self.bytes + bytes > BYTES_MAX {
            let Some(at) = folder else {
                return;
            };
            if renameat(at, self.name, at, self.old).is_err() {
                self.file = None;
                return;
            }
            self.reopen(folder);
        }
        if let Some(file) = &mut self.file {
            // A full disk must not stop the daemon: the line is lost.
            if file.write_all(line.as_bytes()).is_ok() {
                self.bytes += bytes;
            }
        }
    }
}

impl Log {
    /// Opens both logs; with `is_echoing`, lines go to standard output as well.
    pub(crate) fn open(path: &PathBuf, pid: u32, is_echoing: bool) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = std::fs::create_dir_all(path)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
            .and_then(|()| open(path, flags, Mode::empty()))
            .ok();
        Self {
            control: LogFile::open("control.log", "control.log.old", folder.as_ref()),
            server: LogFile::open("server.log", "server.log.old", folder.as_ref()),
            folder,
            is_echoing,
            pid,
        }
    }

    /// Returns whether both logs can be written.
    pub(crate) fn is_written(&self) -> bool {
        self.control.file.is_some() && self.server.file.is_some()
    }

    /// Logs an action of the daemon.
    pub(crate) fn control(&mut self, text: &str) {
        let line = line("Control", self.pid, text, Timestamp::now());
        self.echo(&line);
        self.control.write(&line, self.folder.as_ref());
    }

    /// Logs an event of a server.
    pub(crate) fn server(&mut self, server: u32, text: &str) {
        let line = line("Server", server, text, Timestamp::now());
        self.echo(&line);
        self.server.write(&line, self.folder.as_ref());
    }

    fn echo(&self, line: &str) {
        if self.is_echoing {
            let mut output = std::io::stdout();
            let _written = output
                .write_all(line.as_bytes())
                .and_then(|()| output.flush());
        }
    }
}

/// Formats a line as in NVIDIA's logs. Text from peers stays on its line and is cut to [`LINE_MAX`].
fn line(component: &str, pid: u32, text: &str, at: Timestamp) -> String {
    let mut line = format!("[{} {component} {pid:>5}] ", stamp(at));
    for character in text.chars().take(LINE_MAX) {
        if character.is_control() {
            line.push(' ');
        } else {
            line.push(character);
        }
    }
    line.push('\n');
    line
}

/// Formats a time as `2024-04-23 06:04:59.389`, in UTC.
fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S.%3f").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_time_in_utc() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        assert_eq!(stamp(at(0)), "1970-01-01 00:00:00.000");
        assert_eq!(stamp(at(951_782_399_007)), "2000-02-28 23:59:59.007");
        assert_eq!(stamp(at(1_713_852_299_389)), "2024-04-23 06:04:59.389");
        assert_eq!(
            line("Control", 72, "NEW\nUI\u{1b}", at(0)),
            "[1970-01-01 00:00:00.000 Control    72] NEW UI \n"
        );
    }

    #[test]
    fn a_log_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs");
        let mut log = Log::open(&path, 1, false);
        assert!(log.is_written());
        let text = "x".repeat(LINE_MAX * 2);
        for _ in 0..3 * BYTES_MAX / LINE_MAX as u64 {
            log.control(&text);
        }
        let bytes = |name| std::fs::metadata(path.join(name)).unwrap().len();
        let (new, old) = (bytes("control.log"), bytes("control.log.old"));
        assert!(new > 0 && new <= BYTES_MAX, "{new}");
        assert!(old > BYTES_MAX / 2 && old <= BYTES_MAX, "{old}");
        // An existing log is appended to.
        log.server(7, "one");
        drop(log);
        Log::open(&path, 1, false).server(7, "two");
        let server = std::fs::read_to_string(path.join("server.log")).unwrap();
        assert_eq!(server.lines().count(), 2);
    }

    #[test]
    fn without_a_directory_there_is_no_log() {
        let folder = tempfile::NamedTempFile::new().unwrap();
        let mut log = Log::open(&folder.path().join("logs"), 1, false);
        assert!(!log.is_written());
        log.control("discarded");
    }
}
