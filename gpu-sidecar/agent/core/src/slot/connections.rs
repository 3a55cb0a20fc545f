//! Connections of processes: admission, received messages and disconnection.

use policy::Time;
use policy::tokens::ProcessId;
use protocol::message::{FromAgent, FromProcess, Refusal, Report};

use super::{Context, SlotState};
use crate::action::{Action, Level};
use crate::event::Peer;
use crate::event_kind::EventKind;
use crate::gate::GateState;
use crate::pod::PROCESSES_OF_POD_MAX;
use crate::pods::PodKey;
use crate::process::{Greeting, Process, Resumed};
use crate::residency::Windows;

/// Pause after a failure to accept, in nanoseconds: the missing resource, such as a file descriptor, is not available again at
/// once.
const PAUSE_NS: u64 = 100_000_000;

impl SlotState {
    /// Admits a connection as a process of the pod, or refuses it with a reason.
    pub(crate) fn connect(&mut self, cx: &mut Context<'_>, key: PodKey, peer: Option<Peer>) {
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        if pod.accept_limiter_mut().count(cx.now) {
            cx.actions.push(Action::Accept {
                pod: key,
                accepts: false,
            });
        }
        let Some(peer) = peer else {
            return;
        };
        let Some(id) = cx.numbers.take(self.key) else {
            return;
        };
        let is_full = pod.connect(id);
        self.processes.insert(id, Process::new(id, key, peer));
        cx.actions.push(Action::Admit(id));
        if is_full {
            let text =
                format!("too many processes: at most {PROCESSES_OF_POD_MAX} per pod are allowed");
            self.refuse(cx, id, Refusal::TooMany, text);
        } else if !peer.is_of_pod {
            let text = "the process belongs to another pod than the socket".to_owned();
            self.refuse(cx, id, Refusal::NotOfThisPod, text);
        }
    }

    /// Pauses accepting connections of a pod.
    pub(crate) fn accept_failed(&mut self, cx: &mut Context<'_>, key: PodKey) {
        if let Some(pod) = self.pods.get_mut(&key) {
            pod.accept_limiter_mut()
                .pause(cx.now.saturating_add(PAUSE_NS));
            cx.actions.push(Action::Accept {
                pod: key,
                accepts: false,
            });
        }
    }

