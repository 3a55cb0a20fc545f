//! Variables that set the seed and the length of a random run, and what it prints about them.

use std::io::Write as _;

/// Returns a variable's value as a number, if it is set. Panics for any other value.
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text:?}: a whole number is needed")))
}

/// Prints a line that is shown also where the test succeeds.
pub fn print_line(line: &str) {
    // A failed write to stderr cannot be reported.
    let _written = writeln!(std::io::stderr(), "{line}");
}
