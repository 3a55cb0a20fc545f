//! Granting of slots to requests, loading and eviction of models, and release of slots.

use policy::Span;
use policy::pool::nodes::NodeId;
use policy::pool::queue::Ticket;
use policy::pool::slots::{Binding, Decision, Source, WaitReason};
use policy::pool::{FunctionId, SlotId};

use super::hardware::nanos;
use super::memory::{MemoryRule, Prepared};
use super::outcome::Occupancy;
use super::run::{Event, Run, scaled};
use super::state::Request;

impl Run<'_> {
    /// Adds the predicted ends of a node's loads to the agenda.
    pub(super) fn schedule_ends(&mut self, node: u32) {
        for end in self.ends.drain(..) {
            self.agenda.add(end.at, Event::Loaded { node, end });
        }
    }

    /// Handles the end of a load: schedules the end of the request for which the model was loaded.
    pub(super) fn loaded(&mut self, node: u32, slot: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(request) = &mut own.running[slot as usize] else {
            return;
        };
        request.loaded = now;
        let model = self.functions[request.function as usize].model;
        let progress = own.links.progress(slot);
        let at = self.swaps.finished(model, request.executed, now, progress);
        self.evicted.clear();
        own.pool.loaded(now, SlotId(slot), &mut self.evicted);
        let (function, local) = (request.function, request.local);
        own.queue.set_estimate(
            now,
            FunctionId(local),
            self.functions[function as usize].execution,
        );
        self.agenda.add(at, Event::Finished { node, slot });
        self.note_evicted(node);
        self.release(node);
        // A copy that was locked may be evicted now.
        self.dispatch(node);
    }

    pub(super) fn release(&mut self, node: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        for function in own.held.drain(..) {
            own.queue.release(now, function);
        }
    }

    /// Counts evictions, and raises the estimates of functions that have no resident model left.
    pub(super) fn note_evicted(&mut self, node: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        for evicted in self.evicted.drain(..) {
            if now >= self.span.from {
                own.outcome.evictions += 1;
            }
            if own.pool.hosts(evicted.function).next().is_none() {
                let function = own.locals[evicted.function.0 as usize].function;
                let model = self.functions[function as usize].model;
                let estimate = self.swaps.alone(model);
                own.queue.set_estimate(now, evicted.function, estimate);
            }
        }
    }

    pub(super) fn finish(&mut self, node: u32, slot: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(request) = own.running[slot as usize].take() else {
            return;
        };
        self.evicted.clear();
        own.pool.finished(now, SlotId(slot), &mut self.evicted);
        let latency = now.after(self.settings.hops.back).since(request.arrival);
        let in_time = latency <= request.objective;
        own.queue.completed(now, FunctionId(request.local), in_time);
        self.cluster.done(NodeId(node), request.work);
        let mut idles = false;
        if let Some(history) = own.histories.get_mut(request.local as usize) {
            history.present -= 1;
            idles = history.present == 0;
        }
        let from = self.span.from;
        if now > from {
            let outcome = &mut own.outcome;
            outcome.busy[slot as usize].0 += now.since(request.since.max(from)).0;
            if request.loads {
                let loading = request.loaded.since(request.since.max(from));
                outcome.loading[slot as usize].0 += loading.0;
            }
        }
        if request.arrival >= from {
            own.outcome.latencies[slot as usize].record(latency);
            let model = self.functions[request.function as usize].model;
            self.outcome.models[model].record(latency);
            if self.settings.memory != MemoryRule::Bytes {
                self.outcome
                    .allocation
                    .record(part_of(request.waited, request.work));
            }
            let part = part_of(latency, request.objective);
            self.outcome.normalised.record(part);
            let counted = &mut self.outcome.functions[request.function as usize];
            counted.requests += 1;
            counted.late += u64::from(!in_time);
            counted.loads += u64::from(request.loads);
        }
        if now > from && self.outcome.taken.len() < self.keep {
            let slots = u32::try_from(own.running.len()).unwrap_or(u32::MAX);
            self.outcome.taken.push(Occupancy {
                slot: node * slots + slot,
                function: request.function,
                from: request.since,
                loaded: request.loaded,
                execution: request.execution,
                to: now,
            });
        }
        self.functions[request.function as usize]
            .bill
            .used(now.since(request.since));
        self.leave();
        self.note_evicted(node);
        self.release(node);
        if idles {
            self.idles(node, request.local);
        }
    }

    /// Grants free slots to requests in the order of the queue, and has models loaded ahead for others.
    pub(super) fn dispatch(&mut self, node: u32) {
        self.grant(node);
        if self.settings.loads_ahead {
            self.load_ahead(node);
        }
    }

    fn grant(&mut self, node: u32) {
        let now = self.agenda.now();
        loop {
            let own = &mut self.nodes[node as usize];
            if own.pool.free_slots() == 0 {
                return;
            }
            let Some((head, _)) = own.queue.next(now) else {
                return;
            };
            let random = split_mix(&mut own.random);
            self.evicted.clear();
            match own
                .pool
                .schedule(now, head.function, random, &mut self.evicted)
            {
                Decision::Run(given) => {
                    self.note_evicted(node);
                    self.start(node, head.ticket, given.slot, given.source);
                }
                Decision::Wait { reason, until } => {
                    if let Some(until) = until {
                        self.agenda.add(until, Event::Retry { node });
                    }
                    if reason == WaitReason::NoSlotFree
                        && self.settings.slots.binding == Binding::Pool
                    {
                        return;
                    }
                    // Other functions do not have to wait for the same slot.
                    let own = &mut self.nodes[node as usize];
                    own.queue.hold(now, head.function);
                    own.held.push(head.function);
                }
            }
        }
    }

    pub(super) fn start(&mut self, node: u32, ticket: Ticket, slot: SlotId, source: Source) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(head) = own.queue.take(now, ticket) else {
            return;
        };
        let is_on_its_way = own.is_on_its_way(slot.0, head.function);
        let global = own.locals[head.function.0 as usize].function;
        let function = &mut self.functions[global as usize];
        let noise = &self.settings.noise;
        let factor = (1.0 + noise.execution * function.noise.normal()).max(0.5);
        let work = if own.stated.is_empty() {
            function.execution
        } else {
            own.stated
                .remove(&head.request)
                .unwrap_or(function.execution)
        };
        let execution = scaled(work, factor);
        let objective = head
            .deadline
            .after(self.settings.hops.back)
            .since(head.arrival.before(self.settings.hops.there));
        own.running[slot.0 as usize] = Some(Request {
            function: global,
            local: head.function.0,
            work,
            arrival: head.arrival.before(self.settings.hops.there),
            objective,
            since: now,
            execution,
            executed: now.after(execution),
            loads: source != Source::Resident,
            waited: Span::ZERO,
            loaded: now,
        });
        let counts = now >= self.span.from;
        debug_assert!(self.ends.is_empty(), "predicted ends must be in the agenda");
        if is_on_its_way {
            // It computes as the model arrives, as with a load of its own.
            if let Some(request) = &mut own.running[slot.0 as usize] {
                request.loads = true;
            }
            return;
        }
        match source {
            Source::Resident => {
                own.outcome.resident += u64::from(counts);
                let slot = slot.0;
                self.agenda
                    .add(now.after(execution), Event::Finished { node, slot });
                return;
            }
            Source::Host => own.outcome.host_loads += u64::from(counts),
            Source::Slot(_) => own.outcome.link_loads += u64::from(counts),
        }
        let of_host = self.hardware.link.host_gb_per_s * 1e9;
        let rate = match source {
            Source::Slot(other) => self.hardware.link_rate(slot, other).unwrap_or(of_host),
            Source::Host | Source::Resident => of_host,
        };
        let factor = (1.0 + noise.transfer * function.noise.normal()).max(0.5);
        let prepared = Prepared {
            takes: nanos(self.swaps.takes_ns(function.model, rate) * factor),
            from_host: source == Source::Host,
        };
        self.copy(node, slot.0, prepared);
    }
}

/// Returns the ratio of two spans, with 1 s for a ratio of one.
fn part_of(one: Span, other: Span) -> Span {
    let part = u128::from(one.0) * 1_000_000_000 / u128::from(other.0.max(1));
    Span(u64::try_from(part).unwrap_or(u64::MAX))
}

/// Returns the next number of a sequence (`SplitMix64`).
const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