    /// Handles a message; refuses the process when the message is not allowed in its state.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, id: ProcessId, message: &FromProcess) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if process.is_lost() {
            return;
        }
        match (message, process.greeting()) {
            (
                FromProcess::Hello {
                    version,
                    residency,
                    host_bytes,
                    pinned_bytes,
                    again,
                    open,
                    busy_ns,
                    bytes_used,
                    program,
                    ..
                },
                Greeting::Expected,
            ) => {
                let resumed = Resumed {
                    is_again: *again,
                    is_open: *open,
                    busy_ns: *busy_ns,
                    bytes_used: *bytes_used,
                    version: *version,
                    residency: *residency,
                    windows: Windows {
                        bytes: *host_bytes,
                        pinned: *pinned_bytes,
                        ..Windows::NONE
                    },
                };
                process.greet(program, resumed);
                self.welcome(cx, id, false);
            }
            (
                FromProcess::Attach {
                    uuid,
                    multiprocessors,
                    mps,
                    busy_ns,
                    ..
                },
                Greeting::Welcomed,
            ) => {
                process.resume_at_least(*busy_ns);
                self.attach(cx, id, *uuid, *multiprocessors, *mps);
            }
            (FromProcess::Ask { epoch }, Greeting::Attached) => {
                self.request_token(cx, id, *epoch);
            }
            (FromProcess::Closed { epoch }, Greeting::Attached) => {
                self.gate_closed(cx, id, *epoch);
            }
            (FromProcess::Claim { seq, bytes }, Greeting::Attached) => {
                self.claim(cx, id, *seq, *bytes);
            }
            (FromProcess::Moved(report), Greeting::Attached) => self.moved(cx, id, report),
            (FromProcess::WindowsWanted { bytes }, Greeting::Attached) => {
                self.windows_wanted(cx, id, *bytes);
            }
            (FromProcess::MemoryWanted, Greeting::Attached) => self.memory_wanted(cx, id),
            // Sent over a former connection's end.
            (
                FromProcess::Moved(_)
                | FromProcess::WindowsWanted { .. }
                | FromProcess::MemoryWanted,
                Greeting::Received | Greeting::Welcomed,
            ) => {}
            (FromProcess::Present, Greeting::Attached) => self.probe_answered(cx, id),
            (FromProcess::Report(report), greeting) if greeting > Greeting::Expected => {
                self.report(cx, id, report);
            }
            _ => {
                let text = "unexpected message for the state of the connection".to_owned();
                self.refuse(cx, id, Refusal::Protocol, text);
            }
        }
    }

    /// Refuses a process which has sent bytes that are no message.
    pub(crate) fn refuse_malformed(
        &mut self,
        cx: &mut Context<'_>,
        id: ProcessId,
        is_of_other_version: bool,
        text: &str,
    ) {
        let reason = if is_of_other_version {
            Refusal::Version
        } else {
            Refusal::Protocol
        };
        self.refuse(cx, id, reason, text.to_owned());
    }

    /// Sends a refusal with its reason to a process, counts and records it, and disconnects the process.
    pub(super) fn refuse(
        &mut self,
        cx: &mut Context<'_>,
        id: ProcessId,
        reason: Refusal,
        text: String,
    ) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let (key, pid) = (process.pod(), process.pid());
        if let Some(pod) = self.pods.get_mut(&key) {
            pod.count_refused(reason);
        }
        let entry = format!("process {pid}: {text}");
        cx.actions.push(Action::Send {
            process: id,
            message: FromAgent::Refused { reason, text },
        });
        self.record(cx, EventKind::ProcessRefused, key, entry);
        self.disconnect(cx, id);
    }

    /// Records a report of a process as an event, up to a bound for each process.
    fn report(&mut self, cx: &mut Context<'_>, id: ProcessId, report: &Report) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if matches!(report, Report::Fatal(_)) && cx.memory.settings.ends_faulted {
            process.fail(Time(cx.now));
        }
        if !process.count_report() {
            return;
        }
        let (pid, pod) = (process.pid(), process.pod());
        let text = match report {
            Report::UnknownSymbol(name) => format!("looked up the unknown function {name}"),
            Report::Collective(name) => {
                format!("{name} refused: collectives among ranks cannot run on a time-shared slot")
            }
            Report::Fatal(code) => format!("sticky driver error {code}"),
            Report::OutOfMemory(bytes) => {
                format!(
                    "an allocation of {bytes} bytes exceeds the memory that the pod may have, and was refused"
                )
            }
        };
        let text = format!("process {pid}: {text}");
        self.record(cx, EventKind::ProcessReport, pod, text);
    }

    /// Handles a message that could not be sent. A process which was not welcomed cannot go on; one that could not be probed
    /// is probed again.
    pub(crate) fn not_sent(&mut self, cx: &mut Context<'_>, id: ProcessId, is_probe: bool) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        if process.greeting() < Greeting::Attached {
            self.disconnect(cx, id);
        } else if is_probe
            && !process.is_lost()
            && let Some(device) = &mut self.device
        {
            device.tokens.unreached(Time(cx.now), id);
        }
    }

    /// Disconnects a process which has not got its pages: it may compute, and connects again.
    pub(crate) fn pages_failed(&mut self, cx: &mut Context<'_>, id: ProcessId, text: &str) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.lose_page();
            cx.actions.push(Action::Log {
                level: Level::Warning,
                subject: format!("process {}", process.pid()),
                text: format!("cannot create the pages of a process: {text}"),
            });
            self.disconnect(cx, id);
        }
    }

    /// Handles the end of a connection, by either side. A live process with pages stays until it ends or connects again.
    pub(crate) fn disconnect(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        if process.is_lost() {
            return;
        }
        // A process without pages holds nothing. One that has connected again has reported its state there.
        let is_replaced = || {
            let mut all = self.processes.values();
            all.any(|other| process.is_replaced_by(other))
        };
        if process.device().is_none() || !process.is_watched() || is_replaced() {
            self.forget(cx, id);
            return;
        }
        let Some(member) = self.member(id) else {
            return;
        };
        member.process.lose_connection(cx.now);
        cx.actions.push(Action::Disconnect(id));
        let key = member.pod.key();
        self.leave_move(cx, key, id);
        let Some(member) = self.member(id) else {
            return;
        };
        let Some(device) = member.process.device_mut() else {
            return;
        };
        match device.gate.state() {
            GateState::Open => {
                if let Some(order) = device.gate.shut(cx.now) {
                    cx.actions.push(Action::Order { process: id, order });
                }
            }
            // A grant could not reach the process: it no longer waits.
            GateState::Waiting { .. } => {
                device.gate.withdraw();
                member.pod.remove_waiter(cx.now);
                member.device.early_requests.retain(|own| *own != id);
                self.update(cx, |tokens, now, actions| tokens.closed(now, id, actions));
            }
            GateState::Idle | GateState::Closing { .. } => {}
        }
    }

    /// Removes lost connections of a process that has connected again and reported its state there.
    pub(super) fn forget_former_connections(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let former: Vec<_> = self
            .processes
            .values()
            .filter(|other| other.id() != id && other.is_lost() && other.is_same(process))
            .map(Process::id)
            .collect();
        for other in former {
            self.forget(cx, other);
        }
    }

    /// Removes a process: settles its kernel time, and returns its token and its claims.
    pub(crate) fn forget(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        // Its usage until now is charged to the pod.
        if let Some(key) = self.pod_of(id) {
            self.settle_pod(cx.now, key);
        }
        let Some(process) = self.processes.remove(&id) else {
            return;
        };
        cx.numbers.release(id);
        cx.actions.push(Action::Forget(id));
        self.early.retain(|(own, _)| *own != id);
        let key = process.pod();
        if let Some(device) = process.device() {
            let windows = device.moves().windows;
            cx.memory.host.give_back(windows.bytes);
            cx.memory.pins.remove(id);
        }
        if let Some(pod) = self.pods.get_mut(&key) {
            pod.remove(&process, cx.now);
        }
        self.restate_claims(cx, key);
        self.leave_move(cx, key, id);
        if let Some(device) = &mut self.device {
            device.early_requests.retain(|own| *own != id);
        }
        self.settle(cx.now);
        self.update(cx, |tokens, now, actions| {
            tokens.remove_process(now, id, actions);
        });
        if process.device().is_some() {
            let text = format!("process {} ({})", process.pid(), process.program());
            self.record(cx, EventKind::ProcessGone, key, text);
            self.write_roster(cx, key);
            self.answer_claims(cx, key);
        }
    }

    /// Has the pod's processes recorded for the next agent.
    pub(super) fn write_roster(&self, cx: &mut Context<'_>, key: PodKey) {
        let Some(pod) = self.pods.get(&key) else {
            return;
        };
        let own = pod.processes().iter();
        let own = own.filter_map(|id| self.processes.get(id)?.record());
        let survivors = pod.survivors().iter().map(|survivor| survivor.record);
        cx.actions.push(Action::Roster {
            pod: key,
            records: own.chain(survivors).collect(),
        });
    }
}
