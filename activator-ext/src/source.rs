//! Where [views](crate::view::View) come from.

use std::sync::atomic::AtomicU64;

#[cfg(feature = "kubernetes")]
pub(crate) mod kubernetes;
pub(crate) mod manifests;
mod object;

/// What went wrong at the source since the start. The view before it holds.
#[derive(Debug, Default)]
pub(crate) struct SourceFailures {
    /// It could not be read or watched.
    pub(crate) unreachable: AtomicU64,
    /// An object, or a file, could not be used.
    pub(crate) unusable: AtomicU64,
}
