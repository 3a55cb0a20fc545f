//! Functions, instances and arrivals.

use std::time::Duration;

use anyhow::Context as _;
use model_server::Model;

use super::super::random::Random;
use super::{Output, SwapOptions};

/// Number of models.
const MODELS_COUNT: u32 = 8;
/// The eight models of Torpor's Table 4, in turn.
pub(super) const MODELS: [&str; MODELS_COUNT as usize] = [
    "densenet-169",
    "densenet-201",
    "inception-v3",
    "efficientnet",
    "resnet-50",
    "resnet-101",
    "resnet-152",
    "bert-qa",
];
/// Objectives in ms: of Bert-qa, and of the others.
const OBJECTIVES_MS: (u64, u64) = (200, 80);
/// Footprints in bytes with a framework of its own (Torpor, §2): of Bert-qa, and of the others.
const FOOTPRINTS: (u64, u64) = (2_400_000_000, 1_600_000_000);
/// Share of requests in time, in percent, for which a function counts as compliant (M2.19).
pub(super) const PERCENTILE: usize = 98;
/// Requests that each function has at least: with fewer than 50 a single miss would decide.
const REQUESTS_MIN: usize = 51;
/// Rates of functions as measured for Torpor, in requests a minute; see `weir/traces/README.md`.
const SAMPLES: &str = include_str!("../../../traces/torpor-samples.csv");
/// Defaults.
const FUNCTIONS: u32 = 128;
const INSTANCES: u32 = 2;
const GPUS: u32 = 4;
const RATE: u32 = 63;
const SECONDS: f64 = 104.0;
const MODELS_MEMORY: &str = "7GiB";

/// A function.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) model: &'static str,
    pub(super) objective: Duration,
    /// Device memory that it takes where nothing is shared, in bytes.
    pub(super) footprint: u64,
    /// GPU of each instance.
    pub(super) gpus: Vec<u32>,
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// Time from the begin of the load.
    pub(super) at: Duration,
    pub(super) function: usize,
    /// Instance to which it is sent.
    pub(super) instance: usize,
    pub(super) seed: u64,
}

/// What both runs have in common.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) functions: Vec<Function>,
    pub(super) instances: u32,
    pub(super) gpus: u32,
    /// Requests a second, and duration of their arrivals in s, before [`Self::slow`].
    pub(super) rate: u32,
    pub(super) seconds: f64,
    pub(super) seed: u64,
    /// Factor of the times of the GPUs, the arrivals and the objectives.
    pub(super) slow: u32,
    /// Memory of each GPU for models at a time, in bytes.
    pub(super) models_memory: u64,
    pub(super) arrivals: Vec<Arrival>,
}

impl Plan {
    pub(super) fn new(options: &SwapOptions, output: &Output) -> anyhow::Result<Self> {
        let &Output { slow, seed, .. } = output;
        let gpus = options.gpus.unwrap_or(GPUS);
        let instances = options.instances.unwrap_or_else(|| INSTANCES.min(gpus));
        anyhow::ensure!(
            instances <= gpus,
            "--instances={instances}: allowed: up to the number of GPUs, {gpus}"
        );
        let text = options.models.as_deref().unwrap_or(MODELS_MEMORY);
        let models_memory = model_server::bytes(text)
            .with_context(|| format!("--models={text:?}: allowed: a size such as 4GiB"))?;
        let largest = MODELS.iter().filter_map(|name| Model::named(name));
        let largest = largest.map(|model| model.weights_bytes).max().unwrap_or(0);
        anyhow::ensure!(
            models_memory > largest / 10 * 11 && models_memory <= 16 << 30,
            "--models={text:?}: allowed: room for the largest model, {} MiB, up to 16 GiB",
            (largest / 10 * 11) >> 20
        );
        let mut functions: Vec<Function> = (0..options.functions.unwrap_or(FUNCTIONS))
            .map(|number| function(number, instances, gpus))
            .collect();
        for function in &mut functions {
            function.objective *= slow;
        }
        let seconds = output.seconds.unwrap_or(SECONDS);
        let rate = options.rate.unwrap_or(RATE);
        let mut arrivals = arrivals(functions.len(), instances as usize, rate, seconds, seed);
        for arrival in &mut arrivals {
            arrival.at *= slow;
        }
        Ok(Self {
            functions,
            instances,
            gpus,
            rate,
            seconds,
            seed,
            slow,
            models_memory,
            arrivals,
        })
    }
}

