//! Start of a connection: the answer to `Hello`, and the pages after `Attach`.

use std::collections::BTreeSet;

use annotations::SM_WHOLE;
use policy::Time;
use policy::tokens::ProcessId;
use protocol::message::{FromAgent, OnLoss, Refusal};

use super::survivors::rejected;
use super::{Context, SlotState};
use crate::action::{Action, NewPages};
use crate::environment::MpsEnvironment;
use crate::event_kind::EventKind;
use crate::gate::GateState;
use crate::kind::SlotKind;
use crate::pods::Pod;
use crate::process::{Greeting, Unstated};
use crate::residency::Windows;
use crate::slots::Slot;

/// Longest time that a greeting process waits for the MPS daemon of its slot, in nanoseconds.
const MPS_WAIT_NS: u64 = 1_500_000_000;

/// What is known of other connections of a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Former {
    /// Kernel time of the process which was charged, in nanoseconds: after it has sent `Attach` it goes on to publish in its former
    /// page.
    pub(super) busy_ns: u64,
    /// What it may still state of the time of those connections.
    before: Unstated,
    /// Whether there is one.
    pub(super) is_there: bool,
    /// Last epoch of its gate.
    epoch: u64,
    /// Whether it may compute by a token of one of them.
    may_compute: bool,
    /// Host memory which it was given there.
    windows: Windows,
    /// Device memory which it was granted there, in bytes: it may have read of a grant in its former page after it had sent `Hello`.
    granted_bytes: u64,
    /// Time since which its driver has reported an error that stays.
    failed_since: Option<Time>,
}

