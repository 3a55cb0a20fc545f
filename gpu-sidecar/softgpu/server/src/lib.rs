//! Server of a software GPU: the one process for each folder that owns its timeline.
//!
//! The server computes when commands start and end independently of its own delays: every command in a ring carries the
//! time of its call. It runs when a client waits, and otherwise at intervals; results for which no client waits are
//! published a few milliseconds late, with their exact times.
//!
//! | module | contents |
//! |---|---|
//! | `server` | the loop, and the state of all clients |
//! | `client` | a client's rings, streams and events |
//! | `submit`, `publish` | commands from rings to the timeline, and completions back |
//! | `request` | requests of clients over their sockets |
//! | `memory`, `mps`, `checkpoint`, `shared` | memory and its holders, MPS servers, checkpoints, events of several processes |
//! | `ledger`, `statistics` | records of the timeline's use |
#![forbid(unsafe_code)]

mod checkpoint;
mod client;
mod ledger;
mod memory;
mod mps;
mod publish;
mod request;
mod server;
mod shared;
mod statistics;
mod submit;

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use device::Span;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softgpu_wire::config::Config;
use softgpu_wire::{clock, softgpu_dir};

use crate::server::Server;

/// Text printed for `--help` and for invalid arguments.
const USAGE: &str = "usage: softgpu-server --folder FOLDER [--detach | --stay]

  --folder FOLDER  where its configuration (softgpu.toml), its socket and its ledger are
  --detach         start in the background and return when it listens; it ends five seconds after its last client
  --stay           keep running without clients, until SIGTERM
  -V, --version    print the version
  -h, --help       print this";

/// Action requested by the command line.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    Run(Arguments),
    Help,
    Version,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    folder: PathBuf,
    detach: bool,
    stay: bool,
    /// Set by `--detached-child` in the process that `--detach` starts.
    is_child: bool,
}

fn arguments(given: impl Iterator<Item = OsString>) -> Result<Action, String> {
    let mut arguments = Arguments::default();
    let mut given = given;
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("--folder") => {
                let folder = given.next().ok_or("--folder: a folder is needed")?;
                arguments.folder = PathBuf::from(folder);
            }
            Some("--detach") => arguments.detach = true,
            Some("--stay") => arguments.stay = true,
            Some("--detached-child") => arguments.is_child = true,
            Some("-h" | "--help") => return Ok(Action::Help),
            Some("-V" | "--version") => return Ok(Action::Version),
            _ => return Err(format!("{}: not known", argument.display())),
        }
    }
    if arguments.folder.as_os_str().is_empty() {
        return Err("--folder is needed".to_owned());
    }
    Ok(Action::Run(arguments))
}

