//! Derives the answer of a run from its outcome.

use policy::{Span, Time};

use super::answer::{Answer, Detail, FunctionAnswer};
use super::cluster::Cluster;
use super::limit::{Binding, Limit, Measurements, WholeRun};
use super::resolve::{CalledFunction, WorkConversion};
use super::scenario::{Point, Scenario};
use super::usage::{Usage, peak};
use crate::node::outcome::part;
use crate::node::{Hosting, NodeOutcome, Outcome};
use crate::statistics::{Interval, Percentile, Unit};

#[expect(clippy::cast_precision_loss, reason = "a mean")]
fn mean_ms(sum: Span, count: u64) -> f64 {
    sum.0 as f64 / 1e6 / count.max(1) as f64
}

fn ms(span: Span) -> f64 {
    span.as_secs_f64() * 1e3
}

#[expect(clippy::cast_precision_loss, reason = "one or two")]
fn part_of(nodes: usize) -> f64 {
    nodes.max(1) as f64
}

/// Computes the answer of a run for the counted time from `from` until `until`.
pub(super) fn judge(
    scenario: &Scenario<'_>,
    point: Point,
    cluster: &Cluster,
    outcome: &Outcome,
    from: Time,
    until: Time,
) -> Answer {
    let (nodes, slots) = (point.nodes as usize, point.gpus as usize);
    let counted = until.since(from);
    let is_swapped = point.rule.settings().hosting == Hosting::Swapped;
    let Usage {
        mut used,
        node_busy,
        node_added,
        taken,
        timeline,
    } = Usage::of(scenario.called.len(), (nodes, slots), outcome, from, until);
    let share = |busy: Span| part(busy.0, counted.0) / f64::from(point.gpus);
    let mut functions = Vec::with_capacity(scenario.called.len());
    let mut latencies = Vec::with_capacity(scenario.called.len());
    for (at, own) in scenario.called.iter().enumerate() {
        let of = outcome.functions[at];
        let (requests, late, loads) = (of.requests, of.late, of.loads);
        let histogram = outcome.models[at].clone();
        let homes = outcome.places[at].into_iter().flatten();
        let homes: Vec<usize> = homes.map(|node| node as usize).collect();
        if is_swapped && !homes.is_empty() {
            used[at].bill.resident(from);
        }
        // A function on two nodes is judged by both.
        let of_homes = |spans: &[Span]| Span(homes.iter().map(|&node| spans[node].0).sum());
        let (home_busy, home_added) = (of_homes(&node_busy), of_homes(&node_added));
        let swapped = cluster.swapped(own.weights_mb, own.execution);
        let keeps = own.percentile.kept(requests - late, requests);
        let busy_ms = mean_ms(used[at].busy, used[at].requests);
        let measurements = Measurements {
            // Computes the limit as if the objective were missed: each seed may keep it, but not all together.
            keeps: false,
            refused: of.refused > 0,
            execution_ms: ms(own.execution),
            swapped_ms: if is_swapped {
                ms(swapped)
            } else {
                ms(own.execution)
            },
            objective_ms: ms(own.objective),
            may_be_late: 1.0 - f64::from(own.percentile.thousandths()) / 1e5,
            loads: part(loads, requests),
            busy: share(home_busy) / part_of(homes.len()),
            node_swaps: part(home_added.0, home_busy.0),
            loading_ms: mean_ms(used[at].added, used[at].requests),
            waiting_ms: histogram
                .mean()
                .map_or(0.0, |mean| (ms(mean) - busy_ms).max(0.0)),
        };
        let why = measurements.limit();
        let limit = if keeps { Limit::Nothing } else { why };
        let latency = |percentile| histogram.percentile(percentile).map(ms);
        functions.push(FunctionAnswer {
            name: own.name.clone(),
            model: own.model.clone(),
            requests,
            late,
            attainment: (requests > 0).then(|| Interval::one(part(requests - late, requests))),
            objective_ms: (!own.by_request).then(|| ms(own.objective)),
            percentile: f64::from(own.percentile.thousandths()) / 1e3,
            keeps,
            p50_ms: latency(Percentile::P50),
            at_percentile_ms: latency(own.percentile),
            execution_ms: ms(own.execution),
            swapped_ms: ms(swapped),
            loads: part(loads, requests),
            billed_gpu_s: used[at].bill.charge(until).gpu_time().as_secs_f64(),
            limit,
            why,
        });
        latencies.push(histogram);
    }
    let gpus = point.gpus * point.nodes;
    let busy = Span(node_busy.iter().map(|busy| busy.0).sum());
    let added = node_added.iter().map(|added| added.0).sum();
    let requests: u64 = functions.iter().map(|own| own.requests).sum();
    let late: u64 = functions.iter().map(|own| own.late).sum();
    let limits: Vec<(Limit, u64)> = functions.iter().map(|own| (own.limit, own.late)).collect();
    let called = functions.iter().filter(|own| own.requests > 0);
    let keeping = called.clone().filter(|own| own.keeps).count();
    let functions_called = called.count();
    let gpu_busy = part(busy.0, counted.0) / f64::from(gpus);
    let gpu_swapping = part(added, busy.0);
    let gpu_hours = counted.as_secs_f64() / 3_600.0 * f64::from(gpus);
    let cost_per_hour = cluster
        .price_per_gpu_hour
        .map(|price| price * f64::from(gpus));
    let cost = cluster.price_per_gpu_hour.map(|price| price * gpu_hours);
    let billed: f64 = functions.iter().map(|own| own.billed_gpu_s).sum();
    let whole = WholeRun {
        busy: gpu_busy,
        swaps: gpu_swapping,
        functions: functions_called,
    };
    #[expect(clippy::cast_precision_loss, reason = "a count in millions")]
    let millions = (requests - late) as f64 / 1e6;
    let sum = |of: fn(&NodeOutcome) -> u64| outcome.nodes.iter().map(of).sum();
    Answer {
        rule: point.rule.name(),
        gpus_per_node: point.gpus,
        nodes: point.nodes,
        gpus,
        models_gb: point.models_gb,
        host_gb_per_s: point.host_gb_per_s,
        rate_scale: point.rate_scale,
        stopped: outcome.stopped,
        counted_s: counted.as_secs_f64(),
        requests,
        seeds: 1,
        attainment: Interval::one(part(requests - late, requests)),
        keeping: Interval::one(part(keeping as u64, functions_called as u64)),
        functions_called,
        functions_keeping: keeping,
        functions_undecided: 0,
        functions_keeping_on_average: 0,
        gpu_busy: Interval::one(gpu_busy),
        gpu_swapping,
        slots_mean: gpu_busy * f64::from(gpus),
        slots_peak: peak(&taken),
        loads: sum(|node| node.host_loads + node.link_loads),
        evictions: sum(|node| node.evictions),
        gpu_hours,
        billed_gpu_hours: billed / 3_600.0,
        cost,
        cost_per_hour,
        cost_per_million_in_time: cost.filter(|_| millions > 0.0).map(|cost| cost / millions),
        binding: Binding::of(&limits, whole),
        notes: notes(scenario),
        detail: Detail {
            latencies,
            objectives: functions
                .iter()
                .zip(&scenario.called)
                .map(|(own, called)| own.objective_ms.map(|_| called.objective))
                .collect(),
            timeline,
            taken,
        },
        functions,
    }
}

