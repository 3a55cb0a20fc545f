//! How a process begins: where it may compute, and its pages.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use annotations::ALL_HUNDREDTHS;
use policy::tokens::{PodId, ProcessId};
use protocol::message::{FromAgent, OnLoss, Refusal};

use super::turn::Service;
use crate::events::EventKind;
use crate::mps::MpsEnvironment;
use crate::state::{Pod, Slot, SlotKind};

/// A process waits so long for its slot's MPS daemon to start, in nanoseconds.
const MPS_WAIT_NS: u64 = 1_500_000_000;

impl Service {
    pub(super) fn welcome(&mut self, id: ProcessId) {
        let now = super::now_ns();
        let Some(served) = self
            .processes
            .get(&id.0)
            .and_then(|own| self.pods.get(&own.pod))
        else {
            return;
        };
        let Some(shared) = self.slots.get(&served.pod.slot) else {
            self.refuse(id, Refusal::SlotLost, "the pod's slot gives no tokens");
            return;
        };
        if shared.is_lost {
            self.refuse(id, Refusal::SlotLost, "the pod's slot is lost");
            return;
        }
        let environment = MpsEnvironment::of(&shared.slot, &served.pod.settings);
        let (is_up, text) = &shared.mps;
        let wants_mps = shared.slot.kind == SlotKind::Mps;
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
        let part = served.pod.settings.sm_hundredths < ALL_HUNDREDTHS;
        if wants_mps && !is_up && part {
            let text = format!(
                "MPS does not run on slot {}, and without it no process can have a part of the SMs: {text}",
                shared.slot.name
            );
            self.refuse(id, Refusal::NoMps, &text);
            return;
        }
        if wants_mps && *is_up {
            // A process is one client, however many connections it has or had.
            let own = self.processes.get(&id.0).map(|process| process.pid);
            let clients: BTreeSet<_> = self
                .processes
                .values()
                .filter(|other| {
                    other.is_welcome
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
            let limit = shared.slot.client_limit;
            if clients >= limit as usize {
                let text = format!(
                    "MPS takes {limit} client processes on this slot, and {clients} are there"
                );
                self.refuse(id, Refusal::TooMany, &text);
                return;
            }
        }
        let mps = environment.filter(|_| *is_up);
        let welcome = FromAgent::Welcome {
            on_loss: OnLoss::Open,
            visible_devices: shared.slot.uuid.clone(),
            mps_pipe_directory: mps.as_ref().map_or_else(String::new, |mps| {
                let mount = served.pod.mps_mount.as_ref();
                mount.unwrap_or(&mps.pipe_directory).display().to_string()
            }),
            active_thread_hundredths: mps
                .as_ref()
                .map_or(ALL_HUNDREDTHS, |mps| mps.active_thread_hundredths),
            mps_memory_limit: mps.and_then(|mps| mps.pinned_memory_bytes).unwrap_or(0),
            memory_limit: served.memory_limit(),
            context_residue: shared.slot.context_residue.unwrap_or(0),
            pod: served.pod.display(),
        };
        let said = self.processes.get_mut(&id.0).is_some_and(|process| {
            process.is_welcome = process.say(&welcome);
            process.is_welcome
        });
        if !said {
            self.lose(id);
        }
    }

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
        let Some(shared) = self.slots.get(&served.pod.slot) else {
            return;
        };
        if shared.slot.uuid_bytes().is_some_and(|own| own != uuid) {
            let text = format!(
                "the process computes on another device than its pod's slot {}; it must not choose devices by itself",
                shared.slot.uuid
            );
            self.refuse(id, Refusal::WrongDevice, &text);
            return;
        }
        // Where no daemon answers, nobody is bound by one, whatever it says.
        let mps = mps && shared.mps.0;
        // Who has more than may be occupied at once computes alone.
        let sm_limit = shared.tokens.settings().sm_limit;
        let sm = share(&shared.slot, &served.pod, multiprocessors, mps).min(sm_limit);
        let key = served.pod.slot;
        let limit = served.memory_limit();
        let now = super::now_ns();
        let inflight = shared.inflight_us(served.id(), now);
        let Some(process) = self.processes.get_mut(&id.0) else {
            return;
        };
        let (open, before) = (process.was_open, process.before);
        let attached = process.attach(sm, mps, open, now, |orders| {
            orders.memory_limit.store(limit, Ordering::Relaxed);
            orders.inflight_us_max.store(inflight, Ordering::Relaxed);
            orders.memory_claim.store(before.1, Ordering::Relaxed);
        });
        if let Err(error) = attached {
            tracing::warn!(pid = process.pid, %error, "no pages for a process");
            self.lose(id);
            return;
        }
        if let Some(attached) = &mut process.attached {
            attached.seen.busy_before_ns = before.0;
        }
        let (pid, program, pod) = (process.pid, process.program.clone(), process.pod);
        let text = format!(
            "process {pid} ({program}), {}.{:02} % of the SMs{}",
            sm / 100,
            sm % 100,
            if mps { " by MPS" } else { "" }
        );
        self.tell(EventKind::ProcessConnected, pod, text);
        let mut stand_in = None;
        if let Some(served) = self.pods.get_mut(&pod) {
            served.claims.adopt(id, before.1);
            served.count_time(now);
            if open {
                served.holders += 1;
            }
            // It was known, and has said hello.
            if let Some(at) = served.silent.iter().position(|(known, _)| known.pid == pid) {
                stand_in = served.silent.swap_remove(at).1;
                if stand_in.is_some() {
                    served.holders = served.holders.saturating_sub(1);
                }
            }
        }
        self.have_all_spoken(key);
        self.on_slot(key, |slot, hands| {
            slot.tell(hands, |tokens, now, actions| {
                let pod = PodId(pod.0);
                if let Err(refusal) = tokens.add_process(now, id, pod, sm, open, actions) {
                    tracing::error!(%refusal, "the scheduler does not take the process");
                }
                // Only now, so that nobody is given its SMs between the two.
                if let Some(stand_in) = stand_in {
                    tokens.remove_process(now, stand_in, actions);
                }
            });
        });
        self.forget_former(id);
        self.write_roster(pod);
    }
}

/// A process's share of SMs, counted after the driver's rounding. It is believed when it says that it has more than it should.
///
/// `mps`: it is bound by an MPS daemon.
fn share(slot: &Slot, pod: &Pod, multiprocessors: u32, mps: bool) -> u32 {
    if !mps {
        return ALL_HUNDREDTHS;
    }
    let told = slot.sms.filter(|sms| *sms > 0).map_or(0, |sms| {
        (u64::from(multiprocessors) * u64::from(ALL_HUNDREDTHS)).div_ceil(u64::from(sms))
    });
    let told = u32::try_from(told).unwrap_or(ALL_HUNDREDTHS);
    told.max(pod.settings.sm_hundredths)
        .clamp(1, ALL_HUNDREDTHS)
}
