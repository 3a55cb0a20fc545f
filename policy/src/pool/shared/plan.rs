//! Decisions: which model returns, which ones leave for it, and which queue has a lease.

use std::collections::BTreeMap;

use super::super::leases::{RECALL_MAX, RECALL_QUIET_MAX, RECALLED_LOOK};
use super::super::means::LoadRate;
use super::super::queue::Head;
use super::super::slots::EvictReason;
use super::{AGED, Action, Demand, Entry, InstanceId, Lease, Location, Motion, SharedLeases};
use crate::pool::SlotId;
use crate::{Span, Time};

/// Time by which what is due at once should have had its memory.
const AT_ONCE: Time = Time::ZERO;

/// What waits for memory of its slot.
#[derive(Debug, Clone, Copy)]
struct Want {
    id: InstanceId,
    /// Memory which it needs beyond what it has there, in bytes.
    bytes: u64,
    /// Whether it waits for a claim, and its model is there.
    is_claim: bool,
    urgency: Urgency,
}

/// From when on instances with work are recalled for a want.
#[derive(Debug, Clone, Copy)]
enum Urgency {
    /// When it could miss its latest start.
    Starts(Time),
    /// When their leases have lasted long enough.
    Late,
    /// Not at all.
    CanWait,
}

/// Memory of a slot amid a decision, in bytes.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// What no model takes; negative where they take more than there is, as after the slot's memory was set to less.
    free: i128,
    /// What models will give back that leave, or whose leases are recalled for it.
    coming: i128,
}

impl SharedLeases {
    /// Decides what happens next, and appends it to `actions`.
    pub fn decide(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.now = self.now.max(now);
        let is_due = self.wake.is_some_and(|at| at <= self.now);
        if !is_due && !std::mem::take(&mut self.is_changed) {
            return;
        }
        (self.wake, self.is_changed) = (None, false);
        self.end_recalls(actions);
        self.grant_unleased(actions);
        self.refuse_impossible(actions);
        self.end_turns();
        // What has returned computes before it may have to leave again.
        self.grant(false, actions);
        let mut rooms: BTreeMap<SlotId, Room> = BTreeMap::new();
        let wants = self.wants();
        for (at, want) in wants.iter().enumerate() {
            let Some(slot) = self.instances.get(&want.id).map(|entry| entry.about.slot) else {
                continue;
            };
            let mut room = match rooms.get(&slot) {
                Some(room) => *room,
                None => Room {
                    free: self.free(slot),
                    coming: self.coming(slot),
                },
            };
            self.serve(want, &wants[..at], slot, &mut room, actions);
            rooms.insert(slot, room);
        }
        self.grant(true, actions);
        self.charge_turns();
    }

    /// Recalls the leases of those that failed, or whose model is away while they have no work, and ends those whose queue is silent for too long.
    fn end_recalls(&mut self, actions: &mut Vec<Action>) {
        let now = self.now;
        let mut wake = Time::NEVER;
        for (id, entry) in &mut self.instances {
            let slot = self.slots.get(&entry.about.slot);
            let is_lost = slot.is_none_or(|at| at.is_lost);
            match entry.lease {
                Lease::Held { .. } if !is_lost => {
                    let has_failed = now < entry.failed_until;
                    let is_away = entry.location == Location::Host && entry.motion == Motion::Rests;
                    let waits = entry.parked.is_some() || entry.claim.is_some();
                    if has_failed || (is_away && entry.is_idle && !waits) {
                        entry.lease = Lease::Recalled { since: now };
                        actions.push(Action::Recall(*id));
                        wake = wake.min(now.after(RECALLED_LOOK));
                    }
                }
                Lease::Recalled { since } => {
                    // A queue that is stopped, or lies, holds up no other instance for long unless its processes compute.
                    let quiet = entry.quiet_since.map_or(Time::NEVER, |quiet| {
                        quiet.max(since).after(RECALL_QUIET_MAX)
                    });
                    let until = since.after(RECALL_MAX).min(quiet);
                    if until <= now {
                        entry.lease = Lease::Ended;
                    } else {
                        wake = wake.min(until).min(now.after(RECALLED_LOOK));
                    }
                }
                _ => {}
            }
        }
        self.wake_at(wake);
    }

