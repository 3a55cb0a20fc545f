//! The word that every launch reads and changes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bit that closes the gate within the process. It exceeds every bound of the work in flight, so that one comparison covers both.
const SHUT: u64 = 1 << 63;

/// Expected run time of all work in flight in nanoseconds, and a bit that closes the gate within the process.
///
/// One word, because the token may be returned only while nothing is in flight: [`Self::shut_if_idle`] checks one and sets the other
/// in a single step. The states and their transitions are drawn in [`super`].
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

impl Word {
    /// Creates the word of a process with nothing in flight, not shut.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns whether the word is not shut and has less than `bound` nanoseconds in flight.
    ///
    /// Relaxed: a thread that waits reads it, and no other memory on the strength of this load. A launch is announced by [`Self::add`]
    /// first and reads [`Self::is_shut`] after that, from the same word, so either the word could not be shut or the launch sees the bit.
    #[must_use]
    pub fn is_below(&self, bound: u64) -> bool {
        self.0.load(Ordering::Relaxed) < bound
    }

    /// Returns the expected run time of the work in flight, in nanoseconds.
    ///
    /// Acquire: pairs with [`Self::subtract`], so that a reader of 0 sees what was recorded about the work that has finished.
    #[inline]
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.0.load(Ordering::Acquire) & !SHUT
    }

    /// Returns whether the word is shut.
    ///
    /// Acquire: pairs with [`Self::shut_if_idle`]; a reader that sees the bit sees the epoch which was stored before it.
    #[inline]
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.0.load(Ordering::Acquire) & SHUT != 0
    }

    /// Adds a launch of `ns` nanoseconds to the work in flight, and returns the sum.
    ///
    /// Acquire and release, as for every change of the word: all changes form one chain, so that whoever reads the last one sees what
    /// happened before each.
    #[inline]
    pub fn add(&self, ns: u64) -> u64 {
        let before = self.0.fetch_add(ns, Ordering::AcqRel) & !SHUT;
        before.saturating_add(ns)
    }

    /// Removes `ns` nanoseconds from the work in flight, at most all of it, and returns the rest. A shut word stays shut.
    ///
    /// Release: what was recorded about the finished work comes before the change, see [`Self::in_flight`].
    pub fn subtract(&self, ns: u64) -> u64 {
        let less = |word: u64| word & SHUT | (word & !SHUT).saturating_sub(ns);
        let changed = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(less(word)));
        changed.map_or(0, |before| less(before) & !SHUT)
    }

    /// Shuts the word if nothing is in flight and it is not shut, and returns whether it did.
    ///
    /// Release: stores before the call are visible to a reader of the bit. Acquire: comes after the last [`Self::subtract`].
    pub fn shut_if_idle(&self) -> bool {
        self.0
            .compare_exchange(0, SHUT, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    #[cfg(test)]
    pub(super) const fn at(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[cfg(test)]
    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Opens the word. The work in flight is unchanged.
    pub fn open(&self) {
        let _before = self.0.fetch_and(!SHUT, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shut_word_is_below_no_bound() {
        let word = Word::new();
        assert!(word.is_below(1));
        assert!(word.shut_if_idle());
        assert!(word.is_shut());
        assert!(!word.is_below(u64::from(u32::MAX) * 1_000));
        assert!(!word.is_below(SHUT));
        word.open();
        assert!(word.is_below(1) && !word.is_shut());
    }

    #[test]
    fn a_word_with_work_in_flight_cannot_be_shut() {
        let word = Word::new();
        assert_eq!(word.add(7), 7);
        assert!(!word.shut_if_idle());
        assert_eq!(word.subtract(7), 0);
        assert!(word.shut_if_idle());
        assert!(!word.shut_if_idle(), "it is shut already");
    }

    #[test]
    fn work_added_to_a_shut_word_stays_when_it_opens() {
        let word = Word::new();
        assert!(word.shut_if_idle());
        assert_eq!(word.add(40), 40);
        assert_eq!((word.in_flight(), word.is_shut()), (40, true));
        assert_eq!(word.subtract(15), 25);
        assert!(word.is_shut());
        word.open();
        assert_eq!((word.in_flight(), word.is_shut()), (25, false));
    }

    #[test]
    fn more_than_is_in_flight_leaves_nothing() {
        let word = Word::new();
        word.add(5);
        assert_eq!(word.subtract(9), 0);
        assert_eq!(word.in_flight(), 0);
        assert!(word.shut_if_idle());
        assert_eq!(word.subtract(1), 0);
        assert!(word.is_shut(), "the bit is not borrowed from");
    }

    #[test]
    fn the_bound_is_exclusive() {
        let word = Word::new();
        word.add(1_000);
        assert!(!word.is_below(1_000));
        assert!(word.is_below(1_001));
    }
}
