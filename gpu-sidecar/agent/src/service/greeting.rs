//! Start of a connection: the answer to `Hello`, and the pages after `Attach`.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use annotations::SM_WHOLE;
use policy::tokens::{PodId, ProcessId};
use protocol::message::{FromAgent, OnLoss, Refusal};

use super::turn::Service;
use crate::events::EventKind;
use crate::mps::MpsEnvironment;
use crate::state::{Pod, Slot, SlotKind};

/// Longest time that a greeting process waits for the MPS daemon of its slot, in nanoseconds.
const MPS_WAIT_NS: u64 = 1_500_000_000;

impl Service {
    /// Answers a `Hello` with the device and the limits of the process, refuses it, or lets it wait for the MPS daemon.
    pub(super) fn welcome(&mut self, id: ProcessId) {
        let now = super::now_ns();
        let Some(served) = self
            .processes
            .get(&id.0)
            .and_then(|own| self.pods.get(&own.pod))
        else {
            return;
        };
        let Some(served_slot) = self.slots.get(&served.pod.slot) else {
            self.refuse(id, Refusal::SlotLost, "the pod's slot is not served");
            return;
        };
        if served_slot.is_lost {
            self.refuse(id, Refusal::SlotLost, "the pod's slot is lost");
            return;
        }
        let environment = MpsEnvironment::of(&served_slot.slot, &served.pod.settings);
        let (is_up, text) = &served_slot.mps;
        let wants_mps = served_slot.slot.kind == SlotKind::Mps;
        let is_late = self
            .early
            .iter()
            .any(|(own, until)| *own == id && *until <= now);
        if wants_mps && !is_up && !is_late {
            if !self.early.iter().any(|(own, _)| *own == id) {
                self.early.push((id, now + MPS_WAIT_NS));
            }
            return;
        }
        self.early.retain(|(own, _)| *own != id);
        let part = served.pod.settings.sm_hundredths < SM_WHOLE;
        if wants_mps && !is_up && part {
            let text = format!(
                "MPS does not run on slot {} and is required for an SM share below 100 %: {text}",
                served_slot.slot.name
            );
            self.refuse(id, Refusal::NoMps, &text);
            return;
        }
        if wants_mps && *is_up {
            // A process is one client, regardless of its number of connections.
            let own = self.processes.get(&id.0).map(|process| process.pid);
            let clients: BTreeSet<_> = self
                .processes
                .values()
                .filter(|other| {
                    other.is_welcomed
                        && other.id != id
                        && Some(other.pid) != own
                        && self
                            .pods
                            .get(&other.pod)
                            .is_some_and(|pod| pod.pod.slot == served.pod.slot)
                })
                .map(|other| other.pid)
                .collect();
            let clients = clients.len();
            let limit = served_slot.slot.client_limit;
            if clients >= limit as usize {
                let text = format!(
                    "too many MPS clients: the slot has {clients}, and {limit} are allowed"
                );
                self.refuse(id, Refusal::TooMany, &text);
                return;
            }
        }
        let mps = environment.filter(|_| *is_up);
        let welcome = FromAgent::Welcome {
            on_loss: OnLoss::Open,
            visible_devices: served_slot.slot.uuid.clone(),
            mps_pipe_directory: mps.as_ref().map_or_else(String::new, |mps| {
                let mount = served.pod.mps_mount.as_ref();
                mount.unwrap_or(&mps.pipe_directory).display().to_string()
            }),
            active_thread_hundredths: mps
                .as_ref()
                .map_or(SM_WHOLE, |mps| mps.active_thread_hundredths),
            mps_memory_limit: mps.and_then(|mps| mps.pinned_memory_bytes).unwrap_or(0),
            memory_limit: served.memory_limit(),
            context_residue: served_slot.slot.context_residue.unwrap_or(0),
            pod: served.pod.display(),
        };
        let is_sent = self.processes.get_mut(&id.0).is_some_and(|process| {
            process.is_welcomed = process.send(&welcome);
            process.is_welcomed
        });
        if !is_sent {
            self.disconnect(id);
        }
    }

