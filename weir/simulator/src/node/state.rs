//! State of nodes and their functions between events.

use std::collections::HashMap;

use policy::pool::billing::Bill;
use policy::pool::keepalive::IdleHistogram;
use policy::pool::queue::Queue;
use policy::pool::slots::{Binding, Model, Swap};
use policy::pool::{FunctionId, Percentile, Pool, SlotId};
use policy::{RequestId, Span, Time};

use super::ahead::Ahead;
use super::hardware::{Hardware, bytes};
use super::links::Links;
use super::memory::{MemoryRule, Prepared};
use super::outcome::NodeOutcome;
use super::run::RunError;
use super::settings::{Hosting, Settings};
use super::swap_time::{SwapTime, Swaps};
use crate::random::Stream;
use crate::statistics::Histogram;

/// State of a function. On each of its nodes it also has a local number, so that a node's tables only list its own functions.
pub(super) struct Function {
    pub(super) model: usize,
    pub(super) objective: Span,
    pub(super) percentile: Percentile,
    /// Execution time with the model resident, without noise.
    pub(super) execution: Span,
    /// Nodes that hold the function, and its local number on each.
    pub(super) places: [Option<(u32, u32)>; 2],
    pub(super) noise: Stream,
    pub(super) bill: Bill,
}

/// State of a function on one of its nodes.
pub(super) struct Local {
    pub(super) function: u32,
    /// Whether no slot had room for the function.
    pub(super) refused: bool,
    pub(super) alive: ProcessState,
}

/// State of a function's process, where processes are started and stopped.
#[derive(Debug)]
pub(super) enum ProcessState {
    /// Processes are not started or stopped.
    Always,
    /// The function has no process.
    Cold,
    /// A process is starting on this slot.
    Starting { slot: SlotId },
    /// A process is ready on this slot.
    Warm { slot: SlotId },
}

/// Idle times of a function with keep-alive by history.
pub(super) struct History {
    pub(super) histogram: IdleHistogram,
    /// Number of requests on the node.
    pub(super) present: u32,
    pub(super) idle_since: Option<Time>,
    /// Distinguishes the current end of the keep-alive time from outdated ones.
    pub(super) version: u32,
}

/// State of a request that occupies a slot.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) function: u32,
    /// Local number of the function on the node.
    pub(super) local: u32,
    /// Execution time reported to the router, without noise.
    pub(super) work: Span,
    pub(super) arrival: Time,
    pub(super) objective: Span,
    pub(super) since: Time,
    /// Execution time with the model resident, with noise.
    pub(super) execution: Span,
    /// Time at which execution would end if the model had been resident.
    pub(super) executed: Time,
    pub(super) loads: bool,
    /// Time of waiting for device memory.
    pub(super) waited: Span,
    pub(super) loaded: Time,
}

/// Least number of idle times from which windows are derived (M2.21).
const IDLE_TIMES_MIN: u64 = 5;
/// Keep-alive time of a process until then.
const FIXED_KEEP_ALIVE: Span = Span::from_secs(600);

pub(super) struct Node {
    pub(super) queue: Queue,
    pub(super) pool: Pool,
    pub(super) links: Links,
    pub(super) running: Vec<Option<Request>>,
    /// Models loaded ahead of their requests, by slot.
    pub(super) ahead: Vec<Option<Ahead>>,
    /// Loads that wait for their memory, by slot.
    pub(super) prepared: Vec<Option<Prepared>>,
    pub(super) held: Vec<FunctionId>,
    pub(super) locals: Vec<Local>,
    /// By local number of the function; empty unless processes are kept alive by history.
    pub(super) histories: Vec<History>,
    /// Execution times of waiting requests that differ from their function's.
    pub(super) stated: HashMap<RequestId, Span>,
    pub(super) outcome: NodeOutcome,
    pub(super) random: u64,
    pub(super) requests: u64,
}

