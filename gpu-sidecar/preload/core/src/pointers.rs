//! Pointers of the program.
//!
//! A pointer is read and written only as the function of the driver or of NVML with the wrapper's name reads and writes it. The program
//! guarantees to that function, and thereby to its wrapper, that the pointer is null or valid for it, aligned or not. No reference is
//! made from it, so other threads of the program may use the memory as far as they may beside the function itself.

use std::ops::Range;

/// Writes a result to the program's memory. Does nothing if the pointer is null.
pub(crate) fn write_out<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the program guarantees that the wrapped function may write a `T` there; that function has returned, or is
        // not called.
        unsafe { to.write_unaligned(value) };
    }
}

/// Reads a structure of the program's, or a result that the wrapped function has written; `None` if the pointer is null.
pub(crate) fn read<T: Copy>(from: *const T) -> Option<T> {
    // SAFETY: not null, and the program guarantees that the wrapped function may read a `T` there, or that function has written one.
    (!from.is_null()).then(|| unsafe { from.read_unaligned() })
}

/// Returns the words of 8 bytes at an address, without a last part that is no whole word; nothing for a null pointer.
pub(crate) fn read_words(from: *const u64, bytes: usize) -> Vec<u64> {
    if from.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, and the program guarantees that the wrapped function may read as many bytes there, as often as it likes.
    let read = |index| unsafe { from.wrapping_add(index).read_unaligned() };
    (0..bytes / 8).map(read).collect()
}

/// Returns the words of 8 bytes at an address whose value is in `near`, without a last part that is no whole word; nothing for a null pointer.
pub(crate) fn words_within(from: *const u64, bytes: usize, near: &Range<u64>) -> Vec<u64> {
    /// Number of words which are looked at together: nearly always none is in the range.
    const PART: usize = 512;
    let length = near.end.saturating_sub(near.start);
    let is_near = |word: u64| word.wrapping_sub(near.start) < length;
    // SAFETY: as in `read_words`, for words within `bytes`.
    let read = |index| unsafe { from.wrapping_add(index).read_unaligned() };
    let count = if from.is_null() { 0 } else { bytes / 8 };
    let mut found = Vec::new();
    for begin in (0..count).step_by(PART) {
        let part = begin..count.min(begin + PART);
        let any = part
            .clone()
            .fold(false, |any, index| any | is_near(read(index)));
        if any {
            found.extend(part.map(read).filter(|word| is_near(*word)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_a_range_are_found_wherever_they_are() {
        let mut words: Vec<u64> = (0..2_000).map(|n| n * 1_000).collect();
        words[1_999] = 77;
        let bytes = 8 * words.len() + 3;
        let within = |near: Range<u64>| words_within(words.as_ptr(), bytes - 3, &near);
        assert_eq!(within(70..80), [77]);
        assert_eq!(within(511_000..513_001), [511_000, 512_000, 513_000]);
        assert_eq!(within(5..5), [0; 0]);
        assert_eq!(words_within(std::ptr::null(), 64, &(0..u64::MAX)), [0; 0]);
        assert_eq!(read_words(words.as_ptr(), 20), [0, 1_000]);
    }
}
