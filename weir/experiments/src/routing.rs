//! All rules at several loads, on fleets of equal and of unequal instances, with hand-overs of several lengths.

use std::collections::BTreeMap;

use policy::Span;
use policy::routing::Rule;

use crate::{Case, Findings, Progress, Row};
use simulator::random::{Purpose, Streams};
use simulator::report::{Cell, Column, Part, Section, Table};
use simulator::routing::{Job, Setup, serve};
use simulator::statistics::{Interval, Unit};

/// Name by which the experiment is requested.
pub const ID: &str = "routing";
/// Description in one line.
pub const ABOUT: &str =
    "requests in time by the rule that binds a function's requests to instances, early or late";

const FLEETS: [(&str, &[u32]); 3] = [
    ("four equal instances", &[100; 4]),
    ("eight equal instances", &[100; 8]),
    ("speeds 1 : 1 : 0.4 : 0.4", &[100, 100, 40, 40]),
];
const LOADS: [f64; 6] = [0.5, 0.7, 0.9, 1.0, 1.1, 1.2];
/// Lengths of a hand-over, in microseconds.
const HAND_OVERS_US: [u64; 4] = [0, 100, 500, 2_000];
/// Length at which loads are compared.
const HAND_OVER_US: u64 = 500;
/// Load at which hand-overs are compared.
const LOAD: f64 = 1.0;
/// Largest relative error of the estimates.
const ESTIMATE_ERROR: f64 = 0.25;

/// Runs the experiment over `seeds` seeds, each with another slice of a trace. `jobs` returns the slice for a seed, a load and
/// the sum of the instances' speeds; `watch` is called with the progress, and stops the run by returning false.
pub fn run(
    seeds: u32,
    jobs: &dyn Fn(u64, f64, f64) -> Vec<Job>,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Findings {
    let mut progress = Progress {
        done: 0,
        of: seeds,
        events: 0,
    };
    let mut values: BTreeMap<Point, Vec<f64>> = BTreeMap::new();
    let mut stopped = false;
    for seed in 1..=u64::from(seeds) {
        for (fleet, (_, speeds)) in FLEETS.iter().enumerate() {
            let capacity = f64::from(speeds.iter().sum::<u32>()) / 100.0;
            for (load, &offered) in LOADS.iter().enumerate() {
                let jobs = jobs(seed, offered, capacity);
                for (rule, &chosen) in Rule::ALL.iter().enumerate() {
                    for (point, setup) in points(fleet, load, rule, chosen, speeds) {
                        let mut stream = Streams::new(ID, seed).stream(Purpose::Noise, 0);
                        let counts = serve(&jobs, &setup, &mut stream);
                        progress.events += counts.requests;
                        values.entry(point).or_default().push(counts.hit_rate());
                    }
                }
            }
        }
        progress.done += 1;
        if !watch(progress) {
            stopped = progress.done < seeds;
            break;
        }
    }
    Findings {
        sections: vec![section(&values)],
        rows: values.iter().filter_map(row).collect(),
        evidence: BTreeMap::new(),
        stopped,
    }
}

/// Indexes of fleet, load and rule, the length of a hand-over in microseconds, and whether estimates are exact.
type Point = (usize, usize, usize, u64, bool);

/// Returns the points and setups to simulate for a rule at a load.
fn points<'a>(
    fleet: usize,
    load: usize,
    rule: usize,
    chosen: Rule,
    speeds: &'a [u32],
) -> impl Iterator<Item = (Point, Setup<'a>)> {
    let is_compared = (LOADS[load] - LOAD).abs() < 1e-9;
    HAND_OVERS_US.into_iter().filter_map(move |hand_over_us| {
        if !is_compared && hand_over_us != HAND_OVER_US {
            return None;
        }
        let is_exact = hand_over_us == 0;
        let setup = Setup {
            rule: chosen,
            speeds,
            hand_over: Span(hand_over_us * 1_000),
            estimate_error: if is_exact { 0.0 } else { ESTIMATE_ERROR },
        };
        Some(((fleet, load, rule, hand_over_us, is_exact), setup))
    })
}

fn row((&(fleet, load, rule, hand_over_us, is_exact), values): (&Point, &Vec<f64>)) -> Option<Row> {
    let case = Case::Routing {
        speeds: FLEETS[fleet].1,
        load: LOADS[load],
        hand_over_us,
        estimate_error: if is_exact { 0.0 } else { ESTIMATE_ERROR },
        figure: "in_time",
    };
    Row::new(ID, Rule::ALL[rule].name(), case, values)
}

fn section(values: &BTreeMap<Point, Vec<f64>>) -> Section {
    let cell = |point: Point| match values
        .get(&point)
        .map(|own| (Interval::of(own), own.first()))
    {
        Some((Ok(interval), _)) => Cell::Interval(interval, Unit::Share),
        Some((Err(_), Some(&value))) => Cell::Number(value, Unit::Share),
        _ => Cell::Nothing,
    };
    let at_load = LOADS.iter().position(|&load| (load - LOAD).abs() < 1e-9);
    let at_load = at_load.unwrap_or_default();
    let mut parts = Vec::new();
    for (fleet, (name, _)) in FLEETS.iter().enumerate() {
        let rows = Rule::ALL.iter().enumerate().map(|(rule, chosen)| {
            let cells = (0..LOADS.len()).map(|load| cell((fleet, load, rule, HAND_OVER_US, false)));
            [Cell::Text(chosen.name().to_owned())]
                .into_iter()
                .chain(cells)
                .collect()
        });
        let columns = LOADS
            .iter()
            .map(|load| Column::number(format!("load {load}")));
        parts.push(Part::Table(Table {
            title: format!(
                "{name}: in time, by load; a hand-over takes {}, estimates are off by up to {:.0} %",
                millis(HAND_OVER_US),
                ESTIMATE_ERROR * 100.0
            ),
            columns: [Column::text("rule")].into_iter().chain(columns).collect(),
            rows: rows.collect(),
        }));
        let rows = Rule::ALL.iter().enumerate().map(|(rule, chosen)| {
            let cells = HAND_OVERS_US.map(|us| cell((fleet, at_load, rule, us, us == 0)));
            [Cell::Text(chosen.name().to_owned())]
                .into_iter()
                .chain(cells)
                .collect()
        });
        let columns = HAND_OVERS_US.map(|us| match us {
            0 => Column::number("none, exact estimates"),
            us => Column::number(millis(us)),
        });
        parts.push(Part::Table(Table {
            title: format!("{name}: in time at load {LOAD:.1}, by the time of a hand-over"),
            columns: [Column::text("rule")].into_iter().chain(columns).collect(),
            rows: rows.collect(),
        }));
    }
    Section {
        title: ID.to_owned(),
        text: format!("{ABOUT}. One request computes at a time on each instance."),
        parts,
    }
}

fn millis(us: u64) -> String {
    format!("{} ms", Span(us * 1_000).as_secs_f64() * 1e3)
}
