//! What one run simulates: everything follows from a seed, and can be made smaller by hand.

use std::fmt;

use agent_core::MemorySettings;
use policy::pool::leases::Rule;
use protocol::page::Streaming;
use testing::Random;

/// Kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Messages are late by up to 50 ms, in order.
    Late,
    /// A connection is cut.
    Cut,
    /// A message of a process arrives twice.
    Doubled,
    /// A message of the agent is not sent, for lack of room in the socket.
    Unsent,
    /// A process sends bytes that are no message.
    Malformed,
    /// A process is killed; another one starts in its pod.
    Kill,
    /// A process is stopped and continued.
    Stop,
    /// A process forks, and the child initialises the driver.
    Fork,
    /// The agent is killed, and another one starts.
    AgentKill,
    /// The agent hangs, and continues.
    AgentHang,
    /// The agent's clock stands still, or is set back.
    Clock,
    /// The processes of a pod lie about themselves and send what they like.
    Liar,
    /// The settings of a pod change.
    PodChange,
    /// A pod is removed and added again.
    PodRemove,
    /// A slot is lost and comes back.
    SlotLost,
    /// A slot's MPS daemon ends and comes back.
    MpsDown,
    /// The queue of the last pod sends what it likes, and connects twice. Only with leases, so that it is none of [`FAULTS`].
    QueueLiar,
    /// The driver of a process reports an error that stays, and the process goes on. Only with leases, under which it is killed.
    Sticky,
}

/// Faults that occur in any run.
pub(crate) const FAULTS: [Fault; 16] = [
    Fault::Late,
    Fault::Cut,
    Fault::Doubled,
    Fault::Unsent,
    Fault::Malformed,
    Fault::Kill,
    Fault::Stop,
    Fault::Fork,
    Fault::AgentKill,
    Fault::AgentHang,
    Fault::Clock,
    Fault::Liar,
    Fault::PodChange,
    Fault::PodRemove,
    Fault::SlotLost,
    Fault::MpsDown,
];

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Seed of all random numbers.
    pub(crate) seed: u64,
    /// Number of slots, 1 or 2.
    pub(crate) slots: usize,
    /// Number of pods.
    pub(crate) pods: usize,
    /// Number of processes in each pod.
    pub(crate) processes: usize,
    /// Virtual time with faults, in milliseconds.
    pub(crate) span_ms: u64,
    /// Mean time between two faults, in milliseconds.
    pub(crate) fault_ms: u64,
    /// Mean time between two orders of operators to move a model, in milliseconds; 0: none, and no model can move.
    pub(crate) orders_ms: u64,
    /// Mean time between two requests to each pod, in milliseconds, on exclusive slots with leases; 0: slots are shared, without queues.
    pub(crate) requests_ms: u64,
    /// Whether pods on different slots are instances of one function, whose queues forward requests to each other. Only with leases.
    pub(crate) siblings: bool,
    /// Whether several pods compute at once on slots with leases, which then are for memory alone.
    pub(crate) shared: bool,
    /// Faults that occur.
    pub(crate) faults: Vec<Fault>,
}

