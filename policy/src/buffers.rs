//! Who may hold more of a body for a reader that is slow.
//!
//! A body may always hold one piece, so that none ever stands still for what others hold: a body whose reader takes
//! each piece at once goes on piece by piece however many others are stuck, and needs nobody to wake it but its own
//! reader. Beyond that a body has a bound of its own, and all bodies have one together.

/// The bounds on what is held, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Held by one body before another piece is taken.
    pub each: usize,
    /// Held by all bodies together before a body that holds something takes another piece.
    pub all: usize,
    /// The largest piece of a body that has no room for a larger one.
    pub least: usize,
}

impl Bounds {
    /// Returns whether a body that holds `own` bytes may take another piece while all bodies hold `all`.
    #[must_use]
    pub const fn may_take(&self, own: usize, all: usize) -> bool {
        own == 0 || (own < self.each && all < self.all)
    }

    /// Returns how large the next piece of a body that holds `own` bytes may be while all bodies hold `all`: what fills
    /// the body's bound, and `least` where that is more or there is no room for all.
    #[must_use]
    pub const fn piece_max(&self, own: usize, all: usize) -> usize {
        let left = self.each.saturating_sub(own);
        if all < self.all && left > self.least {
            left
        } else {
            self.least
        }
    }

    /// Returns whether `bytes` may be set aside for something that cannot be stopped once it has begun, while all
    /// bodies hold `all`.
    #[must_use]
    pub const fn may_reserve(&self, bytes: usize, all: usize) -> bool {
        all.saturating_add(bytes) <= self.all
    }
}
