//! The order of requests on a node of four GPUs: real traces at several loads, under the whole order and each change to the
//! printed one alone.

use std::collections::BTreeMap;

use policy::pool::queue::{
    Adaptation, Admission, CountedMisses, LowRule, Order, Settings, SpareRule,
};
use simulator::node;
use simulator::random::Streams;
use simulator::report::{Cell, Column, Part, Section, Table};
use simulator::rules::RuleName;
use simulator::statistics::{Interval, Unit};
use simulator::traces::{self, Options, Source};
use simulator::what_if::{Cluster, Functions, Load, Point, Scenario, Window};

use super::rows::{OrderRow, Row};
use super::{ExperimentError, Findings, Progress};

pub(super) const ID: &str = "order";
pub(super) const ABOUT: &str =
    "functions that keep their objectives by the order of requests, on traces at several loads";

/// Torpor's node, with an objective of 80 ms or 4 executions for 98 % of a function's requests.
const CLUSTER: &str = "like = \"torpor\"\n";
const FUNCTIONS: &str = "models = \"torpor\"\n\
                         [default]\n\
                         objective_ms = 80\n\
                         objective_factor = 4\n\
                         percentile = 98\n";

/// Shares of time in which the GPUs are occupied under the printed order.
const LOADS: [f64; 6] = [0.5, 0.6, 0.7, 0.78, 0.85, 0.95];

/// A trace, and the multiples of its rate that give [`LOADS`].
struct Trace {
    name: &'static str,
    text: &'static str,
    rate_scales: [f64; LOADS.len()],
}

/// Traces of the experiment; see `weir/traces/README.md` for sources and licences.
const TRACES: [Trace; 3] = [
    Trace {
        name: "torpor-samples",
        text: include_str!("../../traces/torpor-samples.csv"),
        rate_scales: [2.98, 3.55, 4.12, 4.52, 4.86, 5.35],
    },
    Trace {
        name: "azure-functions-2019-first-hour",
        text: include_str!("../../traces/azure-functions-2019-first-hour.csv"),
        rate_scales: [0.59, 0.71, 0.826, 0.92, 1.0, 1.19],
    },
    Trace {
        name: "azure-functions-2019-sixth-hour",
        text: include_str!("../../traces/azure-functions-2019-sixth-hour.csv"),
        rate_scales: [0.57, 0.684, 0.798, 0.888, 0.97, 1.09],
    },
];

/// Names of the orders that are compared: the first four are rules of `weir simulate` too, the others each change one setting
/// of `paper`.
const RULES: [&str; 9] = [
    "adaptive",
    "paper",
    "arrival-order",
    "latest-start",
    "low-first-where-harmless",
    "low-among-high",
    "waited-misses",
    "spare-gives-way",
    "threshold-from-twenty-misses",
];

/// Returns the settings of a node under an order of [`RULES`].
fn settings(rule: &str) -> node::Settings {
    let printed = Settings::as_printed();
    let queue = match rule {
        "arrival-order" => return RuleName::ArrivalOrder.settings(),
        "latest-start" => return RuleName::LatestStart.settings(),
        "paper" => printed,
        "low-first-where-harmless" => Settings {
            low: LowRule::FirstWhereHarmless,
            ..printed
        },
        "low-among-high" => Settings {
            low: LowRule::AmongHighGroup,
            ..printed
        },
        "waited-misses" => Settings {
            misses: CountedMisses::Waited,
            ..printed
        },
        "spare-gives-way" => Settings {
            spare: SpareRule::GivesWay,
            ..printed
        },
        "threshold-from-twenty-misses" => Settings {
            order: Order::RequiredRequests(Admission::AdaptiveThreshold(
                Adaptation::FromTwentyMisses,
            )),
            ..printed
        },
        _ => Settings::default(),
    };
    node::Settings {
        queue,
        ..RuleName::Adaptive.settings()
    }
}

/// Indexes of trace, load and rule.
type Key = (usize, usize, usize);

/// Results of one trace, load and rule: a value for each seed.
#[derive(Debug, Default)]
struct Values {
    in_time: Vec<f64>,
    keeping: Vec<f64>,
}

