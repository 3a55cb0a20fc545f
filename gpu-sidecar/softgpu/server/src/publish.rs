//! Completions from the timeline back to the clients.

use device::machine::EventId;
use device::{Span, Time};
use rustix::thread::futex;
use softgpu_wire::clock;
use softgpu_wire::page::{Awaited, Completion, DROPPED};

use crate::client::{ClientId, Recorded, Rings};
use crate::server::{RunningKind, Server, TICK};

impl Server {
    /// Advances the timeline to its last event up to `horizon`. It does not advance to `horizon` itself: a late command
    /// issued after the last event can then still start at its own time.
    pub(crate) fn advance_up_to(&mut self, horizon: Time) {
        while let Some(next) = self.machine.next().filter(|next| *next <= horizon) {
            self.advance(next);
        }
    }

    /// Advances the timeline to the present. For requests over a socket, which take effect now.
    pub(crate) fn advance_to_now(&mut self) {
        let now = clock::now();
        self.advance_up_to(now);
        self.advance(now);
    }

    /// Advances the timeline and publishes what has ended and which host functions may run.
    fn advance(&mut self, to: Time) {
        let mut done = std::mem::take(&mut self.done);
        self.machine.advance(to, &mut done);
        for done in done.drain(..) {
            self.end(done.command, done.ended);
        }
        self.done = done;
        self.publish_host_turns();
    }

    /// Publishes the host functions that may run.
    fn publish_host_turns(&mut self) {
        for turn in self.machine.take_host_turns() {
            let Some(running) = self.running.get(&turn.work.command) else {
                continue;
            };
            let (client, token) = (running.client, running.token);
            let completion = Completion {
                token: token.map_or(0, |token| token.0),
                value: turn.work.command,
                turn: u64::from(turn.work.node) + 1,
            };
            if let Ok(rings) = self.rings(client) {
                rings.complete(completion);
            }
        }
    }

    /// Publishes the end of a command.
    fn end(&mut self, command: u64, at: Time) {
        let Some(running) = self.running.remove(&command) else {
            return;
        };
        let id = running.client;
        let mut value = 0;
        let is_plain = matches!(running.kind, RunningKind::Plain);
        match running.kind {
            RunningKind::Plain => {}
            RunningKind::Record {
                event,
                id: record,
                number,
            } => self.happened(id, event, record, number, at),
            RunningKind::SharedRecord { event, number } => self.shared_happened(event, number, at),
            RunningKind::SharedWait { records } => value = records,
            RunningKind::Checkpoint => {
                self.checkpoint_copied(id);
                return;
            }
        }
        let Ok(rings) = self.rings(id) else {
            return;
        };
        rings.retire(running.slot, at);
        if let Some(token) = running.token {
            let completion = Completion {
                token: token.0,
                value,
                turn: 0,
            };
            match is_plain {
                true => rings.complete_effect(completion, at),
                // What other processes wait for.
                false => rings.complete(completion),
            }
        }
        // Last, because a client that sees the count takes all earlier results as published.
        rings.publish(running.slot);
    }

    /// Publishes a record of a client's event, which may be shared between processes by now.
    fn happened(&mut self, id: ClientId, slot: u32, record: EventId, number: u64, at: Time) {
        let Ok(rings) = self.rings(id) else {
            return;
        };
        let shared = rings
            .events
            .get(&slot)
            .filter(|event| event.id == record)
            .and_then(|event| event.shared);
        match shared {
            Some(shared) => self.shared_happened(shared, number, at),
            None => rings.event_occurred(slot, Some(record), number, at),
        }
    }

    /// Drops the commands of the contexts selected by `is_meant`: they count as ended, without effect.
    pub(crate) fn drop_commands(&mut self, id: ClientId, is_meant: impl Fn(u32) -> bool) {
        let now = self.machine.now();
        let mut dropped: Vec<_> = self
            .running
            .extract_if(|_, running| running.client == id && is_meant(running.context))
            .collect();
        // In the order of their calls, which is also the order of callbacks.
        dropped.sort_unstable_by_key(|(command, _)| *command);
        for (_, running) in dropped {
            match running.kind {
                RunningKind::Record {
                    event,
                    id: record,
                    number,
                } => self.happened(id, event, record, number, now),
                RunningKind::SharedRecord { event, number } => {
                    self.shared_happened(event, number, now)
                }
                RunningKind::Plain | RunningKind::SharedWait { .. } | RunningKind::Checkpoint => {}
            }
            let Ok(rings) = self.rings(id) else {
                return;
            };
            if let Some(token) = running.token {
                rings.complete(Completion {
                    token: token.0,
                    value: 0,
                    turn: DROPPED,
                });
            }
            rings.retire(running.slot, now);
            rings.publish(running.slot);
        }
    }

