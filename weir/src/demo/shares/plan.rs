//! Plan of a measurement: pods, their work, the rule, and the duration.

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use policy::tokens;

use super::hindrance::Hindrance;
pub(crate) use super::work::Work;
use super::work::{PAUSES, in_turn};

/// Largest number of pods: each is a process, and this machine has a few cores.
const PODS_MAX: usize = 16;
/// Longest duration of any phase, in s.
const SECONDS_MAX: f64 = 3_600.0;

/// Options of the scenario `shares`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The pods of --scenario shares: time quotas in percent, such as 10:90; shares of SMs, such as sm=12,24,50; or for each
    /// request=R,limit=L,sm=P,work=W,once=TIME,idle-from=S,idle-for=S, such as request=0.1,limit=1:request=0.5,limit=1,work=long.
    /// A pod may be kept from using its tokens: runs=300ms,stands=400ms stops and continues it, cpu=0.4 throttles it by a cgroup
    /// shared with a busy program (needs root), asks=500ms connects, requests a token, never launches and hangs up.
    #[arg(long, value_name = "PODS")]
    pods: Option<Pods>,
    /// Work of pods without one of their own: kernels (100 µs), long (50 ms), graphs (5 ms), pauses (5 ms, then a pause of 5 ms),
    /// mixed (each in turn), or a model of model-server.
    #[arg(long, value_name = "WORK")]
    work: Option<Work>,
    /// Rule by which the agent grants tokens.
    #[arg(long, value_enum)]
    rule: Option<Rule>,
    /// Begin of a pod's pause in the measured span, in s: S, or POD=S; without POD the first.
    #[arg(long, value_name = "[POD=]S")]
    idle_from: Option<OfPod>,
    /// Length of the pod's pause, in s.
    #[arg(long, value_name = "[POD=]S")]
    idle_for: Option<OfPod>,
    /// Factor of the times of the software GPU and of the agent's tokens; reported times are divided by it.
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=8))]
    time: Option<u32>,
    /// Runs all measurements of the README one after the other, --seconds each, on pods of its own: quotas and elastic pods under
    /// three rules, a launch of seconds, FaST-GShare's S14, S17, eight pods of 5.4, S01 to S03.
    #[arg(long)]
    suite: bool,
}

/// A complete, checked plan.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) pods: Vec<Pod>,
    pub(crate) rule: Rule,
    /// Length of the measured span, in s of real time.
    pub(crate) seconds: f64,
    pub(crate) time: u32,
    /// Model of the GPU, such as "H100".
    pub(crate) part: &'static str,
}

/// Plan of a pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) request: f64,
    pub(crate) limit: f64,
    pub(crate) sm_percent: f64,
    pub(crate) work: Work,
    pub(crate) once: Duration,
    /// Begin of the pod's pause in the measured span, in s.
    pub(crate) idle_from: f64,
    pub(crate) idle_for: f64,
    /// Disturbance of the pod's use of tokens in the measured span.
    pub(crate) hindrance: Option<Hindrance>,
    /// Value of `weir.dev/function`; `None` if the pod is a function of its own.
    pub(crate) function: Option<&'static str>,
    /// Value of `weir.dev/gpu-memory`.
    pub(crate) memory: Option<&'static str>,
}

/// Rule by which the agent grants tokens, as in its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rule {
    /// Guarantees and limits as accounts.
    Weir,
    /// The rule in FaST-GShare's text.
    Paper,
    /// A token bucket for each pod, filled by feedback.
    ReactiveBucket,
    /// Time sharing without space.
    TimeOnly,
    /// No pod is ever held back.
    Racing,
    /// The GPU belongs to the first pod.
    Exclusive,
}

