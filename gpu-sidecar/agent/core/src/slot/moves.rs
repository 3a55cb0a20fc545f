//! Moves of models between device and host: orders of operators, answers of processes, and windows of host memory. All processes of a pod
//! move, or none.

use annotations::Evict;
use policy::Time;
use policy::host_memory::may_be_given;
use policy::tokens::ProcessId;
use protocol::message::{MoveRefusal, MoveReport, Transfer};
use protocol::page::Residency;

use super::{Context, SlotState};
use crate::action::{Action, Order, OrderAnswer};
use crate::event::{MoveOrder, PodOrder};
use crate::event_kind::EventKind;
use crate::leases::id_of;
use crate::pod::ServedPod;
use crate::pods::PodKey;
use crate::process::{Greeting, Process};
use crate::residency::{DRAIN_MS, Move, PodMoves, ProcessMoves, Target, WINDOWS_MAX};

/// Time for which a notice that a thread waits for memory holds, in nanoseconds: the notices come each 50 ms.
const MEMORY_WAIT_NS: u64 = 500_000_000;

/// Time after a failed move for which a waiting thread does not begin another, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

impl SlotState {
    /// Handles an operator's order.
    pub(crate) fn order(&mut self, cx: &mut Context<'_>, key: PodKey, order: &MoveOrder) {
        let target = match order.order {
            PodOrder::Evict => Target::Host,
            PodOrder::Restore => Target::Device,
        };
        match self.begin_move(cx, key, target, order.drain_ms, false) {
            Ok(Begun::Move(seq)) if order.waits => {
                if let Some(current) = self.current(key) {
                    current.waiting.push(order.number);
                    return;
                }
                // Over at once.
                answer(cx, order.number, OrderAnswer::Accepted { seq });
            }
            Ok(Begun::Move(seq)) => answer(cx, order.number, OrderAnswer::Accepted { seq }),
            Ok(Begun::Nothing(seq)) => {
                let residency = match target {
                    Target::Host => Residency::Host,
                    Target::Device => Residency::Resident,
                };
                let transfer = Transfer::default();
                let done = OrderAnswer::Done {
                    seq,
                    residency,
                    transfer,
                };
                answer(cx, order.number, done);
            }
            Err(refusal) => {
                self.refuse_move(cx, key, target, refusal);
                answer(cx, order.number, OrderAnswer::Refused(refusal));
            }
        }
    }

    /// Handles the notice that a thread waits for the memory of its process.
    pub(super) fn memory_wanted(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let Some(member) = self.member(id) else {
            return;
        };
        let key = member.pod.key();
        let Some(device) = member.process.device_mut() else {
            return;
        };
        let moves = device.moves_mut();
        let until = cx.now.saturating_add(MEMORY_WAIT_NS);
        let is_new = moves.waits_until <= cx.now;
        moves.waits_until = until;
        let is_away = moves.is_at(Target::Host);
        if is_new {
            member.pod.move_counters_mut().demand_waits += 1;
        }
        self.memory_waits_until = until;
        let is_early = self
            .pods
            .get(&key)
            .is_none_or(|pod| cx.now < pod.moves().retry_at);
        if !is_away || is_early || self.current(key).is_some() {
            return;
        }
        if self.has_leased_memory(cx) && !self.is_lost() {
            // Its lease brings it back, unless the model counts as there: the process has left late, by an order from before it connected again.
            self.catch_up(cx, key);
            return cx.leases.touch(key);
        }
        // On a lost slot nothing returns, and no operator need say so.
        if cx.memory.settings.restores_on_demand || self.is_lost() {
            let _begun = self.begin_move(cx, key, Target::Device, DRAIN_MS, true);
        }
    }

    fn is_lost(&self) -> bool {
        self.device.as_ref().is_none_or(|device| device.is_lost)
    }

    pub(super) fn current(&mut self, key: PodKey) -> Option<&mut Move> {
        self.pods.get_mut(&key)?.moves_mut().current.as_mut()
    }

