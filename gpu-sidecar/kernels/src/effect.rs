//! The effect of each kernel on memory, as a function over slices.
//!
//! The results equal those of a GPU bit for bit, with one exception: a GPU always produces the same NaN, and these
//! functions may produce another one. A launch may be split into pieces, for which [`hash`] takes the index of its first
//! word. The slices of one call do not overlap; if the memory ranges of a launch do (`c = a + c`), the caller copies the
//! inputs.

/// Returns the contribution of a word at this index to [`hash`].
#[must_use]
#[inline]
pub const fn mix(index: u64, word: u32) -> u64 {
    let spread = (word as u64).wrapping_mul(0xd134_2543_de82_ef95);
    let place = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    finalise(place ^ spread)
}

/// Applies SplitMix64's finaliser: a bijection in which every bit of the result depends on every bit of `z`.
#[must_use]
#[inline]
pub const fn finalise(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Applies `weir_fill`: `out[i] = value`.
pub fn fill(out: &mut [u32], value: u32) {
    out.fill(value);
}

/// Returns the value that `weir_sum` adds to `*out`, modulo 2⁶⁴.
#[must_use]
pub fn sum(words: &[u32]) -> u64 {
    words
        .iter()
        .fold(0, |sum: u64, &word| sum.wrapping_add(u64::from(word)))
}

/// Returns the value that `weir_hash` adds to `*out` for words with indices from `first` on, modulo 2⁶⁴.
#[must_use]
#[inline]
pub fn hash(first: u64, words: &[u32]) -> u64 {
    let mut index = first;
    let mut sum = 0_u64;
    for &word in words {
        sum = sum.wrapping_add(mix(index, word));
        index = index.wrapping_add(1);
    }
    sum
}

/// Returns the two values that `weir_granule_hash` adds for a granule of these words, modulo 2⁶⁴: a hash of 128 bits.
#[must_use]
#[inline]
pub fn granule_hash(words: &[u64]) -> [u64; 2] {
    let mut place = 0_u64;
    let mut sums = [0_u64; 2];
    for &word in words {
        place = place.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = finalise(word ^ place);
        let y = (z ^ (z >> 29)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        sums[0] = sums[0].wrapping_add(z);
        sums[1] = sums[1].wrapping_add(y ^ (y >> 32));
    }
    sums
}

/// Applies `weir_add`: `c[i] = a[i] + b[i]`, up to the length of the shortest slice.
pub fn add(c: &mut [f32], a: &[f32], b: &[f32]) {
    for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
        *c = a + b;
    }
}

/// Applies `weir_saxpy`: `y[i] = fma(a, x[i], y[i])`, up to the length of the shorter slice.
pub fn saxpy(y: &mut [f32], x: &[f32], a: f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = a.mul_add(x, *y);
    }
}

