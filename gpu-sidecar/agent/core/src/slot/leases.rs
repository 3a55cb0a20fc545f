//! The slot's part of leases: what is reported of its pods, and what is carried out. On a shared slot they open and close no gate.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::Time;
use policy::pool::SlotId;
use policy::pool::leases::{Claim, Location, QUIET};
use policy::tokens::{PodId, ProcessId};
use protocol::page::Residency;

use super::moves::Begun;
use super::residue::CONTEXT_PART_MAX;
use super::{Context, SlotState};
use crate::action::{Action, Order};
use crate::event_kind::EventKind;
use crate::kind::SlotKind;
use crate::leases::{Closing, id_of};
use crate::pod::{PendingClaim, ServedPod};
use crate::pods::{Pod, PodKey};
use crate::process::Process;
use crate::residency::{DRAIN_MS, Target};
use crate::slots::Slot;

impl SlotState {
    /// Returns whether pods of this slot compute by leases once a queue is connected.
    pub(super) fn is_exclusive(&self) -> bool {
        self.device
            .as_ref()
            .is_some_and(|device| device.slot.kind == SlotKind::Exclusive)
    }

    /// Returns whether the slot was found, so that it is known whether its pods need leases.
    pub(crate) const fn has_device(&self) -> bool {
        self.device.is_some()
    }

    /// Returns whether its pods compute by leases.
    pub(crate) const fn is_leased(&self) -> bool {
        self.is_leased
    }

    /// Returns whether leases decide whose model is on this slot.
    pub(super) fn has_leased_memory(&self, cx: &Context<'_>) -> bool {
        self.is_leased || cx.leases.policy.shares_memory(SlotId(self.key.0))
    }

    /// Returns a pod of a slot which was found, and whether several pods compute there at once.
    pub(crate) fn leased_pod(&self, key: PodKey) -> Option<(Arc<Pod>, bool)> {
        let pod = self.pods.get(&key).filter(|_| self.device.is_some())?;
        Some((Arc::clone(pod.pod()), !self.is_exclusive()))
    }

    /// Sets the limit of a new pod's memory on an exclusive slot, and lets it wait for a lease where those are needed.
    pub(crate) fn claim_for_lease(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let is_exclusive = self.is_exclusive();
        let Some(device) = self.device.as_ref().filter(|_| is_exclusive) else {
            return;
        };
        let slot = &device.slot;
        // A process keeps its limit: it has to cover its context as well once that is known.
        let residue = match self.context_residue() {
            0 => slot.memory_bytes / CONTEXT_PART_MAX,
            known => known,
        };
        let limit = slot.models_memory.map_or(slot.memory_bytes, |most| {
            most.saturating_add(residue).min(slot.memory_bytes)
        });
        if let Some(pod) = self.pods.get_mut(&key) {
            pod.set_default_limit(limit);
        }
        if self.is_leased {
            self.set_open(cx, key, false);
        }
    }

    /// Returns the memory that models may take on the slot at a time, in bytes: what is configured, as far as contexts leave it.
    fn models_memory(&self, slot: &Slot) -> u64 {
        let processes = self.processes.values();
        let contexts = processes.filter(|process| process.device().is_some());
        let residue = self.context_residue();
        let residues = residue.saturating_mul(contexts.count() as u64);
        let left = slot.memory_bytes.saturating_sub(residues);
        slot.models_memory.map_or(left, |most| most.min(left))
    }

    /// Passes the slot's memory and whether it may be used to the leases.
    pub(crate) fn describe_to_leases(&self, cx: &mut Context<'_>) {
        let Some(device) = self.device.as_ref() else {
            return;
        };
        let is_usable = device.frozen_until.is_none();
        cx.leases.policy.describe(
            Time(cx.now),
            SlotId(self.key.0),
            device.slot.kind,
            (self.models_memory(&device.slot), device.slot.host_path),
            (is_usable, device.is_lost),
        );
    }

