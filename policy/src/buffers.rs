//! Decides which bodies may buffer more for a slow reader.
//!
//! A body may always buffer one piece, so it never stalls because of other bodies: if its reader takes each piece at
//! once, it proceeds piece by piece however many other bodies are stuck, and only its own reader has to wake it. Beyond
//! that piece, each body has a bound of its own, and all bodies share one.
//!
//! # Examples
//!
//! ```
//! use policy::buffers::Bounds;
//!
//! let bounds = Bounds { each: 100, all: 1_000, piece: 64, least: 16 };
//! assert!(bounds.may_take(50, 900));
//! assert!(!bounds.may_take(100, 900));
//! // A body that holds nothing may always take a piece, but only a small one beyond the shared bound.
//! assert!(bounds.may_take(0, 5_000));
//! assert_eq!(bounds.piece_max(0, 5_000), 16);
//! ```

/// Bounds on buffered data, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes that one body may hold before it must not take another piece.
    pub each: usize,
    /// Bytes that all bodies together may hold before a body that holds something must not take another piece.
    pub all: usize,
    /// Largest piece of a body whose reader has taken everything before it.
    pub piece: usize,
    /// Largest piece of a body that holds something, and of any body once the shared bound is reached.
    pub least: usize,
}

impl Bounds {
    /// Returns whether a body that holds `own` bytes may take another piece while all bodies together hold `all`.
    #[must_use]
    pub const fn may_take(&self, own: usize, all: usize) -> bool {
        own == 0 || (own < self.each && all < self.all)
    }

    /// Returns whether a body with `left` bytes still to come may take all of them while all bodies together hold
    /// `all`, regardless of what it holds itself: nothing follows that could be read ahead.
    #[must_use]
    pub const fn may_take_rest(&self, left: u64, all: usize) -> bool {
        left <= self.least as u64 && all < self.all
    }

    /// Returns the largest size of the next piece, in bytes, of a body that holds `own` bytes while all bodies together
    /// hold `all`.
    #[must_use]
    pub const fn piece_max(&self, own: usize, all: usize) -> usize {
        if own == 0 && all < self.all {
            self.piece
        } else {
            self.least
        }
    }

    /// Returns whether `bytes` may be reserved for an operation that cannot be stopped once it has begun, while all
    /// bodies together hold `all`.
    #[must_use]
    pub const fn may_reserve(&self, bytes: usize, all: usize) -> bool {
        all.saturating_add(bytes) <= self.all
    }
}
