//! Validates the scenario `shares`: pods with quotas on one GPU, under Weir's rule and under a token bucket for each pod, as is
//! common today.
//!
//! The simulation has the same pods, quotas, loops and pauses, [`policy::tokens`] in virtual time, and the latency of a message
//! between agent and program. Only that is measured, in a run of its own: half the median time from the last kernel of one of two
//! equal pods to the first of the other.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use device::law::Law;
use device::part::Part;
use model_server::Model;
use policy::tokens::{self, Quota, Share};
use policy::{Span, Time};
use serde::{Deserialize, Serialize};
use simulator::random::Streams;
use simulator::shared::gpu::Suspension;
use simulator::shared::models::{GateTimes, GpuParts};
use simulator::shared::{self, CountedSpan, Loop, Models, Noise, loops};
use simulator::statistics::Percentile;

use super::super::shares::{DROPPED, Hindrance, Outcome, Plan, Pod, Rule, Work, once, pods};
use super::compare::{Bound, compared, ranking};
use super::report::{self, Disturbed, Row};
use super::{Arguments, announce, disturbed, print_progress};
use crate::output::print;

/// Compared cases: name, pods, their default work, GPU.
const CASES: [(&str, &str, Work, &str); 5] = [
    ("10:90", "10:90", Work::Kernels, "H100"),
    (
        "30:70, the first pauses",
        "request=0.3,limit=0.3,work=pauses:request=0.7,limit=0.7",
        Work::Kernels,
        "H100",
    ),
    ("20:30:50, kernels of 50 ms", "20:30:50", Work::Long, "H100"),
    (
        "ResNet and RNNT on 24 % of the SMs each",
        "request=0.5,limit=0.8,sm=24,work=resnet:request=0.5,limit=0.5,sm=24,work=rnnt",
        Work::Kernels,
        "V100",
    ),
    (
        "30:70, the first is stopped for 60 of each 100 ms",
        "request=0.3,limit=1,runs=40ms,stands=60ms:request=0.7,limit=1",
        Work::Kernels,
        "H100",
    ),
];
const RULES: [Rule; 2] = [Rule::Weir, Rule::ReactiveBucket];
/// Length of the run which measures a message, in s.
const MESSAGE_SECONDS: f64 = 5.0;
/// Allowed difference of a share, in percent of the time.
const SHARE: Bound = Bound::Units(3.0);
/// Allowed difference of a rate and of a percentile.
const RATE: Bound = Bound::Part(0.15);
const PERCENTILE: Bound = Bound::Part(0.15);
/// Approximate time to start and end the programs of a run, with the dropped time, in s.
const AROUND_RUN: f64 = 3.5;
/// Time from the gate's closing to the request of a process with more work: its thread finds the gate shut (assumption, as in the
/// simulator's own models).
const ASK_US: f64 = 50.0;
/// Longest message latency, in µs.
const MESSAGE_US_MAX: f64 = 1e6;

pub(super) struct Shares<'a> {
    arguments: &'a Arguments,
    /// Plans with their names.
    cases: Vec<(&'static str, Plan)>,
}

/// The simulation's measured input from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Measured {
    message_us: f64,
}

impl Measured {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        let text = fs::read_to_string(path).with_context(name)?;
        Self::parse(&text).with_context(name)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let own: Self = toml::from_str(text)?;
        ensure!(
            (0.0..=MESSAGE_US_MAX).contains(&own.message_us),
            "message-us is {}; allowed: 0 to {MESSAGE_US_MAX}",
            own.message_us
        );
        Ok(own)
    }

    async fn measure() -> anyhow::Result<Self> {
        let outcome = once(&Plan {
            pods: pods("50:50", Work::Kernels)?,
            rule: Rule::Weir,
            seconds: MESSAGE_SECONDS,
            time: 1,
            part: "H100",
        })
        .await?;
        let passing = outcome.passing_us;
        let passing = passing.context("the GPU was never handed over between the pods")?;
        Ok(Self {
            message_us: passing / 2.0,
        })
    }

    fn line(self) -> String {
        format!(
            "A message between agent and program: {:.0} µs.",
            self.message_us
        )
    }
}

