//! Random numbers for tests.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by several test files, each of which uses a part"
)]

/// A small generator with a stated sequence (SplitMix64), so that a failure names its seed.
pub struct Random(pub u64);

impl Random {
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn place(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }
}
