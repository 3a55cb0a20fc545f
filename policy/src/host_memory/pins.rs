//! Which copies of models are registered with the driver (M2.5): copies to and from pinned pages run at the speed of the link, others at a fraction of it, but pinned
//! pages are scarce.
//!
//! A process gets pinned windows as long as there are any. Later, one whose model returns to its device and whose windows are not pinned gets those of others, whole
//! models, least recently used first, as far as it needs them: of models that have not returned since it did so the time before. A model that returns once takes no other's pages, and if
//! more models than there is room for return in turn, they keep what they have: with each return, pages would only be pinned and released. What is taken is
//! given once its process has released it.
//!
//! A process whose windows are not all pinned gets a little pinned memory beside them, through which its copies pass in pieces: its staging memory. Windows leave it to the processes that
//! there are and one more, up to a quarter of the pinned memory.

use std::collections::BTreeMap;

use crate::tokens::ProcessId;
use crate::{Span, Time};

/// Time after which a process that has not released what it may not register any more is not waited for.
const RELEASE_MAX: Span = Span::from_secs(5);

/// Part of the pinned memory that windows leave to staging memory: one of this many.
const STAGING_PART: u64 = 4;

/// Windows of one process.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    /// Size of all, in bytes.
    held: u64,
    /// Part which it may register, in bytes.
    allowed: u64,
    /// What it may register beside them, in bytes.
    staging: u64,
    /// Most that it may have registered, in bytes: the largest of the limits since the last one that it has stated to keep.
    bound: u64,
    /// Whether it states by which limit it registers memory; otherwise it keeps what it has.
    is_able: bool,
    /// When its model returned last.
    returned_at: Option<Time>,
    /// Whether its model has returned, or is about to, and lacks pinned pages; and when it returned the time before.
    is_wanting: bool,
    before: Option<Time>,
    /// When its limit was lowered last.
    lowered_at: Time,
}

impl Share {
    /// Returns the pinned memory that it takes, in bytes.
    fn taken(&self) -> u64 {
        self.limit().max(self.bound)
    }

    /// Returns what it may register in all, in bytes.
    const fn limit(&self) -> u64 {
        self.allowed.saturating_add(self.staging)
    }

    const fn missing(&self) -> u64 {
        self.held.saturating_sub(self.allowed)
    }
}

/// Pinned part of a node's host memory, and the processes which have it.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    bytes_max: u64,
    /// Staging memory of a process, in bytes.
    staging: u64,
    shares: BTreeMap<ProcessId, Share>,
    is_changed: bool,
}

impl Pins {
    /// Creates pinned memory of `bytes_max` bytes, of which none is in use. `staging`: what a process gets of it beside windows that are not all
    /// pinned, in bytes; 0: nothing, and windows may have all of it.
    #[must_use]
    pub const fn new(bytes_max: u64, staging: u64) -> Self {
        Self {
            bytes_max,
            staging,
            shares: BTreeMap::new(),
            is_changed: false,
        }
    }

    fn free(&self) -> u64 {
        let taken = u64::try_from(self.taken()).unwrap_or(u64::MAX);
        self.bytes_max.saturating_sub(taken)
    }

    /// Returns what is free for windows, in bytes: without what is left to staging memory.
    fn free_for_windows(&self) -> u64 {
        self.free().saturating_sub(self.left_to_staging())
    }

    /// Returns what windows leave to staging memory that is not given yet, in bytes.
    fn left_to_staging(&self) -> u64 {
        let quarter = self.bytes_max / STAGING_PART;
        if self.staging > quarter {
            return 0;
        }
        // Of one process more than there are.
        let processes = self.shares.len() as u64 + 1;
        let given = self.shares.values().map(|share| share.staging);
        let given = given.fold(0, u64::saturating_add);
        let left = self.staging.saturating_mul(processes).min(quarter);
        left.saturating_sub(given)
    }

    /// Returns what the limits of all processes and what is left to staging memory add up to, in bytes.
    fn promised(&self) -> u128 {
        let limits = self.shares.values().map(|share| u128::from(share.limit()));
        limits.sum::<u128>() + u128::from(self.left_to_staging())
    }

    /// Adds a window of a process. Returns whether it is pinned.
    pub fn add(&mut self, id: ProcessId, bytes: u64) -> bool {
        let is_pinned = bytes <= self.free_for_windows();
        let share = self.shares.entry(id).or_default();
        share.held = share.held.saturating_add(bytes);
        if is_pinned {
            share.allowed = share.allowed.saturating_add(bytes);
            share.bound = share.taken();
        }
        self.is_changed |= !is_pinned;
        is_pinned
    }