impl Options {
    /// Returns the names of the given options.
    pub(crate) fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            (self.pods.is_some(), "--pods"),
            (self.work.is_some(), "--work"),
            (self.rule.is_some(), "--rule"),
            (self.idle_from.is_some(), "--idle-from"),
            (self.idle_for.is_some(), "--idle-for"),
            (self.time.is_some(), "--time"),
            (self.suite, "--suite"),
        ];
        let given = given.into_iter().filter(|(is_given, _)| *is_given);
        given.map(|(_, name)| name)
    }

    pub(crate) const fn is_suite(&self) -> bool {
        self.suite
    }

    /// Checks the options and returns the plan.
    pub(crate) fn plan(&self, seconds: f64) -> anyhow::Result<Plan> {
        let Self {
            pods,
            work,
            rule,
            idle_from,
            idle_for,
            time,
            suite,
        } = self;
        if *suite && (pods.is_some() || work.is_some() || rule.is_some()) {
            anyhow::bail!(
                "--suite has pods, work and rules of its own; allowed with it: --seconds, --time, --json, --strict"
            );
        }
        if seconds > SECONDS_MAX {
            anyhow::bail!("--seconds {seconds}: allowed: above 0, up to {SECONDS_MAX}");
        }
        let mut pods = match pods {
            Some(pods) => pods.clone(),
            None => Pods::quotas(&[10.0, 90.0]),
        }
        .with(work.unwrap_or(Work::Kernels));
        let names: Vec<_> = pods.iter().map(|pod| pod.name.clone()).collect();
        for (option, given) in [("--idle-from", idle_from), ("--idle-for", idle_for)] {
            let Some(given) = given else {
                continue;
            };
            let pod = given.pod.checked_sub(1).and_then(|at| pods.get_mut(at));
            let Some(pod) = pod else {
                anyhow::bail!(
                    "{option}: there is no pod {}; allowed: {}",
                    given.pod,
                    names.join(", ")
                );
            };
            if option == "--idle-from" {
                pod.idle_from = given.seconds;
            } else {
                pod.idle_for = given.seconds;
            }
        }
        if idle_from.is_some() && pods.iter().all(|pod| pod.idle_for <= 0.0) {
            anyhow::bail!("--idle-from needs --idle-for, above 0, for the same pod");
        }
        Ok(Plan {
            pods,
            rule: rule.unwrap_or(Rule::Weir),
            seconds,
            time: time.unwrap_or(1),
            part: "H100",
        })
    }
}

impl Pod {
    /// Returns the share of time in which the pod would compute alone, 0 to 1, without its pause.
    pub(crate) fn demand(&self) -> f64 {
        match self.work {
            Work::Pauses => {
                let compute = PAUSES.as_secs_f64() / (self.sm_percent / 100.0);
                compute / (compute + PAUSES.as_secs_f64())
            }
            _ => 1.0,
        }
    }
}

impl Rule {
    /// Returns the rule for the simulator.
    pub(crate) const fn simulated(self) -> tokens::Rule {
        match self {
            Self::Weir => tokens::Rule::Weir,
            Self::Paper => tokens::Rule::Paper,
            Self::ReactiveBucket => tokens::Rule::ReactiveBucket,
            Self::TimeOnly => tokens::Rule::TimeOnly,
            Self::Racing => tokens::Rule::Racing,
            Self::Exclusive => tokens::Rule::Exclusive,
        }
    }

    /// Returns the name in the agent's configuration.
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns whether SMs are counted, so that pods may compute concurrently.
    pub(crate) const fn has_space(self) -> bool {
        !matches!(self, Self::TimeOnly)
    }
}

/// A number of seconds for one pod.
#[derive(Debug, Clone, Copy, PartialEq)]
struct OfPod {
    /// Pod number, counted from 1.
    pod: usize,
    seconds: f64,
}

impl FromStr for OfPod {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pod, seconds) = text.split_once('=').unwrap_or(("1", text));
        let number = pod.strip_prefix("pod-").unwrap_or(pod);
        let pod = number
            .parse()
            .ok()
            .filter(|number| (1..=PODS_MAX).contains(number));
        let pod = pod.ok_or_else(|| {
            format!("allowed before the =: a pod's number from 1 to {PODS_MAX}, or pod-1 …")
        })?;
        seconds_of(seconds).map(|seconds| Self { pod, seconds })
    }
}

fn span_of(text: &str) -> Result<Duration, String> {
    text.strip_suffix("ms")
        .and_then(|text| number(text, 1.0, 10_000.0))
        .map(|ms| Duration::from_secs_f64(ms / 1e3))
        .ok_or_else(|| "allowed: 1ms to 10000ms".to_owned())
}

fn seconds_of(text: &str) -> Result<f64, String> {
    number(text, 0.0, SECONDS_MAX)
        .ok_or_else(|| format!("allowed: seconds from 0 to {SECONDS_MAX}"))
}