impl SlotState {
    /// Answers a `Hello` with the device and the limits of the process, refuses it, or lets it wait for the MPS daemon, unless
    /// it has waited (`is_late`).
    pub(super) fn welcome(&mut self, cx: &mut Context<'_>, id: ProcessId, is_late: bool) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let Some(served) = self.pods.get(&process.pod()) else {
            return;
        };
        let Some(device) = &self.device else {
            let text = "the pod's slot is not served".to_owned();
            return self.refuse(cx, id, Refusal::SlotLost, text);
        };
        if device.is_lost {
            let text = "the pod's slot is lost".to_owned();
            return self.refuse(cx, id, Refusal::SlotLost, text);
        }
        let is_up = device.is_mps_up;
        let wants_mps = device.slot.kind == SlotKind::Mps;
        if wants_mps && !is_up && !is_late {
            return self.early.push((id, cx.now.saturating_add(MPS_WAIT_NS)));
        }
        let is_part = served.pod().settings.sm_hundredths < SM_WHOLE;
        if wants_mps && !is_up && is_part {
            let text = format!(
                "MPS does not run on slot {} and is required for an SM share below 100 %: {}",
                device.slot.name, device.mps_text
            );
            return self.refuse(cx, id, Refusal::NoMps, text);
        }
        if wants_mps && is_up {
            // A process is one client, regardless of its number of connections.
            let clients: BTreeSet<_> = self
                .processes
                .values()
                .filter(|other| {
                    let is_client = other.greeting() >= Greeting::Welcomed;
                    is_client && other.id() != id && other.pid() != process.pid()
                })
                .map(|other| other.pid())
                .collect();
            let (clients, limit) = (clients.len(), device.slot.client_limit);
            if clients >= limit as usize {
                let text = format!(
                    "too many MPS clients: the slot has {clients}, and {limit} are allowed"
                );
                return self.refuse(cx, id, Refusal::TooMany, text);
            }
        }
        let mps = MpsEnvironment::of(&device.slot, &served.pod().settings).filter(|_| is_up);
        let message = FromAgent::Welcome {
            // On an exclusive slot no second instance computes, whatever becomes of the agent.
            on_loss: match device.slot.kind {
                SlotKind::Exclusive => OnLoss::Keep,
                SlotKind::Mps => OnLoss::Open,
            },
            visible_devices: device.slot.uuid.clone(),
            mps_pipe_directory: mps.as_ref().map_or_else(String::new, |mps| {
                let mount = served.pod().mps_mount.as_ref();
                mount.unwrap_or(&mps.pipe_directory).display().to_string()
            }),
            active_thread_hundredths: mps
                .as_ref()
                .map_or(SM_WHOLE, |mps| mps.active_thread_hundredths),
            mps_memory_limit: mps.and_then(|mps| mps.pinned_memory_bytes).unwrap_or(0),
            memory_limit: served.memory_limit(),
            context_residue: self.context_residue(),
            pod: served.pod().display(),
        };
        if let Some(process) = self.processes.get_mut(&id) {
            process.set_welcomed();
        }
        cx.actions.push(Action::Send {
            process: id,
            message,
        });
    }

    /// Answers the processes with an MPS daemon that answers by now, or with a wait that has timed out.
    pub(super) fn answer_early(&mut self, cx: &mut Context<'_>) {
        let device = self.device.as_ref();
        let is_settled = device.is_none_or(|device| device.is_mps_up || device.is_lost);
        let now = cx.now;
        let ready = self
            .early
            .extract_if(.., |(_, until)| is_settled || *until <= now);
        let ready: Vec<_> = ready.map(|(id, _)| id).collect();
        for id in ready {
            self.welcome(cx, id, true);
        }
    }

    /// Checks the device of a process, sends its pages and adds it to the scheduler.
    pub(super) fn attach(
        &mut self,
        cx: &mut Context<'_>,
        id: ProcessId,
        uuid: [u8; 16],
        multiprocessors: u32,
        mps: bool,
    ) {
        let now = cx.now;
        let former = self.former(id, now);
        let Some(member) = self.member(id) else {
            return;
        };
        let slot = &member.device.slot;
        if slot.uuid_bytes().is_some_and(|own| own != uuid) {
            let text = format!(
                "wrong device: the process computes on another device than its pod's slot {}; programs must not select devices themselves",
                slot.uuid
            );
            return self.refuse(cx, id, Refusal::WrongDevice, text);
        }
        // Where no daemon answers, none limits the process, whatever it reports.
        let mps = mps && member.device.is_mps_up;
        // A process with a larger share than may be occupied at once computes alone.
        let sm_limit = member.device.tokens.settings().sm_limit;
        let sm = share(slot, member.pod.pod(), multiprocessors, mps).min(sm_limit);
        let (pod, pod_id) = (member.pod.key(), member.pod.id());
        member.process.resume_at_least(former.busy_ns);
        // A process is believed about earlier agents' memory only as far as it may have had any.
        let most = member.windows_max();
        member.process.resume_windows(former.windows, most);
        member.process.resume_memory(former.granted_bytes);
        if let Some(since) = former.failed_since {
            member.process.fail(since);
        }
        if former.may_compute && member.process.resumed().is_again {
            // It may have noticed a grant there, and launched, after it had sent `Hello`.
            member.process.resume_open();
        }
        let resumed = member.process.resumed();
        member
            .process
            .attach(sm, mps, former.epoch, former.before, now);
        member.pod.attach(id, resumed.bytes_used);
        let windows = resumed.windows;
        cx.memory.host.adopt(windows.bytes);
        cx.memory.pins.adopt(id, windows.bytes, windows.pinned);
        let Some(device) = member.process.device() else {
            return;
        };
        let pages = NewPages {
            // A gate that was open stays open until the scheduler closes it.
            epoch: device.gate.epoch(),
            memory_limit: member.pod.memory_limit(),
            memory_claim: resumed.bytes_used,
            inflight_us_max: member.device.inflight_us(pod_id, now),
            seal_after_ms: cx.memory.settings.seal_after_ms,
            streaming: cx.memory.settings.streaming,
            pinned_bytes: windows.pinned,
        };
        let pid = member.process.pid();
        let text = format!(
            "process {pid} ({}), {}.{:02} % of the SMs{}",
            member.process.program(),
            sm / 100,
            sm % 100,
            if mps { " by MPS" } else { "" }
        );
        if resumed.is_open {
            member.pod.add_holder(now);
        }
        // An earlier agent may have served the process.
        let stand_ins = member.pod.greet(pid, now);
        cx.actions.push(Action::CreatePages { process: id, pages });
        self.record(cx, EventKind::ProcessConnected, pod, text);
        self.end_freeze_early();
        let mut added = Ok(());
        self.update(cx, |tokens, now, actions| {
            added = tokens.add_process(now, id, pod_id, sm, resumed.is_open, actions);
            // After adding the process, so that its SMs are not granted in between.
            for &stand_in in &stand_ins {
                tokens.remove_process(now, stand_in, actions);
            }
        });
        if let Err(refusal) = added {
            cx.actions.push(rejected(pod_id, &refusal));
        }
        for stand_in in stand_ins {
            cx.numbers.release(stand_in);
        }
        self.forget_former_connections(cx, id);
        if self.has_leased_memory(cx) && self.is_behind(id) && self.is_away(id) {
            // Others may have got its room meanwhile.
            self.set_waiting_for_room(&[id], true);
        }
        if resumed.bytes_used > 0 {
            // What it has already waits for nothing, whatever else of its pod does.
            self.restate_claims(cx, pod);
        }
        if resumed.is_again {
            let is_there = self.former(id, now).is_there;
            if let Some(process) = self.processes.get_mut(&id) {
                process.set_other_connection(is_there);
            }
        }
        self.catch_up(cx, pod);
        self.write_roster(cx, pod);
    }

    /// Returns what is known of other connections of the same process.
    pub(super) fn former(&self, id: ProcessId, now: u64) -> Former {
        let mut former = Former::default();
        let Some(process) = self.processes.get(&id) else {
            return former;
        };
        let pod = self.pods.get(&process.pod());
        let others = self.processes.values();
        let others = others.filter(|other| other.id() != id && other.is_same(process));
        for other in others {
            let Some(device) = other.device() else {
                continue;
            };
            former.is_there = true;
            former.busy_ns = former.busy_ns.max(device.busy_ns());
            former.before = former.before.or(device.unstated(now));
            former.epoch = former.epoch.max(device.gate.epoch());
            former.windows = former.windows.or(device.moves().windows);
            let granted = pod.map_or(0, |pod| pod.held_by(other.id()));
            former.granted_bytes = former.granted_bytes.max(granted);
            former.failed_since = former.failed_since.or_else(|| other.failed_since());
            let may_compute = match device.gate.state() {
                GateState::Open => true,
                GateState::Closing { .. } => !device.is_idle(),
                GateState::Idle | GateState::Waiting { .. } => false,
            };
            former.may_compute |= may_compute && other.has_page();
        }
        former
    }
}

/// Returns the SM share of a process after the driver's rounding, in hundredths of a percent. A reported share above the
/// configured one is believed. `mps`: an MPS daemon limits the process.
fn share(slot: &Slot, pod: &Pod, multiprocessors: u32, mps: bool) -> u32 {
    if !mps {
        return SM_WHOLE;
    }
    let reported = slot.sms.filter(|sms| *sms > 0).map_or(0, |sms| {
        (u64::from(multiprocessors) * u64::from(SM_WHOLE)).div_ceil(u64::from(sms))
    });
    let reported = u32::try_from(reported).unwrap_or(SM_WHOLE);
    reported.max(pod.settings.sm_hundredths).clamp(1, SM_WHOLE)
}
