//! Host memory to which device memory is copied: windows from the agent, and what is in them.

use std::collections::BTreeMap;

use super::spans::Spans;
use crate::{Address, Handle};

/// Contiguous range of host memory in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSpan {
    /// First address in the process.
    pub at: u64,
    /// Size of the range in bytes.
    pub bytes: u64,
}

impl HostSpan {
    /// Returns whether this address is in the range.
    const fn has(self, at: u64) -> bool {
        at.wrapping_sub(self.at) < self.bytes
    }
}

/// Hash of a granule: see `weir_granule_hash`.
pub type GranuleHash = [u64; 2];

/// Copy of a block of device memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HostCopy {
    /// Host memory of the copy, in the order of the block's addresses.
    pub spans: Vec<HostSpan>,
    /// Hash of each granule of the copied contents; empty if they are unknown.
    pub hashes: Vec<GranuleHash>,
}

#[derive(Debug)]
struct Window {
    memory: Registrable,
    free: Spans,
}

/// Host memory that may be registered with the driver.
#[derive(Debug)]
struct Registrable {
    span: HostSpan,
    is_pinned: bool,
    /// Context in which it is registered with the driver.
    registered_in: Option<Handle>,
    /// Context in which the driver has refused to register or to release it.
    refused_in: Option<Handle>,
}

impl Registrable {
    const fn new(span: HostSpan, is_pinned: bool) -> Self {
        Self {
            span,
            is_pinned,
            registered_in: None,
            refused_in: None,
        }
    }

    /// Returns whether it may be registered, or is.
    const fn is_counted(&self) -> bool {
        self.is_pinned || self.registered_in.is_some()
    }

    /// Returns whether it is registered although it may not be any more.
    const fn is_beyond(&self) -> bool {
        !self.is_pinned && self.registered_in.is_some()
    }

    const fn is_to_register(&self) -> bool {
        self.is_pinned && self.registered_in.is_none() && self.refused_in.is_none()
    }

    /// Returns it with the context in which it was registered, if it may not be any more.
    fn to_release(&self) -> Option<(HostSpan, Handle)> {
        let context = self.registered_in.filter(|_| !self.is_pinned)?;
        (self.refused_in != Some(context)).then_some((self.span, context))
    }
}

/// Size of the parts in which a window is registered with the driver, in bytes: an order is carried out between two of them.
const PART: u64 = 256 << 20;

/// Host memory of one process.
#[derive(Debug, Default)]
pub struct HostMemory {
    windows: Vec<Window>,
    /// Memory through which copies pass to and from windows that are not registered.
    staging: Option<Registrable>,
    /// Size of the staging memory that there should be, in bytes.
    staging_wanted: u64,
    /// Unit of that size, and its maximum, in bytes; 0 as long as the device is not known.
    staging_sizes: (u64, u64),
    /// What may be registered, in bytes; `None`: whatever is pinned.
    pinned_max: Option<u64>,
    copies: BTreeMap<Address, HostCopy>,
}

impl HostMemory {
    /// Adds a window. `is_pinned`: it may be registered with the driver.
    pub fn add(&mut self, span: HostSpan, is_pinned: bool) {
        let mut from = 0;
        while from < span.bytes {
            let bytes = PART.min(span.bytes - from);
            let at = span.at + from;
            self.windows.push(Window {
                memory: Registrable::new(HostSpan { at, bytes }, is_pinned),
                free: Spans::new(at, bytes),
            });
            from += bytes;
        }
    }

