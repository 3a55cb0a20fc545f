//! Extents: physical memory with one handle and one mapping behind several neighbouring blocks. A driver creates, maps and releases a handle at a cost
//! that hardly depends on its size, so that a model of many small blocks moves faster in few handles. Operates on numbers only.
//!
//! A mapping is unmapped as a whole. A block that is freed alone is therefore unused memory of its extent up to the next eviction, or until the
//! extent is divided.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Address;

/// Where the contents of a block of an extent are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the device.
    Device,
    /// On the host, or about to be released there.
    Host,
    /// Nowhere: the block was freed.
    Unused,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    bytes: u64,
    place: Place,
}

/// Physical memory behind neighbouring blocks.
#[derive(Debug)]
pub struct Extent {
    /// First address of the mapping.
    pub at: Address,
    /// Size of the mapping and of the memory, in bytes.
    pub bytes: u64,
    /// Handle of the driver.
    pub handle: u64,
    /// Blocks by their first address, without gaps between them.
    members: BTreeMap<Address, Member>,
    /// Whether its blocks are to have handles of their own.
    is_to_divide: bool,
}

impl Extent {
    /// Returns the size of the memory of freed blocks, in bytes.
    #[must_use]
    pub fn unused(&self) -> u64 {
        self.unused_ranges().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the memory of freed blocks, as first address and size in bytes.
    pub fn unused_ranges(&self) -> impl Iterator<Item = (Address, u64)> {
        let members = self.members.iter();
        let unused = members.filter(|(_, member)| member.place == Place::Unused);
        unused.map(|(&at, member)| (at, member.bytes))
    }

    /// Returns the blocks whose contents are on the host, by their first address.
    pub fn left(&self) -> impl Iterator<Item = Address> {
        let members = self.members.iter();
        let left = members.filter(|(_, member)| member.place == Place::Host);
        left.map(|(&at, _)| at)
    }
}

/// What has come of the memory of a freed block.
#[derive(Debug)]
#[must_use]
pub enum FreedMember {
    /// It has left the device with the rest of its extent.
    Gone,
    /// Others use the extent: it stays.
    Kept,
    /// It was the last one in use: the extent is to be released.
    Last(Extent),
}

/// Extents of one device.
#[derive(Debug, Default)]
pub struct Extents {
    extents: BTreeMap<u64, Extent>,
    /// Number of extents so far; each has the number at its creation, and no later one has it.
    count: u64,
}

impl Extents {
    /// Adds an extent whose blocks, each a first address and a size in bytes, are on the device. Returns its number.
    pub fn add(&mut self, handle: u64, blocks: &[(Address, u64)]) -> u64 {
        let members = blocks.iter().map(|&(at, bytes)| {
            let place = Place::Device;
            (at, Member { bytes, place })
        });
        let extent = Extent {
            at: blocks.first().map_or(0, |(at, _)| *at),
            bytes: blocks.iter().map(|(_, bytes)| bytes).sum(),
            handle,
            members: members.collect(),
            is_to_divide: false,
        };
        self.count += 1;
        self.extents.insert(self.count, extent);
        self.count
    }

    fn member(&mut self, number: u64, at: Address) -> Option<&mut Member> {
        self.extents.get_mut(&number)?.members.get_mut(&at)
    }

    /// Notes that a block was freed.
    pub fn free(&mut self, number: u64, at: Address) -> FreedMember {
        let Some(member) = self.member(number, at) else {
            return FreedMember::Gone;
        };
        member.place = Place::Unused;
        let is_unused = |extent: &Extent| {
            let mut members = extent.members.values();
            members.all(|member| member.place == Place::Unused)
        };
        match self.extents.get(&number).is_some_and(is_unused) {
            true => self
                .extents
                .remove(&number)
                .map_or(FreedMember::Gone, FreedMember::Last),
            false => FreedMember::Kept,
        }
    }

    /// Notes that the contents of a block are on the host.
    pub fn leave(&mut self, number: u64, at: Address) {
        if let Some(member) = self.member(number, at) {
            member.place = Place::Host;
        }
    }

