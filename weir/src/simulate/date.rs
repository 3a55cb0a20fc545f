//! Today, for the head of a page.

use std::time::{SystemTime, UNIX_EPOCH};

/// Date and time as "2026-01-31 12:05 UTC".
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or_else(|_| String::new(), |since| written(since.as_secs()))
}

fn written(seconds: u64) -> String {
    let (days, minute) = (seconds / 86_400, seconds % 86_400 / 60);
    // Days of the proleptic Gregorian calendar from 1 March of the year 0, the year beginning in March.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 {
        (era * 400 + year, month + 3)
    } else {
        (era * 400 + year + 1, month - 9)
    };
    let (hour, minute) = (minute / 60, minute % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_a_date() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_735_689_600, "2025-01-01 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(written(seconds), date);
        }
    }
}
