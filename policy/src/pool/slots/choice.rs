//! Algorithm 1 (M2.15, mechanisms §2.3) and its alternatives.

use std::cmp::Reverse;

use super::copies::{Function, Running};
use super::decision::{Decision, Run, RunReason, Source, WaitReason};
use super::settings::{Binding, Patience, Placement, Swap};
use super::{Pool, bits};
use crate::pool::{FunctionId, SlotId};
use crate::{Span, Time};

/// Quality of a slot's path to the host: the `c` of mechanisms §2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Path {
    Quiet,
    BesideLight,
    BesideHeavy,
}

impl Pool {
    /// Chooses the slot of the set `among` that runs the next request of a function, and the source of its model there; returns the decision
    /// to wait as an error. Changes nothing except the time until which the function may wait for a better slot.
    pub(super) fn choose(
        &mut self,
        id: FunctionId,
        among: u64,
        random: u64,
    ) -> Result<Run, Decision> {
        let Some(entry) = self.function(id) else {
            return Err(wait(WaitReason::NoSuchFunction));
        };
        let allowed = match self.settings.binding {
            Binding::Pool => among,
            Binding::Process if entry.instances == 0 => return Err(wait(WaitReason::NoInstance)),
            Binding::Process => among & entry.instances,
        };
        let held = entry.hosts | entry.loading | entry.leaving;
        let idle = self.idle & allowed & !entry.leaving;
        if self.settings.swap == Swap::Off {
            return self.choose_bound(entry, idle, held, random).map_err(wait);
        }
        if idle == 0 {
            return Err(wait(WaitReason::NoSlotFree));
        }
        let resident = entry.hosts & idle;
        if entry.model.writes && held != 0 {
            return match resident {
                0 => Err(wait(WaitReason::OneCopyBusy)),
                _ => Ok(run(
                    resident.trailing_zeros(),
                    Source::Resident,
                    RunReason::Resident,
                )),
            };
        }
        match self.settings.placement {
            Placement::InterferenceAware => {}
            Placement::ResidentElseRandom if resident != 0 => {}
            Placement::Random | Placement::ResidentElseRandom => {
                return self.choose_random(entry, idle, random).map_err(wait);
            }
        }
        if resident != 0 {
            // With a single copy there is nothing to compare.
            let slot = bits(resident)
                .min_by_key(|&slot| {
                    let light = self.slots[slot as usize].light;
                    (light, self.copy(id, slot).used, slot)
                })
                .unwrap_or_default();
            return Ok(run(slot, Source::Resident, RunReason::Resident));
        }
        if let Some(until) = self.waits_ahead(entry) {
            return Err(Decision::Wait {
                reason: WaitReason::Ahead,
                until: Some(until),
            });
        }
        if let Some((slot, source)) = self.choose_link(entry, idle) {
            return Ok(run(slot, Source::Slot(SlotId(source)), RunReason::Link));
        }
        let (slot, path) = self.choose_path(entry, idle).map_err(wait)?;
        if path == Path::BesideHeavy
            && entry.model.heavy
            && let Some(until) = self.patience(entry, slot, allowed)
        {
            self.entry_mut(id).patient_until = Some(until);
            return Err(Decision::Wait {
                reason: WaitReason::Contention,
                until: Some(until),
            });
        }
        let reason = match path {
            Path::Quiet => RunReason::QuietPath,
            Path::BesideLight => RunReason::BesideLight,
            Path::BesideHeavy => RunReason::BesideHeavy,
        };
        Ok(run(slot, Source::Host, reason))
    }

    /// Returns whether a slot can take the model, if necessary by evicting others.
    fn takes(&self, entry: &Function, slot: u32) -> bool {
        let missing = self.missing(entry.model.bytes, slot);
        missing.is_some_and(|bytes| bytes == 0 || self.may_evict_for(entry))
    }

    /// Returns whether other models may be evicted for this function: always in a pool; with bound processes only if
    /// its weights are on no slot, or can leave the slot where they are.
    fn may_evict_for(&self, entry: &Function) -> bool {
        let Binding::Process = self.settings.binding else {
            return true;
        };
        let mut hosts = bits(entry.hosts);
        entry.loading | entry.leaving == 0
            && !self.runs_somewhere(entry)
            && !hosts.any(|slot| self.moves_ahead(SlotId(slot)) == Some(entry.id))
    }

    fn runs_somewhere(&self, entry: &Function) -> bool {
        bits(entry.hosts).any(|slot| self.copy(entry.id, slot).running)
    }

    /// Chooses the slot with the fastest link to a copy, and returns it with the slot of that copy.
    fn choose_link(&self, entry: &Function, idle: u64) -> Option<(u32, u32)> {
        let slots = self.slots.len();
        let is_whole = |source: &u32| self.moves_ahead(SlotId(*source)) != Some(entry.id);
        bits(entry.hosts)
            .filter(is_whole)
            .flat_map(|source| bits(idle).map(move |slot| (source, slot)))
            .filter_map(|(source, slot)| {
                let link = self.topology.links[source as usize * slots + slot as usize];
                if link == 0 || !self.takes(entry, slot) {
                    return None;
                }
                let quiet = self.path(slot) == Path::Quiet;
                let free = self.slots[slot as usize].memory.free();
                Some((link, quiet, free, Reverse(slot), Reverse(source)))
            })
            .max()
            .map(|(.., Reverse(slot), Reverse(source))| (slot, source))
    }