    /// Lets exactly the pods compute that hold a lease, or all as far as tokens allow where no leases are needed.
    pub(crate) fn apply_leases(&mut self, cx: &mut Context<'_>) {
        let slot = SlotId(self.key.0);
        let is_leased = cx.leases.policy.is_leased(slot);
        if is_leased == self.is_leased {
            return;
        }
        self.is_leased = is_leased;
        let pods: Vec<PodKey> = cx.leases.pods_of(self.key).collect();
        if is_leased {
            // Which pod computes goes on as holder, unless a queue has stated to hold the lease.
            let computing = pods.iter().copied().find(|key| {
                let pod = self.pods.get(key);
                pod.is_some_and(|pod| pod.holders() > 0)
            });
            if let Some(key) = computing {
                cx.leases
                    .policy
                    .adopt_holder(id_of(key), Time(cx.now), true);
            }
        } else {
            cx.leases.policy.release_slot(Time(cx.now), slot);
            for &key in &pods {
                cx.leases.set_closing(key, None);
            }
        }
        let holder = cx.leases.policy.holder(slot);
        for key in pods {
            let is_open = !is_leased || holder == Some(id_of(key));
            if cx.leases.closing(key).is_none() {
                self.set_open(cx, key, is_open);
            }
        }
    }

    fn set_open(&mut self, cx: &mut Context<'_>, key: PodKey, is_open: bool) {
        cx.leases.set_open(key, is_open);
        let is_lost = self.device.as_ref().is_none_or(|device| device.is_lost);
        // What the holder of a lost slot still runs finds out from the driver, and its lease ends.
        let is_stopped = !is_open || is_lost && !self.is_leased;
        let id = PodId(key.0);
        self.update(cx, |tokens, now, actions| {
            tokens.hard_stop(now, id, is_stopped, actions);
        });
    }

    /// Lets the pods of a slot that is back compute again, as far as leases allow.
    pub(super) fn resume_pods(&mut self, cx: &mut Context<'_>) {
        let pods: Vec<PodKey> = self.pods.keys().copied().collect();
        for key in pods {
            let is_open = cx.leases.is_open(key);
            self.set_open(cx, key, is_open);
        }
    }

    /// Lets a pod compute.
    pub(crate) fn open_pod(&mut self, cx: &mut Context<'_>, key: PodKey) {
        self.set_open(cx, key, true);
    }

    /// Lets a pod compute no more; the answer follows once nothing of it is in flight.
    pub(crate) fn close_pod(&mut self, cx: &mut Context<'_>, key: PodKey, closing: Closing) {
        if !self.is_leased {
            // Nothing is to wait for since leases are needed no more.
            self.set_open(cx, key, true);
            return has_closed(cx, key, closing);
        }
        let is_holder = cx.leases.policy.holder(SlotId(self.key.0)) == Some(id_of(key));
        if is_holder && matches!(closing, Closing::Eviction { .. }) {
            // It has become the holder amid its eviction, by a lease which its queue states: the gate is that lease's.
            return has_closed(cx, key, closing);
        }
        cx.leases.set_closing(key, Some(closing));
        self.set_open(cx, key, false);
    }

    /// Reports to the leases what is known of a pod.
    pub(crate) fn report_to_leases(&mut self, cx: &mut Context<'_>, key: PodKey) {
        self.report_failure(cx, key);
        let Some(pod) = self.pods.get(&key) else {
            return;
        };
        let now = cx.now;
        let devices = || {
            let own = pod.processes().iter();
            own.filter_map(|id| self.processes.get(id)?.device())
        };
        if !pod.has_delayed_claims() && self.waiting_for_room(key).is_empty() {
            let bytes = self.model_bytes(key);
            cx.leases.policy.holds(Time(now), id_of(key), bytes);
        }
        let mut orders_stray = false;
        if pod.moves().current.is_none() {
            let is_any = |residency| devices().any(|device| device.moves().residency == residency);
            // A move of an earlier connection or agent takes memory until it ends, and where it ends is known only then.
            let is_moving = is_any(Residency::Evicting) || is_any(Residency::Restoring);
            // One which did not return with the others, as between two connections, is ordered to: its room stays its own.
            let returns = pod.moves().wanted == Some(Target::Device) && is_any(Residency::Resident);
            let has_stray = !is_moving && !returns && self.has_stray(pod);
            let location = if is_moving || has_stray {
                Location::Device
            } else if is_any(Residency::Host) && !returns {
                Location::Host
            } else if self.held_bytes(pod) > 0 {
                Location::Device
            } else {
                Location::Absent
            };
            if devices().next().is_none() {
                cx.leases.policy.lost(Time(now), id_of(key));
            } else if location != Location::Absent {
                cx.leases.located(now, key, location);
            }
            orders_stray = has_stray && now >= pod.moves().retry_at;
        }
        let waits_for_memory = devices().any(|device| device.moves().waits_until > now);
        let is_parked = (pod.waiters() > 0 && !cx.leases.is_open(key)) || waits_for_memory;
        if is_parked {
            let deadline = cx.leases.parked_deadline(now, key);
            cx.leases.policy.park(Time(now), id_of(key), deadline);
        } else {
            cx.leases.policy.unpark(Time(now), id_of(key));
        }
        let is_quiet = pod.waiters() == 0
            && devices().all(|device| device.is_idle())
            && now.saturating_sub(pod.last_activity()) >= QUIET.0;
        // What waits for memory goes on once it has it.
        let is_waiting = waits_for_memory || pod.has_delayed_claims();
        let since = (is_quiet && !is_waiting).then_some(Time(pod.last_activity()));
        cx.leases.policy.quiet(Time(now), id_of(key), since);
        if pod.holders() == 0
            && let Some(closing) = cx.leases.closing(key)
        {
            cx.leases.set_closing(key, None);
            has_closed(cx, key, closing);
        }
        if orders_stray {
            let _refused = self.begin_move(cx, key, Target::Host, DRAIN_MS, false);
        }
        self.open_for_hashes(cx, key);
    }

