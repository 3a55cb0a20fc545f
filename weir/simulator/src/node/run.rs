//! The loop over events.

use policy::pool::queue::{Queue, Ticket};
use policy::pool::slots::{Binding, Decision, Evicted, Model, Source, Swap, WaitReason};
use policy::pool::{FunctionId, Pool, Refusal, SlotId};
use policy::{RequestId, Span, Time};
use thiserror::Error;

use super::hardware::{Hardware, HardwareError, millis, nanos};
use super::links::{End, Links};
use super::outcome::{FunctionOutcome, NodeOutcome, Outcome, Taken};
use super::settings::{Hosting, Settings};
use crate::agenda::Agenda;
use crate::random::{Purpose, Stream, Streams};
use crate::statistics::Histogram;
use crate::traces::{Arrival, TraceError, Work, Workload};

/// Which span of a run counts, and what it may be told meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// Requests that arrive from then on count …
    pub from: Time,
    /// … and until then; the run ends there.
    pub to: Time,
    /// How many stretches of slots are kept for a picture.
    pub keep: usize,
}

/// Why a run cannot be made, or came to an end.
#[derive(Debug, Error)]
pub enum RunError {
    /// The nodes cannot be so.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The workload is broken.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Policy does not take it.
    #[error("{0}")]
    Refused(Refusal),
    /// A function's model is not among those of the hardware.
    #[error("function {function}: there is no model {model:?}; allowed: {allowed}")]
    NoModel {
        /// Which function.
        function: String,
        /// Which model.
        model: String,
        /// Those that there are.
        allowed: String,
    },
    /// A function has no objective.
    #[error("function {function} has no objective")]
    NoObjective {
        /// Which.
        function: String,
    },
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What is known of a function.
struct Function {
    model: usize,
    objective: Span,
    /// Execution where its model is, without noise.
    execution: Span,
    /// The node that serves it.
    node: u32,
    /// It has no place and never runs.
    refused: bool,
    noise: Stream,
}

/// A request on a slot.
#[derive(Clone, Copy)]
struct Request {
    function: u32,
    arrival: Time,
    objective: Span,
    since: Time,
    /// When its execution is done, if its model was there all the time.
    executed: Time,
    loads: bool,
    loaded: Time,
}

enum Event {
    /// A request reaches its node.
    Reaches {
        function: u32,
        arrival: Time,
        objective: Span,
        work: Work,
    },
    /// A load's foretold end.
    Loaded { node: u32, end: End },
    /// A slot is done with its request.
    Finished { node: u32, slot: u32 },
    /// A request that could run and waits for a better slot asks again.
    Again { node: u32 },
}

struct Node {
    queue: Queue,
    pool: Pool,
    links: Links,
    running: Vec<Option<Request>>,
    held: Vec<FunctionId>,
    outcome: NodeOutcome,
    random: u64,
    requests: u64,
}

struct Run<'a> {
    hardware: &'a Hardware,
    settings: &'a Settings,
    span: Counted,
    agenda: Agenda<Event>,
    functions: Vec<Function>,
    nodes: Vec<Node>,
    /// Arrival and objective of waiting requests by their number on the node are in the queue; what they ask for is here.
    outcome: Outcome,
    in_flight: u64,
    evicted: Vec<Evicted>,
    ends: Vec<End>,
}

/// Runs a workload on nodes. `watch` is told events, time and length now and then, and stops the run by false.
///
/// # Errors
/// See [`RunError`].
pub fn run<A>(
    hardware: &Hardware,
    settings: &Settings,
    workload: Workload<A>,
    span: Counted,
    streams: &Streams,
    watch: &mut dyn FnMut(u64, Time) -> bool,
) -> Result<Outcome, RunError>
where
    A: Iterator<Item = Result<Arrival, TraceError>>,
{
    let mut run = Run::new(hardware, settings, &workload, span, streams)?;
    let mut arrivals = workload.arrivals;
    let mut next = arrivals.next().transpose()?;
    let mut told = 0;
    loop {
        let arrives = next.as_ref().map_or(Time::NEVER, |arrival| arrival.at);
        let happens = run.agenda.next_at().unwrap_or(Time::NEVER);
        if arrives.min(happens) >= span.to {
            break;
        }
        if happens <= arrives {
            if let Some(event) = run.agenda.take() {
                run.happen(event);
            }
        } else if let Some(arrival) = next.take() {
            run.agenda.pass_to(arrival.at);
            run.arrive(&arrival);
            next = arrivals.next().transpose()?;
        }
        told += 1;
        if told % 65_536 == 0 && !watch(run.agenda.taken(), run.agenda.now()) {
            run.outcome.stopped = true;
            break;
        }
    }
    Ok(run.end())
}

