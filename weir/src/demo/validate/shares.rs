//! The scenario `shares`: pods with quotas on one GPU, under Weir's rule and under that of a bucket for each pod, as is usual
//! today.
//!
//! The simulation has the same pods, quotas, loops and pauses, [`policy::tokens`] in virtual time, and what a message between
//! agent and program takes. That alone is measured, in a run of its own: half the median time from the last kernel of one of
//! two equal pods to the first of the other.

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
use simulator::shared::gpu::Stands;
use simulator::shared::models::{GateTimes, GpuParts};
use simulator::shared::{self, Counted, Loop, Models, Noise, loops};
use simulator::statistics::Percentile;

use super::super::shares::{Ask, DROPPED, Hindrance, Outcome, Pod, Rule, Work, once, pods};
use super::compare::{Bound, compared, ranking};
use super::report::{self, Disturbed, Row};
use super::{Arguments, announce, disturbed, say};
use crate::output::print;

/// What is compared: a name, the pods, their work unless they say otherwise, the GPU.
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
/// How long the run lasts in which a message is measured, in s.
const MESSAGE_SECONDS: f64 = 5.0;
/// What a share may be off by, in per cent of the time.
const SHARE: Bound = Bound::Units(3.0);
/// What a rate and a percentile may be off by.
const RATE: Bound = Bound::Part(0.15);
const PERCENTILE: Bound = Bound::Part(0.15);
/// Starting and ending the programs of a run and what is dropped before it, about, in s.
const AROUND_RUN: f64 = 3.5;
/// From a close to the question of a process that has more to do: its thread finds the gate shut (assumption, as in the
/// simulator's own models).
const ASK_US: f64 = 50.0;
/// A message takes at most so long, in µs.
const MESSAGE_US_MAX: f64 = 1e6;

pub(super) struct Shares<'a> {
    arguments: &'a Arguments,
    /// With their names.
    cases: Vec<(&'static str, Ask)>,
}

/// What the simulation is told of this machine.
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
        let outcome = once(&Ask {
            pods: pods("50:50", Work::Kernels)?,
            rule: Rule::Weir,
            seconds: MESSAGE_SECONDS,
            time: 1,
            part: "H100",
        })
        .await?;
        let passing = outcome.passing_us;
        let passing = passing.context("the GPU was never passed from one pod to the other")?;
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

/// What a pod got.
#[derive(Debug, Clone, Copy)]
struct Got {
    share_percent: f64,
    per_second: f64,
    p95_ms: Option<f64>,
    p99_ms: Option<f64>,
}

impl Got {
    fn of(outcome: &Outcome) -> Vec<Self> {
        let each = outcome.got.iter().enumerate();
        each.map(|(pod, own)| Self {
            share_percent: own.share * 100.0,
            per_second: super::super::shares::rate(outcome, pod),
            p95_ms: own.p95_ms,
            p99_ms: own.p99_ms,
        })
        .collect()
    }
}

/// What all pods together lack of what they are entitled to, in per cent of the time.
fn lacking(asked: &[f64], got: &[Got]) -> f64 {
    let each = asked.iter().zip(got);
    each.map(|(asked, got)| (asked * 100.0 - got.share_percent).max(0.0))
        .sum()
}

