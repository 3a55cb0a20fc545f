//! Ids, pods and the plane they are packed in.

use crate::footprint::Footprint;
use crate::tokens::Share;

/// A function: what shares weights, and what reuses the rectangles that its own pods left.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FunctionId(pub u32);

/// A pod, for its whole life. A small integer, free again when the pod is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct InstanceId(pub u32);

/// A GPU, or a slice of one, whose SMs are shared. A small integer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SlotId(pub u32);

/// What a pod needs of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pod {
    /// Whose it is.
    pub function: FunctionId,
    /// The part of wall time it is guaranteed (M4.8: quotas are packed by request, a limit only lends).
    pub quota: Share,
    /// The SMs it may run on, in hundredths of a percent, after the driver's rounding.
    pub sm: u32,
    /// The device memory it needs.
    pub footprint: Footprint,
}

/// A part of one slot: of its window in parts per million, of its SMs in hundredths of a percent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Rectangle {
    /// Where in the window it begins. Bookkeeping only: nobody runs at a fixed time of the window.
    pub x: u32,
    /// Where in the SMs it begins. Bookkeeping only, as well.
    pub y: u32,
    /// Its part of the window.
    pub width: u32,
    /// Its part of the SMs.
    pub height: u32,
}

impl Rectangle {
    /// Window × SMs, up to 10¹⁰ for a whole GPU.
    #[must_use]
    pub fn area(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }

    /// Whether `other` lies within it.
    #[must_use]
    pub const fn contains(&self, other: &Self) -> bool {
        self.x <= other.x
            && self.y <= other.y
            && self.right() >= other.right()
            && self.top() >= other.top()
    }

    /// Whether they have a part in common; an edge is none.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.x < other.right()
            && other.x < self.right()
            && self.y < other.top()
            && other.y < self.top()
    }

    /// The end of its part of the window.
    #[must_use]
    pub const fn right(&self) -> u32 {
        self.x + self.width
    }

    /// The end of its part of the SMs.
    #[must_use]
    pub const fn top(&self) -> u32 {
        self.y + self.height
    }

    /// The largest rectangles of it that lie left of, right of, below and above `used`, which it overlaps.
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
    fn what_covers_it_leaves_nothing_and_edges_do_not_overlap() {
        let inner = rectangle(2, 3, 4, 5);
        assert_eq!(inner.parts_outside(&rectangle(0, 0, 10, 10)).count(), 0);
        assert!(rectangle(0, 0, 10, 10).contains(&inner));
        assert!(!inner.contains(&rectangle(0, 0, 10, 10)));
        assert!(!inner.overlaps(&rectangle(6, 3, 4, 5)));
        assert!(inner.overlaps(&rectangle(5, 7, 4, 5)));
    }
}
