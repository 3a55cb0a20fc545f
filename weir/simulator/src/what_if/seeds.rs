//! Combines the answers of one point under several seeds.

use std::collections::HashMap;

use super::answer::{Answer, FunctionAnswer, ROUNDING};
use super::limit::{Binding, Limit, WholeRun};
use crate::statistics::{Histogram, Interval, Percentile, Unit};

/// Accumulates the answers of one point, seed by seed. Slot occupancies are only kept of the first seed, so memory
/// grows with the number of seeds only by a few numbers for each function.
#[derive(Debug, Default)]
pub struct Seeds {
    all: Option<Answer>,
    whole: Vec<[f64; 3]>,
    functions: Vec<Values>,
    /// Index into `functions` by name; never iterated over, so its order does not matter.
    by_name: HashMap<String, usize>,
    means: Means,
}

/// Values of a function over seeds.
#[derive(Debug, Default)]
struct Values {
    attainment: Vec<f64>,
    loads: f64,
    billed_gpu_s: f64,
    execution_ms: f64,
    swapped_ms: f64,
    seeds: f64,
    /// Number of late requests by limit.
    why: Vec<(Limit, u64)>,
}

/// Sums over runs of values that are reported as means.
#[derive(Debug, Default)]
struct Means {
    counted_s: f64,
    gpu_swapping: f64,
    slots_mean: f64,
    gpu_hours: f64,
    billed_gpu_hours: f64,
    cost: f64,
}

fn interval(values: &[f64]) -> Option<Interval> {
    match values {
        [] => None,
        [one] => Some(Interval::one(*one)),
        more => Interval::of(more).ok().map(|own| own.within(0.0, 1.0)),
    }
}

impl Seeds {
    /// Adds the answer of a seed. A stopped run only counts if it is the first.
    pub fn push(&mut self, mut answer: Answer) {
        if answer.stopped
            && let Some(all) = &mut self.all
        {
            all.stopped = true;
            return;
        }
        self.whole.push([
            answer.attainment.mean,
            answer.keeping.mean,
            answer.gpu_busy.mean,
        ]);
        self.means.counted_s += answer.counted_s;
        self.means.gpu_swapping += answer.gpu_swapping;
        self.means.slots_mean += answer.slots_mean;
        self.means.gpu_hours += answer.gpu_hours;
        self.means.billed_gpu_hours += answer.billed_gpu_hours;
        self.means.cost += answer.cost.unwrap_or(0.0);
        let latencies = std::mem::take(&mut answer.detail.latencies);
        let objectives = std::mem::take(&mut answer.detail.objectives);
        let functions = std::mem::take(&mut answer.functions);
        let all = match &mut self.all {
            None => self.all.insert(answer),
            Some(all) => {
                all.requests += answer.requests;
                all.slots_peak = all.slots_peak.max(answer.slots_peak);
                all.loads += answer.loads;
                all.evictions += answer.evictions;
                all
            }
        };
        for ((own, latencies), objective) in functions.into_iter().zip(latencies).zip(objectives) {
            let at = *self.by_name.entry(own.name.clone()).or_insert_with(|| {
                self.functions.push(Values::default());
                self.functions.len() - 1
            });
            self.functions[at].add(&own);
            if at == all.functions.len() {
                all.functions.push(own);
                all.detail.latencies.push(latencies);
                all.detail.objectives.push(objective);
            } else {
                let sum = &mut all.functions[at];
                sum.requests += own.requests;
                sum.late += own.late;
                all.detail.latencies[at].merge(&latencies);
            }
        }
    }

