//! What must hold after every event, compared with what really happens in the processes and on the devices.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use agent_core::{AgentFigures, Order, PodFigures, PodKey, SlotKind};
use policy::tokens::ProcessId;
use preload_state::silence::page_of;
use protocol::page::Residency;
use protocol::queue::ToQueue;

use crate::gpu::Ended;
use crate::moves::Orders;
use crate::node::Node;
use crate::plan::Fault;
use crate::process::{Pass, Process};
use crate::world::{MS, SECOND, World};

/// Largest number of events of a run; more means that something spins.
const EVENTS_MAX: u64 = 2_000_000;
/// Time after which the start of an agent counts silent processes as holders, in nanoseconds.
const SILENT_NS: u64 = 2 * SECOND;
/// Time by which the charges of a pod that has to wait may be below its limit, in nanoseconds, in addition to a twentieth of the limit:
/// the agent grants no token for less.
const SLACK_NS: u64 = 20 * MS;
/// Time before which an agent grants nothing, in nanoseconds.
const FIRST_LOOK_NS: u64 = 300 * MS;

/// Violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) check: &'static str,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(check: &'static str, text: &str) -> Self {
        Self {
            check,
            text: text.to_owned(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.text)
    }
}

/// State of the checks.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    pub(crate) grants: u64,
    /// Claims granted to each process, in bytes.
    claims: BTreeMap<ProcessId, u64>,
    /// Kernel time of each pod within the last 10 s, as disjoint intervals.
    recent: BTreeMap<usize, VecDeque<(u64, u64)>>,
    /// What the present agent has charged each pod.
    charges: BTreeMap<usize, Charges>,
    /// Launches of each process at the begin of the measurement.
    launched: Vec<u64>,
    /// Processes to which the present agent has given pages.
    greeted: BTreeSet<usize>,
    /// Orders of operators to the present agent.
    pub(crate) orders: Orders,
    /// Number of requests to queues so far, and of those that were computed.
    pub(crate) requests: u64,
    pub(crate) requests_served: u64,
    /// Processes which have reported an error that stays to the present agent.
    pub(crate) faulted: BTreeSet<usize>,
    /// Number of requests that another instance has taken.
    pub(crate) forwarded: u64,
    /// Slots on which memory was taken without bounds: while no queue was connected, or on a lost slot.
    pub(crate) unbounded: BTreeSet<usize>,
    /// Slots on which a process without an agent has taken memory, until the models have room again.
    pub(crate) crowded: BTreeSet<usize>,
    /// Pod of each slot which was sent the last lease, and those which could compute when the slot was lost.
    leased: BTreeMap<usize, usize>,
    at_loss: BTreeMap<usize, BTreeSet<usize>>,
    /// What was found where no failure can be returned.
    pub(crate) failed: Option<Failure>,
    /// Wake-ups of the agent at the same time.
    wakes: (u64, u32),
}

/// What a pod was charged.
#[derive(Debug, Default)]
struct Charges {
    /// Number of the pod among all of its key.
    serial: u64,
    /// Total at the last look, in nanoseconds.
    total: u64,
    /// Increments of the last 10 s, each with the time at which it was seen, in nanoseconds.
    increments: VecDeque<(u64, u64)>,
}

impl Charges {
    /// Returns the sum of the increments of the last 10 s, in nanoseconds.
    fn recent(&self, now: u64) -> u64 {
        let horizon = now.saturating_sub(10 * SECOND);
        let recent = self.increments.iter().filter(|(at, _)| *at >= horizon);
        recent.map(|(_, increment)| increment).sum()
    }
}

impl Checks {
    /// Forgets what an earlier agent has granted and charged: the next one knows nothing of it.
    pub(crate) fn forget_agent(&mut self) {
        self.claims.clear();
        self.charges.clear();
        self.greeted.clear();
        self.faulted.clear();
        self.orders.forget_agent();
    }

