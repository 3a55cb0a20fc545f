//! Programs that a test makes.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Makes a shell script that can be run at once.
///
/// Another process writes it: a file that this one has open for writing is for a moment open in every child that another
/// test just starts, and cannot be run as long (`ETXTBSY`).
pub(crate) fn make(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("`install` is there, which comes with coreutils");
    let mut input = install.stdin.take().expect("it is piped");
    write!(input, "#!/bin/sh\n{text}\n").expect("it is read");
    drop(input);
    let status = install.wait().expect("it is our child");
    assert!(status.success(), "install: {status}");
}
