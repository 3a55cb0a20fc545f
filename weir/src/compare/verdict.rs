//! Computes the verdict from rounds: pure arithmetic.
//!
//! Rounds are paired: both settings were sent the same arrivals, one after the other. Weir is better, or worse, if the 95 %
//! interval of the per-round differences of shares in time (Student's t) excludes 0 and their mean is at least [`LEAST`].

use std::time::Duration;

use serde::Serialize;
use simulator::statistics::{Interval, Unit};

use super::client::{Answer, Outcome};

/// Smallest difference of shares that counts, whatever its interval.
const LEAST: f64 = 0.005;
/// Share of busy time below which the server hardly has a queue.
const IDLE_BELOW: f64 = 0.5;
/// Share in time from which nearly all requests count as in time.
const NEARLY_ALL: f64 = 0.99;
/// Share in time up to which nearly no requests count as in time.
const NEARLY_NONE: f64 = 0.02;
/// Ratio of the execution times of the last and the first round from which the server counts as slowed down.
const SLOWER: f64 = 1.5;
/// Smallest number of executions for a meaningful mean.
const EXECUTIONS_MIN: u64 = 100;
/// Share of failed answers above which a warning is given.
const FAILED_PART: f64 = 0.01;
/// Share of failed answers with both settings above which failure is the only reason given.
const FAILING_PART: f64 = 0.1;
/// Share of requests in time only without a proxy above which the server is taken to serve more requests at once.
const DIRECT_PART: f64 = 0.05;
/// Share of the objective: the client is the bottleneck if the 99th percentile of its sending delay exceeds this share and
/// [`LATE_MIN`].
const LATE_PART: f64 = 0.05;
/// Sending delay up to which the client is never considered the bottleneck.
const LATE_MIN: Duration = Duration::from_millis(5);

/// Outcomes of a set of requests, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Counts {
    pub(super) requests: u64,
    /// Answered without a server error within the objective.
    pub(super) in_time: u64,
    /// Answered by the server without a server error.
    pub(super) answered: u64,
    /// Answered 503: the queue was full.
    pub(super) refused: u64,
    /// Answered 503: the request could no longer be in time.
    pub(super) shed: u64,
    /// Server errors, and proxy answers that the server was unreachable.
    pub(super) failed: u64,
    /// Without a complete answer.
    pub(super) lost: u64,
}

impl Counts {
    pub(super) fn of(answers: &[Answer]) -> Self {
        let mut counts = Self::default();
        for answer in answers {
            counts.requests += 1;
            counts.in_time += u64::from(answer.is_in_time());
            let count = match answer.outcome {
                Outcome::Served(_) => &mut counts.answered,
                Outcome::Refused => &mut counts.refused,
                Outcome::Shed => &mut counts.shed,
                Outcome::Failed(_) => &mut counts.failed,
                Outcome::Lost => &mut counts.lost,
            };
            *count += 1;
        }
        counts
    }

    /// Returns the share which failed or got no answer.
    fn failing(&self) -> f64 {
        part(self.failed + self.lost, self.requests)
    }

    pub(super) fn share(&self) -> f64 {
        part(self.in_time, self.requests)
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.in_time += other.in_time;
        self.answered += other.answered;
        self.refused += other.refused;
        self.shed += other.shed;
        self.failed += other.failed;
        self.lost += other.lost;
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
pub(super) fn part(some: u64, all: u64) -> f64 {
    some as f64 / all.max(1) as f64
}

/// The server's execution times and load in a round with Weir's settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Server {
    /// Mean time of a request at the server, in ms; `None` if none was executed.
    pub(super) execution_ms: Option<f64>,
    /// Number of executed requests.
    pub(super) executions: u64,
    /// Share of the time in which the server had its maximum number of concurrent requests.
    pub(super) busy: f64,
}

/// Outcomes of a pair of rounds with the same arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Round {
    pub(super) stock: Counts,
    pub(super) weir: Counts,
    pub(super) server: Server,
}

/// Which settings are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Winner {
    Weir,
    Stock,
    /// Neither is better with confidence.
    NoDifference,
}

/// Condition on the verdict for exit code 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Expectation {
    /// Weir's settings are better.
    Better,
    /// Stock settings are not better.
    NotWorse,
    /// The lower end of the interval of Weir's share in time is at least this, 0 to 1.
    AtLeast(f64),
}

