//! History of the queue: when each request began, and why it did before the others.

use std::time::Duration;

use super::super::replay::{Answer, Outcome};
use super::super::workload::{Request, Workload};

/// History of a run's requests, in the order of arrival.
#[derive(Debug)]
pub(super) struct RunHistory {
    pub(super) requests: Vec<RequestHistory>,
}

/// History of one request; times count from the first request's arrival.
#[derive(Debug, Clone)]
pub(super) struct RequestHistory {
    pub(super) outcome: Option<Outcome>,
    /// Due time of sending.
    pub(super) due: Duration,
    /// Begin and end of the request's computation; `None` unless answered 200.
    pub(super) computed: Option<(Duration, Duration)>,
    /// Time of the last byte of its answer.
    pub(super) ended: Duration,
    pub(super) is_in_time: bool,
}

impl RunHistory {
    /// Derives the history from the answers of a run.
    pub(super) fn new(workload: &Workload, answers: &[Answer]) -> Self {
        let mut requests: Vec<RequestHistory> = workload
            .requests
            .iter()
            .map(|request| RequestHistory {
                outcome: None,
                due: request.arrival,
                computed: None,
                ended: request.arrival,
                is_in_time: false,
            })
            .collect();
        // The model-server's clock is this machine's, so the first arrival on it is the least value derived from any answer: an
        // answer is made before its last byte arrives.
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

    /// Returns why a request began when it did; `None` if it was never computed. Takes time linear in the run's requests.
    pub(super) fn why(&self, workload: &Workload, at: usize) -> Option<String> {
        let (begin, _) = self.requests.get(at)?.computed?;
        let waiting = self
            .requests
            .iter()
            .enumerate()
            .filter(|(other, own)| *other != at && own.due < begin && own.left() > begin);
        let waiting: Vec<usize> = waiting.map(|(other, _)| other).collect();
        Some(why(&workload.requests, at, begin, &waiting))
    }

    /// Returns the begin of the window of this length in which most requests wait.
    pub(super) fn busiest(&self, window: Duration) -> Duration {
        let mut left: Vec<Duration> = self.requests.iter().map(RequestHistory::left).collect();
        left.sort_unstable();
        let in_window = |from: Duration| {
            let come = self.requests.partition_point(|own| own.due < from + window);
            come - left.partition_point(|&left| left <= from).min(come)
        };
        let begins = self.requests.iter().map(|own| own.due);
        // `max_by_key` returns the last maximum, hence `rev`: the earliest window is wanted.
        let busiest = begins.rev().max_by_key(|&from| in_window(from));
        busiest.unwrap_or_default()
    }
}

impl RequestHistory {
    /// Returns when the request left the queue.
    fn left(&self) -> Duration {
        self.computed.map_or(self.ended, |(began, _)| began)
    }
}

/// Returns the first arrival on the machine's clock, in ns.
fn zero_ns(workload: &Workload, answers: &[Answer]) -> Option<u64> {
    let each = answers.iter().filter_map(|answer| {
        let made = answer.exchange?.computed?.answered_ns;
        let end = workload.requests.get(answer.request)?.arrival + answer.latency;
        made.checked_sub(u64::try_from(end.as_nanos()).ok()?)
    });
    // The estimates are too small by the time from making an answer to its last byte, so the greatest is nearest.
    each.max()
}

/// Returns why request `at` began at `begin` and not one of those that waited.
fn why(requests: &[Request], at: usize, begin: Duration, waiting: &[usize]) -> String {
    if waiting.is_empty() {
        return "nothing else waited".to_owned();
    }
    let slack = |at: usize| {
        let own = &requests[at];
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

#[cfg(test)]
mod tests {
    use model_server::Work;

    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Returns requests with these arrivals and objectives in ms, each with 20 ms of service.
    fn requests(all: &[(u64, u64)]) -> Vec<Request> {
        let request = |&(arrival, objective)| Request {
            arrival: ms(arrival),
            service: ms(20),
            objective: ms(objective),
            work: Work {
                input: 1,
                output: 1,
            },
            class: 0,
        };
        all.iter().map(request).collect()
    }

    #[test]
    fn the_reason_names_age_and_slack_among_those_that_waited() {
        let all = requests(&[(0, 500), (5, 80), (10, 80)]);
        let why = |at, begin, waiting: &[usize]| why(&all, at, ms(begin), waiting);
        assert_eq!(why(0, 0, &[]), "nothing else waited");
        assert_eq!(
            why(1, 20, &[0, 2]),
            "least slack of 3: 45 ms before its latest start"
        );
        assert_eq!(
            why(0, 20, &[1, 2]),
            "oldest of 3: 460 ms before its latest start; 2 had less slack"
        );
        assert_eq!(
            why(1, 75, &[2]),
            "oldest and least slack of 2: 10 ms after its latest start"
        );
        assert_eq!(
            why(2, 68, &[0, 1]),
            "2 ms before its latest start; those with less slack could not be in time or were estimated shorter"
        );
    }
}