    /// Notes that the agent gives pages to a process.
    pub(crate) fn greet(&mut self, process: usize) {
        self.greeted.insert(process);
    }

    /// Notes what a process held before it was given pages.
    pub(crate) fn adopt_claim(&mut self, number: ProcessId, bytes: u64) {
        self.claims.insert(number, bytes);
    }

    /// Notes what a pod was charged since the last look.
    fn charge(&mut self, now: u64, pod: &PodFigures) {
        let total = pod.counters.charged_ns;
        let charges = self.charges.entry(pod.pod.key.0 as usize).or_default();
        if charges.serial != pod.pod.serial {
            *charges = Charges {
                serial: pod.pod.serial,
                ..Charges::default()
            };
        }
        let increment = total - charges.total;
        charges.total = total;
        charges.increments.push_back((now, increment));
        let horizon = now.saturating_sub(10 * SECOND);
        while charges
            .increments
            .front()
            .is_some_and(|(at, _)| *at < horizon)
        {
            charges.increments.pop_front();
        }
    }

    pub(crate) fn events(&mut self, events: u64) -> Result<(), Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        if events > EVENTS_MAX {
            return Err(Failure::new("progress", "too many events: something spins"));
        }
        Ok(())
    }
}

pub(crate) fn ensure(
    holds: bool,
    check: &'static str,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if holds {
        return Ok(());
    }
    Err(Failure {
        check,
        text: text(),
    })
}

/// Returns whether a process computes without an agent, or did a moment ago, so that its neighbours may be disturbed.
pub(crate) fn was_ungated(process: &Process, now: u64) -> bool {
    process.ungated_since.is_some()
        || process
            .ungated_at
            .is_some_and(|at| now.saturating_sub(at) < 3 * SECOND)
}

/// Returns the numbers of the processes of a slot that the agent has given pages, each process once.
fn attached(node: &Node, processes: &[Process], slot: usize) -> Vec<(ProcessId, usize)> {
    let Some(agent) = &node.agent else {
        return Vec::new();
    };
    let all = node.by_number.iter().filter_map(|(number, connection)| {
        let process = node.connections[*connection].process;
        let is_there = processes[process].slot == slot && agent.pages(*number).is_some();
        is_there.then_some((*number, process))
    });
    all.collect()
}

impl World {
    /// Invariants 2 and 6, at each grant: the SMs of processes with a token or with unfinished work do not exceed the slot's, and a
    /// new agent grants nothing before all processes have greeted, have died or count as holders.
    pub(crate) fn check_order(
        &mut self,
        process: usize,
        number: ProcessId,
        order: Order,
    ) -> Result<(), Failure> {
        match order {
            Order::Open { .. } => {
                self.checks.grants += 1;
                self.processes[process].revoked_at_probe = None;
                self.check_grant(process)
            }
            Order::Claim { bytes, .. } => self.check_claim(number, bytes),
            _ => Ok(()),
        }
    }

    /// No queue of a slot with leases gets one while the slot is lost, or while a process of its pod is known to have failed.
    pub(crate) fn check_lease(
        &mut self,
        PodKey(pod): PodKey,
        message: &ToQueue,
    ) -> Result<(), Failure> {
        let slot = self.node.pods[pod as usize].pod.slot.0 as usize;
        if let ToQueue::Lease { .. } = message {
            self.checks.leased.insert(slot, pod as usize);
        }
        let is_known_lost = self.node.is_known_lost[slot];
        let is_lease = matches!(message, ToQueue::Lease { .. });
        let is_exclusive = self.node.slots[slot].kind == SlotKind::Exclusive;
        let has_failed = |process: &usize| {
            let own = &self.processes[*process];
            own.is_alive && own.pod == pod as usize
        };
        let has_failed = self.checks.faulted.iter().any(has_failed);
        ensure(!(has_failed && is_lease && is_exclusive), "failed", || {
            format!("a lease for pod {pod}, of which a process has failed")
        })?;
        ensure(
            !(is_known_lost && is_lease && is_exclusive),
            "lost slot",
            || format!("a lease for pod {pod} on a lost slot"),
        )
    }