/// GPU use which a pod achieved.
#[derive(Debug, Clone, Copy)]
struct Achieved {
    share_percent: f64,
    per_second: f64,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl Achieved {
    fn of(outcome: &Outcome) -> Vec<Self> {
        let each = outcome.achieved.iter().enumerate();
        each.map(|(pod, own)| Self {
            share_percent: own.share * 100.0,
            per_second: super::super::shares::rate(outcome, pod),
            p95_ms: own.p95_ms,
            p99_ms: own.p99_ms,
        })
        .collect()
    }
}

/// Returns the sum of all pods' shortfalls from their entitlements, in percent of the time.
fn lacking(entitled: &[f64], achieved: &[Achieved]) -> f64 {
    let each = entitled.iter().zip(achieved);
    each.map(|(entitled, achieved)| (entitled * 100.0 - achieved.share_percent).max(0.0))
        .sum()
}

/// A figure of a pod: its name, its value, the allowed difference.
type Figure = (&'static str, fn(&Achieved) -> Option<f64>, Bound);

const FIGURES: [Figure; 4] = [
    ("share, %", |achieved| Some(achieved.share_percent), SHARE),
    ("batches/s", |achieved| Some(achieved.per_second), RATE),
    ("p95, ms", |achieved| achieved.p95_ms, PERCENTILE),
    ("p99, ms", |achieved| achieved.p99_ms, PERCENTILE),
];

impl<'a> Shares<'a> {
    pub(super) fn new(arguments: &'a Arguments, seconds: f64) -> anyhow::Result<Self> {
        let mut cases = Vec::new();
        for (name, text, work, part) in CASES {
            for rule in RULES {
                let plan = Plan {
                    pods: pods(text, work)?,
                    rule,
                    seconds,
                    time: 1,
                    part,
                };
                cases.push((name, plan));
            }
        }
        Ok(Self { arguments, cases })
    }

    /// Prints only the simulated figures.
    pub(super) fn simulated_only(&self, hops: &Path) -> anyhow::Result<ExitCode> {
        let measured = Measured::read(hops)?;
        let mut rows = Vec::new();
        for (name, plan) in &self.cases {
            for (pod, achieved) in plan.pods.iter().zip(simulated(plan, measured)?) {
                for (what, figure, _) in FIGURES {
                    rows.push((case(name, plan, Some(pod)), what, figure(&achieved)));
                }
            }
        }
        print(&report::simulated(&rows, self.arguments.json)?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Measures a message, runs the demo, simulates, and compares.
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let arguments = self.arguments;
        let runs = self.cases.iter();
        let once_each: f64 = runs.map(|(_, plan)| plan.seconds + AROUND_RUN).sum();
        let seconds = once_each * f64::from(arguments.rounds) + MESSAGE_SECONDS + AROUND_RUN;
        announce(arguments.json, seconds);
        let measured = match &arguments.hops {
            Some(path) => Measured::read(path)?,
            None => Measured::measure().await?,
        };
        if let Some(path) = &arguments.write_hops {
            fs::write(path, toml::to_string(&measured)?)
                .with_context(|| path.display().to_string())?;
        }
        print_progress(arguments.json, &measured.line());
        let mut live: Vec<Vec<Vec<Achieved>>> = vec![Vec::new(); self.cases.len()];
        let mut entitled = vec![Vec::new(); self.cases.len()];
        let mut disturbances = Vec::new();
        for round in 1..=arguments.rounds {
            for (at, (name, plan)) in self.cases.iter().enumerate() {
                let outcome = once(plan).await?;
                let name = case(name, plan, None);
                print_progress(arguments.json, &format!("round {round}, {name}"));
                // A wait for answers would suffer more from lag, but tokens are short.
                let why = outcome.disturbed.clone();
                let why = why.or_else(|| disturbed(&outcome.device, plan.seconds));
                disturbances.extend(why.map(|why| Disturbed::new(&name, round, why)));
                live[at].push(Achieved::of(&outcome));
                entitled[at] = outcome.entitled;
            }
        }
        let (mut rows, mut lacks) = (Vec::new(), Vec::new());
        for (at, (name, plan)) in self.cases.iter().enumerate() {
            let simulated = simulated(plan, measured)?;
            for (number, (pod, own)) in plan.pods.iter().zip(&simulated).enumerate() {
                for (what, figure, bound) in FIGURES {
                    let rounds = live[at].iter();
                    let rounds: Vec<_> = rounds
                        .map(|round| round.get(number).and_then(figure))
                        .collect();
                    let compared = compared(&rounds, figure(own), bound);
                    rows.push(Row::figure(&case(name, plan, Some(pod)), what, compared));
                }
            }
            let rounds = live[at].iter();
            let rounds: Vec<_> = rounds
                .map(|round| Some(lacking(&entitled[at], round)))
                .collect();
            lacks.push(compared(
                &rounds,
                Some(lacking(&entitled[at], &simulated)),
                SHARE,
            ));
        }
        for ((name, _), two) in self.cases.iter().step_by(2).zip(lacks.chunks(2)) {
            let order = match two {
                [Some(weir), Some(other)] => Some(ranking(weir, other)),
                _ => None,
            };
            rows.push(Row::ranking(name, "which rule lacks less", order));
        }
        let whole = report::Report {
            scenario: "shares",
            rounds: arguments.rounds,
            seconds: self.cases.first().map_or(0.0, |(_, plan)| plan.seconds),
            holds: rows.iter().all(Row::holds),
            measured: measured.line(),
            rows,
            disturbed: disturbances,
        };
        print(&whole.text(arguments.json)?)?;
        Ok(whole.code())
    }
}

fn case(name: &str, plan: &Plan, pod: Option<&Pod>) -> String {
    let pod = pod.map_or_else(String::new, |pod| format!(", {}", pod.name));
    format!("{name}, {}{pod}", plan.rule.name())
}

/// Returns the achieved use of the same pods in virtual time.
fn simulated(plan: &Plan, measured: Measured) -> anyhow::Result<Vec<Achieved>> {
    let part = Part::named(plan.part)?;
    let agent = gpu_sidecar::config::TokenSettings::default();
    let mut models = Models {
        models: Vec::new(),
        footprints: Vec::new(),
        gpu: GpuParts {
            memory_mb: part.memory_mib,
            cold_start_s: 0.0,
            cold_start_s_per_gb: 0.0,
        },
        gate: GateTimes {
            message_us: measured.message_us,
            ask_us: ASK_US,
            in_flight_us: agent.inflight.as_secs_f64() * 1e6,
            in_flight_alone_us: Some(agent.inflight_alone.as_secs_f64() * 1e6),
        },
    };
    let mut all = Vec::new();
    for pod in &plan.pods {
        let (model, pause) = model(pod)?;
        models.models.push(model);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "shares of 0 to 100 %"
        )]
        let (hundredths, share) = ((pod.sm_percent * 100.0).round() as u32, |part: f64| {
            Share::from_parts_per_million((part * 1e6).round() as u32)
        });
        let sms = u64::from(part.sms_of_percentage(hundredths));
        let sm = sms * u64::from(tokens::SM_WHOLE) / u64::from(part.sms);
        all.push(Loop {
            model: all.len(),
            sm: u32::try_from(sm)?,
            quota: Quota::new(share(pod.request)?, share(pod.limit)?)?,
            gpu: 0,
            // Without a pause one batch is always queued behind the current one.
            in_flight: if pause == Span::ZERO { 2 } else { 1 },
            pause,
            suspension: match pod.hindrance {
                Some(Hindrance::Stopped { runs, stands }) => Some(Suspension {
                    runs: runs.into(),
                    suspended: stands.into(),
                    is_observable: true,
                }),
                _ => None,
            },
        });
    }
    let settings = shared::Settings {
        tokens: tokens::Settings {
            rule: plan.rule.simulated(),
            ..tokens::Settings::default()
        },
        noise: Noise::OFF,
    };
    let from = Time::ZERO.after(DROPPED.into());
    let span = CountedSpan {
        from,
        to: from.after(Duration::from_secs_f64(plan.seconds).into()),
    };
    let outcome = loops(&models, &settings, &all, span, &Streams::new("validate", 1))?;
    let each = outcome.pods.iter().zip(&outcome.functions);
    Ok(each
        .map(|(pod, function)| {
            let ms = |percentile| {
                let latency = function.latencies.percentile(percentile);
                latency.map(|latency| latency.as_secs_f64() * 1e3)
            };
            Achieved {
                share_percent: pod.share(outcome.counted) * 100.0,
                per_second: pod.throughput(outcome.counted),
                p95_ms: ms(Percentile::P95),
                p99_ms: ms(Percentile::P99),
            }
        })
        .collect())
}

/// Returns a pod's work, and its pause after each batch.
fn model(pod: &Pod) -> anyhow::Result<(shared::models::Model, Span)> {
    let work = pod.work.simulated();
    let work = work.with_context(|| format!("{}: no such work", pod.name))?;
    let interference = work.model.as_ref();
    let interference = interference.map_or(0, |model| model.interference_millionths);
    let model = shared::models::Model {
        name: pod.name.clone(),
        requests_per_s: 1.0 / work.batch.as_secs_f64(),
        law: work.model.as_ref().map_or(Law::Linear, law),
        interference: f64::from(interference) / 1e6,
        launch_us: work.launch.as_secs_f64() * 1e6,
    };
    Ok((model, work.pause.into()))
}

fn law(model: &Model) -> Law {
    let part = |millionths: u32| f64::from(millionths) / 1e6;
    match model.law {
        kernels::Law::Linear => Law::Linear,
        kernels::Law::Saturating { at_millionths } => Law::Saturating {
            at: part(at_millionths),
        },
        kernels::Law::Knee { at_millionths } => Law::Knee {
            at: part(at_millionths),
        },
        kernels::Law::Amdahl { serial_millionths } => Law::Amdahl {
            serial: part(serial_millionths),
        },
        kernels::Law::Power {
            exponent_millionths,
        } => Law::Power {
            exponent: part(exponent_millionths),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: Measured = Measured { message_us: 50.0 };

    #[test]
    fn simulated_shares_meet_the_quotas_and_are_reproducible() {
        for (name, text, work, part) in CASES {
            let plan = Plan {
                pods: pods(text, work).unwrap(),
                rule: Rule::Weir,
                seconds: 10.0,
                time: 1,
                part,
            };
            let achieved = simulated(&plan, MEASURED).unwrap();
            for (pod, own) in plan.pods.iter().zip(&achieved) {
                // A stopped pod may lose time by its own fault.
                let least = match pod.hindrance {
                    Some(_) => 0.0,
                    None => pod.request.min(pod.demand()) * 100.0,
                };
                let range = least - 1.5..=pod.limit * 100.0 + 1.5;
                assert!(range.contains(&own.share_percent), "{name}: {own:?}");
                assert!(own.p95_ms <= own.p99_ms && own.per_second > 1.0);
            }
            let again = simulated(&plan, MEASURED).unwrap();
            assert_eq!(format!("{achieved:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn shortfalls_count_and_surpluses_do_not() {
        let achieved = |share_percent| Achieved {
            share_percent,
            per_second: 1.0,
            p95_ms: None,
            p99_ms: None,
        };
        let lacks = lacking(&[0.3, 0.7], &[achieved(20.0), achieved(75.0)]);
        assert!((lacks - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_message_latency_is_parsed_and_errors_name_the_key() {
        assert_eq!(Measured::parse("message-us = 50").unwrap(), MEASURED);
        for (text, expected) in [
            ("message-us = -1", "message-us is -1; allowed: 0 to 1000000"),
            ("message = 1", "message"),
        ] {
            let error = format!("{:#}", Measured::parse(text).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
