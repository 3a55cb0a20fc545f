//! The agent's thread: the events that it reads, its wake-ups, and the actions which it carries out.

use std::collections::VecDeque;

use agent_core::{Action, Event as AgentEvent, Order};
use policy::tokens::ProcessId;
use protocol::message::{FromAgent, FromProcess, Report};

use crate::checks::Failure;
use crate::node::Delivery;
use crate::plan::Fault;
use crate::world::{Event, Thread, US, World};

impl World {
    pub(crate) fn agent_learns(
        &mut self,
        generation: u64,
        event: AgentEvent,
    ) -> Result<(), Failure> {
        if generation != self.node.generation || self.node.agent.is_none() {
            return Ok(());
        }
        if self.node.hangs {
            self.node.unread.push_back(event);
            return Ok(());
        }
        let mut follow_ups = VecDeque::from([event]);
        while let Some(event) = follow_ups.pop_front() {
            let now = self.agents_time();
            match &event {
                AgentEvent::SlotLost { slot, .. } => {
                    self.node.is_known_lost[slot.0 as usize] = true;
                    self.note_loss(slot.0 as usize);
                }
                AgentEvent::SlotAdded(slot) => {
                    self.node.is_known_lost[slot.key.0 as usize] = false;
                }
                AgentEvent::PodAdded { pod, .. } => {
                    let own = &mut self.node.pods[pod.key.0 as usize];
                    own.served = (pod.serial, self.now);
                }
                AgentEvent::Message {
                    process,
                    message: FromProcess::Report(Report::Fatal(_)),
                } => {
                    if let Some(connection) = self.node.connection(*process) {
                        let process = self.node.connections[connection].process;
                        self.checks.faulted.insert(process);
                    }
                }
                _ => {}
            }
            let Some(agent) = &mut self.node.agent else {
                return Ok(());
            };
            let mut actions = Vec::new();
            agent.handle(now, &event, &mut actions);
            for action in actions {
                self.carry_out(action, &mut follow_ups)?;
            }
            self.check_agent()?;
        }
        self.schedule_wake();
        Ok(())
    }