    /// Gives leases to queues whose models are there, or that state one of an earlier agent. `has_planned`: it is decided on what leaves, so that leases which were recalled
    /// and are not among it begin again.
    fn grant(&mut self, has_planned: bool, actions: &mut Vec<Action>) {
        let (now, streams) = (self.now, self.streams);
        let mut granted = Vec::new();
        let mut wake = Time::NEVER;
        for (id, entry) in &mut self.instances {
            let may = match entry.lease {
                Lease::Stated | Lease::Free => true,
                Lease::Ended => has_planned,
                Lease::Held { .. } | Lease::Recalled { .. } => false,
            };
            if !entry.has_queue || !may {
                continue;
            }
            let is_lost = self
                .slots
                .get(&entry.about.slot)
                .is_none_or(|at| at.is_lost);
            let is_there = match entry.motion {
                Motion::Rests => entry.location != Location::Host,
                Motion::Returns { .. } => streams && entry.needs_room(),
                Motion::Leaves => false,
            };
            if entry.lease != Lease::Stated && !is_lost {
                if now < entry.failed_until {
                    wake = wake.min(entry.failed_until);
                    continue;
                }
                if !is_there {
                    if entry.lease == Lease::Ended && entry.location == Location::Host {
                        entry.lease = Lease::Free;
                    }
                    continue;
                }
            }
            entry.lease = Lease::Held { since: now };
            (entry.is_idle, entry.used_at) = (false, now);
            granted.push(*id);
        }
        for id in granted {
            // A head of its own is dispatched under the lease.
            self.withdraw(id);
            actions.push(Action::Lease(id));
        }
        self.wake_at(wake);
    }

    /// Returns what waits for memory, in the order in which it is to get it.
    fn wants(&mut self) -> Vec<Want> {
        let (mut first, mut last) = (Vec::new(), Vec::new());
        let mut heads = false;
        let mut wake = Time::NEVER;
        for (id, entry) in &self.instances {
            let runs = matches!(entry.lease, Lease::Held { .. } | Lease::Recalled { .. });
            let runs_away = runs && !entry.is_idle && entry.location == Location::Host;
            if !entry.needs_room() && !runs_away {
                continue;
            }
            if !self.moves_on(entry.about.slot)
                || entry.motion != Motion::Rests
                || self.has_failed(entry)
            {
                continue;
            }
            if self.now < entry.retry_at {
                wake = wake.min(entry.retry_at);
                continue;
            }
            let is_without_request =
                entry.is_without_request() && (entry.claim.is_some() || entry.parked.is_some());
            let claimed_at = entry.claim.map(|claim| claim.since);
            let deadline = match (claimed_at, entry.parked) {
                _ if runs_away || entry.is_next || entry.has_aged(self.now) => Some(AT_ONCE),
                _ if is_without_request && let Err(due) = self.may_have_turn(entry) => {
                    wake = wake.min(due);
                    Some(Time::NEVER)
                }
                (Some(since), parked) if is_without_request => {
                    Some(parked.map_or(since, |by| by.min(since)))
                }
                (Some(_), _) => Some(AT_ONCE),
                (None, parked) => parked,
            };
            match deadline {
                Some(deadline) if deadline <= self.now => {
                    let claim = entry.claim.map_or(0, |claim| claim.number);
                    first.push((deadline, claim, *id));
                }
                Some(deadline) if entry.head.is_none() => last.push((deadline, *id)),
                _ => heads = true,
            }
        }
        self.wake_at(wake);
        first.sort_unstable();
        last.sort_unstable();
        let mut wants: Vec<Want> = Vec::new();
        for (_, _, id) in first {
            let entry = self.instances.get(&id);
            let has_aged = entry.is_some_and(|entry| entry.has_aged(self.now));
            let urgency = match has_aged {
                true => Urgency::Starts(self.now),
                false => Urgency::Late,
            };
            wants.extend(self.want(id, urgency));
        }
        if heads {
            self.add_heads(&mut wants);
        }
        let others = last.into_iter();
        for (deadline, id) in others {
            self.wake_at(deadline);
            wants.extend(self.want(id, Urgency::CanWait));
        }
        wants
    }

