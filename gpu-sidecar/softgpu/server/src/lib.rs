//! The owner of a software GPU's timeline: one process for each folder.
//!
//! It computes when commands start and end, however late it runs itself: what clients put into their rings carries the time
//! at which they asked. It works when somebody waits for something, and otherwise now and then; what nobody waits for is
//! published a few milliseconds late, with the right time.
//!
//! | module | what |
//! |---|---|
//! | `server` | the loop, and what belongs to whom |
//! | `client` | a client's rings, streams and events |
//! | `submit`, `publish` | commands from rings into the timeline, and what has ended back |
//! | `request` | what clients ask for over their sockets |
//! | `memory`, `mps`, `checkpoint`, `shared` | memory and its holders, MPS servers, checkpoints, events of several processes |
//! | `ledger`, `statistics` | what is written down |
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
use softgpu_wire::{clock, place};

use crate::server::Server;

/// How the program is called.
const USAGE: &str = "usage: softgpu-server --folder FOLDER [--detach | --stay]

  --folder FOLDER  where its configuration (softgpu.toml), its socket and its ledger are
  --detach         start in the background and come back when it listens; it ends some seconds after its last client
  --stay           stay without clients, until SIGTERM
  -V, --version    print the version
  -h, --help       print this";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Run(Arguments),
    Help,
    Version,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    folder: PathBuf,
    detach: bool,
    stay: bool,
    /// Started by `--detach`.
    is_child: bool,
}

fn arguments(given: impl Iterator<Item = OsString>) -> Result<Asked, String> {
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
            Some("-h" | "--help") => return Ok(Asked::Help),
            Some("-V" | "--version") => return Ok(Asked::Version),
            _ => return Err(format!("{}: not known", argument.display())),
        }
    }
    if arguments.folder.as_os_str().is_empty() {
        return Err("--folder is needed".to_owned());
    }
    Ok(Asked::Run(arguments))
}

/// Prints a line to standard output.
fn print(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn say(why: &str) {
    // Nobody to tell if this fails.
    let _written = writeln!(std::io::stderr(), "softgpu-server: {why}");
}

/// Runs a server; `given` are its arguments without the program's name. Exit code 2 for arguments or a configuration that
/// cannot be used, 1 for what else goes wrong; 0 also where another server runs already.
#[must_use]
pub fn main(given: impl Iterator<Item = OsString>) -> ExitCode {
    let arguments = match arguments(given) {
        Ok(Asked::Run(arguments)) => arguments,
        Ok(Asked::Help) => return print(USAGE),
        Ok(Asked::Version) => {
            return print(concat!("softgpu-server ", env!("CARGO_PKG_VERSION")));
        }
        Err(why) => {
            say(&format!("{why}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    if arguments.detach {
        return detach(&arguments.folder);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err((why, code)) => {
            say(&why);
            ExitCode::from(code)
        }
    }
}

/// Starts this program once more, in a session of its own, and waits until it listens.
fn detach(folder: &Path) -> ExitCode {
    let Ok(program) = std::env::current_exe() else {
        say("cannot find its own program");
        return ExitCode::FAILURE;
    };
    let mut command = Command::new(&program);
    // By the name under which it was called: one program may be several.
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
            say(&format!("cannot start {}: {error}", program.display()));
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
    say(why.trim().trim_start_matches("softgpu-server: "));
    match status.ok().and_then(|status| status.code()) {
        Some(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        None => ExitCode::FAILURE,
    }
}

/// Another server's lock is waited for this long: who looks whether one runs holds it for a moment.
const LOCK_MAX: Duration = Duration::from_secs(5);

fn run(arguments: &Arguments) -> Result<(), (String, u8)> {
    let folder = &arguments.folder;
    let failed = |why: String| (why, 1);
    let begin = Instant::now();
    let lock = loop {
        if let Some(lock) = place::lock(folder, false).map_err(|error| failed(error.to_string()))? {
            break lock;
        }
        if matches!(place::connect_in(folder), Ok(Some(_))) {
            // Another one runs: whoever wanted one has it.
            say_ready(arguments);
            return Ok(());
        }
        if begin.elapsed() > LOCK_MAX {
            let lock = folder.join(place::LOCK);
            return Err(failed(format!(
                "{}: another process holds it",
                lock.display()
            )));
        }
        clock::pause(Span::from_millis(1));
    };
    let path = folder.join(place::CONFIG);
    let config = match std::fs::read_to_string(&path) {
        Ok(text) => {
            Config::parse(&text).map_err(|error| (format!("{}: {}", path.display(), error), 2))?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Config::default(),
        Err(error) => return Err((format!("{}: {error}", path.display()), 2)),
    };
    // A file for each client, and for each stretch of memory that is offered.
    let files = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: files.maximum,
        maximum: files.maximum,
    };
    let _raised = setrlimit(Resource::Nofile, all);
    if arguments.is_child {
        // It is no child of the program that asked for it, and no terminal's signals reach it.
        let _session = rustix::process::setsid();
    }
    let mut server = Server::new(folder, config, lock, arguments.stay || !arguments.is_child)
        .map_err(|error| failed(error.to_string()))?;
    say_ready(arguments);
    server.run().map_err(|error| failed(error.to_string()))
}

/// Tells who waits that it listens, and lets go of its pipes.
fn say_ready(arguments: &Arguments) {
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
    fn arguments_that_are_wrong_are_named() {
        let parse = |list: &[&str]| arguments(list.iter().map(OsString::from));
        let Ok(Asked::Run(run)) = parse(&["--folder", "/x", "--stay"]) else {
            panic!("it runs");
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
            ("-h", Asked::Help),
            ("--help", Asked::Help),
            ("-V", Asked::Version),
            ("--version", Asked::Version),
        ] {
            assert_eq!(parse(given), Ok(asked), "{given}");
        }
    }
}
