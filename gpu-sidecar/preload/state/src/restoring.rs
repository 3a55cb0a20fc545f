//! A restore amid which the program computes (M2.6): all memory is mapped, and its contents arrive in groups, in the order in which the program
//! has used them before (M2.8). Each launch and touch waits for the groups of the blocks which it uses.
//!
//! Once all is there the program is observed for a while longer, so that the order of the next restore is known.
//!
//! Which blocks a launch uses is known from its arguments, as far as they can be believed: each word that may be an address is one in a block, and
//! no such block holds addresses itself. Otherwise the launch waits for all groups.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Address;

/// Words that may be addresses of device memory. Drivers reserve addresses for mappings from
/// 0x3_0200_0000 on.
pub(crate) const ADDRESSES: Range<u64> = 1 << 32..1 << 48;

/// Range of addresses of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedBlock {
    /// Key of the block.
    pub key: u64,
    /// First address of the range.
    pub at: Address,
    /// Size of the range in bytes.
    pub bytes: u64,
    /// Number of groups after which the contents are there.
    pub groups: u32,
    /// Whether the contents may be addresses of blocks.
    pub may_hold_addresses: bool,
    /// Whether the program may use it as one with what is beside it, as the parts of an expandable segment.
    pub is_joined: bool,
}

/// Ranges of addresses, by which words that are addresses are told from others.
#[derive(Debug)]
pub struct AddressRanges {
    /// First address and size of each, in the order of addresses.
    ranges: Vec<(Address, u64)>,
    near: Range<u64>,
}

impl AddressRanges {
    /// Creates the set of these ranges, each a first address and a size in bytes.
    #[must_use]
    pub fn new(mut ranges: Vec<(Address, u64)>) -> Self {
        ranges.sort_unstable();
        let first = ranges.first().map_or(0, |(at, _)| *at);
        let last = ranges.last().map_or(0, |(at, bytes)| at + bytes);
        Self {
            ranges,
            near: first..last,
        }
    }

    /// Returns a range of values which contains all addresses in the ranges. Nearly all words of weights are outside.
    #[must_use]
    pub const fn near(&self) -> &Range<u64> {
        &self.near
    }

    /// Returns whether some word is an address in a range.
    #[must_use]
    pub fn any(&self, words: impl IntoIterator<Item = u64>) -> bool {
        let mut words = words.into_iter().filter(|word| self.near.contains(word));
        words.any(|word| {
            let after = self.ranges.partition_point(|(at, _)| *at <= word);
            let (at, bytes) = self.ranges[after - 1];
            word - at < bytes
        })
    }
}

/// Groups that must be there before a launch or touch, in one restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    restore: u32,
    groups: u32,
}

#[derive(Debug, Default)]
struct Plan {
    /// Number of the restore.
    restore: u32,
    /// Ranges in the order of their addresses.
    blocks: Vec<PlannedBlock>,
    /// Number of all groups.
    groups: u32,
    /// Keys of the blocks in the order of their first use.
    order: Vec<u64>,
    used: BTreeSet<u64>,
    /// Number of launches and touches that were observed.
    observed: u32,
}

/// State of a restore amid which the program computes.
#[derive(Debug, Default)]
pub struct Restoring {
    plan: Mutex<Plan>,
    /// Number of the restore, and of the groups that are there. The latter is a futex word.
    restore: AtomicU32,
    done: AtomicU32,
}