    /// Notes which pods of a slot could compute when the agent learnt that it is lost: no other gets a token there.
    pub(crate) fn note_loss(&mut self, slot: usize) {
        // One which was ordered to leave may compute its hashes, for which it asks later.
        let is_leaving = |own: &Process| {
            let orders = own.orders();
            let seq = orders.order_seq.load(Ordering::Relaxed);
            orders.residency_wanted.load(Ordering::Relaxed) == Residency::Host as u32
                && own.facts().done_seq.load(Ordering::Relaxed) != seq
        };
        let open = self.processes.iter().filter(|own| own.slot == slot);
        let open = open.filter(|own| own.orders().gate.is_open() || is_leaving(own));
        let mut pods: BTreeSet<usize> = open.map(|own| own.pod).collect();
        pods.extend(self.checks.leased.get(&slot));
        self.checks.at_loss.insert(slot, pods);
    }

    fn check_grant(&mut self, process: usize) -> Result<(), Failure> {
        let (now, node) = (self.now, &self.node);
        let slot = self.processes[process].slot;
        let Some(agent) = &node.agent else {
            return Ok(());
        };
        let age = now - node.started_at;
        ensure(
            age >= FIRST_LOOK_NS || node.clock.is_some(),
            "first look",
            || format!("a token {age} ns after the start of the agent"),
        )?;
        // What a lease has begun ends by what the driver answers.
        let pod = self.processes[process].pod;
        let at_loss = self.checks.at_loss.get(&slot);
        let had_lease = at_loss.is_some_and(|pods| pods.contains(&pod));
        ensure(!node.is_known_lost[slot] || had_lease, "lost slot", || {
            format!("a token for pod {pod} on a lost slot")
        })?;
        let attached = attached(node, &self.processes, slot);
        let mut sum = 0;
        let mut counted = Vec::new();
        let mut text = String::new();
        for (number, own) in attached {
            let process = &self.processes[own];
            if process.is_liar || !process.is_alive || counted.contains(&own) {
                continue;
            }
            let is_open = agent
                .pages(number)
                .is_some_and(|pages| pages.orders.gate.is_open());
            let computes = self.gpus[slot].is_busy(u32::try_from(own).unwrap());
            // One whose token was revoked because it did not answer is taken to compute no longer than it should. The agent counts
            // revocations by pod, so that one of another process of the pod excuses it as well.
            let is_revoked = process
                .revoked_at_probe
                .is_some_and(|before| self.revoked_unresponsive(process.pod) > before);
            let counts = computes && !is_revoked && !was_ungated(process, now);
            // Under a lease all processes of a pod compute.
            let is_counted = self.plan.has_exclusive_slots()
                && counted
                    .iter()
                    .any(|other: &usize| self.processes[*other].pod == process.pod);
            if is_open || counts {
                sum += if is_counted { 0 } else { process.sm_hundredths };
                counted.push(own);
                text += &format!(
                    " {own}: {} (open {is_open}, computes {computes})",
                    process.sm_hundredths
                );
            }
        }
        // Processes which an earlier agent served.
        let there = node.pods.iter().filter(|pod| pod.is_there);
        for pod in there.filter(|pod| pod.pod.slot.0 as usize == slot) {
            for record in &pod.survivors {
                let own = self.processes.iter().position(|process| {
                    process.is_alive && (process.pid, process.start) == (record.pid, record.start)
                });
                let Some(own) = own else { continue };
                let has_greeted = attached_has(node, own);
                let is_counted = self.plan.has_exclusive_slots()
                    && counted
                        .iter()
                        .any(|other| self.processes[*other].pod == self.processes[own].pod);
                let is_silent = !has_greeted && !self.checks.greeted.contains(&own);
                if is_silent && age >= SILENT_NS && !is_counted {
                    counted.push(own);
                    sum += record.sm_hundredths;
                    text += &format!(" {own}: {} (silent)", record.sm_hundredths);
                }
                ensure(
                    has_greeted || age >= SILENT_NS || pod.added_at > node.started_at + SECOND,
                    "silent process",
                    || format!("a token before process {own} has greeted the new agent"),
                )?;
            }
        }
        ensure(sum <= 10_000, "sms", || {
            format!(
                "{sum} hundredths of a percent of the SMs are held after a grant to {process}:{text}"
            )
        })
    }