    /// Notes that all contents are on the device after all.
    pub fn stay(&mut self) {
        let extents = self.extents.values_mut();
        let members = extents.flat_map(|extent| extent.members.values_mut());
        for member in members.filter(|member| member.place == Place::Host) {
            member.place = Place::Device;
        }
    }

    /// Returns an extent of which some contents are on the host and none are needed on the device, with its number. `is_there`: whether a
    /// block with this first address has contents; that of a block which is being freed does not matter.
    pub fn first_to_leave(&self, is_there: impl Fn(Address) -> bool) -> Option<(u64, &Extent)> {
        let extents = self
            .extents
            .iter()
            .map(|(&number, extent)| (number, extent));
        let mut left = extents.filter(|(_, extent)| extent.left().next().is_some());
        left.find(|(_, extent)| {
            let mut members = extent.members.iter();
            members.all(|(&at, member)| member.place != Place::Device || !is_there(at))
        })
    }

    /// Removes an extent whose memory is released.
    pub fn remove(&mut self, number: u64) -> Option<Extent> {
        self.extents.remove(&number)
    }

    /// Returns all mappings, as first address and size in bytes.
    pub fn mapped(&self) -> impl Iterator<Item = (Address, u64)> {
        let extents = self.extents.values();
        extents.map(|extent| (extent.at, extent.bytes))
    }

    /// Returns the size of the memory of freed blocks, in bytes.
    #[must_use]
    pub fn unused(&self) -> u64 {
        self.extents.values().map(Extent::unused).sum()
    }

    /// Returns the size of the blocks which a division of the extents with memory of freed blocks moves, in bytes.
    #[must_use]
    pub fn beside_unused(&self) -> u64 {
        let extents = self.extents.values().filter(|extent| extent.unused() > 0);
        extents.map(|extent| extent.bytes - extent.unused()).sum()
    }

    /// Marks an extent, whose blocks are to have handles of their own.
    pub fn set_to_divide(&mut self, number: u64) {
        if let Some(extent) = self.extents.get_mut(&number) {
            extent.is_to_divide = true;
        }
    }

    /// Returns whether an extent is to be divided: it is marked, or some of its memory is unused.
    #[must_use]
    pub fn is_to_divide(&self, number: u64) -> bool {
        let extent = self.extents.get(&number);
        extent.is_some_and(|extent| extent.is_to_divide || extent.unused() > 0)
    }

    /// Returns whether some extent is to be divided.
    #[must_use]
    pub fn any_to_divide(&self) -> bool {
        let mut numbers = self.extents.keys();
        numbers.any(|number| self.is_to_divide(*number))
    }
}

/// Returns which blocks can share extents of at most `bytes_max` bytes: ranges of at least two of `blocks`, each a first address and a size in bytes, in the
/// order of the addresses. Those in no range follow no other without a gap, or would exceed the size.
#[must_use]
pub fn neighbours(blocks: &[(Address, u64)], bytes_max: u64) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut run = 0..0;
    let mut bytes = 0;
    for (number, &(at, own)) in blocks.iter().enumerate() {
        let before = number.checked_sub(1).and_then(|before| blocks.get(before));
        let follows = before.is_some_and(|(at_before, before)| at_before + before == at);
        if !follows || bytes + own > bytes_max {
            all.push(run);
            (run, bytes) = (number..number, 0);
        }
        run.end = number + 1;
        bytes += own;
    }
    all.push(run);
    all.retain(|run| run.len() > 1);
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use testing::Random;

    use super::*;

    #[test]
    fn neighbours_have_no_gaps_and_a_largest_size() {
        assert_eq!(neighbours(&[], 10), []);
        assert_eq!(neighbours(&[(0, 4)], 10), []);
        // A gap, and one that is too large for any.
        let blocks = [
            (0, 4),
            (4, 4),
            (9, 1),
            (10, 2),
            (12, 11),
            (23, 5),
            (28, 5),
            (33, 1),
        ];
        assert_eq!(neighbours(&blocks, 10), [0..2, 2..4, 5..7]);
        assert_eq!(neighbours(&blocks, 14), [0..2, 2..5, 5..8]);
    }