/// The verdict and the figures it is based on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Verdict {
    pub(super) verdict: Winner,
    /// Verdict in one sentence.
    pub(super) sentence: String,
    /// Reason for no difference, or an interpretation of the difference.
    pub(super) why: String,
    /// Shares in time over rounds, with their 95 % intervals.
    pub(super) in_time: InTime,
    pub(super) stock: Counts,
    pub(super) weir: Counts,
    pub(super) server: Server,
    /// Outcomes of the first round's requests sent to the server without a proxy.
    pub(super) direct: Counts,
    /// Conditions which make the figures less reliable.
    pub(super) warnings: Vec<String>,
}

/// Shares in time, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct InTime {
    pub(super) weir: Interval,
    pub(super) stock: Interval,
    /// Weir's share minus stock's, per round.
    pub(super) difference: Interval,
}

/// Further measurements of a trial.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    /// Objective of requests without one of their own.
    pub(super) slo: Duration,
    /// 99th percentile of the requests' sending delays.
    pub(super) sent_late: Duration,
    /// Concurrent requests at the server, with both settings.
    pub(super) concurrency: u32,
    /// Outcomes of the first round's requests without a proxy.
    pub(super) direct: Counts,
    /// Share of the server's answers with a status from 400 to 499.
    pub(super) client_errors: f64,
}

/// Returns the verdict over rounds.
///
/// # Errors
/// There are fewer than two rounds.
pub(super) fn verdict(rounds: &[Round], of: Circumstances) -> anyhow::Result<Verdict> {
    let shares = |of: fn(&Round) -> f64| -> Vec<f64> { rounds.iter().map(of).collect() };
    let interval = |values: &[f64]| Interval::of(values);
    let weir = interval(&shares(|round| round.weir.share()))?.within(0.0, 1.0);
    let stock = interval(&shares(|round| round.stock.share()))?.within(0.0, 1.0);
    let difference = interval(&shares(|round| round.weir.share() - round.stock.share()))?;
    let better = if difference.low > 0.0 && difference.mean >= LEAST {
        Winner::Weir
    } else if difference.high < 0.0 && difference.mean <= -LEAST {
        Winner::Stock
    } else {
        Winner::NoDifference
    };
    let (mut all_stock, mut all_weir) = (Counts::default(), Counts::default());
    for round in rounds {
        all_stock.add(&round.stock);
        all_weir.add(&round.weir);
    }
    let server = server(rounds);
    let failing = all_stock.failing().min(all_weir.failing());
    let why = why(better, weir, stock, (server, failing), of);
    let ends = |share: Interval| Unit::Share.write_range(share.low, share.high);
    let sentence = match better {
        Winner::NoDifference => format!("No difference: {why}."),
        Winner::Weir | Winner::Stock => format!(
            "Weir: {} in time, Knative's settings: {}.",
            ends(weir),
            ends(stock)
        ),
    };
    Ok(Verdict {
        verdict: better,
        sentence,
        why,
        in_time: InTime {
            weir,
            stock,
            difference,
        },
        stock: all_stock,
        weir: all_weir,
        server,
        direct: of.direct,
        warnings: warnings(rounds, &all_stock, &all_weir, of),
    })
}

impl Verdict {
    /// Returns whether the verdict meets an expectation.
    pub(super) fn meets(&self, expectation: Expectation) -> bool {
        match expectation {
            Expectation::Better => self.verdict == Winner::Weir,
            // Failing servers allow no conclusion.
            Expectation::NotWorse => {
                let is_failing = self.stock.failing().min(self.weir.failing()) > FAILING_PART;
                self.verdict != Winner::Stock && !is_failing
            }
            Expectation::AtLeast(share) => self.in_time.weir.low >= share,
        }
    }
}

/// Returns the means over rounds.
#[expect(clippy::cast_precision_loss, reason = "a count of rounds")]
fn server(rounds: &[Round]) -> Server {
    let executions: Vec<f64> = rounds
        .iter()
        .filter_map(|round| round.server.execution_ms)
        .collect();
    let busy: f64 = rounds.iter().map(|round| round.server.busy).sum();
    Server {
        executions: rounds.iter().map(|round| round.server.executions).sum(),
        execution_ms: (!executions.is_empty())
            .then(|| executions.iter().sum::<f64>() / executions.len() as f64),
        busy: busy / rounds.len().max(1) as f64,
    }
}

