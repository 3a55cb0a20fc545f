//! Validates the scenario `deadline`: a queue-proxy before one instance, stock against Weir's settings, at several loads.

use std::path::Path;
use std::process::ExitCode;

use simulator::instance::{Fate, serve};
use simulator::random::{Purpose, Streams};

use super::super::children::{Children, Settings};
use super::super::gpu::SoftGpu;
use super::super::progress::Progress;
use super::super::replay::{Answer, Outcome, replay};
use super::super::report::{Figures, was_answered_once};
use super::super::trace::Trace;
use super::super::workload::Workload;
use super::compare::{Bound, Compared, Ranking, compared, mean, ranking};
use super::hops::{self, Measured};
use super::report::{self, Disturbed, Row};
use super::{Arguments, announce, disturbed, print_progress};
use crate::output::print;

/// Objectives in multiples of service times, as in the demo.
const OBJECTIVE_FACTOR: f64 = 4.0;
/// Allowed difference of a hit rate, in percent of the requests.
const HIT_RATE: Bound = Bound::Units(3.0);
/// Allowed difference of the 95th percentile of answers.
const P95: Bound = Bound::Part(0.15);
/// Number of simulations of a load, each with hops of its own draw; their mean counts.
const DRAWS: u64 = 20;
/// Approximate time to start and end the programs of a run, in s.
const AROUND_RUN: f64 = 1.5;

pub(super) struct Deadline<'a> {
    arguments: &'a Arguments,
    seconds: f64,
    loads: Vec<f64>,
    workloads: Vec<Workload>,
}

/// Compared figures of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    hit_percent: f64,
    p95_ms: Option<f64>,
}

impl Run {
    fn new(workload: &Workload, answers: &[Answer]) -> Self {
        let figures = Figures::of(workload, answers);
        Self {
            hit_percent: figures.hit_rate * 100.0,
            p95_ms: figures.p95_ms,
        }
    }
}

impl<'a> Deadline<'a> {
    pub(super) fn new(
        arguments: &'a Arguments,
        seconds: f64,
        loads: Vec<f64>,
    ) -> anyhow::Result<Self> {
        let trace = Trace::bundled()?;
        let each = loads
            .iter()
            .map(|&load| Workload::new(&trace, seconds, load, OBJECTIVE_FACTOR, arguments.seed));
        let workloads = each.collect::<Result<_, _>>()?;
        Ok(Self {
            arguments,
            seconds,
            loads,
            workloads,
        })
    }

