//! A served pod: its memory, counters and processes.

use std::sync::Arc;

use policy::Time;
use policy::claims::{ClaimAnswer, Claims};
use policy::faults::Fault;
use policy::tokens::{Account, PodId, ProcessId, Quota, RevokeReason, Share};
use protocol::message::Refusal;
use protocol::union::Union;

use crate::accept::AcceptLimiter;
use crate::event::ProcessRecord;
use crate::facts::Facts;
use crate::figures::{MoveCounters, PodCounters, protocol_refusal};
use crate::pods::{Pod, PodKey};
use crate::process::{Device, Process, Settlement};
use crate::residency::PodMoves;

/// Maximum number of processes of one pod.
pub(crate) const PROCESSES_OF_POD_MAX: usize = 256;

/// A process which had pages from an earlier agent and has not greeted this one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Survivor {
    pub(crate) record: ProcessRecord,
    /// Number in the scheduler, once it counts as a holder.
    pub(crate) stand_in: Option<ProcessId>,
}

/// A claim which its pod's limit allows, and for which others must leave the slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PendingClaim {
    pub(crate) answer: ClaimAnswer,
    /// What the process might hold before, in bytes.
    pub(crate) before: u64,
}

/// A pod with its processes.
#[derive(Debug)]
pub(crate) struct ServedPod {
    pod: Arc<Pod>,
    accept_limiter: AcceptLimiter,
    counters: PodCounters,
    /// Claims of the pod's processes on its limit of device memory.
    claims: Claims,
    /// Union of the stretches of the pod's processes.
    union: Union,
    /// Kernel time which the scheduler was not charged for yet, in nanoseconds.
    uncharged_ns: u64,
    /// Connected processes, in order of connection.
    processes: Vec<ProcessId>,
    /// Number of processes with pages.
    attached: u32,
    survivors: Vec<Survivor>,
    moves: PodMoves,
    /// Claims for which others must leave the slot.
    delayed: Vec<PendingClaim>,
    /// Limit of device memory where the annotations state none, in bytes; 0: none.
    default_limit: u64,
    /// Time at which a process of the pod was last seen to have launched or claimed, in nanoseconds.
    last_activity: u64,
    launches: u64,
    /// Number of processes with a token or with unfinished work.
    holders: u32,
    /// Number of processes waiting for a token.
    waiters: u32,
    /// Time up to which `given_ns` and `asked_ns` are counted, in nanoseconds.
    counted_to: u64,
    /// Time since which the pod is served, in nanoseconds.
    since: u64,
}

impl ServedPod {
    pub(crate) fn new(pod: Arc<Pod>, survivors: &[ProcessRecord], now: u64) -> Self {
        let survivors = survivors.iter().map(|record| Survivor {
            record: *record,
            stand_in: None,
        });
        Self {
            pod,
            accept_limiter: AcceptLimiter::default(),
            counters: PodCounters::default(),
            claims: Claims::default(),
            union: Union::new(),
            uncharged_ns: 0,
            processes: Vec::new(),
            attached: 0,
            survivors: survivors.collect(),
            moves: PodMoves::default(),
            delayed: Vec::new(),
            default_limit: 0,
            last_activity: now,
            launches: 0,
            holders: 0,
            waiters: 0,
            counted_to: now,
            since: now,
        }
    }

    pub(crate) const fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    pub(crate) fn set_pod(&mut self, pod: &Arc<Pod>) {
        self.pod = Arc::clone(pod);
    }

    pub(crate) fn key(&self) -> PodKey {
        self.pod.key
    }

    /// Returns the number of the pod in the scheduler, which is its key.
    pub(crate) fn id(&self) -> PodId {
        PodId(self.pod.key.0)
    }

    pub(crate) const fn accept_limiter_mut(&mut self) -> &mut AcceptLimiter {
        &mut self.accept_limiter
    }

    pub(crate) const fn moves(&self) -> &PodMoves {
        &self.moves
    }

    pub(crate) const fn moves_mut(&mut self) -> &mut PodMoves {
        &mut self.moves
    }

    pub(crate) const fn move_counters_mut(&mut self) -> &mut MoveCounters {
        &mut self.counters.moves
    }

