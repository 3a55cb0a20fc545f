//! Start of the daemon in the background: the program runs itself again, waits until that process listens, and exits.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::arguments::{DETACHED, MULTIUSER, Options};
use crate::{CONTROL, report_error};

/// Line that the daemon writes once it listens.
pub(crate) const READY: &str = "ready\n";

/// Starts the daemon, and succeeds once it listens. The daemon reports failures on standard error itself.
pub(crate) fn main(options: &Options) -> ExitCode {
    match start(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            report_error(&format!("Cannot start the MPS control daemon: {error}"));
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
    let mut line = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut line)?;
    }
    if line == READY {
        return Ok(true);
    }
    child.wait()?;
    Ok(false)
}

/// Redirects standard output and standard error to `/dev/null`, so that no reader waits for their end.
pub(crate) fn release_output() -> Result<(), Errno> {
    let nothing = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)
}
