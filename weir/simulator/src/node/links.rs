//! Progress of loads over the paths of a node.
//!
//! Slots that share a path to the host share its rate: k concurrent loads run at 1 / (1 + s · (k − 1)) of their rate when
//! alone, where s is the contention (workloads §9). A load which starts or ends changes the speed of the others: the remainder of
//! each is kept as time alone on the path, and its end is predicted anew. A load from another slot has its link to itself. A load
//! ahead of its request ([`Links::ahead`]) shares the path of its slot.

use policy::{Span, Time};

/// Largest number of slots of a node with loads ahead.
const SLOTS_AHEAD_MAX: usize = 32;

/// A load in progress.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Remaining time in nanoseconds, if alone on its path, as of `since`.
    left: f64,
    since: Time,
    /// Whether the load does not use a path to the host.
    alone: bool,
    /// Distinguishes the current prediction of the end from those made before the speed changed.
    version: u32,
}

/// Remaining time of a load of a model at some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Time at which the remainder was observed.
    pub at: Time,
    /// Remaining time of the load in nanoseconds, if it were alone on its path; decreases linearly between observations.
    pub left: f64,
}

impl Progress {
    pub(super) const fn new(at: Time, left: Span) -> Self {
        Self {
            at,
            left: float(left),
        }
    }
}

/// Loads in progress on the links of a node; see the [module](self).
#[derive(Clone, Debug)]
pub struct Links {
    contention: f64,
    /// Number of slots.
    slots: u32,
    /// For each slot, and after all of them for each slot's loads ahead, the set of those on the same path, itself included, as a bit
    /// set.
    paths: Vec<u64>,
    loads: Vec<Option<Load>>,
    /// Latest version by slot, which increases over all loads of the slot.
    versions: Vec<u32>,
    /// Progress of each slot's latest load, if it is recorded.
    progress: Option<Vec<Vec<Progress>>>,
}

/// Predicted end of a slot's load, valid until a speed changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Slot into which the model is loaded.
    pub slot: u32,
    /// Predicted time of the end.
    pub at: Time,
    /// Version to pass to [`Links::ends`].
    pub version: u32,
}

impl Links {
    /// Returns the idle paths of a node with this number of slots; the slots of a pair share a path.
    #[must_use]
    pub fn new(slots: usize, pairs: &[[u32; 2]], contention: f64) -> Self {
        let mut paths: Vec<u64> = (0..slots).map(|slot| 1 << slot).collect();
        for &[one, other] in pairs {
            paths[one as usize] |= 1 << other;
            paths[other as usize] |= 1 << one;
        }
        let lanes = if slots <= SLOTS_AHEAD_MAX { 2 } else { 1 };
        if lanes == 2 {
            for path in &mut paths {
                *path |= *path << slots;
            }
            paths.extend_from_within(..);
        }
        Self {
            contention,
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            loads: vec![None; paths.len()],
            versions: vec![0; paths.len()],
            paths,
            progress: None,
        }
    }

    /// Returns the number under which a slot's loads ahead are listed, in the place of a slot; `None` with more than 32 slots.
    #[must_use]
    pub const fn ahead(&self, slot: u32) -> Option<u32> {
        if self.loads.len() > self.slots as usize {
            Some(self.slots + slot)
        } else {
            None
        }
    }

    /// Returns the slot whose load ahead is listed under a number; `None` if that is a slot's.
    #[must_use]
    pub const fn slot_ahead(&self, number: u32) -> Option<u32> {
        number.checked_sub(self.slots)
    }

    /// Enables recording of each slot's latest load: one entry for each change of its speed.
    pub fn keep_progress(&mut self) {
        self.progress = Some(vec![Vec::new(); self.loads.len()]);
    }

    /// Returns the progress of a slot's latest load, its end included once it is over; empty if it is not recorded.
    #[must_use]
    pub fn progress(&self, slot: u32) -> &[Progress] {
        let kept = self.progress.as_ref();
        kept.map_or(&[], |kept| kept[slot as usize].as_slice())
    }

    fn note(&mut self, slot: u32, at: Time, left: f64, begins: bool) {
        if let Some(kept) = &mut self.progress {
            let own = &mut kept[slot as usize];
            if begins {
                own.clear();
            }
            own.push(Progress { at, left });
        }
    }

    fn speed(&self, slot: u32) -> f64 {
        let neighbours = bits(self.paths[slot as usize]);
        let loading = neighbours
            .filter(|&other| self.loads[other as usize].is_some_and(|load| !load.alone))
            .count();
        #[expect(clippy::cast_precision_loss, reason = "64 at most")]
        let others = loading.saturating_sub(1) as f64;
        1.0 / (1.0 + self.contention * others)
    }

    /// Updates the remainders of a path's loads to the time `now`.
    fn settle(&mut self, slot: u32, now: Time) {
        for other in bits(self.paths[slot as usize]) {
            let speed = self.speed(other);
            if let Some(load) = &mut self.loads[other as usize]
                && !load.alone
            {
                load.left = (load.left - float(now.since(load.since)) * speed).max(0.0);
                load.since = now;
                let left = load.left;
                self.note(other, now, left, false);
            }
        }
    }

