//! Deadlines and budgets in request headers (contracts §2), for revisions that have opted in.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use policy::slo::{Deadline, Signals, Trust, budget_left};
use policy::{Span, Time};

use crate::traces::TraceIds;

const BUDGET: HeaderName = HeaderName::from_static("weir-budget-ms");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const ENVOY_TIMEOUT: HeaderName = HeaderName::from_static("x-envoy-expected-rq-timeout-ms");
/// Header with the time for which earlier hops of Weir held the request, in µs.
pub const HELD_US: HeaderName = HeaderName::from_static("weir-held-us");
/// Prefix of Weir's own headers.
const PREFIX: &str = "weir-";

/// Parser and writer of the deadline headers of one revision's requests.
#[derive(Debug)]
pub struct Deadlines {
    slo: Option<Span>,
    trust: Trust,
    revision_timeout: Span,
    /// Number of unusable header values since the start.
    unusable: AtomicU64,
}

/// The deadline of a request, as stated by its headers.
#[derive(Debug, Clone, Copy)]
pub struct RequestDeadline {
    /// Time by which the request must be answered, and its objective.
    pub deadline: Deadline,
    /// Time for which earlier hops of Weir held the request; at most the revision's timeout.
    pub held: Span,
    grpc_timeout: Option<Span>,
    has_budget: bool,
}

impl Deadlines {
    /// Creates the parser for a revision with this objective and request timeout; `trust` decides which stated budgets
    /// are used.
    #[must_use]
    pub fn new(slo: Option<Duration>, trust: Trust, revision_timeout: Duration) -> Self {
        Self {
            slo: slo.map(Span::from),
            trust,
            revision_timeout: revision_timeout.into(),
            unusable: AtomicU64::new(0),
        }
    }

    /// Returns the number of unusable header values since the start.
    #[must_use]
    pub fn unusable(&self) -> u64 {
        self.unusable.load(Ordering::Relaxed)
    }

    /// Reads the deadline of a request that came at `arrival`. Unusable values are counted and otherwise ignored.
    #[must_use]
    pub fn read(&self, headers: &HeaderMap, arrival: Time) -> RequestDeadline {
        let budget = self
            .value(headers, &BUDGET, parse_millis)
            .map(|b| b.min(self.revision_timeout));
        let grpc_timeout = self.value(headers, &GRPC_TIMEOUT, parse_grpc_timeout);
        let signals = Signals {
            budget,
            grpc_timeout,
            gateway_limit: self.value(headers, &ENVOY_TIMEOUT, parse_millis),
            slo: self.slo,
            revision_timeout: self.revision_timeout,
            trust: self.trust,
        };
        let held = self.value(headers, &HELD_US, parse_micros);
        RequestDeadline {
            held: held.unwrap_or_default().min(self.revision_timeout),
            deadline: signals.deadline(arrival),
            grpc_timeout,
            has_budget: budget.is_some(),
        }
    }

    /// Replaces the received budgets by those left at `now`, and removes all other `Weir-*` headers.
    pub fn rewrite(
        &self,
        headers: &mut HeaderMap,
        budget: &RequestDeadline,
        arrival: Time,
        now: Time,
    ) {
        // The budget, which most requests have, is overwritten below.
        let foreign: Vec<HeaderName> = headers
            .keys()
            .filter(|&name| name != BUDGET && name.as_str().starts_with(PREFIX))
            .cloned()
            .collect();
        for name in foreign {
            headers.remove(name);
        }
        match budget.deadline.objective {
            Some(objective) if self.slo.is_some() || budget.has_budget => {
                let left = budget_left(objective, arrival, now);
                headers.insert(BUDGET, HeaderValue::from(left.as_millis().max(1)));
            }
            _ => {
                headers.remove(BUDGET);
            }
        }
        let timeout = budget
            .grpc_timeout
            .map(|timeout| format_grpc_timeout(budget_left(timeout, arrival, now)));
        match timeout.and_then(|text| HeaderValue::try_from(text).ok()) {
            Some(value) => {
                headers.insert(GRPC_TIMEOUT, value);
            }
            // An unusable value is ignored here, so it must not take effect at the next hop.
            None => {
                headers.remove(GRPC_TIMEOUT);
            }
        }
    }

    /// Rewrites the headers as [`Deadlines::rewrite`] does, for another hop of Weir, and adds the time for which the request was held up to `now`.
    pub fn rewrite_for_hop(
        &self,
        headers: &mut HeaderMap,
        budget: &RequestDeadline,
        arrival: Time,
        now: Time,
    ) {
        self.rewrite(headers, budget, arrival, now);
        let held = budget.held.0.saturating_add(now.since(arrival).0);
        headers.insert(HELD_US, HeaderValue::from(held / 1_000));
    }

    fn value(
        &self,
        headers: &HeaderMap,
        name: &HeaderName,
        parse: impl Fn(&str) -> Option<Span>,
    ) -> Option<Span> {
        let value = headers.get(name)?;
        let parsed = value.to_str().ok().and_then(|text| parse(text.trim()));
        if parsed.is_none() {
            self.unusable.fetch_add(1, Ordering::Relaxed);
            let (trace_id, span_id) = TraceIds::of(headers).map(TraceIds::texts).unzip();
            tracing::debug!(name = %name, value = ?value, trace_id, span_id, "unusable deadline header");
        }
        parsed
    }
}

/// Parses whole milliseconds of at least 1; digits only.
fn parse_millis(text: &str) -> Option<Span> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse()
        .ok()
        .filter(|&ms| ms >= 1)
        .map(Span::from_millis)
}

/// Parses whole microseconds; digits only.
fn parse_micros(text: &str) -> Option<Span> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let micros: u64 = text.parse().ok()?;
    Some(Span(micros.saturating_mul(1_000)))
}