    /// Takes back a window of a process. `pinned`: part of it that is pinned.
    pub fn take_back(&mut self, id: ProcessId, bytes: u64, pinned: u64) {
        if let Some(share) = self.shares.get_mut(&id) {
            share.held = share.held.saturating_sub(bytes);
            share.allowed = share.allowed.saturating_sub(pinned);
            self.is_changed = true;
        }
    }

    /// Counts the windows of a process which it got from an earlier agent, within the bound or not: beyond it, the least recently used ones are released.
    pub fn adopt(&mut self, id: ProcessId, bytes: u64, pinned: u64) {
        let pinned = pinned.min(bytes);
        // With fewer than all of its windows some of it is staging memory.
        let staging = if pinned < bytes {
            self.staging.min(pinned)
        } else {
            0
        };
        let share = Share {
            held: bytes,
            allowed: pinned - staging,
            staging,
            bound: pinned,
            ..Share::default()
        };
        self.shares.insert(id, share);
        self.is_changed = true;
    }

    /// Removes a process, whose windows are gone.
    pub fn remove(&mut self, id: ProcessId) {
        self.is_changed |= self.shares.remove(&id).is_some();
    }

    /// Records by which limit a process registers its windows, in bytes, and that nothing beyond it is registered; `None`: it states none.
    pub fn states(&mut self, id: ProcessId, limit: Option<u64>) {
        if let Some(share) = self.shares.get_mut(&id) {
            self.is_changed |=
                std::mem::replace(&mut share.is_able, limit.is_some()) != limit.is_some();
            if limit == Some(share.limit()) {
                self.is_changed |= share.bound != share.limit();
                share.bound = share.limit();
            }
        }
    }

    /// Returns what a process may register, in bytes.
    #[must_use]
    pub fn limit(&self, id: ProcessId) -> u64 {
        self.shares.get(&id).map_or(0, Share::limit)
    }

    /// Records that the model of a process returns to its device.
    pub fn returns(&mut self, now: Time, id: ProcessId) {
        self.expects(id);
        if let Some(share) = self.shares.get_mut(&id) {
            share.returned_at = Some(now);
        }
    }

    /// Records that the model of a process is about to return to its device: what it lacks is pinned as if it had.
    pub fn expects(&mut self, id: ProcessId) {
        if let Some(share) = self.shares.get_mut(&id) {
            share.before = share.returned_at;
            share.is_wanting = share.missing() > 0;
            self.is_changed |= share.is_wanting;
        }
    }