    /// Opens the gate of a pod whose model leaves for a lease, and of which a thread waits there, unless another pod computes: its page stated it as sealed, but it
    /// has been touched since, and the kernel of the hashes would wait for a token until everything is copied without.
    fn open_for_hashes(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let Some(pod) = self.pods.get(&key) else {
            return;
        };
        let current = pod.moves().current.as_ref();
        let leaves = current.is_some_and(|current| {
            current.target == Target::Host && current.lease.is_some() && current.undoes.is_none()
        });
        let holder = cx.leases.policy.holder(SlotId(self.key.0));
        // One by one, as tokens are: another that leaves so comes once this one has.
        let mut others = self.pods.keys().filter(|other| **other != key);
        let is_sole = holder.is_none() && !others.any(|other| cx.leases.is_open(*other));
        let is_lost = self.device.as_ref().is_some_and(|device| device.is_lost);
        if leaves && is_sole && !is_lost && pod.waiters() > 0 && !cx.leases.is_open(key) {
            self.set_open(cx, key, true);
        }
    }

    /// Looks again at the pods of the slot whose models leave, since one has left.
    fn look_at_leaving(&self, cx: &mut Context<'_>) {
        let leaving = self.pods.values();
        let leaving = leaving.filter(|pod| pod.moves().current.is_some());
        for pod in leaving {
            cx.leases.touch(pod.key());
        }
    }

    /// Returns whether a process of a pod has device memory although the model was to be on the host and others of the pod have left: it had returned between
    /// two connections, for a restore which has failed since.
    fn has_stray(&self, pod: &ServedPod) -> bool {
        if pod.moves().wanted != Some(Target::Host) {
            return false;
        }
        let own = || {
            let own = pod.processes().iter();
            own.filter_map(|id| Some((*id, self.processes.get(id)?)))
        };
        let is_at = |process: &Process, target| {
            let moves = process.device().map(|device| *device.moves());
            moves.is_some_and(|moves| moves.is_able && moves.is_at(target))
        };
        own().any(|(_, process)| is_at(process, Target::Host))
            && own().any(|(id, process)| {
                // A new one has what it has been granted since.
                let has_returned = process.resumed().is_again && is_at(process, Target::Device);
                has_returned && pod.held_by(id) > 0
            })
    }

    /// Has the processes of a pod copy to the host what changed of their memory, while they hold the lease.
    pub(crate) fn seal_for_lease(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let is_moving = self.current(key).is_some();
        let members = self.pods.get(&key).map(|pod| pod.processes().to_vec());
        let mut pending = BTreeMap::new();
        for id in members.into_iter().flatten().filter(|_| !is_moving) {
            let process = self.processes.get_mut(&id);
            let Some(device) = process.and_then(|process| process.device_mut()) else {
                continue;
            };
            let moves = device.moves_mut();
            let is_there = moves.residency == Residency::Resident && !moves.is_returning;
            if !moves.is_able || !is_there {
                pending.clear();
                break;
            }
            pending.insert(id, moves.next_order());
        }
        if pending.is_empty() {
            return cx.leases.policy.sealed(Time(cx.now), id_of(key), false);
        }
        let orders = pending.iter().map(|(process, seq)| Action::Order {
            process: *process,
            order: Order::Seal { seq: *seq },
        });
        cx.actions.extend(orders);
        cx.leases.begin_seal(key, pending);
    }