/// Returns remarks on the assumptions of a run.
#[expect(clippy::cast_precision_loss, reason = "counts to be read")]
fn notes(scenario: &Scenario<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    let varied = |own: &&CalledFunction| {
        own.each == WorkConversion::Mean && own.varies.is_some_and(|varies| varies > 0.3)
    };
    let (count, most) = scenario
        .called
        .iter()
        .filter(varied)
        .fold((0, 0.0_f64), |(count, most), own| {
            (count + 1, most.max(own.varies.unwrap_or(0.0)))
        });
    let functions = |count: usize| Unit::Functions.write(count as f64);
    if count > 0 {
        notes.push(format!(
            "The trace's service times vary within {} by more than 30 % of their mean (up to {:.0} %); every request takes the \
             mean, because of work = \"stated\", so tails are underestimated.",
            functions(count),
            most * 100.0
        ));
    }
    let relative = |own: &&CalledFunction| matches!(own.each, WorkConversion::Service(by) if (by - 1.0).abs() > 1e-6);
    let count = scenario.called.iter().filter(relative).count();
    if count > 0 {
        notes.push(format!(
            "Executions of {} have the mean that the file of functions states and vary as the trace's service times do; \
             work = \"stated\" omits the variation, work = \"trace\" takes the trace's times unchanged.",
            functions(count)
        ));
    }
    let count = scenario
        .called
        .iter()
        .filter(|own| own.tokens_unused)
        .count();
    if count > 0 {
        notes.push(format!(
            "The trace has tokens for {}, but the model has no ms_per_input_token or ms_per_output_token: every request \
             takes the mean, so tails are underestimated.",
            functions(count)
        ));
    }
    if !scenario.unused.is_empty() {
        const NAMED: usize = 5;
        let named = scenario.unused.iter().take(NAMED);
        let named: Vec<String> = named.map(|name| format!("{name:?}")).collect();
        let more = scenario.unused.len() - named.len();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        notes.push(format!(
            "No function of the trace matches the name of [[function]] {}{more}.",
            named.join(", ")
        ));
    }
    notes
}