    /// Begins a move, joins the one in progress with the same target, or returns why there is none.
    pub(super) fn begin_move(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        target: Target,
        drain_ms: u32,
        is_demand: bool,
    ) -> Result<Begun, MoveRefusal> {
        let is_lost = self.is_lost();
        let pod = self.pods.get(&key).ok_or(MoveRefusal::NoProcess)?;
        // A process which is to return finds out from the driver, and its threads go on with the error.
        if is_lost && target == Target::Host {
            return Err(MoveRefusal::SlotLost);
        }
        if target == Target::Host && pod.pod().settings.evict == Evict::Never {
            return Err(MoveRefusal::Never);
        }
        if let Some(current) = self.current(key) {
            let joins = current.target == target && current.undoes.is_none();
            return if joins {
                Ok(Begun::Move(current.seq))
            } else {
                Err(MoveRefusal::Draining)
            };
        }
        let pod = self.pods.get(&key).ok_or(MoveRefusal::NoProcess)?;
        if target == Target::Host && self.has_unreachable(pod) {
            return Err(MoveRefusal::Draining);
        }
        let seq = pod.moves().seq;
        let members: Vec<ProcessId> = pod
            .processes()
            .iter()
            .copied()
            .filter(|id| {
                let process = self.processes.get(id);
                process.is_some_and(|process| {
                    process.greeting() == Greeting::Attached && !process.is_lost()
                })
            })
            .collect();
        if members.is_empty() {
            return Err(MoveRefusal::NoProcess);
        }
        let moves = |id: &ProcessId| {
            let device = self.processes.get(id)?.device()?;
            Some(*device.moves())
        };
        if !members.iter().filter_map(moves).all(|moves| moves.is_able) {
            return Err(MoveRefusal::Protocol);
        }
        let is_faulted = |moves: ProcessMoves| moves.residency == Residency::Faulted;
        if members.iter().filter_map(moves).any(is_faulted) {
            return Err(MoveRefusal::StickyError);
        }
        let is_away = |id: &ProcessId| moves(id).is_some_and(|moves| !moves.is_at(target));
        let movers: Vec<ProcessId> = members.into_iter().filter(is_away).collect();
        // The whole model moves.
        let waiting = self.waiting_for_room(key);
        self.set_waiting_for_room(&waiting, false);
        if movers.is_empty() {
            if let Some(pod) = self.pods.get_mut(&key) {
                pod.moves_mut().wanted = Some(target);
            }
            return Ok(Begun::Nothing(seq));
        }
        self.start(
            cx,
            key,
            Start {
                target,
                movers,
                drain_ms,
                is_demand,
                lease: None,
                undoes: None,
                waiting: Vec::new(),
            },
        );
        Ok(Begun::Move(seq + 1))
    }

    /// Returns whether some process of a pod may have device memory and cannot be ordered now: it is between two connections, or an earlier agent
    /// served it and it has not greeted.
    fn has_unreachable(&self, pod: &ServedPod) -> bool {
        let mut processes = pod
            .processes()
            .iter()
            .filter_map(|id| self.processes.get(id));
        !pod.survivors().is_empty()
            || processes.any(|process| {
                process.is_lost()
                    || process.greeting() != Greeting::Attached && process.resumed().is_again
            })
    }

    fn start(&mut self, cx: &mut Context<'_>, key: PodKey, start: Start) {
        let mut pending = std::collections::BTreeMap::new();
        for id in start.movers {
            let device = self
                .processes
                .get_mut(&id)
                .and_then(|process| process.device_mut());
            let Some(device) = device else {
                continue;
            };
            let moves = device.moves_mut();
            let seq = moves.next_order();
            pending.insert(id, seq);
            if start.target == Target::Device {
                cx.memory.pins.returns(Time(cx.now), id);
            }
            cx.actions
                .push(order(id, seq, start.target, start.drain_ms));
        }
        let now = cx.now;
        if let Some(pod) = self.pods.get_mut(&key) {
            let moves = pod.moves_mut();
            if start.undoes.is_none() {
                moves.seq += 1;
            }
            moves.current = Some(Move {
                seq: moves.seq,
                target: start.target,
                is_demand: start.is_demand,
                lease: start.lease,
                trace: None,
                undoes: start.undoes,
                pending,
                moved: Vec::new(),
                refusal: None,
                transfer: Transfer::default(),
                waiting: start.waiting,
                until: PodMoves::end(now, start.drain_ms),
            });
        }
    }

