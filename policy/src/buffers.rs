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
    /// The largest piece of a body whose reader has taken all before it.
    pub piece: usize,
    /// The largest piece of a body that holds something, and of any where there is no room for all.
    pub least: usize,
}

impl Bounds {
    /// Returns whether a body that holds `own` bytes may take another piece while all bodies hold `all`.
    #[must_use]
    pub const fn may_take(&self, own: usize, all: usize) -> bool {
        own == 0 || (own < self.each && all < self.all)
    }

    /// Returns whether a body of which `left` bytes are to come may take them while all bodies hold `all`, whatever it holds
    /// itself: nothing is read ahead behind them.
    #[must_use]
    pub const fn may_take_rest(&self, left: u64, all: usize) -> bool {
        left <= self.least as u64 && all < self.all
    }

    /// Returns how large the next piece of a body that holds `own` bytes may be while all bodies hold `all`.
    #[must_use]
    pub const fn piece_max(&self, own: usize, all: usize) -> usize {
        if own == 0 && all < self.all {
            self.piece
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
