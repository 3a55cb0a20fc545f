//! `--traces FILE`: the spans of all requests, as OTLP JSON lines, and a waterfall of the request which missed its objective by
//! most.

mod receiver;
mod waterfall;

pub(super) use receiver::Receiver;
pub(super) use waterfall::Waterfall;

/// Spans did not arrive or could not be written: the run has failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TracesError(pub(super) String);