    /// Prints only the simulated figures.
    pub(super) fn simulated_only(&self, hops: &Path) -> anyhow::Result<ExitCode> {
        let measured = Measured::read(hops)?;
        let mut rows = Vec::new();
        for (workload, load) in self.workloads.iter().zip(&self.loads) {
            for settings in Settings::both(workload.longest_objective()) {
                let run = self.simulated(workload, settings, &measured)?;
                let case = format!("load {load}, {}", settings.name());
                rows.push((case.clone(), "in time, %", Some(run.hit_percent)));
                rows.push((case, "p95, ms", run.p95_ms));
            }
        }
        print(&report::simulated(&rows, self.arguments.json)?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Measures the hops, runs the demo, simulates, and compares.
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let arguments = self.arguments;
        self.announce();
        let measured = match (&arguments.hops, self.workloads.first()) {
            (Some(path), _) => Measured::read(path)?,
            (None, Some(workload)) => Measured::measure(arguments.bind, workload).await?,
            (None, None) => anyhow::bail!("--loads: at least one is needed"),
        };
        if let Some(path) = &arguments.write_hops {
            measured.write(path)?;
        }
        print_progress(arguments.json, &measured.line());
        // Rounds of each load and setting.
        let mut live = vec![[Vec::new(), Vec::new()]; self.workloads.len()];
        let (mut disturbances, mut is_whole) = (Vec::new(), true);
        // Loads alternate within a round, so that slow drift of the machine affects all alike.
        for round in 1..=arguments.rounds {
            for (at, workload) in self.workloads.iter().enumerate() {
                let both = Settings::both(workload.longest_objective());
                for (settings, runs) in both.into_iter().zip(&mut live[at]) {
                    let (run, why, is_once) = self.live(workload, settings).await?;
                    runs.push(run);
                    let case = self.case(at, settings);
                    print_progress(
                        arguments.json,
                        &format!("round {round}, {case}: {:.1} % in time", run.hit_percent),
                    );
                    if !is_once {
                        is_whole = false;
                        let why = "not every request was answered exactly once".to_owned();
                        disturbances.push(Disturbed::new(&case, round, why));
                    }
                    disturbances.extend(why.map(|why| Disturbed::new(&case, round, why)));
                }
            }
        }
        let mut rows = Vec::new();
        for (at, workload) in self.workloads.iter().enumerate() {
            let both = Settings::both(workload.longest_objective());
            let mut hits = Vec::new();
            for (settings, runs) in both.into_iter().zip(&live[at]) {
                let simulated = self.simulated(workload, settings, &measured)?;
                let case = self.case(at, settings);
                let of = |figure: &dyn Fn(&Run) -> Option<f64>, bound| {
                    let rounds: Vec<_> = runs.iter().map(figure).collect();
                    compared(&rounds, figure(&simulated), bound)
                };
                let hit = of(&|run| Some(run.hit_percent), HIT_RATE);
                let p95 = of(&|run| run.p95_ms, P95);
                hits.push(hit);
                rows.push(Row::figure(&case, "in time, %", hit));
                rows.push(Row::figure(&case, "p95, ms", p95));
            }
            let order = order(&hits);
            let case = format!("load {}", self.loads[at]);
            rows.push(Row::ranking(&case, "weir above stock", order));
        }
        let whole = report::Report {
            scenario: "deadline",
            rounds: arguments.rounds,
            seconds: self.seconds,
            holds: is_whole && rows.iter().all(Row::holds),
            measured: measured.line(),
            rows,
            disturbed: disturbances,
        };
        print(&whole.text(arguments.json)?)?;
        Ok(whole.code())
    }

    fn case(&self, at: usize, settings: Settings) -> String {
        format!("load {}, {}", self.loads[at], settings.name())
    }

    fn announce(&self) {
        let arguments = self.arguments;
        let idle = |workload: &Workload| {
            let apart = workload.apart(hops::REQUESTS, hops::GAP);
            2.0 * (apart.span.as_secs_f64() + AROUND_RUN)
        };
        let idle = match (&arguments.hops, self.workloads.first()) {
            (None, Some(workload)) => idle(workload),
            _ => 0.0,
        };
        let spans = self.workloads.iter();
        let once: f64 = spans
            .map(|workload| 2.0 * (workload.span.as_secs_f64() + AROUND_RUN))
            .sum();
        announce(arguments.json, idle + once * f64::from(arguments.rounds));
    }

    /// Makes one live run. Returns its figures, the reason if it is disturbed, and whether each request was answered exactly
    /// once.
    async fn live(
        &self,
        workload: &Workload,
        settings: Settings,
    ) -> anyhow::Result<(Run, Option<String>, bool)> {
        // A new GPU for each run, so that its lag is that of the run alone.
        let gpu = SoftGpu::start().await?;
        let mut children =
            Children::start(self.arguments.bind, workload.cost, &gpu, settings).await?;
        let answers = replay(children.address(), workload, &Progress::hidden()).await;
        children.check()?;
        let served = children.served().await?;
        children.stop().await?;
        let why = disturbed(&gpu.device()?, workload.span.as_secs_f64());
        let is_once = was_answered_once(workload, &answers, served);
        Ok((Run::new(workload, &answers), why, is_once))
    }

    /// Returns the means of all draws.
    fn simulated(
        &self,
        workload: &Workload,
        settings: Settings,
        measured: &Measured,
    ) -> anyhow::Result<Run> {
        let (requests, proxy) = (workload.simulated(), settings.simulated());
        let hops = measured.hops(settings)?;
        let (mut hit_percent, mut p95_ms) = (Vec::new(), Vec::new());
        for draw in 0..DRAWS {
            let streams = Streams::new("validate", self.arguments.seed.wrapping_add(draw));
            let mut stream = streams.stream(Purpose::Noise, 0);
            let answers = serve(&requests, &proxy, &hops, &mut stream);
            let each = answers.iter().enumerate().map(|(request, answer)| Answer {
                request,
                outcome: Some(match answer.fate {
                    Fate::Served => Outcome::Served,
                    Fate::Refused => Outcome::Refused,
                    Fate::Shed => Outcome::Shed,
                }),
                latency: std::time::Duration::from_nanos(answer.latency.0),
                exchange: None,
            });
            let run = Run::new(workload, &each.collect::<Vec<_>>());
            hit_percent.push(run.hit_percent);
            p95_ms.extend(run.p95_ms);
        }
        Ok(Run {
            hit_percent: mean(&hit_percent).unwrap_or_default(),
            p95_ms: mean(&p95_ms),
        })
    }
}

/// Returns whether the simulation ranks stock and Weir by hit rate as the live rounds do.
fn order(hits: &[Option<Compared>]) -> Option<Ranking> {
    match hits {
        [Some(stock), Some(weir)] => Some(ranking(stock, weir)),
        _ => None,
    }
}