impl Restoring {
    /// Creates the state before any restore.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            plan: Mutex::new(Plan {
                restore: 0,
                blocks: Vec::new(),
                groups: 0,
                order: Vec::new(),
                used: BTreeSet::new(),
                observed: 0,
            }),
            restore: AtomicU32::new(0),
            done: AtomicU32::new(0),
        }
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the program may use a block as one with the next.
    fn is_one(one: &PlannedBlock, next: &PlannedBlock) -> bool {
        one.is_joined && next.is_joined && one.at + one.bytes == next.at
    }

    /// Begins a restore of these blocks in `groups` groups, of which none is there. To be called while the gate of memory is shut.
    pub fn begin(&self, mut blocks: Vec<PlannedBlock>, groups: u32) {
        blocks.sort_unstable_by_key(|block| block.at);
        for run in blocks.chunk_by_mut(Self::is_one) {
            let groups = run.iter().map(|block| block.groups).max().unwrap_or(0);
            let may_hold_addresses = run.iter().any(|block| block.may_hold_addresses);
            for block in run {
                (block.groups, block.may_hold_addresses) = (groups, may_hold_addresses);
            }
        }
        let mut plan = self.plan();
        let restore = plan.restore.wrapping_add(1);
        *plan = Plan {
            restore,
            blocks,
            groups,
            ..Plan::default()
        };
        self.done.store(0, Ordering::Relaxed);
        self.restore.store(restore, Ordering::Release);
    }

    /// Returns what a launch needs whose arguments consist of these words; of `None`, they are not known.
    #[must_use]
    pub fn needed_by_launch(&self, words: Option<&[u64]>) -> Needed {
        let mut plan = self.plan();
        plan.observed = plan.observed.saturating_add(1);
        let Some(words) = words else {
            return plan.all();
        };
        let (mut groups, mut is_known, mut any) = (0, true, false);
        for &word in words {
            // From the end of a block a kernel may go backwards. Where another begins there, it is taken for that one's.
            let ending = || plan.find(word.checked_sub(1)?);
            match plan.find(word).or_else(ending) {
                Some(block) => {
                    any = true;
                    is_known &= !block.may_hold_addresses;
                    groups = groups.max(block.groups);
                    plan.note_use(block.key);
                }
                None => is_known &= !ADDRESSES.contains(&word),
            }
        }
        if is_known && any {
            plan.needed(groups)
        } else {
            plan.all()
        }
    }

    /// Returns what a copy or memset needs that uses this range alone. `writes_addresses`: it may write addresses of blocks there.
    #[must_use]
    pub fn needed_by_touch(&self, at: Address, bytes: u64, writes_addresses: bool) -> Needed {
        let mut plan = self.plan();
        plan.observed = plan.observed.saturating_add(1);
        let end = at.saturating_add(bytes);
        let mut groups = 0;
        let mut used = Vec::new();
        for run in plan.blocks.chunk_by_mut(Self::is_one) {
            let before = used.len();
            for block in &*run {
                if block.at < end && at < block.at + block.bytes {
                    groups = groups.max(block.groups);
                    used.push(block.key);
                }
            }
            if writes_addresses && used.len() > before {
                for block in run {
                    block.may_hold_addresses = true;
                }
            }
        }
        for key in used {
            plan.note_use(key);
        }
        plan.needed(groups)
    }

    /// Returns what anything else needs: all groups.
    #[must_use]
    pub fn all(&self) -> Needed {
        self.plan().all()
    }

    /// Returns whether a range lies in one block.
    #[must_use]
    pub fn contains(&self, at: Address, bytes: u64) -> bool {
        let block = self.plan().find(at);
        block.is_some_and(|block| bytes <= block.bytes - (at - block.at))
    }

    /// Returns whether an address is in some block.
    #[must_use]
    pub fn is_of_block(&self, at: Address) -> bool {
        self.plan().find(at).is_some()
    }

    /// Returns the ranges of addresses of all blocks.
    #[must_use]
    pub fn ranges(&self) -> AddressRanges {
        let plan = self.plan();
        let ranges = plan.blocks.iter().map(|block| (block.at, block.bytes));
        AddressRanges::new(ranges.collect())
    }

    /// Returns whether what is needed is there. Acquire: then its contents are.
    #[must_use]
    pub fn is_there(&self, needed: Needed) -> bool {
        self.restore.load(Ordering::Acquire) == needed.restore
            && self.done.load(Ordering::Acquire) >= needed.groups
    }

    /// Returns whether what is needed was computed for the present restore.
    #[must_use]
    pub fn is_current(&self, needed: Needed) -> bool {
        self.restore.load(Ordering::Acquire) == needed.restore
    }

    /// Returns the number of groups that are there: a futex word, which changes with each one.
    #[must_use]
    pub const fn done(&self) -> &AtomicU32 {
        &self.done
    }

    /// Notes that this number of groups is there. The waiters are to be woken.
    pub fn complete(&self, groups: u32) {
        self.done.store(groups, Ordering::Release);
    }

    /// Returns the number of launches and touches for which it was computed what they need, since the begin of the restore.
    #[must_use]
    pub fn observed(&self) -> u32 {
        self.plan().observed
    }

    /// Returns the keys of the blocks in the order in which the program has used them since the begin of the restore.
    #[must_use]
    pub fn take_order(&self) -> Vec<u64> {
        std::mem::take(&mut self.plan().order)
    }
}

