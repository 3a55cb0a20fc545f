//! Latencies in logarithmic buckets.

use std::ops::Range;

use policy::Span;

use super::Percentile;

/// Buckets of an octave, as a power of two.
const BITS: u32 = 6;
const PER_OCTAVE: usize = 1 << BITS;

/// Latencies in buckets that grow with the latency: bounded memory, whatever comes.
///
/// Below 64 ns each nanosecond has a bucket; above, each octave has 64 of equal width, so a bucket is at most 1/64 of
/// its lower end wide. A percentile is told as the middle of its bucket: at most 0.79 % from the value itself, and
/// never outside the least and the greatest that were recorded, which are exact, as are count and sum. All of
/// `u64` nanoseconds has a place (3 776 buckets), so nothing is cut off. Recording touches one counter. Memory is that of
/// the octaves from the least to the greatest, 512 bytes each and 29.5 KiB at most: a cluster has thousands of these. Only what is
/// outside those octaves allocates, so at most once for each of the 59.
#[derive(Clone, Eq, Debug)]
pub struct Histogram {
    /// Of whole octaves.
    counts: Vec<u64>,
    /// Which bucket the first of them is.
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
    /// Octaves in which nothing is make no difference.
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

/// The least value of a bucket and how many there are.
const fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < PER_OCTAVE {
        return (bucket as u64, 1);
    }
    let shift = bucket / PER_OCTAVE - 1;
    let from = ((bucket % PER_OCTAVE + PER_OCTAVE) as u64) << shift;
    (from, 1 << shift)
}

impl Histogram {
    /// With nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One latency.
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

    /// Makes room for these buckets.
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

    /// Buckets that are not empty, and how many are in each.
    fn taken(&self) -> impl Iterator<Item = (usize, u64)> {
        let counts = self.counts.iter().copied();
        (self.first..).zip(counts).filter(|&(_, count)| count > 0)
    }

    /// All of another's: the same as if each had been recorded here.
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

    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.count, self.sum, self.least, self.greatest) = (0, 0, u64::MAX, 0);
    }

    /// How many were recorded.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Whether none was.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The least, exact; `None` if empty.
    #[must_use]
    pub fn least(&self) -> Option<Span> {
        (self.count > 0).then_some(Span(self.least))
    }

    /// The greatest, exact; `None` if empty.
    #[must_use]
    pub fn greatest(&self) -> Option<Span> {
        (self.count > 0).then_some(Span(self.greatest))
    }

    /// The mean, exact but for rounding to nanoseconds; `None` if empty.
    #[must_use]
    pub fn mean(&self) -> Option<Span> {
        let mean = self.sum.checked_div(u128::from(self.count))?;
        u64::try_from(mean).ok().map(Span)
    }

    /// The latency at the nearest rank, within 0.79 %; `None` if empty. Costs a pass over the buckets.
    #[must_use]
    pub fn percentile(&self, percentile: Percentile) -> Option<Span> {
        let rank = percentile.rank(self.count);
        self.steps()
            .find(|&(_, reached)| reached >= rank)
            .map(|(latency, _)| latency)
    }

    /// Each latency that occurs (the middle of its bucket) and how many are at most that, ascending: the
    /// cumulative distribution.
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

    /// One octave's worth of exact buckets, and one for each leading bit above.
    const BUCKETS: usize = PER_OCTAVE * (64 - BITS as usize + 1);

    #[test]
    fn buckets_are_beside_each_other_and_hold_all_numbers() {
        let mut next = 0_u64;
        for bucket in 0..BUCKETS {
            let (from, width) = bounds(bucket);
            assert_eq!(from, next, "bucket {bucket}");
            assert_eq!(bucket_of(from), bucket);
            assert_eq!(bucket_of(from + (width - 1)), bucket);
            assert!(width == 1 || width * 64 <= from, "bucket {bucket}");
            next = from.wrapping_add(width);
        }
        assert_eq!(next, 0, "the last ends where numbers end");
    }

    #[test]
    fn nothing_recorded_tells_nothing() {
        let empty = Histogram::new();
        assert_eq!(empty.percentile(Percentile::P50), None);
        assert_eq!(
            (empty.mean(), empty.least(), empty.greatest()),
            (None, None, None)
        );
        assert_eq!(empty.steps().count(), 0);
    }

    #[test]
    fn a_single_value_is_told_exactly() {
        for value in [0, 63, 64, 1_000_003, u64::MAX] {
            let mut one = Histogram::new();
            one.record(Span(value));
            assert_eq!(one.percentile(Percentile::P99), Some(Span(value)));
            assert_eq!(one.mean(), Some(Span(value)));
        }
    }

    #[test]
    fn memory_is_that_of_the_octaves_that_occur() {
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
    fn what_was_cleared_is_as_new() {
        let mut histogram = Histogram::new();
        histogram.record(Span(7));
        histogram.clear();
        assert_eq!(histogram, Histogram::new());
    }
}