    /// Handles the answer of a process to an order, or the notice that it has restored itself.
    pub(super) fn moved(&mut self, cx: &mut Context<'_>, id: ProcessId, report: &MoveReport) {
        let Some(process) = self.processes.get_mut(&id) else {
            return;
        };
        let (key, pid) = (process.pod(), process.pid());
        let Some(device) = process.device_mut() else {
            return;
        };
        let moves = device.moves_mut();
        moves.set_location(report.residency);
        let has_returned = moves.is_returning && report.seq == moves.order;
        moves.is_returning &= !has_returned;
        if report.seq == 0 {
            if report.refusal.is_none() && process.count_report() {
                let text = format!("process {pid} has restored itself without an agent");
                self.record(cx, EventKind::Restored, key, text);
            }
            return;
        }
        if has_returned {
            return self.returned(cx, key, report);
        }
        if self.seal_answered(cx, key, id, report.seq) {
            return;
        }
        let Some(current) = self.current(key) else {
            return;
        };
        if current.pending.get(&id) != Some(&report.seq) {
            return;
        }
        current.pending.remove(&id);
        match report.refusal {
            None => {
                current.moved.push(id);
                current.transfer = current.transfer.beside(report.transfer);
            }
            Some(refusal) => {
                current.refusal.get_or_insert(refusal);
            }
        }
        self.end_move(cx, key);
    }

    /// Counts and records that a process has returned without a move of its pod, or could not.
    fn returned(&mut self, cx: &mut Context<'_>, key: PodKey, report: &MoveReport) {
        if let Some(refusal) = report.refusal {
            self.count_refusal(key, Target::Device, refusal);
            self.record_refusal(cx, key, Target::Device, refusal);
            return;
        }
        if let Some(pod) = self.pods.get_mut(&key) {
            let counters = pod.move_counters_mut();
            counters.done(false, "order", &report.transfer);
        }
        self.record_transfer(cx, key, Target::Device, &report.transfer, "");
    }

    /// Handles that a process cannot answer any more.
    pub(super) fn leave_move(&mut self, cx: &mut Context<'_>, key: PodKey, id: ProcessId) {
        if let Some(current) = self.current(key)
            && current.pending.remove(&id).is_some()
        {
            current.refusal.get_or_insert(MoveRefusal::NoProcess);
            self.end_move(cx, key);
        }
    }

    /// Ends moves whose processes have not answered for too long.
    pub(super) fn time_out_moves(&mut self, cx: &mut Context<'_>) {
        let now = cx.now;
        let keys: Vec<PodKey> = self.pods.keys().copied().collect();
        for key in keys {
            let Some(current) = self.current(key).filter(|current| current.until <= now) else {
                continue;
            };
            let silent = std::mem::take(&mut current.pending);
            let target = current.target;
            current.refusal.get_or_insert(MoveRefusal::Draining);
            if target == Target::Host {
                // If they leave later, they return: all processes of a pod move, or none.
                for id in silent.into_keys() {
                    self.order_back(cx, id);
                }
            }
            self.end_move(cx, key);
        }
    }

    /// Ends a move if all its processes have answered. One that some process has refused is undone where it was carried out, unless it is a restore for
    /// no lease: that is still wanted.
    fn end_move(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let has_leased_memory = self.has_leased_memory(cx);
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        let moves = pod.moves_mut();
        let Some(current) = moves.current.take_if(|current| current.pending.is_empty()) else {
            return;
        };
        // Of a restore for a lease, what has returned would take memory that others get.
        let is_undone = current.target == Target::Host || current.lease.is_some();
        if let Some(refusal) = current.refusal
            && is_undone
            && current.undoes.is_none()
            && !current.moved.is_empty()
        {
            let start = Start {
                target: current.target.opposite(),
                movers: current.moved,
                drain_ms: DRAIN_MS,
                is_demand: false,
                lease: current.lease,
                undoes: Some(refusal),
                waiting: current.waiting,
            };
            self.start(cx, key, start);
            // It is over at once if those which have moved have ended since.
            return self.end_move(cx, key);
        }
        let refusal = current.undoes.or(current.refusal);
        let target = match current.undoes {
            Some(_) => current.target.opposite(),
            None => current.target,
        };
        // A refused eviction is undone, and a restore that has failed is still wanted, unless its lease orders it again.
        let is_left = current.lease.is_some() && target == Target::Device && refusal.is_some();
        // What was to be on the host before has no room on a slot of leases.
        let is_kept = has_leased_memory && moves.wanted == Some(Target::Host);
        let is_stray = is_kept && target == Target::Host && refusal.is_some();
        moves.wanted = Some(match refusal {
            Some(_) if is_left || is_stray => Target::Host,
            Some(_) => Target::Device,
            None => target,
        });
        let result = match refusal {
            Some(refusal) => {
                if (target == Target::Device || is_stray)
                    && let Some(pod) = self.pods.get_mut(&key)
                {
                    pod.moves_mut().retry_at = cx.now.saturating_add(RETRY_NS);
                }
                self.refuse_move(cx, key, target, refusal);
                OrderAnswer::Refused(refusal)
            }
            None => {
                if let Some(pod) = self.pods.get_mut(&key) {
                    pod.moves_mut().retry_at = 0;
                    let counters = pod.move_counters_mut();
                    let cause = match current.lease {
                        Some(reason) => reason,
                        None if current.is_demand => "demand",
                        None => "order",
                    };
                    counters.done(target == Target::Host, cause, &current.transfer);
                }
                self.record_move(cx, key, &current);
                OrderAnswer::Done {
                    seq: current.seq,
                    residency: match target {
                        Target::Host => Residency::Host,
                        Target::Device => Residency::Resident,
                    },
                    transfer: current.transfer,
                }
            }
        };
        if current.lease.is_some() {
            let is_done = matches!(result, OrderAnswer::Done { .. });
            self.lease_move_ended(cx, key, target, is_done);
        }
        for number in current.waiting {
            answer(cx, number, result);
        }
        // What could not return just now is not tried again by itself.
        if !is_left && (current.target == Target::Host || current.refusal.is_none()) {
            self.catch_up(cx, key);
        }
    }

