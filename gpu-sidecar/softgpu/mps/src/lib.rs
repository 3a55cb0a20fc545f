//! `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server` over softgpu, compatible with NVIDIA's MPS of the Volta
//! generation (control interface version 2) in commands, answers, files and variables.
//!
//! | process | task |
//! |---|---|
//! | `nvidia-cuda-mps-control -d` or `-f` | the daemon: admits clients, executes commands, starts servers |
//! | `nvidia-cuda-mps-control` | the front end: sends standard input to the daemon, line by line, and prints the answers |
//! | `nvidia-cuda-mps-server` | one at a time, started by the daemon: an MPS server registered with softgpu's server |
//!
//! All three are one executable, which selects its role by the name it is called by.
//!
//! | file in the pipe directory | contents |
//! |---|---|
//! | `control` | the socket of the daemon, for clients and front ends |
//! | `control_lock` | lock held by the running daemon |
//! | `nvidia-cuda-mps-control.pid` | its PID |
//!
//! Files of a killed daemon do not prevent the next one. The daemon learns a client's process and user from the kernel,
//! never from the client.
//!
//! | subject | bound |
//! |---|---|
//! | clients, including those waiting for admission | 1,024, or fewer if the limit of open files requires it |
//! | front ends at a time | 64 |
//! | connections without a request so far | 64, each for 5 s |
//! | wait of a client of another user | until the server's clients are gone, as with NVIDIA's |
//! | a log file | 1 MiB, and as much in the previous file |
//!
//! Differences from NVIDIA's MPS: a server runs as the daemon's user, not as its clients'; only root and the daemon's
//! user may change settings; a signal that ends the daemon ends it at once with its servers, as if it were killed.

mod arguments;
mod command;
mod daemon;
mod devices;
mod front;
mod launch;
mod log;
mod pipe;
mod server;
mod settings;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use arguments::Mode;
use rustix::event::Timespec;

/// Name of the daemon and of the front end.
pub const CONTROL: &str = "nvidia-cuda-mps-control";
/// Name of the server.
pub const SERVER: &str = "nvidia-cuda-mps-server";
/// CUDA version that `-v` prints.
const VERSION: u32 = 13_000;

/// Runs the program named by the first argument. A caller that is another program passes its own arguments on when its
/// name is [`CONTROL`] or [`SERVER`].
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter();
    let called = arguments.next().unwrap_or_default();
    if Path::new(&called).file_name() == Some(OsStr::new(SERVER)) {
        return server::main();
    }
    let options = match arguments::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            report_error(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    match options.mode {
        Mode::Help => print(arguments::USAGE),
        Mode::Version => print(&format!("CUDA MPS Control binary version: {VERSION}\n")),
        Mode::Front => front::main(),
        Mode::Background => launch::main(&options),
        Mode::Foreground | Mode::Detached => daemon::main(&options),
    }
}

/// Prints to standard output; fails if that cannot be written.
fn print(text: &str) -> ExitCode {
    let mut output = std::io::stdout();
    if output.write_all(text.as_bytes()).is_err() || output.flush().is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Prints a line to standard error, ignoring failures.
fn report_error(text: &str) {
    let _written = writeln!(std::io::stderr(), "{text}");
}

/// Converts a duration to the kernel's `timespec`.
fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
