//! Random cases: models of a node's hardware, and random arrivals at a level of load.

use policy::pool::Percentile;
use policy::{Span, Time};
use thiserror::Error;

use super::case::{Case, CaseError, Function, Request};
use simulator::node::hardware::{HardwareError, NodeParts, millis, nanos};
use simulator::node::{Hardware, Noise, Settings as NodeSettings};
use simulator::random::{Purpose, Streams};

/// Paths by which models are loaded, for the policies and for the optimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loads {
    /// From the host only, without contention: the policies run on a node for which the optimum is exact.
    FromHost,
    /// The policies run on the node as described, with links and contention; the optimum assumes the fastest path for every
    /// load, so it is an upper bound which may be out of reach for any policy.
    FastestPath,
}

/// Distribution from which cases are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Models, links, and topology of the slots.
    pub hardware: Hardware,
    /// Number of slots of a case, at most those of the node: its first ones.
    pub slots: usize,
    /// Memory for models on each slot, in 10⁹ bytes.
    pub memory_gb: f64,
    /// Number of functions of a case; each runs a random model.
    pub functions: usize,
    /// Number of requests of a case; each is of a random function.
    pub requests: usize,
    /// Offered load, as a share of the slots' capacity if every request loaded its model from the host.
    pub load: f64,
    /// Range of the factor, drawn uniformly, between a function's objective and the duration of its request with a load from the
    /// host.
    pub objective: (f64, f64),
    /// Paths by which models are loaded.
    pub loads: Loads,
    /// Share of a function's requests that must be in time, for the policies and for counting compliant functions.
    pub percentile: Percentile,
    /// Largest number of states that the search may open for each case and objective.
    pub states_max: u64,
}

impl Settings {
    /// Returns settings for 24 requests of eight functions on two slots of Torpor's node, which can still be solved exactly
    /// within `states_max`. A slot holds Bert-qa and almost nothing besides, or all CNNs.
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

/// Error in drawing a case.
#[derive(Debug, Error)]
pub enum DrawError {
    /// A setting is out of range.
    #[error("{key} is {found}: allowed: {allowed}")]
    Value {
        /// Name of the setting.
        key: &'static str,
        /// Value that was found.
        found: String,
        /// Description of the allowed values.
        allowed: &'static str,
    },
    /// The settings exceed the bounds of a case.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The node's hardware is inconsistent.
    #[error(transparent)]
    Hardware(#[from] HardwareError),
}

/// A drawn case, and the node on which the policies run it.
#[derive(Clone, Debug)]
pub struct DrawnCase {
    /// Case for the optimum.
    pub case: Case,
    /// Hardware for the policies.
    pub hardware: Hardware,
    /// Model of each function, as an index into the hardware's models.
    pub models: Vec<usize>,
    /// Seed of the case.
    pub seed: u64,
}

/// Draws the case of a seed, which is the same on every machine.
///
/// # Errors
/// Returns a [`DrawError`] if a setting is out of range or the node is inconsistent.
pub fn draw(settings: &Settings, seed: u64) -> Result<DrawnCase, DrawError> {
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
    // Mean interval between arrivals.
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
    Ok(DrawnCase {
        case,
        hardware,
        models,
        seed,
    })
}

/// Returns the durations of a model's requests: to the nanosecond those of [`simulator::node`], which rounds each part.
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

/// Returns the rate of loads, in 10⁹ bytes per second.
fn fastest(classes: &[f64], hardware: &Hardware, loads: Loads) -> f64 {
    let host = hardware.link.host_gb_per_s;
    match loads {
        Loads::FromHost => host,
        Loads::FastestPath => classes.iter().copied().fold(host, f64::max),
    }
}

/// Returns the node of a case, after checking the settings.
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

/// Returns the node settings that all policies share: one node, no noise, no hops.
pub(super) fn of_node(percentile: Percentile) -> NodeSettings {
    NodeSettings {
        noise: Noise::OFF,
        percentile,
        ..NodeSettings::default()
    }
}

/// Returns a number below `bound`. The bias of the remainder is below 2⁻⁵⁸.
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
