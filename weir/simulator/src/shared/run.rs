//! The event loop: assigns requests to pods and places pods on GPUs.

mod scale;

use std::collections::VecDeque;

use policy::rectangles::{FunctionId, InstanceId, Rectangles, SlotId};
use policy::scaling::profile::{Objective, Points, RowError};
use policy::scaling::{Action, Load, Scaler};
use policy::tokens::{Quota, Refusal, SettingsError};
use policy::{Span, Time, rectangles};
use thiserror::Error;

use super::gpu::{self, Gpu, Guest, Suspension};
use super::models::Models;
use super::outcome::{FunctionOutcome, Outcome, PodOutcome};
use super::pods::{Phase, Pods, Request};
use super::profile;
use super::settings::{Choice, CountedSpan, Scaling, Settings};
use crate::agenda::Agenda;
use crate::random::{Purpose, Stream, Streams};
use crate::traces::{Arrival, TraceError, Workload};

/// A pod with a closed loop: each answer is followed by the next request.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// Index of the model.
    pub model: usize,
    /// SMs of the pod, in hundredths of a percent.
    pub sm: u32,
    /// Share of wall time.
    pub quota: Quota,
    /// GPU on which the pod runs.
    pub gpu: u32,
    /// Number of requests in flight except during pauses, at least one.
    pub in_flight: u32,
    /// Time from an answer to the request that follows it.
    pub pause: Span,
    /// Periodic suspension of the pod's process, if any.
    pub suspension: Option<Suspension>,
}