    /// Handles the answer of a process to the order to seal. Returns whether it was one.
    pub(super) fn seal_answered(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        id: ProcessId,
        seq: u32,
    ) -> bool {
        let Some(is_last) = cx.leases.seal_answered(key, id, seq) else {
            return false;
        };
        if is_last {
            let is_sealed = self.is_pod_sealed(key);
            let now = Time(cx.now);
            cx.leases.policy.sealed(now, id_of(key), is_sealed);
        }
        true
    }

    /// Returns whether the host has all of the model of a pod, as its processes publish it.
    fn is_pod_sealed(&self, key: PodKey) -> bool {
        let own = self.pods.get(&key).map(|pod| pod.processes().iter());
        let mut own = own.into_iter().flatten();
        own.all(|id| {
            let process = self.processes.get(id);
            process.is_none_or(|process| process.device().is_none() || process.is_sealed())
        })
    }

    /// Moves a pod's model to the host for another's. Unless its processes publish it as sealed, its gate is open meanwhile, for the kernel of the hashes.
    /// `is_sealed`: it was decided on as sealed. One that was touched since then does not leave beside a holder.
    pub(crate) fn evict_for_lease(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        reason: &'static str,
        is_sealed: bool,
    ) {
        if !self.is_pod_sealed(key) {
            let is_sole = cx.leases.policy.holder(SlotId(self.key.0)).is_none();
            if is_sole {
                self.set_open(cx, key, true);
            } else if is_sealed {
                return self.close_pod(cx, key, Closing::Eviction { has_left: false });
            }
        }
        match self.begin_move(cx, key, Target::Host, DRAIN_MS, false) {
            Ok(Begun::Move(_)) => {
                if let Some(current) = self.current(key) {
                    current.lease = Some(reason);
                }
            }
            Ok(Begun::Nothing(_)) => self.close_pod(cx, key, Closing::Eviction { has_left: true }),
            Err(refusal) => {
                self.refuse_move(cx, key, Target::Host, refusal);
                self.close_pod(cx, key, Closing::Eviction { has_left: false });
            }
        }
    }

    /// Moves a pod's model back to its device for its lease.
    pub(crate) fn restore_for_lease(&mut self, cx: &mut Context<'_>, key: PodKey) {
        match self.begin_move(cx, key, Target::Device, DRAIN_MS, false) {
            Ok(Begun::Move(_)) => {
                let trace = cx.leases.trace_of(key);
                if let Some(current) = self.current(key) {
                    current.lease = Some("lease");
                    current.trace = trace;
                }
                cx.leases.note_load(cx.now, key, false);
            }
            Ok(Begun::Nothing(_)) => cx.leases.policy.restored(Time(cx.now), id_of(key), true),
            Err(refusal) => {
                self.refuse_move(cx, key, Target::Device, refusal);
                cx.leases.policy.restored(Time(cx.now), id_of(key), false);
            }
        }
    }

    /// Reports the end of a move that was begun for a lease.
    pub(super) fn lease_move_ended(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        target: Target,
        is_done: bool,
    ) {
        match target {
            Target::Host => {
                self.close_pod(cx, key, Closing::Eviction { has_left: is_done });
                self.look_at_leaving(cx);
            }
            Target::Device => {
                let now = Time(cx.now);
                cx.leases.note_load(cx.now, key, true);
                cx.leases.policy.restored(now, id_of(key), is_done);
                if is_done {
                    let is_sealed = self.is_pod_sealed(key);
                    cx.leases.policy.sealed(now, id_of(key), is_sealed);
                }
                cx.leases.touch(key);
            }
        }
    }

