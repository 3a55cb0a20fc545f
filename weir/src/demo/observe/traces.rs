//! `--traces FILE`: the spans of all requests, as OTLP JSON lines; the latest request of those that missed their objectives, in full.

mod receiver;
mod waterfall;

pub(super) use receiver::Receiver;
pub(super) use waterfall::Waterfall;

/// Spans that did not come or could not be kept: the run has failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct TracesError(pub(super) String);
