//! Current date for the head of a page.

use jiff::Timestamp;

/// Returns the current date and time as "2026-01-31 12:05 UTC".
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}