/// Parses a `Timeout` of the gRPC over HTTP/2 specification: at most eight digits and a unit of `H M S m u n`. Returns
/// `None` for zero and for anything else.
pub fn parse_grpc_timeout(text: &str) -> Option<Span> {
    let (unit_at, unit) = text.char_indices().next_back()?;
    let digits = &text[..unit_at];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nanos: u64 = match unit {
        'H' => 3_600_000_000_000,
        'M' => 60_000_000_000,
        'S' => 1_000_000_000,
        'm' => 1_000_000,
        'u' => 1_000,
        'n' => 1,
        _ => return None,
    };
    let amount: u64 = digits.parse().ok()?;
    (amount > 0).then(|| Span(amount.saturating_mul(nanos)))
}

/// Formats a gRPC timeout in the finest unit from `u` on in which eight digits suffice, rounded down but at least 1.
pub fn format_grpc_timeout(span: Span) -> String {
    const DIGITS_MAX: u64 = 99_999_999;
    for (unit, nanos) in [
        ('u', 1_000),
        ('m', 1_000_000),
        ('S', 1_000_000_000),
        ('M', 60_000_000_000),
    ] {
        if span.0 / nanos <= DIGITS_MAX {
            return format!("{}{unit}", (span.0 / nanos).max(1));
        }
    }
    format!("{}H", (span.0 / 3_600_000_000_000).min(DIGITS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRIVAL: Time = Time(1_000_000_000);

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(n, v)| {
                (
                    HeaderName::from_static(n),
                    HeaderValue::from_str(v).unwrap(),
                )
            })
            .collect()
    }

    fn deadlines(slo_ms: Option<u64>) -> Deadlines {
        let slo = slo_ms.map(Duration::from_millis);
        Deadlines::new(slo, Trust::All, Duration::from_secs(10))
    }

    #[test]
    fn a_budget_is_bounded_by_the_revision_timeout() {
        let budget =
            deadlines(Some(200)).read(&headers(&[("weir-budget-ms", "99999999")]), ARRIVAL);
        assert_eq!(budget.deadline.objective, Some(Span::from_secs(10)));
    }

    #[test]
    fn the_time_held_by_earlier_hops_is_bounded_by_the_revision_timeout() {
        let deadlines = deadlines(Some(200));
        let held = |text: &str| {
            deadlines
                .read(&headers(&[("weir-held-us", text)]), ARRIVAL)
                .held
        };
        assert_eq!(held("1500"), Span(1_500_000));
        assert_eq!(held("99999999999999"), Span::from_secs(10));
        assert_eq!(held("-1"), Span::ZERO);
        assert_eq!(deadlines.unusable(), 1);
    }

    #[test]
    fn unusable_values_are_ignored_and_counted() {
        let deadlines = deadlines(Some(200));
        for bad in ["0", "-5", "1.5", "", "abc", "99999999999999999999999"] {
            let budget = deadlines.read(&headers(&[("weir-budget-ms", bad)]), ARRIVAL);
            assert_eq!(
                budget.deadline.objective,
                Some(Span::from_millis(200)),
                "{bad}"
            );
        }
        assert_eq!(deadlines.unusable(), 6);
    }

    #[test]
    fn only_the_remaining_budget_of_weirs_headers_is_forwarded() {
        let deadlines = deadlines(Some(200));
        let mut headers = headers(&[
            ("weir-budget-ms", "150"),
            ("weir-hops", "1"),
            ("grpc-timeout", "1S"),
            ("x-other", "1"),
        ]);
        let budget = deadlines.read(&headers, ARRIVAL);
        deadlines.rewrite(
            &mut headers,
            &budget,
            ARRIVAL,
            ARRIVAL.after(Span::from_millis(40)),
        );
        assert_eq!(headers["weir-budget-ms"], "110");
        assert_eq!(headers["grpc-timeout"], "960000u");
        assert!(!headers.contains_key("weir-hops"));
        assert_eq!(headers["x-other"], "1");
    }

    #[test]
    fn an_unusable_grpc_timeout_is_counted_and_not_forwarded() {
        let deadlines = deadlines(Some(200));
        let unusable = ["0S", "-1S", "100000000H", "+1S", "1.5S", "1", "S", ""];
        for (n, text) in unusable.iter().enumerate() {
            let mut headers = headers(&[("grpc-timeout", text)]);
            headers.append("grpc-timeout", HeaderValue::from_static("1S"));
            let budget = deadlines.read(&headers, ARRIVAL);
            assert_eq!(
                budget.deadline.objective,
                Some(Span::from_millis(200)),
                "{text}"
            );
            assert_eq!(deadlines.unusable(), n as u64 + 1, "{text}");
            deadlines.rewrite(&mut headers, &budget, ARRIVAL, ARRIVAL);
            assert!(!headers.contains_key("grpc-timeout"), "{text}");
        }
    }

    #[test]
    fn grpc_timeouts_follow_the_specification() {
        for (text, nanos) in [
            ("1H", 3_600_000_000_000),
            ("2M", 120_000_000_000),
            ("5m", 5_000_000),
            ("7n", 7),
        ] {
            assert_eq!(parse_grpc_timeout(text), Some(Span(nanos)), "{text}");
        }
        for bad in ["", "S", "5", "0S", "5x", "100000000H", "-1S", "1 S", "é"] {
            assert_eq!(parse_grpc_timeout(bad), None, "{bad}");
        }
        for ms in [1, 99, 99_999, 1_000_000, 90_000_000_000] {
            let text = format_grpc_timeout(Span::from_millis(ms));
            assert_eq!(
                parse_grpc_timeout(&text),
                Some(Span::from_millis(ms)),
                "{text}"
            );
        }
    }
}