    /// Adds the heads, in the order of the queue.
    fn add_heads(&mut self, wants: &mut Vec<Want>) {
        for (id, entry) in &self.instances {
            if let Some((_, demand)) = entry.head {
                let needed = self.needed(*id, &demand);
                self.queue
                    .set_estimate(self.now, entry.about.function, needed);
            }
        }
        let mut taken: Vec<(InstanceId, Head, Demand)> = Vec::new();
        while let Some((head, _)) = self.queue.next(self.now) {
            let Some(head) = self.queue.cancel(self.now, head.ticket) else {
                break;
            };
            let id = u32::try_from(head.request.0).map(InstanceId);
            let Some((id, entry)) = id
                .ok()
                .and_then(|id| Some((id, self.instances.get_mut(&id)?)))
            else {
                continue;
            };
            let Some((_, demand)) = entry.head.take() else {
                continue;
            };
            let latest = demand.deadline.before(self.needed(id, &demand));
            let urgency = if latest >= self.now {
                Urgency::Starts(latest)
            } else {
                Urgency::Late
            };
            let is_new = wants.iter().all(|want| want.id != id);
            wants.extend(self.want(id, urgency).filter(|_| is_new));
            taken.push((id, head, demand));
        }
        for (id, head, demand) in taken {
            self.set_head(id, &head, demand);
        }
    }

    /// Returns the time that the head of an instance needs from its start.
    fn needed(&self, id: InstanceId, demand: &Demand) -> Span {
        let Some(entry) = self.instances.get(&id) else {
            return Span::ZERO;
        };
        let execution = match entry.executions {
            0 => demand.estimate,
            _ => entry.execution,
        };
        let load = entry.expected_load(self.load_rate);
        if self.streams {
            return execution.max(load);
        }
        Span(execution.0.saturating_add(load.0))
    }

    /// Returns what an instance waits for; `None` if it has its memory, or cannot get it now.
    fn want(&self, id: InstanceId, urgency: Urgency) -> Option<Want> {
        let entry = self.instances.get(&id)?;
        let may = self.moves_on(entry.about.slot)
            && entry.motion == Motion::Rests
            && !self.has_failed(entry)
            && self.now >= entry.retry_at;
        let (bytes, is_claim) = match (entry.location, entry.claim) {
            (Location::Host, _) => (entry.bytes, false),
            (_, Some(claim)) => (claim.bytes.saturating_sub(entry.bytes), true),
            (_, None) => return None,
        };
        may.then_some(Want {
            id,
            bytes,
            is_claim,
            urgency,
        })
    }

    /// Returns the memory that a slot's models will give back, in bytes.
    fn coming(&self, slot: SlotId) -> i128 {
        let on_slot = self.instances.values();
        let leaving = on_slot.filter(|entry| entry.about.slot == slot && entry.is_on_its_way());
        leaving.map(|entry| i128::from(entry.bytes)).sum()
    }

