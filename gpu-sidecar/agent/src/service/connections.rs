//! Connections of processes: admission, received messages and disconnection.

use std::os::fd::OwnedFd;

use policy::tokens::ProcessId;
use protocol::message::{FromAgent, FromProcess, Refusal, Report};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::pod::belongs;
use super::process::{Process, REPORTS_MAX, Received};
use super::roster;
use super::turn::{CONNECTION, LISTENER, MESSAGES_AT_ONCE, Service};
use crate::events::EventKind;
use crate::state::PodKey;

/// Maximum number of processes of all pods together.
const PROCESSES_MAX: usize = 8_192;
/// Maximum number of processes of one pod.
const PROCESSES_OF_POD_MAX: usize = 256;
/// Maximum number of connections of one pod accepted per second: as many as it may have at once. More wait in the kernel's
/// backlog, so that a pod which connects in a loop costs the other pods nothing.
const CONNECTIONS_PER_SECOND: u32 = 256;
const SECOND_NS: u64 = 1_000_000_000;
/// Pause after a failure to accept, in nanoseconds: the missing resource, such as a file descriptor, is not available again at
/// once.
const PAUSE_NS: u64 = 100_000_000;

/// Rate limit of the connections accepted from one pod.
#[derive(Debug, Default)]
pub(super) struct AcceptLimiter {
    /// Start of the current second, in nanoseconds.
    second: u64,
    /// Number of connections accepted within the current second.
    taken: u32,
    /// Time until which accepting is paused, in nanoseconds.
    paused_until: Option<u64>,
}

impl AcceptLimiter {
    /// Counts an accepted connection; when it is the last one allowed within its second, returns the time until which accepting
    /// must pause.
    fn count(&mut self, now: u64) -> Option<u64> {
        if now.saturating_sub(self.second) >= SECOND_NS {
            (self.second, self.taken) = (now, 0);
        }
        self.taken += 1;
        (self.taken >= CONNECTIONS_PER_SECOND).then(|| self.second.saturating_add(SECOND_NS))
    }

    /// Returns the time at which accepting resumes, if it is paused.
    pub(super) const fn resumes_at(&self) -> Option<u64> {
        self.paused_until
    }
}

impl Service {
    /// Accepts connections of a pod, at most [`MESSAGES_AT_ONCE`] and within its rate limit.
    pub(super) fn accept(&mut self, key: PodKey) {
        for _connection in 0..MESSAGES_AT_ONCE {
            let Some(served) = self.pods.get_mut(&key) else {
                return;
            };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let connection = match rustix::net::accept_with(&served.listener, flags) {
                Ok(connection) => connection,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                Err(error) => {
                    tracing::warn!(pod = served.pod.display(), %error, "cannot accept a connection");
                    self.pause_accepting(key, super::now_ns().saturating_add(PAUSE_NS));
                    return;
                }
            };
            let until = served.accept_limiter.count(super::now_ns());
            if let Some(until) = until {
                self.pause_accepting(key, until);
            }
            self.admit(key, connection);
            if until.is_some() {
                return;
            }
        }
    }

    /// Admits a connection as a process of the pod, or refuses it with a reason.
    fn admit(&mut self, key: PodKey, connection: OwnedFd) {
        let Some(served) = self.pods.get(&key) else {
            return;
        };
        let pid = match rustix::net::sockopt::socket_peercred(&connection) {
            Ok(credentials) => credentials.pid.as_raw_pid().cast_unsigned(),
            Err(error) => {
                tracing::warn!(pod = served.pod.display(), %error, "the peer has no credentials");
                return;
            }
        };
        let Some(id) = self.free_process() else {
            return;
        };
        let process = match Process::new(id, key, connection, pid) {
            Ok(process) => process,
            Err(error) => {
                tracing::debug!(pid, %error, "the connecting process has ended");
                return;
            }
        };
        let added = process.connection().map(|connection| {
            epoll::add(
                &self.epoll,
                connection,
                epoll::EventData::new_u64(CONNECTION | u64::from(id.0)),
                epoll::EventFlags::IN,
            )
        });
        if !matches!(added, Some(Ok(()))) {
            return;
        }
        let Some(served) = self.pods.get_mut(&key) else {
            return;
        };
        let refusal = if served.processes.len() >= PROCESSES_OF_POD_MAX {
            let text =
                format!("too many processes: at most {PROCESSES_OF_POD_MAX} per pod are allowed");
            Some((Refusal::TooMany, text))
        } else if belongs(&served.pod, pid) {
            None
        } else {
            let text = "the process belongs to another pod than the socket".to_owned();
            Some((Refusal::NotOfThisPod, text))
        };
        served.processes.push(id);
        self.processes.insert(id.0, process);
        if let Some((reason, text)) = refusal {
            self.refuse(id, reason, &text);
        }
    }

    /// Pauses accepting connections of a pod until this time.
    fn pause_accepting(&mut self, key: PodKey, until: u64) {
        let Some(served) = self.pods.get_mut(&key) else {
            return;
        };
        served.accept_limiter.paused_until = Some(until);
        self.listen(key, epoll::EventFlags::empty());
    }

