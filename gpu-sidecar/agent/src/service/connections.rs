//! Connections: who may have one, what comes over it, and its end.

use std::os::fd::OwnedFd;

use policy::tokens::ProcessId;
use protocol::message::{FromAgent, FromProcess, Refusal, Report};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::pod::belongs;
use super::process::{Came, Process, REPORTS_MAX};
use super::roster;
use super::turn::{CONNECTION, LISTENER, MESSAGES_AT_ONCE, Service};
use crate::events::EventKind;
use crate::state::PodKey;

/// Processes of all pods together.
const PROCESSES_MAX: usize = 8_192;
/// Processes of one pod.
const PROCESSES_OF_POD_MAX: usize = 256;
/// Connections of one pod that are taken within a second: as many as it may have at once. More wait in the kernel, so that a pod
/// that connects without end costs the others nothing.
const CONNECTIONS_PER_SECOND: u32 = 256;
const SECOND_NS: u64 = 1_000_000_000;
/// When a connection cannot be taken, the next is tried so much later: what lacks, as files, is not there again at once.
const PAUSE_NS: u64 = 100_000_000;

/// How fast a pod's connections are taken.
#[derive(Debug, Default)]
pub(super) struct Door {
    /// The begin of the second that is counted.
    second: u64,
    /// Connections taken within it.
    taken: u32,
    /// Nobody listens until then.
    shut_until: Option<u64>,
}

impl Door {
    /// Counts one more; after the last of a second it says until when nobody listens.
    fn take(&mut self, now: u64) -> Option<u64> {
        if now.saturating_sub(self.second) >= SECOND_NS {
            (self.second, self.taken) = (now, 0);
        }
        self.taken += 1;
        (self.taken >= CONNECTIONS_PER_SECOND).then(|| self.second.saturating_add(SECOND_NS))
    }

    /// When it opens, if it is shut.
    pub(super) const fn opens_at(&self) -> Option<u64> {
        self.shut_until
    }
}