    /// Chooses the slot with the best path to the host.
    fn choose_path(&self, entry: &Function, idle: u64) -> Result<(u32, Path), WaitReason> {
        let period = self.period();
        bits(idle)
            .filter(|&slot| self.takes(entry, slot))
            .map(|slot| {
                let at = &self.slots[slot as usize];
                let evicts = self.missing(entry.model.bytes, slot);
                (self.path(slot), evicts, at.load.at(period), slot)
            })
            .min()
            .map(|(path, .., slot)| (slot, path))
            .ok_or_else(|| self.wait_reason(entry))
    }

    fn choose_random(&self, entry: &Function, idle: u64, random: u64) -> Result<Run, WaitReason> {
        // The first slot that can take the model, starting from a random one of the free slots.
        let chosen = random % u64::from(idle.count_ones());
        let (mut seen, mut first) = (0, None);
        for slot in bits(idle) {
            let resident = entry.hosts >> slot & 1 == 1;
            if resident || self.takes(entry, slot) {
                let source = if resident {
                    Source::Resident
                } else {
                    Source::Host
                };
                let run = run(slot, source, RunReason::Random);
                if seen >= chosen {
                    return Ok(run);
                }
                first = first.or(Some(run));
            }
            seen += 1;
        }
        first.ok_or_else(|| self.wait_reason(entry))
    }

    /// Chooses the slot where the model is, or a slot with enough free memory, where it will stay.
    fn choose_bound(
        &self,
        entry: &Function,
        idle: u64,
        held: u64,
        random: u64,
    ) -> Result<Run, WaitReason> {
        if held != 0 {
            return match entry.hosts & idle {
                0 => Err(WaitReason::BoundSlotBusy),
                slots => Ok(run(
                    slots.trailing_zeros(),
                    Source::Resident,
                    RunReason::Bound,
                )),
            };
        }
        if idle == 0 {
            return Err(WaitReason::NoSlotFree);
        }
        let fits = bits(idle)
            .filter(|&slot| self.missing(entry.model.bytes, slot) == Some(0))
            .fold(0, |set, slot| set | 1 << slot);
        if fits == 0 {
            return Err(self.wait_reason(entry));
        }
        let slot = match self.settings.placement {
            Placement::InterferenceAware => self.choose_path(entry, fits)?.0,
            Placement::Random | Placement::ResidentElseRandom => {
                self.choose_random(entry, fits, random)?.slot.0
            }
        };
        Ok(run(slot, Source::Host, RunReason::Bound))
    }

    fn wait_reason(&self, entry: &Function) -> WaitReason {
        let bytes = entry.model.bytes;
        let allowed = match self.settings.binding {
            Binding::Pool => u64::MAX,
            Binding::Process => entry.instances,
        };
        let ever = (0_u32..)
            .zip(&self.slots)
            .any(|(slot, at)| allowed >> slot & 1 == 1 && at.memory.holds(bytes));
        if !self.ever_fits(entry.id).unwrap_or(ever) {
            WaitReason::NeverFits
        } else if self.settings.swap == Swap::On && !self.may_evict_for(entry) {
            WaitReason::SecondCopy
        } else {
            WaitReason::Blocked
        }
    }

    /// Returns the quality of a slot's path, by what its neighbours load from the host. Loads over a link of their own
    /// do not count.
    fn path(&self, slot: u32) -> Path {
        let of_request =
            |running: Running| (running.loading == Some(Source::Host)).then_some(running.function);
        bits(self.topology.neighbours[slot as usize])
            .map(|neighbour| &self.slots[neighbour as usize])
            .flat_map(|at| {
                let ahead = at.ahead.filter(|ahead| ahead.moves);
                [
                    at.running.and_then(of_request),
                    ahead.map(|ahead| ahead.function),
                    at.streams,
                ]
            })
            .flatten()
            .map(|function| match self.entry(function).model.heavy {
                false => Path::BesideLight,
                true => Path::BesideHeavy,
            })
            .max()
            .unwrap_or(Path::Quiet)
    }

    /// Returns the time until which it pays to wait for another slot rather than to load on this one next to a heavy
    /// model.
    fn patience(&self, entry: &Function, slot: u32, allowed: u64) -> Option<Time> {
        let Patience::QuarterOfContention { slowdown_percent } = self.settings.patience else {
            return None;
        };
        let neighbour_loads = bits(self.topology.neighbours[slot as usize])
            .filter_map(|neighbour| self.slots[neighbour as usize].running)
            .filter(|running| running.loading == Some(Source::Host))
            .filter(|running| self.entry(running.function).model.heavy)
            .map(|running| running.ends.since(self.now))
            .max()?;
        let together = neighbour_loads.min(entry.model.swapped);
        let cost = u128::from(together.0) * u128::from(slowdown_percent) / 100;
        let worth = Span(u64::try_from(cost / 4).unwrap_or(u64::MAX));
        // The wait lasts at most as long as was worthwhile when it began.
        let until = entry.patient_until.unwrap_or_else(|| self.now.after(worth));
        let better = bits(allowed & !self.idle & self.in_use())
            .filter(|&other| self.path(other) < Path::BesideHeavy)
            .filter_map(|other| self.slots[other as usize].running)
            .map(|running| running.ends)
            .min()?;
        (self.now < until && better <= until).then_some(until)
    }

    fn in_use(&self) -> u64 {
        u64::MAX >> (64 - self.slots.len())
    }
}

const fn run(slot: u32, source: Source, reason: RunReason) -> Run {
    Run {
        slot: SlotId(slot),
        source,
        reason,
    }
}

const fn wait(reason: WaitReason) -> Decision {
    Decision::Wait {
        reason,
        until: None,
    }
}