    /// M4.15: the sum of the claims of a pod stays within its limit, unless it was beyond it before.
    fn check_claim(&mut self, number: ProcessId, bytes: u64) -> Result<(), Failure> {
        let Some(connection) = self.node.connection(number) else {
            return Ok(());
        };
        let pod = self.processes[self.node.connections[connection].process].pod;
        let before = self.checks.claims.insert(number, bytes).unwrap_or(0);
        self.checks
            .claims
            .retain(|number, _| self.node.by_number.contains_key(number));
        let of_pod = self.checks.claims.iter().filter(|(number, _)| {
            let connection = self.node.connection(**number);
            connection.is_some_and(|connection| {
                self.processes[self.node.connections[connection].process].pod == pod
            })
        });
        // Lies add up to more than a word holds.
        let sum = of_pod.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let limit = self.node.pods[pod].pod.settings.gpu_memory;
        let is_changed = self.plan.has(Fault::PodChange);
        ensure(
            bytes <= before || is_changed || limit.is_none_or(|limit| sum <= limit),
            "claims",
            || format!("{sum} bytes are claimed in pod {pod} with a limit of {limit:?}"),
        )
    }

    /// Invariant 19: no launch escapes a gate that was reported as closed.
    pub(crate) fn check_launch(&self, process: usize, pass: &Pass) -> Result<(), Failure> {
        let own = &self.processes[process];
        let (page, epoch) = own.closed;
        ensure(
            own.is_ungated() || page != pass.page || pass.epoch > epoch,
            "launches",
            || {
                format!(
                    "process {process} launches at epoch {} after it has reported {epoch} as closed",
                    pass.epoch
                )
            },
        )
    }

    /// Invariant 18: a token is returned when nothing is in flight.
    pub(crate) fn check_closed(
        &mut self,
        process: usize,
        page: usize,
        epoch: u64,
    ) -> Result<(), Failure> {
        let now = self.now;
        let number = u32::try_from(process).unwrap();
        let own = &mut self.processes[process];
        let is_busy = self.gpus[own.slot].is_busy(number);
        own.closed = (page, epoch);
        // The page may have been replaced while the answer was prepared, and its gate opened again.
        let is_old = page != page_of(own.orders()) || own.orders().gate.epoch() != epoch + 1;
        ensure(
            !(is_busy || own.is_marked) || is_old || was_ungated(own, now),
            "returned token",
            || format!("process {process} returns the token of epoch {epoch} with work in flight"),
        )
    }

    /// Invariant 5: over 10 s at most the limit, one launch of each process and what was in flight.
    pub(crate) fn check_quota(&mut self, kernel: &Ended) -> Result<(), Failure> {
        const CHANGES: [Fault; 7] = [
            Fault::AgentKill,
            Fault::AgentHang,
            Fault::Clock,
            Fault::Liar,
            Fault::PodChange,
            Fault::PodRemove,
            Fault::SlotLost,
        ];
        let process = &self.processes[kernel.process as usize];
        // Time without an agent is not charged.
        if was_ungated(process, kernel.begin) {
            return Ok(());
        }
        let pod = process.pod;
        let limit = u64::from(self.node.pods[pod].pod.settings.quota_limit_ppm);
        let recent = self.checks.recent.entry(pod).or_default();
        let begin = recent
            .back()
            .map_or(kernel.begin, |last| last.1.max(kernel.begin));
        if begin < kernel.end {
            recent.push_back((begin, kernel.end));
        }
        let horizon = kernel.end.saturating_sub(10 * SECOND);
        while recent.front().is_some_and(|first| first.1 <= horizon) {
            recent.pop_front();
        }
        let used: u64 = recent
            .iter()
            .map(|(begin, end)| end - (*begin).max(horizon))
            .sum();
        if CHANGES.iter().any(|fault| self.plan.has(*fault)) {
            return Ok(());
        }
        let launches = self.processes.iter().filter(|own| own.pod == pod);
        let longest: u64 = launches
            .map(|own| own.pace.kernel_ns * 3 / 2)
            .max()
            .unwrap_or(0);
        let processes = self.plan.processes as u64;
        let most = limit * 10_000 + (longest + 3 * MS) * processes + longest;
        ensure(used <= most, "quota", || {
            format!(
                "pod {pod} has used {} us of 10 s, with a limit of {} ms and kernels of {} ms; charged: {:?} ns",
                used / 1_000,
                limit / 100,
                longest / MS,
                self.charged(pod)
            )
        })
    }

