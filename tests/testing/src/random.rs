//! Pseudo-random numbers.

/// A generator with a fixed sequence for each seed (SplitMix64), so that a failure is reproduced by its seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64-bit number of the sequence.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`.
    ///
    /// # Panics
    ///
    /// If `bound` is zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Returns a number below `bound`.
    ///
    /// # Panics
    ///
    /// If `bound` is zero.
    pub fn below_u32(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).expect("below a u32")
    }

    /// Returns an index below `bound`.
    ///
    /// # Panics
    ///
    /// If `bound` is zero.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }

    /// Returns a number from 0 up to and without 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits")]
    pub const fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_the_sequence() {
        // The first numbers of SplitMix64's reference implementation.
        let mut random = Random(0);
        assert_eq!(random.next(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(random.next(), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn numbers_are_within_their_bounds() {
        let mut random = Random(1);
        for _ in 0..1_000 {
            assert!(random.below_u32(7) < 7);
            assert!(random.index(3) < 3);
            assert!((0.0..1.0).contains(&random.unit()));
        }
    }
}
