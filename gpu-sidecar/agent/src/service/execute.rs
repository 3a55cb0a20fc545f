//! Execution of the agent's actions.

use agent_core::{Action, Event, Level};
use protocol::message::FromAgent;
use rustix::time::{ClockId, clock_gettime};

use super::driver::Driver;
use super::roster;

impl Driver {
    /// Carries out an action. What fails, or was found, follows as an event.
    pub(super) fn execute(&mut self, action: Action) {
        match action {
            Action::Admit(process) => self.admit(process),
            Action::Accept { pod, accepts } => self.set_accepting(pod, accepts),
            Action::Send { process, message } => {
                let connection = self.connections.get(&process);
                if !connection.is_some_and(|connection| connection.send(&message)) {
                    let is_probe = message == FromAgent::Probe;
                    self.follow_ups
                        .push_back(Event::NotSent { process, is_probe });
                }
            }
            Action::CreatePages { process, pages } => {
                let created = match self.connections.get_mut(&process) {
                    Some(connection) => connection.create_pages(pages),
                    None => Ok(()),
                };
                if let Err(error) = created {
                    let text = error.to_string();
                    let event = Event::PagesFailed { process, text };
                    self.follow_ups.push_back(event);
                }
            }
            Action::Order { process, order } => {
                tracing::trace!(process = process.0, ?order, "order");
                if let Some(connection) = self.connections.get(&process) {
                    connection.write(order);
                }
            }
            Action::Disconnect(process) => {
                if let Some(connection) = self.connections.get_mut(&process) {
                    connection.close();
                }
            }
            Action::Forget(process) => {
                self.connections.remove(&process);
            }
            Action::Kill(process) => {
                if let Some(connection) = self.connections.get(&process) {
                    connection.kill();
                }
            }
            Action::Examine(process) => {
                let connection = self.connections.get(&process);
                if connection.is_some_and(|connection| roster::is_stopped(connection.pid())) {
                    self.follow_ups.push_back(Event::Stopped(process));
                }
            }
            Action::ExamineSurvivor { pod, record } => {
                if !roster::is_alive(&record) {
                    let event = Event::SurvivorEnded { pod, record };
                    self.follow_ups.push_back(event);
                }
            }
            Action::Roster { pod, records } => {
                if let Some(listener) = self.listeners.get(&pod)
                    && let Err(error) = roster::write(&listener.pod.folder, &records)
                {
                    let pod = listener.pod.display();
                    tracing::warn!(pod, %error, "cannot write the pod's `processes` file");
                }
            }
            Action::Record {
                kind,
                slot,
                pod,
                text,
            } => self.settings.events.record(kind, &slot, &pod, text),
            Action::Log {
                level: Level::Warning,
                subject,
                text,
            } => tracing::warn!(subject, "{text}"),
            Action::Log {
                level: Level::Error,
                subject,
                text,
            } => tracing::error!(subject, "{text}"),
            Action::SendWindow {
                process,
                bytes,
                is_pinned,
                nodes,
            } => {
                let Some(connection) = self.connections.get(&process) else {
                    return;
                };
                let event = Event::WindowFailed {
                    process,
                    bytes,
                    is_pinned,
                };
                let failed = self.later.reporter(event.clone());
                if let Err(error) = connection.send_window(bytes, is_pinned, nodes, failed) {
                    let pid = connection.pid();
                    tracing::warn!(pid, bytes, %error, "cannot give a process host memory");
                    self.follow_ups.push_back(event);
                }
            }
            Action::AdmitQueue(pod) => self.admit_queue(pod),
            Action::SendQueue { pod, message } => {
                let connection = self.queues.get(&pod);
                if connection.is_some_and(|connection| !connection.send(&message)) {
                    self.queues.remove(&pod);
                    self.follow_ups.push_back(Event::QueueDisconnected(pod));
                }
            }
            Action::DisconnectQueue(pod) => {
                self.queues.remove(&pod);
            }
            Action::Answer { number, answer } => {
                if let Some(reply) = self.replies.remove(&number) {
                    // The caller may have given up.
                    let _gone = reply.send(answer);
                }
            }
            Action::Publish => self.publish(),
        }
    }

    fn publish(&mut self) {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        self.figures.service_cpu_ns = u64::try_from(cpu.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(cpu.tv_nsec).unwrap_or(0);
        let memory = self.settings.device_memory.table();
        self.inbox
            .publish(self.agent.figures(&memory, self.figures));
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.flush()
        {
            tracing::error!(%error, "cannot write the record: it ends here");
            self.recorder = None;
        }
    }
}