    /// Invariants 18 and 20: the SMs of all holders count, and no pod is charged more than what was possible.
    pub(crate) fn check_figures(&mut self) -> Result<(), Failure> {
        let Some(agent) = &self.node.agent else {
            return Ok(());
        };
        let figures = agent
            .agent()
            .figures(&BTreeMap::new(), AgentFigures::default());
        for pod in &figures.pods {
            self.checks.charge(self.now, pod);
        }
        for slot in &figures.slots {
            let at = slot.slot.0 as usize;
            let holding = attached(&self.node, &self.processes, at);
            let open = holding.iter().filter(|(number, _)| {
                agent
                    .pages(*number)
                    .is_some_and(|pages| pages.orders.gate.is_open())
            });
            let sum: u32 = open
                .map(|(_, process)| self.processes[*process].sm_hundredths)
                .sum();
            ensure(slot.held_hundredths >= sum, "held sms", || {
                format!(
                    "{} hundredths of a percent count as held, and gates of {sum} are open",
                    slot.held_hundredths
                )
            })?;
            let mut pods = figures.pods.iter().filter(|pod| pod.pod.slot == slot.slot);
            let is_held = pods.any(|pod| pod.has_token);
            ensure(is_held || slot.held_hundredths == 0, "held sms", || {
                format!(
                    "{} hundredths of a percent count as held, and no pod has a token",
                    slot.held_hundredths
                )
            })?;
        }
        for pod in &figures.pods {
            let number = pod.pod.key.0 as usize;
            let own = &self.node.pods[number];
            // Until its removal is read, a pod is the one before.
            if own.served.0 != pod.pod.serial {
                continue;
            }
            let passed = self.now - own.served.1;
            let used = pod.counters.used_wall_ns;
            // A clock that was set back shows more time than has passed.
            let is_possible = used <= passed || self.plan.has(Fault::Clock);
            ensure(is_possible, "facts", || {
                format!("pod {number} is charged {used} ns in {passed} ns")
            })?;
            let processes = || {
                self.processes
                    .iter()
                    .filter(|process| process.pod == number)
            };
            if processes().any(|process| process.is_liar) {
                continue;
            }
            let charged = pod.counters.charged_ns;
            let is_possible = charged <= passed || self.plan.has(Fault::Clock);
            ensure(is_possible, "charge", || {
                format!("pod {number} is charged {charged} ns of its quota in {passed} ns")
            })?;
            let ran: u64 = processes().map(|process| process.ran_ns).sum();
            ensure(used <= ran, "charge", || {
                format!("pod {number} is charged {used} ns, and its kernels ran for {ran} ns")
            })?;
            let parked = pod.counters.waits.count() == pod.counters.grants;
            ensure(parked, "waits", || {
                format!("pod {number}: a grant without a wait, or a wait without a grant")
            })?;
        }
        Ok(())
    }