    /// Wakes all threads whose condition is reached.
    pub(crate) fn publish_all(&mut self) {
        let now = clock::now();
        let lag = &mut self.statistics.lag;
        for id in &self.busy {
            let client = self.clients.get_mut(id);
            let Some(rings) = client.and_then(|client| client.rings.as_mut()) else {
                continue;
            };
            rings.flush_held_back();
            let mut woken = false;
            for place in places(rings.page.waiting()) {
                let Some(awaited) = rings.page.awaited(place) else {
                    continue;
                };
                let Some(due) = due(rings, awaited) else {
                    continue;
                };
                // Before the place is another wait's.
                let waits_since = rings.page.waits_since(place);
                if let Some(word) = rings.page.grant(place) {
                    if let Some(due) = due.at {
                        // A thread that began to wait later was not delayed before.
                        lag.add(now.since(due.max(waits_since)));
                    }
                    let _woken = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
                    woken = true;
                }
            }
            // A woken thread handles the completions; otherwise the client's worker does, of effects not after each command of many that follow each
            // other.
            let is_full = !rings.held_back.is_empty();
            let is_due =
                |since: Time| is_full || rings.in_flight() == 0 || now.since(since) >= TICK;
            if woken || rings.has_news || rings.effects_since.is_some_and(is_due) {
                (rings.has_news, rings.effects_since) = (false, None);
                if !woken {
                    let bell = rings.page.completions_bell();
                    let _woken = futex::wake(bell, futex::Flags::empty(), 1);
                }
            }
        }
    }

    /// Returns the earliest time at which any awaited condition can be reached.
    pub(crate) fn earliest_awaited(&self) -> Option<Time> {
        let mut earliest = None;
        let next = self.machine.next();
        for id in &self.busy {
            let client = self.clients.get(id);
            let Some(rings) = client.and_then(|client| client.rings.as_ref()) else {
                continue;
            };
            for place in places(rings.page.waiting()) {
                let Some(awaited) = rings.page.awaited(place) else {
                    continue;
                };
                let lower = match awaited {
                    Awaited::Stream(slot, target) => self.earliest_of(rings, slot.0, target),
                    Awaited::Event(slot, target) => self.earliest_record(rings, slot.0, target),
                    Awaited::Retired(_) | Awaited::Taken(_) => Time::ZERO,
                };
                let at = next.map(|next| next.max(lower));
                earliest = match (earliest, at) {
                    (Some(one), Some(other)) => Some(Time::min(one, other)),
                    (one, other) => one.or(other),
                };
            }
            if !rings.held_back.is_empty() {
                let soon = clock::now().after(Span(200_000));
                earliest = Some(earliest.map_or(soon, |at: Time| at.min(soon)));
            }
        }
        earliest
    }

    /// Returns the earliest time at which a record of an event can have occurred. Of an earlier record than the last, and of one by another process, the
    /// stream is not known: the next thing on the timeline may be it.
    fn earliest_record(&self, rings: &Rings, slot: u32, number: u64) -> Time {
        let event = rings.events.get(&slot);
        let own = event.filter(|event| event.latest == number && event.shared.is_none());
        let recorded = own.and_then(|event| event.recorded);
        let stream = |place: &Recorded| rings.streams.get(place.slot as usize).copied().flatten();
        recorded
            .filter(|place| stream(place).is_some_and(|stream| stream.id == place.stream))
            .map_or(Time::ZERO, |place| {
                self.earliest_of(rings, place.slot, place.count)
            })
    }

    /// Returns the earliest time at which a stream can have ended `target` commands.
    fn earliest_of(&self, rings: &Rings, slot: u32, target: u64) -> Time {
        let stream = rings.streams.get(slot as usize).copied().flatten();
        let Some(stream) = stream else {
            return Time::ZERO;
        };
        let done = rings.ended(slot);
        let queued = self.machine.queued(stream.id).unwrap_or(0);
        // Without later commands the bound is closer: it knows the times of their calls.
        let earliest = match done + queued > target {
            true => {
                let count = target.saturating_sub(done);
                self.machine.earliest_end_of(stream.id, count)
            }
            false => self.machine.earliest_end(stream.id),
        };
        earliest.unwrap_or(Time::ZERO)
    }
}

/// Condition that is reached: since when, if known.
struct Due {
    at: Option<Time>,
}

fn due(rings: &Rings, awaited: Awaited) -> Option<Due> {
    let (is_there, at) = match awaited {
        Awaited::Stream(slot, target) => {
            let (done, at) = rings.done.get(slot.0 as usize).copied().unwrap_or_default();
            (done >= target, (done == target).then_some(at))
        }
        Awaited::Event(slot, target) => {
            let (record, at) = rings.page.event(slot);
            (record >= target, (record == target).then_some(at))
        }
        Awaited::Retired(target) => (rings.retired >= target, None),
        Awaited::Taken(target) => (rings.head >= target, None),
    };
    is_there.then_some(Due { at })
}

/// Returns the indices of the set bits.
fn places(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let place = bits.trailing_zeros();
        bits &= bits - 1;
        Some(place)
    })
}
