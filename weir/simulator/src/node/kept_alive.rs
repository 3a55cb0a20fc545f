//! Processes that are started and stopped by the history of their functions (M2.21).

use policy::Span;
use policy::pool::FunctionId;

use super::hardware::millis;
use super::run::{Event, Run};
use super::state::ProcessState;

impl Run<'_> {
    /// Starts a process for a function without one, if a slot has room.
    pub(super) fn begin_process(&mut self, node: u32, local: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let entry = &mut own.locals[local as usize];
        if !matches!(entry.alive, ProcessState::Cold) {
            return;
        }
        let id = FunctionId(local);
        let room = own.pool.settle(id, self.settings.filling);
        own.queue.hold(now, id);
        let Some(slot) = room else { return };
        entry.alive = ProcessState::Starting { slot };
        let function = &mut self.functions[entry.function as usize];
        let sigma = self.settings.noise.cold_start;
        let factor = function.noise.log_normal(0.0, sigma);
        let takes = millis(self.hardware.models[function.model].cold_start_ms * factor);
        self.agenda
            .add(now.after(takes), Event::Ready { node, local });
    }

    /// Schedules the end of a function's process, and its next start, when its last request has left.
    pub(super) fn idles(&mut self, node: u32, local: u32) {
        let now = self.agenda.now();
        let history = &mut self.nodes[node as usize].histories[local as usize];
        history.idle_since = Some(now);
        history.version += 1;
        let (windows, version) = (history.histogram.windows(), history.version);
        let expires = Event::Expires {
            node,
            local,
            version,
        };
        if windows.load_after > Span::ZERO {
            self.agenda.add(now, expires);
            let expected = Event::Expected {
                node,
                local,
                version,
            };
            self.agenda.add(now.after(windows.load_after), expected);
        } else {
            self.agenda.add(now.after(windows.unload_after), expires);
        }
    }

    pub(super) fn expire(&mut self, node: u32, local: u32, version: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let history = &own.histories[local as usize];
        let ProcessState::Warm { slot } = own.locals[local as usize].alive else {
            return;
        };
        if history.version != version || history.present > 0 {
            return;
        }
        self.evicted.clear();
        if own.pool.unload(FunctionId(local), slot, &mut self.evicted) {
            own.locals[local as usize].alive = ProcessState::Cold;
            own.queue.hold(now, FunctionId(local));
            // Functions that wait for room, in their order.
            let waits = (0..).zip(&own.locals).filter(|(at, other)| {
                matches!(other.alive, ProcessState::Cold) && own.queue.waiting(FunctionId(*at)) > 0
            });
            let next: Vec<u32> = waits.map(|(at, _)| at).collect();
            for other in next {
                self.begin_process(node, other);
            }
        }
    }
}
