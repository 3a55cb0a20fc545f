//! The slot of a pod, decided once when it is added.
//!
//! | constraint | condition |
//! |---|---|
//! | kind | a pod that shares SMs needs a slot that does, any other one a slot that does not |
//! | seats | at most so many pods on a slot |
//! | memory | shared: the sum of what the pods state, each with a context. Otherwise each pod alone, since one uses the memory at a time |
//! | area | shared: the sum of share of the SMs × guaranteed share of the time is within the plan |
//!
//! Pods that share nothing are instances of functions which move between them (M2.15 with bound processes): the slots with the fewest instances of the
//! pod's function come first, then those whose path to the host has the fewest, then those with the least memory taken by contexts, and with the fewest
//! pods. Pods that share SMs are packed by a [`Rule`].
//!
//! [`crate::rectangles`] packs whole nodes and moves pods; here pods come one by one and stay.
//!
//! # Examples
//!
//! ```
//! use policy::placement::{AREA_WHOLE, Demand, Rule, Slot, choose};
//!
//! let plan = AREA_WHOLE / 10 * 9;
//! let slot = Slot { is_shared: true, is_usable: true, host_path: 0, seats: 48, memory: 80, residue: 1, plan };
//! let half = Demand { is_shared: true, memory: 10, area: AREA_WHOLE / 2 };
//! let mut full = slot.empty();
//! full.add(&slot, &half, false);
//! assert_eq!(choose(Rule::FirstFit, &[(slot, full), (slot, slot.empty())], &half), Ok(1));
//! ```

use units::SM_WHOLE;

use crate::tokens::SHARE_WHOLE;

/// Area of a whole slot: all SMs, in hundredths of a percent, × all of the time, in millionths.
pub const AREA_WHOLE: u64 = SM_WHOLE as u64 * SHARE_WHOLE as u64;

/// Order in which slots that fit a pod which shares SMs are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rule {
    /// The first slot.
    #[default]
    FirstFit,
    /// The slot with the least area left, then with the least memory left, then the first.
    BestFit,
}

/// A slot as it is offered to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Whether pods share its SMs.
    pub is_shared: bool,
    /// Whether pods can compute there now.
    pub is_usable: bool,
    /// Number of the path to the host's memory: slots with the same one share it.
    pub host_path: u32,
    /// Largest number of pods.
    pub seats: u32,
    /// Device memory, in bytes.
    pub memory: u64,
    /// Device memory taken by a context, in bytes; 0 where it is unknown.
    pub residue: u64,
    /// Largest sum of areas, in parts of [`AREA_WHOLE`]; above it the slot is overcommitted.
    pub plan: u64,
}

/// What a pod needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whether it shares SMs with other pods.
    pub is_shared: bool,
    /// Device memory without contexts, in bytes.
    pub memory: u64,
    /// Share of the SMs × guaranteed share of the time, in parts of [`AREA_WHOLE`].
    pub area: u64,
}

/// What the pods on a slot take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Taken {
    pods: u32,
    /// Number of pods of the function of the pod to be placed.
    instances: u32,
    memory: u64,
    area: u64,
}

/// The reason why a pod does not fit on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Pods cannot compute there now.
    Unusable,
    /// The slot is of the other kind.
    Kind,
    /// All seats are taken.
    Seats,
    /// The memory does not suffice.
    Memory {
        /// Memory that the pod needs, its context included, in bytes.
        wanted: u64,
        /// Memory that is left, in bytes.
        free: u64,
    },
    /// The plan does not suffice.
    Area {
        /// Area of the pods there, in parts of [`AREA_WHOLE`].
        taken: u64,
    },
}

impl Slot {
    /// Returns what is taken of a slot without pods.
    #[must_use]
    pub fn empty(&self) -> Taken {
        Taken::default()
    }
}

impl Taken {
    /// Counts a pod which `slot` serves from now on. `is_instance`: it is of the function of the pod to be placed.
    pub fn add(&mut self, slot: &Slot, pod: &Demand, is_instance: bool) {
        self.pods = self.pods.saturating_add(1);
        self.instances = self.instances.saturating_add(u32::from(is_instance));
        if slot.is_shared {
            let memory = pod.memory.saturating_add(slot.residue);
            self.memory = self.memory.saturating_add(memory);
            self.area = self.area.saturating_add(pod.area);
        }
    }
}

/// Checks whether a pod fits on a slot beside those which are there.
///
/// # Errors
/// Returns the first reason why it does not.
pub fn fits(slot: &Slot, taken: &Taken, pod: &Demand) -> Result<(), Misfit> {
    if slot.is_shared != pod.is_shared {
        return Err(Misfit::Kind);
    }
    if !slot.is_usable {
        return Err(Misfit::Unusable);
    }
    if taken.pods >= slot.seats {
        return Err(Misfit::Seats);
    }
    let wanted = pod.memory.saturating_add(slot.residue);
    let free = slot.memory.saturating_sub(taken.memory);
    if wanted > free {
        return Err(Misfit::Memory { wanted, free });
    }
    if slot.is_shared && taken.area.saturating_add(pod.area) > slot.plan {
        return Err(Misfit::Area { taken: taken.area });
    }
    Ok(())
}

