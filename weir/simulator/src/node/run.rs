//! The loop over events.

use std::collections::HashMap;

use policy::pool::billing::Bill;
use policy::pool::keepalive::IdleHistogram;
use policy::pool::nodes::{LoadPerSecond, NodeId, Nodes, PlaceError};
use policy::pool::queue::{Queue, Ticket};
use policy::pool::slots::{Binding, Decision, Evicted, Model, Source, Swap, WaitReason};
use policy::pool::{FunctionId, Pool, Refusal, SlotId};
use policy::{RequestId, Span, Time};
use thiserror::Error;

use super::hardware::{Hardware, HardwareError, bytes, millis, nanos};
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
    /// There are more functions than policy has ids for.
    #[error("more functions than {}", policy::pool::IDS_MAX)]
    TooMany,
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What is known of a function. On a node it has a number of its own, so that tables are as long as what is there.
struct Function {
    model: usize,
    objective: Span,
    /// Execution where its model is, without noise.
    execution: Span,
    /// The nodes that hold it, and its number on each.
    places: [Option<(u32, u32)>; 2],
    noise: Stream,
    bill: Bill,
}

/// A function of a node.
struct Local {
    function: u32,
    /// No room was ever found for it.
    refused: bool,
    alive: Alive,
}

/// Whether a function has a process, where processes come and go.
#[derive(Debug)]
enum Alive {
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
struct History {
    histogram: IdleHistogram,
    /// Requests that are on the node.
    present: u32,
    idle_since: Option<Time>,
    /// Tells ends of keep-alive that hold from others.
    version: u32,
}

/// A request on a slot.
#[derive(Clone, Copy)]
struct Request {
    function: u32,
    /// Its number on the node.
    local: u32,
    /// What the router was told that it takes.
    work: Span,
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
    /// A process is ready.
    Ready { node: u32, local: u32 },
    /// A process has been idle for as long as it may.
    Expires { node: u32, local: u32, version: u32 },
    /// Nothing runs for a function that is expected soon.
    Expected { node: u32, local: u32, version: u32 },
}

/// Idle times of fewer requests say nothing (M2.21).
const IDLE_TIMES_MIN: u64 = 5;
/// So long a process is kept until then.
const FIXED_KEEP_ALIVE: Span = Span::from_secs(600);

struct Node {
    queue: Queue,
    pool: Pool,
    links: Links,
    running: Vec<Option<Request>>,
    held: Vec<FunctionId>,
    locals: Vec<Local>,
    /// By function of the node, where processes are kept alive by history.
    histories: Vec<History>,
    /// What waiting requests ask for that differs from their function's.
    stated: HashMap<RequestId, Span>,
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
    /// Which node serves whom.
    cluster: Nodes,
    outcome: Outcome,
    in_flight: u64,
    evicted: Vec<Evicted>,
    /// On their way into the agenda.
    ends: Vec<End>,
}

/// Runs a workload on nodes. `watch` is told now and then how many events there were and what time it is, and stops the run by
/// false.
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
                places: [None; 2],
                noise: streams.stream(Purpose::Noise, at),
                bill: Bill::default(),
            });
        }
        let mut cluster = Nodes::default();
        for _ in 0..settings.nodes {
            let slots = u32::try_from(hardware.node.slots).unwrap_or(u32::MAX);
            cluster.add_node(slots, bytes(hardware.node.host_gb * 1e9));
        }
        let mut held = vec![Vec::new(); settings.nodes as usize];
        for (at, info) in (0..).zip(&workload.functions) {
            let own = &mut functions[at as usize];
            let per_second = info.per_minute.unwrap_or(1.0) / 60.0;
            let takes = hardware.swapped_alone(own.model);
            let load = LoadPerSecond(scaled(takes, per_second));
            match cluster.place(FunctionId(at), hardware.of_pool(own.model).bytes, load) {
                Ok((first, second)) => {
                    for (place, node) in own.places.iter_mut().zip([Some(first), second]) {
                        if let Some(NodeId(node)) = node {
                            let locals: &mut Vec<u32> = &mut held[node as usize];
                            *place = Some((node, u32::try_from(locals.len()).unwrap_or(u32::MAX)));
                            locals.push(at);
                            own.bill.resident(Time::ZERO);
                        }
                    }
                }
                Err(PlaceError::NoHostMemory) => {}
                Err(_) => return Err(RunError::TooMany),
            }
        }
        let mut nodes = Vec::new();
        for (node, held) in (0..).zip(held) {
            nodes.push(Node::new(
                hardware,
                settings,
                node,
                streams.seed(),
                held,
                &functions,
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
            cluster,
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
        if own.places[0].is_none() {
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
                work,
            } => self.reach(function, arrival, objective, work),
            Event::Loaded { node, end } => {
                let own = &mut self.nodes[node as usize];
                let is_over = own.links.ends(now, end.slot, end.version, &mut self.ends);
                // Before the slot is given on, which foretells ends of its own.
                self.foretell(node);
                if is_over {
                    self.loaded(node, end.slot);
                }
            }
            Event::Finished { node, slot } => {
                self.finish(node, slot);
                self.dispatch(node);
            }
            Event::Again { node } => self.dispatch(node),
            Event::Ready { node, local } => {
                let own = &mut self.nodes[node as usize];
                if let Alive::Starting { slot } = own.locals[local as usize].alive {
                    own.locals[local as usize].alive = Alive::Warm { slot };
                    own.queue.release(now, FunctionId(local));
                    if own.histories[local as usize].present == 0 {
                        self.idles(node, local);
                    }
                    self.dispatch(node);
                }
            }
            Event::Expires {
                node,
                local,
                version,
            } => self.expire(node, local, version),
            Event::Expected {
                node,
                local,
                version,
            } => {
                if self.nodes[node as usize].histories[local as usize].version == version {
                    self.begin_process(node, local);
                }
            }
        }
    }

    /// A request comes to the nodes of its function.
    fn reach(&mut self, function: u32, arrival: Time, objective: Span, work: Work) {
        let now = self.agenda.now();
        let own = &self.functions[function as usize];
        let takes = match work {
            Work::Service(span) => span,
            Work::Unstated | Work::Tokens { .. } => own.execution,
        };
        let Some(NodeId(node)) = self.cluster.route(FunctionId(function), takes) else {
            return;
        };
        let places = own.places.iter().flatten();
        let Some(&(_, local)) = places.into_iter().find(|(at, _)| *at == node) else {
            return;
        };
        let at = &mut self.nodes[node as usize];
        if at.locals[local as usize].refused {
            self.cluster.done(NodeId(node), takes);
            self.in_flight -= 1;
            if arrival >= self.span.from {
                let counted = &mut self.outcome.functions[function as usize];
                counted.requests += 1;
                counted.late += 1;
                counted.refused += 1;
            }
            return;
        }
        at.requests += 1;
        let request = RequestId(at.requests);
        if takes != own.execution {
            at.stated.insert(request, takes);
        }
        // The answer has to be on its way back by then.
        let due = arrival.after(objective).before(self.settings.hops.back);
        let entered = at.queue.arrive(now, FunctionId(local), request, due);
        debug_assert!(entered.is_ok(), "every function was added");
        if self.settings.hosting == Hosting::KeptAlive {
            let history = &mut at.histories[local as usize];
            if let Some(since) = history.idle_since.take() {
                history.histogram.record(now.since(since));
                history.version += 1;
            }
            history.present += 1;
            self.begin_process(node, local);
        }
        self.dispatch(node);
    }

    /// A function that has no process gets one, if a slot has room.
    fn begin_process(&mut self, node: u32, local: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let entry = &mut own.locals[local as usize];
        if !matches!(entry.alive, Alive::Cold) {
            return;
        }
        let slots = u32::try_from(own.running.len()).unwrap_or(u32::MAX);
        let id = FunctionId(local);
        let room = emptiest(&mut own.pool, id, slots);
        own.queue.hold(now, id);
        let Some(slot) = room else { return };
        entry.alive = Alive::Starting { slot };
        let function = &mut self.functions[entry.function as usize];
        let sigma = self.settings.noise.cold_start;
        let factor = function.noise.log_normal(0.0, sigma);
        let takes = millis(self.hardware.models[function.model].cold_start_ms * factor);
        self.agenda
            .add(now.after(takes), Event::Ready { node, local });
    }

    /// Nothing of a function is there any more: how long its process stays.
    fn idles(&mut self, node: u32, local: u32) {
        let now = self.agenda.now();
        let history = &mut self.nodes[node as usize].histories[local as usize];
        history.idle_since = Some(now);
        history.version += 1;
        let (windows, version) = (history.histogram.windows(), history.version);
        let expires = Event::Expires {
            node,
            local,
            version,
        };
        if windows.load_after > Span::ZERO {
            self.agenda.add(now, expires);
            let expected = Event::Expected {
                node,
                local,
                version,
            };
            self.agenda.add(now.after(windows.load_after), expected);
        } else {
            self.agenda.add(now.after(windows.unload_after), expires);
        }
    }

    fn expire(&mut self, node: u32, local: u32, version: u32) {
        let now = self.agenda.now();
        let own = &mut self.nodes[node as usize];
        let history = &own.histories[local as usize];
        let Alive::Warm { slot } = own.locals[local as usize].alive else {
            return;
        };
        if history.version != version || history.present > 0 {
            return;
        }
        self.evicted.clear();
        if own.pool.unload(FunctionId(local), slot, &mut self.evicted) {
            own.locals[local as usize].alive = Alive::Cold;
            own.queue.hold(now, FunctionId(local));
            // Whoever waits for room, in the order of functions.
            let waits = (0..).zip(&own.locals).filter(|(at, other)| {
                matches!(other.alive, Alive::Cold) && own.queue.waiting(FunctionId(*at)) > 0
            });
            let next: Vec<u32> = waits.map(|(at, _)| at).collect();
            for other in next {
                self.begin_process(node, other);
            }
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
        let (function, local) = (request.function, request.local);
        own.queue.set_estimate(
            now,
            FunctionId(local),
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
                let function = own.locals[evicted.function.0 as usize].function;
                let model = self.functions[function as usize].model;
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
        own.queue.completed(now, FunctionId(request.local), in_time);
        self.in_flight -= 1;
        self.cluster.done(NodeId(node), request.work);
        let mut idles = false;
        if let Some(history) = own.histories.get_mut(request.local as usize) {
            history.present -= 1;
            idles = history.present == 0;
        }
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
        self.functions[request.function as usize]
            .bill
            .used(now.since(request.since));
        self.note_evicted(node);
        self.release(node);
        if idles {
            self.idles(node, request.local);
        }
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
        let global = own.locals[head.function.0 as usize].function;
        let function = &mut self.functions[global as usize];
        let noise = &self.settings.noise;
        let factor = (1.0 + noise.execution * function.noise.normal()).max(0.5);
        let work = if own.stated.is_empty() {
            function.execution
        } else {
            own.stated
                .remove(&head.request)
                .unwrap_or(function.execution)
        };
        let execution = scaled(work, factor);
        let objective = head
            .deadline
            .after(self.settings.hops.back)
            .since(head.arrival.before(self.settings.hops.there));
        own.running[slot.0 as usize] = Some(Request {
            function: global,
            local: head.function.0,
            work,
            arrival: head.arrival.before(self.settings.hops.there),
            objective,
            since: now,
            executed: now.after(execution),
            loads: source != Source::Resident,
            loaded: now,
        });
        let counts = now >= self.span.from;
        let weights = self.hardware.models[function.model].weights_mb * 1e6;
        debug_assert!(
            self.ends.is_empty(),
            "all that was foretold is in the agenda"
        );
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
            for local in 0..u32::try_from(node.locals.len()).unwrap_or(u32::MAX) {
                node.queue.release(now, FunctionId(local));
            }
            while let Some((head, _)) = node.queue.next(now) {
                let hops = &self.settings.hops;
                let counted = head.arrival.before(hops.there) >= self.span.from
                    && head.deadline.after(hops.back) < to;
                if counted {
                    let function = node.locals[head.function.0 as usize].function;
                    let own = &mut self.outcome.functions[function as usize];
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
        for (function, outcome) in self.functions.iter().zip(&mut self.outcome.functions) {
            outcome.charged = function.bill.charge(to).gpu_time();
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
        held: Vec<u32>,
        functions: &[Function],
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
            pool: Pool::new(rules, hardware.topology(part)?),
            links: Links::new(slots, &hardware.node.pairs, hardware.link.contention),
            running: vec![None; slots],
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
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        for (local, function) in (0..).zip(held) {
            let own = &functions[function as usize];
            let id = FunctionId(local);
            let mut model = hardware.of_pool(own.model);
            if is_native {
                model = Model {
                    bytes: bytes(hardware.models[own.model].footprint_mb * 1e6),
                    execution: own.execution,
                    ..model
                };
            }
            node.pool.add(id, model)?;
            node.queue
                .add(Time::ZERO, id, settings.percentile, own.objective)?;
            let estimate = if is_native {
                own.execution
            } else {
                hardware.swapped_alone(own.model)
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
            Hosting::Native => entry.refused = emptiest(&mut self.pool, id, slots).is_none(),
            Hosting::KeptAlive => {
                let place = emptiest(&mut self.pool, id, slots);
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

/// Puts a function's process on the slot with the most free memory that has room for it: load is spread as far as can be known
/// before it comes.
fn emptiest(pool: &mut Pool, function: FunctionId, slots: u32) -> Option<SlotId> {
    let free = |slot: u32| pool.slot(SlotId(slot)).map_or(0, |view| view.unused);
    let mut order: Vec<u32> = (0..slots).collect();
    order.sort_by_key(|&slot| (std::cmp::Reverse(free(slot)), slot));
    let place = order
        .into_iter()
        .find(|&slot| pool.adopt(function, SlotId(slot)).is_ok());
    place.map(SlotId)
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