    /// Decides which processes may register more or less than before, and appends each with what it may register from now on, in bytes. Costs O(1) as long as
    /// nothing has changed, else O(processes · log processes) for each that lacks pinned pages.
    pub fn decide(&mut self, now: Time, changed: &mut Vec<(ProcessId, u64)>) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let limits = self.shares.values().map(Share::limit);
        let excess = limits
            .fold(0, u64::saturating_add)
            .saturating_sub(self.bytes_max);
        self.take_from(now, excess, |_| true, changed);
        let all = self.shares.iter();
        let wanting = all.filter(|(_, share)| share.is_wanting && share.is_able);
        let mut wanting: Vec<(Option<Time>, ProcessId)> = wanting
            .map(|(id, share)| (share.returned_at, *id))
            .collect();
        // The last one first.
        wanting.sort_unstable_by(|one, other| other.cmp(one));
        let mut coming = self.coming(now);
        for (_, id) in wanting {
            let share = self.shares[&id];
            // With all of its windows it needs no staging memory.
            let free = self.free_for_windows();
            let given = match share.missing() <= free.saturating_add(share.staging) {
                true => share.missing(),
                false => free,
            };
            if given > 0 {
                self.set(now, id, share.allowed + given, changed);
            }
            let missing = share.missing() - given;
            // With all of its windows it gives up its staging memory, and what is on its way is for the first ones.
            let missing = missing.saturating_sub(share.staging);
            let late = missing.saturating_sub(coming);
            coming = coming.saturating_sub(missing);
            let is_older =
                |other: &Share| share.before.is_some() && other.returned_at < share.before;
            self.take_from(now, late, is_older, changed);
        }
        let able = self.shares.iter().filter(|(_, share)| share.is_able);
        let able: Vec<ProcessId> = able.map(|(id, _)| *id).collect();
        let mut taken = self.taken();
        for id in able {
            let share = self.shares[&id];
            let others = taken - u128::from(share.taken());
            if share.staging != self.staging_of(&share, others) {
                self.set(now, id, share.allowed, changed);
                taken = others + u128::from(self.shares[&id].taken());
            }
        }
    }

    /// Returns the pinned memory that all processes take, in bytes.
    fn taken(&self) -> u128 {
        let taken = self.shares.values().map(|share| u128::from(share.taken()));
        taken.sum()
    }

    /// Returns the staging memory of a process with these windows, in bytes. `others`: pinned memory that the others take, in bytes.
    fn staging_of(&self, share: &Share, others: u128) -> u64 {
        let taken = others + u128::from(share.allowed) + u128::from(self.staging);
        if share.missing() > 0 && taken <= u128::from(self.bytes_max) {
            self.staging
        } else {
            0
        }
    }

    /// Returns what processes are about to release, in bytes. One that has not for long may be stopped, or compute all the time.
    fn coming(&self, now: Time) -> u64 {
        let all = self.shares.values();
        let soon = all.filter(|share| now.since(share.lowered_at) < RELEASE_MAX);
        let coming = soon.map(|share| share.taken() - share.limit());
        coming.fold(0, u64::saturating_add)
    }

    /// Takes pinned memory from those that may lose theirs, the least recently used ones first, until it is `missing` bytes or all of theirs.
    fn take_from(
        &mut self,
        now: Time,
        missing: u64,
        may_lose: impl Fn(&Share) -> bool,
        changed: &mut Vec<(ProcessId, u64)>,
    ) {
        if missing == 0 {
            return;
        }
        let all = self.shares.iter();
        let others = all.filter(|(_, share)| share.allowed > 0 && share.is_able && may_lose(share));
        let mut others: Vec<_> = others.map(|(id, share)| (share.returned_at, *id)).collect();
        others.sort_unstable();
        let mut taken = 0;
        for (_, id) in others {
            if taken >= u128::from(missing) {
                return;
            }
            let before = self.promised();
            self.set(now, id, 0, changed);
            taken += before.saturating_sub(self.promised());
        }
    }

    /// Sets the windows which a process may register, in bytes, and with them its staging memory.
    fn set(&mut self, now: Time, id: ProcessId, allowed: u64, changed: &mut Vec<(ProcessId, u64)>) {
        let Some(before) = self.shares.get(&id) else {
            return;
        };
        let others = self.taken() - u128::from(before.taken());
        let staging = self.staging_of(&Share { allowed, ..*before }, others);
        if let Some(share) = self.shares.get_mut(&id) {
            let limit = share.limit();
            (share.allowed, share.staging) = (allowed, staging);
            if share.limit() < limit {
                share.lowered_at = now;
            }
            share.bound = share.taken();
            // One that has lost its own gets it back once its model returns.
            share.is_wanting &= allowed > 0 && share.missing() > 0;
            changed.push((id, share.limit()));
        }
    }
}

#[cfg(test)]
mod tests {
    use testing::Random;

    use super::*;

    const ONE: ProcessId = ProcessId(1);
    const OTHER: ProcessId = ProcessId(2);
    const THIRD: ProcessId = ProcessId(3);

    fn decide_at(pins: &mut Pins, now: Time) -> Vec<(ProcessId, u64)> {
        let mut changed = Vec::new();
        pins.decide(now, &mut changed);
        changed
    }

    fn decide(pins: &mut Pins) -> Vec<(ProcessId, u64)> {
        decide_at(pins, Time(1))
    }

    /// Pinned memory for one model of 10 bytes, which the first process has; all state by which limit they register.
    fn full() -> Pins {
        let mut pins = Pins::new(10, 0);
        for (id, is_pinned) in [(ONE, true), (OTHER, false), (THIRD, false)] {
            assert_eq!(pins.add(id, 10), is_pinned);
            pins.states(id, Some(pins.limit(id)));
        }
        assert_eq!(decide(&mut pins), []);
        pins
    }

    #[test]
    fn a_model_that_is_used_twice_gets_the_pages_of_one_that_was_not_used_since() {
        let mut pins = full();
        pins.returns(Time(1), ONE);
        pins.returns(Time(2), OTHER);
        assert_eq!(decide(&mut pins), [], "it was used once");
        pins.returns(Time(3), OTHER);
        assert_eq!(decide(&mut pins), [(ONE, 0)]);
        // They are given once they are released.
        assert_eq!(decide(&mut pins), []);
        pins.states(ONE, Some(10));
        assert_eq!(decide(&mut pins), []);
        pins.states(ONE, Some(0));
        assert_eq!(decide(&mut pins), [(OTHER, 10)]);
    }