    /// After the handling of an event: what the agent keeps is what it has not forgotten.
    pub(crate) fn check_agent(&self) -> Result<(), Failure> {
        let Some(agent) = &self.node.agent else {
            return Ok(());
        };
        for (number, connection) in &self.node.by_number {
            let Some(pages) = agent.pages(*number) else {
                continue;
            };
            let process = &self.processes[self.node.connections[*connection].process];
            let is_same = Arc::ptr_eq(pages, process.page());
            // The gate of a process that is not connected is shut.
            let is_lost = !self.node.connections[*connection].is_open[1];
            ensure(
                !(is_lost && is_same && pages.orders.gate.is_open()),
                "lost process",
                || "the gate of a process without a connection is open".to_owned(),
            )?;
        }
        Ok(())
    }

    /// After a wake-up, the next one is later.
    pub(crate) fn check_wakes(&mut self, now: u64) -> Result<(), Failure> {
        if now == self.checks.wakes.0 {
            self.checks.wakes.1 += 1;
        } else {
            self.checks.wakes = (now, 0);
        }
        let is_standing = self.node.clock.is_some();
        ensure(self.checks.wakes.1 < 10 || is_standing, "wake-ups", || {
            "the agent wakes again and again at the same time".to_owned()
        })
    }

    /// An agent that works is not taken for a hung one.
    pub(crate) fn check_hung(&self, process: usize) -> Result<(), Failure> {
        let excused = [
            Fault::AgentHang,
            Fault::Clock,
            Fault::Stop,
            Fault::AgentKill,
        ];
        ensure(
            excused.iter().any(|fault| self.plan.has(*fault)),
            "heartbeat",
            || format!("process {process} sees no heartbeat of an agent that works"),
        )
    }

    /// A gate opens without an agent only if there is none.
    pub(crate) fn check_ungated(&self, process: usize) -> Result<(), Failure> {
        let excused = [
            Fault::AgentHang,
            Fault::Clock,
            Fault::AgentKill,
            Fault::PodRemove,
        ];
        ensure(
            excused.iter().any(|fault| self.plan.has(*fault)),
            "ungated",
            || format!("process {process} computes without an agent that works"),
        )
    }

    /// Only processes that hold others up are killed.
    pub(crate) fn check_kill(&self, process: usize) -> Result<(), Failure> {
        let own = &self.processes[process];
        ensure(
            own.is_liar || own.is_stopped || own.has_failed,
            "kill",
            || format!("the agent kills process {process}, which does nothing wrong"),
        )
    }

    /// Begins the measurement of progress: every process is served.
    pub(crate) fn begin_measurement(&mut self) -> Result<(), Failure> {
        self.checks.launched = self.processes.iter().map(|own| own.launched).collect();
        for (at, process) in self.processes.iter().enumerate() {
            let is_ours = process.is_alive && !process.is_liar;
            ensure(!is_ours || self.is_attached(at), "service", || {
                format!(
                    "process {at} is not served {:?} (lost: {})",
                    process.link.phase(),
                    process.status.is_lost()
                )
            })?;
        }
        Ok(())
    }

    /// Returns how many tokens of a pod the agent has revoked because a process did not answer a probe.
    pub(crate) fn revoked_unresponsive(&self, pod: usize) -> u64 {
        let Some(agent) = &self.node.agent else {
            return 0;
        };
        let figures = agent
            .agent()
            .figures(&BTreeMap::new(), AgentFigures::default());
        let mut pods = figures.pods.iter();
        let own = pods.find(|own| own.pod.key.0 as usize == pod);
        own.map_or(0, |own| own.counters.revoked_unresponsive)
    }