/// Applies `weir_matmul`: `c = a · b`, all `n` × `n` and row-major; every element is summed with fma from 0, in the order
/// of k. Elements of `c` for which the row of `a` or the column of `b` is incomplete stay unchanged.
pub fn matmul(c: &mut [f32], a: &[f32], b: &[f32], n: usize) {
    if n == 0 || b.len() < n.saturating_mul(n) {
        return;
    }
    for (row, left) in c.chunks_exact_mut(n).zip(a.chunks_exact(n)) {
        row.fill(0.0);
        // Iterating over rows of b reads memory sequentially and yields the same sums.
        for (&left, right) in left.iter().zip(b.chunks_exact(n)) {
            for (element, &right) in row.iter_mut().zip(right) {
                *element = left.mul_add(right, *element);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_pieces_add_up_to_the_whole() {
        let words: Vec<u32> = (0..1_000)
            .map(|n: u32| n.wrapping_mul(2_654_435_761))
            .collect();
        let whole = hash(0, &words);
        for cut in [0, 1, 500, 999, 1_000] {
            let first = u64::try_from(cut).unwrap();
            let pieces = hash(0, &words[..cut]).wrapping_add(hash(first, &words[cut..]));
            assert_eq!(pieces, whole, "{cut}");
        }
        assert_eq!(hash(7, &[]), 0);
    }

    #[test]
    fn a_changed_or_moved_word_changes_the_hash() {
        let mut words: Vec<u32> = (0..256).collect();
        let whole = hash(0, &words);
        for at in 0..words.len() {
            for bit in 0..32 {
                words[at] ^= 1 << bit;
                assert_ne!(hash(0, &words), whole, "word {at}, bit {bit}");
                words[at] ^= 1 << bit;
            }
        }
        for a in 0..words.len() {
            for b in a + 1..words.len() {
                words.swap(a, b);
                assert_ne!(hash(0, &words), whole, "{a} and {b}");
                words.swap(a, b);
            }
        }
        // Rotation of all words by one.
        words.rotate_left(1);
        assert_ne!(hash(0, &words), whole);
        assert_ne!(hash(0, &[0; 8]), hash(0, &[0; 9]), "zeros count");
    }

    #[test]
    fn a_change_of_a_granule_changes_both_halves_of_its_hash() {
        let mut words: Vec<u64> = (0..512).collect();
        let whole = granule_hash(&words);
        for at in [0, 1, 255, 256, 511] {
            for bit in 0..64 {
                words[at] ^= 1 << bit;
                let changed = granule_hash(&words);
                assert!(changed[0] != whole[0] && changed[1] != whole[1]);
                // The same change of a second word, as when signs change, does not undo it.
                words[at ^ 2] ^= 1 << bit;
                let both = granule_hash(&words);
                assert!(both[0] != whole[0] && both[1] != whole[1], "{at} {bit}");
                words[at ^ 2] ^= 1 << bit;
                words[at] ^= 1 << bit;
            }
        }
        words.swap(3, 4);
        assert_ne!(granule_hash(&words), whole);
        assert_ne!(granule_hash(&[0; 8]), granule_hash(&[0; 9]));
        // The halves are not functions of each other: their sum and difference vary like random numbers.
        let sums: Vec<_> = (0..1_000_u64).map(|n| granule_hash(&[n])).collect();
        for combine in [u64::wrapping_add, u64::wrapping_sub] {
            let ones: u32 = sums.iter().map(|&[a, b]| combine(a, b).count_ones()).sum();
            assert!((31_000..33_000).contains(&ones), "{ones}");
        }
    }

    #[test]
    fn indices_up_to_2_to_the_40_are_well_mixed() {
        // Flipping any single bit of index or word flips about half of the bits of the result.
        for base in [0, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 40) - 1] {
            for word in [0, 1, u32::MAX] {
                let result = mix(base, word);
                let places = (0..40).map(|bit| mix(base ^ 1 << bit, word));
                let words = (0..32).map(|bit| mix(base, word ^ 1 << bit));
                let flipped: Vec<u32> = places
                    .chain(words)
                    .map(|other| (other ^ result).count_ones())
                    .collect();
                let mean = flipped.iter().sum::<u32>() / 72;
                assert!((28..=36).contains(&mean), "{base} {word}: {mean}");
                assert!(flipped.iter().all(|&bits| bits >= 12), "{flipped:?}");
            }
        }
        // No bit of the result depends on the index alone.
        let all = (0..4_096_u64).map(|n| mix(n << 28, 0));
        let ones: Vec<u32> = (0..64)
            .map(|bit| all.clone().map(|z| u32::from(z >> bit & 1 == 1)).sum())
            .collect();
        assert!(ones.iter().all(|n| (1_850..=2_250).contains(n)), "{ones:?}");
    }

    #[test]
    fn mix_has_a_fixed_value() {
        // The PTX text computes the same value, and stored checksums depend on it.
        assert_eq!(mix(0, 0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn products_are_summed_in_the_order_of_k() {
        let n = 17;
        let value = |seed: usize| {
            let bits = u32::try_from(seed * 7_919 % 4_096).unwrap();
            f32::from(u16::try_from(bits).unwrap()) / 333.0 - 5.0
        };
        let a: Vec<f32> = (0..n * n).map(value).collect();
        let b: Vec<f32> = (0..n * n).map(|at| value(at + 11)).collect();
        let mut c = vec![f32::NAN; n * n];
        matmul(&mut c, &a, &b, n);
        for row in 0..n {
            for column in 0..n {
                let sum = (0..n).fold(0.0_f32, |sum, k| {
                    a[row * n + k].mul_add(b[k * n + column], sum)
                });
                assert_eq!(c[row * n + column].to_bits(), sum.to_bits());
            }
        }
        matmul(&mut [], &[], &[], 0);
    }

    #[test]
    fn saxpy_rounds_once() {
        // Rounding the product separately would lose its last bits.
        let x = 1.0 + f32::EPSILON;
        let mut y = [-(x * x)];
        saxpy(&mut y, &[x], x);
        assert!(y[0] != 0.0 && y[0].abs() < f32::EPSILON, "{}", y[0]);
        let mut c = [0.0; 2];
        add(&mut c, &[1.0, 2.0], &[0.5, 0.25]);
        assert_eq!(c.map(f32::to_bits), [1.5, 2.25].map(f32::to_bits));
        let mut out = [1, 2, 3];
        fill(&mut out, 9);
        assert_eq!((out, sum(&out)), ([9; 3], 27));
        assert_eq!(sum(&[u32::MAX, u32::MAX]), 2 * u64::from(u32::MAX));
    }
}