impl Plan {
    /// Returns the plan of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x9e37_79b9_7f4a_7c15);
        // A third of the runs has no fault, so that the strictest checks apply.
        let share = [0, 2, 6][random.index(3)];
        let faults = FAULTS.into_iter().filter(|_| random.below(10) < share);
        let faults: Vec<_> = faults.collect();
        let mut plan = Self {
            seed,
            slots: 1 + random.index(2),
            pods: 1 + random.index(5),
            processes: 1 + random.index(2),
            span_ms: 500 + random.below(4_000),
            fault_ms: 20 + random.below(400),
            faults,
            orders_ms: [0, 5 + random.below(300)][random.index(2)],
            requests_ms: [0, 10 + random.below(300)][random.index(2)],
            siblings: false,
            shared: false,
        };
        // The last draws, so that other runs stay what they were.
        if random.below(4) == 0 && plan.requests_ms > 0 && plan.pods > 1 && share > 0 {
            plan.faults.push(Fault::QueueLiar);
        }
        if random.below(4) == 0 && plan.requests_ms > 0 && share > 0 {
            plan.faults.push(Fault::Sticky);
        }
        plan.siblings = random.below(2) == 0 && plan.requests_ms > 0 && plan.slots > 1;
        plan.shared = random.below(3) == 0 && plan.requests_ms > 0;
        plan.possible()
    }

    /// Leaves out what there is not with leases: an exclusive slot has no MPS, and a pod which lies keeps what it holds.
    fn possible(mut self) -> Self {
        if self.requests_ms > 0 {
            let without = [Fault::Liar, Fault::MpsDown, Fault::PodChange, Fault::Fork];
            self.faults.retain(|fault| !without.contains(fault));
            self.orders_ms = 0;
        }
        self
    }

    /// Returns whether this fault occurs.
    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Returns whether pods compute in turns, by leases.
    pub(crate) const fn has_exclusive_slots(&self) -> bool {
        self.requests_ms > 0 && !self.shared
    }

    /// Returns whether models move.
    pub(crate) const fn moves(&self) -> bool {
        self.orders_ms > 0 || self.requests_ms > 0
    }

    /// Returns how models are moved.
    pub(crate) fn memory(&self) -> MemorySettings {
        if !self.moves() {
            return MemorySettings::default();
        }
        let mut random = Random(self.seed ^ 0x5851_f42d_4c95_7f2d);
        let mut host_bytes = [1 << 30, 16 << 30][random.index(2)];
        if self.requests_ms > 0 {
            // A model that cannot leave keeps the others away.
            host_bytes = 64 << 30;
        }
        MemorySettings {
            host_bytes,
            pinned_bytes: host_bytes / 4,
            restores_on_demand: random.below(4) > 0,
            seal_after_ms: [0, 1, 50][random.index(3)],
            streaming: match self.requests_ms % 2 {
                0 => Streaming::Off,
                _ => Streaming::On,
            },
            rule: Rule::Weir,
            ends_faulted: true,
            staging_bytes: [0, 32 << 20, 1 << 30][random.index(3)],
        }
    }

    /// Returns smaller plans, the smallest first.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        if self.faults.len() > 1 {
            for half in [
                &self.faults[..self.faults.len() / 2],
                &self.faults[self.faults.len() / 2..],
            ] {
                smaller.push(Self {
                    faults: half.to_vec(),
                    ..self.clone()
                });
            }
        }
        for at in 0..self.faults.len() {
            let mut faults = self.faults.clone();
            faults.remove(at);
            smaller.push(Self {
                faults,
                ..self.clone()
            });
        }
        for (slots, pods, processes) in [
            (1, self.pods, self.processes),
            (self.slots, self.pods - 1, self.processes),
            (self.slots, self.pods, self.processes - 1),
        ] {
            if slots * pods * processes > 0 {
                smaller.push(Self {
                    slots,
                    pods,
                    processes,
                    ..self.clone()
                });
            }
        }
        if self.orders_ms > 0 {
            smaller.push(Self {
                orders_ms: 0,
                ..self.clone()
            });
        }
        if self.siblings {
            smaller.push(Self {
                siblings: false,
                ..self.clone()
            });
        }
        for span_ms in [self.span_ms / 4, self.span_ms / 2, self.span_ms * 3 / 4] {
            if span_ms > 10 {
                smaller.push(Self {
                    span_ms,
                    ..self.clone()
                });
            }
        }
        smaller.retain(|plan| plan != self);
        smaller
    }
}

/// The plan as the expression of a named test.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|own| format!("Fault::{own:?}"))
            .collect();
        write!(
            f,
            "Plan {{ seed: {}, slots: {}, pods: {}, processes: {}, span_ms: {}, fault_ms: {}, orders_ms: {}, requests_ms: {}, siblings: {}, shared: {}, faults: vec![{}] }}",
            self.seed,
            self.slots,
            self.pods,
            self.processes,
            self.span_ms,
            self.fault_ms,
            self.orders_ms,
            self.requests_ms,
            self.siblings,
            self.shared,
            faults.join(", ")
        )
    }
}
