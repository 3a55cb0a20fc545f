//! Histogram of latencies in logarithmic buckets.

use std::ops::Range;

use policy::Span;

use super::Percentile;

/// Binary logarithm of the number of buckets in an octave.
const BITS: u32 = 6;
const PER_OCTAVE: usize = 1 << BITS;

/// Latencies in buckets whose width grows with the latency, in bounded memory.
///
/// Below 64 ns each nanosecond has a bucket; above, each octave has 64 of equal width, so the width of a bucket is at most 1/64
/// of its lower end. A percentile is returned as the middle of its bucket: at most 0.79 % from the value itself, and
/// never outside the least and the greatest recorded values, which are exact, as are count and sum. All of
/// `u64` nanoseconds is covered (3 776 buckets), so no value is clipped. Recording increments one counter. Memory is that of
/// the octaves from the least to the greatest, 512 bytes each and 29.5 KiB at most, since a cluster has thousands of histograms.
/// Only a value outside those octaves allocates, so at most once for each of the 59.
#[derive(Clone, Eq, Debug)]
pub struct Histogram {
    /// Counts by bucket, in whole octaves.
    counts: Vec<u64>,
    /// Index of the first bucket in `counts`.
    first: usize,
    count: u64,
    sum: u128,
    least: u64,
    greatest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Vec::new(),
            first: 0,
            count: 0,
            sum: 0,
            least: u64::MAX,
            greatest: 0,
        }
    }
}

impl PartialEq for Histogram {
    /// Compares recorded values; empty octaves do not matter.
    fn eq(&self, other: &Self) -> bool {
        self.sum == other.sum
            && self.taken().eq(other.taken())
            && (self.least, self.greatest) == (other.least, other.greatest)
    }
}

const fn bucket_of(value: u64) -> usize {
    if value < PER_OCTAVE as u64 {
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        return value as usize;
    }
    let shift = value.ilog2() - BITS;
    #[expect(clippy::cast_possible_truncation, reason = "64 to 127 after the shift")]
    let within = (value >> shift) as usize - PER_OCTAVE;
    PER_OCTAVE * (shift as usize + 1) + within
}

/// Returns the least value of a bucket and the number of values that it covers.
const fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < PER_OCTAVE {
        return (bucket as u64, 1);
    }
    let shift = bucket / PER_OCTAVE - 1;
    let from = ((bucket % PER_OCTAVE + PER_OCTAVE) as u64) << shift;
    (from, 1 << shift)
}

impl Histogram {
    /// Returns an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records one latency of any size.
    pub fn record(&mut self, latency: Span) {
        let bucket = bucket_of(latency.0);
        if let Some(count) = self.counts.get_mut(bucket.wrapping_sub(self.first)) {
            *count += 1;
        } else {
            self.reach(bucket..bucket + 1);
            self.counts[bucket - self.first] += 1;
        }
        self.count += 1;
        self.sum += u128::from(latency.0);
        self.least = self.least.min(latency.0);
        self.greatest = self.greatest.max(latency.0);
    }

    /// Extends `counts` to cover these buckets.
    #[cold]
    fn reach(&mut self, buckets: Range<usize>) {
        let (mut from, mut to) = (buckets.start, buckets.end);
        if !self.counts.is_empty() {
            from = from.min(self.first);
            to = to.max(self.first + self.counts.len());
        }
        from -= from % PER_OCTAVE;
        let mut counts = vec![0; to.next_multiple_of(PER_OCTAVE) - from];
        if !self.counts.is_empty() {
            let begin = self.first - from;
            counts[begin..begin + self.counts.len()].copy_from_slice(&self.counts);
        }
        (self.counts, self.first) = (counts, from);
    }

    /// Returns the buckets that are not empty, each with its count.
    fn taken(&self) -> impl Iterator<Item = (usize, u64)> {
        let counts = self.counts.iter().copied();
        (self.first..).zip(counts).filter(|&(_, count)| count > 0)
    }

    /// Adds all latencies of another histogram, as if each had been recorded here.
    pub fn merge(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        let needs = bucket_of(other.least)..bucket_of(other.greatest) + 1;
        if needs.start < self.first || needs.end > self.first + self.counts.len() {
            self.reach(needs);
        }
        for (bucket, more) in other.taken() {
            self.counts[bucket - self.first] += more;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.least = self.least.min(other.least);
        self.greatest = self.greatest.max(other.greatest);
    }

    /// Removes all latencies and keeps the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.count, self.sum, self.least, self.greatest) = (0, 0, u64::MAX, 0);
    }