    #[test]
    fn random_blocks_are_in_at_most_one_extent_of_neighbours() {
        let mut random = Random(17);
        for _ in 0..2_000 {
            let mut at = 0;
            let blocks: Vec<(u64, u64)> = (0..random.below(12))
                .map(|_| {
                    at += u64::from(random.below(4) == 0);
                    let block = (at, 1 + random.below(6));
                    at += block.1;
                    block
                })
                .collect();
            let bytes_max = 1 + random.below(12);
            let mut end = 0;
            for run in neighbours(&blocks, bytes_max) {
                assert!(run.start >= end && run.len() > 1);
                end = run.end;
                let own = &blocks[run];
                assert!(
                    own.windows(2)
                        .all(|pair| pair[0].0 + pair[0].1 == pair[1].0)
                );
                assert!(own.iter().map(|(_, bytes)| bytes).sum::<u64>() <= bytes_max);
            }
        }
    }

    /// Random frees, departures and returns, beside plain sets of the blocks in each state.
    #[test]
    fn an_extent_is_released_once_none_of_its_blocks_is_needed() {
        let mut random = Random(5);
        let (mut released, mut kept) = (0, 0);
        for _ in 0..3_000 {
            let mut extents = Extents::default();
            let blocks: Vec<(u64, u64)> = (0..2 + random.below(4)).map(|at| (at * 8, 8)).collect();
            let number = extents.add(7, &blocks);
            let mut there: BTreeSet<u64> = blocks.iter().map(|(at, _)| *at).collect();
            let (mut left, mut unused) = (BTreeSet::new(), BTreeSet::new());
            let mut being_freed = BTreeSet::new();
            for _ in 0..random.below(12) {
                let at = 8 * random.below(blocks.len() as u64);
                match random.below(5) {
                    0 if !unused.contains(&at) => {
                        being_freed.remove(&at);
                        there.remove(&at);
                        left.remove(&at);
                        unused.insert(at);
                        match extents.free(number, at) {
                            FreedMember::Last(extent) => {
                                assert_eq!(unused.len(), blocks.len());
                                assert_eq!(extent.handle, 7);
                                assert_eq!(extent.bytes, 8 * blocks.len() as u64);
                            }
                            FreedMember::Kept => assert!(unused.len() < blocks.len()),
                            FreedMember::Gone => panic!("it was not released"),
                        }
                    }
                    1 if there.contains(&at) => {
                        being_freed.insert(at);
                    }
                    2 => {
                        extents.stay();
                        there.append(&mut left);
                    }
                    _ if there.contains(&at) => {
                        extents.leave(number, at);
                        there.remove(&at);
                        left.insert(at);
                    }
                    _ => {}
                }
                if unused.len() == blocks.len() {
                    break;
                }
                assert_eq!(extents.unused(), 8 * unused.len() as u64);
                assert_eq!(extents.any_to_divide(), !unused.is_empty());
                let is_there = |at| !being_freed.contains(&at);
                let leaves = extents.first_to_leave(is_there);
                let is_needed = there.iter().any(|at| is_there(*at));
                assert_eq!(leaves.is_some(), !left.is_empty() && !is_needed);
                if let Some((number, extent)) = leaves {
                    assert!(extent.left().eq(left.iter().copied()));
                    assert!(extents.remove(number).is_some());
                    released += 1;
                    let gone = extents.free(number, blocks[0].0);
                    assert!(matches!(gone, FreedMember::Gone));
                    break;
                }
                kept += 1;
            }
        }
        assert!(released > 500 && kept > 500, "{released} {kept}");
    }

    #[test]
    fn an_extent_is_divided_on_order_or_for_its_unused_memory() {
        let mut extents = Extents::default();
        let first = extents.add(1, &[(0, 4), (4, 4)]);
        let second = extents.add(2, &[(8, 4), (12, 4)]);
        assert!(!extents.any_to_divide());
        extents.set_to_divide(second);
        assert!(!extents.is_to_divide(first) && extents.is_to_divide(second));
        assert!(matches!(extents.free(first, 4), FreedMember::Kept));
        assert!(extents.is_to_divide(first));
        assert_eq!(extents.mapped().collect::<Vec<_>>(), [(0, 8), (8, 8)]);
    }
}
