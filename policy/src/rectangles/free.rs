//! The free rectangles of one slot (M4.12).

use super::shape::Rectangle;

/// Free area, as rectangles that may overlap but do not contain each other. As long as only
/// [`FreeRectangles::take`] has been called since [`FreeRectangles::reset`], they are exactly the maximal free
/// rectangles.
#[derive(Clone, Debug, Default)]
pub(super) struct FreeRectangles {
    rectangles: Vec<Rectangle>,
}

impl FreeRectangles {
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

    /// Makes the area `whole` entirely free.
    pub(super) fn reset(&mut self, whole: Rectangle) {
        self.rectangles.clear();
        self.rectangles.push(whole);
    }

    /// Copies `other` into memory of its own. Swapping would move long vectors to places that do not need them.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.rectangles.clone_from(&other.rectangles);
    }

    /// Takes `used`: every rectangle that overlaps it is replaced by its maximal parts outside. None is missed: a
    /// rectangle that is free afterwards was free before, so it is contained in one of those that are cut, and, being
    /// outside of `used`, in one of the parts.
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
        // A rectangle that was not cut cannot be contained in a part of another: it would have been contained in that
        // one.
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

    /// Adds `freed` as a rectangle of its own, joined with no other.
    pub(super) fn give_back(&mut self, freed: Rectangle) {
        self.rectangles.push(freed);
    }

    /// Returns the smallest rectangle that is large enough, among equal ones the lowest, then the leftmost.
    pub(super) fn best(&self, width: u32, height: u32) -> Option<&Rectangle> {
        self.rectangles
            .iter()
            .filter(|rectangle| rectangle.width >= width && rectangle.height >= height)
            .min_by_key(|rectangle| (rectangle.area(), rectangle.y, rectangle.x, rectangle.width))
    }
}
