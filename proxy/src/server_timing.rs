//! The `Server-Timing` header (W3C Server Timing), by which each hop of Weir reports its times to the previous one.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Name of the header and of the trailer.
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Name of the entry with the time in the queue of an instance.
pub const QUEUE: &str = "queue";
/// Name of the entry with the time for which an instance waited for the lease of its GPU, without the next one.
pub const LEASE: &str = "lease";
/// Name of the entry with the time for loading an instance's model.
pub const LOAD: &str = "load";

/// Returns the entry `name` with a duration in milliseconds, rounded to microseconds. Returns `None` if `name` has
/// characters that a header must not have.
#[must_use]
pub fn entry(name: &str, span: Duration) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("{name};dur={:.3}", span.as_secs_f64() * 1e3)).ok()
}

/// Returns the duration of the last entry `name`, since a queue-proxy appends its own after those of the application.
/// Returns `None` if there is none, or if its duration is not a number of milliseconds from 0 to a day.
#[must_use]
pub fn read(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let lines = headers.get_all(SERVER_TIMING).iter();
    let entries = lines.filter_map(|line| line.to_str().ok());
    let last = entries
        .flat_map(|line| line.split(','))
        .filter_map(|entry| {
            let mut parts = entry.split(';').map(str::trim);
            (parts.next() == Some(name)).then_some(parts)
        })
        .next_back();
    let millis = last?.find_map(|parameter| parameter.strip_prefix("dur="))?;
    let millis: f64 = millis.trim_matches('"').parse().ok()?;
    (0.0..=86_400_000.0)
        .contains(&millis)
        .then(|| Duration::from_secs_f64(millis / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(SERVER_TIMING, HeaderValue::from_static(line));
        }
        headers
    }

    #[test]
    fn a_written_entry_is_read_back() {
        let span = Duration::from_micros(12_345);
        let mut headers = HeaderMap::new();
        headers.append(SERVER_TIMING, entry(QUEUE, span).unwrap());
        assert_eq!(read(&headers, QUEUE), Some(span));
        assert_eq!(read(&headers, LOAD), None);
    }

    #[test]
    fn the_last_entry_counts_and_other_names_are_skipped() {
        let headers = headers(&["queue;dur=900, db;desc=\"x\";dur=3", "queue ; dur=2.5"]);
        assert_eq!(read(&headers, QUEUE), Some(Duration::from_micros(2_500)));
        assert_eq!(read(&headers, "db"), Some(Duration::from_millis(3)));
    }

    #[test]
    fn an_invalid_duration_yields_none() {
        for line in [
            "queue",
            "queue;dur",
            "queue;dur=",
            "queue;dur=-1",
            "queue;dur=NaN",
            "queue;dur=inf",
            "queue;dur=1e300",
            "queues;dur=1",
        ] {
            assert_eq!(read(&headers(&[line]), QUEUE), None, "{line}");
        }
    }
}
