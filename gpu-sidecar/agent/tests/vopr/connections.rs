//! Connections between processes and the agent: what is sent travels for a while, in order.

use std::collections::VecDeque;

use agent_core::{Event as AgentEvent, Peer, PodKey};
use preload_state::link;
use protocol::message::FromProcess;

use crate::checks::Failure;
use crate::node::{Connection, Delivery};
use crate::plan::Fault;
use crate::world::{Event, World};

/// Number of connections which wait to be accepted.
const BACKLOG_MAX: usize = 128;

impl World {
    /// Returns the outcome of an attempt of a process to connect.
    pub(crate) fn connect(&mut self, process: usize) -> link::ConnectOutcome {
        let pod = self.processes[process].pod;
        self.close(process);
        if self.node.agent.is_none() || !self.node.pods[pod].listens {
            return link::ConnectOutcome::NoAgent;
        }
        if self.node.pods[pod].backlog.len() >= BACKLOG_MAX {
            return link::ConnectOutcome::Busy;
        }
        let number = self.node.connections.len();
        self.node.connections.push(Connection {
            process,
            is_open: [true; 2],
            number: None,
            generation: self.node.generation,
            last: [0; 2],
            early: VecDeque::new(),
        });
        self.node.pods[pod].backlog.push_back(number);
        self.processes[process].connection = Some(number);
        let (generation, delay) = (self.node.generation, self.delay());
        self.after(delay, Event::Accept { pod, generation });
        link::ConnectOutcome::Connected
    }

    /// Sends a message of a process. Returns `false` when the connection has ended.
    pub(crate) fn send(&mut self, process: usize, message: &FromProcess) -> bool {
        let Some(connection) = self.processes[process].connection else {
            return false;
        };
        if !self.node.connections[connection].is_open[1] {
            // The library shuts the connection down, and its thread notices the end.
            return false;
        }
        self.note(|| format!("process {process} sends {message:?}"));
        self.convey(connection, 0, Delivery::ToAgent(message.clone()));
        // A repeated greeting is refused, as it has to be.
        if self.plan.has(Fault::Doubled) && !self.is_healing && self.random.below(20) == 0 {
            self.convey(connection, 0, Delivery::ToAgent(message.clone()));
        }
        true
    }

    /// Lets something travel over a connection, after what was sent before in the same direction.
    pub(crate) fn convey(&mut self, connection: usize, direction: usize, delivery: Delivery) {
        let delay = self.delay();
        let last = &mut self.node.connections[connection].last[direction];
        let at = (self.now + delay).max(*last + 1);
        *last = at;
        self.at(
            at,
            Event::Deliver {
                connection,
                delivery,
            },
        );
    }

    /// Closes the process's end of its connection.
    pub(crate) fn close(&mut self, process: usize) {
        if let Some(connection) = self.processes[process].connection.take() {
            self.processes[process].inbox.clear();
            self.node.connections[connection].is_open[0] = false;
            self.convey(connection, 0, Delivery::ToAgentEnd);
        }
    }

    /// Closes the agent's end of a connection.
    pub(crate) fn close_agents_end(&mut self, connection: usize) {
        let own = &mut self.node.connections[connection];
        if std::mem::take(&mut own.is_open[1]) {
            self.convey(connection, 1, Delivery::ToProcessEnd);
        }
    }

    pub(crate) fn deliver(&mut self, connection: usize, delivery: Delivery) -> Result<(), Failure> {
        let own = &mut self.node.connections[connection];
        match delivery {
            Delivery::ToProcess(message, pages) => {
                let process = own.process;
                if self.processes[process].connection == Some(connection) {
                    self.processes[process].inbox.push_back((message, pages));
                    self.receive(process)?;
                }
                Ok(())
            }
            Delivery::ToProcessEnd => {
                let process = own.process;
                if self.processes[process].connection == Some(connection) {
                    self.connection_ended(process)?;
                }
                Ok(())
            }
            Delivery::ToAgent(_) | Delivery::Garbage | Delivery::ToAgentEnd => {
                let is_current = own.generation == self.node.generation;
                if !own.is_open[1] || !is_current || self.node.agent.is_none() {
                    return Ok(());
                }
                let Some(process) = own.number else {
                    own.early.push_back(delivery);
                    return Ok(());
                };
                if matches!(delivery, Delivery::ToAgent(FromProcess::Present)) {
                    let process = own.process;
                    let revoked = self.revoked_unresponsive(self.processes[process].pod);
                    self.processes[process].answer_probe(revoked);
                }
                let event = match delivery {
                    Delivery::ToAgent(message) => AgentEvent::Message { process, message },
                    Delivery::Garbage => AgentEvent::Malformed {
                        process,
                        is_of_other_version: false,
                        text: "garbage".to_owned(),
                    },
                    _ => AgentEvent::Disconnected(process),
                };
                self.agent_learns(self.node.generation, event)
            }
        }
    }

    pub(crate) fn accept(&mut self, pod: usize, generation: u64) -> Result<(), Failure> {
        if generation != self.node.generation || self.node.agent.is_none() {
            return Ok(());
        }
        if self.node.hangs {
            return Ok(());
        }
        let own = &mut self.node.pods[pod];
        if !own.accepts || !own.is_there {
            return Ok(());
        }
        let Some(connection) = own.backlog.pop_front() else {
            return Ok(());
        };
        let process = &self.processes[self.node.connections[connection].process];
        let peer = process.is_alive.then_some(Peer {
            pid: process.pid,
            start: Some(process.start),
            is_watched: true,
            is_of_pod: true,
        });
        self.node.arriving = Some(connection);
        let pod = PodKey(u32::try_from(pod).unwrap());
        self.agent_learns(generation, AgentEvent::Connected { pod, peer })?;
        if self.node.arriving.take().is_some() {
            self.close_agents_end(connection);
        }
        Ok(())
    }
}