    /// Returns whether a pod has had what its limit allows: whether it is in debt, or was charged nearly that much in the last 10 s,
    /// as far as the present agent knows. What it was charged is compared with what ran in [`World::check_figures`].
    fn has_debt(&self, pod: usize) -> bool {
        let limit = u64::from(self.node.pods[pod].pod.settings.quota_limit_ppm) * 10_000;
        let agent = self.node.agent.as_ref().map(|agent| agent.agent());
        // Lies are charged as well.
        let mut processes = self.processes.iter();
        if processes.any(|own| own.pod == pod && own.is_liar) && limit < 10 * SECOND {
            return true;
        }
        agent.is_some_and(|agent| {
            let figures = agent.figures(&BTreeMap::new(), AgentFigures::default());
            let mut pods = figures.pods.iter();
            let charges = self.checks.charges.get(&pod);
            let charged = charges.map_or(0, |charges| charges.recent(self.now));
            pods.any(|own| {
                let is_spent = charged + limit / 20 + SLACK_NS >= limit;
                own.pod.key.0 as usize == pod && (own.debt_ns > 0 || is_spent)
            })
        })
    }

    /// Returns the kernel time of a pod within 10 s, in nanoseconds, without the time without an agent.
    fn used_recently(&self, pod: usize) -> u64 {
        let recent = self.checks.recent.get(&pod).into_iter().flatten();
        recent.map(|(begin, end)| end - begin).sum()
    }

    fn charged(&self, pod: usize) -> Option<u64> {
        let figures = self.node.agent.as_ref()?.agent();
        let figures = figures.figures(&BTreeMap::new(), AgentFigures::default());
        let mut pods = figures.pods.iter();
        let own = pods.find(|own| own.pod.key.0 as usize == pod)?;
        Some(own.counters.used_wall_ns)
    }

    fn pods_at_the_agent(&self) -> String {
        let Some(agent) = &self.node.agent else {
            return "there is no agent".to_owned();
        };
        let figures = agent
            .agent()
            .figures(&BTreeMap::new(), AgentFigures::default());
        let pods = figures.pods.iter().map(|pod| {
            format!(
                "pod {} on slot {}: used {} ms, by the devices {} ms in 10 s, debt {} ms, holds {}, waits {}, limit {} ppm",
                pod.pod.key.0,
                pod.pod.slot.0,
                pod.counters.used_wall_ns / MS,
                self.used_recently(pod.pod.key.0 as usize) / MS,
                pod.debt_ns / MS,
                pod.has_token,
                pod.is_waiting,
                pod.pod.settings.quota_limit_ppm
            )
        });
        pods.collect::<Vec<_>>().join("; ")
    }

    /// No thread waits for good, and nothing is left of what has ended.
    pub(crate) fn end_measurement(&self) -> Result<(), Failure> {
        let agent = self.node.agent.as_ref().map(|agent| agent.agent());
        let figures = agent.map(|agent| agent.figures(&BTreeMap::new(), AgentFigures::default()));
        for pod in figures.iter().flat_map(|figures| &figures.pods) {
            ensure(pod.silent_processes == 0, "silent process", || {
                format!(
                    "{} processes of pod {} count as silent, and all are served",
                    pod.silent_processes, pod.pod.key.0
                )
            })?;
        }
        for (at, process) in self.processes.iter().enumerate() {
            let before = self.checks.launched.get(at).copied().unwrap_or(0);
            // A pod which has used more than its limit, as without an agent, waits for its share.
            let is_ours = process.is_alive && !process.is_liar && !self.has_debt(process.pod);
            // Under leases requests must be answered.
            let is_ours = is_ours && self.queues.is_empty();
            ensure(!is_ours || process.launched > before, "progress", || {
                format!(
                    "process {at} of pod {} launches nothing: its program is {:?}; {}",
                    process.pod,
                    process.program,
                    self.pods_at_the_agent()
                )
            })?;
        }
        self.check_moves()?;
        self.check_requests()?;
        let alive = self.processes.iter().filter(|process| process.is_alive);
        let (kept, alive) = (self.node.by_number.len(), alive.count());
        ensure(kept <= alive, "remains", || {
            format!("the agent keeps {kept} processes, and {alive} are alive")
        })
    }
}

fn attached_has(node: &Node, process: usize) -> bool {
    node.by_number
        .values()
        .any(|connection| node.connections[*connection].process == process)
}
