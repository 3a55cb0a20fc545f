//! Random cases: models of a node's hardware, requests that arrive by chance at a level of load.

use policy::pool::Percentile;
use policy::{Span, Time};
use thiserror::Error;

use super::case::{Case, CaseError, Function, Request};
use crate::node::hardware::{HardwareError, NodeParts, millis, nanos};
use crate::node::{Hardware, Noise, Settings as NodeSettings};
use crate::random::{Purpose, Streams};

/// By which way models come, for the policies and for the optimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loads {
    /// From the host alone, and loads do not slow each other: the policies run on the node of which the optimum is exact.
    FromHost,
    /// The policies run on the node as it is, with links and contention; the optimum takes every load as fast as the
    /// fastest path, so it is an upper bound that no policy need be able to reach.
    FastestPath,
}

/// What cases are drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The models, the links, and how slots are linked.
    pub hardware: Hardware,
    /// Slots of a case, at most those of the node: its first ones.
    pub slots: usize,
    /// What models may take of each slot, 10⁹ bytes.
    pub memory_gb: f64,
    /// Functions of a case; each gets a model by chance.
    pub functions: usize,
    /// Requests of a case; each is of a function by chance.
    pub requests: usize,
    /// What arrives, as a share of what the slots could do if every request brought its model from the host.
    pub load: f64,
    /// A function's objective is this times what a request of it takes with a load from the host, drawn evenly.
    pub objective: (f64, f64),
    /// By which way models come.
    pub loads: Loads,
    /// What a function's share in time is to be, for the policies and for the count of functions.
    pub percentile: Percentile,
    /// States that the search may open for each case and objective.
    pub states_max: u64,
}

impl Settings {
    /// Twenty-four requests of eight functions for two slots of Torpor's node, which is still solved exactly within
    /// `states_max`. A slot holds Bert-qa and next to nothing beside it, or all CNNs.
    #[must_use]
    pub fn torpor(load: f64) -> Self {
        Self {
            hardware: Hardware::torpor(),
            slots: 2,
            memory_gb: 1.4,
            functions: 8,
            requests: 24,
            load,
            objective: (1.2, 3.0),
            loads: Loads::FromHost,
            percentile: Percentile::default(),
            states_max: 300_000,
        }
    }
}

/// Why no case can be drawn.
#[derive(Debug, Error)]
pub enum DrawError {
    /// A value is out of range.
    #[error("{key} is {found}: allowed: {allowed}")]
    Value {
        /// Which.
        key: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The case is too large.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The node cannot be so.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
}

/// A case, and the node that the policies have for it.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// For the optimum.
    pub case: Case,
    /// For the policies.
    pub hardware: Hardware,
    /// The model of each function, an index into those of the hardware.
    pub models: Vec<usize>,
    /// By which it was drawn.
    pub seed: u64,
}

/// Draws the case of a seed: the same on every machine.
///
/// # Errors
/// See [`DrawError`].
pub fn draw(settings: &Settings, seed: u64) -> Result<Drawn, DrawError> {
    let hardware = node(settings)?;
    let streams = Streams::new("optimum", seed);
    let functions = u32::try_from(settings.functions).unwrap_or(u32::MAX);
    let mut models = Vec::with_capacity(settings.functions);
    let mut objectives = Vec::with_capacity(settings.functions);
    for at in 0..functions {
        let mut stream = streams.stream(Purpose::Shape, at);
        let model = below(&mut stream.bits(), hardware.models.len());
        models.push(model);
        let (low, high) = settings.objective;
        let factor = stream.uniform(low, high);
        let alone = float(hardware.swapped_alone(model));
        objectives.push(nanos(alone * factor));
    }
    let all: u64 = models
        .iter()
        .map(|&model| hardware.swapped_alone(model).0)
        .sum();
    // From one arrival to the next on the mean.
    let gap = float(Span(all)) / (len(models.len()) * len(settings.slots) * settings.load);
    let mut stream = streams.stream(Purpose::Arrival, 0);
    let mut now = 0.0;
    let mut requests = Vec::with_capacity(settings.requests);
    for _ in 0..settings.requests {
        now += gap * stream.exponential();
        let function = below(&mut stream.bits(), models.len());
        let arrival = Time(nanos(now).0);
        requests.push(Request {
            function,
            arrival,
            deadline: arrival.after(objectives[function]),
        });
    }
    let rate = fastest(&hardware.link.classes_gb_per_s, &hardware, settings.loads);
    let functions = models
        .iter()
        .map(|&model| function(&hardware, model, rate))
        .collect();
    let memory = nanos(hardware.node.models_gb * 1e9).0;
    let case = Case::new(settings.slots, memory, functions, requests)?;
    Ok(Drawn {
        case,
        hardware,
        models,
        seed,
    })
}

