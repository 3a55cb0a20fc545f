//! Processes which are away although their pod's model is on its device: they were between two connections when it returned, or have left since by an order
//! from before. They return by orders of their own, once there is room for their memory, which others may have got meanwhile.

use policy::pool::leases::Claim;
use policy::tokens::ProcessId;
use protocol::page::Residency;

use super::moves::order;
use super::{Context, SlotState};
use crate::pod::ServedPod;
use crate::pods::PodKey;
use crate::residency::{DRAIN_MS, Target};

impl SlotState {
    /// Orders processes to return to their device which are not where their pod's model is to be: they could not be ordered when it was to return, since they were
    /// between two connections, or have left since by an order from before.
    pub(super) fn catch_up(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let Some(pod) = self.pods.get(&key) else {
            return;
        };
        let own = pod.processes().iter().copied();
        let behind: Vec<_> = own.filter(|id| self.is_behind(*id)).collect();
        let (away, moving): (Vec<_>, Vec<_>) = behind.into_iter().partition(|id| self.is_away(*id));
        // What moves takes its memory until it has answered.
        for id in moving {
            self.order_back(cx, id);
        }
        if !away.is_empty()
            && self.has_leased_memory(cx)
            && cx.leases.is_away(key)
            && !self.is_any_resident(key)
        {
            // All of the model has left, by an order of which the answer was lost: others have its room, and it returns with its turn.
            self.set_waiting_for_room(&away, false);
            if let Some(pod) = self.pods.get_mut(&key) {
                pod.moves_mut().wanted = Some(Target::Host);
            }
            return;
        }
        if !away.is_empty() && self.has_room_for(cx, key, &away) {
            for id in away {
                self.order_back(cx, id);
            }
        }
    }

    fn is_any_resident(&self, key: PodKey) -> bool {
        let own = self.pods.get(&key).map(|pod| pod.processes().iter());
        let mut moves = own.into_iter().flatten().filter_map(|id| {
            let process = self.processes.get(id)?;
            Some(*process.device()?.moves())
        });
        moves.any(|own| own.residency == Residency::Resident)
    }

    /// Returns whether the memory of a process is on the host, and not on its way.
    pub(super) fn is_away(&self, id: ProcessId) -> bool {
        let process = self.processes.get(&id);
        let moves = process.and_then(|process| Some(*process.device()?.moves()));
        moves.is_some_and(|own| own.is_at(Target::Host))
    }

    /// Returns whether a process is not on its device although its pod's model is to be, and may be ordered there.
    pub(super) fn is_behind(&self, id: ProcessId) -> bool {
        let Some(process) = self.processes.get(&id).filter(|process| !process.is_lost()) else {
            return false;
        };
        let moves = self.pods.get(&process.pod()).map(ServedPod::moves);
        let is_wanted =
            moves.is_some_and(|own| own.current.is_none() && own.wanted == Some(Target::Device));
        let moves = process.device().map(|device| *device.moves());
        is_wanted && moves.is_some_and(|own| own.is_able && !own.is_at(Target::Device))
    }

    /// Returns whether there is room for the memory of processes whose pod's model is there: others may have got what they had. Otherwise it is claimed, and
    /// they wait for it.
    fn has_room_for(&mut self, cx: &mut Context<'_>, key: PodKey, away: &[ProcessId]) -> bool {
        if !self.has_leased_memory(cx) {
            return true;
        }
        self.set_waiting_for_room(away, false);
        let bytes = self.model_bytes(key);
        let is_granted = cx.leases.claim(cx.now, key, bytes) == Claim::Granted;
        if is_granted {
            self.answer_delayed_claims(cx, key, true);
        } else {
            self.set_waiting_for_room(away, true);
        }
        is_granted
    }

    /// Sets whether processes wait for room for their memory.
    pub(super) fn set_waiting_for_room(&mut self, processes: &[ProcessId], waits: bool) {
        for id in processes {
            let process = self.processes.get_mut(id);
            if let Some(device) = process.and_then(|process| process.device_mut()) {
                device.moves_mut().waits_for_room = waits;
            }
        }
    }

    /// Returns the processes of a pod that are to return once there is room for their memory.
    pub(super) fn waiting_for_room(&self, key: PodKey) -> Vec<ProcessId> {
        let own = self.pods.get(&key).map(|pod| pod.processes().iter());
        let waits = |id: &&ProcessId| {
            let process = self.processes.get(*id);
            let moves = process.and_then(|process| Some(process.device()?.moves()));
            moves.is_some_and(|moves| moves.waits_for_room)
        };
        own.into_iter().flatten().filter(waits).copied().collect()
    }

    /// Orders a process to return to its device whenever it can. Nothing waits for its answer.
    pub(super) fn order_back(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let process = self.processes.get_mut(&id);
        let Some(device) = process.and_then(|process| process.device_mut()) else {
            return;
        };
        let seq = device.moves_mut().next_return();
        cx.actions.push(order(id, seq, Target::Device, DRAIN_MS));
    }

    /// Returns the device memory of a pod's model with what is away until there is room, in bytes.
    pub(super) fn whole_bytes(&self, key: PodKey) -> u64 {
        let away = self.bytes_without_room(key);
        self.model_bytes(key).saturating_add(away)
    }

    /// Returns the device memory of a pod's processes which return once there is room for it, in bytes.
    pub(super) fn bytes_without_room(&self, key: PodKey) -> u64 {
        let waiting = self.waiting_for_room(key).into_iter();
        let pod = self.pods.get(&key);
        let held = waiting.map(|id| {
            let held = pod.map_or(0, |pod| pod.held_by(id));
            held.saturating_sub(self.context_of(id))
        });
        held.fold(0, u64::saturating_add)
    }
}