impl<'a> Run<'a> {
    fn new<A>(
        hardware: &'a Hardware,
        settings: &'a Settings,
        workload: &Workload<A>,
        span: Counted,
        streams: &Streams,
    ) -> Result<Self, RunError> {
        let is_native = settings.hosting != Hosting::Swapped;
        let mut functions = Vec::with_capacity(workload.functions.len());
        for (at, info) in (0..).zip(&workload.functions) {
            let name = info.model.as_deref().unwrap_or_default();
            let model = hardware.model(name).ok_or_else(|| RunError::NoModel {
                function: info.name.clone(),
                model: name.to_owned(),
                allowed: hardware
                    .models
                    .iter()
                    .map(|model| model.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
            let times = &hardware.models[model];
            let execution = if is_native {
                times.native_ms
            } else {
                times.execution_ms
            };
            functions.push(Function {
                model,
                objective: info.objective.unwrap_or(Span(u64::MAX / 4)),
                execution: millis(execution),
                node: at % settings.nodes,
                refused: false,
                noise: streams.stream(Purpose::Noise, at),
            });
        }
        let mut nodes = Vec::new();
        for node in 0..settings.nodes {
            nodes.push(Node::new(
                hardware,
                settings,
                node,
                streams.seed(),
                &mut functions,
            )?);
        }
        let outcome = Outcome {
            functions: vec![FunctionOutcome::default(); functions.len()],
            models: vec![Histogram::new(); hardware.models.len()],
            normalised: Histogram::new(),
            nodes: Vec::new(),
            counted: span.to.since(span.from),
            events: 0,
            arrived: 0,
            in_flight_max: 0,
            taken: Vec::new(),
            stopped: false,
        };
        Ok(Self {
            hardware,
            settings,
            span,
            agenda: Agenda::new(),
            functions,
            nodes,
            outcome,
            in_flight: 0,
            evicted: Vec::new(),
            ends: Vec::new(),
        })
    }

    fn arrive(&mut self, arrival: &Arrival) {
        self.outcome.arrived += 1;
        let own = &self.functions[arrival.function as usize];
        let objective = arrival.objective.unwrap_or(own.objective);
        if own.refused {
            if arrival.at >= self.span.from {
                let counted = &mut self.outcome.functions[arrival.function as usize];
                counted.requests += 1;
                counted.late += 1;
                counted.refused += 1;
            }
            return;
        }
        self.in_flight += 1;
        self.outcome.in_flight_max = self.outcome.in_flight_max.max(self.in_flight);
        let event = Event::Reaches {
            function: arrival.function,
            arrival: arrival.at,
            objective,
            work: arrival.work,
        };
        if self.settings.hops.there == Span::ZERO {
            self.happen(event);
        } else {
            self.agenda
                .add(arrival.at.after(self.settings.hops.there), event);
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.agenda.now();
        match event {
            Event::Reaches {
                function,
                arrival,
                objective,
                work: _,
            } => {
                let node = self.functions[function as usize].node;
                let own = &mut self.nodes[node as usize];
                own.requests += 1;
                // The answer has to be on its way back by then.
                let due = arrival.after(objective).before(self.settings.hops.back);
                let request = RequestId(own.requests);
                let entered = own.queue.arrive(now, FunctionId(function), request, due);
                debug_assert!(entered.is_ok(), "every function was added");
                self.dispatch(node);
            }
            Event::Loaded { node, end } => {
                let own = &mut self.nodes[node as usize];
                self.ends.clear();
                if own.links.ends(now, end.slot, end.version, &mut self.ends) {
                    self.loaded(node, end.slot);
                }
                self.foretell(node);
            }
            Event::Finished { node, slot } => {
                self.finish(node, slot);
                self.dispatch(node);
            }
            Event::Again { node } => self.dispatch(node),
        }
    }

    fn foretell(&mut self, node: u32) {
        for end in self.ends.drain(..) {
            self.agenda.add(end.at, Event::Loaded { node, end });
        }
    }

    /// A model is wholly on the slot of the request that waited for it.
    fn loaded(&mut self, node: u32, slot: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(request) = &mut own.running[slot as usize] else {
            return;
        };
        request.loaded = now;
        let adds = millis(self.hardware.link.swap_adds_ms);
        let at = request.executed.max(now).after(adds);
        self.evicted.clear();
        own.pool.loaded(now, SlotId(slot), &mut self.evicted);
        let function = request.function;
        own.queue.set_estimate(
            now,
            FunctionId(function),
            self.functions[function as usize].execution,
        );
        self.agenda.add(at, Event::Finished { node, slot });
        self.note_evicted(node);
        self.release(node);
        // A copy that was locked may give way now.
        self.dispatch(node);
    }

    fn release(&mut self, node: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        for function in own.held.drain(..) {
            own.queue.release(now, function);
        }
    }

    /// What is not on a slot any more takes longer next time.
    fn note_evicted(&mut self, node: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        for evicted in self.evicted.drain(..) {
            if now >= self.span.from {
                own.outcome.evictions += 1;
            }
            if own.pool.hosts(evicted.function).next().is_none() {
                let model = self.functions[evicted.function.0 as usize].model;
                let estimate = self.hardware.swapped_alone(model);
                own.queue.set_estimate(now, evicted.function, estimate);
            }
        }
    }

    fn finish(&mut self, node: u32, slot: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(request) = own.running[slot as usize].take() else {
            return;
        };
        self.evicted.clear();
        own.pool.finished(now, SlotId(slot), &mut self.evicted);
        let latency = now.after(self.settings.hops.back).since(request.arrival);
        let in_time = latency <= request.objective;
        own.queue
            .completed(now, FunctionId(request.function), in_time);
        self.in_flight -= 1;
        let from = self.span.from;
        if now > from {
            let outcome = &mut own.outcome;
            outcome.busy[slot as usize].0 += now.since(request.since.max(from)).0;
            if request.loads {
                let loading = request.loaded.since(request.since.max(from));
                outcome.loading[slot as usize].0 += loading.0;
            }
        }
        if request.arrival >= from {
            own.outcome.latencies[slot as usize].record(latency);
            let model = self.functions[request.function as usize].model;
            self.outcome.models[model].record(latency);
            let part =
                u128::from(latency.0) * 1_000_000_000 / u128::from(request.objective.0.max(1));
            self.outcome
                .normalised
                .record(Span(u64::try_from(part).unwrap_or(u64::MAX)));
            let counted = &mut self.outcome.functions[request.function as usize];
            counted.requests += 1;
            counted.late += u64::from(!in_time);
            counted.loads += u64::from(request.loads);
        }
        if now > from && self.outcome.taken.len() < self.span.keep {
            let slots = u32::try_from(own.running.len()).unwrap_or(u32::MAX);
            self.outcome.taken.push(Taken {
                slot: node * slots + slot,
                function: request.function,
                from: request.since,
                loaded: request.loaded,
                to: now,
            });
        }
        self.note_evicted(node);
        self.release(node);
    }

    /// Gives free slots to whoever is next.
    fn dispatch(&mut self, node: u32) {
        let now = self.agenda.now();
        loop {
            let own = &mut self.nodes[node as usize];
            if own.pool.free_slots() == 0 {
                return;
            }
            let Some((head, _)) = own.queue.next(now) else {
                return;
            };
            let random = split_mix(&mut own.random);
            self.evicted.clear();
            match own
                .pool
                .schedule(now, head.function, random, &mut self.evicted)
            {
                Decision::Run(given) => {
                    self.note_evicted(node);
                    self.start(node, head.ticket, given.slot, given.source);
                }
                Decision::Wait { reason, until } => {
                    if let Some(until) = until {
                        self.agenda.add(until, Event::Again { node });
                    }
                    if reason == WaitReason::NoSlotFree
                        && self.settings.slots.binding == Binding::Pool
                    {
                        return;
                    }
                    // It is not for others that it waits.
                    let own = &mut self.nodes[node as usize];
                    own.queue.hold(now, head.function);
                    own.held.push(head.function);
                }
            }
        }
    }

    fn start(&mut self, node: u32, ticket: Ticket, slot: SlotId, source: Source) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let Some(head) = own.queue.take(now, ticket) else {
            return;
        };
        let function = &mut self.functions[head.function.0 as usize];
        let noise = &self.settings.noise;
        let factor = (1.0 + noise.execution * function.noise.normal()).max(0.5);
        let execution = scaled(function.execution, factor);
        let objective = head
            .deadline
            .after(self.settings.hops.back)
            .since(head.arrival.before(self.settings.hops.there));
        own.running[slot.0 as usize] = Some(Request {
            function: head.function.0,
            arrival: head.arrival.before(self.settings.hops.there),
            objective,
            since: now,
            executed: now.after(execution),
            loads: source != Source::Resident,
            loaded: now,
        });
        let counts = now >= self.span.from;
        let weights = self.hardware.models[function.model].weights_mb * 1e6;
        self.ends.clear();
        match source {
            Source::Resident => {
                own.outcome.resident += u64::from(counts);
                let slot = slot.0;
                self.agenda
                    .add(now.after(execution), Event::Finished { node, slot });
                return;
            }
            Source::Host => {
                own.outcome.host_loads += u64::from(counts);
                let rate = self.hardware.link.host_gb_per_s * 1e9;
                let factor = (1.0 + noise.transfer * function.noise.normal()).max(0.5);
                let alone = nanos(weights / rate * 1e9 * factor);
                own.links.from_host(now, slot.0, alone, &mut self.ends);
            }
            Source::Slot(other) => {
                own.outcome.link_loads += u64::from(counts);
                let rate = self.hardware.link_rate(slot, other);
                let rate = rate.unwrap_or(self.hardware.link.host_gb_per_s * 1e9);
                let factor = (1.0 + noise.transfer * function.noise.normal()).max(0.5);
                let takes = nanos(weights / rate * 1e9 * factor);
                own.links.from_slot(now, slot.0, takes, &mut self.ends);
            }
        }
        self.foretell(node);
    }

    /// Everything counted, with what has no answer.
    fn end(mut self) -> Outcome {
        let to = self.span.to;
        for node in &mut self.nodes {
            let now = to;
            while let Some((head, _)) = node.queue.next(now) {
                let counted = head.arrival >= self.span.from && head.deadline < to;
                if counted {
                    let own = &mut self.outcome.functions[head.function.0 as usize];
                    own.requests += 1;
                    own.late += 1;
                }
                // Each leaves, so this ends.
                let _left = node.queue.cancel(now, head.ticket);
            }
            for (slot, request) in node.running.iter().enumerate() {
                let Some(request) = request else { continue };
                let busy = to.since(request.since.max(self.span.from));
                node.outcome.busy[slot].0 += busy.0;
                let is_late = request.arrival.after(request.objective) < to;
                if request.arrival >= self.span.from && is_late {
                    let own = &mut self.outcome.functions[request.function as usize];
                    own.requests += 1;
                    own.late += 1;
                }
            }
        }
        self.outcome.events = self.agenda.taken();
        self.outcome.nodes = self.nodes.into_iter().map(|node| node.outcome).collect();
        self.outcome
    }
}

impl Node {
    fn new(
        hardware: &Hardware,
        settings: &Settings,
        number: u32,
        seed: u64,
        functions: &mut [Function],
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
        let mut pool = Pool::new(rules, hardware.topology(part)?);
        let mut queue = Queue::new(settings.queue);
        let mut evicted = Vec::new();
        let mut first = 0;
        for (at, function) in (0..).zip(functions.iter_mut()) {
            if function.node != number {
                continue;
            }
            let id = FunctionId(at);
            let mut model = hardware.of_pool(function.model);
            if is_native {
                model = Model {
                    bytes: nanos(hardware.models[function.model].footprint_mb * 1e6).0,
                    execution: function.execution,
                    ..model
                };
            }
            pool.add(id, model)?;
            queue.add(Time::ZERO, id, settings.percentile, function.objective)?;
            let estimate = if is_native {
                function.execution
            } else {
                hardware.swapped_alone(function.model)
            };
            queue.set_estimate(Time::ZERO, id, estimate);
            if is_native {
                // Bound to the first slot that has room, beginning after the last one's.
                let order = (0..slots).map(|step| (first + step) % slots);
                let place = order.into_iter().find(|&slot| {
                    let slot = SlotId(u32::try_from(slot).unwrap_or(u32::MAX));
                    pool.adopt(id, slot).is_ok()
                });
                function.refused = place.is_none();
                first = place.map_or(first, |slot| (slot + 1) % slots);
            } else if rules.binding == Binding::Process {
                let residue = nanos(hardware.node.residue_mb * 1e6).0;
                let mut instances = 0;
                for slot in 0..u32::try_from(slots).unwrap_or(u32::MAX) {
                    let slot = SlotId((at + slot) % u32::try_from(slots).unwrap_or(1));
                    if instances < settings.instances_per_slot
                        && pool.add_instance(id, slot, residue, &mut evicted).is_ok()
                    {
                        instances += 1;
                    }
                }
                function.refused = instances == 0;
            }
        }
        Ok(Self {
            queue,
            pool,
            links: Links::new(slots, &hardware.node.pairs, hardware.link.contention),
            running: vec![None; slots],
            held: Vec::new(),
            outcome: NodeOutcome {
                busy: vec![Span::ZERO; slots],
                loading: vec![Span::ZERO; slots],
                latencies: vec![Histogram::new(); slots],
                ..NodeOutcome::default()
            },
            random: seed ^ (u64::from(number) << 32),
            requests: 0,
        })
    }
}

/// The next number of a sequence (`SplitMix64`).
const fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
fn scaled(span: Span, by: f64) -> Span {
    nanos(span.0 as f64 * by)
}
