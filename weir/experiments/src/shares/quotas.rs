//! Share of their quotas that pods reach.

use policy::rectangles::{self, InstanceId, Rectangles, SlotId};
use policy::tokens::{Quota, Rule, Settings as Tokens, Share};
use policy::{Span, Time};

use super::packing::{EIGHT, eight_at};
use simulator::random::Streams;
use simulator::shared::models::Models;
use simulator::shared::profile::{IN_FLIGHT, QUOTAS, SMS};
use simulator::shared::run::{Loop, RunError, loops};
use simulator::shared::settings::{CountedSpan, Settings};

/// Largest relative deviation that counts as proportional: what a profiler allows (mechanisms §4.5).
const PROPORTIONAL: f64 = 0.05;
/// Largest relative loss of a pod beside another that counts as isolated: the accuracy of tokens (docs/spec/targets.md).
const INFLUENCE: f64 = 0.02;
/// Length of a run; the first tenth is not counted.
const LENGTH: Span = Span::from_secs(100);

fn under(rule: Rule) -> Settings {
    Settings {
        tokens: Tokens {
            rule,
            ..Tokens::default()
        },
        ..Settings::default()
    }
}

/// Creates a quota, with the limit raised to the request if it is lower.
fn quota(request: u32, limit: u32) -> Quota {
    let percent = Share::from_percent;
    Quota::new(percent(request), percent(limit.max(request)))
        .unwrap_or_else(|_| unreachable!("the limit is the larger of both"))
}

/// Result for the claim S14, that throughput is proportional to quota.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Proportion {
    /// Largest relative deviation of a throughput from quota × the throughput of the whole quota, over all models and
    /// shares of SMs.
    pub worst: f64,
    /// S14: 1 if the deviation is at most 5 %, else 0.
    pub holds: f64,
}

/// Runs S14: each model alone, on each share of SMs of the grid with each quota as request and limit.
///
/// # Errors
/// Returns a [`RunError`] if a run is refused.
pub fn proportion(models: &Models, seed: u64, rule: Rule) -> Result<Proportion, RunError> {
    let settings = under(rule);
    let streams = Streams::new("fast-profile", seed);
    let span = CountedSpan::after_a_tenth(LENGTH);
    let mut worst = 0.0_f64;
    for model in 0..models.models.len() {
        for sm in SMS.map(|percent| percent * 100) {
            let served = |percent| {
                let pod = Loop {
                    model,
                    sm,
                    quota: quota(percent, percent),
                    gpu: 0,
                    in_flight: IN_FLIGHT,
                    pause: Span::ZERO,
                    suspension: None,
                };
                let outcome = loops(models, &settings, &[pod], span, &streams)?;
                Ok::<_, RunError>(outcome.pods[0].throughput(outcome.counted))
            };
            let whole = served(100)?;
            for percent in QUOTAS {
                let due = whole * f64::from(percent) / 100.0;
                worst = worst.max((served(percent)? / due - 1.0).abs());
            }
        }
    }
    Ok(Proportion {
        worst,
        holds: f64::from(worst <= PROPORTIONAL),
    })
}

/// Results of a pod alone and beside another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Influence {
    /// Share of wall time when alone.
    pub alone: f64,
    /// Share of wall time beside the other pod.
    pub together: f64,
    /// Throughput beside the other pod divided by that alone; lower than the shares imply where the pods slow each other.
    pub throughput: f64,
}

impl Influence {
    /// Returns the relative loss of the pod's share to the other pod.
    #[must_use]
    pub fn loss(&self) -> f64 {
        1.0 - self.together / self.alone
    }
}

/// S17: two pods at two shares of SMs each.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Isolation {
    /// ResNet and RNNT with 24 % of the SMs each.
    pub apart: [Influence; 2],
    /// Both with all SMs, so that they share one token.
    pub one_token: [Influence; 2],
    /// S17: 1 if with 24 % neither loses more than 2 % of its share of time and on one token some pod does, else 0.
    pub holds: f64,
}

