//! How the daemon comes into the background: the program starts itself anew, which then listens, says so, and is left alone.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::arguments::{DETACHED, MULTIUSER, Options};
use crate::{CONTROL, say_error};

/// What the daemon says once it listens.
pub(crate) const READY: &str = "ready\n";

/// Starts the daemon, and ends with 0 once it listens. Why it does not, it says itself.
pub(crate) fn main(options: &Options) -> ExitCode {
    match start(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say_error(&format!("Cannot start the MPS control daemon: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn start(options: &Options) -> std::io::Result<bool> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0(CONTROL).args(["-d", DETACHED]);
    if options.is_multiuser {
        command.arg(MULTIUSER);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let mut said = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut said)?;
    }
    if said == READY {
        return Ok(true);
    }
    child.wait()?;
    Ok(false)
}

/// Gives standard output and standard error back, so that nobody waits for their end.
pub(crate) fn let_go() -> Result<(), Errno> {
    let nothing = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)
}
