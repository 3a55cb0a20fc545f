//! A distribution of times, given by quantiles.

use policy::Span;

/// A distribution of times given by some of its quantiles, interpolated linearly.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantiles {
    /// Shares and times in nanoseconds, both rising, the shares from 0 to 1.
    points: Box<[(f64, u64)]>,
}

impl Quantiles {
    /// Creates a distribution from shares and times: at least one point, shares in `0 ..= 1` and rising, times not falling;
    /// otherwise returns `None`. Below the first share and above the last one, the distribution is constant.
    #[must_use]
    pub fn new(points: &[(f64, Span)]) -> Option<Self> {
        let rising = points
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let within = points.iter().all(|point| (0.0..=1.0).contains(&point.0));
        (rising && within && !points.is_empty()).then(|| Self {
            points: points
                .iter()
                .map(|&(share, time)| (share, time.0))
                .collect(),
        })
    }

    /// Creates the distribution of measured times; `None` if there are none.
    #[must_use]
    pub fn of(mut times: Vec<Span>) -> Option<Self> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?.max(1);
        #[expect(clippy::cast_precision_loss, reason = "as many as fit into memory")]
        let points = (0..)
            .zip(&times)
            .map(|(at, time)| (f64::from(at) / last as f64, time.0));
        Some(Self {
            points: points.collect(),
        })
    }

    /// Returns the quantile at a share: the time that this share of all values does not exceed.
    #[must_use]
    pub fn at(&self, share: f64) -> Span {
        let above = self.points.partition_point(|point| point.0 <= share);
        let Some(&(high_share, high)) = self.points.get(above) else {
            return Span(self.points.last().map_or(0, |point| point.1));
        };
        let Some(&(low_share, low)) = above.checked_sub(1).and_then(|at| self.points.get(at))
        else {
            return Span(high);
        };
        let part = (share - low_share) / (high_share - low_share);
        #[expect(
            clippy::cast_precision_loss,
            reason = "a difference, rounded to nanoseconds"
        )]
        let more = (high - low) as f64 * part;
        Span((low + crate::generate::nanos(more)).min(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated_linearly() {
        let quantiles =
            Quantiles::new(&[(0.0, Span(10)), (0.5, Span(20)), (1.0, Span(120))]).unwrap();
        for (share, time) in [(0.0, 10), (0.25, 15), (0.5, 20), (0.75, 70), (1.0, 120)] {
            assert_eq!(quantiles.at(share), Span(time), "{share}");
        }
        let part = Quantiles::new(&[(0.2, Span(10)), (0.8, Span(20))]).unwrap();
        assert_eq!((part.at(0.1), part.at(0.9)), (Span(10), Span(20)));
    }

    #[test]
    fn measured_times_are_their_own_quantiles() {
        let quantiles = Quantiles::of([5, 1, 3, 9, 7].map(Span).to_vec()).unwrap();
        assert_eq!(
            [0.0, 0.25, 0.5, 1.0].map(|share| quantiles.at(share).0),
            [1, 3, 5, 9]
        );
        let one = Quantiles::of(vec![Span(4)]).unwrap();
        assert_eq!([0.0, 0.5, 1.0].map(|share| one.at(share).0), [4; 3]);
        assert_eq!(Quantiles::of(Vec::new()), None);
    }

    #[test]
    fn falling_quantiles_are_refused() {
        for points in [
            &[][..],
            &[(0.0, Span(2)), (1.0, Span(1))],
            &[(0.5, Span(1)), (0.5, Span(2))],
            &[(0.0, Span(1)), (1.5, Span(2))],
        ] {
            assert_eq!(Quantiles::new(points), None, "{points:?}");
        }
    }
}
