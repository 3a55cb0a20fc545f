//! Kinds of slots.

use serde::{Deserialize, Serialize};

/// Sharing mode of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SlotKind {
    /// Pods share the SMs through MPS.
    Mps,
    /// At most one pod computes at a time.
    Exclusive,
}

impl SlotKind {
    /// Returns the name used in the configuration and the control API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mps => "mps",
            Self::Exclusive => "exclusive",
        }
    }
}