    pub(crate) const fn counters(&self) -> &PodCounters {
        &self.counters
    }

    /// Returns the connected processes, in order of connection.
    pub(crate) fn processes(&self) -> &[ProcessId] {
        &self.processes
    }

    pub(crate) fn survivors(&self) -> &[Survivor] {
        &self.survivors
    }

    pub(crate) const fn holders(&self) -> u32 {
        self.holders
    }

    pub(crate) const fn waiters(&self) -> u32 {
        self.waiters
    }

    /// Returns the quota from the annotations; a request above the limit is lowered to it.
    pub(crate) fn quota(&self) -> Quota {
        let share = |ppm| Share::from_parts_per_million(ppm).unwrap_or(Share::WHOLE);
        let limit = share(self.pod.settings.quota_limit_ppm);
        let request = share(self.pod.settings.quota_request_ppm).min(limit);
        Quota::new(request, limit).unwrap_or_else(|_| {
            Quota::new(Share::NONE, limit)
                .unwrap_or_else(|_| unreachable!("a request of zero is below every limit"))
        })
    }

    /// Returns the limit of device memory of the pod, in bytes; 0: none.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.pod.settings.gpu_memory.unwrap_or(self.default_limit)
    }

    /// Sets the limit of device memory where the annotations state none, in bytes; 0: none.
    pub(crate) const fn set_default_limit(&mut self, bytes: u64) {
        self.default_limit = bytes;
    }

    /// Returns the sum of what the pod's processes may hold, in bytes.
    pub(crate) fn claimed(&self) -> u64 {
        self.claims.sum()
    }

    /// Returns what a process may hold, in bytes.
    pub(crate) fn claimed_by(&self, id: ProcessId) -> u64 {
        self.claims.of(id)
    }

    /// Returns what a process holds: what it may, less what waits until others have left the slot, in bytes.
    pub(crate) fn held_by(&self, id: ProcessId) -> u64 {
        let mut delayed = self.delayed.iter();
        let delayed = delayed.find(|claim| claim.answer.process == id);
        delayed.map_or_else(|| self.claimed_by(id), |claim| claim.before)
    }

    /// Returns the part of all claims that waits until others have left the slot, in bytes.
    pub(crate) fn delayed_bytes(&self) -> u64 {
        let own = self.delayed.iter();
        own.map(|claim| claim.answer.bytes.saturating_sub(claim.before))
            .fold(0, u64::saturating_add)
    }

    /// Keeps a claim until others have left the slot.
    pub(crate) fn delay_claim(&mut self, claim: PendingClaim) {
        self.delayed
            .retain(|own| own.answer.process != claim.answer.process);
        self.delayed.push(claim);
    }

    /// Returns whether claims wait until others have left the slot.
    pub(crate) fn has_delayed_claims(&self) -> bool {
        !self.delayed.is_empty()
    }

    /// Returns the claims for which others were to leave the slot, and forgets them.
    pub(crate) fn take_delayed_claims(&mut self) -> Vec<PendingClaim> {
        std::mem::take(&mut self.delayed)
    }

    /// Takes a claim back, and returns the answer that leaves the process what it had.
    pub(crate) fn undo_claim(&mut self, claim: PendingClaim) -> PendingClaim {
        let PendingClaim { mut answer, before } = claim;
        answer.bytes = before;
        self.claims.adopt(answer.process, before);
        PendingClaim { answer, before }
    }

    /// Returns when a process of the pod was last seen to have launched or claimed, in nanoseconds.
    pub(crate) const fn last_activity(&self) -> u64 {
        self.last_activity
    }

    /// Records activity of a process of the pod.
    pub(crate) fn set_active(&mut self, now: u64) {
        self.last_activity = self.last_activity.max(now);
    }

    /// Returns when something of the pod is due, in nanoseconds: an answer to a claim, the end of a pause of accepting, or that
    /// of a move.
    pub(crate) fn next_wake(&self) -> Option<u64> {
        let claims = self.claims.next().map(|at| at.0);
        claims
            .into_iter()
            .chain(self.accept_limiter.resumes_at())
            .chain(self.moves.until())
            .min()
    }

    /// Adds a connected process. Returns whether the pod has as many as it may have without it.
    pub(crate) fn connect(&mut self, id: ProcessId) -> bool {
        let is_full = self.processes.len() >= PROCESSES_OF_POD_MAX;
        self.processes.push(id);
        is_full
    }

    /// Counts a process which has got its pages, and the memory that it holds.
    pub(crate) fn attach(&mut self, id: ProcessId, bytes_used: u64) {
        self.attached += 1;
        self.claims.adopt(id, bytes_used);
    }

    /// Removes a process with its claims and its token.
    pub(crate) fn remove(&mut self, process: &Process, now: u64) {
        if let Some(device) = process.device() {
            self.attached = self.attached.saturating_sub(1);
            if device.gate.is_held() {
                self.remove_holder(now);
            } else if device.gate.is_waiting() {
                self.remove_waiter(now);
            }
        }
        self.processes.retain(|own| *own != process.id());
        self.delayed
            .retain(|own| own.answer.process != process.id());
        self.claims.remove(process.id());
    }

    /// Removes the records of a process which has greeted by now, and returns the stand-ins that have counted for them. There
    /// may be several records, with several connections at the end of the earlier agent, and a process that had its number
    /// before is dead.
    pub(crate) fn greet(&mut self, pid: u32, now: u64) -> Vec<ProcessId> {
        let greeted = self.survivors.extract_if(.., |own| own.record.pid == pid);
        let stand_ins: Vec<_> = greeted.filter_map(|own| own.stand_in).collect();
        for _ in &stand_ins {
            self.remove_holder(now);
        }
        stand_ins
    }

    /// Removes a silent process, which has ended. Returns `None` if there is none with this record.
    pub(crate) fn remove_survivor(&mut self, record: ProcessRecord, now: u64) -> Option<Survivor> {
        let at = self.survivors.iter().position(|own| own.record == record)?;
        let survivor = self.survivors.swap_remove(at);
        if survivor.stand_in.is_some() {
            self.remove_holder(now);
        }
        Some(survivor)
    }

    /// Counts the silent processes as holders, each with a stand-in from `take`, as long as that returns one. Returns those
    /// which were not counted before.
    pub(crate) fn count_survivors(
        &mut self,
        now: u64,
        mut take: impl FnMut() -> Option<ProcessId>,
    ) -> Vec<(ProcessId, ProcessRecord)> {
        let silent = self.survivors.iter_mut();
        let counted: Vec<_> = silent
            .filter(|own| own.stand_in.is_none())
            .map_while(|own| {
                let stand_in = take()?;
                own.stand_in = Some(stand_in);
                Some((stand_in, own.record))
            })
            .collect();
        for _ in &counted {
            self.add_holder(now);
        }
        counted
    }

    /// Handles a claim, as [`Claims::claim`].
    pub(crate) fn claim(
        &mut self,
        id: ProcessId,
        seq: u32,
        bytes: u64,
        now: u64,
    ) -> Option<ClaimAnswer> {
        let limit = self.claims_max();
        self.claims.claim(id, seq, bytes, limit, Time(now))
    }

    /// Returns the answers to claims which fit by `now` or have timed out.
    pub(crate) fn answer_claims(&mut self, now: u64) -> Vec<ClaimAnswer> {
        let mut answers = Vec::new();
        let limit = self.claims_max();
        self.claims.answer(limit, Time(now), &mut answers);
        answers
    }

    /// Returns whether an answer to a claim is due.
    pub(crate) fn is_claim_due(&self, now: u64) -> bool {
        self.claims.next().is_some_and(|at| at.0 <= now)
    }

    /// Returns the processes which are to relinquish unused claims; none if no claim waits or they were asked just now.
    pub(crate) fn relinquish(&mut self, now: u64) -> Vec<ProcessId> {
        if !self.claims.ask(Time(now)) {
            return Vec::new();
        }
        let all = self.processes.iter().copied();
        all.filter(|id| !self.claims.is_pending(*id)).collect()
    }

    /// Returns the largest sum of claims, in bytes.
    fn claims_max(&self) -> u64 {
        match self.memory_limit() {
            0 => u64::MAX,
            limit => limit,
        }
    }

    /// Adds the time since the last call to the counter of the current state: held, waiting or neither.
    pub(crate) fn count_time(&mut self, now: u64) {
        let passed = now.saturating_sub(self.counted_to);
        self.counted_to = self.counted_to.max(now);
        if self.holders > 0 {
            self.counters.given_ns = self.counters.given_ns.saturating_add(passed);
        } else if self.waiters > 0 {
            self.counters.asked_ns = self.counters.asked_ns.saturating_add(passed);
        }
    }

    /// Takes the facts of one of the pod's processes: adds up kernel time and counters.
    pub(crate) fn take_facts(
        &mut self,
        device: &mut Device,
        facts: &Facts,
        now: u64,
    ) -> Settlement {
        let alone = self.attached < 2;
        if facts.launches != self.launches || facts.inflight_us > 0 {
            self.launches = facts.launches;
            self.set_active(now);
        }
        let settlement = device.settle(facts, alone, &mut self.union, now);
        device.count(&mut self.counters);
        self.add_used(settlement.pod_ns, now);
        settlement
    }

    /// Returns the kernel time which the scheduler was not charged for before, in nanoseconds.
    pub(crate) fn take_uncharged(&mut self) -> u64 {
        std::mem::take(&mut self.uncharged_ns)
    }

    /// Adds kernel time of the pod, which the scheduler is charged with later: in all, no more than the time that has passed.
    /// Stretches of several processes that arrive long after each other would add up to more.
    fn add_used(&mut self, ns: u64, now: u64) {
        let passed = now.saturating_sub(self.since);
        let ns = ns.min(passed.saturating_sub(self.counters.used_wall_ns));
        let sum = |counter: &mut u64| *counter = counter.saturating_add(ns);
        sum(&mut self.counters.used_wall_ns);
        sum(&mut self.counters.asked_ns);
        sum(&mut self.uncharged_ns);
    }

    pub(crate) fn add_holder(&mut self, now: u64) {
        self.count_time(now);
        self.holders += 1;
    }

    pub(crate) fn remove_holder(&mut self, now: u64) {
        self.count_time(now);
        self.holders = self.holders.saturating_sub(1);
    }

    pub(crate) fn add_waiter(&mut self, now: u64) {
        self.count_time(now);
        self.waiters += 1;
    }

    pub(crate) fn remove_waiter(&mut self, now: u64) {
        self.count_time(now);
        self.waiters = self.waiters.saturating_sub(1);
    }

    /// Adds kernel time, weighted by the SMs of the process, in nanoseconds.
    pub(crate) const fn add_sm_time(&mut self, ns: u64) {
        self.counters.used_sm_ns = self.counters.used_sm_ns.saturating_add(ns);
    }

    /// Counts work that has outlasted its token by this time, in nanoseconds.
    pub(crate) const fn count_overrun(&mut self, ns: u64) {
        self.counters.overruns += 1;
        self.counters.overrun_ns += ns;
    }

    /// Counts a grant to a process which has waited for this time, in nanoseconds.
    pub(crate) fn count_grant(&mut self, waited_ns: u64, now: u64) {
        self.add_holder(now);
        self.remove_waiter(now);
        self.counters.grants += 1;
        self.counters.waits.observe(waited_ns);
    }

    /// Counts a process that is ended for this fault.
    pub(crate) fn count_fault(&mut self, fault: Fault) {
        *self.counters.faults.entry(fault.name()).or_default() += 1;
    }

    /// Counts a revoked token.
    pub(crate) fn count_revoked(&mut self, reason: RevokeReason, now: u64) {
        self.remove_holder(now);
        self.counters.revoked(reason);
    }

    /// Sets what the scheduler has charged: the idle time of held tokens, and all of it.
    pub(crate) const fn set_account(&mut self, account: &Account) {
        self.counters.held_idle_ns = account.held_idle.0;
        self.counters.charged_ns = account.charged.0;
    }

    /// Counts a refused connection by its reason.
    pub(crate) fn count_refused(&mut self, reason: Refusal) {
        let name = protocol_refusal(reason);
        *self.counters.refused_connections.entry(name).or_default() += 1;
    }
}
