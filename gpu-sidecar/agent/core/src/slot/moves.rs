//! Moves of models between device and host: orders of operators, answers of processes, and windows of host memory. All processes of a pod
//! move, or none.

use annotations::Evict;
use policy::tokens::ProcessId;
use protocol::message::{MoveRefusal, MoveReport, Transfer};
use protocol::page::Residency;

use super::{Context, SlotState};
use crate::action::{Action, Order, OrderAnswer};
use crate::event::{MoveOrder, PodOrder};
use crate::event_kind::EventKind;
use crate::pods::PodKey;
use crate::process::Greeting;
use crate::residency::{DRAIN_MS, Move, PodMoves, Target, WINDOWS_MAX};

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
                self.count_refusal(key, target, refusal);
                self.record_refusal(cx, key, target, refusal);
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
        if cx.memory.settings.restores_on_demand {
            let _begun = self.begin_move(cx, key, Target::Device, DRAIN_MS, true);
        }
    }

    fn current(&mut self, key: PodKey) -> Option<&mut Move> {
        self.pods.get_mut(&key)?.moves_mut().current.as_mut()
    }

    /// Begins a move, joins the one in progress with the same target, or returns why there is none.
    fn begin_move(
        &mut self,
        cx: &mut Context<'_>,
        key: PodKey,
        target: Target,
        drain_ms: u32,
        is_demand: bool,
    ) -> Result<Begun, MoveRefusal> {
        let is_lost = self.device.as_ref().is_none_or(|device| device.is_lost);
        let pod = self.pods.get(&key).ok_or(MoveRefusal::NoProcess)?;
        if is_lost {
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
        let is_away = |id: &ProcessId| moves(id).is_some_and(|moves| !moves.is_at(target));
        let movers: Vec<ProcessId> = members.into_iter().filter(is_away).collect();
        if movers.is_empty() {
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
                undoes: None,
                waiting: Vec::new(),
            },
        );
        Ok(Begun::Move(seq + 1))
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
        device.moves_mut().residency = report.residency;
        if report.seq == 0 {
            if report.refusal.is_none() && process.count_report() {
                let text = format!("process {pid} has restored itself without an agent");
                self.record(cx, EventKind::Restored, key, text);
            }
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

    /// Orders a process to return to its device whenever it can. Nothing waits for its answer.
    fn order_back(&mut self, cx: &mut Context<'_>, id: ProcessId) {
        let process = self.processes.get_mut(&id);
        let Some(device) = process.and_then(|process| process.device_mut()) else {
            return;
        };
        let seq = device.moves_mut().next_order();
        cx.actions.push(order(id, seq, Target::Device, DRAIN_MS));
    }

    /// Ends a move if all its processes have answered. An eviction that some process has refused is undone where it was carried out.
    fn end_move(&mut self, cx: &mut Context<'_>, key: PodKey) {
        let Some(pod) = self.pods.get_mut(&key) else {
            return;
        };
        let moves = pod.moves_mut();
        let Some(current) = moves.current.take_if(|current| current.pending.is_empty()) else {
            return;
        };
        if let Some(refusal) = current.refusal
            && current.target == Target::Host
            && current.undoes.is_none()
            && !current.moved.is_empty()
        {
            let start = Start {
                target: current.target.opposite(),
                movers: current.moved,
                drain_ms: DRAIN_MS,
                is_demand: false,
                undoes: Some(refusal),
                waiting: current.waiting,
            };
            self.start(cx, key, start);
            // It is over at once if those which have moved have ended since.
            return self.end_move(cx, key);
        }
        let refusal = current.undoes.or(current.refusal);
        let target = match current.undoes {
            Some(_) => Target::Host,
            None => current.target,
        };
        let result = match refusal {
            Some(refusal) => {
                if let Some(pod) = self.pods.get_mut(&key) {
                    pod.moves_mut().retry_at = cx.now.saturating_add(RETRY_NS);
                }
                self.count_refusal(key, target, refusal);
                self.record_refusal(cx, key, target, refusal);
                OrderAnswer::Refused(refusal)
            }
            None => {
                if let Some(pod) = self.pods.get_mut(&key) {
                    let counters = pod.move_counters_mut();
                    counters.done(target == Target::Host, current.is_demand, &current.transfer);
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
        for number in current.waiting {
            answer(cx, number, result);
        }
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
        let (kind, place) = match done.target {
            Target::Host => (EventKind::Evicted, "to the host"),
            Target::Device => (EventKind::Restored, "to the device"),
        };
        let Transfer {
            bytes,
            copied_bytes,
            total_ns,
            ..
        } = done.transfer;
        let text = format!(
            "{bytes} bytes {place}, {copied_bytes} of them copied, in {} ms{}",
            total_ns / 1_000_000,
            if done.is_demand { ", on demand" } else { "" }
        );
        self.record(cx, kind, key, text);
    }

    /// Handles a request for host memory: gives the process a window if its pod may move and the node has room.
    pub(super) fn windows_wanted(&mut self, cx: &mut Context<'_>, id: ProcessId, bytes: u64) {
        let Some(process) = self.processes.get(&id) else {
            return;
        };
        let key = process.pod();
        // All processes of a pod together get no more than they can have on the device.
        let others = self.windows_of_others(key, id);
        let Some(member) = self.member(id) else {
            return;
        };
        // The memory of a process that is not watched could not be taken back.
        if member.pod.pod().settings.evict == Evict::Never || !member.process.is_watched() {
            return;
        }
        let wanted = bytes.min(member.windows_max().saturating_sub(others));
        let Some(device) = member.process.device_mut() else {
            return;
        };
        let moves = device.moves_mut();
        if moves.window_count >= WINDOWS_MAX {
            return;
        }
        let Some(window) = cx.memory.host.take(moves.windows, wanted) else {
            return;
        };
        moves.windows += window.bytes;
        moves.window_count += 1;
        if window.is_pinned {
            moves.pinned += window.bytes;
        }
        cx.actions.push(Action::SendWindow {
            process: id,
            bytes: window.bytes,
            is_pinned: window.is_pinned,
        });
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
        let moves = device.moves_mut();
        let bytes = bytes.min(moves.windows);
        let pinned = if is_pinned {
            bytes.min(moves.pinned)
        } else {
            0
        };
        moves.windows -= bytes;
        moves.pinned -= pinned;
        cx.memory.host.give_back(bytes, pinned);
    }

    /// Returns the host memory of the pod's other processes, in bytes.
    fn windows_of_others(&self, key: PodKey, id: ProcessId) -> u64 {
        let others = self.processes.values();
        let others = others.filter(|other| other.pod() == key && other.id() != id);
        let windows = others.filter_map(|other| Some(other.device()?.moves().windows));
        windows.fold(0, u64::saturating_add)
    }
}

/// How an order was begun.
enum Begun {
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
    undoes: Option<MoveRefusal>,
    waiting: Vec<u64>,
}

/// Returns the action that writes an order to the page of a process.
const fn order(process: ProcessId, seq: u32, target: Target, drain_ms: u32) -> Action {
    Action::Order {
        process,
        order: Order::Move {
            seq,
            to_host: matches!(target, Target::Host),
            drain_ms,
        },
    }
}

fn answer(cx: &mut Context<'_>, number: u64, answer: OrderAnswer) {
    cx.actions.push(Action::Answer { number, answer });
}