fn number(text: &str, least: f64, most: f64) -> Option<f64> {
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number = text.parse::<f64>().ok().filter(|_| is_plain)?;
    (least..=most).contains(&number).then_some(number)
}

/// Parsed value of `--pods`.
#[derive(Debug, Clone, PartialEq)]
struct Pods(Vec<PodOption>);

#[derive(Debug, Clone, PartialEq)]
struct PodOption {
    pod: Pod,
    work: Option<Work>,
}

/// Returns the defaults of the full form, which are those of the annotations.
fn plain() -> PodOption {
    PodOption {
        pod: Pod {
            name: String::new(),
            request: 0.0,
            limit: 1.0,
            sm_percent: 100.0,
            work: Work::Kernels,
            once: Duration::ZERO,
            idle_from: 0.0,
            idle_for: 0.0,
            hindrance: None,
            function: None,
            memory: None,
        },
        work: None,
    }
}

impl Pods {
    fn quotas(percents: &[f64]) -> Self {
        let each = percents.iter().map(|percent| {
            let mut option = plain();
            (option.pod.request, option.pod.limit) = (percent / 100.0, percent / 100.0);
            option
        });
        Self(each.collect())
    }

    fn with(self, work: Work) -> Vec<Pod> {
        let each = self.0.into_iter().enumerate().map(|(at, option)| {
            let mut pod = option.pod;
            pod.name = format!("pod-{}", at + 1);
            pod.work = match option.work.unwrap_or(work) {
                Work::Mixed => in_turn(at),
                work => work,
            };
            pod
        });
        each.collect()
    }
}

impl FromStr for Pods {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pods = read(text)?;
        if pods.0.len() > PODS_MAX {
            return Err(format!(
                "{} pods: at most {PODS_MAX} are allowed",
                pods.0.len()
            ));
        }
        Ok(pods)
    }
}

fn read(text: &str) -> Result<Pods, String> {
    if let Some(list) = text.strip_prefix("sm=")
        && !list.contains([':', '='])
    {
        let shares: Result<Vec<_>, _> = list.split(',').map(sm_percent).collect();
        let each = shares?.into_iter().map(|share| {
            let mut option = plain();
            (option.pod.request, option.pod.sm_percent) = (1.0, share);
            option
        });
        return Ok(Pods(each.collect()));
    }
    if !text.contains('=') {
        let quotas: Option<Vec<_>> = text
            .split(':')
            .map(|part| number(part, 0.01, 100.0))
            .collect();
        return match quotas {
            Some(quotas) => Ok(Pods::quotas(&quotas)),
            None => Err(
                "allowed: quotas in per cent from 0.01 to 100 as 10:90, shares of SMs as sm=12,24,50, or \
                 request=R,limit=L,sm=P,work=W for each pod with : between them"
                    .to_owned(),
            ),
        };
    }
    text.split(':')
        .map(full)
        .collect::<Result<_, _>>()
        .map(Pods)
}

fn sm_percent(text: &str) -> Result<f64, String> {
    number(text, 1.0, 100.0)
        .ok_or_else(|| format!("sm={text}: allowed: 1 to 100, in per cent of the SMs"))
}