pub(super) fn run(
    seeds: u32,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Findings, ExperimentError> {
    let cluster = Cluster::from_toml(ID, CLUSTER).map_err(wrong)?;
    let functions = Functions::from_toml(ID, FUNCTIONS).map_err(wrong)?;
    let runs = u32::try_from(TRACES.len() * LOADS.len() * RULES.len()).unwrap_or(u32::MAX);
    let mut progress = Progress {
        done: 0,
        of: runs * seeds,
        events: 0,
    };
    let mut values: BTreeMap<Key, Values> = BTreeMap::new();
    // Seed by seed, so that an interrupted experiment has all rules and loads of the seeds completed.
    for seed in 1..=u64::from(seeds) {
        let mut of_seed = Vec::new();
        for (at, trace) in TRACES.iter().enumerate() {
            let load = load(trace, seed)?;
            let mut scenario = Scenario::new(&cluster, &functions, &load).map_err(wrong)?;
            scenario.seed = seed;
            for (number, &rate_scale) in trace.rate_scales.iter().enumerate() {
                for (rule, name) in RULES.iter().enumerate() {
                    let point = Point {
                        rate_scale,
                        ..scenario.point(RuleName::Adaptive)
                    };
                    let answer = scenario
                        .run_with(point, settings(name), &mut |_| watch(progress))
                        .map_err(wrong)?;
                    progress.done += 1;
                    progress.events += answer.requests;
                    if answer.stopped || !watch(progress) {
                        return Ok(findings(&values, progress.done < progress.of));
                    }
                    let kept = (answer.attainment.mean, count(answer.functions_keeping));
                    of_seed.push(((at, number, rule), kept));
                }
            }
        }
        for (key, (in_time, keeping)) in of_seed {
            let own = values.entry(key).or_default();
            own.in_time.push(in_time);
            own.keeping.push(keeping);
        }
    }
    Ok(findings(&values, false))
}

fn wrong(error: impl std::fmt::Display) -> ExperimentError {
    ExperimentError::File {
        id: ID.to_owned(),
        why: error.to_string(),
    }
}

/// Returns the arrivals of a trace under a seed.
fn load(trace: &Trace, seed: u64) -> Result<Load, ExperimentError> {
    let source = Source::bytes(trace.name, trace.text.as_bytes());
    let options = Options::new(Streams::new("what-if", seed));
    let workload = traces::open(&source, &options).map_err(wrong)?;
    Load::read(workload, Window::default(), &mut |_| true).map_err(wrong)
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred")]
const fn count(functions: usize) -> f64 {
    functions as f64
}

fn findings(values: &BTreeMap<Key, Values>, stopped: bool) -> Findings {
    Findings {
        sections: vec![section(values)],
        rows: values.iter().filter_map(row).collect(),
        evidence: BTreeMap::new(),
        stopped,
    }
}

fn row((&(trace, load, rule), values): (&Key, &Values)) -> Option<Row> {
    OrderRow::new(
        TRACES[trace].name,
        LOADS[load],
        RULES[rule],
        &values.in_time,
        &values.keeping,
    )
    .map(Row::Order)
}

fn section(values: &BTreeMap<Key, Values>) -> Section {
    let cell = |values: Option<&Vec<f64>>, unit| match values.map(|own| (Interval::of(own), own)) {
        Some((Ok(interval), _)) => Cell::Interval(interval, unit),
        Some((Err(_), own)) => own
            .first()
            .map_or(Cell::Nothing, |&value| Cell::Number(value, unit)),
        None => Cell::Nothing,
    };
    let columns = || {
        let loads = LOADS.map(|load| Column::number(format!("{} busy", Unit::Share.write(load))));
        [Column::text("order")].into_iter().chain(loads).collect()
    };
    let rows = |trace: usize, of: &dyn Fn(&Values) -> &Vec<f64>, unit| {
        let cells = |(rule, name): (usize, &&str)| {
            let loads = 0..LOADS.len();
            let cells = loads.map(|load| cell(values.get(&(trace, load, rule)).map(of), unit));
            let name = Cell::Text((*name).to_owned());
            [name].into_iter().chain(cells).collect()
        };
        RULES.iter().enumerate().map(cells).collect()
    };
    let tables = TRACES.iter().enumerate().flat_map(|(at, trace)| {
        [
            Table {
                title: format!("{}: functions that keep their objectives", trace.name),
                columns: columns(),
                rows: rows(at, &|own| &own.keeping, Unit::Count),
            },
            Table {
                title: format!("{}: requests in time", trace.name),
                columns: columns(),
                rows: rows(at, &|own| &own.in_time, Unit::Share),
            },
        ]
    });
    Section {
        title: ID.to_owned(),
        text: format!(
            "{ABOUT}. The same arrivals for every order; means with 95 % intervals. Loads are shares of time in which the GPUs \
             are occupied under the printed order."
        ),
        parts: tables.map(Part::Table).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_orders_have_the_same_settings() {
        for (at, one) in RULES.iter().enumerate() {
            for other in &RULES[..at] {
                assert_ne!(settings(one), settings(other), "{one} and {other}");
            }
        }
    }

    #[test]
    fn orders_named_like_rules_of_a_simulation_are_those_rules() {
        for name in &RULES[..4] {
            let rule = RuleName::ALL.into_iter().find(|rule| rule.name() == *name);
            assert_eq!(rule.map(RuleName::settings), Some(settings(name)), "{name}");
        }
    }

    #[test]
    fn an_experiment_that_is_stopped_reports_the_seeds_completed() {
        let stopped = run(1, &mut |progress| progress.done < 2).unwrap();
        assert!(stopped.stopped && stopped.rows.is_empty());
    }
}
