//! What queues and processes report.

use super::super::leases::{EXECUTIONS_MIN, RESTART_MAX, news};
use super::super::means::mean;
use super::{Demand, InstanceId, Lease, Location, Motion, RETRY, RETRY_SOON, SharedLeases};
use crate::{RequestId, Span, Time};

impl SharedLeases {
    /// Connects the queue of an instance. `holds`: it states that requests run under a lease of an earlier agent, and gets another.
    pub fn connect(&mut self, now: Time, id: InstanceId, holds: bool) {
        self.now = self.now.max(now);
        self.is_changed = true;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let has_failed = self.now < entry.failed_until;
        (entry.lease, entry.is_idle) = if holds && !has_failed {
            (Lease::Stated, false)
        } else {
            (Lease::Free, true)
        };
        if !std::mem::replace(&mut entry.has_queue, true)
            && let Some(at) = self.slots.get_mut(&entry.about.slot)
        {
            at.queues += 1;
        }
    }

    /// Disconnects the queue of an instance: its head is withdrawn, and its lease ends.
    pub fn disconnect(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        self.is_changed = true;
        self.withdraw(id);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        entry.lease = Lease::Free;
        if std::mem::replace(&mut entry.has_queue, false)
            && let Some(at) = self.slots.get_mut(&entry.about.slot)
        {
            at.queues -= 1;
        }
    }

    /// Takes the head of an instance's queue, which replaces an earlier one. From a queue with a lease, which dispatches by itself, it means that it has work
    /// again.
    pub fn head(&mut self, now: Time, id: InstanceId, demand: Demand) {
        self.now = self.now.max(now);
        self.is_changed = true;
        let before = self.instances.get(&id);
        let (is_next, since) =
            before.map_or((false, Time::NEVER), |it| (it.is_next, it.waits_since));
        self.withdraw(id);
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        if demand.waiting == 0 {
            return;
        }
        entry.turn = None;
        let function = entry.about.function;
        if matches!(entry.lease, Lease::Held { .. } | Lease::Stated) {
            (entry.is_idle, entry.used_at) = (false, now);
        } else if let Ok(ticket) =
            self.queue
                .arrive(now, function, RequestId(u64::from(id.0)), demand.deadline)
        {
            // It replaces an earlier one.
            (entry.is_next, entry.waits_since) = (is_next, since.min(now));
            entry.head = Some((ticket, demand));
        }
        if demand.estimate > Span::ZERO {
            // Queues measure executions under leases, whose models are there.
            self.executed(id, demand.estimate);
        }
    }

    /// Records that nothing of an instance's queue runs. `ends`: the queue answers a recall, and starts nothing more.
    pub fn idle(&mut self, now: Time, id: InstanceId, ends: bool) {
        self.now = self.now.max(now);
        self.is_changed = true;
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        match entry.lease {
            Lease::Held { .. } | Lease::Stated => {
                (entry.is_idle, entry.used_at) = (true, now);
            }
            Lease::Recalled { since } if ends => {
                // What waits for memory ends only once it has that.
                if !entry.is_idle && entry.claim.is_none() {
                    let execution = entry.expected_execution();
                    entry.drains.record(now.since(since), execution);
                }
                (entry.lease, entry.is_idle, entry.used_at) = (Lease::Ended, true, now);
            }
            Lease::Recalled { .. } | Lease::Ended | Lease::Free => {}
        }
    }

    /// Records since when the processes of an instance have computed nothing and waited for nothing; `None`: they do. It matters for those that
    /// [`SharedLeases::watched`] returns.
    pub fn quiet(&mut self, now: Time, id: InstanceId, since: Option<Time>) {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        if since.is_none() && !entry.has_queue {
            entry.used_at = now;
        }
        let is_recalled = matches!(entry.lease, Lease::Recalled { .. });
        let matters = !entry.has_queue || is_recalled || entry.turn.is_some();
        let before = std::mem::replace(&mut entry.quiet_since, since);
        self.is_changed |= matters && before != since;
    }

    /// Takes the outcomes that an instance's queue has counted over its window: `in_time` of `requests`. Impossible counts are ignored.
    pub fn outcomes(&mut self, now: Time, id: InstanceId, requests: u64, in_time: u64) {
        self.now = self.now.max(now);
        if in_time > requests || requests > u64::from(u32::MAX) {
            return;
        }
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let before = std::mem::replace(&mut entry.outcomes, (requests, in_time));
        let function = entry.about.function;
        let own = self.functions.get(&function).into_iter().flatten();
        let counts = own.filter_map(|id| self.instances.get(id));
        let sums = counts.fold((0, 0), |sums: (u64, u64), entry| {
            (sums.0 + entry.outcomes.0, sums.1 + entry.outcomes.1)
        });
        self.queue
            .observe(self.now, function, sums, news(before, (requests, in_time)));
    }