fn why(
    better: Winner,
    weir: Interval,
    stock: Interval,
    (server, failing): (Server, f64),
    of: Circumstances,
) -> String {
    let share = |value: f64| format!("{:.0} %", value * 100.0);
    match better {
        Winner::NoDifference if failing > FAILING_PART => format!(
            "the server failed: with both settings at least {} of requests got a server error or no answer",
            share(failing)
        ),
        Winner::Weir if server.busy < IDLE_BELOW => format!(
            "the server is busy only {} of the time, but requests come in bursts, and Weir starts by deadline those that wait then",
            share(server.busy)
        ),
        Winner::Weir => format!(
            "the server is busy {} of the time, so requests wait, and Weir delays or sheds those that the objective allows",
            share(server.busy)
        ),
        Winner::Stock => "with Weir fewer are in time: --late serve, or a larger --queue-depth, may suit this load better".to_owned(),
        Winner::NoDifference if weir.mean.max(stock.mean) <= NEARLY_NONE => {
            let takes = server.execution_ms.map_or_else(
                || "hardly answers".to_owned(),
                |ms| format!("takes {ms:.0} ms a request by itself"),
            );
            format!(
                "nearly none is in time with either, for the server {takes} and the objective is {:?}",
                of.slo
            )
        }
        Winner::NoDifference if server.busy < IDLE_BELOW => format!(
            "the server is idle {} of the time, so requests hardly wait; a higher rate would show more",
            share(1.0 - server.busy)
        ),
        Winner::NoDifference if weir.mean.min(stock.mean) >= NEARLY_ALL => {
            "nearly all are in time with both; a higher rate or a shorter objective would show more".to_owned()
        }
        Winner::NoDifference => {
            "rounds differ more from each other than settings do; a longer --seconds or more --rounds would show more".to_owned()
        }
    }
}

