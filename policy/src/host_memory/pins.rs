//! Which copies of models are registered with the driver (M2.5): copies to and from pinned pages run at the speed of the link, others at a fraction of it, but pinned
//! pages are scarce.
//!
//! A process gets pinned windows as long as there are any. Later, one whose model returns to its device and whose windows are not pinned gets those of others, whole
//! models, least recently used first: of models that have not returned since it did so the time before. A model that returns once takes no other's pages, and if
//! more models than there is room for return in turn, they keep what they have: with each return, pages would only be pinned and released. What is taken is
//! given once its process has released it.

use std::collections::BTreeMap;

use crate::Time;
use crate::tokens::ProcessId;

/// Windows of one process.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    /// Size of all, in bytes.
    held: u64,
    /// Part which it may register, in bytes.
    allowed: u64,
    /// Most that it may have registered, in bytes: the largest of the limits since the last one that it has stated to keep.
    bound: u64,
    /// Whether it states by which limit it registers; otherwise it keeps what it has.
    is_able: bool,
    /// When its model returned last.
    returned_at: Option<Time>,
    /// Whether its model has returned, or is about to, and lacks pinned pages; and when it returned the time before.
    is_wanting: bool,
    before: Option<Time>,
}

impl Share {
    /// Returns the pinned memory that it takes, in bytes.
    fn taken(&self) -> u64 {
        self.allowed.max(self.bound)
    }

    const fn missing(&self) -> u64 {
        self.held.saturating_sub(self.allowed)
    }
}

/// Pinned part of a node's host memory, and the processes which have it.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    bytes_max: u64,
    shares: BTreeMap<ProcessId, Share>,
    is_changed: bool,
}

impl Pins {
    /// Creates pinned memory of `bytes_max` bytes, of which none is in use.
    #[must_use]
    pub const fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            shares: BTreeMap::new(),
            is_changed: false,
        }
    }

    fn free(&self) -> u64 {
        let taken = self.shares.values().map(Share::taken);
        let taken = taken.fold(0, u64::saturating_add);
        self.bytes_max.saturating_sub(taken)
    }

    /// Adds a window of a process. Returns whether it is pinned.
    pub fn add(&mut self, id: ProcessId, bytes: u64) -> bool {
        let is_pinned = bytes <= self.free();
        let share = self.shares.entry(id).or_default();
        share.held = share.held.saturating_add(bytes);
        if is_pinned {
            share.allowed = share.allowed.saturating_add(bytes);
            share.bound = share.taken();
        }
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
        let share = Share {
            held: bytes,
            allowed: pinned.min(bytes),
            bound: pinned.min(bytes),
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
            if limit == Some(share.allowed) {
                self.is_changed |= share.bound != share.allowed;
                share.bound = share.allowed;
            }
        }
    }

    /// Returns what a process may register, in bytes.
    #[must_use]
    pub fn allowed(&self, id: ProcessId) -> u64 {
        self.shares.get(&id).map_or(0, |share| share.allowed)
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
    /// nothing has changed, else O(processes · log processes).
    pub fn decide(&mut self, changed: &mut Vec<(ProcessId, u64)>) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        let allowed = self.shares.values().map(|share| share.allowed);
        let allowed = allowed.fold(0, u64::saturating_add);
        if allowed > self.bytes_max {
            self.take_from(allowed - self.bytes_max, |_| true, changed);
        }
        let all = self.shares.iter();
        let wanting = all.filter(|(_, share)| share.is_wanting);
        let mut wanting: Vec<(Option<Time>, ProcessId)> = wanting
            .map(|(id, share)| (share.returned_at, *id))
            .collect();
        // The last one first.
        wanting.sort_unstable_by(|one, other| other.cmp(one));
        for (_, id) in wanting {
            let share = self.shares[&id];
            let missing = share.missing();
            if missing <= self.free() {
                self.set(id, share.held, changed);
                continue;
            }
            let all = self.shares.values();
            let coming = all.map(|own| own.taken() - own.allowed);
            let coming = coming.fold(self.free(), u64::saturating_add);
            let is_older =
                |other: &Share| share.before.is_some() && other.returned_at < share.before;
            if missing > coming && !self.take_from(missing - coming, is_older, changed) {
                self.set_wanting(id, false);
                continue;
            }
            // What is on its way is for this one.
            return;
        }
    }

    /// Takes `missing` bytes from those that may lose theirs, the least recently used ones first. Returns whether there are as many; otherwise nothing is
    /// taken.
    fn take_from(
        &mut self,
        missing: u64,
        may_lose: impl Fn(&Share) -> bool,
        changed: &mut Vec<(ProcessId, u64)>,
    ) -> bool {
        let all = self.shares.iter();
        let others = all.filter(|(_, share)| share.allowed > 0 && share.is_able && may_lose(share));
        let mut others: Vec<_> = others
            .map(|(id, share)| (share.returned_at, *id, share.allowed))
            .collect();
        others.sort_unstable();
        let mut taken = 0;
        let enough = others.iter().position(|(.., allowed)| {
            taken += allowed;
            taken >= missing
        });
        let Some(last) = enough else {
            return false;
        };
        for (_, id, _) in &others[..=last] {
            self.set(*id, 0, changed);
        }
        true
    }

    fn set(&mut self, id: ProcessId, allowed: u64, changed: &mut Vec<(ProcessId, u64)>) {
        if let Some(share) = self.shares.get_mut(&id) {
            share.allowed = allowed;
            share.bound = share.taken();
            changed.push((id, allowed));
        }
        self.set_wanting(id, false);
    }

    fn set_wanting(&mut self, id: ProcessId, is_wanting: bool) {
        if let Some(share) = self.shares.get_mut(&id) {
            share.is_wanting = is_wanting;
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

    fn decide(pins: &mut Pins) -> Vec<(ProcessId, u64)> {
        let mut changed = Vec::new();
        pins.decide(&mut changed);
        changed
    }

    /// Pinned memory for one model of 10 bytes, which the first process has; all state by which limit they register.
    fn full() -> Pins {
        let mut pins = Pins::new(10);
        for (id, is_pinned) in [(ONE, true), (OTHER, false), (THIRD, false)] {
            assert_eq!(pins.add(id, 10), is_pinned);
            pins.states(id, Some(pins.allowed(id)));
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
        pins.states(ONE, Some(10));
        assert_eq!(decide(&mut pins), [(ONE, 0), (THIRD, 0)]);
    }

    #[test]
    fn a_process_that_states_no_limit_keeps_what_it_has() {
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
            let mut pins = Pins::new(100);
            let mut all: BTreeMap<ProcessId, Process> = BTreeMap::new();
            for at in 0..400 {
                let id = ProcessId(u32::try_from(random.below(8)).unwrap());
                let own = all.entry(id).or_default();
                match random.below(8) {
                    0 if own.held < 60 => {
                        let bytes = 1 + random.below(20);
                        own.held += bytes;
                        own.ordered += if pins.add(id, bytes) { bytes } else { 0 };
                    }
                    1 if random.below(6) == 0 => {
                        pins.remove(id);
                        all.remove(&id);
                    }
                    2 | 3 => {
                        own.applied = own.ordered;
                        own.registered = own.registered.min(own.applied);
                    }
                    4 => own.registered = own.applied.min(own.held),
                    5 | 6 => pins.states(id, Some(own.applied)),
                    _ => pins.returns(Time(at), id),
                }
                for (id, allowed) in decide(&mut pins) {
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