impl Node {
    pub(super) fn new(
        hardware: &Hardware,
        settings: &Settings,
        number: u32,
        seed: u64,
        held: Vec<u32>,
        functions: &[Function],
        swaps: &Swaps,
    ) -> Result<Self, RunError> {
        let slots = hardware.node.slots;
        let is_native = settings.hosting != Hosting::Swapped;
        let part = if is_native {
            hardware.node.memory_gb / hardware.node.models_gb
        } else {
            settings.memory_part
        };
        let mut rules = settings.slots;
        if is_native {
            rules.swap = Swap::Off;
        }
        let mut node = Self {
            queue: Queue::new(settings.queue),
            pool: settings.memory.pool(rules, hardware.topology(part)?)?,
            links: Links::new(slots, &hardware.node.pairs, hardware.link.contention),
            running: vec![None; slots],
            ahead: vec![None; slots],
            prepared: vec![None; slots],
            held: Vec::new(),
            locals: Vec::with_capacity(held.len()),
            histories: Vec::new(),
            stated: HashMap::new(),
            outcome: NodeOutcome {
                busy: vec![Span::ZERO; slots],
                loading: vec![Span::ZERO; slots],
                latencies: vec![Histogram::new(); slots],
                ..NodeOutcome::default()
            },
            random: seed ^ (u64::from(number) << 32),
            requests: 0,
        };
        if settings.swap_time != SwapTime::Fitted {
            node.links.keep_progress();
        }
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        for (local, function) in (0..).zip(held) {
            let own = &functions[function as usize];
            let id = FunctionId(local);
            let mut model = hardware.of_pool_swapped(own.model, swaps.alone(own.model));
            if is_native {
                model = Model {
                    bytes: bytes(hardware.models[own.model].footprint_mb * 1e6),
                    execution: own.execution,
                    ..model
                };
            }
            node.pool.add(id, model)?;
            if settings.memory != MemoryRule::Bytes {
                node.pool.set_blocks(id, &hardware.blocks(own.model))?;
            }
            node.queue
                .add(Time::ZERO, id, own.percentile, own.objective)?;
            let estimate = if is_native {
                own.execution
            } else {
                swaps.alone(own.model)
            };
            node.queue.set_estimate(Time::ZERO, id, estimate);
            node.locals.push(Local {
                function,
                refused: false,
                alive: ProcessState::Always,
            });
            node.settle_in(
                settings,
                local,
                slots,
                bytes(hardware.node.residue_mb * 1e6),
            );
        }
        Ok(node)
    }

    /// Places a function's processes before the first request.
    fn settle_in(&mut self, settings: &Settings, local: u32, slots: u32, residue: u64) {
        let id = FunctionId(local);
        let entry = &mut self.locals[local as usize];
        match settings.hosting {
            Hosting::Native => entry.refused = self.pool.settle(id, settings.filling).is_none(),
            Hosting::KeptAlive => {
                let place = self.pool.settle(id, settings.filling);
                entry.alive = match place {
                    Some(slot) => ProcessState::Warm { slot },
                    None => ProcessState::Cold,
                };
                if place.is_none() {
                    self.queue.hold(Time::ZERO, id);
                }
                self.histories.push(History {
                    histogram: IdleHistogram::new(FIXED_KEEP_ALIVE, IDLE_TIMES_MIN),
                    present: 0,
                    idle_since: None,
                    version: 0,
                });
            }
            Hosting::Swapped if settings.slots.binding == Binding::Process => {
                let mut evicted = Vec::new();
                let order = (0..slots).map(|step| SlotId((local + step) % slots));
                let instances = order
                    .filter(|&slot| {
                        self.pool
                            .add_instance(id, slot, residue, &mut evicted)
                            .is_ok()
                    })
                    .take(settings.instances_per_function as usize)
                    .count();
                entry.refused = instances == 0;
            }
            Hosting::Swapped => {}
        }
    }
}