    /// Predicts the ends of a path's loads.
    fn predict(&mut self, slot: u32, ends: &mut Vec<End>) {
        for other in bits(self.paths[slot as usize]) {
            let speed = self.speed(other);
            if let Some(load) = &mut self.loads[other as usize]
                && !load.alone
            {
                self.versions[other as usize] += 1;
                load.version = self.versions[other as usize];
                ends.push(End {
                    slot: other,
                    at: load.since.after(super::hardware::nanos(load.left / speed)),
                    version: load.version,
                });
            }
        }
    }

    /// Starts a load from the host, which takes the time `alone` when alone on its path, and adds the ends that change.
    pub fn from_host(&mut self, now: Time, slot: u32, alone: Span, ends: &mut Vec<End>) {
        self.settle(slot, now);
        self.loads[slot as usize] = Some(Load {
            left: float(alone),
            since: now,
            alone: false,
            version: 0,
        });
        self.note(slot, now, float(alone), true);
        self.predict(slot, ends);
    }

    /// Starts a load from another slot, which takes the time `takes`, and adds its end.
    pub fn from_slot(&mut self, now: Time, slot: u32, takes: Span, ends: &mut Vec<End>) {
        self.versions[slot as usize] += 1;
        let version = self.versions[slot as usize];
        self.loads[slot as usize] = Some(Load {
            left: 0.0,
            since: now,
            alone: true,
            version,
        });
        self.note(slot, now, float(takes), true);
        ends.push(End {
            slot,
            at: now.after(takes),
            version,
        });
    }

    /// Returns whether that prediction still holds; if so, ends the load and adds the changed ends of others.
    pub fn ends(&mut self, now: Time, slot: u32, version: u32, ends: &mut Vec<End>) -> bool {
        let Some(load) = self.loads[slot as usize].filter(|load| load.version == version) else {
            return false;
        };
        if load.alone {
            self.note(slot, now, 0.0, false);
            self.loads[slot as usize] = None;
            return true;
        }
        self.settle(slot, now);
        self.loads[slot as usize] = None;
        self.predict(slot, ends);
        true
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
const fn float(span: Span) -> f64 {
    span.0 as f64
}

fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let slot = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (slot < 64).then_some(slot)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn last(ends: &[End], slot: u32) -> End {
        *ends.iter().rev().find(|end| end.slot == slot).unwrap()
    }

    #[test]
    fn loads_on_a_shared_path_slow_each_other() {
        let mut links = Links::new(4, &[[0, 1], [2, 3]], 0.6);
        let mut ends = Vec::new();
        links.from_host(Time(0), 0, Span(10 * MS), &mut ends);
        assert_eq!(last(&ends, 0).at, Time(10 * MS));
        let first = last(&ends, 0);
        // Half is left when the other begins: 5 ms at 1/1.6 are 8 ms.
        links.from_host(Time(5 * MS), 1, Span(20 * MS), &mut ends);
        assert!(!links.ends(first.at, 0, first.version, &mut ends));
        let first = last(&ends, 0);
        assert_eq!(first.at, Time(13 * MS));
        // The other has done 5 of 20 ms by then.
        assert!(links.ends(first.at, 0, first.version, &mut ends));
        assert_eq!(last(&ends, 1).at, Time(28 * MS));
        // Neither a load on another pair nor one over a link between GPUs changes it.
        links.from_host(Time(14 * MS), 2, Span(5 * MS), &mut ends);
        links.from_slot(Time(14 * MS), 0, Span(3 * MS), &mut ends);
        assert_eq!(last(&ends, 2).at, Time(19 * MS));
        assert_eq!(last(&ends, 0).at, Time(17 * MS));
        let other = last(&ends, 1);
        assert!(links.ends(other.at, 1, other.version, &mut ends));
    }

    /// Torpor Table 3: Bert-qa, with the longest load, against a ResNet-152 that swaps all the time.
    #[test]
    fn work_is_conserved_however_loads_interleave() {
        let mut links = Links::new(2, &[[0, 1]], 0.6);
        let mut ends = Vec::new();
        let (mut now, mut alone) = (0, 0);
        links.from_host(Time(0), 0, Span(100 * MS), &mut ends);
        loop {
            links.from_host(Time(now), 1, Span(7 * MS), &mut ends);
            let (one, other) = (last(&ends, 0), last(&ends, 1));
            let next = one.at.min(other.at);
            alone += (next.0 - now) * 10 / 16;
            now = next.0;
            if one.at <= other.at {
                assert!(links.ends(one.at, 0, one.version, &mut ends));
                break;
            }
            assert!(links.ends(other.at, 1, other.version, &mut ends));
        }
        assert!(alone.abs_diff(100 * MS) < 100, "{alone}");
        assert!(now.abs_diff(160 * MS) < 100, "{now}");
    }
}
