//! Processes that compute no more ([`policy::faults`]): on slots with leases they are ended, since they hold up the others and their own pod.

use policy::Time;
use policy::faults::Fault;
use policy::tokens::ProcessId;

use super::{Context, SlotState};
use crate::action::Action;
use crate::event_kind::EventKind;
use crate::leases::id_of;

impl SlotState {
    /// Returns whether some process has failed, and is to be ended.
    pub(super) fn has_failed_process(&self) -> bool {
        let mut processes = self.processes.values();
        self.is_leased && processes.any(|process| process.has_failed() && !process.is_killed())
    }

    /// Ends the processes that have faulted. One whose work does not progress is examined first: it may be stopped.
    pub(super) fn end_faulted(&mut self, cx: &mut Context<'_>) {
        if !self.is_leased || !cx.memory.settings.ends_faulted {
            return;
        }
        let now = Time(cx.now);
        let mut faulted: Vec<(ProcessId, Fault)> = Vec::new();
        for (id, process) in &mut self.processes {
            let usual = cx.leases.policy.usual_execution(id_of(process.pod()));
            match process.fault(now, usual) {
                Some(Fault::NoProgress) if process.examine() => {
                    cx.actions.push(Action::Examine(*id));
                }
                Some(fault) => faulted.push((*id, fault)),
                None => {}
            }
        }
        for (id, fault) in faulted {
            let Some(process) = self.processes.get_mut(&id) else {
                continue;
            };
            process.set_killed();
            let (key, pid) = (process.pod(), process.pid());
            let why = match fault {
                Fault::StickyError => {
                    "its driver answers every call with an error until it is started again"
                }
                Fault::NoProgress => {
                    "its work on the device neither ends nor goes on, for five times as long as its requests usually take"
                }
            };
            let text = format!("process {pid} killed ({}): {why}", fault.name());
            if let Some(pod) = self.pods.get_mut(&key) {
                pod.count_fault(fault);
            }
            cx.actions.push(Action::Kill(id));
            cx.leases.touch(key);
            self.record(cx, EventKind::ProcessFaulted, key, text);
        }
    }
}
