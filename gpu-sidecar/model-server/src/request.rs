//! What a client asks for, and what it gets.

use serde::{Deserialize, Serialize};

use crate::checksum::Checked;
use crate::cost::Work;
use crate::plan::STREAMED_MAX;

/// The body of `/infer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Request {
    #[serde(flatten)]
    pub(crate) work: Work,
    /// What its input is made from.
    #[serde(default)]
    pub(crate) seed: u64,
    /// A line per unit of output.
    #[serde(default)]
    pub(crate) stream: bool,
}

impl Request {
    /// From a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, String> {
        let request: Self = serde_json::from_slice(body)
            .map_err(|error| format!("{{\"input\": n, \"output\": n}} is needed: {error}"))?;
        if request.stream && request.work.output > STREAMED_MAX {
            return Err(format!(
                "output = {}: at most {STREAMED_MAX} units can be streamed",
                request.work.output
            ));
        }
        Ok(request)
    }
}

/// What `/infer` answers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Answer {
    pub(crate) model: String,
    /// Of the input and the checked blocks, in hexadecimal; see the module `checksum`.
    pub(crate) checksum: String,
    pub(crate) checked_first: usize,
    pub(crate) checked_count: usize,
    /// Whether the checksum is the right one; only where the server verifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) right: Option<bool>,
    /// How many requests were computed together.
    pub(crate) batch: usize,
    /// From the first kernel's begin to the last one's end.
    pub(crate) gpu_ms: f64,
    /// The server's process.
    pub(crate) pid: u32,
    /// When the request was read whole, in ns of the machine's `CLOCK_MONOTONIC`.
    pub(crate) read_ns: u64,
    /// When its answer was made, in ns of the same clock.
    pub(crate) answered_ns: u64,
}

/// Returns the time of `CLOCK_MONOTONIC` in ns, which all processes of a machine have in common.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

impl Answer {
    pub(crate) fn new(model: &str, checksum: u64, checked: Checked) -> Self {
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
        // A struct of names and numbers; there is nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_need_input_and_output_and_nothing_else() {
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
            "output = 100001: at most 100000 units can be streamed"
        );
    }
}
