//! The queue from inside: which request began when, and why it and no other.

use std::time::Duration;

use super::super::replay::{Answer, Outcome};
use super::super::workload::Workload;

/// What became of the requests of a run, in the order in which they arrived.
#[derive(Debug)]
pub(super) struct Course {
    pub(super) requests: Vec<Passage>,
}

/// One request; times are from the first one's arrival.
#[derive(Debug, Clone)]
pub(super) struct Passage {
    pub(super) outcome: Option<Outcome>,
    /// When it was due to be sent.
    pub(super) due: Duration,
    /// When it began to be computed and when its answer was made; only where it was answered 200.
    pub(super) computed: Option<(Duration, Duration)>,
    /// When the last byte of its answer came.
    pub(super) ended: Duration,
    pub(super) is_in_time: bool,
}

impl Course {
    /// From the answers of a run.
    pub(super) fn new(workload: &Workload, answers: &[Answer]) -> Self {
        let mut requests: Vec<Passage> = workload
            .requests
            .iter()
            .map(|request| Passage {
                outcome: None,
                due: request.arrival,
                computed: None,
                ended: request.arrival,
                is_in_time: false,
            })
            .collect();
        // The model-server's clock is the machine's, as ours is: the first arrival on it is the least that any answer gives, since
        // what is computed is made before its last byte comes.
        let zero = zero_ns(workload, answers);
        for answer in answers {
            let Some(passage) = requests.get_mut(answer.request) else {
                continue;
            };
            let objective = workload.requests[answer.request].objective;
            passage.outcome = answer.outcome;
            passage.ended = passage.due + answer.latency;
            passage.is_in_time =
                answer.outcome == Some(Outcome::Served) && answer.latency <= objective;
            let computed = answer.exchange.and_then(|exchange| exchange.computed);
            if let (Some(computed), Some(zero)) = (computed, zero) {
                let since = |at: u64| Duration::from_nanos(at.saturating_sub(zero));
                passage.computed = Some((since(computed.read_ns), since(computed.answered_ns)));
            }
        }
        Self { requests }
    }

    /// Returns why a request began to be computed when it did; none where it never did. Costs as much as the run has requests.
    pub(super) fn why(&self, workload: &Workload, at: usize) -> Option<String> {
        let (begin, _) = self.requests.get(at)?.computed?;
        let waiting = self
            .requests
            .iter()
            .enumerate()
            .filter(|(other, own)| *other != at && own.due < begin && own.left() > begin);
        let waiting: Vec<usize> = waiting.map(|(other, _)| other).collect();
        Some(why(workload, at, begin, &waiting))
    }

    /// Returns the begin of the window of this length in which the most requests wait.
    pub(super) fn busiest(&self, window: Duration) -> Duration {
        let mut left: Vec<Duration> = self.requests.iter().map(Passage::left).collect();
        left.sort_unstable();
        let in_window = |from: Duration| {
            let come = self.requests.partition_point(|own| own.due < from + window);
            come - left.partition_point(|&left| left <= from).min(come)
        };
        let begins = self.requests.iter().map(|own| own.due);
        // The first of equals.
        let busiest = begins.rev().max_by_key(|&from| in_window(from));
        busiest.unwrap_or_default()
    }
}

impl Passage {
    /// When it waited no more.
    fn left(&self) -> Duration {
        self.computed.map_or(self.ended, |(began, _)| began)
    }
}

/// The first arrival by the machine's clock, ns.
fn zero_ns(workload: &Workload, answers: &[Answer]) -> Option<u64> {
    let each = answers.iter().filter_map(|answer| {
        let made = answer.exchange?.computed?.answered_ns;
        let end = workload.requests.get(answer.request)?.arrival + answer.latency;
        made.checked_sub(u64::try_from(end.as_nanos()).ok()?)
    });
    // An answer is made before its last byte comes, by what the way back takes: the greatest is nearest.
    each.max()
}

fn why(workload: &Workload, at: usize, begin: Duration, waiting: &[usize]) -> String {
    if waiting.is_empty() {
        return "nothing else waited".to_owned();
    }
    let slack = |at: usize| {
        let own = &workload.requests[at];
        let latest =
            own.arrival.as_secs_f64() + own.objective.as_secs_f64() - own.service.as_secs_f64();
        (latest - begin.as_secs_f64()) * 1e3
    };
    let own = slack(at);
    let is_least = waiting.iter().all(|&other| slack(other) >= own);
    let is_oldest = waiting.iter().all(|&other| other > at);
    let others = waiting.len();
    let left = if own >= 0.0 {
        format!("{own:.0} ms before its latest start")
    } else {
        format!("{:.0} ms after its latest start", -own)
    };
    match (is_least, is_oldest) {
        (true, true) => format!("oldest and least slack of {}: {left}", others + 1),
        (true, false) => format!("least slack of {}: {left}", others + 1),
        (false, true) => {
            let urgent = waiting.iter().filter(|&&other| slack(other) < own).count();
            format!("oldest of {}: {left}; {urgent} had less slack", others + 1)
        }
        (false, false) => {
            format!("{left}; those with less slack could not be in time or were estimated shorter")
        }
    }
}