/// Returns the index of the slot for a pod.
///
/// # Errors
/// Returns the reason for each slot when it fits on none.
pub fn choose(rule: Rule, slots: &[(Slot, Taken)], pod: &Demand) -> Result<usize, Vec<Misfit>> {
    let on_path = |path: u32| {
        let own = slots.iter().filter(|(slot, _)| slot.host_path == path);
        own.fold(0_u64, |sum, (_, taken)| sum + u64::from(taken.instances))
    };
    let mut best: Option<([u64; 4], usize)> = None;
    let mut reasons = Vec::new();
    for (at, (slot, taken)) in slots.iter().enumerate() {
        if let Err(reason) = fits(slot, taken, pod) {
            reasons.push(reason);
            continue;
        }
        let pods = u64::from(taken.pods);
        let cost = match rule {
            _ if !pod.is_shared => [
                u64::from(taken.instances),
                on_path(slot.host_path),
                slot.residue.saturating_mul(pods),
                pods,
            ],
            Rule::FirstFit => return Ok(at),
            Rule::BestFit => [
                slot.plan.saturating_sub(taken.area),
                slot.memory.saturating_sub(taken.memory),
                0,
                0,
            ],
        };
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, at));
        }
    }
    best.map(|(_, at)| at).ok_or(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: Slot = Slot {
        is_shared: true,
        is_usable: true,
        host_path: 0,
        seats: 3,
        memory: 100,
        residue: 10,
        plan: AREA_WHOLE / 10 * 9,
    };
    const POD: Demand = Demand {
        is_shared: true,
        memory: 20,
        area: AREA_WHOLE / 10,
    };

    fn with(pods: &[Demand]) -> Taken {
        let mut taken = SLOT.empty();
        for pod in pods {
            taken.add(&SLOT, pod, false);
        }
        taken
    }

    #[test]
    fn each_constraint_has_its_reason() {
        let other = Demand {
            is_shared: false,
            ..POD
        };
        assert_eq!(fits(&SLOT, &SLOT.empty(), &other), Err(Misfit::Kind));
        let lost = Slot {
            is_usable: false,
            ..SLOT
        };
        assert_eq!(fits(&lost, &SLOT.empty(), &POD), Err(Misfit::Unusable));
        assert_eq!(fits(&SLOT, &with(&[POD; 3]), &POD), Err(Misfit::Seats));
        let big = Demand { memory: 61, ..POD };
        let reason = Misfit::Memory {
            wanted: 71,
            free: 70,
        };
        assert_eq!(fits(&SLOT, &with(&[POD]), &big), Err(reason));
        let area = AREA_WHOLE / 10 * 8;
        let wide = Demand { area, ..POD };
        assert_eq!(fits(&SLOT, &with(&[POD]), &wide), Ok(()));
        let reason = Misfit::Area { taken: area };
        let more = Demand {
            area: POD.area + 1,
            ..POD
        };
        assert_eq!(fits(&SLOT, &with(&[wide]), &more), Err(reason));
    }

    #[test]
    fn pods_of_an_exclusive_slot_use_its_memory_one_at_a_time() {
        let slot = Slot {
            is_shared: false,
            ..SLOT
        };
        let pod = Demand {
            is_shared: false,
            memory: 90,
            area: AREA_WHOLE,
        };
        let mut taken = slot.empty();
        for _pod in 0..3 {
            assert_eq!(fits(&slot, &taken, &pod), Ok(()));
            taken.add(&slot, &pod, false);
        }
        assert_eq!(fits(&slot, &taken, &pod), Err(Misfit::Seats));
    }

    #[test]
    fn the_best_slot_has_the_least_left() {
        let slots = [
            (SLOT, with(&[])),
            (SLOT, with(&[POD, POD])),
            (SLOT, with(&[POD])),
            (SLOT, with(&[POD, POD, POD])),
        ];
        assert_eq!(choose(Rule::FirstFit, &slots, &POD), Ok(0));
        assert_eq!(choose(Rule::BestFit, &slots, &POD), Ok(1));
        let huge = Demand {
            memory: 1_000,
            ..POD
        };
        let reasons = choose(Rule::BestFit, &slots, &huge).unwrap_err();
        assert_eq!(reasons.len(), 4);
    }

    #[test]
    fn instances_of_a_function_are_on_different_slots_and_paths_and_others_where_few_are() {
        let slot = |host_path| Slot {
            is_shared: false,
            host_path,
            ..SLOT
        };
        let pod = Demand {
            is_shared: false,
            ..POD
        };
        let mut slots = [0, 0, 1, 1].map(|path| (slot(path), Taken::default()));
        let mut placed = Vec::new();
        for is_instance in [true, true, true, true, true] {
            let at = choose(Rule::FirstFit, &slots, &pod).unwrap();
            placed.push(at);
            let (slot, taken) = &mut slots[at];
            taken.add(slot, &pod, is_instance);
        }
        // Once each slot has one, they share slots.
        assert_eq!(placed, [0, 2, 1, 3, 0]);
        slots[0].1.add(&slot(0), &pod, false);
        for (_, taken) in &mut slots {
            taken.instances = 0;
        }
        assert_eq!(choose(Rule::BestFit, &slots, &pod), Ok(1));
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let most = Demand {
            is_shared: true,
            memory: u64::MAX,
            area: u64::MAX,
        };
        let mut taken = SLOT.empty();
        taken.add(&SLOT, &most, false);
        taken.add(&SLOT, &most, false);
        assert!(fits(&SLOT, &taken, &most).is_err());
    }
}
