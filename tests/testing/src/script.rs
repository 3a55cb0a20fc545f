//! Executable scripts for tests.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a shell script which can be executed at once.
///
/// # Panics
///
/// If coreutils' `install` cannot write it.
///
/// Another process writes it: a file open for writing here would be inherited for a moment by every child that another test
/// spawns, and executing it would fail for as long (`ETXTBSY`).
pub fn write_script(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("cannot spawn `install` of coreutils");
    let mut input = install.stdin.take().expect("standard input is piped");
    write!(input, "#!/bin/sh\n{text}\n").expect("cannot write the script");
    drop(input);
    let status = install.wait().expect("cannot wait for `install`");
    assert!(status.success(), "install: {status}");
}
