//! The event loop of a run.

use policy::pool::nodes::{NodeId, Nodes};
use policy::pool::slots::{BlocksError, Evicted};
use policy::pool::{FunctionId, Refusal};
use policy::{RequestId, Span, Time};
use thiserror::Error;

use super::groups::{Blocks, Groups};
use super::hardware::{Hardware, HardwareError, nanos};
use super::links::End;
use super::memory::MemoryRule;
use super::outcome::{FunctionOutcome, Outcome};
use super::settings::{Hosting, Settings};
use super::setup;
use super::state::{Function, Node, ProcessState};
use super::swap_time::Swaps;
use crate::agenda::Agenda;
use crate::random::Streams;
use crate::statistics::Histogram;
use crate::traces::{Arrival, TraceError, Work, Workload};

/// Counted part of a run.
#[derive(Clone, Copy, Debug)]
pub struct CountedSpan {
    /// Time from which arriving requests are counted.
    pub from: Time,
    /// End of the run and of the counted span.
    pub to: Time,
    /// Largest number of slot occupancies kept for a picture.
    pub keep: usize,
}

/// Error in the set-up of a run or in its workload.
#[derive(Debug, Error)]
pub enum RunError {
    /// The description of the nodes is invalid.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
    /// The workload could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The policy of the slots refused a setting, a function or a model.
    #[error("{0}")]
    Refused(Refusal),
    /// A function's model is not among those of the hardware.
    #[error("function {function}: there is no model {model:?}; allowed: {allowed}")]
    NoModel {
        /// Name of the function.
        function: String,
        /// Name of the model.
        model: String,
        /// Names of the hardware's models, separated by commas.
        allowed: String,
    },
    /// The memory of slots cannot be divided into these blocks.
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    /// Blocks were requested for models that are not swapped, although their processes allocate their own memory.
    #[error("memory is {memory:?}: allowed where models are not swapped: Bytes")]
    OwnMemory {
        /// Requested management of memory.
        memory: MemoryRule,
    },
    /// There are more functions than the policy has ids for.
    #[error("more functions than {}", policy::pool::IDS_MAX)]
    TooMany,
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

pub(super) enum Event {
    /// A request reaches its node.
    Reaches {
        function: u32,
        arrival: Time,
        objective: Span,
        work: Work,
    },
    /// The device has allocated the memory of a load.
    Prepared { node: u32, slot: u32 },
    /// Predicted end of a load, which may be outdated.
    Loaded { node: u32, end: End },
    /// A slot has executed its request.
    Finished { node: u32, slot: u32 },
    /// A request that waits for a better slot is scheduled again.
    Retry { node: u32 },
    /// A process has started.
    Ready { node: u32, local: u32 },
    /// A process has reached the end of its keep-alive time.
    Expires { node: u32, local: u32, version: u32 },
    /// A request of a function without a process is expected soon.
    Expected { node: u32, local: u32, version: u32 },
}

pub(super) struct Run<'a> {
    pub(super) hardware: &'a Hardware,
    pub(super) settings: &'a Settings,
    pub(super) swaps: Swaps,
    pub(super) span: CountedSpan,
    /// Agenda of the group that is being advanced.
    pub(super) agenda: Agenda<Event>,
    pub(super) functions: Vec<Function>,
    pub(super) nodes: Vec<Node>,
    /// Assignment of functions to nodes, and routing.
    pub(super) cluster: Nodes,
    pub(super) outcome: Outcome,
    in_flight: u64,
    /// Number of events processed by the other groups.
    pub(super) elsewhere: u64,
    /// Departure times of requests, where several groups are advanced in turns.
    pub(super) left: Option<Vec<Time>>,
    /// Largest length of `outcome.taken` during the current group's turn.
    pub(super) keep: usize,
    steps: u64,
    pub(super) evicted: Vec<Evicted>,
    /// Predicted ends of loads that are not in the agenda yet.
    pub(super) ends: Vec<End>,
}

/// Runs a workload on nodes. `watch` is called every 65,536 steps with the number of events and the virtual time, and stops the
/// run by returning false: at once or, with several groups of nodes, at the end of the current block (a few arrivals per function
/// later), when all nodes are at the same time.
///
/// # Errors
/// Returns a [`RunError`] if the hardware or settings are invalid, a model is unknown, or the workload cannot be read.
pub fn run<A>(
    hardware: &Hardware,
    settings: &Settings,
    workload: Workload<A>,
    span: CountedSpan,
    streams: &Streams,
    watch: &mut dyn FnMut(u64, Time) -> bool,
) -> Result<Outcome, RunError>
where
    A: Iterator<Item = Result<Arrival, TraceError>>,
{
    let mut run = Run::new(hardware, settings, &workload, span, streams)?;
    let groups = Groups::new(&run.functions, settings.nodes);
    let to = if groups.count() == 1 {
        run.pass(workload.arrivals, span.to, watch)?;
        run.agenda.now()
    } else {
        run.take_turns(Blocks::new(workload.arrivals, groups)?, watch)?
    };
    let to = if run.outcome.stopped { to } else { span.to };
    Ok(run.end(to))
}

