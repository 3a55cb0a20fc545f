//! Formatting of durations, quantities and decimals, as [`annotations::values`] parses them.

use std::time::Duration;

/// Formats a duration for [`annotations::values::duration`], in the largest unit in which it is whole.
pub(crate) fn show_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    for (unit, unit_ns) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns >= unit_ns && ns.is_multiple_of(unit_ns) {
            return format!("{}{unit}", ns / unit_ns);
        }
    }
    match ns {
        0 => "0".to_owned(),
        ns => format!("{ns}ns"),
    }
}

/// Formats a quantity for [`annotations::values::quantity`], in the largest binary unit in which it is whole.
pub(crate) fn show_quantity(bytes: u64) -> String {
    for (unit, shift) in [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Formats a decimal number for [`annotations::values::decimal`].
pub(crate) fn show_decimal(value: u64, places: u32) -> String {
    let unit = 10_u64.saturating_pow(places);
    let (whole, fraction) = (value / unit, value % unit);
    let width = usize::try_from(places).unwrap_or(0);
    let fraction = format!("{fraction:0>width$}");
    match fraction.trim_end_matches('0') {
        "" => whole.to_string(),
        fraction => format!("{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use annotations::values::{decimal, duration, quantity};

    use super::*;

    #[test]
    fn formatted_values_can_be_parsed() {
        for text in ["0", "1s", "100ms", "250us", "1001us", "7ns", "90s"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
        for text in ["0", "8Gi", "1536Mi", "1000", "2Ti"] {
            assert_eq!(show_quantity(quantity(text).unwrap()), text);
        }
        for text in ["0", "100", "12.5", "0.01"] {
            assert_eq!(show_decimal(decimal(text, 2).unwrap(), 2), text);
        }
    }
}