    /// Returns the size of all windows, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.windows
            .iter()
            .map(|window| window.memory.span.bytes)
            .sum()
    }

    /// Sets how much may be registered with the driver, in bytes: whole parts of windows, in the order in which they came, beside staging memory if that is
    /// not all of them. Returns whether that has changed.
    pub fn set_pinned_max(&mut self, bytes_max: u64) -> bool {
        let (unit, most) = self.staging_sizes;
        let is_all = self.bytes() <= bytes_max;
        let wanted = if is_all { 0 } else { most.min(bytes_max) };
        self.staging_wanted = wanted.checked_div(unit).unwrap_or(0) * unit;
        self.pinned_max = Some(bytes_max);
        let mut left = bytes_max - self.staging_wanted;
        let mut is_changed = false;
        for window in &mut self.windows {
            let own = &mut window.memory;
            let is_pinned = own.span.bytes <= left;
            if is_pinned {
                left -= own.span.bytes;
            }
            is_changed |= std::mem::replace(&mut own.is_pinned, is_pinned) != is_pinned;
        }
        if let Some(staging) = &mut self.staging {
            let is_pinned = staging.span.bytes == self.staging_wanted;
            is_changed |= std::mem::replace(&mut staging.is_pinned, is_pinned) != is_pinned;
        }
        is_changed
    }

    /// Sets the unit of the size of staging memory, and its maximum, in bytes.
    pub const fn set_staging_sizes(&mut self, unit: u64, most: u64) {
        self.staging_sizes = (unit, most);
    }

    /// Returns whether the sizes of staging memory are not known, and may matter.
    #[must_use]
    pub fn lacks_staging_sizes(&self) -> bool {
        let is_known = self.staging_sizes.0 > 0;
        !is_known && self.pinned_max.is_some_and(|most| most < self.bytes())
    }

    /// Returns the size of the staging memory that is to be made, in bytes; `None` if there is some, or should be none.
    #[must_use]
    pub const fn missing_staging(&self) -> Option<u64> {
        if self.staging.is_none() && self.staging_wanted > 0 {
            Some(self.staging_wanted)
        } else {
            None
        }
    }

    /// Adds staging memory, of which there is none yet.
    pub const fn add_staging(&mut self, span: HostSpan) {
        self.staging = Some(Registrable::new(span, true));
    }

    /// Returns the staging memory, if it is registered.
    #[must_use]
    pub fn staging(&self) -> Option<HostSpan> {
        let staging = self.staging.as_ref()?;
        staging.registered_in.map(|_context| staging.span)
    }

    /// Removes staging memory that is not registered and may not be, and returns it.
    pub fn take_unused_staging(&mut self) -> Option<HostSpan> {
        let taken = self.staging.take_if(|staging| !staging.is_counted());
        taken.map(|staging| staging.span)
    }

    /// Returns all memory that may be registered: windows first.
    fn all(&self) -> impl Iterator<Item = &Registrable> {
        let windows = self.windows.iter().map(|window| &window.memory);
        windows.chain(&self.staging)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Registrable> {
        let windows = self.windows.iter_mut().map(|window| &mut window.memory);
        windows.chain(&mut self.staging)
    }

    /// Returns the size of what may be registered with the driver, or is, in bytes.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        let pinned = self.all().filter(|own| own.is_counted());
        pinned.map(|own| own.span.bytes).sum()
    }

    /// Returns whether nothing is registered that may not be any more.
    #[must_use]
    pub fn keeps_pinned_max(&self) -> bool {
        !self.all().any(Registrable::is_beyond)
    }

    /// Returns whether host memory of a copy is registered with the driver.
    #[must_use]
    pub fn is_registered(&self, span: HostSpan) -> bool {
        let window = self.windows.iter().find(|own| own.memory.span.has(span.at));
        window.is_some_and(|own| own.memory.registered_in.is_some())
    }

    /// Returns the next memory which is registered with the driver and may not be any more, and the context in which it was registered.
    #[must_use]
    pub fn next_to_release(&self) -> Option<(HostSpan, Handle)> {
        self.all().find_map(Registrable::to_release)
    }

    /// Counts memory as not registered any more. `is_released`: otherwise the driver has refused it, and it stays registered as long as its context lives.
    pub fn set_released(&mut self, memory: HostSpan, is_released: bool) {
        if let Some(own) = self.all_mut().find(|own| own.span == memory) {
            let before = own.registered_in;
            (own.registered_in, own.refused_in) = match is_released {
                true => (None, None),
                false => (before, before),
            };
        }
    }

    /// Returns the next memory to register with the driver: staging memory, which serves all windows, comes first.
    #[must_use]
    pub fn next_to_register(&self) -> Option<HostSpan> {
        let windows = self.windows.iter().map(|window| &window.memory);
        let mut all = self.staging.iter().chain(windows);
        let registered = self.all().filter(|own| own.registered_in.is_some());
        let registered: u64 = registered.map(|own| own.span.bytes).sum();
        // What is to be released may not be, as long as the program computes.
        let has_room = |own: &Registrable| {
            let most = self.pinned_max;
            most.is_none_or(|most| registered + own.span.bytes <= most)
        };
        Some(all.find(|own| own.is_to_register() && has_room(own))?.span)
    }

    /// Counts memory as registered in a context. `is_registered`: otherwise the driver has refused it there.
    pub fn set_registered(&mut self, memory: HostSpan, context: Handle, is_registered: bool) {
        if let Some(own) = self.all_mut().find(|own| own.span == memory) {
            (own.registered_in, own.refused_in) = match is_registered {
                true => (Some(context), None),
                false => (None, Some(context)),
            };
        }
    }

    /// Forgets what was registered in a destroyed context: the driver has.
    pub fn context_destroyed(&mut self, context: Handle) {
        for memory in self.all_mut() {
            for own in [&mut memory.registered_in, &mut memory.refused_in] {
                *own = own.filter(|own| *own != context);
            }
        }
    }

    /// Returns whether a block with this first address has a copy.
    #[must_use]
    pub fn has(&self, at: Address) -> bool {
        self.copies.contains_key(&at)
    }

    /// Returns the copy of the block with this first address.
    #[must_use]
    pub fn copy(&self, at: Address) -> Option<&HostCopy> {
        self.copies.get(&at)
    }

    /// Returns whether the hashes of all copies are known.
    #[must_use]
    pub fn is_all_hashed(&self) -> bool {
        self.copies.values().all(|copy| !copy.hashes.is_empty())
    }

    /// Sets the hashes of the copy of the block with this first address.
    pub fn set_hashes(&mut self, at: Address, hashes: Vec<GranuleHash>) {
        if let Some(copy) = self.copies.get_mut(&at) {
            copy.hashes = hashes;
        }
    }

    /// Takes host memory for a copy of a block of `bytes`, a multiple of the granule, as every span is. Returns `false`, and takes nothing, if
    /// there is not enough.
    #[must_use]
    pub fn reserve(&mut self, at: Address, bytes: u64) -> bool {
        let mut spans = Vec::new();
        let mut missing = bytes;
        // Pinned windows first, since copies to them are faster.
        for is_pinned in [true, false] {
            let windows = self.windows.iter_mut();
            for window in windows.filter(|window| window.memory.is_pinned == is_pinned) {
                while missing > 0 {
                    let part = missing.min(window.free.longest());
                    let Some(at) = window.free.take(part) else {
                        break;
                    };
                    spans.push(HostSpan { at, bytes: part });
                    missing -= part;
                }
            }
        }
        if missing > 0 {
            self.give_back(&spans);
            return false;
        }
        let hashes = Vec::new();
        self.copies.insert(at, HostCopy { spans, hashes });
        true
    }

    /// Drops the copy of the block with this first address, if there is one.
    pub fn forget(&mut self, at: Address) {
        if let Some(copy) = self.copies.remove(&at) {
            self.give_back(&copy.spans);
        }
    }

    fn give_back(&mut self, spans: &[HostSpan]) {
        for span in spans {
            let mut windows = self.windows.iter_mut();
            let own = windows.find(|own| own.memory.span.has(span.at));
            if let Some(window) = own {
                window.free.give_back(span.at, span.bytes);
            }
        }
    }
}

