//! Prometheus' own checks, by the program `promtool` of Debian's package `prometheus`.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Message printed where a check is skipped.
pub const MISSING: &str = "not checked: promtool is not installed (Debian's package prometheus)";

/// Returns whether `promtool` is installed.
#[must_use]
pub fn is_installed() -> bool {
    Command::new("promtool").arg("--version").output().is_ok()
}

/// Runs `promtool` in a folder with `input` as standard input, and blocks until it ends. Returns whether it succeeded,
/// and its output.
///
/// # Errors
///
/// Fails if the program cannot be started, or does not read its input.
pub fn run(folder: &Path, arguments: &[&str], input: &str) -> io::Result<(bool, String)> {
    let mut child = Command::new("promtool")
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let ended = child.wait_with_output()?;
    let mut text = String::from_utf8_lossy(&ended.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&ended.stderr));
    Ok((ended.status.success(), text))
}

/// Returns the output of `promtool check metrics` on a page of metrics; empty if there are no findings, or if
/// `promtool` is not installed.
///
/// # Errors
///
/// Fails if the program cannot be run.
pub fn check_page(page: &str) -> io::Result<String> {
    if !is_installed() {
        return Ok(String::new());
    }
    let (_, text) = run(Path::new("."), &["check", "metrics"], page)?;
    Ok(text)
}