fn full(text: &str) -> Result<PodOption, String> {
    let mut option = plain();
    let (mut runs, mut stands) = (None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let pod = &mut option.pod;
        let wrong = |allowed: &str| format!("{key}={value}: {allowed}");
        match key {
            "request" => {
                pod.request = number(value, 0.0, 1.0).ok_or_else(|| wrong("allowed: 0 to 1"))?;
            }
            "limit" => {
                pod.limit =
                    number(value, 0.0001, 1.0).ok_or_else(|| wrong("allowed: from 0.0001 to 1"))?;
            }
            "sm" => pod.sm_percent = sm_percent(value)?,
            "work" => option.work = Some(value.parse().map_err(|why: String| wrong(&why))?),
            "once" => {
                let seconds = value
                    .strip_suffix('s')
                    .and_then(|text| number(text, 0.0, 60.0));
                let seconds = seconds.ok_or_else(|| wrong("allowed: 0s to 60s"))?;
                pod.once = Duration::from_secs_f64(seconds);
            }
            "idle-from" => pod.idle_from = seconds_of(value).map_err(|why| wrong(&why))?,
            "idle-for" => pod.idle_for = seconds_of(value).map_err(|why| wrong(&why))?,
            "runs" => runs = Some(span_of(value).map_err(|why| wrong(&why))?),
            "stands" => stands = Some(span_of(value).map_err(|why| wrong(&why))?),
            "asks" => {
                let holds = span_of(value).map_err(|why| wrong(&why))?;
                pod.hindrance = Some(Hindrance::Asks { holds });
            }
            "cpu" => {
                let cpus = number(value, 0.01, 0.99)
                    .ok_or_else(|| wrong("allowed: 0.01 to 0.99 of a CPU"))?;
                pod.hindrance = Some(Hindrance::Throttled { cpus });
            }
            _ => {
                return Err(format!(
                    "{key}: allowed: request, limit, sm, work, once, idle-from, idle-for, runs, stands, asks, cpu"
                ));
            }
        }
    }
    match (runs, stands) {
        (None, None) => {}
        (Some(runs), Some(stands)) => {
            option.pod.hindrance = Some(Hindrance::Stopped { runs, stands });
        }
        (Some(_), None) => return Err("runs= needs stands= beside it".to_owned()),
        (None, Some(_)) => return Err("stands= needs runs= beside it".to_owned()),
    }
    if option.pod.request > option.pod.limit {
        return Err(format!(
            "request={}: must not be above limit={}",
            option.pod.request, option.pod.limit
        ));
    }
    Ok(option)
}

/// Parses pods in the option's form, for measurements defined in this program.
pub(crate) fn pods(text: &str, work: Work) -> anyhow::Result<Vec<Pod>> {
    let pods: Pods = text.parse().map_err(anyhow::Error::msg)?;
    Ok(pods.with(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(text: &str) -> Vec<(f64, f64, f64)> {
        let pods = pods(text, Work::Kernels).unwrap();
        pods.iter()
            .map(|pod| (pod.request, pod.limit, pod.sm_percent))
            .collect()
    }

    #[test]
    fn parses_pods_in_three_forms() {
        assert_eq!(short("10:90"), [(0.1, 0.1, 100.0), (0.9, 0.9, 100.0)]);
        assert_eq!(
            short("sm=12,24,50"),
            [(1.0, 1.0, 12.0), (1.0, 1.0, 24.0), (1.0, 1.0, 50.0)]
        );
        assert_eq!(
            short("request=0.1,limit=1,sm=24:limit=0.5"),
            [(0.1, 1.0, 24.0), (0.0, 0.5, 100.0)]
        );
        let own = pods("limit=1,work=long,once=5s:limit=1", Work::Mixed).unwrap();
        assert_eq!((own[0].work, own[1].work), (Work::Long, Work::Long));
        assert_eq!(own[0].once, Duration::from_secs(5));
        assert_eq!(own[1].name, "pod-2");
    }

    #[test]
    fn errors_state_the_allowed_values() {
        for (text, part) in [
            ("", "10:90"),
            ("10:", "0.01 to 100"),
            ("0:100", "0.01 to 100"),
            ("10:101", "0.01 to 100"),
            ("1e1:9", "0.01 to 100"),
            ("sm=0", "1 to 100"),
            ("sm=12,x", "1 to 100"),
            ("request=0.5,limit=0.4", "must not be above"),
            ("request=2", "0 to 1"),
            ("share=1", "allowed: request, limit, sm, work"),
            ("limit=1,work=x", "kernels, long, graphs, pauses, mixed"),
            ("limit=1,once=5", "0s to 60s"),
            ("limit=1,runs=40ms", "needs stands="),
            ("limit=1,runs=40ms,stands=1", "1ms to 10000ms"),
            ("limit=1,cpu=2", "0.01 to 0.99"),
            ("1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1:1", "at most 16"),
        ] {
            let why = text.parse::<Pods>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        assert_eq!(
            "3".parse(),
            Ok(OfPod {
                pod: 1,
                seconds: 3.0
            })
        );
        assert_eq!(
            "pod-2=3.5".parse(),
            Ok(OfPod {
                pod: 2,
                seconds: 3.5
            })
        );
        assert!("0=1".parse::<OfPod>().is_err() && "1=-1".parse::<OfPod>().is_err());
    }
}
