//! Maps values to positions on the page, and places ticks.

/// Spacing of values along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scale {
    /// Equal differences have equal length.
    Linear,
    /// Logarithmic: each decade has the same length; values must be above zero.
    Decades,
    /// For shares: 90 %, 99 % and 99.9 % are equally far from each other, so that a tail has room.
    Nines,
}

/// One axis of a plot. Values beyond its ends are drawn at its ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    scale: Scale,
    /// Value at the start, transformed by the scale.
    from: f64,
    to: f64,
    /// Position of the start on the page.
    start: f64,
    end: f64,
}

impl Scale {
    fn of(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Decades => libm::log10(value.max(1e-9)),
            Self::Nines => -libm::log10((1.0 - value).max(1e-9)),
        }
    }
}

impl Axis {
    /// Maps value `values.0` to position `places.0`, and `values.1` to `places.1`. If both values are equal, the range is widened
    /// by 1.
    pub(super) fn new(scale: Scale, values: (f64, f64), places: (f64, f64)) -> Self {
        let (from, to) = (scale.of(values.0), scale.of(values.1));
        Self {
            scale,
            from,
            to: if to > from { to } else { from + 1.0 },
            start: places.0,
            end: places.1,
        }
    }

    /// Returns the position of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = (self.scale.of(value) - self.from) / (self.to - self.from);
        let share = if share.is_nan() { 0.0 } else { share };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Returns whether a value is between the ends.
    pub(super) fn holds(&self, value: f64) -> bool {
        let value = self.scale.of(value);
        value >= self.from - 1e-9 && value <= self.to + 1e-9
    }

    /// Returns round values between the ends, about `most` at most.
    pub(super) fn ticks(&self, most: u32) -> Vec<f64> {
        match self.scale {
            Scale::Linear => steps(self.from, self.to, most),
            Scale::Decades => self.decades(most),
            Scale::Nines => [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999]
                .into_iter()
                .filter(|&share| self.holds(share))
                .collect(),
        }
    }

    fn decades(&self, most: u32) -> Vec<f64> {
        #[expect(clippy::cast_possible_truncation, reason = "a decade of nanoseconds")]
        let (first, last) = (libm::floor(self.from) as i32, libm::ceil(self.to) as i32);
        // The densest set that has at most `most` ticks.
        for within in [
            &[1.0, 2.0, 3.0, 5.0, 7.0][..],
            &[1.0, 2.0, 5.0],
            &[1.0, 3.0],
            &[1.0],
        ] {
            let ticks: Vec<f64> = (first..=last)
                .flat_map(|decade| {
                    let size = libm::pow(10.0, f64::from(decade));
                    within.iter().map(move |step| step * size)
                })
                .filter(|&value| self.holds(value))
                .collect();
            if ticks.len() <= most as usize || within.len() == 1 {
                return ticks;
            }
        }
        Vec::new()
    }
}

/// Returns the multiples of 1, 2 or 5 times a power of ten in the range.
fn steps(from: f64, to: f64, most: u32) -> Vec<f64> {
    let rough = (to - from) / f64::from(most.max(1));
    let size = libm::pow(10.0, libm::floor(libm::log10(rough)));
    let factors = [1.0, 2.0, 5.0, 10.0];
    let factor = factors
        .iter()
        .find(|&factor| factor * size >= rough * 0.999_999);
    let step = factor.unwrap_or(&10.0) * size;
    let mut ticks = Vec::new();
    let mut count = libm::ceil(from / step - 1e-9);
    while count * step <= to + step * 1e-9 && ticks.len() < 100 {
        ticks.push(count * step);
        count += 1.0;
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_between_the_ends() {
        let axis = Axis::new(Scale::Linear, (0.0, 10.0), (100.0, 0.0));
        assert_eq!(
            [axis.at(0.0), axis.at(5.0), axis.at(99.0)],
            [100.0, 50.0, 0.0]
        );
        assert_eq!(axis.at(f64::NAN), 100.0);
        let axis = Axis::new(Scale::Decades, (1.0, 100.0), (0.0, 10.0));
        assert_eq!([axis.at(0.0), axis.at(10.0)], [0.0, 5.0]);
        let axis = Axis::new(Scale::Nines, (0.0, 0.99), (0.0, 10.0));
        assert!((axis.at(0.9) - 5.0).abs() < 1e-9);
        assert_eq!(axis.at(1.0), 10.0);
        let flat = Axis::new(Scale::Linear, (3.0, 3.0), (0.0, 10.0));
        assert_eq!(flat.at(3.0), 0.0);
    }

    #[test]
    fn ticks_are_round() {
        let ticks = |from, to| Axis::new(Scale::Linear, (from, to), (0.0, 1.0)).ticks(6);
        assert_eq!(ticks(0.0, 100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(ticks(160.0, 640.0), [200.0, 300.0, 400.0, 500.0, 600.0]);
        let axis = Axis::new(Scale::Decades, (8e6, 6e7), (0.0, 1.0));
        assert_eq!(axis.ticks(6), [1e7, 2e7, 3e7, 5e7]);
        let axis = Axis::new(Scale::Decades, (1e3, 1e9), (0.0, 1.0));
        assert_eq!(axis.ticks(8), [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9]);
        let axis = Axis::new(Scale::Nines, (0.0, 0.9995), (0.0, 1.0));
        assert_eq!(axis.ticks(9), [0.0, 0.5, 0.9, 0.99, 0.999]);
    }
}
