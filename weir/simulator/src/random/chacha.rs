//! ChaCha with eight rounds (Bernstein 2008), one block at a time.
//!
//! The usual crates buffer four blocks and the key for each stream, 320 bytes; here a block is computed on demand from the
//! numbers that identify it.

const ROUNDS: usize = 8;
/// The text "expand 32-byte k".
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646E, 0x7962_2D32, 0x6B20_6574];

/// Row of the state: the quarter rounds of a round operate on whole rows.
type Row = [u32; 4];

/// Returns block `counter` of a stream. Of the 256-bit key only the first 64 bits, `key`, are not zero.
pub(super) fn block(key: u64, counter: u64, stream: u64) -> [u64; 8] {
    let from = [CONSTANTS, row(key, 0), [0; 4], row(counter, stream)];
    let [mut a, mut b, mut c, mut d] = from;
    for _ in 0..ROUNDS / 2 {
        (a, b, c, d) = round(a, b, c, d);
        (b, c, d) = (turned::<1>(b), turned::<2>(c), turned::<3>(d));
        (a, b, c, d) = round(a, b, c, d);
        (b, c, d) = (turned::<3>(b), turned::<2>(c), turned::<1>(d));
    }
    let mut block = [0; 8];
    for (row, (mixed, from)) in [a, b, c, d].into_iter().zip(from).enumerate() {
        let sum = added(mixed, from);
        block[2 * row] = u64::from(sum[1]) << 32 | u64::from(sum[0]);
        block[2 * row + 1] = u64::from(sum[3]) << 32 | u64::from(sum[2]);
    }
    block
}

#[expect(clippy::cast_possible_truncation, reason = "halves")]
const fn row(low: u64, high: u64) -> Row {
    [
        low as u32,
        (low >> 32) as u32,
        high as u32,
        (high >> 32) as u32,
    ]
}

fn round(mut a: Row, mut b: Row, mut c: Row, mut d: Row) -> (Row, Row, Row, Row) {
    a = added(a, b);
    d = mixed::<16>(d, a);
    c = added(c, d);
    b = mixed::<12>(b, c);
    a = added(a, b);
    d = mixed::<8>(d, a);
    c = added(c, d);
    b = mixed::<7>(b, c);
    (a, b, c, d)
}

fn added(one: Row, other: Row) -> Row {
    std::array::from_fn(|at| one[at].wrapping_add(other[at]))
}

fn mixed<const BITS: u32>(one: Row, other: Row) -> Row {
    std::array::from_fn(|at| (one[at] ^ other[at]).rotate_left(BITS))
}

fn turned<const BY: usize>(row: Row) -> Row {
    std::array::from_fn(|at| row[(at + BY) % 4])
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

    use super::*;

    #[test]
    fn blocks_agree_with_another_implementation() {
        let mut number = 1_u64;
        for counters in [0..40, (1 << 32) - 20..(1 << 32) + 20] {
            for _ in 0..20 {
                number = number
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let (seed, stream) = (number, number.rotate_left(31));
                let mut key = [0; 32];
                key[..8].copy_from_slice(&seed.to_le_bytes());
                let mut other = ChaCha8Rng::from_seed(key);
                other.set_stream(stream);
                other.set_word_pos(u128::from(counters.start) * 16);
                for counter in counters.clone() {
                    let expected = std::array::from_fn(|_| other.next_u64());
                    assert_eq!(block(seed, counter, stream), expected, "{seed} {counter}");
                }
            }
        }
    }
}