    /// Resumes accepting connections of the pods with a pause that has passed.
    pub(super) fn resume_accepting(&mut self, now: u64) {
        let due = self.pods.values_mut().filter(|served| {
            let resumes_at = served.accept_limiter.resumes_at();
            resumes_at.is_some_and(|at| at <= now)
        });
        let keys: Vec<_> = due
            .map(|served| {
                served.accept_limiter.paused_until = None;
                served.pod.key
            })
            .collect();
        for key in keys {
            self.listen(key, epoll::EventFlags::IN);
        }
    }

    /// Sets the events of a pod's listener for which the thread wakes.
    fn listen(&self, key: PodKey, events: epoll::EventFlags) {
        let Some(served) = self.pods.get(&key) else {
            return;
        };
        let data = epoll::EventData::new_u64(LISTENER | u64::from(key.0));
        if let Err(error) = epoll::modify(&self.epoll, &served.listener, data, events) {
            tracing::error!(pod = served.pod.display(), %error, "cannot listen for the pod's processes");
        }
    }

    /// Returns an unused process number; `None` while [`PROCESSES_MAX`] processes are connected.
    pub(super) fn free_process(&mut self) -> Option<ProcessId> {
        if self.processes.len() >= PROCESSES_MAX {
            return None;
        }
        // Freed numbers are reused, the oldest first.
        loop {
            let number = self.next_process;
            self.next_process = (number + 1) % (2 * u32::try_from(PROCESSES_MAX).unwrap_or(1));
            if !self.processes.contains_key(&number) && !self.is_stand_in(ProcessId(number)) {
                return Some(ProcessId(number));
            }
        }
    }

    /// Returns whether the number belongs to a silent process which the scheduler counts as a holder.
    pub(super) fn is_stand_in(&self, id: ProcessId) -> bool {
        self.pods
            .values()
            .any(|served| served.silent.iter().any(|(_, own)| *own == Some(id)))
    }

    /// Sends a refusal with its reason to a process, counts and records it, and disconnects the process.
    pub(super) fn refuse(&mut self, id: ProcessId, reason: Refusal, text: &str) {
        let Some(process) = self.processes.get(&id.0) else {
            return;
        };
        let (pod, pid) = (process.pod, process.pid);
        let _sent = process.send(&FromAgent::Refused {
            reason,
            text: text.to_owned(),
        });
        if let Some(served) = self.pods.get_mut(&pod) {
            served.count_refused(reason);
        }
        self.record_event(
            EventKind::ProcessRefused,
            pod,
            format!("process {pid}: {text}"),
        );
        self.disconnect(id);
    }

    /// Reads and dispatches messages of a process, at most [`MESSAGES_AT_ONCE`].
    pub(super) fn receive(&mut self, id: ProcessId) {
        for _message in 0..MESSAGES_AT_ONCE {
            let Some(process) = self.processes.get(&id.0) else {
                return;
            };
            match process.next() {
                Received::Message(message) => self.dispatch(id, message),
                Received::Nothing => return,
                Received::Malformed(malformed) => {
                    self.agent.malformed_messages += 1;
                    let reason = match malformed {
                        protocol::message::Malformed::Version(_) => Refusal::Version,
                        _ => Refusal::Protocol,
                    };
                    self.refuse(id, reason, &malformed.to_string());
                    return;
                }
                Received::End => {
                    self.disconnect(id);
                    return;
                }
            }
        }
    }

    /// Handles a message of a process; refuses the process when the message is not allowed in its state.
    pub(super) fn dispatch(&mut self, id: ProcessId, message: FromProcess) {
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        let (has_greeted, is_attached) = (process.has_greeted, process.attached.is_some());
        let is_welcomed = process.is_welcomed;
        match message {
            FromProcess::Hello {
                open,
                busy_ns,
                bytes_used,
                program,
                ..
            } if !has_greeted => {
                process.has_greeted = true;
                process.greeted_open = open;
                process.program = program;
                process.usage_before = (busy_ns, bytes_used);
                self.welcome(id);
            }
            FromProcess::Attach {
                uuid,
                multiprocessors,
                mps,
                busy_ns,
                ..
            } if is_welcomed && !is_attached => {
                // Kernel time between sending and handling the hello does not count.
                process.usage_before.0 = process.usage_before.0.max(busy_ns);
                self.attach(id, uuid, multiprocessors, mps);
            }
            FromProcess::Ask { epoch } if is_attached => self.request_token(id, epoch),
            FromProcess::Closed { epoch } if is_attached => self.gate_closed(id, epoch),
            FromProcess::Claim { seq, bytes } if is_attached => self.claim(id, seq, bytes),
            FromProcess::Present if is_attached => self.probe_answered(id),
            FromProcess::Report(report) if has_greeted => self.report(id, &report),
            _ => self.refuse(
                id,
                Refusal::Protocol,
                "unexpected message for the state of the connection",
            ),
        }
    }