    /// Counts and records a refused move.
    pub(super) fn refuse_move(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        target: Target,
        refusal: MoveRefusal,
    ) {
        self.count_refusal(key, target, refusal);
        self.record_refusal(cx, key, target, refusal);
    }

    fn count_refusal(&mut self, key: PodKey, target: Target, refusal: MoveRefusal) {
        if let Some(pod) = self.pods.get_mut(&key) {
            let counters = pod.move_counters_mut();
            match target {
                Target::Host => *counters.refused.entry(refusal.name()).or_default() += 1,
                Target::Device => counters.restores_failed += 1,
            }
        }
    }

    fn record_refusal(
        &self,
        cx: &mut Context<'_>,
        key: PodKey,
        target: Target,
        refusal: MoveRefusal,
    ) {
        let kind = match target {
            Target::Host => EventKind::EvictRefused,
            Target::Device => EventKind::RestoreFailed,
        };
        let text = format!("{}: {}", refusal.name(), refusal.text());
        self.record(cx, kind, key, text);
    }

    fn record_move(&self, cx: &mut Context<'_>, key: PodKey, done: &Move) {
        let cause = match done.trace {
            Some(trace) => format!(", for trace {trace:032x}"),
            None if done.is_demand => ", on demand".to_owned(),
            None => String::new(),
        };
        self.record_transfer(cx, key, done.target, &done.transfer, &cause);
    }

    fn record_transfer(
        &self,
        cx: &mut Context<'_>,
        key: PodKey,
        target: Target,
        transfer: &Transfer,
        cause: &str,
    ) {
        let (kind, place) = match target {
            Target::Host => (EventKind::Evicted, "to the host"),
            Target::Device => (EventKind::Restored, "to the device"),
        };
        let Transfer {
            bytes,
            copied_bytes,
            total_ns,
            ..
        } = transfer;
        let text = format!(
            "{bytes} bytes {place}, {copied_bytes} of them copied, in {} ms{cause}",
            total_ns / 1_000_000
        );
        self.record(cx, kind, key, text);
    }

    /// Returns the NUMA nodes that are nearest to the slot's GPU.
    fn numa_nodes(&self) -> Vec<u32> {
        let slot = self.device.as_ref().map(|device| &device.slot);
        slot.map_or_else(Vec::new, |slot| slot.numa_nodes.clone())
    }

