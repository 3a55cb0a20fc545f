//! Requests and answers of `/infer`.

use serde::{Deserialize, Serialize};

use crate::checksum::CheckedBlocks;
use crate::cost::Work;
use crate::plan::STREAMED_MAX;

/// Request body of `/infer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Request {
    #[serde(flatten)]
    pub(crate) work: Work,
    /// Seed of the input.
    #[serde(default)]
    pub(crate) seed: u64,
    /// Whether the response has a line per unit of output.
    #[serde(default)]
    pub(crate) stream: bool,
}

impl Request {
    /// Parses and validates a request body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        let request: Self = serde_json::from_slice(body)
            .map_err(|error| format!("{{\"input\": n, \"output\": n}} is required: {error}"))?;
        if request.stream && request.work.output > STREAMED_MAX {
            return Err(format!(
                "output = {}: allowed: at most {STREAMED_MAX} units when streamed",
                request.work.output
            ));
        }
        Ok(request)
    }
}

/// Response body of `/infer`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Answer {
    pub(crate) model: String,
    /// Checksum of the input and the checked blocks, in hexadecimal; see the module `checksum`.
    pub(crate) checksum: String,
    pub(crate) checked_first: usize,
    pub(crate) checked_count: usize,
    /// Whether the checksum is correct; present only if the server verifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) right: Option<bool>,
    /// Number of requests in the batch.
    pub(crate) batch: usize,
    /// Time from the start of the first kernel to the end of the last one.
    pub(crate) gpu_ms: f64,
    /// Process ID of the server.
    pub(crate) pid: u32,
    /// Time at which the request was read completely, in ns of `CLOCK_MONOTONIC`.
    pub(crate) read_ns: u64,
    /// Time at which the answer was made, in ns of `CLOCK_MONOTONIC`.
    pub(crate) answered_ns: u64,
}

/// Returns the time of `CLOCK_MONOTONIC` in ns, which is common to all processes of a machine.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

impl Answer {
    pub(crate) fn new(model: &str, checksum: u64, checked: CheckedBlocks) -> Self {
        Self {
            model: model.to_owned(),
            checksum: format!("{checksum:016x}"),
            checked_first: checked.first,
            checked_count: checked.count,
            right: None,
            batch: 1,
            gpu_ms: 0.0,
            pid: std::process::id(),
            read_ns: 0,
            answered_ns: 0,
        }
    }

    pub(crate) fn json(&self) -> String {
        // Serialisation of numbers and strings cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_require_only_input_and_output() {
        let request = Request::parse(br#"{"input": 3, "output": 4}"#).unwrap();
        assert_eq!((request.work.input, request.work.output), (3, 4));
        assert_eq!((request.seed, request.stream), (0, false));
        let request =
            Request::parse(br#"{"input":0,"output":0,"seed":18446744073709551615,"stream":true}"#);
        assert_eq!(request.unwrap().seed, u64::MAX);
        for body in ["", "[]", r#"{"input":1}"#, r#"{"input":-1,"output":1}"#] {
            let error = Request::parse(body.as_bytes()).unwrap_err();
            assert!(error.starts_with("{\"input\": n"), "{error}");
        }
        let error = Request::parse(br#"{"input":0,"output":100001,"stream":true}"#).unwrap_err();
        assert_eq!(
            error,
            "output = 100001: allowed: at most 100000 units when streamed"
        );
    }
}
