//! Handles: opaque to programs, with a kind and a generation, so that stale and foreign ones are detected.

use std::marker::PhantomData;

/// A type with handles.
pub(crate) trait Kind {
    /// Number of the kind in handles, below 64.
    const NUMBER: u64;
}

/// An opaque handle of a program.
#[repr(transparent)]
pub struct Handle<K>(u64, PhantomData<K>);

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Handle<K> {}
impl<K> PartialEq for Handle<K> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl<K> Eq for Handle<K> {}
impl<K> std::hash::Hash for Handle<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
impl<K> std::fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Above all addresses of user space, so that a handle is never a valid pointer.
const MARK: u64 = 0x4a00_0000_0000_0000;
const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 16;

impl<K> Handle<K> {
    pub(crate) const NULL: Self = Self(0, PhantomData);

    pub(crate) const fn is_null(self) -> bool {
        self.0 == 0
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw, PhantomData)
    }

    /// Returns whether the handle's bits are those of a handle of this kind; the handle may be stale.
    pub(crate) fn is_of_kind(self) -> bool
    where
        K: Kind,
    {
        self.0 >> (INDEX_BITS + GENERATION_BITS)
            == (MARK >> (INDEX_BITS + GENERATION_BITS)) | K::NUMBER
    }

    pub(crate) const fn index(self) -> usize {
        (self.0 & ((1 << INDEX_BITS) - 1)) as usize
    }

    const fn generation(self) -> u16 {
        (self.0 >> INDEX_BITS & ((1 << GENERATION_BITS) - 1)) as u16
    }
}

/// Objects of one kind, by handle.
pub(crate) struct Table<K: Kind> {
    entries: Vec<(u16, Option<K>)>,
    free: Vec<usize>,
    max: usize,
}

impl<K: Kind> Table<K> {
    /// Creates a table for at most `max` objects.
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            max,
        }
    }

    /// Adds an object, reusing a free index that `may_reuse` accepts; returns `None` if the table is full.
    pub(crate) fn insert_where(
        &mut self,
        value: K,
        may_reuse: impl Fn(usize) -> bool,
    ) -> Option<Handle<K>> {
        let at = match self.free.iter().rposition(|&at| may_reuse(at)) {
            Some(place) => self.free.swap_remove(place),
            None if self.entries.len() < self.max => {
                self.entries.push((0, None));
                self.entries.len() - 1
            }
            None => return None,
        };
        let entry = &mut self.entries[at];
        entry.0 = entry.0.wrapping_add(1);
        entry.1 = Some(value);
        let handle = MARK
            | K::NUMBER << (INDEX_BITS + GENERATION_BITS)
            | u64::from(entry.0) << INDEX_BITS
            | at as u64;
        Some(Handle(handle, PhantomData))
    }

    /// Adds an object; returns `None` if the table is full.
    pub(crate) fn insert(&mut self, value: K) -> Option<Handle<K>> {
        self.insert_where(value, |_| true)
    }

    fn entry(&self, handle: Handle<K>) -> Option<&K> {
        let (generation, value) = self.entries.get(handle.index())?;
        value
            .as_ref()
            .filter(|_| handle.is_of_kind() && *generation == handle.generation())
    }

    pub(crate) fn get(&self, handle: Handle<K>) -> Option<&K> {
        self.entry(handle)
    }

    pub(crate) fn get_mut(&mut self, handle: Handle<K>) -> Option<&mut K> {
        self.entry(handle)?;
        self.entries[handle.index()].1.as_mut()
    }

    pub(crate) fn remove(&mut self, handle: Handle<K>) -> Option<K> {
        self.entry(handle)?;
        self.free.push(handle.index());
        self.entries[handle.index()].1.take()
    }

    /// Returns all objects with their handles.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Handle<K>, &K)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(at, (generation, value))| {
                let handle = MARK
                    | K::NUMBER << (INDEX_BITS + GENERATION_BITS)
                    | u64::from(*generation) << INDEX_BITS
                    | at as u64;
                value
                    .as_ref()
                    .map(|value| (Handle(handle, PhantomData), value))
            })
    }

    /// Returns the handles of the objects that satisfy a predicate.
    pub(crate) fn handles(&self, is_meant: impl Fn(&K) -> bool) -> Vec<Handle<K>> {
        self.iter()
            .filter(|(_, value)| is_meant(value))
            .map(|(handle, _)| handle)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sample(u32);
    impl Kind for Sample {
        const NUMBER: u64 = 5;
    }
    struct OtherSample;
    impl Kind for OtherSample {
        const NUMBER: u64 = 6;
    }

    #[test]
    fn stale_and_foreign_handles_are_detected() {
        let mut table = Table::new(2);
        let one = table.insert(Sample(1)).unwrap();
        let two = table.insert(Sample(2)).unwrap();
        assert!(table.insert(Sample(3)).is_none());
        assert_eq!(table.get(two).map(|thing| thing.0), Some(2));
        assert!(table.remove(one).is_some());
        assert!(table.get(one).is_none() && table.remove(one).is_none());
        let three = table.insert(Sample(3)).unwrap();
        assert_eq!(three.index(), one.index());
        assert!(table.get(one).is_none());
        let other = Table::<OtherSample>::new(1).insert(OtherSample).unwrap();
        assert!(table.get(Handle::from_raw(other.raw())).is_none());
        assert!(table.get(Handle::NULL).is_none());
        assert!(table.get(Handle::from_raw(0x7fff_1234_5678)).is_none());
        assert_eq!(table.handles(|_| true).len(), 2);
    }
}
