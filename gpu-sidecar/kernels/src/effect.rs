//! What each kernel does to memory, as a function over slices.
//!
//! The results are a GPU's to the last bit, with one difference: where a result is not a number, a GPU's is always the
//! same one, and here it may be another. A launch may be cut into pieces: [`hash`] takes the number of its first word.
//! Slices of one call do not overlap; where a launch's stretches do (`c = a + c`), the caller copies what is read.

/// What a word adds to [`hash`] at this place.
#[must_use]
pub const fn mix(index: u64, word: u32) -> u64 {
    let spread = (word as u64).wrapping_mul(0xd134_2543_de82_ef95);
    let place = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    finalise(place ^ spread)
}

/// SplitMix64's finaliser: every bit of the result hangs on every bit of `z`, and no two `z` have the same result.
#[must_use]
pub const fn finalise(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `weir_fill`: `out[i] = value`.
pub fn fill(out: &mut [u32], value: u32) {
    out.fill(value);
}

/// `weir_sum`: what it adds to `*out`.
#[must_use]
pub fn sum(words: &[u32]) -> u64 {
    words
        .iter()
        .fold(0, |sum: u64, &word| sum.wrapping_add(u64::from(word)))
}

/// `weir_hash`: what the words from number `first` on add to `*out`.
#[must_use]
pub fn hash(first: u64, words: &[u32]) -> u64 {
    let mut index = first;
    let mut sum = 0_u64;
    for &word in words {
        sum = sum.wrapping_add(mix(index, word));
        index = index.wrapping_add(1);
    }
    sum
}

/// `weir_add`: `c[i] = a[i] + b[i]`, as far as all three reach.
pub fn add(c: &mut [f32], a: &[f32], b: &[f32]) {
    for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
        *c = a + b;
    }
}

/// `weir_saxpy`: `y[i] = fma(a, x[i], y[i])`, as far as both reach.
pub fn saxpy(y: &mut [f32], x: &[f32], a: f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = a.mul_add(x, *y);
    }
}

/// `weir_matmul`: `c = a · b`, all `n` × `n` and row-major; every element is summed with fma from 0, in the order of k.
/// Elements of `c` whose row of `a` or column of `b` is not all there stay as they are.
pub fn matmul(c: &mut [f32], a: &[f32], b: &[f32], n: usize) {
    if n == 0 || b.len() < n.saturating_mul(n) {
        return;
    }
    for (row, left) in c.chunks_exact_mut(n).zip(a.chunks_exact(n)) {
        row.fill(0.0);
        // Row of b by row of b, so that memory is read in order; the sums are the same.
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
    fn pieces_hash_as_the_whole_does() {
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
    fn a_changed_or_moved_word_shows() {
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
        // All of it moved by one word.
        words.rotate_left(1);
        assert_ne!(hash(0, &words), whole);
        assert_ne!(hash(0, &[0; 8]), hash(0, &[0; 9]), "zeros count");
    }

    #[test]
    fn places_up_to_2_to_the_40_stay_mixed() {
        // Flipping any one bit of place or word flips about half of the result's.
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
        // And no bit of the result follows the place alone.
        let all = (0..4_096_u64).map(|n| mix(n << 28, 0));
        let ones: Vec<u32> = (0..64)
            .map(|bit| all.clone().map(|z| u32::from(z >> bit & 1 == 1)).sum())
            .collect();
        assert!(ones.iter().all(|n| (1_850..=2_250).contains(n)), "{ones:?}");
    }

    #[test]
    fn a_known_value_stays() {
        // As the text computes it; a stored checksum hangs on it.
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
        // In two steps the product's last bits would be lost.
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