    /// Answers the processes with an MPS daemon that answers by now, or with a wait that has timed out.
    pub(super) fn answer_early(&mut self, now: u64) {
        let ready: Vec<_> = self
            .early
            .iter()
            .filter(|(id, until)| {
                let slot = self.slot_of(*id).and_then(|slot| self.slots.get(&slot));
                *until <= now || slot.is_none_or(|slot| slot.mps.0)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in ready {
            self.welcome(id);
        }
    }

    /// Checks the device of a process, sends its pages and adds it to the scheduler.
    pub(super) fn attach(
        &mut self,
        id: ProcessId,
        uuid: [u8; 16],
        multiprocessors: u32,
        mps: bool,
    ) {
        let Some(served) = self
            .processes
            .get(&id.0)
            .and_then(|own| self.pods.get(&own.pod))
        else {
            return;
        };
        let Some(served_slot) = self.slots.get(&served.pod.slot) else {
            return;
        };
        if served_slot.slot.uuid_bytes().is_some_and(|own| own != uuid) {
            let text = format!(
                "wrong device: the process computes on another device than its pod's slot {}; programs must not select devices themselves",
                served_slot.slot.uuid
            );
            self.refuse(id, Refusal::WrongDevice, &text);
            return;
        }
        // Where no daemon answers, none limits the process, whatever it reports.
        let mps = mps && served_slot.mps.0;
        // A process with a larger share than may be occupied at once computes alone.
        let sm_limit = served_slot.tokens.settings().sm_limit;
        let sm = share(&served_slot.slot, &served.pod, multiprocessors, mps).min(sm_limit);
        let key = served.pod.slot;
        let limit = served.memory_limit();
        let now = super::now_ns();
        let inflight = served_slot.inflight_us(served.id(), now);
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        let (open, usage_before) = (process.greeted_open, process.usage_before);
        let attached = process.attach(sm, mps, open, now, |orders| {
            orders.memory_limit.store(limit, Ordering::Relaxed);
            orders.inflight_us_max.store(inflight, Ordering::Relaxed);
            orders.memory_claim.store(usage_before.1, Ordering::Relaxed);
        });
        if let Err(error) = attached {
            tracing::warn!(pid = process.pid, %error, "cannot create the pages of a process");
            self.disconnect(id);
            return;
        }
        if let Some(attached) = &mut process.attached {
            attached.observed.busy_before_ns = usage_before.0;
        }
        let (pid, program, pod) = (process.pid, process.program.clone(), process.pod);
        let text = format!(
            "process {pid} ({program}), {}.{:02} % of the SMs{}",
            sm / 100,
            sm % 100,
            if mps { " by MPS" } else { "" }
        );
        self.record_event(EventKind::ProcessConnected, pod, text);
        let mut stand_in = None;
        if let Some(served) = self.pods.get_mut(&pod) {
            served.claims.adopt(id, usage_before.1);
            served.count_time(now);
            if open {
                served.holders += 1;
            }
            // An earlier agent served the process, and it has greeted now.
            if let Some(at) = served
                .silent
                .iter()
                .position(|(record, _)| record.pid == pid)
            {
                stand_in = served.silent.swap_remove(at).1;
                if stand_in.is_some() {
                    served.holders = served.holders.saturating_sub(1);
                }
            }
        }
        self.end_freeze_early(key);
        self.on_slot(key, |slot, context| {
            slot.update(context, |tokens, now, actions| {
                let pod = PodId(pod.0);
                if let Err(refusal) = tokens.add_process(now, id, pod, sm, open, actions) {
                    tracing::error!(%refusal, "the scheduler rejects the process");
                }
                // After adding the process, so that its SMs are not granted in between.
                if let Some(stand_in) = stand_in {
                    tokens.remove_process(now, stand_in, actions);
                }
            });
        });
        self.forget_former_connections(id);
        self.write_roster(pod);
    }
}

/// Returns the SM share of a process after the driver's rounding, in hundredths of a percent. A reported share above the
/// configured one is believed.
///
/// `mps`: an MPS daemon limits the process.
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
