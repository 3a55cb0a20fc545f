//! Device memory that contexts take by themselves on a slot, which stays while models come and go.
//!
//! Where it is not configured, it is what the driver lists for a process beyond what that process counts. The process cannot measure it:
//! what the device has in use contains the models of the others.

use policy::tokens::ProcessId;

use super::{Context, SlotState};
use crate::action::{Action, Order};

/// Divisor of a slot's memory for the least that a context takes, so that no process makes others count much less than they have.
const LEAST_PART: u64 = 1_024;

/// Divisor of a slot's memory for the most that a context takes, where that is not known.
pub(super) const CONTEXT_PART_MAX: u64 = 32;

impl SlotState {
    /// Returns the device memory that a process has with its context, in bytes; 0 as long as it is not known.
    pub(super) fn context_residue(&self) -> u64 {
        let device = self.device.as_ref();
        let configured = device.and_then(|device| device.slot.context_residue);
        configured.or(self.measured_residue).unwrap_or(0)
    }

    /// Returns the part of a process's claim that is for its context, in bytes.
    pub(super) fn context_of(&self, id: ProcessId) -> u64 {
        let device = self.processes.get(&id).and_then(|process| process.device());
        let stated = device.map_or(0, |device| device.context_bytes());
        stated.min(self.context_residue())
    }

    /// Takes what the driver lists for the processes of the slot, each with its ID. The least that a context was found to take is published to all.
    pub(crate) fn learn_residue(&mut self, cx: &mut Context<'_>, listed: &[(u32, u64)]) {
        let Some(device) = &self.device else {
            return;
        };
        if device.slot.context_residue.is_some() {
            return;
        }
        let credible = (device.slot.memory_bytes / LEAST_PART).max(1);
        let measured = self.processes.values_mut().filter_map(|process| {
            let (pid, device) = (process.pid(), process.device_mut()?);
            let (_, bytes) = listed.iter().find(|(listed, _)| *listed == pid)?;
            device.measure_context(*bytes)
        });
        let Some(least) = measured.filter(|bytes| *bytes >= credible).min() else {
            return;
        };
        if self.measured_residue.is_some_and(|known| known <= least) {
            return;
        }
        self.measured_residue = Some(least);
        for (id, process) in &self.processes {
            if process.device().is_some() {
                let order = Order::ContextResidue { bytes: least };
                cx.actions.push(Action::Order {
                    process: *id,
                    order,
                });
            }
        }
        for key in self.pods.keys() {
            cx.leases.touch(*key);
        }
    }
}