    /// Handles a request for host memory: gives the process a window if its pod may move and the node has room.
    pub(super) fn windows_wanted(&mut self, cx: &mut Context<'_>, id: ProcessId, bytes: u64) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let key = process.pod();
        // All processes of a pod together get no more than they can have on the device, and as much again for what is lost on its way.
        let (held_by_others, given) = self.windows_of(key, id);
        let nodes = self.numa_nodes();
        let Some(member) = self.member(id) else {
            return;
        };
        // The memory of a process that is not watched could not be taken back.
        if member.pod.pod().settings.evict == Evict::Never || !member.process.is_watched() {
            return;
        }
        let most = member.windows_max();
        let wanted = bytes.min(most.saturating_sub(held_by_others));
        let Some(device) = member.process.device_mut() else {
            return;
        };
        let windows = &mut device.moves_mut().windows;
        let held = windows.held();
        if windows.count >= WINDOWS_MAX || !may_be_given(given, wanted.saturating_sub(held), most) {
            return;
        }
        let Some(bytes) = cx.memory.host.take(held, wanted) else {
            return;
        };
        let is_pinned = cx.memory.pins.add(id, bytes);
        windows.add(bytes, cx.memory.pins.limit(id));
        if is_pinned {
            cx.actions.push(order_pinned(id, windows.pinned));
        }
        cx.actions.push(Action::SendWindow {
            process: id,
            bytes,
            is_pinned,
            nodes,
        });
        // An eviction may have been refused for want of it.
        cx.leases.policy.hasten(Time(cx.now), id_of(key));
    }

    /// Handles that a window could not be made or sent. The process requests it again when an eviction lacks it.
    pub(crate) fn window_failed(
        &mut self,
        cx: &mut Context<'_>,
        id: ProcessId,
        bytes: u64,
        is_pinned: bool,
    ) {
        let process = self.processes.get_mut(&id);
        let Some(device) = process.and_then(|process| process.device_mut()) else {
            // Its windows were returned at its end.
            return;
        };
        let windows = &mut device.moves_mut().windows;
        let bytes = bytes.min(windows.held());
        let pinned = if is_pinned {
            bytes.min(windows.pinned)
        } else {
            0
        };
        windows.bytes -= bytes;
        windows.count = windows.count.saturating_sub(1);
        cx.memory.host.give_back(bytes);
        cx.memory.pins.take_back(id, bytes, pinned);
        windows.pinned = cx.memory.pins.limit(id);
        cx.actions.push(order_pinned(id, windows.pinned));
    }

    /// Notes that a pod's model is to return, if it is away: meanwhile its copy can be registered with the driver.
    pub(crate) fn expects_return(&self, cx: &mut Context<'_>, key: PodKey) {
        let processes = self.pods.get(&key).map_or(&[][..], ServedPod::processes);
        for id in processes {
            let device = self.processes.get(id).and_then(Process::device);
            if device.is_some_and(|device| device.moves().is_at(Target::Host)) {
                cx.memory.pins.expects(*id);
            }
        }
    }

    /// Sets how much of its windows a process may register with the driver, and of its staging memory, in bytes.
    pub(crate) fn set_pinned(&mut self, cx: &mut Context<'_>, id: ProcessId, bytes: u64) {
        let process = self.processes.get_mut(&id);
        if let Some(device) = process.and_then(|process| process.device_mut()) {
            device.moves_mut().windows.pinned = bytes;
            cx.actions.push(order_pinned(id, bytes));
        }
    }

    /// Returns the host memory that the pod's other processes have, and what all its processes were given, in bytes.
    fn windows_of(&self, key: PodKey, id: ProcessId) -> (u64, u64) {
        let mut sums = (0_u64, 0_u64);
        let processes = self.processes.values();
        for process in processes.filter(|process| process.pod() == key) {
            let Some(device) = process.device() else {
                continue;
            };
            let windows = device.moves().windows;
            sums.1 = sums.1.saturating_add(windows.bytes);
            if process.id() != id {
                sums.0 = sums.0.saturating_add(windows.held());
            }
        }
        sums
    }
}

/// How an order was begun.
pub(super) enum Begun {
    /// By a move with this number.
    Move(u64),
    /// There is nothing to do since the move with this number.
    Nothing(u64),
}

/// What a move begins with.
struct Start {
    target: Target,
    movers: Vec<ProcessId>,
    drain_ms: u32,
    is_demand: bool,
    lease: Option<&'static str>,
    undoes: Option<MoveRefusal>,
    waiting: Vec<u64>,
}

/// Returns the action that writes an order to the page of a process.
pub(super) const fn order(process: ProcessId, seq: u32, target: Target, drain_ms: u32) -> Action {
    Action::Order {
        process,
        order: Order::Move {
            seq,
            to_host: matches!(target, Target::Host),
            drain_ms,
        },
    }
}

const fn order_pinned(process: ProcessId, bytes: u64) -> Action {
    Action::Order {
        process,
        order: Order::Pinned { bytes },
    }
}

fn answer(cx: &mut Context<'_>, number: u64, answer: OrderAnswer) {
    cx.actions.push(Action::Answer { number, answer });
}
