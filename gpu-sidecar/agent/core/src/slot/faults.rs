//! Processes that compute no more ([`policy::faults`]): on slots with leases they are ended, since they hold up the others and their own pod.

use policy::Time;
use policy::faults::Fault;
use policy::tokens::ProcessId;

use super::{Context, SlotState};
use crate::action::Action;
use crate::event_kind::EventKind;
use crate::leases::id_of;
use crate::pods::PodKey;

impl SlotState {
    /// Returns whether some process has failed, and is to be ended.
    pub(super) fn has_failed_process(&self) -> bool {
        let mut processes = self.processes.values();
        self.is_leased && processes.any(|process| process.has_failed() && !process.is_killed())
    }

    /// Reports to the leases whether a process of a pod has failed, or is being ended.
    pub(crate) fn report_failure(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let Some(pod) = self.pods.get(&key) else {
            return;
        };
        let now = Time(cx.now);
        let (mut has_failed, mut is_there) = (false, false);
        for id in pod.processes() {
            let Some(process) = self.processes.get_mut(id) else {
                continue;
            };
            if cx.memory.settings.ends_faulted {
                process.fail_if_stated(now);
            }
            has_failed |= process.has_failed() || process.is_killed();
            is_there |= process.device().is_some();
        }
        // After the end of the failed ones it is for the leases how long they wait for the next.
        if has_failed || is_there {
            cx.leases.policy.set_failed(now, id_of(key), has_failed);
        }
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