fn warnings(rounds: &[Round], stock: &Counts, weir: &Counts, of: Circumstances) -> Vec<String> {
    let mut warnings = Vec::new();
    let late_max = LATE_MIN.max(of.slo.mul_f64(LATE_PART));
    if of.sent_late > late_max {
        warnings.push(format!(
            "this client is the bottleneck: 1 of 100 requests was sent {:.0} ms late or later, and that counts against both settings; run it on \
             another machine than the server's, or at a lower rate",
            of.sent_late.as_secs_f64() * 1e3
        ));
    }
    let direct = of.direct.share();
    if direct > stock.share().max(weir.share()) + DIRECT_PART {
        warnings.push(format!(
            "sent straight to the server {:.0} % were in time: it serves more than {} at once well, so a larger --concurrency suits it (Knative's default \
             has no limit, and no queue)",
            direct * 100.0,
            of.concurrency
        ));
    }
    for (name, counts) in [("Knative's settings", stock), ("Weir", weir)] {
        let failed = counts.failing();
        if failed > FAILED_PART {
            warnings.push(format!(
                "the server failed: with {name} {:.0} % of requests got a server error or no answer",
                failed * 100.0
            ));
        }
    }
    if of.client_errors > 0.5 {
        warnings.push(format!(
            "{:.0} % of the server's answers have a status from 400 to 499: do the requests fit its API (--method, --header, --body, the path \
             of --target)?",
            of.client_errors * 100.0
        ));
    }
    let mean = |round: Option<&Round>| {
        let server = round.map(|round| round.server);
        let enough = server.filter(|server| server.executions >= EXECUTIONS_MIN);
        enough.and_then(|server| server.execution_ms)
    };
    let (first, last) = (mean(rounds.first()), mean(rounds.last()));
    if let (Some(first), Some(last)) = (first, last)
        && last > first * SLOWER
    {
        warnings.push(format!(
            "the server slowed down: a request took it {first:.1} ms in the first round and {last:.1} ms in the last"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Circumstances = Circumstances {
        slo: Duration::from_millis(200),
        sent_late: Duration::from_millis(1),
        concurrency: 1,
        direct: Counts {
            requests: 0,
            in_time: 0,
            answered: 0,
            refused: 0,
            shed: 0,
            failed: 0,
            lost: 0,
        },
        client_errors: 0.0,
    };

    fn round(stock: u64, weir: u64, busy: f64) -> Round {
        let counts = |in_time: u64| Counts {
            requests: 1_000,
            in_time,
            answered: in_time,
            shed: 1_000 - in_time,
            ..Counts::default()
        };
        Round {
            stock: counts(stock),
            weir: counts(weir),
            server: Server {
                execution_ms: Some(20.0),
                executions: 200,
                busy,
            },
        }
    }

    fn of(rounds: &[Round]) -> Verdict {
        verdict(rounds, OF).unwrap()
    }

    #[test]
    fn a_difference_has_an_interval_on_both_sides() {
        let own = of(&[
            round(620, 920, 0.95),
            round(640, 910, 0.95),
            round(660, 930, 0.95),
        ]);
        assert_eq!(own.verdict, Winner::Weir);
        assert_eq!(
            own.sentence,
            "Weir: 89.5 to 94.5 % in time, Knative's settings: 59.0 to 69.0 %."
        );
        assert!(own.meets(Expectation::Better) && own.meets(Expectation::NotWorse));
        assert!(own.meets(Expectation::AtLeast(0.89)) && !own.meets(Expectation::AtLeast(0.9)));
        let worse = of(&[
            round(920, 620, 0.95),
            round(910, 640, 0.95),
            round(930, 660, 0.95),
        ]);
        assert_eq!(worse.verdict, Winner::Stock);
        assert!(!worse.meets(Expectation::Better) && !worse.meets(Expectation::NotWorse));
    }

    #[test]
    fn no_difference_states_its_reason() {
        for (rounds, said) in [
            (
                [round(1_000, 1_000, 0.3), round(999, 1_000, 0.3)],
                "No difference: the server is idle 70 % of the time",
            ),
            (
                [round(0, 1, 1.0), round(1, 0, 1.0)],
                "nearly none is in time with either, for the server takes 20 ms a request by itself and the objective is 200ms",
            ),
            (
                [round(995, 996, 0.7), round(996, 995, 0.7)],
                "nearly all are in time with both",
            ),
            (
                [round(500, 700, 0.9), round(700, 500, 0.9)],
                "rounds differ more from each other than settings do",
            ),
            // Significant, but too small to matter.
            (
                [round(700, 701, 0.9), round(700, 701, 0.9)],
                "rounds differ more",
            ),
        ] {
            let own = of(&rounds);
            assert_eq!(own.verdict, Winner::NoDifference, "{own:?}");
            assert!(own.sentence.contains(said), "{}", own.sentence);
        }
    }

    #[test]
    fn warns_of_conditions_which_make_the_figures_less_reliable() {
        let plain = [round(500, 700, 0.9), round(500, 710, 0.9)];
        assert!(of(&plain).warnings.is_empty());
        let late = Circumstances {
            sent_late: Duration::from_millis(11),
            ..OF
        };
        assert!(
            verdict(&plain, late).unwrap().warnings[0].contains("this client is the bottleneck")
        );
        let unknown = Circumstances {
            client_errors: 1.0,
            ..OF
        };
        assert!(
            verdict(&plain, unknown).unwrap().warnings[0].contains("100 % of the server's answers")
        );
        let mut failing = plain;
        failing[1].weir.failed = 100;
        let warnings = of(&failing).warnings;
        assert!(
            warnings[0].contains("the server failed: with Weir 5 %"),
            "{warnings:?}"
        );
        let mut failed = plain;
        for round in &mut failed {
            (round.stock.in_time, round.weir.in_time) = (0, 0);
            (round.stock.failed, round.weir.failed) = (900, 800);
        }
        let own = of(&failed);
        assert!(
            own.sentence
                .contains("the server failed: with both settings at least 80 %"),
            "{}",
            own.sentence
        );
        assert!(!own.meets(Expectation::NotWorse));
        let direct = Circumstances {
            direct: Counts {
                requests: 100,
                in_time: 99,
                ..Counts::default()
            },
            ..OF
        };
        let warnings = verdict(&plain, direct).unwrap().warnings;
        assert!(
            warnings[0].contains("straight to the server 99 % were in time"),
            "{warnings:?}"
        );
        let mut slower = plain;
        slower[1].server.execution_ms = Some(31.0);
        assert!(
            of(&slower).warnings[0].contains("the server slowed down: a request took it 20.0 ms")
        );
    }

    #[test]
    fn counts_add_up_to_requests() {
        let answer = |outcome, latency| Answer {
            due: Duration::ZERO,
            sent_late: Duration::ZERO,
            latency: Duration::from_millis(latency),
            outcome,
            slo: Duration::from_millis(200),
        };
        use http::StatusCode;
        let answers = [
            answer(Outcome::Served(StatusCode::OK), 200),
            answer(Outcome::Served(StatusCode::NOT_FOUND), 201),
            answer(Outcome::Refused, 1),
            answer(Outcome::Shed, 1),
            answer(Outcome::Failed(StatusCode::BAD_GATEWAY), 1),
            answer(Outcome::Lost, 60_000),
        ];
        let counts = Counts::of(&answers);
        assert_eq!(
            (counts.requests, counts.in_time, counts.answered),
            (6, 1, 2)
        );
        assert_eq!(
            counts.answered + counts.refused + counts.shed + counts.failed + counts.lost,
            counts.requests
        );
    }
}
