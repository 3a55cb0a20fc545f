//! Commands from the other parts of the agent: added, changed and removed slots and pods.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll;

use super::connections::AcceptLimiter;
use super::pod::ServedPod;
use super::roster;
use super::slot::{HELLO_MAX_NS, ServedSlot};
use super::turn::{LISTENER, Service};
use crate::state::{Command, Declined, Pod, PodKey, Slot, SlotKey};

impl Service {
    /// Applies a command to the slots and pods of the service.
    pub(super) fn handle_command(&mut self, command: Command) {
        let now = super::now_ns();
        match command {
            Command::SlotAdded(slot) | Command::SlotBack(slot) => self.add_slot(slot, now),
            Command::SlotLost { slot, reason } => {
                if let Some(served_slot) = self.slots.get_mut(&slot) {
                    served_slot.is_lost = true;
                    tracing::warn!(slot = slot.0, reason, "slot lost");
                    self.stop_pods(slot, true);
                }
            }
            Command::MpsState { slot, is_up, text } => {
                if let Some(served_slot) = self.slots.get_mut(&slot) {
                    served_slot.mps = (is_up, text);
                }
            }
            Command::PodAdded { pod, listener } => self.add_pod(pod, listener, now),
            Command::PodChanged(pod) => self.change_pod(pod),
            Command::PodRemoved(key) => self.remove_pod(key),
            Command::Evict { answer, .. } | Command::Restore { answer, .. } => {
                let text = "eviction of models is not supported in this release";
                // The caller may have given up.
                let _gone = answer.send(Err(Declined(text.to_owned())));
            }
            Command::Stop => self.is_stopping = true,
        }
    }

    /// Adds a slot, frozen at first; a slot that is back gets its new properties and resumes granting.
    pub(super) fn add_slot(&mut self, slot: Arc<Slot>, now: u64) {
        let key = slot.key;
        if let Some(served_slot) = self.slots.get_mut(&key) {
            // The holders of its tokens still hold them.
            served_slot.slot = slot;
            served_slot.is_lost = false;
            self.stop_pods(key, false);
            return;
        }
        match ServedSlot::new(Arc::clone(&slot), &self.settings.tokens, now) {
            Ok(mut served_slot) => {
                for served in self.pods.values().filter(|served| served.pod.slot == key) {
                    let added =
                        served_slot
                            .tokens
                            .add_pod(policy::Time(now), served.id(), served.quota());
                    if let Err(refusal) = added {
                        tracing::error!(%refusal, "the scheduler rejects the pod");
                    }
                    if !served.silent.is_empty() {
                        served_slot.frozen_until = Some(now.saturating_add(HELLO_MAX_NS));
                    }
                }
                self.slots.insert(key, served_slot);
            }
            Err(error) => {
                tracing::error!(slot = slot.name, %error, "invalid token settings for the slot")
            }
        }
    }

    /// Stops (`stopped`) or resumes granting to all pods of a slot.
    pub(super) fn stop_pods(&mut self, key: SlotKey, stopped: bool) {
        let pods: Vec<_> = self
            .pods
            .values()
            .filter(|served| served.pod.slot == key)
            .map(ServedPod::id)
            .collect();
        for pod in pods {
            self.on_slot(key, |slot, context| {
                slot.update(context, |tokens, now, actions| {
                    tokens.hard_stop(now, pod, stopped, actions);
                });
            });
        }
    }

    /// Serves a pod from now on. Processes that an earlier agent served, and that are alive, count as silent.
    pub(super) fn add_pod(&mut self, pod: Arc<Pod>, listener: OwnedFd, now: u64) {
        let key = pod.key;
        if self.pods.contains_key(&key) {
            self.remove_pod(key);
        }
        let silent: Vec<_> = roster::survivors(&pod.folder)
            .into_iter()
            .map(|record| (record, None))
            .collect();
        let served = ServedPod {
            listener,
            accept_limiter: AcceptLimiter::default(),
            counters: crate::state::PodCounters::default(),
            claims: super::memory::Claims::default(),
            time: super::settle::PodTime::default(),
            processes: Vec::new(),
            silent,
            holders: 0,
            waiters: 0,
            counted_to: now,
            pod,
        };
        let slot = served.pod.slot;
        let (id, quota, has_silent) = (served.id(), served.quota(), !served.silent.is_empty());
        let added = epoll::add(
            &self.epoll,
            &served.listener,
            epoll::EventData::new_u64(LISTENER | u64::from(key.0)),
            epoll::EventFlags::IN,
        );
        if let Err(error) = added {
            tracing::error!(pod = served.pod.display(), %error, "cannot listen for the pod's processes");
            return;
        }
        self.pods.insert(key, served);
        let is_frozen = self.on_slot(slot, |slot, context| {
            if has_silent && slot.frozen_until.is_some() {
                slot.frozen_until = Some(context.now.saturating_add(HELLO_MAX_NS));
            }
            let is_lost = slot.is_lost;
            slot.update(context, |tokens, now, actions| {
                if let Err(refusal) = tokens.add_pod(now, id, quota) {
                    tracing::error!(%refusal, "the scheduler rejects the pod");
                }
                if is_lost {
                    tokens.hard_stop(now, id, true, actions);
                }
            });
            slot.frozen_until.is_some()
        });
        if has_silent && is_frozen == Some(false) {
            // Other pods compute on the slot already: the silent processes count as holders until they greet.
            self.count_silent(slot);
        }
    }

    /// Applies changed settings of a pod: the quota to the scheduler, limits to the pages of its processes.
    pub(super) fn change_pod(&mut self, pod: Arc<Pod>) {
        let Some(served) = self.pods.get_mut(&pod.key) else {
            return;
        };
        served.pod = pod;
        let (slot, id, quota) = (served.pod.slot, served.id(), served.quota());
        let (limit, processes) = (served.memory_limit(), served.processes.clone());
        let inflight = self.on_slot(slot, |slot, context| {
            slot.update(context, |tokens, now, actions| {
                if let Err(refusal) = tokens.set_quota(now, id, quota, actions) {
                    tracing::error!(%refusal, "the scheduler rejects the quota; the previous one stays in effect");
                }
            });
            slot.inflight_us(id, context.now)
        });
        for process in processes {
            let process = self.processes.get(&process.0);
            if let Some(attached) = process.and_then(|process| process.attached.as_ref()) {
                let orders = attached.orders();
                orders.memory_limit.store(limit, Ordering::Release);
                if let Some(inflight) = inflight {
                    orders.inflight_us_max.store(inflight, Ordering::Release);
                }
            }
        }
    }

    /// Removes a pod with its processes, and closes its connections.
    pub(super) fn remove_pod(&mut self, key: PodKey) {
        let Some(served) = self.pods.get(&key) else {
            return;
        };
        for process in served.processes.clone() {
            self.forget(process);
        }
        let Some(served) = self.pods.remove(&key) else {
            return;
        };
        let _gone = epoll::delete(&self.epoll, &served.listener);
        let id = served.id();
        let stand_ins: Vec<_> = served.silent.iter().filter_map(|(_, id)| *id).collect();
        self.on_slot(served.pod.slot, |slot, context| {
            slot.update(context, |tokens, now, actions| {
                for process in stand_ins {
                    tokens.remove_process(now, process, actions);
                }
                tokens.remove_pod(now, id, actions);
            });
        });
    }
}