    /// Serves a want, or makes room for it. `before`: those that come first.
    fn serve(
        &mut self,
        want: &Want,
        before: &[Want],
        slot: SlotId,
        room: &mut Room,
        actions: &mut Vec<Action>,
    ) {
        // It is not for its own sake that it leaves.
        let own = self.instances.get(&want.id);
        let own = own.filter(|entry| entry.is_on_its_way());
        let own = own.map_or(0, |entry| i128::from(entry.bytes));
        let bytes = i128::from(want.bytes);
        let missing = bytes - room.free - (room.coming - own);
        if missing > 0 {
            let Some(leaving) = self.make_room(want, before, slot, missing, actions) else {
                return;
            };
            room.coming += leaving;
        }
        if bytes > room.free {
            room.coming -= bytes - room.free;
            room.free = 0;
            return;
        }
        room.free -= bytes;
        if want.is_claim {
            return self.grant_claim(want.id, actions);
        }
        if self.is_path_busy(slot) {
            return;
        }
        let since = self.now;
        if let Some(entry) = self.instances.get_mut(&want.id) {
            let bytes = entry.bytes;
            entry.motion = Motion::Returns { since, bytes };
            entry.is_next = false;
            self.begin_turn(want.id, false);
            actions.push(Action::Restore(want.id));
        }
    }

    /// Returns whether a model returns on the path of a slot to the host.
    fn is_path_busy(&self, slot: SlotId) -> bool {
        let path = |slot| self.slots.get(&slot).and_then(|at| at.host_path);
        let own = path(slot);
        self.instances.values().any(|entry| {
            let other = entry.about.slot;
            let is_shared = other == slot || own.is_some() && path(other) == own;
            is_shared && matches!(entry.motion, Motion::Returns { .. })
        })
    }

    /// Has others leave, or recalls them, so that `missing` bytes more become free. Returns how many; `None` if not enough may leave yet.
    fn make_room(
        &mut self,
        want: &Want,
        before: &[Want],
        slot: SlotId,
        missing: i128,
        actions: &mut Vec<Action>,
    ) -> Option<i128> {
        let mut candidates = Vec::new();
        let mut wake = Time::NEVER;
        let own = self.instances.get(&want.id);
        // What runs waits no longer than what is to.
        let for_head = own.is_some_and(|entry| entry.head.is_some() || !entry.is_without_request());
        let (mut is_turn, mut in_turns) = (false, 0);
        for (id, entry) in &self.instances {
            if entry.about.slot != slot || !entry.can_leave() || *id == want.id {
                continue;
            }
            // What is served first would only have to return.
            if before.iter().any(|want| want.id == *id) {
                continue;
            }
            if self.now < entry.retry_at {
                wake = wake.min(entry.retry_at);
                continue;
            }
            let rank = if entry.lease == Lease::Ended {
                // It was recalled for this.
                0
            } else if entry.is_without_work() {
                let due = entry.spared_until(want.urgency, self.load_rate);
                if due > self.now {
                    wake = wake.min(due);
                    continue;
                }
                1
            } else if entry.claim.is_some() {
                // What it runs waits for memory itself, and comes later.
                2
            } else {
                let due = self.due(want.urgency, entry, for_head);
                if due > self.now {
                    wake = wake.min(due);
                    is_turn |= entry.turn.is_some();
                    if entry.turn.is_some() && for_head {
                        in_turns += i128::from(entry.bytes);
                    }
                    continue;
                }
                3
            };
            candidates.push((rank, entry.is_tight(self.load_rate), entry.used_at, *id));
        }
        candidates.sort_unstable();
        let bytes = |id: &InstanceId| {
            let entry = self.instances.get(id);
            entry.map_or(0, |entry| i128::from(entry.bytes))
        };
        let mut sum = 0;
        let mut chosen: Vec<InstanceId> = Vec::new();
        for (_, _, _, id) in candidates {
            if sum >= missing {
                break;
            }
            sum += bytes(&id);
            chosen.push(id);
        }
        if sum < missing {
            self.wake_at(wake);
            if is_turn {
                self.look_at_turn();
            }
            if in_turns > 0 && sum + in_turns >= missing {
                self.note_delay(slot);
            }
            // Whether processes without a queue compute is only seen by looking.
            self.wake_at(self.now.after(RECALLED_LOOK));
            return None;
        }
        // Those that came first may not be needed beside a large one: the costliest are left first.
        for at in (0..chosen.len()).rev() {
            let left = sum - bytes(&chosen[at]);
            if left >= missing {
                sum = left;
                chosen.remove(at);
            }
        }
        for id in chosen {
            let has_work = self
                .instances
                .get(&id)
                .is_some_and(|it| !it.is_without_work());
            if has_work && let Some(entry) = self.instances.get_mut(&want.id) {
                entry.is_next = true;
            }
            self.have_leave(id, actions);
        }
        Some(sum)
    }