/// What a request of a model takes: to the nanosecond what [`crate::node`] makes of it, which rounds each part.
fn function(hardware: &Hardware, model: usize, rate: f64) -> Function {
    let times = &hardware.models[model];
    let execution = millis(times.execution_ms);
    let transfer = nanos(times.weights_mb * 1e6 / (rate * 1e9) * 1e9);
    let adds = millis(hardware.link.swap_adds_ms);
    Function {
        bytes: hardware.of_pool(model).bytes,
        execution,
        swapped: Span(execution.max(transfer).0 + adds.0),
    }
}

/// The rate of loads, 10⁹ bytes per second.
fn fastest(classes: &[f64], hardware: &Hardware, loads: Loads) -> f64 {
    let host = hardware.link.host_gb_per_s;
    match loads {
        Loads::FromHost => host,
        Loads::FastestPath => classes.iter().copied().fold(host, f64::max),
    }
}

/// The node of a case, checked.
fn node(settings: &Settings) -> Result<Hardware, DrawError> {
    let wrong = |key, found: String, allowed| {
        Err(DrawError::Value {
            key,
            found,
            allowed,
        })
    };
    let mut hardware = settings.hardware.clone();
    let slots = settings.slots;
    if slots == 0 || slots > hardware.node.slots {
        return wrong("slots", slots.to_string(), "1 to the slots of the node");
    }
    if settings.functions == 0 {
        return wrong("functions", "0".to_owned(), "1 at least");
    }
    let (low, high) = settings.objective;
    if !(low > 0.0 && low <= high && high.is_finite()) {
        let found = format!("{low} to {high}");
        return wrong("objective", found, "above 0, the lower one first");
    }
    let positive = |value: f64| value.is_finite() && value > 0.0;
    for (key, value) in [("load", settings.load), ("memory_gb", settings.memory_gb)] {
        if !positive(value) {
            return wrong(key, value.to_string(), "above 0");
        }
    }
    let within = |pair: &[u32; 2]| pair.iter().all(|&slot| (slot as usize) < slots);
    let node = &mut hardware.node;
    *node = NodeParts {
        slots,
        models_gb: settings.memory_gb,
        pairs: node.pairs.iter().copied().filter(within).collect(),
        links: node
            .links
            .iter()
            .take(slots)
            .map(|row| row.iter().copied().take(slots).collect())
            .collect(),
        ..node.clone()
    };
    if settings.loads == Loads::FromHost {
        node.pairs.clear();
        node.links.clear();
        hardware.link.contention = 0.0;
    }
    hardware.topology(1.0)?;
    Ok(hardware)
}

/// The settings of a node that all policies share: one node, nothing by chance, no way to go.
pub(super) fn of_node(percentile: Percentile) -> NodeSettings {
    NodeSettings {
        noise: Noise::OFF,
        percentile,
        ..NodeSettings::default()
    }
}

/// A number below `bound`. What the division leaves over favours small ones by less than 2⁻⁵⁸.
fn below(bits: &mut u64, bound: usize) -> usize {
    usize::try_from(*bits % bound as u64).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
const fn float(span: Span) -> f64 {
    span.0 as f64
}

#[expect(clippy::cast_precision_loss, reason = "a small count")]
const fn len(count: usize) -> f64 {
    count as f64
}
