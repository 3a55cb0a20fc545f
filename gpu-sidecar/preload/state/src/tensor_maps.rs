//! Descriptors of tensors in device memory (`CUtensorMap`), which a program encodes on the host and gives to kernels by value. Their layout is the
//! driver's own, so that the address of the tensor is known only from the call that has encoded it.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Address;

/// Number of words of eight bytes of a descriptor.
pub const WORDS: usize = 16;
/// Alignment of descriptors, in words.
pub const ALIGNMENT: usize = 8;
/// Number of descriptors that are known at most: 136 KiB. Two with the same slot replace each other.
const SLOT_COUNT: usize = 1024;

/// Contents of a descriptor.
pub type Contents = [u64; WORDS];

#[derive(Debug, Clone, Copy)]
struct Entry {
    contents: Contents,
    address: Address,
}

#[derive(Debug, Default)]
struct Slots {
    /// Empty until a program encodes the first descriptor.
    entries: Vec<Option<Entry>>,
    /// Whether the contents of some descriptor do not show its address.
    hides_addresses: bool,
}

/// Descriptors which the program has encoded last.
#[derive(Debug, Default)]
pub struct TensorMaps(Mutex<Slots>);

impl TensorMaps {
    /// Creates the set without a descriptor.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Slots {
            entries: Vec::new(),
            hides_addresses: false,
        }))
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the contents of a descriptor of the tensor at an address. Returns whether it is the first one that does not show its address.
    pub fn note(&self, contents: Contents, address: Address) -> bool {
        let mut slots = self.slots();
        let is_first = !slots.hides_addresses && !contents.contains(&address);
        slots.hides_addresses |= is_first;
        slots.entries.resize(SLOT_COUNT, None);
        if let Some(slot) = slots.entries.get_mut(slot_of(&contents)) {
            *slot = Some(Entry { contents, address });
        }
        is_first
    }

    /// Returns the address of the tensor of a descriptor; `None` for contents which are not those of a known one.
    #[must_use]
    pub fn address(&self, contents: &Contents) -> Option<Address> {
        let slots = self.slots();
        let entry = slots.entries.get(slot_of(contents)).copied().flatten()?;
        (entry.contents == *contents).then_some(entry.address)
    }

    /// Returns whether the contents of some descriptor do not show its address, so that memory which holds descriptors is not recognised as memory
    /// which holds addresses.
    #[must_use]
    pub fn hides_addresses(&self) -> bool {
        self.slots().hides_addresses
    }

    /// Returns the words of an argument with the address of the tensor in place of each descriptor; `None` if it contains no known descriptor, although the
    /// process has encoded some. The argument is aligned as a descriptor is.
    #[must_use]
    pub fn resolve(&self, words: &[u64]) -> Option<Vec<u64>> {
        if self.slots().entries.is_empty() {
            return Some(words.to_vec());
        }
        let mut resolved = Vec::with_capacity(words.len());
        let mut any = false;
        let mut rest = words;
        while !rest.is_empty() {
            let address = rest.first_chunk().and_then(|own| self.address(own));
            let length = if let Some(address) = address {
                any = true;
                resolved.push(address);
                WORDS
            } else {
                let part = rest.len().min(ALIGNMENT);
                resolved.extend(&rest[..part]);
                part
            };
            rest = &rest[length..];
        }
        any.then_some(resolved)
    }
}

fn slot_of(contents: &Contents) -> usize {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(contents);
    usize::try_from(hash % SLOT_COUNT as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use testing::Random;

    use super::*;

    const AT: Address = 0x7f00_0000_0000;

    /// Returns the contents of a descriptor with an address in its first word.
    fn contents(number: u64) -> Contents {
        let mut contents = [number.wrapping_mul(0x9e37_79b9_7f4a_7c15); WORDS];
        contents[0] = AT + number;
        contents
    }

    #[test]
    fn a_descriptor_stands_for_the_address_with_which_it_was_encoded() {
        let maps = TensorMaps::new();
        assert_eq!(maps.address(&contents(1)), None);
        for number in 1..3 {
            assert!(!maps.note(contents(number), AT + number));
        }
        assert_eq!(maps.address(&contents(1)), Some(AT + 1));
        assert_eq!(maps.address(&contents(2)), Some(AT + 2));
        let mut changed = contents(1);
        changed[15] ^= 1;
        assert_eq!(maps.address(&changed), None);
        assert!(!maps.hides_addresses());
    }

    #[test]
    fn a_descriptor_that_does_not_show_its_address_is_noticed_for_good() {
        let maps = TensorMaps::new();
        assert!(maps.note(contents(1), AT + 2));
        assert!(!maps.note(contents(2), AT + 2));
        assert!(!maps.note(contents(1), AT + 3), "it is known already");
        assert!(maps.hides_addresses());
        assert_eq!(maps.address(&contents(1)), Some(AT + 3));
    }

    #[test]
    fn descriptors_are_found_among_the_words_of_an_argument() {
        let maps = TensorMaps::new();
        assert_eq!(
            maps.resolve(&[5; 40]),
            Some(vec![5; 40]),
            "none was encoded"
        );
        assert!(!maps.note(contents(1), AT + 1));
        let argument = |parts: &[&[u64]]| parts.concat();
        let resolve = |parts: &[&[u64]]| maps.resolve(&argument(parts));
        let plain = [5; ALIGNMENT];
        assert_eq!(resolve(&[&contents(1)]), Some(vec![AT + 1]));
        assert_eq!(resolve(&[&contents(2)]), None, "not encoded here");
        assert_eq!(resolve(&[]), None);
        let beside = resolve(&[&plain, &contents(1), &[7]]);
        assert_eq!(beside, Some([&plain[..], &[AT + 1, 7]].concat()));
        assert_eq!(resolve(&[&[5], &contents(1)]), None, "not aligned");
        let cut = resolve(&[&contents(1), &contents(1)[..15]]);
        assert_eq!(cut, Some([&[AT + 1], &contents(1)[..15]].concat()));
    }

    #[test]
    fn random_descriptors_are_known_with_their_own_address_or_not_at_all() {
        let mut random = Random(5);
        let maps = TensorMaps::new();
        for _ in 0..5_000 {
            let number = random.below(3_000);
            assert!(!maps.note(contents(number), AT + number));
            assert_eq!(maps.address(&contents(number)), Some(AT + number));
            let other = random.below(6_000);
            let address = maps.address(&contents(other));
            assert!(address.is_none_or(|address| address == AT + other));
        }
        let known = (0..3_000).filter(|number| maps.address(&contents(*number)).is_some());
        assert!((900..=SLOT_COUNT).contains(&known.count()));
    }
}
