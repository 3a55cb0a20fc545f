//! The hashes of kernels, compiled for the vector instructions that the machine has: a program which verifies its model, or the comparison of memory before it
//! leaves, reads all of it, and is late where that takes the host longer than the GPU that it stands for.

use kernels::effect;
use multiversion::multiversion;

/// Returns what [`effect::hash`] does of words from index 0 on.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn hash(words: &[u32]) -> u64 {
    effect::hash(0, words)
}

/// Returns what [`effect::granule_hash`] does.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
pub(crate) fn granule_hash(words: &[u64]) -> [u64; 2] {
    effect::granule_hash(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_effects_at_any_length() {
        let word = |at: u64| (at + 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for length in (0..70).chain([1_000, 65_537]) {
            let words: Vec<u64> = (0..length).map(word).collect();
            assert_eq!(granule_hash(&words), effect::granule_hash(&words));
            #[expect(clippy::cast_possible_truncation, reason = "any words")]
            let halves: Vec<u32> = words.iter().map(|word| *word as u32).collect();
            assert_eq!(hash(&halves), effect::hash(0, &halves));
        }
    }
}
