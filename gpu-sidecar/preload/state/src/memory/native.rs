//! Memory allocated by the driver: managed memory, arrays, and plain allocations where memory cannot be mapped or the historical
//! functions need addresses of 32 bits. It is counted by its requested size, since the driver does not report the real one, and
//! it cannot be moved.

use std::collections::BTreeMap;

use super::Kind;
use crate::{Address, Handle};

/// Assumed granularity of arrays, in bytes.
const ARRAY_GRAIN: u64 = 64 << 10;

/// Memory allocated by the driver, and the context in which it was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Native {
    /// Size in bytes, as the program has requested it.
    pub bytes: u64,
    /// Use as which it counts.
    pub kind: Kind,
    /// Context in which it was allocated, and with which it is destroyed.
    pub context: Handle,
}

/// Memory that the driver itself has allocated for the program.
#[derive(Debug, Default)]
pub struct Natives {
    /// Memory by its address.
    memory: BTreeMap<Address, Native>,
    /// Arrays by their handle.
    arrays: BTreeMap<Handle, Native>,
}

impl Natives {
    /// Enters memory at an address.
    pub fn keep_memory(&mut self, at: Address, native: Native) {
        self.memory.insert(at, native);
    }

    /// Removes the memory at an address; `None` if it is unknown.
    pub fn take_memory(&mut self, at: Address) -> Option<Native> {
        self.memory.remove(&at)
    }

    /// Enters an array of the driver.
    pub fn keep_array(&mut self, array: Handle, native: Native) {
        self.arrays.insert(array, native);
    }

    /// Removes an array; `None` if it is unknown.
    pub fn take_array(&mut self, array: Handle) -> Option<Native> {
        self.arrays.remove(&array)
    }

    /// Removes and returns what was allocated in a destroyed context.
    pub fn context_destroyed(&mut self, context: Handle) -> Vec<Native> {
        let is_its = |native: &mut Native| native.context == context;
        let memory = self.memory.extract_if(.., |_, native| is_its(native));
        let arrays = self.arrays.extract_if(.., |_, native| is_its(native));
        let all = memory.map(|(_, native)| native);
        all.chain(arrays.map(|(_, native)| native)).collect()
    }
}

/// Returns the bytes of a channel; packed formats take at most the largest.
const fn channel_bytes(format: u32) -> u64 {
    match format {
        // 8 bits with and without sign.
        0x01 | 0x08 => 1,
        // 16 bits, and half precision.
        0x02 | 0x09 | 0x10 => 2,
        _ => 4,
    }
}

/// Returns the size of an array in bytes, summed over its mipmap levels. A side of length 0 is absent.
#[must_use]
pub fn array_bytes(sides: [u64; 3], format: u32, channels: u32, levels: u32) -> u64 {
    let pixel = channel_bytes(format).saturating_mul(u64::from(channels.max(1)));
    let level = |level: u32| {
        let sides = sides
            .iter()
            .map(|side| side.checked_shr(level).unwrap_or(0).max(1));
        sides.fold(pixel, u64::saturating_mul)
    };
    let all = (0..levels.clamp(1, 64)).fold(0, |sum: u64, at| sum.saturating_add(level(at)));
    all.checked_next_multiple_of(ARRAY_GRAIN)
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_have_the_size_of_their_pixels() {
        // 1024 × 1024 × 4 channels of 32 bits.
        assert_eq!(array_bytes([1024, 1024, 0], 0x20, 4, 1), 16 << 20);
        assert_eq!(array_bytes([1024, 0, 0], 0x01, 1, 1), ARRAY_GRAIN);
        assert_eq!(array_bytes([256, 256, 256], 0x10, 2, 1), 64 << 20);
        // Mipmaps: 1 + 1/4 + 1/16 … of the first level.
        let pyramid = array_bytes([1024, 1024, 0], 0x20, 1, 11);
        assert!(pyramid > (4 << 20) * 4 / 3 && pyramid < (4 << 20) * 4 / 3 + 2 * ARRAY_GRAIN);
        // Invalid descriptors saturate and do not panic.
        assert_eq!(array_bytes([u64::MAX; 3], 0, u32::MAX, u32::MAX), u64::MAX);
    }

    #[test]
    fn a_destroyed_context_takes_its_memory_and_arrays() {
        let mut natives = Natives::default();
        for (key, context) in [(1, 7), (2, 8)] {
            let native = Native {
                bytes: 10,
                kind: Kind::Managed,
                context,
            };
            natives.keep_memory(key, native);
            let array = Native {
                bytes: 5,
                kind: Kind::Array,
                ..native
            };
            natives.keep_array(3, array);
        }
        let mut dead = |context| {
            let dead = natives.context_destroyed(context).into_iter();
            dead.map(|native| (native.kind, native.bytes))
                .collect::<Vec<_>>()
        };
        assert_eq!(dead(7), [(Kind::Managed, 10)]);
        assert_eq!(dead(8), [(Kind::Managed, 10), (Kind::Array, 5)]);
        assert_eq!(dead(8), []);
    }

    #[test]
    fn memory_that_was_taken_is_unknown() {
        let mut natives = Natives::default();
        let native = Native {
            bytes: 10,
            kind: Kind::Native,
            context: 7,
        };
        natives.keep_memory(1, native);
        natives.keep_array(1, native);
        assert_eq!(natives.take_memory(1), Some(native));
        assert_eq!(natives.take_memory(1), None);
        assert_eq!(natives.take_array(1), Some(native));
        assert_eq!(natives.take_array(1), None);
    }
}
