//! Lines for people on standard error. Few: each names Weir, what holds, and why.

use std::io::Write as _;

/// Writes one line. Nobody to tell if that fails.
pub(crate) fn line(text: &str) {
    let line = format!("weir: {text}\n");
    let _written = std::io::stderr().write_all(line.as_bytes());
}
