//! Busy time of slots, in bins that widen as time passes.

use policy::{Span, Time};
use thiserror::Error;

/// Error in the parameters of a timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TimelineError {
    /// The number of bins is odd or zero, although bins merge in pairs.
    #[error(
        "invalid number of bins {0}: allowed: an even number of at least 2, since bins merge in pairs"
    )]
    OddBins(usize),
    /// The width of a bin is zero.
    #[error("invalid bin width 0: allowed: above 0")]
    NoWidth,
}

/// Busy share of each slot over time, in memory which is fixed at creation.
///
/// Time is divided into bins of equal width from [`Timeline::begin`]. Time beyond the last bin merges the bins in
/// pairs and doubles their width, as often as needed: a run of unknown length uses between half of its bins and all
/// of them, and every recorded nanosecond stays counted. [`Timeline::busy`] costs the number of bins that
/// the time covers, at most all of them; a merge costs all bins of all slots and happens once per doubling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timeline {
    begin: Time,
    width: Span,
    bins: usize,
    /// Busy nanoseconds by slot, then bin; concurrent holders of a slot add up.
    busy: Vec<u64>,
    until: Time,
}

impl Timeline {
    /// Creates a timeline without busy time. Allocates `slots` × `bins` × 8 bytes; `width` is the initial width of a bin.
    ///
    /// # Errors
    ///
    /// Returns an error for an odd number of bins, for none, and for a width of zero.
    pub fn new(begin: Time, slots: usize, bins: usize, width: Span) -> Result<Self, TimelineError> {
        if bins == 0 || !bins.is_multiple_of(2) {
            return Err(TimelineError::OddBins(bins));
        }
        if width == Span::ZERO {
            return Err(TimelineError::NoWidth);
        }
        Ok(Self {
            begin,
            width,
            bins,
            busy: vec![0; slots * bins],
            until: begin,
        })
    }

    /// Records a period in which a slot (a dense index from 0) was busy; time before the begin is not counted. Concurrent periods
    /// on a shared slot add up.
    ///
    /// # Panics
    ///
    /// Panics if there is no such slot.
    pub fn busy(&mut self, slot: usize, from: Time, to: Time) {
        self.pass(to);
        let row = slot * self.bins;
        let row = &mut self.busy[row..row + self.bins];
        let mut at = from.since(self.begin).0;
        let end = to.since(self.begin).0;
        while at < end {
            let bin = at / self.width.0;
            let next = (bin + 1).saturating_mul(self.width.0).min(end);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "below `bins`: time passed to the end"
            )]
            let bin = bin as usize;
            // The last nanosecond of all time may be one bin beyond the reach of doubling.
            row[bin.min(self.bins - 1)] += next - at;
            at = next;
        }
    }

    /// Extends the timeline to `to` without busy time.
    pub fn pass(&mut self, to: Time) {
        self.until = self.until.max(to);
        let end = u128::from(self.until.since(self.begin).0);
        while u128::from(self.width.0) * (self.bins as u128) < end && self.width.0 <= u64::MAX / 2 {
            self.merge();
        }
    }

    fn merge(&mut self) {
        for row in self.busy.chunks_exact_mut(self.bins) {
            for bin in 0..self.bins / 2 {
                row[bin] = row[2 * bin] + row[2 * bin + 1];
            }
            row[self.bins / 2..].fill(0);
        }
        self.width = Span(self.width.0 * 2);
    }

    /// Returns the current width of a bin.
    #[must_use]
    pub const fn width(&self) -> Span {
        self.width
    }

    /// Returns the begin of the first bin.
    #[must_use]
    pub const fn begin(&self) -> Time {
        self.begin
    }

    /// Returns the end of the timeline, the latest recorded time.
    #[must_use]
    pub const fn until(&self) -> Time {
        self.until
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.busy.len() / self.bins
    }

    /// Returns the number of bins that have begun.
    #[must_use]
    pub fn len(&self) -> usize {
        let bins = self.until.since(self.begin).0.div_ceil(self.width.0);
        usize::try_from(bins).map_or(self.bins, |bins| bins.min(self.bins))
    }

    /// Returns whether no time has passed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.until == self.begin
    }

    /// Returns the mean number of busy holders of a slot in a bin: 0 to 1 if at most one computes at a time. The last bin counts
    /// up to [`Timeline::until`]. Returns `None` if the bin has not begun or there is no such slot.
    #[must_use]
    pub fn share(&self, slot: usize, bin: usize) -> Option<f64> {
        if slot >= self.slots() || bin >= self.len() {
            return None;
        }
        let passed = self.until.since(self.begin).0 - bin as u64 * self.width.0;
        let wide = passed.min(self.width.0);
        #[expect(clippy::cast_precision_loss, reason = "a ratio of times")]
        let share = self.busy[slot * self.bins + bin] as f64 / wide as f64;
        Some(share)
    }

    /// Returns the busy time of a slot in all bins, with concurrent holders added up; zero if there is no such slot.
    #[must_use]
    pub fn total(&self, slot: usize) -> Span {
        let mut rows = self.busy.chunks_exact(self.bins);
        let row = rows.nth(slot);
        Span(row.map_or(0, |row| row.iter().sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_busy_for_its_share_of_each_bin() {
        let mut line = Timeline::new(Time(100), 2, 4, Span(10)).unwrap();
        line.busy(1, Time(105), Time(125));
        assert_eq!((line.len(), line.width()), (3, Span(10)));
        let shares: Vec<_> = (0..4).map(|bin| line.share(1, bin)).collect();
        // The third bin has lasted 5 and was busy for all of them.
        assert_eq!(shares, [Some(0.5), Some(1.0), Some(1.0), None]);
        assert_eq!(line.share(0, 0), Some(0.0));
        assert_eq!(line.share(2, 0), None);
        line.pass(Time(130));
        assert_eq!(line.share(1, 2), Some(0.5));
    }

    #[test]
    fn bins_widen_to_hold_a_longer_run() {
        let mut line = Timeline::new(Time(0), 1, 4, Span(10)).unwrap();
        line.busy(0, Time(0), Time(10));
        line.busy(0, Time(35), Time(100));
        assert_eq!((line.width(), line.len()), (Span(40), 3));
        assert_eq!(line.total(0), Span(75));
        assert_eq!(line.share(0, 0), Some(0.375));
        assert_eq!(line.share(0, 2), Some(1.0));
    }

    #[test]
    fn time_before_the_begin_and_at_the_end_of_time_is_handled() {
        let mut line = Timeline::new(Time(50), 1, 2, Span(1)).unwrap();
        line.busy(0, Time(10), Time(60));
        assert_eq!(line.total(0), Span(10));
        line.busy(0, Time(60), Time::NEVER);
        assert_eq!(line.total(0), Span(u64::MAX - 50));
        assert!(line.len() <= 2);
    }

    #[test]
    fn refuses_an_odd_number_of_bins_and_zero_width() {
        assert_eq!(
            Timeline::new(Time(0), 1, 3, Span(1)),
            Err(TimelineError::OddBins(3))
        );
        assert_eq!(
            Timeline::new(Time(0), 1, 0, Span(1)),
            Err(TimelineError::OddBins(0))
        );
        assert_eq!(
            Timeline::new(Time(0), 1, 2, Span::ZERO),
            Err(TimelineError::NoWidth)
        );
    }
}
