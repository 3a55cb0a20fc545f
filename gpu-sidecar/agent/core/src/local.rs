//! A caller of the service with pages in its own memory, for processes in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::tokens::{ProcessId, Settings};
use protocol::page;

use crate::action::Action;
use crate::agent::Agent;
use crate::event::Event;
use crate::facts::Facts;

/// The two pages which the service shares with a process.
#[derive(Debug, Default)]
pub struct SharedPages {
    /// Page which the service writes.
    pub orders: page::Orders,
    /// Page which the process writes.
    pub facts: page::Facts,
}

/// A service with the pages of its processes. It reads facts and writes orders; everything else is left to its caller.
#[derive(Debug)]
pub struct LocalAgent {
    agent: Agent,
    pages: BTreeMap<ProcessId, (Arc<SharedPages>, u64)>,
    observed: Vec<ProcessId>,
    facts: Facts,
}

impl LocalAgent {
    /// Creates a service without slots.
    #[must_use]
    pub const fn new(tokens: Settings) -> Self {
        Self {
            agent: Agent::new(tokens),
            pages: BTreeMap::new(),
            observed: Vec::new(),
            facts: Facts {
                launches: 0,
                busy_since: 0,
                busy_ns: 0,
                ungated_ns: 0,
                bound_exceeded: 0,
                bytes_used: 0,
                bytes_fixed: 0,
                refused_allocations: 0,
                unknown_symbols: 0,
                inflight_us: 0,
                unmeasured: 0,
                parked: 0,
                last_error: 0,
                stretches: Vec::new(),
            },
        }
    }

    /// Returns the service.
    #[must_use]
    pub const fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Returns the pages of a process; `None` before [`Action::CreatePages`] and after [`Action::Forget`].
    #[must_use]
    pub fn pages(&self, process: ProcessId) -> Option<&Arc<SharedPages>> {
        self.pages.get(&process).map(|(pages, _)| pages)
    }

    /// Handles an event with the facts which it needs, and appends the actions that follow. Those which concern pages are carried
    /// out already.
    pub fn handle(&mut self, now: u64, event: &Event, actions: &mut Vec<Action>) {
        let mut observed = std::mem::take(&mut self.observed);
        self.agent.observes(now, event, &mut observed);
        for process in observed.drain(..) {
            if let Some((pages, seen)) = self.pages.get_mut(&process) {
                let mut facts = std::mem::take(&mut self.facts);
                facts.read(&pages.facts, seen);
                let event = Event::Facts { process, facts };
                self.agent.handle(now, &event, actions);
                if let Event::Facts { facts, .. } = event {
                    self.facts = facts;
                }
            }
        }
        self.observed = observed;
        let first = actions.len();
        self.agent.handle(now, event, actions);
        for action in &actions[first..] {
            match action {
                Action::CreatePages { process, pages } => {
                    let shared = SharedPages::default();
                    pages.write(&shared.orders, &shared.facts);
                    self.pages.insert(*process, (Arc::new(shared), 0));
                }
                Action::Order { process, order } => {
                    if let Some((pages, _)) = self.pages.get(process) {
                        let _word = order.write(&pages.orders);
                    }
                }
                Action::Forget(process) => {
                    self.pages.remove(process);
                }
                _ => {}
            }
        }
    }
}