    /// Returns the number of answers added; a stopped one only counts as the first.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.whole.len()
    }

    /// Returns the combined answer; `None` if none was added.
    #[must_use]
    pub fn answer(self) -> Option<Answer> {
        let mut all = self.all?;
        let of = |at: usize| {
            let values: Vec<f64> = self.whole.iter().map(|own| own[at]).collect();
            interval(&values).unwrap_or(Interval::one(0.0))
        };
        all.seeds = self.whole.len();
        #[expect(clippy::cast_precision_loss, reason = "a count of seeds")]
        let count = all.seeds.max(1) as f64;
        (all.attainment, all.keeping, all.gpu_busy) = (of(0), of(1), of(2));
        all.counted_s = self.means.counted_s / count;
        all.gpu_swapping = self.means.gpu_swapping / count;
        all.slots_mean = self.means.slots_mean / count;
        all.gpu_hours = self.means.gpu_hours / count;
        all.billed_gpu_hours = self.means.billed_gpu_hours / count;
        all.cost = all.cost.map(|_| self.means.cost / count);
        let late: u64 = all.functions.iter().map(|own| own.late).sum();
        #[expect(clippy::cast_precision_loss, reason = "a count in millions")]
        let millions = (all.requests - late) as f64 / 1e6;
        let in_time = millions / count;
        all.cost_per_million_in_time = all
            .cost
            .filter(|_| in_time > 0.0)
            .map(|cost| cost / in_time);
        for ((own, values), latencies) in all
            .functions
            .iter_mut()
            .zip(&self.functions)
            .zip(&all.detail.latencies)
        {
            values.write_to(own);
            own.p50_ms = ms(latencies, Percentile::P50);
            let at = percentile(own.percentile);
            own.at_percentile_ms = at.and_then(|at| ms(latencies, at));
        }
        all.notes.extend(rare(&all.functions));
        let called = all.functions.iter().filter(|own| own.requests > 0);
        all.functions_keeping = called.clone().filter(|own| own.keeps).count();
        all.functions_undecided = called.clone().filter(|own| own.is_open()).count();
        let on_average = |own: &&FunctionAnswer| {
            let share = own.attainment.map_or(0.0, |share| share.mean);
            own.is_open() && share >= own.percentile / 100.0 - ROUNDING
        };
        all.functions_keeping_on_average = called.clone().filter(on_average).count();
        all.functions_called = called.count();
        let limits: Vec<(Limit, u64)> = all
            .functions
            .iter()
            .map(|own| (own.limit, own.late))
            .collect();
        let whole = WholeRun {
            busy: all.gpu_busy.mean,
            swaps: all.gpu_swapping,
            functions: all.functions_called,
        };
        all.binding = Binding::of(&limits, whole);
        Some(all)
    }
}

/// Returns a remark on functions with so few counted requests that not even one may be late.
fn rare(functions: &[FunctionAnswer]) -> Option<String> {
    let is_rare = |own: &&FunctionAnswer| {
        own.requests > 0 && to_float(own.requests) * (1.0 - own.percentile / 100.0) < 1.0 - ROUNDING
    };
    let rare = functions.iter().filter(is_rare).count() as u64;
    (rare > 0).then(|| {
        format!(
            "Too few requests of {} were counted for even one to be late: a longer window (--seconds, --from) would give more certainty.",
            Unit::Functions.write(to_float(rare))
        )
    })
}

fn ms(latencies: &Histogram, percentile: Percentile) -> Option<f64> {
    latencies
        .percentile(percentile)
        .map(|own| own.as_secs_f64() * 1e3)
}

/// Converts a percentage to a percentile.
fn percentile(percent: f64) -> Option<Percentile> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "50 to 99.9"
    )]
    let thousandths = libm::round(percent * 1e3) as u32;
    Percentile::from_thousandths(thousandths).ok()
}

impl Values {
    fn add(&mut self, own: &FunctionAnswer) {
        self.attainment
            .extend(own.attainment.map(|share| share.mean));
        self.loads += own.loads * to_float(own.requests);
        self.billed_gpu_s += own.billed_gpu_s;
        self.execution_ms += own.execution_ms;
        self.swapped_ms += own.swapped_ms;
        self.seeds += 1.0;
        match self.why.iter_mut().find(|(limit, _)| *limit == own.why) {
            Some((_, late)) => *late += own.late,
            None => self.why.push((own.why, own.late)),
        }
    }

    fn write_to(&self, own: &mut FunctionAnswer) {
        own.attainment = interval(&self.attainment);
        own.keeps = own
            .attainment
            .is_none_or(|share| share.low >= own.percentile / 100.0 - ROUNDING);
        own.loads = self.loads / to_float(own.requests.max(1));
        own.billed_gpu_s = self.billed_gpu_s / self.seeds;
        own.execution_ms = self.execution_ms / self.seeds;
        own.swapped_ms = self.swapped_ms / self.seeds;
        // Of equal limits, the one that occurred first is chosen.
        let most = self.why.iter().rev().max_by_key(|(_, late)| *late);
        own.why = most.map_or(own.why, |(limit, _)| *limit);
        own.limit = if own.keeps { Limit::Nothing } else { own.why };
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share is made of it")]
const fn to_float(count: u64) -> f64 {
    count as f64
}
