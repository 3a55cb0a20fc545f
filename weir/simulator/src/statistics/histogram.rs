//! Latencies in logarithmic buckets.

use policy::Span;

use super::Percentile;

/// Buckets of an octave, as a power of two.
const BITS: u32 = 6;
const PER_OCTAVE: usize = 1 << BITS;
/// One octave's worth of exact buckets, and one for each leading bit above.
const BUCKETS: usize = PER_OCTAVE * (64 - BITS as usize + 1);

/// Latencies in buckets that grow with the latency: fixed memory, whatever comes.
///
/// Below 64 ns each nanosecond has a bucket; above, each octave has 64 of equal width, so a bucket is at most 1/64 of
/// its lower end wide. A percentile is told as the middle of its bucket: at most 0.79 % from the value itself, and
/// never outside the least and the greatest that were recorded, which are exact, as are count and sum. All of
/// `u64` nanoseconds has a place (3 776 buckets, 29.5 KiB), so nothing is cut off. Recording touches one counter;
/// nothing allocates after [`Histogram::new`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
    least: u64,
    greatest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS].into_boxed_slice(),
            count: 0,
            sum: 0,
            least: u64::MAX,
            greatest: 0,
        }
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
        self.counts[bucket_of(latency.0)] += 1;
        self.count += 1;
        self.sum += u128::from(latency.0);
        self.least = self.least.min(latency.0);
        self.greatest = self.greatest.max(latency.0);
    }

    /// All of another's: the same as if each had been recorded here.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
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
        let taken = self.counts.iter().enumerate().filter(|&(_, &n)| n > 0);
        taken.map(move |(bucket, count)| {
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
    fn what_was_cleared_is_as_new() {
        let mut histogram = Histogram::new();
        histogram.record(Span(7));
        histogram.clear();
        assert_eq!(histogram, Histogram::new());
    }
}