fn function(number: u32, instances: u32, gpus: u32) -> Function {
    let model = MODELS[number as usize % MODELS.len()];
    let is_bert = model == "bert-qa";
    let pick = |(bert, others): (u64, u64)| if is_bert { bert } else { others };
    // The second instance is behind another switch, where there is one. Models are spread evenly, however many GPUs there are.
    let first = (number + number / MODELS_COUNT) % gpus;
    let second = (first + gpus.div_ceil(2)) % gpus;
    Function {
        name: format!("f{number:03}"),
        model,
        objective: Duration::from_millis(pick(OBJECTIVES_MS)),
        footprint: pick(FOOTPRINTS),
        gpus: [first, second]
            .into_iter()
            .take(instances as usize)
            .collect(),
    }
}

/// Returns the arrivals: of each function as many as it needs at least, as far as the rate allows, and the others in the proportions of Torpor's
/// samples, all at random times.
fn arrivals(
    functions: usize,
    instances: usize,
    rate: u32,
    seconds: f64,
    seed: u64,
) -> Vec<Arrival> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 1000 a second for a day"
    )]
    let total = (f64::from(rate) * seconds).round() as usize;
    let mut random = Random::new(seed);
    let each = REQUESTS_MIN.min(total / functions);
    let mut of: Vec<usize> = (0..functions * each).map(|n| n % functions).collect();
    let weights: Vec<u64> = SAMPLES
        .lines()
        .skip(1)
        .take(functions)
        .map(|line| {
            let minutes = line.split(',').skip(1);
            minutes.filter_map(|text| text.parse::<u64>().ok()).sum()
        })
        .collect();
    let sum: u64 = weights.iter().sum::<u64>().max(1);
    while of.len() < total {
        let mut pick = random.next() % sum;
        let function = weights.iter().position(|weight| {
            let is_picked = pick < *weight;
            pick = pick.saturating_sub(*weight);
            is_picked
        });
        of.push(function.unwrap_or(0) % functions);
    }
    let mut all: Vec<Arrival> = of
        .into_iter()
        .map(|function| Arrival {
            at: Duration::from_secs_f64(random.unit() * seconds),
            function,
            instance: 0,
            seed: random.next() >> 20,
        })
        .collect();
    all.sort_by_key(|arrival| arrival.at);
    let mut turns = vec![0; functions];
    for arrival in &mut all {
        arrival.instance = turns[arrival.function] % instances;
        turns[arrival.function] += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_function_has_its_requests_and_both_instances_get_them_in_turn() {
        let all = arrivals(128, 2, 100, 70.0, 3);
        assert_eq!(all.len(), 7_000);
        for function in 0..128 {
            let own: Vec<_> = all.iter().filter(|own| own.function == function).collect();
            assert!(own.len() >= REQUESTS_MIN);
            assert!(own.iter().enumerate().all(|(n, own)| own.instance == n % 2));
        }
        assert!(all.is_sorted_by_key(|own| own.at));
        assert_eq!(arrivals(8, 1, 10, 2.0, 1).len(), 20);
    }

    #[test]
    fn instances_of_a_function_are_behind_different_switches() {
        for number in 0..64 {
            let gpus = function(number, 2, 4).gpus;
            assert_ne!(gpus[0] / 2, gpus[1] / 2);
        }
        // Each GPU has all models.
        for gpu in 0..4 {
            let own = (0..128).map(|number| function(number, 1, 4));
            let own = own.filter(|own| own.gpus == [gpu]);
            let mut models: Vec<_> = own.map(|own| own.model).collect();
            models.sort_unstable();
            models.dedup();
            assert_eq!(models.len(), MODELS.len());
        }
    }
}
