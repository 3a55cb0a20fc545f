//! Figures for metrics and the control API.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use policy::tokens::ProcessId;
use rustix::time::{ClockId, clock_gettime};

use super::process::Process;
use super::slot::ServedSlot;
use super::turn::Service;
use crate::state::{Figures, PodFigures, ProcessFigures, SlotFigures};

/// Publishes to each process of a pod the device memory of the pod's other processes.
pub(super) fn publish_memory_of_others(pod: &[ProcessId], processes: &HashMap<u32, Process>) {
    let attached = pod.iter().filter_map(|id| {
        let attached = processes.get(&id.0)?.attached.as_ref()?;
        let own = attached.facts().bytes_used.load(Ordering::Relaxed);
        Some((attached, own))
    });
    let attached: Vec<_> = attached.collect();
    let sum = attached
        .iter()
        .fold(0_u64, |sum, (_, own)| sum.saturating_add(*own));
    for (attached, own) in attached {
        let orders = attached.orders();
        orders.memory_others.store(sum - own, Ordering::Release);
    }
}

impl Service {
    /// Settles all slots and returns the figures at this time.
    pub(super) fn figures(&mut self, now: u64) -> Figures {
        let keys: Vec<_> = self.slots.keys().copied().collect();
        for key in keys {
            self.on_slot(key, |slot, context| slot.settle(context));
        }
        let memory = self.settings.device_memory.table();
        let mut slots: Vec<_> = self
            .slots
            .values()
            .map(|slot| self.slot_figures(slot))
            .collect();
        slots.sort_by_key(|figures| figures.slot);
        let mut pods = Vec::with_capacity(self.pods.len());
        let processes = &mut self.processes;
        for served in self.pods.values_mut() {
            served.count_time(now);
            let mut used = 0_u64;
            let mut all = Vec::with_capacity(served.processes.len());
            for id in &served.processes {
                let Some(process) = processes.get_mut(&id.0) else {
                    continue;
                };
                let Some(attached) = &mut process.attached else {
                    continue;
                };
                attached.count(&mut served.counters);
                let facts = attached.facts();
                let bytes_used = facts.bytes_used.load(Ordering::Relaxed);
                used = used.saturating_add(bytes_used);
                let nvml = memory.get(&process.pid);
                all.push(ProcessFigures {
                    pid: process.pid,
                    program: process.program.clone(),
                    sm_hundredths: attached.sm_hundredths,
                    is_open: attached.is_open(),
                    parked: facts.parked.load(Ordering::Relaxed),
                    launches: attached.observed.launches,
                    busy_ns: attached.observed.busy_ns,
                    bytes_used,
                    bytes_fixed: facts.bytes_fixed.load(Ordering::Relaxed),
                    context_residue: nvml.map(|nvml| nvml.bytes.saturating_sub(bytes_used)),
                    is_mps: Some(attached.is_mps),
                    unknown_symbols: attached.observed.unknown_symbols,
                    ungated_ns: attached.observed.ungated_ns,
                    last_error: facts.last_error.load(Ordering::Relaxed),
                });
            }
            publish_memory_of_others(&served.processes, processes);
            let slot = self.slots.get(&served.pod.slot);
            if let Some(account) = slot.and_then(|slot| slot.tokens.account(served.id())) {
                served.counters.held_idle_ns = account.held_idle.0;
            }
            pods.push(PodFigures {
                pod: Arc::clone(&served.pod),
                processes: all,
                counters: served.counters.clone(),
                debt_ns: slot.map_or(0, |slot| slot.tokens.debt(served.id()).0),
                memory_used: used,
                memory_limit: served.pod.settings.gpu_memory,
                has_token: served.holders > 0,
                is_waiting: served.waiters > 0,
                silent_processes: u32::try_from(served.silent.len()).unwrap_or(u32::MAX),
            });
        }
        pods.sort_by_key(|figures| figures.pod.key);
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        self.agent.service_cpu_ns = u64::try_from(cpu.tv_sec).unwrap_or(0) * 1_000_000_000
            + u64::try_from(cpu.tv_nsec).unwrap_or(0);
        self.agent.grants = slots.iter().map(|slot| slot.grants).sum();
        Figures {
            at_ns: now,
            slots,
            pods,
            agent: self.agent,
        }
    }

    /// Returns the figures of a slot with those of its pods added up.
    pub(super) fn slot_figures(&self, served_slot: &ServedSlot) -> SlotFigures {
        let key = served_slot.slot.key;
        let pods = self.pods.values().filter(|served| served.pod.slot == key);
        let (mut holders, mut waiters, mut processes) = (0, 0, 0);
        for served in pods {
            holders += u32::from(served.holders > 0);
            waiters += u32::from(served.waiters > 0);
            processes += u32::try_from(served.processes.len()).unwrap_or(0);
        }
        SlotFigures {
            slot: key,
            is_lost: served_slot.is_lost,
            held_hundredths: u32::try_from(served_slot.tokens.occupied()).unwrap_or(u32::MAX),
            holders,
            waiters,
            grants: served_slot.grants,
            idle_while_waiting_ns: served_slot.idle_ns,
            busy_ns: served_slot.busy.total(),
            processes,
        }
    }
}