    /// Records the time for which one request of an instance has computed.
    pub fn executed(&mut self, id: InstanceId, execution: Span) {
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.execution = mean(entry.execution, execution, entry.executions == 0);
            entry.executions = entry.executions.saturating_add(1);
        }
    }

    /// Returns how long requests of an instance usually compute; `None` until enough have ended.
    #[must_use]
    pub fn usual_execution(&self, id: InstanceId) -> Option<Span> {
        let entry = self.instances.get(&id)?;
        (entry.executions >= EXECUTIONS_MIN).then_some(entry.execution)
    }

    /// Records that a process of an instance waits for its memory. It is to have it by `deadline`.
    pub fn park(&mut self, now: Time, id: InstanceId, deadline: Time) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id) {
            self.is_changed |= entry.parked.is_none();
            entry.parked.get_or_insert(deadline);
        }
    }

    /// Records that no process of an instance waits any more.
    pub fn unpark(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id) {
            self.is_changed |= entry.parked.take().is_some();
            entry.settle_next();
        }
    }

    /// Records that an instance's model has left its slot, or could not.
    pub fn evicted(&mut self, now: Time, id: InstanceId, has_left: bool) {
        self.now = self.now.max(now);
        self.is_changed = true;
        let retry_at = self.now.after(RETRY);
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        if entry.motion != Motion::Leaves {
            return;
        }
        entry.motion = Motion::Rests;
        if has_left {
            entry.location = Location::Host;
        } else {
            entry.retry_at = retry_at;
        }
    }

    /// Records that an instance's model has returned to its slot, or could not.
    pub fn restored(&mut self, now: Time, id: InstanceId, is_there: bool) {
        self.now = self.now.max(now);
        self.is_changed = true;
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let returned = match entry.motion {
            Motion::Returns { since, bytes } => Some((now.since(since), bytes)),
            Motion::Rests | Motion::Leaves => None,
        };
        if let Some((took, bytes)) = returned {
            entry.motion = Motion::Rests;
            if is_there {
                let is_first = entry.load == Span::ZERO || entry.loaded_bytes < entry.bytes / 2;
                entry.load = mean(entry.load, took, is_first);
                entry.loaded_bytes = bytes;
                self.load_rate.record(bytes, took);
            } else {
                (entry.turn, entry.retry_at) = (None, now.after(RETRY));
            }
        }
        if is_there && entry.motion == Motion::Rests {
            (entry.location, entry.used_at) = (Location::Device, now);
            if entry.turn.is_some() {
                self.begin_turn(id, false);
            }
        }
    }

    /// Records where the model of an instance is, as its process states it; it may have moved by an operator's order.
    pub fn located(&mut self, now: Time, id: InstanceId, location: Location) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id)
            && entry.motion == Motion::Rests
        {
            self.is_changed |= std::mem::replace(&mut entry.location, location) != location;
        }
    }

    /// Records that the processes of an instance have ended, and their memory with them. Its queue may still have a lease.
    pub fn lost(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        let now = self.now;
        let Some(entry) = self.instances.get_mut(&id) else {
            return;
        };
        let has_failed = entry.failed_until == Time::NEVER;
        self.is_changed |= has_failed || entry.needs_room() || entry.location != Location::Absent;
        (entry.parked, entry.claim, entry.bytes) = (None, None, 0);
        (entry.turn, entry.is_loading, entry.is_next) = (None, false, false);
        (entry.motion, entry.location) = (Motion::Rests, Location::Absent);
        if has_failed {
            entry.failed_until = now.after(RESTART_MAX);
        }
    }

    /// Sets whether the processes of an instance have failed, so that they compute no more until they have ended ([`crate::faults`]): its lease is recalled, and it
    /// gets none until the next process, or [`RESTART_MAX`] after the end of the failed ones.
    pub fn set_failed(&mut self, now: Time, id: InstanceId, has_failed: bool) {
        self.now = self.now.max(now);
        if let Some(entry) = self.instances.get_mut(&id) {
            let until = if has_failed { Time::NEVER } else { Time::ZERO };
            self.is_changed |= std::mem::replace(&mut entry.failed_until, until) != until;
        }
    }

    /// Records that what the model of an instance may have lacked when it refused to move has come: it is tried again after [`RETRY_SOON`].
    pub fn hasten(&mut self, now: Time, id: InstanceId) {
        self.now = self.now.max(now);
        self.is_changed = true;
        let soon = self.now.after(RETRY_SOON);
        if let Some(entry) = self.instances.get_mut(&id) {
            entry.retry_at = entry.retry_at.min(soon);
        }
    }
}