    /// Records a report of a process as an event, at most [`REPORTS_MAX`] per process.
    pub(super) fn report(&mut self, id: ProcessId, report: &Report) {
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        if process.reports >= REPORTS_MAX {
            return;
        }
        process.reports += 1;
        let (pid, pod) = (process.pid, process.pod);
        let text = match report {
            Report::UnknownSymbol(name) => format!("looked up the unknown function {name}"),
            Report::Collective(name) => {
                format!("{name} refused: collectives among ranks cannot run on a time-shared slot")
            }
            Report::Fatal(code) => format!("sticky driver error {code}"),
            Report::OutOfMemory(bytes) => {
                format!(
                    "an allocation of {bytes} bytes exceeds the pod's memory limit and was refused"
                )
            }
        };
        self.record_event(
            EventKind::ProcessReport,
            pod,
            format!("process {pid}: {text}"),
        );
    }

    /// Handles the end of a connection, by either side. A live process with pages stays until it ends or connects again.
    pub(super) fn disconnect(&mut self, id: ProcessId) {
        let now = super::now_ns();
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        if let Some(connection) = process.connection() {
            let _gone = epoll::delete(&self.epoll, connection);
        }
        process.close_connection(now);
        // A process without pages holds nothing, and a dead one no longer does. One that has connected again has reported its
        // state there.
        if process.attached.is_none() || !process.is_alive() || self.has_returned(id) {
            self.forget(id);
            return;
        }
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        let pod = process.pod;
        let Some(attached) = &mut process.attached else {
            return;
        };
        if attached.is_open() {
            attached.shut(now);
        } else if attached.closing_since.is_none() && attached.since.take().is_some() {
            // A grant could not reach the process: it no longer waits.
            if let Some(served) = self.pods.get_mut(&pod) {
                served.count_time(now);
                served.waiters = served.waiters.saturating_sub(1);
            }
            if let Some(key) = self.slot_of(id) {
                self.on_slot(key, |slot, context| {
                    slot.early_requests.retain(|own| *own != id);
                    slot.update(context, |tokens, now, actions| {
                        tokens.closed(now, id, actions);
                    });
                });
            }
        }
    }

    /// Returns whether the process of this connection has a later connection with pages.
    fn has_returned(&self, id: ProcessId) -> bool {
        let at = |process: &Process| process.attached.as_ref().map(|attached| attached.at);
        let Some(process) = self.processes.get(&id.0) else {
            return false;
        };
        self.processes.values().any(|other| {
            other.lost_at.is_none() && at(other) > at(process) && other.is_same(process)
        })
    }

    /// Removes lost connections of a process that has connected again and reported its state there.
    pub(super) fn forget_former_connections(&mut self, id: ProcessId) {
        let Some(process) = self.processes.get(&id.0) else {
            return;
        };
        let former: Vec<_> = self
            .processes
            .values()
            .filter(|other| other.id != id && other.lost_at.is_some() && other.is_same(process))
            .map(|other| other.id)
            .collect();
        for other in former {
            self.forget(other);
        }
    }

    /// Removes a process: settles its kernel time, and returns its token and its claims.
    pub(super) fn forget(&mut self, id: ProcessId) {
        let now = super::now_ns();
        let key = self.slot_of(id);
        // Its usage until now is charged to the pod.
        if let Some(key) = key
            && let Some(pod) = self.processes.get(&id.0).map(|process| process.pod)
        {
            self.on_slot(key, |slot, context| {
                if let Some(served) = context.pods.get_mut(&pod) {
                    slot.settle_pod(served, context.processes, context.now);
                }
            });
        }
        let Some(process) = self.processes.remove(&id.0) else {
            return;
        };
        if let Some(connection) = process.connection() {
            let _gone = epoll::delete(&self.epoll, connection);
        }
        self.early.retain(|(own, _)| *own != id);
        let pod = process.pod;
        if let Some(served) = self.pods.get_mut(&pod) {
            if let Some(attached) = &process.attached {
                served.count_time(now);
                if attached.is_open() || attached.closing_since.is_some() {
                    served.holders = served.holders.saturating_sub(1);
                } else if attached.since.is_some() {
                    served.waiters = served.waiters.saturating_sub(1);
                }
            }
            served.processes.retain(|own| *own != id);
            served.claims.remove(id);
        }
        if let Some(key) = key {
            self.on_slot(key, |slot, context| {
                slot.early_requests.retain(|own| *own != id);
                slot.settle(context);
                slot.update(context, |tokens, now, actions| {
                    tokens.remove_process(now, id, actions);
                });
            });
        }
        if process.attached.is_some() {
            self.record_event(
                EventKind::ProcessGone,
                pod,
                format!("process {} ({})", process.pid, process.program),
            );
            self.write_roster(pod);
        }
    }

    /// Writes the pod's processes into its folder, for the next agent.
    pub(super) fn write_roster(&self, pod: PodKey) {
        let Some(served) = self.pods.get(&pod) else {
            return;
        };
        let mut records: Vec<_> = served
            .processes
            .iter()
            .filter_map(|id| self.processes.get(&id.0)?.record())
            .collect();
        records.extend(served.silent.iter().map(|(record, _)| *record));
        if let Err(error) = roster::write(&served.pod.folder, &records) {
            tracing::warn!(pod = served.pod.display(), %error, "cannot write the pod's `processes` file");
        }
    }
}