impl Plan {
    const fn needed(&self, groups: u32) -> Needed {
        Needed {
            restore: self.restore,
            groups,
        }
    }

    const fn all(&self) -> Needed {
        self.needed(self.groups)
    }

    fn find(&self, word: u64) -> Option<PlannedBlock> {
        let after = self.blocks.partition_point(|block| block.at <= word);
        let block = *self.blocks.get(after.checked_sub(1)?)?;
        (word - block.at < block.bytes).then_some(block)
    }

    fn note_use(&mut self, key: u64) {
        if self.used.insert(key) {
            self.order.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use testing::Random;

    use super::*;

    const AT: u64 = 0x7f00_0000_0000;

    fn block(number: u64, groups: u32) -> PlannedBlock {
        PlannedBlock {
            key: number,
            at: AT + number * 100,
            bytes: 50,
            groups,
            may_hold_addresses: false,
            is_joined: false,
        }
    }

    fn restoring() -> Restoring {
        let restoring = Restoring::new();
        let holds = PlannedBlock {
            may_hold_addresses: true,
            ..block(3, 0)
        };
        restoring.begin(vec![block(2, 3), block(0, 1), block(1, 2), holds], 4);
        restoring
    }

    #[test]
    fn a_launch_needs_the_groups_of_its_blocks() {
        let restoring = restoring();
        let needs = |words: &[u64]| restoring.needed_by_launch(Some(words)).groups;
        assert_eq!(needs(&[AT]), 1);
        assert_eq!(needs(&[7, AT + 149, 1 << 31]), 2);
        assert_eq!(needs(&[AT + 49, AT + 200]), 3);
        assert_eq!(restoring.take_order(), [0, 1, 2]);
    }

    #[test]
    fn a_launch_with_other_arguments_needs_all_groups() {
        let restoring = restoring();
        let needs = |words: &[u64]| restoring.needed_by_launch(Some(words)).groups;
        assert_eq!(restoring.needed_by_launch(None).groups, 4);
        assert_eq!(needs(&[]), 4, "no address");
        assert_eq!(needs(&[5, 6]), 4, "no address");
        assert_eq!(needs(&[AT, AT + 300]), 4, "a table");
        assert_eq!(needs(&[AT, AT + 51]), 4, "between blocks");
        assert_eq!(needs(&[AT, 0x3_0200_0000]), 4, "mappings are made there");
        assert_eq!(needs(&[AT, 1 << 47]), 4, "unknown memory");
        assert_eq!(needs(&[AT, u64::MAX]), 1, "no address at all");
    }

    #[test]
    fn mappings_side_by_side_of_a_program_arrive_as_one() {
        let part = |key: u64, at: u64, groups| PlannedBlock {
            key,
            at: AT + at,
            is_joined: true,
            ..block(0, groups)
        };
        let restoring = Restoring::new();
        let apart = block(7, 1);
        let beside = PlannedBlock {
            at: AT + 100,
            ..block(8, 1)
        };
        let parts = [part(1, 0, 1), part(2, 50, 4), part(3, 200, 2)];
        restoring.begin([&parts[..], &[apart, beside]].concat(), 5);
        let needs = |at: u64| restoring.needed_by_launch(Some(&[AT + at])).groups;
        assert_eq!([0, 50, 200, 700, 100].map(needs), [4, 4, 2, 1, 1]);
        // A table of addresses in one of them may be read from the other.
        let _needed = restoring.needed_by_touch(AT + 60, 8, true);
        assert_eq!([0, 51, 200].map(needs), [5, 5, 2]);
    }

    #[test]
    fn the_end_of_a_block_stands_for_the_block_unless_another_begins_there() {
        let restoring = Restoring::new();
        let next = PlannedBlock {
            at: AT + 50,
            ..block(9, 1)
        };
        restoring.begin(vec![block(0, 3), next], 4);
        let needs = |word: u64| restoring.needed_by_launch(Some(&[word])).groups;
        assert_eq!([AT, AT + 50, AT + 51, AT + 100].map(needs), [3, 1, 1, 1]);
        assert_eq!(needs(AT + 101), 4);
        assert_eq!(restoring.take_order(), [0, 9]);
        let contains = |at, bytes| restoring.contains(at, bytes);
        assert!(contains(AT, 50) && !contains(AT, 51) && !contains(AT + 100, 1));
    }

    #[test]
    fn a_copy_needs_its_range_and_may_make_a_table_of_it() {
        let restoring = restoring();
        let needs = |at, bytes, writes| restoring.needed_by_touch(at, bytes, writes).groups;
        assert_eq!(needs(AT + 10, 10, false), 1);
        assert_eq!(needs(AT + 40, 61, false), 2);
        assert_eq!(needs(AT + 50, 50, false), 0, "nothing of the plan");
        assert_eq!(needs(AT, u64::MAX, false), 3);
        assert_eq!(restoring.needed_by_launch(Some(&[AT])).groups, 1);
        assert_eq!(needs(AT, 8, true), 1);
        assert_eq!(restoring.needed_by_launch(Some(&[AT])).groups, 4);
    }

    #[test]
    fn groups_arrive_in_order_and_belong_to_one_restore() {
        let restoring = restoring();
        let needed = restoring.needed_by_launch(Some(&[AT + 100]));
        assert!(!restoring.is_there(needed));
        restoring.complete(1);
        assert!(!restoring.is_there(needed));
        restoring.complete(2);
        assert!(restoring.is_there(needed));
        restoring.begin(vec![block(1, 1)], 1);
        restoring.complete(1);
        assert!(!restoring.is_there(needed) && !restoring.is_current(needed));
        assert!(restoring.is_there(restoring.all()));
    }

    #[test]
    fn addresses_among_words_are_those_in_blocks() {
        let restoring = restoring();
        assert!(restoring.ranges().any([1, AT + 120]));
        assert!(!restoring.ranges().any([1, AT + 60, AT - 1, AT + 350]));
        assert!(!Restoring::new().ranges().any([AT]));
    }

    #[test]
    fn random_words_are_found_as_by_looking_at_every_block() {
        let mut random = Random(3);
        for _ in 0..200 {
            let count = random.below(12);
            let mut at = AT;
            let blocks: Vec<PlannedBlock> = (0..count)
                .map(|key| {
                    at += random.below(30);
                    let bytes = 1 + random.below(30);
                    let block = PlannedBlock {
                        key,
                        at,
                        bytes,
                        groups: u32::try_from(random.below(9)).unwrap(),
                        may_hold_addresses: random.below(4) == 0,
                        is_joined: false,
                    };
                    at += bytes;
                    block
                })
                .collect();
            let restoring = Restoring::new();
            restoring.begin(blocks.clone(), 9);
            for _ in 0..50 {
                let words: Vec<u64> = (0..random.below(4))
                    .map(|_| AT + random.below(400))
                    .collect();
                let of = |word: u64| {
                    let mut all = blocks.iter();
                    all.find(|own| (own.at..own.at + own.bytes).contains(&word))
                };
                let named = |word: &u64| of(*word).or_else(|| of(word - 1));
                let found: Vec<_> = words.iter().map(named).collect();
                let is_known = !words.is_empty()
                    && found
                        .iter()
                        .all(|own| own.is_some_and(|own| !own.may_hold_addresses));
                let groups = found.iter().flatten().map(|own| own.groups).max();
                let expected = if is_known { groups.unwrap() } else { 9 };
                assert_eq!(restoring.needed_by_launch(Some(&words)).groups, expected);
            }
        }
    }
}