    #[test]
    fn pages_are_taken_for_a_model_that_is_about_to_return() {
        let mut pins = full();
        pins.returns(Time(1), ONE);
        pins.returns(Time(2), OTHER);
        pins.expects(OTHER);
        assert_eq!(decide(&mut pins), [(ONE, 0)]);
        pins.states(ONE, Some(0));
        assert_eq!(decide(&mut pins), [(OTHER, 10)]);
    }

    #[test]
    fn models_that_are_used_in_turn_keep_what_they_have() {
        let mut pins = full();
        for turn in 0..30 {
            let id = [ONE, OTHER, THIRD][turn % 3];
            pins.returns(Time(turn as u64), id);
            assert_eq!(decide(&mut pins), []);
        }
    }

    #[test]
    fn pages_that_earlier_agents_gave_beyond_the_bound_are_released() {
        let mut pins = full();
        pins.adopt(THIRD, 10, 10);
        assert_eq!(decide(&mut pins), [(ONE, 0)]);
        pins.states(ONE, Some(0));
        pins.adopt(ONE, 10, 10);
        pins.adopt(OTHER, 4, 4);
        assert_eq!(decide(&mut pins), [], "none states its limit");
        pins.states(THIRD, Some(10));
        assert_eq!(decide(&mut pins), [(THIRD, 0)], "all that can be had");
        pins.states(ONE, Some(10));
        assert_eq!(decide(&mut pins), [(ONE, 0)]);
    }

    #[test]
    fn a_process_that_states_no_limit_keeps_what_it_has_and_gets_no_more() {
        let mut pins = full();
        pins.states(OTHER, None);
        for at in 0..4 {
            pins.returns(Time(at), OTHER);
            assert_eq!(decide(&mut pins), []);
        }
        let mut pins = full();
        pins.states(ONE, None);
        for at in 0..4 {
            pins.returns(Time(at), OTHER);
            assert_eq!(decide(&mut pins), []);
        }
        pins.remove(ONE);
        pins.returns(Time(5), OTHER);
        assert_eq!(decide(&mut pins), [(OTHER, 10)]);
    }

    #[test]
    fn a_process_that_releases_nothing_keeps_no_other_from_what_there_is() {
        let mut pins = Pins::new(20, 0);
        let fourth = ProcessId(4);
        for (id, bytes) in [(ONE, 10), (THIRD, 10), (OTHER, 8), (fourth, 8)] {
            assert_eq!(pins.add(id, bytes), bytes == 10);
            pins.states(id, Some(pins.limit(id)));
        }
        pins.returns(Time(1), THIRD);
        for at in [2, 3] {
            pins.returns(Time(at), OTHER);
        }
        assert_eq!(decide(&mut pins), [(ONE, 0)]);
        for at in [4, 5] {
            pins.returns(Time(at), fourth);
        }
        // What the first one is to release is for the one that has returned last; the other gets that of another one.
        assert_eq!(decide(&mut pins), [(THIRD, 0)]);
        let late = Time(1).after(RELEASE_MAX);
        pins.states(THIRD, Some(0));
        assert_eq!(decide_at(&mut pins, late), [(fourth, 8), (OTHER, 2)]);
    }

    #[test]
    fn a_process_whose_windows_are_not_all_pinned_has_staging_memory_beside_them() {
        let mut pins = Pins::new(40, 3);
        assert!(pins.add(ONE, 25) && !pins.add(OTHER, 10), "10 are left");
        assert_eq!(decide(&mut pins), [], "none states its limit");
        pins.states(ONE, Some(25));
        pins.states(OTHER, Some(0));
        assert_eq!(decide(&mut pins), [(OTHER, 3)]);
        // Five have what is left, and the sixth none.
        for (number, given) in [(3, true), (4, true), (5, true), (6, true), (7, false)] {
            let id = ProcessId(number);
            assert!(!pins.add(id, 30));
            pins.states(id, Some(0));
            let expected = if given { vec![(id, 3)] } else { Vec::new() };
            assert_eq!(decide(&mut pins), expected);
        }
        // One that has all of its windows needs none.
        pins.remove(ONE);
        pins.returns(Time(1), OTHER);
        assert_eq!(decide(&mut pins), [(OTHER, 10), (ProcessId(7), 3)]);
    }