/// A figure of a pod: its name, how it is had, what it may be off by.
type Figure = (&'static str, fn(&Got) -> Option<f64>, Bound);

const FIGURES: [Figure; 4] = [
    ("share, %", |got| Some(got.share_percent), SHARE),
    ("batches/s", |got| Some(got.per_second), RATE),
    ("p95, ms", |got| got.p95_ms, PERCENTILE),
    ("p99, ms", |got| got.p99_ms, PERCENTILE),
];

impl<'a> Shares<'a> {
    pub(super) fn new(arguments: &'a Arguments, seconds: f64) -> anyhow::Result<Self> {
        let mut cases = Vec::new();
        for (name, text, work, part) in CASES {
            for rule in RULES {
                let ask = Ask {
                    pods: pods(text, work)?,
                    rule,
                    seconds,
                    time: 1,
                    part,
                };
                cases.push((name, ask));
            }
        }
        Ok(Self { arguments, cases })
    }

    /// The simulated figures, and nothing else.
    pub(super) fn simulated_only(&self, hops: &Path) -> anyhow::Result<ExitCode> {
        let measured = Measured::read(hops)?;
        let mut rows = Vec::new();
        for (name, ask) in &self.cases {
            for (pod, got) in ask.pods.iter().zip(simulated(ask, measured)?) {
                for (what, figure, _) in FIGURES {
                    rows.push((case(name, ask, Some(pod)), what, figure(&got)));
                }
            }
        }
        print(&report::simulated(&rows, self.arguments.json)?)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Measures a message, runs the demo, simulates, compares.
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let arguments = self.arguments;
        let runs = self.cases.iter();
        let once_each: f64 = runs.map(|(_, ask)| ask.seconds + AROUND_RUN).sum();
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
        say(arguments.json, &measured.line());
        let mut live: Vec<Vec<Vec<Got>>> = vec![Vec::new(); self.cases.len()];
        let mut asked = vec![Vec::new(); self.cases.len()];
        let mut disturbances = Vec::new();
        for round in 1..=arguments.rounds {
            for (at, (name, ask)) in self.cases.iter().enumerate() {
                let outcome = once(ask).await?;
                let name = case(name, ask, None);
                say(arguments.json, &format!("round {round}, {name}"));
                // Lag is of less matter here than where somebody waits for an answer, but tokens are short.
                let why = outcome.disturbed.clone();
                let why = why.or_else(|| disturbed(&outcome.device, ask.seconds));
                disturbances.extend(why.map(|why| Disturbed::new(&name, round, why)));
                live[at].push(Got::of(&outcome));
                asked[at] = outcome.asked;
            }
        }
        let (mut rows, mut lacks) = (Vec::new(), Vec::new());
        for (at, (name, ask)) in self.cases.iter().enumerate() {
            let simulated = simulated(ask, measured)?;
            for (number, (pod, own)) in ask.pods.iter().zip(&simulated).enumerate() {
                for (what, figure, bound) in FIGURES {
                    let rounds = live[at].iter();
                    let rounds: Vec<_> = rounds
                        .map(|round| round.get(number).and_then(figure))
                        .collect();
                    let compared = compared(&rounds, figure(own), bound);
                    rows.push(Row::figure(&case(name, ask, Some(pod)), what, compared));
                }
            }
            let rounds = live[at].iter();
            let rounds: Vec<_> = rounds
                .map(|round| Some(lacking(&asked[at], round)))
                .collect();
            lacks.push(compared(
                &rounds,
                Some(lacking(&asked[at], &simulated)),
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
        let whole = report::Whole {
            scenario: "shares",
            rounds: arguments.rounds,
            seconds: self.cases.first().map_or(0.0, |(_, ask)| ask.seconds),
            holds: rows.iter().all(Row::holds),
            measured: measured.line(),
            rows,
            disturbed: disturbances,
        };
        print(&whole.text(arguments.json)?)?;
        Ok(whole.code())
    }
}

fn case(name: &str, ask: &Ask, pod: Option<&Pod>) -> String {
    let pod = pod.map_or_else(String::new, |pod| format!(", {}", pod.name));
    format!("{name}, {}{pod}", ask.rule.name())
}

/// The same pods in virtual time.
fn simulated(ask: &Ask, measured: Measured) -> anyhow::Result<Vec<Got>> {
    let part = Part::named(ask.part)?;
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
    for pod in &ask.pods {
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
            // Without a pause there is always one batch behind the one that is computed.
            in_flight: if pause == Span::ZERO { 2 } else { 1 },
            pause,
            stands: match pod.hindrance {
                Some(Hindrance::Stopped { runs, stands }) => Some(Stands {
                    runs: runs.into(),
                    stands: stands.into(),
                    is_seen: true,
                }),
                _ => None,
            },
        });
    }
    let settings = shared::Settings {
        tokens: tokens::Settings {
            rule: ask.rule.simulated(),
            ..tokens::Settings::default()
        },
        noise: Noise::OFF,
    };
    let from = Time::ZERO.after(DROPPED.into());
    let span = Counted {
        from,
        to: from.after(Duration::from_secs_f64(ask.seconds).into()),
    };
    let outcome = loops(&models, &settings, &all, span, &Streams::new("validate", 1))?;
    let each = outcome.pods.iter().zip(&outcome.functions);
    Ok(each
        .map(|(pod, function)| {
            let ms = |percentile| {
                let latency = function.latencies.percentile(percentile);
                latency.map(|latency| latency.as_secs_f64() * 1e3)
            };
            Got {
                share_percent: pod.share(outcome.counted) * 100.0,
                per_second: pod.throughput(outcome.counted),
                p95_ms: ms(Percentile::P95),
                p99_ms: ms(Percentile::P99),
            }
        })
        .collect())
}

/// A pod's work, and how long it pauses after each batch.
fn model(pod: &Pod) -> anyhow::Result<(shared::models::Model, Span)> {
    let told = pod.work.told();
    let told = told.with_context(|| format!("{}: no such work", pod.name))?;
    let interference = told.model.as_ref();
    let interference = interference.map_or(0, |model| model.interference_millionths);
    let model = shared::models::Model {
        name: pod.name.clone(),
        requests_per_s: 1.0 / told.batch.as_secs_f64(),
        law: told.model.as_ref().map_or(Law::Linear, law),
        interference: f64::from(interference) / 1e6,
        launch_us: told.launch.as_secs_f64() * 1e6,
    };
    Ok((model, told.pause.into()))
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
    fn quotas_come_out_in_virtual_time_and_the_same_each_time() {
        for (name, text, work, part) in CASES {
            let ask = Ask {
                pods: pods(text, work).unwrap(),
                rule: Rule::Weir,
                seconds: 10.0,
                time: 1,
                part,
            };
            let got = simulated(&ask, MEASURED).unwrap();
            for (pod, own) in ask.pods.iter().zip(&got) {
                // What a pod loses that is stopped is its own.
                let least = match pod.hindrance {
                    Some(_) => 0.0,
                    None => pod.request.min(pod.demand()) * 100.0,
                };
                let range = least - 1.5..=pod.limit * 100.0 + 1.5;
                assert!(range.contains(&own.share_percent), "{name}: {own:?}");
                assert!(own.p95_ms <= own.p99_ms && own.per_second > 1.0);
            }
            let again = simulated(&ask, MEASURED).unwrap();
            assert_eq!(format!("{got:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn what_lacks_is_counted_and_what_is_more_than_asked_is_not() {
        let got = |share_percent| Got {
            share_percent,
            per_second: 1.0,
            p95_ms: None,
            p99_ms: None,
        };
        let lacks = lacking(&[0.3, 0.7], &[got(20.0), got(75.0)]);
        assert!((lacks - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_message_is_read_and_what_is_wrong_is_said() {
        assert_eq!(Measured::parse("message-us = 50").unwrap(), MEASURED);
        for (text, said) in [
            ("message-us = -1", "message-us is -1; allowed: 0 to 1000000"),
            ("message = 1", "message"),
        ] {
            let error = format!("{:#}", Measured::parse(text).unwrap_err());
            assert!(error.contains(said), "{error}");
        }
    }
}