    /// Requests slot memory for a claim that its pod's limit allows. Returns the claim if it may be answered now. What is claimed is that of all the
    /// pod's processes, so that an answer is that of those that wait, too.
    pub(super) fn claim_slot_memory(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        claim: PendingClaim,
    ) -> Option<PendingClaim> {
        let bytes = self.whole_bytes(key);
        let is_away = self.waiting_for_room(key).contains(&claim.answer.process);
        if is_away && claim.answer.bytes <= claim.before {
            return Some(claim);
        }
        match cx.leases.claim(cx.now, key, bytes) {
            Claim::Granted => {
                self.answer_delayed_claims(cx, key, true);
                Some(claim)
            }
            Claim::Waits => {
                if let Some(pod) = self.pods.get_mut(&key) {
                    pod.delay_claim(claim);
                }
                None
            }
            Claim::Refused => {
                self.record_refused_claim(cx, key, claim.answer.process, bytes);
                let claim = self.pods.get_mut(&key).map(|pod| pod.undo_claim(claim));
                let bytes = self.whole_bytes(key);
                if cx.leases.claim(cx.now, key, bytes) == Claim::Granted {
                    self.answer_delayed_claims(cx, key, true);
                }
                claim
            }
        }
    }

    /// Records that a process cannot get what its pod claims, `bytes`: models may never take so much of the slot.
    fn record_refused_claim(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        id: ProcessId,
        bytes: u64,
    ) {
        let Some(slot) = self.device.as_ref().map(|device| Arc::clone(&device.slot)) else {
            return;
        };
        let most = self.models_memory(&slot);
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        if process.count_refused_claim() {
            let source = match slot.models_memory {
                Some(configured) if configured == most => "slots.memory",
                _ => "the slot's memory without contexts",
            };
            let text = format!(
                "process {}: the pod's model would take {bytes} bytes, and models may take {most} of the slot ({source})",
                process.pid()
            );
            self.record(cx, EventKind::ProcessReport, key, text);
        }
    }

    /// Claims anew what a pod's processes wait for, since one of them has ended, so that what it held is the pod's no more, or has connected again with
    /// what it holds.
    pub(super) fn restate_claims(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let delayed = self.pods.get(&key).map_or(0, ServedPod::delayed_bytes);
        if delayed == 0 {
            return;
        }
        let bytes = self.model_bytes(key);
        let held = bytes.saturating_sub(delayed);
        cx.leases.policy.holds(Time(cx.now), id_of(key), held);
        let whole = self.whole_bytes(key);
        match cx.leases.claim(cx.now, key, whole) {
            Claim::Waits => {}
            answer => self.answer_delayed_claims(cx, key, answer == Claim::Granted),
        }
    }

    /// Answers the claims of a pod for which others have left, or cannot.
    pub(crate) fn answer_delayed_claims(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        granted: bool,
    ) {
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        let mut claims = pod.take_delayed_claims();
        if !granted {
            for claim in &mut claims {
                *claim = pod.undo_claim(*claim);
            }
        }
        if !granted {
            let _before = cx.leases.claim(cx.now, key, self.model_bytes(key));
        }
        let waiting = self.waiting_for_room(key);
        if granted {
            for id in waiting {
                self.order_back(cx, id);
            }
        }
        self.publish_memory_of_others(cx.actions, key);
        for claim in claims {
            let order = Order::Claim {
                seq: claim.answer.seq,
                bytes: claim.answer.bytes,
            };
            cx.actions.push(Action::Order {
                process: claim.answer.process,
                order,
            });
        }
    }

    /// Returns the device memory that the processes of a pod have claimed, or state to have if the pod has no limit, in bytes.
    fn held_bytes(&self, pod: &ServedPod) -> u64 {
        if pod.memory_limit() > 0 {
            return pod.claimed();
        }
        let own = pod.processes().iter();
        let devices = own.filter_map(|id| self.processes.get(id)?.device());
        devices.fold(0, |sum: u64, device| {
            sum.saturating_add(device.bytes_used())
        })
    }

    /// Returns the device memory of a pod's model: what its processes have claimed without their contexts and without what is away until there is room, in bytes.
    pub(super) fn model_bytes(&self, key: PodKey) -> u64 {
        let Some(pod) = self.pods.get(&key) else {
            return 0;
        };
        let contexts = pod.processes().iter().map(|id| self.context_of(*id));
        self.held_bytes(pod)
            .saturating_sub(contexts.fold(0, u64::saturating_add))
            .saturating_sub(self.bytes_without_room(key))
    }
}

/// Reports to the leases that a gate is closed.
fn has_closed(cx: &mut Context<'_>, key: PodKey, closing: Closing) {
    let now = Time(cx.now);
    match closing {
        Closing::Lease => cx.leases.policy.closed(now, id_of(key)),
        Closing::Eviction { has_left } => cx.leases.policy.evicted(now, id_of(key), has_left),
    }
}