impl<'a> Run<'a> {
    pub(super) fn new<A>(
        hardware: &'a Hardware,
        settings: &'a Settings,
        workload: &Workload<A>,
        span: CountedSpan,
        streams: &Streams,
    ) -> Result<Self, RunError> {
        let is_native = settings.hosting != Hosting::Swapped;
        if is_native && settings.memory != MemoryRule::Bytes {
            return Err(RunError::OwnMemory {
                memory: settings.memory,
            });
        }
        let swaps = Swaps::new(hardware, settings.swap_time);
        let mut functions = setup::functions(hardware, settings, workload, streams)?;
        let (cluster, held) = setup::place(hardware, settings, workload, &swaps, &mut functions)?;
        let mut nodes = Vec::new();
        for (node, held) in (0..).zip(held) {
            nodes.push(Node::new(
                hardware,
                settings,
                node,
                streams.seed(),
                held,
                &functions,
                &swaps,
            )?);
        }
        let outcome = Outcome {
            functions: vec![FunctionOutcome::default(); functions.len()],
            places: functions
                .iter()
                .map(|own| own.places.map(|place| place.map(|(node, _)| node)))
                .collect(),
            models: vec![Histogram::new(); hardware.models.len()],
            normalised: Histogram::new(),
            allocation: Histogram::new(),
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
            swaps,
            span,
            agenda: Agenda::new(),
            functions,
            nodes,
            cluster,
            outcome,
            in_flight: 0,
            elsewhere: 0,
            left: None,
            keep: span.keep,
            steps: 0,
            evicted: Vec::new(),
            ends: Vec::new(),
        })
    }

    /// Processes all events before `until` of one group: these arrivals and the events that follow from them.
    pub(super) fn pass(
        &mut self,
        arrivals: impl IntoIterator<Item = Result<Arrival, TraceError>>,
        until: Time,
        watch: &mut dyn FnMut(u64, Time) -> bool,
    ) -> Result<(), TraceError> {
        let mut arrivals = arrivals.into_iter();
        let mut next = arrivals.next().transpose()?;
        loop {
            let arrives = next.as_ref().map_or(Time::NEVER, |arrival| arrival.at);
            let happens = self.agenda.next_at().unwrap_or(Time::NEVER);
            if arrives.min(happens) >= until {
                return Ok(());
            }
            if happens <= arrives {
                if let Some(event) = self.agenda.take() {
                    self.handle(event);
                }
            } else if let Some(arrival) = next.take() {
                self.agenda.pass_to(arrival.at);
                self.arrive(&arrival);
                next = arrivals.next().transpose()?;
            }
            self.steps += 1;
            if self.steps.is_multiple_of(65_536)
                && !watch(self.elsewhere + self.agenda.taken(), self.agenda.now())
            {
                self.outcome.stopped = true;
                return Ok(());
            }
        }
    }

    /// Counts a request as departed.
    pub(super) fn leave(&mut self) {
        self.in_flight -= 1;
        if let Some(left) = &mut self.left {
            left.push(self.agenda.now());
        }
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
        if self.left.is_none() {
            self.outcome.in_flight_max = self.outcome.in_flight_max.max(self.in_flight);
        }
        let event = Event::Reaches {
            function: arrival.function,
            arrival: arrival.at,
            objective,
            work: arrival.work,
        };
        if self.settings.hops.there == Span::ZERO {
            self.handle(event);
        } else {
            self.agenda
                .add(arrival.at.after(self.settings.hops.there), event);
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.agenda.now();
        match event {
            Event::Reaches {
                function,
                arrival,
                objective,
                work,
            } => self.reach(function, arrival, objective, work),
            Event::Prepared { node, slot } => self.prepared(node, slot),
            Event::Loaded { node, end } => {
                let own = &mut self.nodes[node as usize];
                let is_over = own.links.ends(now, end.slot, end.version, &mut self.ends);
                // First, because granting the slot predicts ends of its own.
                self.schedule_ends(node);
                if is_over {
                    let links = &self.nodes[node as usize].links;
                    match links.slot_ahead(end.slot) {
                        Some(slot) => self.loaded_ahead(node, slot),
                        None => self.loaded(node, end.slot),
                    }
                }
            }
            Event::Finished { node, slot } => {
                self.finish(node, slot);
                self.dispatch(node);
            }
            Event::Retry { node } => self.dispatch(node),
            Event::Ready { node, local } => {
                let own = &mut self.nodes[node as usize];
                if let ProcessState::Starting { slot } = own.locals[local as usize].alive {
                    own.locals[local as usize].alive = ProcessState::Warm { slot };
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

    /// Routes a request to one of its function's nodes and enqueues it there.
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
            self.leave();
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
        // The response must have left the slot by then.
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

    /// Counts requests without an answer and returns the results.
    pub(super) fn end(mut self, to: Time) -> Outcome {
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
                // Every cancelled request leaves the queue, so the loop ends.
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
        self.outcome.counted = to.since(self.span.from);
        self.outcome.events = self.elsewhere + self.agenda.taken();
        self.outcome.nodes = self.nodes.into_iter().map(|node| node.outcome).collect();
        self.outcome
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
pub(super) fn scaled(span: Span, by: f64) -> Span {
    nanos(span.0 as f64 * by)
}
