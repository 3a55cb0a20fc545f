//! Counters and gauges of a slot and its pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SlotState;
use crate::action::Action;
use crate::figures::{PodFigures, ProcessMemory, SlotFigures};
use crate::pods::PodKey;

impl SlotState {
    /// Settles everything that the figures contain, and publishes to each process the memory of the others.
    pub(crate) fn settle_for_figures(&mut self, now: u64, actions: &mut Vec<Action>) {
        self.settle(now);
        for pod in self.pods.values_mut() {
            pod.count_time(now);
            let device = self.device.as_ref();
            if let Some(account) = device.and_then(|device| device.tokens.account(pod.id())) {
                pod.set_account(account);
            }
        }
        let shared: Vec<PodKey> = self.pods.keys().copied().collect();
        for pod in shared {
            self.publish_memory_of_others(actions, pod);
        }
    }

    /// Returns the figures of the slot with those of its pods added up; `None` when the slot was not added yet.
    pub(crate) fn figures(&self) -> Option<SlotFigures> {
        let device = self.device.as_ref()?;
        let (mut holders, mut waiters, mut processes) = (0, 0, 0);
        for pod in self.pods.values() {
            holders += u32::from(pod.holders() > 0);
            waiters += u32::from(pod.waiters() > 0);
            processes += u32::try_from(pod.processes().len()).unwrap_or(0);
        }
        Some(SlotFigures {
            slot: self.key,
            is_lost: device.is_lost,
            held_hundredths: u32::try_from(device.tokens.occupied()).unwrap_or(u32::MAX),
            holders,
            waiters,
            grants: device.grants,
            idle_while_waiting_ns: device.idle_ns,
            busy_ns: device.busy.total(),
            processes,
            context_residue: Some(self.context_residue()).filter(|bytes| *bytes > 0),
        })
    }

    /// Returns the figures of all pods of the slot.
    pub(crate) fn pod_figures<'a>(
        &'a self,
        memory: &'a BTreeMap<u32, ProcessMemory>,
    ) -> impl Iterator<Item = PodFigures> + 'a {
        self.pods.values().map(move |pod| {
            let processes: Vec<_> = pod
                .processes()
                .iter()
                .filter_map(|id| {
                    let process = self.processes.get(id)?;
                    process.figures(memory.get(&process.pid()))
                })
                .collect();
            let used = processes.iter().map(|process| process.bytes_used);
            let device = self.device.as_ref();
            PodFigures {
                lease: crate::figures::LeaseFigures::default(),
                pod: Arc::clone(pod.pod()),
                memory_used: used.fold(0, u64::saturating_add),
                processes,
                counters: pod.counters().clone(),
                debt_ns: device.map_or(0, |device| device.tokens.debt(pod.id()).0),
                memory_limit: pod.pod().settings.gpu_memory,
                has_token: pod.holders() > 0,
                is_waiting: pod.waiters() > 0,
                silent_processes: u32::try_from(pod.survivors().len()).unwrap_or(u32::MAX),
            }
        })
    }
}
