//! How pods are added and removed.

use crate::Span;
use crate::tokens::Share;

/// Rule by which pods are added and removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Mechanisms §4.3: negligible gaps are ignored, a surplus is removed after it has lasted for a while, and only pods
    /// that already serve can replace those that are removed.
    Weir,
    /// Algorithm 1 as printed: a gap of zero adds a pod, every rest gets a pod, nothing is delayed, and no pod is kept.
    /// Where the listing never ends, at a pod larger than the surplus, it stops.
    Paper,
}

/// Settings of a scaler. Under [`Rule::Paper`] only [`Settings::pods_max`] is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Rule by which pods are added and removed.
    pub rule: Rule,
    /// Part of the most efficient pod's throughput up to which a gap or rest is ignored.
    pub negligible: Share,
    /// Time for which there must have been a surplus at every decision before a pod is removed.
    pub down_after: Span,
    /// Number of pods that stay whatever the load. Zero counts as one, since the last pod is removed by keep-alive
    /// (M1.9).
    pub pods_min: u32,
    /// Largest number of pods of the function.
    pub pods_max: u32,
    /// Delay after which a starting pod no longer counts: another one is started instead.
    pub overdue_after: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            rule: Rule::Weir,
            negligible: Share::from_percent(2),
            down_after: Span::from_secs(30),
            pods_min: 1,
            pods_max: 1_000,
            overdue_after: Span::from_secs(30),
        }
    }
}

impl Settings {
    /// Returns the settings of Algorithm 1 as printed.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            rule: Rule::Paper,
            ..Self::default()
        }
    }
}