    #[test]
    fn one_model_loses_its_windows_where_those_of_one_are_enough() {
        let mut pins = Pins::new(36, 3);
        for id in [ONE, OTHER, THIRD] {
            assert_eq!(pins.add(id, 13), id != THIRD);
            pins.states(id, Some(pins.limit(id)));
        }
        assert_eq!(decide(&mut pins), [(THIRD, 3)]);
        pins.states(THIRD, Some(3));
        for at in [1, 2] {
            pins.returns(Time(at), THIRD);
            let changed = decide(&mut pins);
            let lost = changed.iter().filter(|(id, _)| *id != THIRD).count();
            assert_eq!(lost, usize::from(at == 2), "{changed:?}");
        }
    }

    #[test]
    fn staging_memory_that_an_earlier_agent_gave_is_not_given_again() {
        let mut pins = Pins::new(100, 3);
        pins.adopt(ONE, 60, 3);
        assert_eq!(pins.limit(ONE), 3);
        pins.states(ONE, Some(3));
        assert_eq!(decide(&mut pins), []);
        // All of its windows were pinned.
        pins.adopt(OTHER, 10, 10);
        pins.states(OTHER, Some(10));
        assert_eq!(decide(&mut pins), []);
        assert_eq!(pins.limit(OTHER), 10);
    }

    #[test]
    fn a_process_that_loses_its_windows_keeps_staging_memory() {
        let mut pins = Pins::new(12, 2);
        assert!(pins.add(ONE, 9) && !pins.add(OTHER, 9));
        pins.states(ONE, Some(9));
        pins.states(OTHER, Some(0));
        assert_eq!(decide(&mut pins), [(OTHER, 2)]);
        pins.states(OTHER, Some(2));
        for at in [1, 2] {
            pins.returns(Time(at), OTHER);
        }
        assert_eq!(decide(&mut pins), [(ONE, 2)]);
        pins.states(ONE, Some(2));
        assert_eq!(decide(&mut pins), [(OTHER, 9)]);
    }

    #[test]
    fn pages_that_are_free_are_given_although_they_are_not_enough() {
        let mut pins = full();
        pins.take_back(ONE, 4, 4);
        pins.states(ONE, Some(6));
        pins.returns(Time(1), OTHER);
        assert_eq!(decide(&mut pins), [(OTHER, 4)]);
        pins.remove(ONE);
        assert_eq!(decide(&mut pins), [(OTHER, 10)]);
    }

    /// A process as it is.
    #[derive(Default, Clone, Copy)]
    struct Process {
        held: u64,
        /// Limit in its page, and the one which it has applied last.
        ordered: u64,
        applied: u64,
        registered: u64,
    }

    #[test]
    fn registered_pages_never_exceed_the_bound() {
        let mut random = Random(3);
        let (mut given, mut taken) = (0, 0);
        for _ in 0..200 {
            let staging = [0, 0, 2, 9][random.index(4)];
            let mut pins = Pins::new(100, staging);
            let mut all: BTreeMap<ProcessId, Process> = BTreeMap::new();
            for at in 0..400 {
                let id = ProcessId(u32::try_from(random.below(8)).unwrap());
                let own = all.entry(id).or_default();
                match random.below(8) {
                    0 if own.held < 60 => {
                        let bytes = 1 + random.below(20);
                        own.held += bytes;
                        let is_pinned = pins.add(id, bytes);
                        own.ordered += if is_pinned { bytes } else { 0 };
                        assert_eq!(own.ordered, pins.limit(id));
                    }
                    1 if random.below(6) == 0 => {
                        pins.remove(id);
                        all.remove(&id);
                    }
                    2 | 3 => {
                        own.applied = own.ordered;
                        own.registered = own.registered.min(own.applied);
                    }
                    4 => own.registered = own.applied.min(own.held + staging),
                    5 | 6 => pins.states(id, Some(own.applied)),
                    _ => pins.returns(Time(at), id),
                }
                for (id, allowed) in decide_at(&mut pins, Time(at)) {
                    let own = all.entry(id).or_default();
                    given += u32::from(allowed > own.ordered);
                    taken += u32::from(allowed < own.ordered);
                    own.ordered = allowed;
                }
                let sum: u64 = all.values().map(|own| own.registered).sum();
                assert!(sum <= 100, "{sum}");
                let ordered: u64 = all.values().map(|own| own.ordered).sum();
                assert!(ordered <= 100, "{ordered}");
            }
        }
        assert!(given > 100 && taken > 100, "{given} {taken}");
    }
}
