//! `nvidia-cuda-mps-control` and `nvidia-cuda-mps-server` over softgpu: commands, answers, files and variables are those of
//! NVIDIA's MPS, its Volta generation (control interface version 2).
//!
//! | process | what it does |
//! |---|---|
//! | `nvidia-cuda-mps-control -d` or `-f` | the daemon: lets clients in, executes commands, starts servers |
//! | `nvidia-cuda-mps-control` | the front end: sends standard input to the daemon, line by line, and prints the answers |
//! | `nvidia-cuda-mps-server` | one at a time, started by the daemon: is known to softgpu's server as an MPS server as long as it lives |
//!
//! All three are one executable, which tells them apart by the name it is called by.
//!
//! | file in the pipe directory | what |
//! |---|---|
//! | `control` | the socket of the daemon, for clients and front ends |
//! | `control_lock` | locked by the running daemon |
//! | `nvidia-cuda-mps-control.pid` | its number |
//!
//! Nothing of a daemon that was killed is in the way of the next. What the daemon knows about a client, its process and user,
//! it has from the kernel, never from the client.
//!
//! | what | bound |
//! |---|---|
//! | clients, those that wait to be let in included | 1,024, or fewer where the limit of open files asks for it |
//! | front ends at a time | 64 |
//! | connections that have not yet said what they want | 64, each for 5 s |
//! | a client of another user waits | until the server's clients are gone, as with NVIDIA's |
//! | a log file | 1 MiB, and as much of what was before |
//!
//! It differs from NVIDIA's in this: a server runs as the daemon's user, not as its clients'; commands that change something
//! are for root and the daemon's user; a signal that ends the daemon ends it at once, with its servers, as if it were killed.

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

/// The name of the daemon and of the front end.
pub const CONTROL: &str = "nvidia-cuda-mps-control";
/// The name of the server.
pub const SERVER: &str = "nvidia-cuda-mps-server";
/// CUDA's version, as `-v` says it.
const VERSION: u32 = 13_000;

/// Does what the program of the name in the first argument does; a caller that is another program hands on the arguments
/// when its own name is [`CONTROL`] or [`SERVER`].
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
            say_error(&error.to_string());
            return ExitCode::FAILURE;
        }
    };
    match options.mode {
        Mode::Help => say(arguments::USAGE),
        Mode::Version => say(&format!("CUDA MPS Control binary version: {VERSION}\n")),
        Mode::Front => front::main(),
        Mode::Background => launch::main(&options),
        Mode::Foreground | Mode::Detached => daemon::main(&options),
    }
}

/// Prints to standard output.
fn say(text: &str) -> ExitCode {
    let mut output = std::io::stdout();
    if output.write_all(text.as_bytes()).is_err() || output.flush().is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Prints a line to standard error, if anybody is there to read it.
fn say_error(text: &str) {
    let _written = writeln!(std::io::stderr(), "{text}");
}

/// As the kernel takes it.
fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
