//! The slot itself, and its pods: added, changed and removed.

use std::sync::Arc;

use policy::Time;
use policy::tokens::{Rule, Settings, Tokens};
use protocol::union::Union;

use super::survivors::{FIRST_LOOK_NS, HELLO_MAX_NS};
use super::{Context, Device, SlotState};
use crate::action::{Action, Level, Order};
use crate::event::ProcessRecord;
use crate::kind::SlotKind;
use crate::pod::ServedPod;
use crate::pods::{Pod, PodKey};
use crate::slots::Slot;

impl SlotState {
    /// Adds the device, frozen at first; one that is back gets its new properties and resumes granting.
    pub(crate) fn add_device(&mut self, cx: &mut Context<'_>, slot: &Arc<Slot>, tokens: Settings) {
        if let Some(device) = &mut self.device {
            // The holders of its tokens still hold them.
            device.slot = Arc::clone(slot);
            device.is_lost = false;
            return self.resume_pods(cx);
        }
        let rule = match slot.kind {
            SlotKind::Exclusive => Rule::Exclusive,
            SlotKind::Mps => tokens.rule,
        };
        let tokens = match Tokens::new(Settings { rule, ..tokens }) {
            Ok(tokens) => tokens,
            Err(error) => {
                return cx.actions.push(Action::Log {
                    level: Level::Error,
                    subject: slot.name.clone(),
                    text: format!("invalid token settings: {error}"),
                });
            }
        };
        let first_look_until = cx.now.saturating_add(FIRST_LOOK_NS);
        let mut device = Device {
            slot: Arc::clone(slot),
            tokens,
            is_lost: false,
            is_mps_up: false,
            mps_text: "not started yet".to_owned(),
            frozen_until: Some(first_look_until),
            first_look_until,
            early_requests: Vec::new(),
            grants: 0,
            idle_ns: 0,
            busy: Union::new(),
            scheduled: Vec::new(),
            usages: Vec::new(),
        };
        for pod in self.pods.values() {
            let added = device.tokens.add_pod(Time(cx.now), pod.id(), pod.quota());
            if let Err(refusal) = added {
                cx.actions.push(rejected(pod, &refusal));
            }
            if !pod.survivors().is_empty() {
                device.frozen_until = Some(cx.now.saturating_add(HELLO_MAX_NS));
            }
        }
        self.device = Some(device);
    }

    /// Stops granting, since the device is lost. Where there are leases, that of the holder ends.
    pub(crate) fn lose(&mut self, cx: &mut Context<'_>, reason: &str) {
        if let Some(device) = &mut self.device {
            device.is_lost = true;
            cx.actions.push(Action::Log {
                level: Level::Warning,
                subject: device.slot.name.clone(),
                text: format!("slot lost: {reason}"),
            });
            if !self.is_leased {
                self.stop_pods(cx, true);
            }
        }
    }

    /// Records the state of the MPS daemon, and answers the processes which wait for it.
    pub(crate) fn set_mps_state(&mut self, cx: &mut Context<'_>, is_up: bool, text: &str) {
        if let Some(device) = &mut self.device {
            device.is_mps_up = is_up;
            text.clone_into(&mut device.mps_text);
            self.answer_early(cx);
        }
    }

    /// Stops (`stopped`) or resumes granting to all pods.
    fn stop_pods(&mut self, cx: &mut Context<'_>, stopped: bool) {
        self.update(cx, |tokens, now, actions| {
            tokens.hard_stop_all(now, stopped, actions);
        });
    }

    /// Serves a pod from now on.
    pub(crate) fn add_pod(
        &mut self,
        cx: &mut Context<'_>,
        pod: &Arc<Pod>,
        survivors: &[ProcessRecord],
    ) {
        let served = ServedPod::new(Arc::clone(pod), survivors, cx.now);
        let (id, quota) = (served.id(), served.quota());
        let mut added = Ok(());
        let Some(device) = &mut self.device else {
            self.pods.insert(pod.key, served);
            return;
        };
        let has_survivors = !survivors.is_empty();
        if has_survivors && let Some(until) = &mut device.frozen_until {
            *until = cx.now.saturating_add(HELLO_MAX_NS);
        }
        let (is_lost, is_frozen) = (device.is_lost, device.frozen_until.is_some());
        self.pods.insert(pod.key, served);
        self.update(cx, |tokens, now, actions| {
            added = tokens.add_pod(now, id, quota);
            if is_lost {
                tokens.hard_stop(now, id, true, actions);
            }
        });
        if let Err(refusal) = added
            && let Some(pod) = self.pods.get(&pod.key)
        {
            cx.actions.push(rejected(pod, &refusal));
        }
        if has_survivors && !is_frozen {
            // Other pods compute on the slot already: the silent processes count as holders until they greet.
            self.count_survivors(cx);
        }
    }

    /// Applies changed settings of a pod: the quota to the scheduler, limits to the pages of its processes.
    pub(crate) fn change_pod(&mut self, cx: &mut Context<'_>, pod: &Arc<Pod>) {
        let Some(served) = self.pods.get_mut(&pod.key) else {
            return;
        };
        served.set_pod(pod);
        let (id, quota) = (served.id(), served.quota());
        let mut changed = Ok(());
        self.update(cx, |tokens, now, actions| {
            changed = tokens.set_quota(now, id, quota, actions);
        });
        let (Some(served), Some(device)) = (self.pods.get(&pod.key), &self.device) else {
            return;
        };
        if let Err(refusal) = changed {
            cx.actions.push(Action::Log {
                level: Level::Error,
                subject: pod.display(),
                text: format!(
                    "the scheduler rejects the quota, and the previous one stays in effect: {refusal}"
                ),
            });
        }
        let order = Order::Limits {
            memory_limit: served.memory_limit(),
            inflight_us_max: device.inflight_us(id, cx.now),
        };
        for id in served.processes() {
            let process = self.processes.get(id);
            if process.is_some_and(|process| process.device().is_some()) {
                cx.actions.push(Action::Order {
                    process: *id,
                    order,
                });
            }
        }
        // A higher limit may have room for a claim which waits.
        self.answer_claims(cx, pod.key);
    }

    /// Removes a pod with its processes.
    pub(crate) fn remove_pod(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let Some(served) = self.pods.get(&key) else {
            return;
        };
        for process in served.processes().to_vec() {
            self.forget(cx, process);
        }
        let Some(served) = self.pods.remove(&key) else {
            return;
        };
        let id = served.id();
        self.update(cx, |tokens, now, actions| {
            for survivor in served.survivors() {
                if let Some(stand_in) = survivor.stand_in {
                    tokens.remove_process(now, stand_in, actions);
                }
            }
            tokens.remove_pod(now, id, actions);
        });
        for stand_in in served.survivors().iter().filter_map(|own| own.stand_in) {
            cx.numbers.release(stand_in);
        }
        self.end_freeze_early();
    }
}

fn rejected(pod: &ServedPod, refusal: &policy::tokens::Refusal) -> Action {
    Action::Log {
        level: Level::Error,
        subject: pod.pod().display(),
        text: format!("the scheduler rejects the pod: {refusal}"),
    }
}