impl HostCopy {
    /// Returns the host memory of a range of the block, from `offset` on.
    pub fn range(&self, offset: u64, bytes: u64) -> impl Iterator<Item = HostSpan> {
        let end = offset + bytes;
        let mut begin = 0;
        self.spans.iter().filter_map(move |span| {
            let at = begin;
            begin += span.bytes;
            let (from, to) = (at.max(offset), (at + span.bytes).min(end));
            (from < to).then(|| HostSpan {
                at: span.at + (from - at),
                bytes: to - from,
            })
        })
    }

    /// Returns the ranges of the block, as offset and size in bytes, whose hashes are not those of the copy. All of it, if the hashes of one or
    /// the other are unknown.
    #[must_use]
    pub fn changed(&self, hashes: &[GranuleHash], granule: u64) -> Vec<(u64, u64)> {
        let bytes = self.spans.iter().map(|span| span.bytes).sum();
        if hashes.is_empty() || hashes.len() != self.hashes.len() {
            return vec![(0, bytes)];
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut offset = 0;
        for (before, now) in self.hashes.iter().zip(hashes) {
            if before != now {
                match ranges.last_mut() {
                    Some((from, length)) if *from + *length == offset => *length += granule,
                    _ => ranges.push((offset, granule)),
                }
            }
            offset += granule;
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use testing::Random;

    use super::*;

    const G: u64 = 10;

    fn spans(host: &HostMemory, at: Address) -> Vec<(u64, u64)> {
        let spans = &host.copy(at).unwrap().spans;
        spans.iter().map(|span| (span.at, span.bytes)).collect()
    }

    fn window(at: u64, granules: u64) -> HostSpan {
        HostSpan {
            at,
            bytes: granules * G,
        }
    }

    #[test]
    fn a_copy_is_spread_over_windows_pinned_ones_first() {
        let mut host = HostMemory::default();
        assert!(!host.reserve(7, G));
        host.add(window(1_000, 2), false);
        host.add(window(2_000, 3), true);
        assert_eq!(host.bytes(), 5 * G);
        assert!(host.reserve(7, 4 * G));
        assert_eq!(spans(&host, 7), [(2_000, 30), (1_000, 10)]);
        assert!(!host.reserve(8, 2 * G), "one granule is left");
        assert!(host.reserve(8, G));
        host.forget(7);
        host.forget(7);
        assert!(!host.has(7) && host.has(8));
        assert!(host.reserve(9, 4 * G));
    }

    #[test]
    fn staging_memory_is_set_aside_before_windows_have_the_limit() {
        let mut host = HostMemory::default();
        host.add(window(1_000, 4), false);
        host.add(window(2_000, 4), false);
        assert!(!host.lacks_staging_sizes() && host.missing_staging().is_none());
        host.set_pinned_max(6 * G);
        assert!(host.lacks_staging_sizes() && host.missing_staging().is_none());
        host.set_staging_sizes(G, 2 * G);
        // A window that would fit into what is left for it does not take its place.
        host.set_pinned_max(5 * G);
        assert_eq!((host.missing_staging(), host.pinned()), (Some(2 * G), 0));
        host.set_pinned_max(6 * G + 5);
        assert!(!host.lacks_staging_sizes());
        assert_eq!(
            (host.missing_staging(), host.pinned()),
            (Some(2 * G), 4 * G)
        );
        let staging = window(9_000, 2);
        host.add_staging(staging);
        assert_eq!((host.missing_staging(), host.staging()), (None, None));
        assert_eq!(host.next_to_register(), Some(staging));
        host.set_registered(staging, 7, true);
        assert_eq!((host.staging(), host.pinned()), (Some(staging), 6 * G));
        assert!(!host.is_registered(window(1_000, 1)));
        host.set_registered(window(1_000, 4), 7, true);
        assert!(host.is_registered(window(1_030, 1)) && !host.is_registered(window(2_000, 1)));
        // All windows may be registered: it serves nothing.
        assert!(host.set_pinned_max(8 * G));
        assert!(!host.keeps_pinned_max());
        assert_eq!(
            host.next_to_register(),
            None,
            "staging memory is registered"
        );
        assert_eq!(host.next_to_release(), Some((staging, 7)));
        assert_eq!(host.take_unused_staging(), None, "it is registered");
        host.set_released(staging, true);
        assert_eq!(host.take_unused_staging(), Some(staging));
        assert!(host.keeps_pinned_max() && host.staging().is_none());
        assert_eq!(host.next_to_register(), Some(window(2_000, 4)));
        assert_eq!(host.missing_staging(), None);
        // What is registered beyond the limit leaves no room for it.
        host.set_registered(window(2_000, 4), 7, true);
        host.set_pinned_max(2 * G);
        host.add_staging(staging);
        assert_eq!(host.next_to_register(), None);
        for (at, next) in [(1_000, None), (2_000, Some(staging))] {
            host.set_released(window(at, 4), true);
            assert_eq!(host.next_to_register(), next);
        }
        // One of another size is made anew.
        host.set_registered(staging, 7, true);
        host.set_pinned_max(G);
        assert_eq!(host.next_to_release(), Some((staging, 7)));
    }

    #[test]
    fn pinned_windows_are_registered_once_for_each_life_of_their_context() {
        let mut host = HostMemory::default();
        host.add(window(1_000, 2), false);
        host.add(window(2_000, 3), true);
        assert_eq!(host.next_to_register(), Some(window(2_000, 3)));
        host.set_registered(window(2_000, 3), 7, true);
        assert_eq!(host.next_to_register(), None);
        host.context_destroyed(8);
        assert_eq!(host.next_to_register(), None);
        host.context_destroyed(7);
        assert_eq!(host.next_to_register(), Some(window(2_000, 3)));
    }

    #[test]
    fn windows_beyond_what_may_be_registered_are_released() {
        let mut host = HostMemory::default();
        host.add(window(1_000, 2), true);
        host.add(window(2_000, 3), true);
        host.set_registered(window(1_000, 2), 7, true);
        host.set_registered(window(2_000, 3), 7, true);
        assert!(!host.set_pinned_max(5 * G) && host.pinned() == 5 * G);
        assert_eq!(host.next_to_release(), None);
        // No part of a window.
        assert!(host.set_pinned_max(4 * G));
        assert_eq!(host.pinned(), 5 * G, "it is registered still");
        assert!(!host.keeps_pinned_max());
        assert_eq!(host.next_to_release(), Some((window(2_000, 3), 7)));
        assert_eq!(host.next_to_register(), None);
        host.set_released(window(2_000, 3), true);
        assert_eq!((host.next_to_release(), host.pinned()), (None, 2 * G));
        assert!(host.keeps_pinned_max());
        assert!(host.set_pinned_max(5 * G));
        assert_eq!(host.next_to_register(), Some(window(2_000, 3)));
    }

    #[test]
    fn windows_that_the_driver_does_not_release_stay_registered_with_their_context() {
        let mut host = HostMemory::default();
        host.add(window(1_000, 2), true);
        host.set_registered(window(1_000, 2), 7, true);
        assert!(host.set_pinned_max(0));
        host.set_released(window(1_000, 2), false);
        assert_eq!((host.next_to_release(), host.pinned()), (None, 2 * G));
        assert!(!host.keeps_pinned_max());
        host.context_destroyed(7);
        assert!(host.keeps_pinned_max() && host.pinned() == 0);
    }

    #[test]
    fn large_windows_are_registered_in_parts() {
        let mut host = HostMemory::default();
        let bytes = 2 * PART + G;
        host.add(HostSpan { at: PART, bytes }, true);
        assert_eq!(host.bytes(), bytes);
        let first = HostSpan {
            at: PART,
            bytes: PART,
        };
        assert_eq!(host.next_to_register(), Some(first));
        assert!(host.set_pinned_max(2 * PART));
        assert_eq!(host.pinned(), 2 * PART);
        assert!(host.reserve(7, bytes), "a copy may be in several");
        assert_eq!(host.copy(7).unwrap().spans.len(), 3);
    }

    #[test]
    fn a_range_of_a_block_has_the_host_memory_of_its_offsets() {
        let copy = HostCopy {
            spans: vec![window(1_000, 2), window(5_000, 1), window(9_000, 4)],
            hashes: Vec::new(),
        };
        let range = |offset, bytes| -> Vec<(u64, u64)> {
            let spans = copy.range(offset, bytes);
            spans.map(|span| (span.at, span.bytes)).collect()
        };
        assert_eq!(range(0, 70), [(1_000, 20), (5_000, 10), (9_000, 40)]);
        assert_eq!(range(10, 30), [(1_010, 10), (5_000, 10), (9_000, 10)]);
        assert_eq!(range(40, 10), [(9_010, 10)]);
        assert_eq!(range(20, 0), []);
    }

    #[test]
    fn changed_ranges_are_joined() {
        let mut copy = HostCopy {
            spans: vec![window(1_000, 5)],
            hashes: Vec::new(),
        };
        let hash = |n| [n, n];
        assert_eq!(copy.changed(&[hash(1); 5], G), [(0, 50)], "unknown");
        copy.hashes = (0..5).map(hash).collect();
        assert_eq!(copy.changed(&[], G), [(0, 50)], "unknown now");
        assert_eq!(copy.changed(&copy.hashes, G), []);
        let mut now = copy.hashes.clone();
        for at in [0, 1, 4] {
            now[at] = hash(9);
        }
        assert_eq!(copy.changed(&now, G), [(0, 20), (40, 10)]);
    }

    #[test]
    fn host_memory_is_given_to_one_copy_at_a_time() {
        let mut random = Random(5);
        let mut host = HostMemory::default();
        let all = [window(1_000, 7), window(2_000, 11), window(3_000, 3)];
        for (number, span) in all.into_iter().enumerate() {
            host.add(span, number == 1);
        }
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        for at in 0..5_000 {
            let used: u64 = held.values().sum();
            if random.below(2) == 0 {
                let granules = 1 + random.below(6);
                let fits = used + granules <= 21;
                assert_eq!(host.reserve(at, granules * G), fits);
                if fits {
                    held.insert(at, granules);
                }
            } else if let Some((&at, _)) = held.iter().next() {
                held.remove(&at);
                host.forget(at);
            }
            let mut spans: Vec<_> = held.keys().flat_map(|&at| spans(&host, at)).collect();
            spans.sort_unstable();
            assert!(spans.is_sorted_by(|a, b| a.0 + a.1 <= b.0), "{spans:?}");
            for (at, granules) in &held {
                let bytes: u64 = host.copy(*at).unwrap().spans.iter().map(|s| s.bytes).sum();
                assert_eq!(bytes, granules * G);
            }
        }
    }
}