impl Service {
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
                    tracing::warn!(pod = served.pod.display(), %error, "cannot accept");
                    self.shut_door(key, super::now_ns().saturating_add(PAUSE_NS));
                    return;
                }
            };
            let until = served.door.take(super::now_ns());
            if let Some(until) = until {
                self.shut_door(key, until);
            }
            self.admit(key, connection);
            if until.is_some() {
                return;
            }
        }
    }

    /// Takes a connection, or says why not.
    fn admit(&mut self, key: PodKey, connection: OwnedFd) {
        let Some(served) = self.pods.get(&key) else {
            return;
        };
        let pid = match rustix::net::sockopt::socket_peercred(&connection) {
            Ok(credentials) => credentials.pid.as_raw_pid().cast_unsigned(),
            Err(error) => {
                tracing::warn!(pod = served.pod.display(), %error, "a peer without credentials");
                return;
            }
        };
        let Some(id) = self.free_process() else {
            return;
        };
        let process = match Process::new(id, key, connection, pid) {
            Ok(process) => process,
            Err(error) => {
                tracing::debug!(pid, %error, "a process that is not there");
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
            let text = format!("a pod has at most {PROCESSES_OF_POD_MAX} processes here");
            Some((Refusal::TooMany, text))
        } else if belongs(&served.pod, pid) {
            None
        } else {
            let text = "the process is of another pod than the socket".to_owned();
            Some((Refusal::NotOfThisPod, text))
        };
        served.processes.push(id);
        self.processes.insert(id.0, process);
        if let Some((reason, text)) = refusal {
            self.refuse(id, reason, &text);
        }
    }

    /// Listens to a pod no more until then.
    fn shut_door(&mut self, key: PodKey, until: u64) {
        let Some(served) = self.pods.get_mut(&key) else {
            return;
        };
        served.door.shut_until = Some(until);
        self.listen(key, epoll::EventFlags::empty());
    }

    /// Listens again to pods whose doors open by now.
    pub(super) fn open_doors(&mut self, now: u64) {
        let due = self.pods.values_mut().filter(|served| {
            let opens_at = served.door.opens_at();
            opens_at.is_some_and(|at| at <= now)
        });
        let keys: Vec<_> = due
            .map(|served| {
                served.door.shut_until = None;
                served.pod.key
            })
            .collect();
        for key in keys {
            self.listen(key, epoll::EventFlags::IN);
        }
    }

    fn listen(&self, key: PodKey, events: epoll::EventFlags) {
        let Some(served) = self.pods.get(&key) else {
            return;
        };
        let data = epoll::EventData::new_u64(LISTENER | u64::from(key.0));
        if let Err(error) = epoll::modify(&self.epoll, &served.listener, data, events) {
            tracing::error!(pod = served.pod.display(), %error, "cannot listen");
        }
    }

    pub(super) fn free_process(&mut self) -> Option<ProcessId> {
        if self.processes.len() >= PROCESSES_MAX {
            return None;
        }
        // Numbers of processes that were forgotten are given again, the oldest first.
        loop {
            let number = self.next_process;
            self.next_process = (number + 1) % (2 * u32::try_from(PROCESSES_MAX).unwrap_or(1));
            if !self.processes.contains_key(&number) && !self.is_stand_in(ProcessId(number)) {
                return Some(ProcessId(number));
            }
        }
    }

    pub(super) fn is_stand_in(&self, id: ProcessId) -> bool {
        self.pods
            .values()
            .any(|served| served.silent.iter().any(|(_, own)| *own == Some(id)))
    }

    pub(super) fn refuse(&mut self, id: ProcessId, reason: Refusal, text: &str) {
        let Some(process) = self.processes.get(&id.0) else {
            return;
        };
        let (pod, pid) = (process.pod, process.pid);
        let _said = process.say(&FromAgent::Refused {
            reason,
            text: text.to_owned(),
        });
        if let Some(served) = self.pods.get_mut(&pod) {
            served.refused(reason);
        }
        self.tell(
            EventKind::ProcessRefused,
            pod,
            format!("process {pid}: {text}"),
        );
        self.lose(id);
    }

    pub(super) fn hear(&mut self, id: ProcessId) {
        for _message in 0..MESSAGES_AT_ONCE {
            let Some(process) = self.processes.get(&id.0) else {
                return;
            };
            match process.next() {
                Came::Message(message) => self.understand(id, message),
                Came::Nothing => return,
                Came::Malformed(malformed) => {
                    self.agent.malformed_messages += 1;
                    let reason = match malformed {
                        protocol::message::Malformed::Version(_) => Refusal::Version,
                        _ => Refusal::Protocol,
                    };
                    self.refuse(id, reason, &malformed.to_string());
                    return;
                }
                Came::End => {
                    self.lose(id);
                    return;
                }
            }
        }
    }

    pub(super) fn understand(&mut self, id: ProcessId, message: FromProcess) {
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        let (has_greeted, is_attached) = (process.has_greeted, process.attached.is_some());
        let is_welcome = process.is_welcome;
        match message {
            FromProcess::Hello {
                open,
                busy_ns,
                bytes_used,
                program,
                ..
            } if !has_greeted => {
                process.has_greeted = true;
                process.was_open = open;
                process.program = program;
                process.before = (busy_ns, bytes_used);
                self.welcome(id);
            }
            FromProcess::Attach {
                uuid,
                multiprocessors,
                mps,
                busy_ns,
                ..
            } if is_welcome && !is_attached => {
                // What it computed while its hello waited to be heard is none of ours.
                process.before.0 = process.before.0.max(busy_ns);
                self.attach(id, uuid, multiprocessors, mps);
            }
            FromProcess::Ask { epoch } if is_attached => self.ask(id, epoch),
            FromProcess::Closed { epoch } if is_attached => self.closed(id, epoch),
            FromProcess::Claim { seq, bytes } if is_attached => self.claim(id, seq, bytes),
            FromProcess::Present if is_attached => self.present(id),
            FromProcess::Report(report) if has_greeted => self.report(id, &report),
            _ => self.refuse(id, Refusal::Protocol, "a message out of turn"),
        }
    }

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
            Report::UnknownSymbol(name) => format!("looked up {name}, which is not known here"),
            Report::Collective(name) => {
                format!(
                    "{name} refused: collectives among ranks cannot run on a slot that is shared in time"
                )
            }
            Report::Fatal(code) => format!("the driver's error {code} stays"),
            Report::OutOfMemory(bytes) => {
                format!("an allocation of {bytes} bytes refused: beyond the pod's limit")
            }
        };
        self.tell(
            EventKind::ProcessReport,
            pod,
            format!("process {pid}: {text}"),
        );
    }

    /// The connection of a process is gone, or was ended here.
    pub(super) fn lose(&mut self, id: ProcessId) {
        let now = super::now_ns();
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        if let Some(connection) = process.connection() {
            let _gone = epoll::delete(&self.epoll, connection);
        }
        process.hang_up(now);
        // Who never had pages holds nothing; a dead one no longer does. One that has connected anew has said how it stands.
        if process.attached.is_none() || !process.lives() || self.has_returned(id) {
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
            // It could not be told that it has a token.
            if let Some(served) = self.pods.get_mut(&pod) {
                served.count_time(now);
                served.waiters = served.waiters.saturating_sub(1);
            }
            if let Some(key) = self.slot_of(id) {
                self.on_slot(key, |slot, hands| {
                    slot.asked_early.retain(|own| *own != id);
                    slot.tell(hands, |tokens, now, actions| {
                        tokens.closed(now, id, actions);
                    });
                });
            }
        }
    }

    /// The process of this connection has a later one, with pages.
    fn has_returned(&self, id: ProcessId) -> bool {
        let at = |process: &Process| process.attached.as_ref().map(|attached| attached.at);
        let Some(process) = self.processes.get(&id.0) else {
            return false;
        };
        self.processes.values().any(|other| {
            other.lost_at.is_none() && at(other) > at(process) && other.is_same(process)
        })
    }

    /// Forgets lost connections of a process that has connected anew: it has said how it stands.
    pub(super) fn forget_former(&mut self, id: ProcessId) {
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

    /// A process is no more.
    pub(super) fn forget(&mut self, id: ProcessId) {
        let now = super::now_ns();
        let key = self.slot_of(id);
        // What it has used until now is the pod's.
        if let Some(key) = key
            && let Some(pod) = self.processes.get(&id.0).map(|process| process.pod)
        {
            self.on_slot(key, |slot, hands| {
                if let Some(served) = hands.pods.get_mut(&pod) {
                    slot.settle_pod(served, hands.processes, hands.now);
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
            self.on_slot(key, |slot, hands| {
                slot.asked_early.retain(|own| *own != id);
                slot.settle(hands);
                slot.tell(hands, |tokens, now, actions| {
                    tokens.remove_process(now, id, actions);
                });
            });
        }
        if process.attached.is_some() {
            self.tell(
                EventKind::ProcessGone,
                pod,
                format!("process {} ({})", process.pid, process.program),
            );
            self.write_roster(pod);
        }
    }

    pub(super) fn write_roster(&self, pod: PodKey) {
        let Some(served) = self.pods.get(&pod) else {
            return;
        };
        let mut known: Vec<_> = served
            .processes
            .iter()
            .filter_map(|id| self.processes.get(&id.0)?.known())
            .collect();
        known.extend(served.silent.iter().map(|(known, _)| *known));
        if let Err(error) = roster::write(&served.pod.folder, &known) {
            tracing::warn!(pod = served.pod.display(), %error, "the pod's processes cannot be written down");
        }
    }
}