/// Error in the set-up of a run or in its workload.
#[derive(Debug, Error)]
pub enum RunError {
    /// The workload could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The token scheduler rejects its settings.
    #[error("tokens: {0}")]
    Tokens(#[from] SettingsError),
    /// The token scheduler refuses a pod.
    #[error("tokens: {0}")]
    Pod(#[from] Refusal),
    /// The packer rejects its settings.
    #[error("rectangles: {0}")]
    Packing(#[from] rectangles::SettingsError),
    /// The packer refuses a GPU or a pod.
    #[error("rectangles: {0}")]
    Place(#[from] rectangles::Refusal),
    /// A model cannot be profiled.
    #[error("profile: {0}")]
    Row(#[from] RowError),
    /// A function's model is not among the known ones.
    #[error("function {function}: there is no model {model:?}")]
    NoModel {
        /// Name of the function.
        function: String,
        /// Name of the model.
        model: String,
    },
    /// No pod of a function fits a GPU.
    #[error("function {function}: no pod of it fits a GPU")]
    TooLarge {
        /// Name of the function.
        function: String,
    },
}

enum Event {
    Gpu(u32, gpu::Event),
    /// A pod has started; carries its number and the number of its start.
    Ready(u32, u64),
    /// The pause of a closed loop is over.
    Continue(u32),
    /// The scalers of all functions decide.
    Decide,
}

struct Function {
    model: usize,
    /// Time within which requests are to be answered.
    objective: Span,
    noise: Stream,
    /// Random stream for the durations of cold starts.
    starts: Stream,
    /// Requests that arrived when no pod was serving.
    held: VecDeque<Request>,
    /// Serving pods, in the order in which they became ready.
    ready: Vec<u32>,
    scaled: Option<FunctionScaler>,
    outcome: FunctionOutcome,
}

struct FunctionScaler {
    load: Load,
    scaler: Scaler,
}

struct Run<'a> {
    models: &'a Models,
    settings: &'a Settings,
    scaling: Option<&'a Scaling>,
    span: CountedSpan,
    agenda: Agenda<Event>,
    gpus: Vec<Gpu>,
    functions: Vec<Function>,
    pods: Pods,
    packer: Rectangles,
    outcome: Outcome,
    /// Buffer for the actions of a scaler's decision.
    actions: Vec<Action>,
    /// Time until which the lifetimes of pods are counted.
    counted_to: Time,
    /// Sum of window × SMs of all existing pods, in whole GPUs.
    area: f64,
}

/// Runs pods with closed loops. Each pod is a function of its own.
///
/// # Errors
/// Returns a [`RunError`] if the scheduler refuses its settings or a pod.
pub fn loops(
    models: &Models,
    settings: &Settings,
    pods: &[Loop],
    span: CountedSpan,
    streams: &Streams,
) -> Result<Outcome, RunError> {
    let gpus = pods.iter().map(|pod| pod.gpu + 1).max().unwrap_or(0);
    let mut run = Run::new(models, settings, None, gpus, span)?;
    let mut counted_from = Vec::new();
    for (at, own) in (0..).zip(pods) {
        (run.functions).push(Function::new(own.model, Span(u64::MAX), streams, at));
        let pod = run
            .pods
            .add(at, own.gpu, own.sm, own.quota, Some(own.pause));
        run.pods[pod].suspension = own.suspension;
        run.join(pod)?;
        for _ in 0..own.in_flight.max(1) {
            run.arrive_at(pod, Time::ZERO);
        }
    }
    let mut counts = false;
    while let Some(at) = run.agenda.next_at() {
        if at >= span.from && !counts {
            counts = true;
            counted_from = run.busy(span.from);
        }
        if at >= span.to {
            break;
        }
        run.take()?;
    }
    let to = run.busy(span.to);
    let mut outcome = run.end();
    for (at, busy) in to.into_iter().enumerate() {
        let before = counted_from.get(at).copied().unwrap_or(Span::ZERO);
        outcome.pods.push(PodOutcome {
            answered: outcome.functions[at].requests,
            busy: busy.less(before),
        });
    }
    Ok(outcome)
}

/// Serves a workload with pods that a scaler starts and stops.
///
/// # Errors
/// Returns a [`RunError`] if the settings, a model or the workload are refused.
pub fn serve<A>(
    models: &Models,
    settings: &Settings,
    scaling: &Scaling,
    workload: Workload<A>,
    span: CountedSpan,
    streams: &Streams,
) -> Result<Outcome, RunError>
where
    A: Iterator<Item = Result<Arrival, TraceError>>,
{
    let mut run = Run::new(models, settings, Some(scaling), scaling.gpus, span)?;
    for (at, info) in (0..).zip(&workload.functions) {
        let name = info.model.as_deref().unwrap_or_default();
        let model = models.model(name).ok_or_else(|| RunError::NoModel {
            function: info.name.clone(),
            model: name.to_owned(),
        })?;
        let rows = profile::rows(
            models,
            &models.models[model],
            &settings.tokens,
            FunctionId(at),
        )?;
        let rows = rows.of(&profile::subject(FunctionId(at)));
        let points = match scaling.choice {
            Choice::MeetsObjective { per_mille } => {
                let objective = info
                    .objective
                    .map(|latency| Objective { latency, per_mille });
                Points::select(rows, objective, models.gpu_memory())
            }
            Choice::AsPrinted => Points::as_printed(rows),
        };
        let points = points.ok_or_else(|| RunError::TooLarge {
            function: info.name.clone(),
        })?;
        let objective = info.objective.unwrap_or(Span(u64::MAX));
        let mut function = Function::new(model, objective, streams, at);
        let efficient = *points.efficient();
        function.scaled = Some(FunctionScaler {
            load: Load::new(Time::ZERO, scaling.load),
            scaler: Scaler::new(scaling.scaler, points),
        });
        run.functions.push(function);
        for _ in 0..scaling.first_pods {
            run.start(at, &efficient, Some(Time::ZERO));
        }
    }
    run.agenda
        .add(Time::ZERO.after(scaling.every), Event::Decide);
    let mut arrivals = workload.arrivals;
    let mut next = arrivals.next().transpose()?;
    loop {
        let arrives = next.as_ref().map_or(Time::NEVER, |arrival| arrival.at);
        let happens = run.agenda.next_at().unwrap_or(Time::NEVER);
        if arrives.min(happens) >= span.to {
            break;
        }
        if happens <= arrives {
            run.take()?;
        } else if let Some(arrival) = next.take() {
            run.agenda.pass_to(arrival.at);
            run.arrive(&arrival);
            next = arrivals.next().transpose()?;
        }
    }
    run.count_pods(span.to);
    Ok(run.end())
}

impl<'a> Run<'a> {
    fn new(
        models: &'a Models,
        settings: &'a Settings,
        scaling: Option<&'a Scaling>,
        gpus: u32,
        span: CountedSpan,
    ) -> Result<Self, RunError> {
        let packing = scaling.map_or_else(rectangles::Settings::default, |own| own.rectangles);
        let mut packer = Rectangles::new(packing)?;
        let mut list = Vec::new();
        for gpu in 0..gpus {
            packer.add_slot(SlotId(gpu), models.gpu_memory())?;
            list.push(Gpu::new(settings.tokens, models.gate)?);
        }
        Ok(Self {
            models,
            settings,
            scaling,
            span,
            agenda: Agenda::new(),
            gpus: list,
            functions: Vec::new(),
            pods: Pods::default(),
            packer,
            outcome: Outcome {
                counted: span.length(),
                ..Outcome::default()
            },
            actions: Vec::new(),
            counted_to: Time::ZERO,
            area: 0.0,
        })
    }

    fn take(&mut self) -> Result<(), RunError> {
        match self.agenda.take() {
            Some(Event::Gpu(gpu, event)) => {
                self.gpus[gpu as usize].handle(self.agenda.now(), event);
                self.handle_ended(gpu);
            }
            // The pod may have been removed meanwhile, and its number reused.
            Some(Event::Ready(pod, start)) if self.pods[pod].start != start => {}
            Some(Event::Ready(pod, _)) => {
                self.join(pod)?;
                let function = self.pods[pod].function;
                if let Some(scaled) = &mut self.functions[function as usize].scaled {
                    scaled.scaler.ready(InstanceId(pod));
                }
                // Held requests are distributed like new ones.
                let held = self.functions[function as usize].held.len();
                for _ in 0..held {
                    if let Some(request) = self.functions[function as usize].held.pop_front() {
                        self.route(function, request);
                    }
                }
            }
            Some(Event::Continue(pod)) => self.arrive_at(pod, self.agenda.now()),
            Some(Event::Decide) => self.decide(),
            None => {}
        }
        Ok(())
    }

    /// Handles the consequences of a GPU's event: answers, next requests, pods to be removed, and further events.
    fn handle_ended(&mut self, gpu: u32) {
        let now = self.agenda.now();
        let mut some = false;
        while let Some((member, pod)) = self.gpus[gpu as usize].ended() {
            some = true;
            self.answer(pod);
            let next = self.pods[pod].queue.pop_front();
            self.pods[pod].serves = next;
            // A loop launches its next request when it arrives; other pods launch one request after the other.
            let loops = self.pods[pod].loops.is_some();
            let since = next.map(|next| if loops { next.arrival } else { now });
            let work = since.map(|since| (self.work(pod), since));
            self.gpus[gpu as usize].next(now, member, work);
            if next.is_none() && self.pods[pod].phase == Phase::Leaving {
                self.pods.leavers.push(pod);
            }
        }
        if some {
            self.gpus[gpu as usize].proceed(now);
        }
        while let Some(pod) = self.pods.leavers.pop() {
            self.leave(pod);
        }
        self.plan(gpu);
    }

    fn plan(&mut self, gpu: u32) {
        for (at, event) in self.gpus[gpu as usize].ahead() {
            self.agenda.add(at, Event::Gpu(gpu, event));
        }
    }

    /// Draws a request's work, in ns at speed 1.
    fn work(&mut self, pod: u32) -> f64 {
        let function = &mut self.functions[self.pods[pod].function as usize];
        let factor = (1.0 + self.settings.noise.execution * function.noise.normal()).max(0.5);
        self.models.models[function.model].work() * factor
    }

    fn arrive(&mut self, arrival: &Arrival) {
        let now = arrival.at;
        let function = &mut self.functions[arrival.function as usize];
        if let Some(scaled) = &mut function.scaled {
            scaled.load.arrive(1);
        }
        let objective = arrival.objective.unwrap_or(function.objective);
        let request = Request {
            arrival: now,
            deadline: now.after(objective),
        };
        if function.ready.is_empty() && now >= self.span.from {
            function.outcome.held += 1;
        }
        self.route(arrival.function, request);
    }

    /// Assigns a request to the pod with the fewest requests, of equal ones to that ready longest. O(pods of the function).
    fn route(&mut self, function: u32, request: Request) {
        let own = &mut self.functions[function as usize];
        let pods = &self.pods;
        match (own.ready.iter()).min_by_key(|&&pod| pods[pod].outstanding()) {
            Some(&pod) => self.enqueue(pod, request),
            None => own.held.push_back(request),
        }
    }

    fn arrive_at(&mut self, pod: u32, now: Time) {
        self.enqueue(
            pod,
            Request {
                arrival: now,
                deadline: Time::NEVER,
            },
        );
    }

    fn enqueue(&mut self, pod: u32, request: Request) {
        if self.pods[pod].serves.is_some() {
            self.pods[pod].queue.push_back(request);
            return;
        }
        self.pods[pod].serves = Some(request);
        let work = self.work(pod);
        let own = &self.pods[pod];
        if let Some(member) = own.member {
            let gpu = own.gpu;
            self.gpus[gpu as usize].give(self.agenda.now(), member, work);
            self.plan(gpu);
        }
    }

    /// Counts the answer of a pod's current request, and schedules the next one of a closed loop.
    fn answer(&mut self, pod: u32) {
        let now = self.agenda.now();
        let own = &mut self.pods[pod];
        let Some(request) = own.serves.take() else {
            return;
        };
        let outcome = &mut self.functions[own.function as usize].outcome;
        if let Some(pause) = own.loops {
            // A loop's requests count by the time of the answer, because a loop never ends.
            if pause > Span::ZERO {
                self.agenda.add(now.after(pause), Event::Continue(pod));
            } else {
                own.queue.push_back(Request {
                    arrival: now,
                    deadline: Time::NEVER,
                });
            }
            if now >= self.span.from {
                outcome.requests += 1;
                outcome.latencies.record(now.since(request.arrival));
            }
        } else if request.arrival >= self.span.from {
            outcome.requests += 1;
            outcome.late += u64::from(now > request.deadline);
            outcome.latencies.record(now.since(request.arrival));
        }
    }

    /// Adds a pod to its GPU; it serves from now on.
    fn join(&mut self, pod: u32) -> Result<(), RunError> {
        let now = self.agenda.now();
        let own = &self.pods[pod];
        let function = &mut self.functions[own.function as usize];
        let model = &self.models.models[function.model];
        let guest = Guest {
            owner: pod,
            sm: own.sm,
            quota: own.quota,
            speed: model.speed(own.sm),
            interference: model.interference,
            launch: model.launch_us * 1e3,
            suspension: own.suspension,
        };
        let gpu = own.gpu;
        let member = self.gpus[gpu as usize].add(now, guest)?;
        self.pods[pod].member = Some(member);
        self.pods[pod].phase = Phase::Ready;
        function.ready.push(pod);
        self.plan(gpu);
        Ok(())
    }

    /// Returns the time for which each pod has run until `at`, which must not be after the next event.
    fn busy(&mut self, at: Time) -> Vec<Span> {
        let pods = 0..self.pods.count();
        pods.map(|pod| {
            let own = &self.pods[pod];
            let gpu = &mut self.gpus[own.gpu as usize];
            own.member.map_or(Span::ZERO, |member| gpu.busy(at, member))
        })
        .collect()
    }

    /// Counts late requests without an answer and returns the results.
    fn end(mut self) -> Outcome {
        let (from, to) = (self.span.from, self.span.to);
        let late = |request: &Request| request.arrival >= from && request.deadline < to;
        for function in &mut self.functions {
            let held = function.held.iter().filter(|&own| late(own)).count() as u64;
            function.outcome.requests += held;
            function.outcome.late += held;
        }
        for pod in self.pods.iter() {
            let open = pod.queue.iter().chain(&pod.serves);
            let open = open.filter(|&own| late(own)).count() as u64;
            let outcome = &mut self.functions[pod.function as usize].outcome;
            outcome.requests += open;
            outcome.late += open;
        }
        self.outcome.events = self.agenda.taken();
        self.outcome.functions = self.functions.into_iter().map(|own| own.outcome).collect();
        self.outcome
    }
}

impl Function {
    fn new(model: usize, objective: Span, streams: &Streams, number: u32) -> Self {
        Self {
            model,
            objective,
            noise: streams.stream(Purpose::Noise, number),
            starts: streams.stream(Purpose::Service, number),
            held: VecDeque::new(),
            ready: Vec::new(),
            scaled: None,
            outcome: FunctionOutcome::default(),
        }
    }
}
