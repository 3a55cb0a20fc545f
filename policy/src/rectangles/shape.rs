//! Ids, pods, and the plane in which they are packed.

use crate::footprint::Footprint;
use crate::tokens::Share;
pub use units::{FunctionId, InstanceId, SlotId};

/// Requirements of a pod.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pod {
    /// Function of the pod.
    pub function: FunctionId,
    /// Guaranteed part of wall time (M4.8: quotas are packed by request, a limit only lends).
    pub quota: Share,
    /// SMs that the pod may run on, in hundredths of a percent, after the driver's rounding.
    pub sm: u32,
    /// Device memory that the pod needs.
    pub footprint: Footprint,
}

/// Part of one slot: of its window in parts per million, and of its SMs in hundredths of a percent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rectangle {
    /// Start of the rectangle in the window, in parts per million. Bookkeeping only: no pod runs at a fixed time of the
    /// window.
    pub x: u32,
    /// Start of the rectangle in the SMs, in hundredths of a percent. Bookkeeping only: no pod runs on fixed SMs.
    pub y: u32,
    /// Width as a part of the window, in parts per million.
    pub width: u32,
    /// Height as a part of the SMs, in hundredths of a percent.
    pub height: u32,
}

impl Rectangle {
    /// Returns the area, window × SMs: up to 10¹⁰ for a whole GPU.
    #[must_use]
    pub fn area(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Returns whether this rectangle contains `other`.
    #[must_use]
    pub const fn contains(&self, other: &Self) -> bool {
        self.x <= other.x
            && self.y <= other.y
            && self.right() >= other.right()
            && self.top() >= other.top()
    }

    /// Returns whether the rectangles overlap; a common edge is no overlap.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.x < other.right()
            && other.x < self.right()
            && self.y < other.top()
            && other.y < self.top()
    }

    /// Returns the end of the rectangle's part of the window.
    #[must_use]
    pub const fn right(&self) -> u32 {
        self.x + self.width
    }

    /// Returns the end of the rectangle's part of the SMs.
    #[must_use]
    pub const fn top(&self) -> u32 {
        self.y + self.height
    }

    /// Iterates over the largest parts of this rectangle to the left, to the right, below, and above `used`, which
    /// overlaps it.
    pub(super) fn parts_outside(self, used: &Self) -> impl Iterator<Item = Self> {
        let left = Self {
            width: used.x.saturating_sub(self.x),
            ..self
        };
        let right = Self {
            x: used.right(),
            width: self.right().saturating_sub(used.right()),
            ..self
        };
        let below = Self {
            height: used.y.saturating_sub(self.y),
            ..self
        };
        let above = Self {
            y: used.top(),
            height: self.top().saturating_sub(used.top()),
            ..self
        };
        [left, right, below, above]
            .into_iter()
            .filter(|part| part.width > 0 && part.height > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rectangle(x: u32, y: u32, width: u32, height: u32) -> Rectangle {
        Rectangle {
            x,
            y,
            width,
            height,
        }
    }

    #[test]
    fn a_hole_in_the_middle_leaves_four_parts() {
        let parts: Vec<_> = rectangle(0, 0, 10, 10)
            .parts_outside(&rectangle(2, 3, 4, 5))
            .collect();
        assert_eq!(
            parts,
            [
                rectangle(0, 0, 2, 10),
                rectangle(6, 0, 4, 10),
                rectangle(0, 0, 10, 3),
                rectangle(0, 8, 10, 2),
            ]
        );
    }

    #[test]
    fn a_covering_rectangle_leaves_nothing_and_edges_do_not_overlap() {
        let inner = rectangle(2, 3, 4, 5);
        assert_eq!(inner.parts_outside(&rectangle(0, 0, 10, 10)).count(), 0);
        assert!(rectangle(0, 0, 10, 10).contains(&inner));
        assert!(!inner.contains(&rectangle(0, 0, 10, 10)));
        assert!(!inner.overlaps(&rectangle(6, 3, 4, 5)));
        assert!(inner.overlaps(&rectangle(5, 7, 4, 5)));
    }
}
