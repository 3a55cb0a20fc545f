//! Loads ahead: models of waiting requests are loaded beside what computes, as [`policy::pool::ahead`] decides.

use policy::pool::ahead::{self, Candidate};
use policy::pool::slots::Binding;
use policy::pool::{FunctionId, SlotId};

use super::hardware::nanos;
use super::memory::MemoryRule;
use super::run::{Event, Run};
use super::settings::Hosting;
use super::state::Node;

/// Number of waiting requests, from the first, whose models may be loaded ahead.
const LOOKED_AT: usize = 16;

/// Model loaded ahead of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// Local number of the function on the node.
    local: u32,
    /// Whether it is still on its way.
    moves: bool,
}

impl Node {
    /// Returns whether the model of a function is on its way to a slot ahead of its request.
    pub(super) fn is_on_its_way(&self, slot: u32, function: FunctionId) -> bool {
        let ahead = self.ahead[slot as usize];
        ahead.is_some_and(|ahead| ahead.moves && ahead.local == function.0)
    }
}

impl Run<'_> {
    /// Begins loads for the first waiting requests whose models are on no slot.
    pub(super) fn load_ahead(&mut self, node: u32) {
        let is_counted = self.settings.memory == MemoryRule::Bytes;
        if self.settings.hosting != Hosting::Swapped || !is_counted {
            return;
        }
        self.forget_ahead(node);
        let now = self.agenda.now();
        let mut looked_at = Vec::new();
        let own = &self.nodes[node as usize];
        let mut open = own.ahead.iter().filter(|ahead| ahead.is_none()).count();
        while open > 0 && looked_at.len() < LOOKED_AT {
            let own = &mut self.nodes[node as usize];
            let Some((head, _)) = own.queue.next(now) else {
                break;
            };
            own.queue.hold(now, head.function);
            looked_at.push(head.function);
            let bound = self.settings.slots.binding == Binding::Process;
            let among = match bound {
                true => own.pool.instances(head.function),
                false => u64::MAX >> (64 - own.running.len().min(64)),
            };
            let function = &self.functions[own.locals[head.function.0 as usize].function as usize];
            let of_pool = self.hardware.of_pool(function.model);
            let waiting = Candidate {
                function: head.function,
                bytes: of_pool.bytes,
                is_slowed: of_pool.heavy,
                among,
                latest: head.latest_start,
            };
            let may_leave = |_, other: FunctionId| own.queue.waiting(other) == 0;
            let chosen = ahead::choose(
                &own.pool,
                &waiting,
                |slot| own.ahead[slot.0 as usize].is_none(),
                |slot| {
                    own.running[slot.0 as usize].map_or(now, |request| request.executed.max(now))
                },
                may_leave,
            );
            if let Some(slot) = chosen {
                self.begin_ahead(node, slot, &waiting);
                open -= 1;
            }
        }
        let own = &mut self.nodes[node as usize];
        for function in looked_at {
            own.queue.release(now, function);
        }
    }

    fn begin_ahead(&mut self, node: u32, slot: SlotId, waiting: &Candidate) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(lane) = own.links.ahead(slot.0) else {
            return;
        };
        let queue = &own.queue;
        let may_leave = |other| queue.waiting(other) == 0;
        let (function, bytes) = (waiting.function, waiting.bytes);
        self.evicted.clear();
        if !own
            .pool
            .load_ahead(function, slot, bytes, may_leave, &mut self.evicted)
        {
            return;
        }
        own.ahead[slot.0 as usize] = Some(Ahead {
            local: function.0,
            moves: true,
        });
        let global = own.locals[function.0 as usize].function as usize;
        let entry = &mut self.functions[global];
        own.queue.set_estimate(now, function, entry.execution);
        if now >= self.span.from {
            own.outcome.host_loads += 1;
        }
        let rate = self.hardware.link.host_gb_per_s * 1e9;
        let factor = 1.0 + self.settings.noise.transfer * entry.noise.normal();
        let takes = nanos(self.swaps.takes_ns(entry.model, rate) * factor.max(0.5));
        own.links.from_host(now, lane, takes, &mut self.ends);
        self.schedule_ends(node);
        self.note_evicted(node);
    }

    /// Forgets models that were loaded ahead and have left, or whose requests have been served.
    fn forget_ahead(&mut self, node: u32) {
        let own = &mut self.nodes[node as usize];
        for (slot, ahead) in (0..).zip(&mut own.ahead) {
            let Some(Ahead { local, moves }) = *ahead else {
                continue;
            };
            let function = FunctionId(local);
            let is_there = own.pool.hosts(function).any(|host| host == SlotId(slot));
            let running = own.running[slot as usize];
            let has_begun = running.is_some_and(|request| request.local == local);
            if !moves && (has_begun || !is_there || own.queue.waiting(function) == 0) {
                *ahead = None;
                own.pool.forget_ahead(SlotId(slot));
            }
        }
    }

    /// Handles the end of a load ahead. A request that has begun meanwhile ends as if the model had been loaded for it.
    pub(super) fn loaded_ahead(&mut self, node: u32, slot: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(ahead) = &mut own.ahead[slot as usize] else {
            return;
        };
        ahead.moves = false;
        let local = ahead.local;
        own.pool.loaded_ahead(SlotId(slot), true, false);
        if let Some(request) = &mut own.running[slot as usize]
            && request.local == local
            && let Some(lane) = own.links.ahead(slot)
        {
            request.loaded = now;
            let model = self.functions[request.function as usize].model;
            let progress = own.links.progress(lane);
            let at = self.swaps.finished(model, request.executed, now, progress);
            self.agenda.add(at, Event::Finished { node, slot });
        }
        self.dispatch(node);
    }
}
