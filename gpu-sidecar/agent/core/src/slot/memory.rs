//! Claims on a pod's limit of device memory ([`policy::claims`]).

use policy::tokens::ProcessId;
use protocol::message::FromAgent;

use super::{Context, SlotState};
use crate::action::{Action, Order};
use crate::pod::PendingClaim;
use crate::pods::PodKey;

impl SlotState {
    /// Handles a claim: answers it at once, or asks the pod's other processes to relinquish unused claims.
    pub(super) fn claim(&mut self, cx: &mut Context<'_>, id: ProcessId, seq: u32, bytes: u64) {
        let Some(member) = self.member(id) else {
            return;
        };
        let pod = member.pod.key();
        let before = member.pod.held_by(id);
        member.pod.set_active(cx.now);
        match member.pod.claim(id, seq, bytes, cx.now) {
            Some(answer) => {
                let claim = PendingClaim { answer, before };
                let Some(PendingClaim { answer, .. }) = self.claim_slot_memory(cx, pod, claim)
                else {
                    return;
                };
                self.publish_memory_of_others(cx.actions, pod);
                let order = Order::Claim {
                    seq: answer.seq,
                    bytes: answer.bytes,
                };
                cx.actions.push(Action::Order { process: id, order });
                // It may have become smaller.
                self.answer_claims(cx, pod);
            }
            None => self.relinquish(cx, pod),
        }
    }

    /// Asks the processes of a pod to relinquish memory which they have claimed and do not use, if a claim waits for it.
    pub(super) fn relinquish(&mut self, cx: &mut Context<'_>, pod: PodKey) {
        let Some(pod) = self.pods.get_mut(&pod) else {
            return;
        };
        for id in pod.relinquish(cx.now) {
            let process = self.processes.get(&id);
            if process.is_some_and(|process| process.device().is_some() && !process.is_lost()) {
                cx.actions.push(Action::Send {
                    process: id,
                    message: FromAgent::Relinquish,
                });
            }
        }
    }

    /// Answers the claims of a pod that fit by now or have timed out.
    pub(super) fn answer_claims(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        let before: Vec<_> = pod.processes().to_vec();
        let before = before.iter().map(|id| (*id, pod.held_by(*id)));
        let before: Vec<(ProcessId, u64)> = before.collect();
        let answers = pod.answer_claims(cx.now);
        if answers.is_empty() {
            return;
        }
        let held = |id| {
            before
                .iter()
                .find(|(own, _)| *own == id)
                .map_or(0, |own| own.1)
        };
        let answers: Vec<_> = answers
            .into_iter()
            .filter_map(|answer| {
                let before = held(answer.process);
                self.claim_slot_memory(cx, key, PendingClaim { answer, before })
            })
            .map(|claim| claim.answer)
            .collect();
        // The processes read the memory of the others together with the answer.
        self.publish_memory_of_others(cx.actions, key);
        for answer in answers {
            let order = Order::Claim {
                seq: answer.seq,
                bytes: answer.bytes,
            };
            cx.actions.push(Action::Order {
                process: answer.process,
                order,
            });
        }
    }

    /// Publishes to each process of a pod the device memory of the pod's other processes.
    pub(super) fn publish_memory_of_others(&mut self, actions: &mut Vec<Action>, pod: PodKey) {
        let Some(pod) = self.pods.get(&pod) else {
            return;
        };
        let used = pod.processes().iter().filter_map(|id| {
            let device = self.processes.get(id)?.device()?;
            Some(device.bytes_used())
        });
        let sum = used.fold(0, u64::saturating_add);
        for id in pod.processes() {
            let process = self.processes.get_mut(id);
            let Some(device) = process.and_then(|process| process.device_mut()) else {
                continue;
            };
            // A saturated sum is wrong for all of them alike.
            let others = sum.saturating_sub(device.bytes_used());
            if device.set_memory_of_others(others) {
                actions.push(Action::Order {
                    process: *id,
                    order: Order::MemoryOfOthers(others),
                });
            }
        }
    }
}
