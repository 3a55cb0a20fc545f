//! All runs of an experiment: each rule at each load under each seed, with the same arrivals for all rules.

use std::collections::BTreeMap;

use policy::{Span, Time};

use super::spec::{Figure, Spec};
use super::{ExperimentError, Progress};
use simulator::generate::{self, Preset};
use simulator::node::{self, CountedSpan, Hardware, Outcome};
use simulator::random::Streams;
use simulator::rules::RuleName;
use simulator::statistics::{Histogram, Percentile};

/// Number of ledger entries kept for the picture.
const PICTURE: usize = 4_000;

/// Rule, number of functions and seed of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) rule: RuleName,
    pub(super) functions: u32,
    pub(super) seed: u64,
}

/// Figures kept of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct RunFigures {
    pub(super) figures: BTreeMap<Figure, f64>,
    /// 98th percentile of latency by model, in milliseconds.
    pub(super) model_tails_ms: BTreeMap<String, f64>,
}

/// Runs of an experiment by rule, load and seed; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Matrix {
    pub(super) runs: BTreeMap<Key, RunFigures>,
    pub(super) picture: Option<(Outcome, Vec<String>)>,
    pub(super) seeds: Vec<u64>,
    pub(super) stopped: bool,
}

impl Matrix {
    /// Runs all combinations until `watch` returns false.
    pub(super) fn run(
        id: &str,
        spec: &Spec,
        seeds: u32,
        watch: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<Self, ExperimentError> {
        let wrong = |why: String| ExperimentError::File {
            id: id.to_owned(),
            why,
        };
        let preset = generate::preset(&spec.preset).map_err(|error| wrong(error.to_string()))?;
        let hardware = hardware(spec).map_err(|error| wrong(error.to_string()))?;
        let count = |list: usize| u32::try_from(list).unwrap_or(u32::MAX);
        let mut progress = Progress {
            done: 0,
            of: count(spec.rules.len()) * count(spec.functions.len()) * seeds,
            events: 0,
        };
        let mut matrix = Self::default();
        // Seed by seed, so that an interrupted experiment has all rules and loads of the seeds completed.
        for number in 0..u64::from(seeds) {
            let seed = preset.spec().seed + number;
            for &functions in &spec.functions {
                for &rule in &spec.rules {
                    let key = Key {
                        rule,
                        functions,
                        seed,
                    };
                    let is_drawn = number == 0
                        && spec.picture.is_some_and(|picture| {
                            (picture.rule, picture.functions) == (rule, functions)
                        });
                    let mut report = |events, _| {
                        watch(Progress {
                            events: progress.events + events,
                            ..progress
                        })
                    };
                    let keep = if is_drawn { PICTURE } else { 0 };
                    let run = one(spec, &preset, &hardware, key, keep, &mut report);
                    let (outcome, names) = run.map_err(|error| match error {
                        Failure::Spec(why) => wrong(why),
                        Failure::Run(error) => ExperimentError::Run(error),
                    })?;
                    if outcome.stopped {
                        matrix.stopped = true;
                        return Ok(matrix);
                    }
                    progress.events += outcome.events;
                    progress.done += 1;
                    matrix.runs.insert(key, kept(&hardware, &outcome));
                    if is_drawn {
                        matrix.picture = Some((outcome, names));
                    }
                    if !watch(progress) {
                        matrix.stopped = true;
                        return Ok(matrix);
                    }
                }
            }
            matrix.seeds.push(seed);
        }
        Ok(matrix)
    }

    /// Returns one figure of each seed that is complete, in the order of the seeds.
    pub(super) fn by_seed(&self, rule: RuleName, functions: u32, figure: Figure) -> Vec<f64> {
        let each = self.seeds.iter().map(|&seed| Key {
            rule,
            functions,
            seed,
        });
        each.filter_map(|key| self.figure(key, figure)).collect()
    }

    pub(super) fn figure(&self, key: Key, figure: Figure) -> Option<f64> {
        self.runs.get(&key)?.figures.get(&figure).copied()
    }
}

fn hardware(spec: &Spec) -> Result<Hardware, node::HardwareError> {
    let mut hardware = Hardware::torpor();
    if let Some(slots) = spec.slots {
        let parts = &mut hardware.node;
        parts.slots = slots;
        parts
            .pairs
            .retain(|pair| pair.iter().all(|&slot| (slot as usize) < slots));
        parts.links.truncate(slots);
        for row in &mut parts.links {
            row.truncate(slots);
        }
    }
    // Slots, pairs and links must be consistent; the error is reported here.
    hardware.topology(1.0)?;
    Ok(hardware)
}

enum Failure {
    Spec(String),
    Run(node::RunError),
}

fn one(
    spec: &Spec,
    preset: &Preset,
    hardware: &Hardware,
    key: Key,
    keep: usize,
    watch: &mut dyn FnMut(u64, Time) -> bool,
) -> Result<(Outcome, Vec<String>), Failure> {
    let mut workload = preset.spec();
    workload.functions = key.functions;
    workload.seed = key.seed;
    let mut settings = key.rule.settings();
    settings.nodes = spec.nodes;
    let counted = CountedSpan {
        from: Time::ZERO.after(node::hardware::millis(workload.warm_up_s * 1e3)),
        to: Time::ZERO.after(workload.length()),
        keep,
    };
    let streams = Streams::new(&workload.experiment, key.seed);
    let mut made =
        generate::generate(&workload).map_err(|error| Failure::Spec(error.to_string()))?;
    if let Some(ms) = spec.objective_ms {
        for function in &mut made.functions {
            function.objective = Some(node::hardware::millis(ms));
        }
    }
    let names = made.functions.iter().map(|own| own.name.clone()).collect();
    let outcome = node::run(hardware, &settings, made, counted, &streams, watch);
    Ok((outcome.map_err(Failure::Run)?, names))
}

fn ms(span: Option<Span>) -> Option<f64> {
    span.map(|span| span.as_secs_f64() * 1e3)
}

fn tail(histogram: &Histogram) -> Option<f64> {
    ms(histogram.percentile(Percentile::P98))
}

#[expect(clippy::cast_precision_loss, reason = "counts, far below 2^53")]
fn kept(hardware: &Hardware, outcome: &Outcome) -> RunFigures {
    let compliant = outcome.compliant(Percentile::P98) as f64;
    let executed = outcome
        .functions
        .iter()
        .filter(|own| own.executed())
        .count() as f64;
    let all = outcome.functions.len().max(1) as f64;
    let mut latencies = Histogram::new();
    for model in &outcome.models {
        latencies.merge(model);
    }
    let loads = outcome.loads();
    let slots = outcome.nodes.iter().flat_map(|node| &node.latencies);
    let worst = slots.filter_map(tail).fold(0.0, f64::max);
    let busy: Vec<Span> = outcome
        .nodes
        .iter()
        .flat_map(|node| node.busy.clone())
        .collect();
    let charged: f64 = outcome
        .functions
        .iter()
        .map(|own| own.charged.as_secs_f64())
        .sum();
    let held = executed.max(1.0) * outcome.counted.as_secs_f64();
    let mut figures = BTreeMap::from([
        (Figure::Executed, executed),
        (Figure::Compliant, compliant),
        (Figure::CompliantPercent, compliant / all * 100.0),
        (Figure::InTimePercent, outcome.hit_rate() * 100.0),
        (
            Figure::Answered,
            latencies.count() as f64 / outcome.counted.as_secs_f64(),
        ),
        (Figure::WorstSlotTailMs, worst),
        (
            Figure::LoadPercent,
            loads.iter().sum::<f64>() / loads.len().max(1) as f64 * 100.0,
        ),
        (Figure::Charged, charged / held),
    ]);
    figures.extend(tail(&latencies).map(|tail| (Figure::TailMs, tail)));
    let normalised = outcome.normalised.percentile(Percentile::P98);
    figures.extend(normalised.map(|part| (Figure::TailOverObjective, part.as_secs_f64())));
    figures.extend(policy::pool::metrics::imbalance(&busy).map(|value| (Figure::Imbalance, value)));
    let allocation = outcome.allocation.percentile(Percentile::P98);
    figures.extend(allocation.map(|part| (Figure::AllocationOverExecution, part.as_secs_f64())));
    let nodes = outcome.nodes.iter();
    let (evictions, loads) = nodes.fold((0, 0), |(evictions, loads), node| {
        let own = node.host_loads + node.link_loads;
        (evictions + node.evictions, loads + own)
    });
    if loads > 0 {
        figures.insert(Figure::EvictionsPerLoad, evictions as f64 / loads as f64);
    }
    let models = hardware.models.iter().zip(&outcome.models);
    let model_tails_ms = models
        .filter_map(|(model, latencies)| Some((model.name.clone(), tail(latencies)?)))
        .collect();
    RunFigures {
        figures,
        model_tails_ms,
    }
}