    /// Returns when an instance with work may be recalled for a want. `for_head`: it is that of a request.
    fn due(&self, urgency: Urgency, entry: &Entry, for_head: bool) -> Time {
        match urgency {
            Urgency::Starts(_) | Urgency::Late if let Some(turn) = entry.turn => {
                self.end_of_turn(entry.about.slot, &turn, for_head)
            }
            Urgency::Starts(latest) => latest.before(entry.expected_drain()),
            Urgency::Late => {
                let since = match entry.lease {
                    Lease::Held { since } => since,
                    _ => entry.used_at,
                };
                let load = entry.expected_load(self.load_rate);
                let execution = entry.expected_execution();
                since.after(Span(load.0.saturating_mul(2).max(execution.0)))
            }
            Urgency::CanWait => Time::NEVER,
        }
    }

    /// Has a model leave, or recalls its instance's lease for it.
    fn have_leave(&mut self, id: InstanceId, actions: &mut Vec<Action>) {
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        entry.turn = None;
        let runs = matches!(entry.lease, Lease::Held { .. } | Lease::Stated);
        if runs {
            entry.lease = Lease::Recalled { since: now };
            actions.push(Action::Recall(id));
            self.wake_at(now.after(RECALLED_LOOK));
        }
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        // What runs there waits for memory, and goes on once it has returned.
        let is_stuck = entry.claim.is_some();
        if !runs || is_stuck {
            entry.motion = Motion::Leaves;
            actions.push(Action::Evict {
                instance: id,
                reason: EvictReason::LeastRecentlyUsed,
                is_sealed: false,
            });
        }
    }
}

impl Entry {
    /// Returns whether its queue has had heads without a lease for so long that they come first.
    fn has_aged(&self, now: Time) -> bool {
        let objective = self.about.objective.0;
        let waited = now.since(self.waits_since).0;
        self.head.is_some() && objective > 0 && waited >= objective.saturating_mul(AGED)
    }

    /// Returns whether its model leaves, or will as soon as its lease has ended. What a recalled one runs does not end while it waits for memory itself.
    const fn is_on_its_way(&self) -> bool {
        let ends = matches!(self.lease, Lease::Recalled { .. }) && self.claim.is_none();
        match self.motion {
            Motion::Leaves => true,
            Motion::Rests => ends && self.can_leave_ever(),
            Motion::Returns { .. } => false,
        }
    }

    /// Returns until when it is kept although it is without work: what can wait would only move it to and fro.
    fn spared_until(&self, urgency: Urgency, rate: LoadRate) -> Time {
        match urgency {
            Urgency::Starts(_) | Urgency::Late => Time::ZERO,
            Urgency::CanWait => {
                let load = self.expected_load(rate);
                self.used_at.after(Span(load.0.saturating_mul(2)))
            }
        }
    }

    const fn can_leave_ever(&self) -> bool {
        matches!(self.location, Location::Device) && self.bytes > 0 && self.about.may_leave
    }

    /// Returns whether its model may be chosen to leave.
    const fn can_leave(&self) -> bool {
        matches!(self.motion, Motion::Rests)
            && self.can_leave_ever()
            && (!matches!(self.lease, Lease::Recalled { .. }) || self.claim.is_some())
    }
}
