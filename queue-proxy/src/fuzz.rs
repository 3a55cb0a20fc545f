//! Parsers of external input, for the mutation tests. Not a public interface.
//!
//! Each target accepts any text and checks the invariants of the result; its parser must not panic.

use annotations::{LenientSettings, QUEUE_DEPTH_MAX, podinfo};
use http::{HeaderMap, HeaderValue, Method, Version};
use policy::Time;
use policy::slo::Trust;

use proxy::deadline::{self, Deadlines};
use proxy::observability::Observability;
use proxy::process_log::LogConfig;
use proxy::template::{Record, RevisionInfo, Template};

use crate::readiness::Probe;

/// Name of a parser, which is that of its directory in the corpus, and the parser with its checks.
pub type Target = (&'static str, fn(&str));

/// All targets of the mutation tests.
pub const TARGETS: [Target; 7] = [
    ("podinfo", podinfo),
    ("grpc-timeout", grpc_timeout),
    ("budget", budget),
    ("template", template),
    ("observability", observability),
    ("logging", logging),
    ("probe", probe),
];

/// # Panics
/// Panics if a bad line is not in the text, or if a parsed option is out of its range.
fn podinfo(text: &str) {
    let (annotations, bad) = podinfo::parse(text);
    let lines = text.lines().count();
    assert!(annotations.len() + bad.len() <= lines);
    assert!(bad.iter().all(|bad| (1..=lines).contains(&bad.line)));
    let mut options = LenientSettings::default();
    for (key, value) in annotations {
        options.set_annotation(key, &value, "");
    }
    assert!(
        options
            .queue_depth
            .is_none_or(|depth| (1..=QUEUE_DEPTH_MAX).contains(&depth))
    );
    assert!(options.slo.is_none_or(|slo| !slo.is_zero()));
    assert!((50.0..=99.9).contains(&options.slo_percentile));
}

/// # Panics
/// Panics if the formatted timeout is longer than the parsed one.
fn grpc_timeout(text: &str) {
    if let Some(span) = deadline::parse_grpc_timeout(text) {
        let written = deadline::format_grpc_timeout(span);
        let again = deadline::parse_grpc_timeout(&written).expect("a formatted timeout is valid");
        // A microsecond is the shortest formatted timeout.
        assert!(again <= span.max(policy::Span(1_000)), "{text}: {written}");
    }
}

/// # Panics
/// Panics if a deadline is before the arrival, or later than the revision's timeout allows.
fn budget(text: &str) {
    let timeout = std::time::Duration::from_secs(300);
    let arrival = Time(1_000_000_000);
    let deadlines = Deadlines::new(Some(std::time::Duration::from_secs(1)), Trust::All, timeout);
    for name in [
        "weir-budget-ms",
        "grpc-timeout",
        "x-envoy-expected-rq-timeout-ms",
    ] {
        let Ok(value) = HeaderValue::from_str(text) else {
            return;
        };
        let mut headers = HeaderMap::new();
        headers.insert(name, value);
        let budget = deadlines.read(&headers, arrival);
        assert!(budget.deadline.at >= arrival, "{name}: {text}");
        assert!(
            budget.deadline.at.0 - arrival.0 <= 300_000_000_000,
            "{name}: {text}"
        );
        deadlines.rewrite(&mut headers, &budget, arrival, Time(arrival.0 + 1));
    }
}

/// Parses a template and formats log lines with it.
///
/// # Panics
/// Panics if a line of the log does not end with a line feed, or if the position of an error is not in the text.
fn template(text: &str) {
    let template = match Template::parse(text) {
        Ok(template) => template,
        Err(error) => {
            assert!(error.line >= 1 && error.line <= text.matches('\n').count() + 1);
            assert!(error.column >= 1);
            return;
        }
    };
    let mut headers = HeaderMap::new();
    headers.insert("x-id", HeaderValue::from_static("\"1\""));
    let record = Record {
        method: Method::GET,
        uri: http::Uri::from_static("/x?y"),
        version: Version::HTTP_11,
        headers,
        trailers: HeaderMap::new(),
        body_bytes: 0,
        tls: None,
        remote_address: "127.0.0.1:1".to_owned(),
        code: 200,
        size: 1,
        latency_seconds: 0.1,
    };
    if let Ok(line) = template.run(&record, &RevisionInfo::default()) {
        assert!(line.ends_with('\n') || text.ends_with('\n'));
    }
}

/// # Panics
/// Panics if the message of an error is empty.
fn observability(text: &str) {
    if let Err(error) = Observability::parse(text) {
        assert!(!error.is_empty());
    }
}

fn logging(text: &str) {
    let _config = LogConfig::parse(text, text);
}

/// # Panics
/// Panics if the message of an error is empty.
fn probe(text: &str) {
    if let Err(error) = Probe::parse_list(text) {
        assert!(!error.is_empty());
    }
}
