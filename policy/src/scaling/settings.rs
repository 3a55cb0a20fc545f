//! How pods are added and removed.

use crate::Span;
use crate::tokens::Share;

/// By what rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Papers 4.3: what is negligible is left alone, what has been too much for a while is removed, and only
    /// pods that serve already stand in for those that go.
    Weir,
    /// Algorithm 1 as printed: a gap of zero adds a pod, the rest gets a pod whatever it is, nothing waits,
    /// and nothing is kept. Where the listing never ends, at a pod larger than what is too much, it stops.
    Paper,
}

/// See each field. Under [`Rule::Paper`] only [`Settings::pods_max`] counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// By what rule.
    pub rule: Rule,
    /// A gap or rest is left alone up to this part of what the most efficient pod serves.
    pub negligible: Share,
    /// How long there must have been too many pods, at every decision, before one goes.
    pub down_after: Span,
    /// Pods that stay whatever the load; none counts as one, for the last pod goes by keep-alive (M1.9).
    pub pods_min: u32,
    /// Pods of the function at most.
    pub pods_max: u32,
    /// A starting pod that is later than this does not count any more: another one is started for it.
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
    /// As printed.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            rule: Rule::Paper,
            ..Self::default()
        }
    }
}