/// Runs S17: ResNet with 50 to 80 % and RNNT with 50 % of the time, alone and together (FaST-GShare §5.3).
///
/// # Errors
/// Returns a [`RunError`] if a run is refused.
pub fn isolation(models: &Models, seed: u64, rule: Rule) -> Result<Isolation, RunError> {
    let settings = under(rule);
    let streams = Streams::new("fast-isolation", seed);
    let span = CountedSpan::after_a_tenth(LENGTH);
    let at = |sm| {
        let pod = |name: &str, quota| Loop {
            model: models.model(name).unwrap_or_default(),
            sm,
            quota,
            gpu: 0,
            in_flight: IN_FLIGHT,
            pause: Span::ZERO,
            suspension: None,
        };
        let pods = [pod("ResNet", quota(50, 80)), pod("RNNT", quota(50, 50))];
        let both = loops(models, &settings, &pods, span, &streams)?;
        let mut found = [Influence {
            alone: 0.0,
            together: 0.0,
            throughput: 0.0,
        }; 2];
        for (at, influence) in found.iter_mut().enumerate() {
            let one = loops(models, &settings, &pods[at..=at], span, &streams)?;
            *influence = Influence {
                alone: one.pods[0].share(span.length()),
                together: both.pods[at].share(span.length()),
                throughput: both.pods[at].throughput(span.length())
                    / one.pods[0].throughput(span.length()),
            };
        }
        Ok::<_, RunError>(found)
    };
    let (apart, one_token) = (at(2_400)?, at(10_000)?);
    let loses = |pod: &Influence| pod.loss() > INFLUENCE;
    let holds = !apart.iter().any(loses) && one_token.iter().any(loses);
    Ok(Isolation {
        apart,
        one_token,
        holds: f64::from(holds),
    })
}

/// Packing and rule under which the eight pods of §5.4 are run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EightPods {
    /// Weir: nine tenths of the window are allocated, on as many GPUs as necessary.
    Planned,
    /// Weir on one GPU: quotas are nine tenths of those printed, so that they fit.
    Scaled,
    /// Weir on one GPU with the quotas as printed.
    Full,
    /// As printed: one GPU, the whole window, windows of tokens, no backfill.
    AsPrinted,
}

/// Results of the eight pods.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct QuotaAttainment {
    /// Number of GPUs that the pods take.
    pub gpus: u32,
    /// For each pod, the reached share of its quota, in the order of [`EIGHT`]: 1 is all of it.
    pub parts: [f64; 8],
    /// Requests per second of each pod.
    pub throughput: [f64; 8],
}

/// Runs the eight pods of §5.4, saturated, with limits equal to requests.
///
/// # Errors
/// Returns a [`RunError`] if the pods cannot be placed or run.
pub fn eight(models: &Models, seed: u64, way: EightPods) -> Result<QuotaAttainment, RunError> {
    let (rule, width, percent) = match way {
        EightPods::Planned => (Rule::Weir, Share::from_percent(90), 100),
        EightPods::Scaled => (Rule::Weir, Share::from_percent(90), 90),
        EightPods::Full => (Rule::Weir, Share::WHOLE, 100),
        EightPods::AsPrinted => (Rule::Paper, Share::WHOLE, 100),
    };
    let mut packer = Rectangles::new(rectangles::Settings {
        width,
        ..rectangles::Settings::default()
    })?;
    let pods = eight_at(models, percent);
    for &(InstanceId(at), _) in &pods {
        packer.add_slot(SlotId(at), models.gpu_memory())?;
    }
    let mut actions = Vec::new();
    packer.place_all(&pods, &mut actions);
    let mut running = Vec::new();
    for ((instance, pod), &(name, ..)) in pods.iter().zip(&EIGHT) {
        let place = packer.place_of(*instance);
        let (slot, _) = place.ok_or(rectangles::Refusal::NoArea)?;
        let share = pod.quota;
        running.push(Loop {
            model: models.model(name).unwrap_or_default(),
            sm: pod.sm,
            quota: Quota::new(share, share).unwrap_or_else(|_| unreachable!("they are equal")),
            gpu: slot.0,
            in_flight: IN_FLIGHT,
            pause: Span::ZERO,
            suspension: None,
        });
    }
    let streams = Streams::new("fast-pack", seed);
    let span = CountedSpan::after_a_tenth(LENGTH);
    let outcome = loops(models, &under(rule), &running, span, &streams)?;
    let mut reached = QuotaAttainment {
        gpus: running.iter().map(|pod| pod.gpu + 1).max().unwrap_or(0),
        parts: [0.0; 8],
        throughput: [0.0; 8],
    };
    for (at, (pod, own)) in outcome.pods.iter().zip(&running).enumerate() {
        let due = f64::from(own.quota.request().parts_per_million()) / 1e6;
        reached.parts[at] = pod.share(outcome.counted) / due;
        reached.throughput[at] = pod.throughput(outcome.counted);
    }
    debug_assert_eq!(Time::ZERO.after(LENGTH), span.to, "the run ends there");
    Ok(reached)
}
