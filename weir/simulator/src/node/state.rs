//! What is known of nodes and their functions between events.

use std::collections::HashMap;

use policy::pool::billing::Bill;
use policy::pool::keepalive::IdleHistogram;
use policy::pool::queue::Queue;
use policy::pool::slots::{Binding, Model, Swap};
use policy::pool::{FunctionId, Percentile, Pool, SlotId};
use policy::{RequestId, Span, Time};

use super::hardware::{Hardware, bytes};
use super::links::Links;
use super::memory::{MemoryRule, Prepared};
use super::outcome::NodeOutcome;
use super::run::RunError;
use super::settings::{Hosting, Settings};
use super::swap_time::{SwapTime, Swaps};
use crate::random::Stream;
use crate::statistics::Histogram;

/// What is known of a function. On a node it has a number of its own, so that tables are as long as what is there.
pub(super) struct Function {
    pub(super) model: usize,
    pub(super) objective: Span,
    pub(super) percentile: Percentile,
    /// Execution where its model is, without noise.
    pub(super) execution: Span,
    /// The nodes that hold it, and its number on each.
    pub(super) places: [Option<(u32, u32)>; 2],
    pub(super) noise: Stream,
    pub(super) bill: Bill,
}

/// A function of a node.
pub(super) struct Local {
    pub(super) function: u32,
    /// No room was ever found for it.
    pub(super) refused: bool,
    pub(super) alive: Alive,
}

/// Whether a function has a process, where processes come and go.
#[derive(Debug)]
pub(super) enum Alive {
    /// It always has.
    Always,
    /// It has none.
    Cold,
    /// It has one on this slot from then on.
    Starting { slot: SlotId },
    /// It has one.
    Warm { slot: SlotId },
}

/// The history of a function that is kept alive by it.
pub(super) struct History {
    pub(super) histogram: IdleHistogram,
    /// Requests that are on the node.
    pub(super) present: u32,
    pub(super) idle_since: Option<Time>,
    /// Tells ends of keep-alive that hold from others.
    pub(super) version: u32,
}

/// A request on a slot.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) function: u32,
    /// Its number on the node.
    pub(super) local: u32,
    /// What the router was told that it takes.
    pub(super) work: Span,
    pub(super) arrival: Time,
    pub(super) objective: Span,
    pub(super) since: Time,
    /// Execution alone, with its noise.
    pub(super) execution: Span,
    /// When its execution is done, if its model was there all the time.
    pub(super) executed: Time,
    pub(super) loads: bool,
    /// How long for device memory.
    pub(super) waited: Span,
    pub(super) loaded: Time,
}

/// Idle times of fewer requests say nothing (M2.21).
const IDLE_TIMES_MIN: u64 = 5;
/// So long a process is kept until then.
const FIXED_KEEP_ALIVE: Span = Span::from_secs(600);

pub(super) struct Node {
    pub(super) queue: Queue,
    pub(super) pool: Pool,
    pub(super) links: Links,
    pub(super) running: Vec<Option<Request>>,
    /// Loads that wait for their memory.
    pub(super) prepared: Vec<Option<Prepared>>,
    pub(super) held: Vec<FunctionId>,
    pub(super) locals: Vec<Local>,
    /// By function of the node, where processes are kept alive by history.
    pub(super) histories: Vec<History>,
    /// What waiting requests ask for that differs from their function's.
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
                alive: Alive::Always,
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

    /// A function's place before the first request, where it has one.
    fn settle_in(&mut self, settings: &Settings, local: u32, slots: u32, residue: u64) {
        let id = FunctionId(local);
        let entry = &mut self.locals[local as usize];
        match settings.hosting {
            Hosting::Native => entry.refused = self.pool.settle(id, settings.filling).is_none(),
            Hosting::KeptAlive => {
                let place = self.pool.settle(id, settings.filling);
                entry.alive = match place {
                    Some(slot) => Alive::Warm { slot },
                    None => Alive::Cold,
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