    /// Lets a hung agent go on, which finds everything that has happened meanwhile.
    pub(crate) fn continue_agent(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.node.hangs) {
            return Ok(());
        }
        let generation = self.node.generation;
        for event in std::mem::take(&mut self.node.unread) {
            self.agent_learns(generation, event)?;
        }
        for pod in 0..self.node.pods.len() {
            for _waiting in 0..self.node.pods[pod].backlog.len() {
                self.after(US, Event::Accept { pod, generation });
            }
        }
        self.node.wakes_at = u64::MAX;
        self.schedule_wake();
        Ok(())
    }

    fn agents_time(&self) -> u64 {
        match self.node.clock {
            Some((shown, until)) if self.now < until => shown,
            _ => self.now,
        }
    }

    fn schedule_wake(&mut self) {
        let Some(agent) = &self.node.agent else {
            return;
        };
        let Some(at) = agent.agent().next_wake() else {
            return;
        };
        // The thread sleeps for the time until then by its own clock.
        let at = self.now + at.saturating_sub(self.agents_time());
        let at = at.max(self.now + 1);
        if at < self.node.wakes_at || self.node.wakes_at <= self.now {
            self.node.wakes_at = at;
            let generation = self.node.generation;
            // Timers are late by a little.
            let late = self.random.below(20 * US);
            self.at(at + late, Event::Wake { generation });
        }
    }

    pub(crate) fn agent_wakes(&mut self, generation: u64) -> Result<(), Failure> {
        if generation != self.node.generation || self.node.agent.is_none() {
            return Ok(());
        }
        if self.node.hangs {
            return Ok(());
        }
        let now = self.agents_time();
        let Some(agent) = &self.node.agent else {
            return Ok(());
        };
        if agent.agent().next_wake().is_some_and(|at| at <= now) {
            self.agent_learns(generation, AgentEvent::Wake)?;
            self.check_wakes(now)?;
        } else {
            self.schedule_wake();
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        action: Action,
        follow_ups: &mut VecDeque<AgentEvent>,
    ) -> Result<(), Failure> {
        match action {
            Action::Admit(number) => {
                let Some(connection) = self.node.arriving.take() else {
                    return Err(Failure::new("pairs", "a connection is admitted twice"));
                };
                self.node.connections[connection].number = Some(number);
                let before = self.node.by_number.insert(number, connection);
                if before.is_some() {
                    return Err(Failure::new("pairs", "a number is used twice"));
                }
                let early = std::mem::take(&mut self.node.connections[connection].early);
                for delivery in early {
                    self.convey(connection, 0, delivery);
                }
            }
            Action::Accept { pod, accepts } => {
                let pod = pod.0 as usize;
                self.node.pods[pod].accepts = accepts;
                if accepts {
                    let generation = self.node.generation;
                    for _waiting in 0..self.node.pods[pod].backlog.len() {
                        self.after(US, Event::Accept { pod, generation });
                    }
                }
            }
            Action::Send { process, message } => {
                let is_probe = message == FromAgent::Probe;
                if is_probe && let Some(connection) = self.node.connection(process) {
                    let process = self.node.connections[connection].process;
                    let revoked = self.revoked_unresponsive(self.processes[process].pod);
                    let own = &mut self.processes[process];
                    own.revoked_at_probe.get_or_insert(revoked);
                }
                let is_unsent = self.plan.has(Fault::Unsent)
                    && !self.is_healing
                    && matches!(message, FromAgent::Probe | FromAgent::Relinquish)
                    && self.random.below(3) == 0;
                if is_unsent || !self.convey_to_process(process, message, false) {
                    follow_ups.push_back(AgentEvent::NotSent { process, is_probe });
                }
            }
            Action::CreatePages { process, pages } => {
                self.checks.adopt_claim(process, pages.memory_claim);
                if let Some(connection) = self.node.connection(process) {
                    self.checks.greet(self.node.connections[connection].process);
                }
                if !self.convey_to_process(process, FromAgent::Pages, true) {
                    follow_ups.push_back(AgentEvent::PagesFailed {
                        process,
                        text: "the connection has ended".to_owned(),
                    });
                }
            }
            Action::Order { process, order } => self.ordered(process, order)?,
            Action::Disconnect(number) => {
                if let Some(connection) = self.node.connection(number) {
                    self.close_agents_end(connection);
                }
            }
            Action::Forget(number) => {
                let Some(connection) = self.node.by_number.remove(&number) else {
                    return Err(Failure::new("pairs", "an unknown process is forgotten"));
                };
                self.close_agents_end(connection);
            }
            Action::Kill(number) => {
                if let Some(connection) = self.node.connection(number) {
                    let process = self.node.connections[connection].process;
                    self.check_kill(process)?;
                    self.end_process(process)?;
                }
            }
            Action::Examine(number) => {
                if let Some(connection) = self.node.connection(number) {
                    let process = self.node.connections[connection].process;
                    if self.processes[process].is_stopped {
                        follow_ups.push_back(AgentEvent::Stopped(number));
                    }
                }
            }
            Action::ExamineSurvivor { pod, record } => {
                let is_alive = self.processes.iter().any(|process| {
                    process.is_alive && process.pid == record.pid && process.start == record.start
                });
                if !is_alive {
                    follow_ups.push_back(AgentEvent::SurvivorEnded { pod, record });
                }
            }
            Action::Roster { pod, records } => {
                self.node.pods[pod.0 as usize].roster = records;
            }
            Action::Publish => self.check_figures()?,
            Action::Log {
                level: agent_core::Level::Error,
                text,
                ..
            } => return Err(Failure::new("log", &text)),
            Action::Answer { number, answer } => self.answered(number, answer)?,
            Action::SendWindow {
                process,
                bytes,
                is_pinned,
                ..
            } => {
                let is_unsent =
                    self.plan.has(Fault::Unsent) && !self.is_healing && self.random.below(3) == 0;
                let message = FromAgent::HostWindow { bytes, is_pinned };
                if is_unsent || !self.convey_to_process(process, message, false) {
                    follow_ups.push_back(AgentEvent::WindowFailed {
                        process,
                        bytes,
                        is_pinned,
                    });
                }
            }
            // Queues do not connect here.
            Action::AdmitQueue(pod) => self.admit_queue(pod),
            Action::SendQueue { pod, message } => {
                self.check_lease(pod, &message)?;
                self.send_to_queue(pod, Some(message));
            }
            Action::DisconnectQueue(pod) => self.close_queue(pod),
            Action::Log { .. } | Action::Record { .. } => {}
        }
        Ok(())
    }

    fn convey_to_process(
        &mut self,
        number: ProcessId,
        message: FromAgent,
        carries_pages: bool,
    ) -> bool {
        let Some(connection) = self.node.connection(number) else {
            return false;
        };
        let own = &self.node.connections[connection];
        if !own.is_open[0] || !own.is_open[1] {
            return false;
        }
        let agent = self.node.agent.as_ref();
        let pages = agent.and_then(|agent| agent.pages(number)).cloned();
        let pages = pages.filter(|_| carries_pages);
        self.convey(connection, 1, Delivery::ToProcess(message, pages));
        true
    }

    /// Wakes the threads which wait for a word that was written.
    fn ordered(&mut self, number: ProcessId, order: Order) -> Result<(), Failure> {
        let Some(connection) = self.node.connection(number) else {
            return Err(Failure::new("pairs", "an order to an unknown process"));
        };
        let process = self.node.connections[connection].process;
        self.note(|| format!("process {process} is ordered {order:?}"));
        self.check_order(process, number, order)?;
        let thread = match order {
            Order::Open { .. } | Order::Claim { .. } => Thread::Program,
            Order::Shut { .. }
            | Order::Contended {
                contended: true, ..
            } => Thread::Watch,
            Order::Move { .. } | Order::Seal { .. } | Order::Pinned { .. } => Thread::Mover,
            _ => return Ok(()),
        };
        let is_in_use = self.node.agent.as_ref().is_some_and(|agent| {
            let pages = agent.pages(number);
            pages.is_some_and(|pages| std::sync::Arc::ptr_eq(pages, self.processes[process].page()))
        });
        if is_in_use {
            self.wake(process, thread);
        }
        Ok(())
    }
}