    /// Returns the number of recorded latencies.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether no latency was recorded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the least latency, exactly; `None` if empty.
    #[must_use]
    pub fn least(&self) -> Option<Span> {
        (self.count > 0).then_some(Span(self.least))
    }

    /// Returns the greatest latency, exactly; `None` if empty.
    #[must_use]
    pub fn greatest(&self) -> Option<Span> {
        (self.count > 0).then_some(Span(self.greatest))
    }

    /// Returns the mean, exact except for rounding to nanoseconds; `None` if empty.
    #[must_use]
    pub fn mean(&self) -> Option<Span> {
        let mean = self.sum.checked_div(u128::from(self.count))?;
        u64::try_from(mean).ok().map(Span)
    }

    /// Returns the latency at the nearest rank, within 0.79 %; `None` if empty. Costs a pass over the buckets.
    #[must_use]
    pub fn percentile(&self, percentile: Percentile) -> Option<Span> {
        let rank = percentile.rank(self.count);
        self.steps()
            .find(|&(_, reached)| reached >= rank)
            .map(|(latency, _)| latency)
    }

    /// Returns the cumulative distribution: each latency that occurs (the middle of its bucket) with the number of latencies up
    /// to it, ascending.
    pub fn steps(&self) -> impl Iterator<Item = (Span, u64)> {
        let mut reached = 0;
        self.taken().map(move |(bucket, count)| {
            reached += count;
            let (from, width) = bounds(bucket);
            let middle = from + (width - 1) / 2;
            (Span(middle.clamp(self.least, self.greatest)), reached)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of buckets: one octave's worth of exact ones, and as many for each leading bit above.
    const BUCKETS: usize = PER_OCTAVE * (64 - BITS as usize + 1);

    #[test]
    fn buckets_are_adjacent_and_cover_all_numbers() {
        let mut next = 0_u64;
        for bucket in 0..BUCKETS {
            let (from, width) = bounds(bucket);
            assert_eq!(from, next, "bucket {bucket}");
            assert_eq!(bucket_of(from), bucket);
            assert_eq!(bucket_of(from + (width - 1)), bucket);
            assert!(width == 1 || width * 64 <= from, "bucket {bucket}");
            next = from.wrapping_add(width);
        }
        assert_eq!(next, 0, "the last bucket must end at u64::MAX");
    }

    #[test]
    fn an_empty_histogram_has_no_statistics() {
        let empty = Histogram::new();
        assert_eq!(empty.percentile(Percentile::P50), None);
        assert_eq!(
            (empty.mean(), empty.least(), empty.greatest()),
            (None, None, None)
        );
        assert_eq!(empty.steps().count(), 0);
    }

    #[test]
    fn a_single_value_is_returned_exactly() {
        for value in [0, 63, 64, 1_000_003, u64::MAX] {
            let mut one = Histogram::new();
            one.record(Span(value));
            assert_eq!(one.percentile(Percentile::P99), Some(Span(value)));
            assert_eq!(one.mean(), Some(Span(value)));
        }
    }

    #[test]
    fn memory_covers_only_the_octaves_that_occur() {
        let mut histogram = Histogram::new();
        for value in [1_000_000, 1_500_000, 3_000_000] {
            histogram.record(Span(value));
        }
        assert_eq!(histogram.counts.len(), 3 * PER_OCTAVE);
        histogram.record(Span(0));
        histogram.record(Span(u64::MAX));
        assert_eq!((histogram.counts.len(), histogram.first), (BUCKETS, 0));
        let mut merged = Histogram::new();
        merged.record(Span(1_000_000_000));
        merged.merge(&histogram);
        histogram.record(Span(1_000_000_000));
        assert_eq!(merged, histogram);
        merged.merge(&Histogram::new());
        assert_eq!(merged, histogram);
    }

    #[test]
    fn a_cleared_histogram_equals_a_new_one() {
        let mut histogram = Histogram::new();
        histogram.record(Span(7));
        histogram.clear();
        assert_eq!(histogram, Histogram::new());
    }
}
