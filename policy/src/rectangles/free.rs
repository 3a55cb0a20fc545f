//! The free rectangles of one slot (M4.12).

use super::shape::Rectangle;

/// What is free, as rectangles that overlap: none lies within another. As long as nothing but
/// [`Free::take`] happened since [`Free::reset`] they are all the maximal ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Free {
    rectangles: Vec<Rectangle>,
}

impl Free {
    pub(super) fn all(&self) -> &[Rectangle] {
        &self.rectangles
    }

    pub(super) fn largest(&self) -> u64 {
        self.rectangles
            .iter()
            .map(Rectangle::area)
            .max()
            .unwrap_or(0)
    }

    /// Everything is free.
    pub(super) fn reset(&mut self, whole: Rectangle) {
        self.rectangles.clear();
        self.rectangles.push(whole);
    }

    /// As `other`, in memory of its own: swapping would pass long vectors to where they are not needed.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.rectangles.clone_from(&other.rectangles);
    }

    /// `used` is free no more: every rectangle that overlaps it is replaced by its maximal parts outside.
    /// Any rectangle that is free afterwards was free before, so it lay in one of those that are cut, and
    /// outside of `used` it lies in one of the parts: none is missed.
    pub(super) fn take(&mut self, used: &Rectangle, parts: &mut Vec<Rectangle>) {
        parts.clear();
        self.rectangles.retain(|rectangle| {
            let cut = rectangle.overlaps(used);
            if cut {
                parts.extend(rectangle.parts_outside(used));
            }
            !cut
        });
        let uncut = self.rectangles.len();
        // One that was not cut cannot lie within a part of another: it would have lain within that.
        for (at, part) in parts.iter().enumerate() {
            let within = |(other_at, other): (usize, &Rectangle)| {
                other_at != at && other.contains(part) && (other != part || other_at < at)
            };
            if !self.rectangles[..uncut]
                .iter()
                .any(|other| other.contains(part))
                && !parts.iter().enumerate().any(within)
            {
                self.rectangles.push(*part);
            }
        }
    }

    /// `freed` is a rectangle of its own again, joined with no other.
    pub(super) fn give_back(&mut self, freed: Rectangle) {
        self.rectangles.push(freed);
    }

    /// Of those that are large enough the one that leaves the least area, then the lowest, then the
    /// leftmost.
    pub(super) fn best(&self, width: u32, height: u32) -> Option<&Rectangle> {
        self.rectangles
            .iter()
            .filter(|rectangle| rectangle.width >= width && rectangle.height >= height)
            .min_by_key(|rectangle| (rectangle.area(), rectangle.y, rectangle.x, rectangle.width))
    }
}
