//! Collections indexed by ids, with access times of a few nanoseconds that do not depend on their size.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Map by ids which this crate assigns itself, so that no caller can choose colliding ids. The order of iteration is unspecified.
pub(crate) type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Hasher which spreads dense ids over all bits: a multiplication by 2⁶⁴ divided by the golden ratio.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.write_u64(id.into());
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = (self.0.rotate_left(5) ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// Items in reusable slots. An item keeps its slot until it is removed.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Inserts an item into the slot that was freed last, or into a new one, and returns the slot.
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.items[slot as usize] = Some(item);
            return slot;
        }
        self.items.push(Some(item));
        u32::try_from(self.items.len() - 1).unwrap_or(u32::MAX)
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.items.get(slot as usize).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.items.get_mut(slot as usize).and_then(Option::as_mut)
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<T> {
        let item = self.items.get_mut(slot as usize).and_then(Option::take)?;
        self.free.push(slot);
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slots_are_reused() {
        let mut slab = Slab::default();
        let (one, two) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((slab.remove(one), slab.remove(one)), (Some('a'), None));
        assert_eq!((slab.insert('c'), slab.insert('d')), (one, 2));
        assert_eq!((slab.get(one), slab.get(two)), (Some(&'c'), Some(&'b')));
        assert_eq!(slab.get_mut(7), None);
    }
}