/// Prints a line to standard output.
fn print(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn report(why: &str) {
    // A failed write to standard error cannot be reported anywhere.
    let _written = writeln!(std::io::stderr(), "softgpu-server: {why}");
}

/// Runs the server with command-line arguments `given`, without the program's name. Returns 0 also if another server
/// already runs in the folder, 2 for invalid arguments or configuration, and 1 for other failures.
#[must_use]
pub fn main(given: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments = match arguments(given) {
        Ok(Action::Run(arguments)) => arguments,
        Ok(Action::Help) => return print(USAGE),
        Ok(Action::Version) => {
            return print(concat!("softgpu-server ", env!("CARGO_PKG_VERSION")));
        }
        Err(why) => {
            report(&format!("{why}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    if arguments.detach {
        return detach(&arguments.folder);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err((why, code)) => {
            report(&why);
            ExitCode::from(code)
        }
    }
}

/// Starts this program again as a background process, and blocks until it listens.
fn detach(folder: &Path) -> ExitCode {
    let Ok(program) = std::env::current_exe() else {
        report("cannot determine the path of this program");
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(&program);
    // argv[0] selects the program: one executable may contain several.
    if let Some(name) = std::env::args_os().next() {
        std::os::unix::process::CommandExt::arg0(&mut command, name);
    }
    let child = command
        .arg("--folder")
        .arg(folder)
        .arg("--detached-child")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            report(&format!("cannot start {}: {error}", program.display()));
            return ExitCode::FAILURE;
        }
    };
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _read = BufReader::new(stdout).read_line(&mut line);
    }
    if line == "ready\n" {
        return ExitCode::SUCCESS;
    }
    let mut why = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _read = stderr.read_to_string(&mut why);
    }
    let status = child.wait();
    report(why.trim().trim_start_matches("softgpu-server: "));
    match status.ok().and_then(|status| status.code()) {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => ExitCode::FAILURE,
    }
}

/// Largest time to wait for the lock: a process that probes for a server holds it briefly.
const LOCK_MAX: Duration = Duration::from_secs(5);

fn run(arguments: &Arguments) -> Result<(), (String, u8)> {
    let folder = &arguments.folder;
    let failed = |why: String| (why, 1);
    let begin = Instant::now();
    let lock = loop {
        if let Some(lock) =
            softgpu_dir::lock(folder, false).map_err(|error| failed(error.to_string()))?
        {
            break lock;
        }
        if matches!(softgpu_dir::connect_in(folder), Ok(Some(_))) {
            // Another server runs already, which is as good to the caller.
            notify_ready(arguments);
            return Ok(());
        }
        if begin.elapsed() > LOCK_MAX {
            let lock = folder.join(softgpu_dir::LOCK);
            return Err(failed(format!(
                "{}: locked by another process",
                lock.display()
            )));
        }
        clock::pause(Span::from_millis(1));
    };
    let path = folder.join(softgpu_dir::CONFIG);
    let config = match std::fs::read_to_string(&path) {
        Ok(text) => {
            Config::parse(&text).map_err(|error| (format!("{}: {}", path.display(), error), 2))?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Config::default(),
        Err(error) => return Err((format!("{}: {error}", path.display()), 2)),
    };
    // Each client and each offered allocation needs a file descriptor.
    let files = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: files.maximum,
        maximum: files.maximum,
    };
    let _raised = setrlimit(Resource::Nofile, all);
    if arguments.is_child {
        // Detached from the starting program, so that no terminal's signals reach it.
        let _session = rustix::process::setsid();
    }
    let mut server = Server::new(folder, config, lock, arguments.stay || !arguments.is_child)
        .map_err(|error| failed(error.to_string()))?;
    notify_ready(arguments);
    server.run().map_err(|error| failed(error.to_string()))
}

/// Notifies the starting process that the server listens, and closes its pipes.
fn notify_ready(arguments: &Arguments) {
    let _written = std::io::stdout().write_all(b"ready\n");
    let _flushed = std::io::stdout().flush();
    if !arguments.is_child {
        return;
    }
    let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") else {
        return;
    };
    let _stdout = rustix::stdio::dup2_stdout(&null);
    let _stderr = rustix::stdio::dup2_stderr(&null);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_invalid_argument() {
        let parse = |list: &[&str]| arguments(list.iter().map(OsString::from));
        let Ok(Action::Run(run)) = parse(&["--folder", "/x", "--stay"]) else {
            panic!("expected Action::Run");
        };
        assert_eq!(run.folder, Path::new("/x"));
        assert!(parse(&[]).unwrap_err().contains("--folder is needed"));
        assert!(
            parse(&["--folder"])
                .unwrap_err()
                .contains("a folder is needed")
        );
        assert!(parse(&["--gpu"]).unwrap_err().contains("--gpu: not known"));
    }

    #[test]
    fn help_and_version_need_no_folder() {
        let parse = |given: &str| arguments(std::iter::once(OsString::from(given)));
        for (given, asked) in [
            ("-h", Action::Help),
            ("--help", Action::Help),
            ("-V", Action::Version),
            ("--version", Action::Version),
        ] {
            assert_eq!(parse(given), Ok(asked), "{given}");
        }
    }
}
