//! Sources of [views](crate::view::View).

use std::sync::atomic::AtomicU64;

#[cfg(feature = "kubernetes")]
pub(crate) mod kubernetes;
pub(crate) mod manifests;
mod object;

/// Counts of failures at the source since the start. The last view stays in use at a failure.
#[derive(Debug, Default)]
pub(crate) struct SourceFailures {
    /// Number of failures to read or watch the source.
    pub(crate) unreachable: AtomicU64,
    /// Number of objects and files that were invalid.
    pub(crate) unusable: AtomicU64,
}
