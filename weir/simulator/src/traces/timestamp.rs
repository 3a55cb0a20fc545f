//! Parsing of timestamps in calendar notation.

/// Parses `YYYY-MM-DD HH:MM:SS`, with up to nine digits of a second's fraction, to nanoseconds since the year 2000. `T` instead
/// of the blank and `Z` or `+00:00` at the end are allowed; other zones are not.
pub(super) fn timestamp(text: &str) -> Option<i64> {
    let text = text
        .strip_suffix("+00:00")
        .or_else(|| text.strip_suffix('Z'))
        .unwrap_or(text);
    let (date, time) = text.split_once([' ', 'T'])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let day_good = (1..=days_of_month(year, month)?).contains(&day);
    if !(1900..=2199).contains(&year) || !day_good || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let digits: i64 = whole(fraction)?;
    let power = u32::try_from(9 - fraction.len()).ok()?;
    let fraction = digits * 10_i64.pow(power);
    // Day number in the Gregorian calendar, with years that begin in March.
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    let seconds = (days - 730_426) * 86_400 + hour * 3_600 + minute * 60 + second;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

fn whole(text: &str) -> Option<i64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Parses three numbers with these numbers of digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[i64; 3]> {
    let mut parts = text.split(between);
    let mut numbers = [0; 3];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next().filter(|part| part.len() == digits)?;
        *number = whole(part)?;
    }
    parts.next().is_none().then_some(numbers)
}

const fn days_of_month(year: i64, month: i64) -> Option<i64> {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => Some(29),
        2 => Some(28),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn days_follow_one_another_over_months_and_leap_years() {
        let day = |text: &str| timestamp(&format!("{text} 00:00:00")).unwrap();
        assert_eq!(day("2000-01-01"), 0);
        for (a, b) in [
            ("1999-12-31", "2000-01-01"),
            ("2023-12-31", "2024-01-01"),
            ("2024-02-28", "2024-02-29"),
            ("2024-02-29", "2024-03-01"),
            ("2100-02-28", "2100-03-01"),
            ("2025-04-30", "2025-05-01"),
        ] {
            assert_eq!(day(b) - day(a), 86_400_000_000_000, "{a} {b}");
        }
    }

    #[test]
    fn fractions_and_utc_suffixes_are_parsed() {
        let second = 1_000_000_000;
        assert_eq!(
            timestamp("2000-01-01 01:02:03.6805900"),
            Some(3_723 * second + 680_590_000)
        );
        assert_eq!(timestamp("2000-01-01T00:00:01+00:00"), Some(second));
        assert_eq!(timestamp("2000-01-01 00:00:00.5Z"), Some(second / 2));
    }

    #[test]
    fn refuses_invalid_timestamps() {
        for text in [
            "",
            "yesterday",
            "2023-11-16",
            "2023-11-31 00:00:00",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-1-01 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16 00:60:00",
            "2023-11-16 00:00",
            "2023-11-16 00:00:00.",
            "2023-11-16 00:00:00.1234567890",
            "2023-11-16 00:00:00+01:00",
            "2023-11-16 00:00:+1",
            "99999999999999999-11-16 18:15:46",
            "-023-11-16 18:15:46",
        ] {
            assert_eq!(timestamp(text), None, "{text}");
        }
    }
}
