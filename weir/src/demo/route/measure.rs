//! Evaluates the instances' activity from observations of clients and model-servers.

use super::super::replay::{Answer, Outcome};
use super::super::workload::Workload;

/// Times of a request, in ns of one clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RequestTimes {
    /// Time at which the request was sent.
    pub(super) sent: u64,
    /// Computation of the request at an instance; `None` unless it was answered 200.
    pub(super) computed: Option<Computation>,
    /// Time of the answer's last byte.
    pub(super) ended: u64,
    /// Service time of the request at an instance of speed 1.
    pub(super) service: u64,
    /// Latest time at which the answer may end to be in time.
    pub(super) deadline: u64,
}

/// An instance's computation of a request, in ns of the same clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Computation {
    pub(super) instance: usize,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// Measurements of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Measurement {
    /// Share of the instances' time, from the first request sent to the last answer, in which an instance is idle while an
    /// uncomputed request is in the system which it could answer in time.
    pub(super) idle_while_waiting: f64,
    /// Requests computed by the busiest instance, divided by the mean over instances.
    pub(super) requests_max_over_mean: f64,
    /// Times from the end of a computation to the begin of the next at the same instance, in ns, where the latter request had
    /// been sent before that end; sorted.
    pub(super) hand_overs: Vec<u64>,
}

/// Returns each request's times. `monotonic_ns` is the time of the machine's clock at `now`; `pids` are those of the instances'
/// model-servers.
pub(super) fn courses(
    workload: &Workload,
    answers: &[Answer],
    pids: &[u32],
    (now, monotonic_ns): (tokio::time::Instant, u64),
) -> Vec<RequestTimes> {
    let nanos = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let at = |time| monotonic_ns.saturating_sub(nanos(now.saturating_duration_since(time)));
    let each = answers.iter().filter_map(|answer| {
        let request = &workload.requests[answer.request];
        let exchange = answer.exchange?;
        let computed = exchange.computed.and_then(|computed| {
            let instance = pids.iter().position(|&pid| pid == computed.pid)?;
            Some(Computation {
                instance,
                begin: computed.read_ns,
                end: computed.answered_ns,
            })
        });
        let ended = at(exchange.ended);
        Some(RequestTimes {
            sent: at(exchange.sent),
            computed: computed.filter(|_| answer.outcome == Some(Outcome::Served)),
            ended,
            service: nanos(request.service),
            deadline: ended.saturating_sub(nanos(answer.latency)) + nanos(request.objective),
        })
    });
    each.collect()
}

/// Returns the measurements of a run; `speeds` are those of the instances.
pub(super) fn measure(courses: &[RequestTimes], speeds: &[f64]) -> Measurement {
    let begin = courses.iter().map(|course| course.sent).min().unwrap_or(0);
    let end = courses.iter().map(|course| course.ended).max().unwrap_or(0);
    let mut hand_overs = Vec::new();
    let (mut idle, mut most) = (0, 0);
    for (instance, &speed) in speeds.iter().enumerate() {
        let mut here: Vec<(&RequestTimes, Computation)> = courses
            .iter()
            .filter_map(|course| Some((course, course.computed?)))
            .filter(|(_, computed)| computed.instance == instance)
            .collect();
        here.sort_unstable_by_key(|(_, computed)| computed.begin);
        most = most.max(here.len());
        for pair in here.windows(2) {
            let (before, (course, after)) = (pair[0].1, pair[1]);
            if course.sent < before.end {
                hand_overs.push(after.begin.saturating_sub(before.end));
            }
        }
        let mut free = begin;
        let last = Computation {
            instance,
            begin: end,
            end,
        };
        for computed in here.iter().map(|(_, computed)| *computed).chain([last]) {
            idle += waited_in((free, computed.begin), courses, speed);
            free = free.max(computed.end);
        }
    }
    hand_overs.sort_unstable();
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of requests, and times below 2^53 ns"
    )]
    {
        let computed = courses.iter().filter(|course| course.computed.is_some());
        let mean = computed.count() as f64 / speeds.len() as f64;
        Measurement {
            idle_while_waiting: idle as f64 / ((end - begin).max(1) as f64 * speeds.len() as f64),
            requests_max_over_mean: most as f64 / mean.max(f64::MIN_POSITIVE),
            hand_overs,
        }
    }
}

/// Returns for how long, in a gap between two computations at an instance of this speed, a request waited which it could have
/// answered in time.
fn waited_in((from, to): (u64, u64), courses: &[RequestTimes], speed: f64) -> u64 {
    let mut waits: Vec<(u64, u64)> = courses
        .iter()
        .filter_map(|course| {
            #[expect(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "ns of a request, far below 2^53"
            )]
            let service = (course.service as f64 / speed) as u64;
            let begun = course
                .computed
                .map_or(course.ended, |computed| computed.begin);
            let end = begun.min(course.deadline.saturating_sub(service)).min(to);
            let begin = course.sent.max(from);
            (begin < end).then_some((begin, end))
        })
        .collect();
    waits.sort_unstable();
    let (mut waited, mut covered) = (0, from);
    for (begin, end) in waits {
        let begin = begin.max(covered);
        if begin < end {
            waited += end - begin;
            covered = end;
        }
    }
    waited
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(sent: u64, computed: Option<(usize, u64, u64)>, deadline: u64) -> RequestTimes {
        RequestTimes {
            sent,
            computed: computed.map(|(instance, begin, end)| Computation {
                instance,
                begin,
                end,
            }),
            ended: computed.map_or(sent, |(_, _, end)| end),
            service: 10,
            deadline,
        }
    }

    #[test]
    fn counts_idle_time_while_a_request_waits_that_could_be_in_time() {
        // The second request waits from 2 to 12 at the first instance, while the other instance is idle.
        let courses = [
            course(0, Some((0, 0, 10)), 100),
            course(2, Some((0, 12, 22)), 100),
        ];
        let measured = measure(&courses, &[1.0, 1.0]);
        // Idle: 2 at the first instance, from 10 to 12, and 10 at the second; each of 22.
        assert!((measured.idle_while_waiting - 12.0 / 44.0).abs() < 1e-9);
        assert_eq!(measured.hand_overs, [2]);
        assert!((measured.requests_max_over_mean - 2.0).abs() < 1e-9);
        // At half the speed the second instance could not have answered it in time.
        let late = [courses[0], course(2, Some((0, 12, 22)), 21)];
        let measured = measure(&late, &[1.0, 0.5]);
        assert!(
            (measured.idle_while_waiting - 1.0 / 44.0).abs() < 1e-9,
            "{measured:?}"
        );
    }

    #[test]
    fn requests_to_an_idle_instance_are_no_hand_overs() {
        let courses = [
            course(0, Some((0, 0, 10)), 100),
            course(15, Some((0, 16, 26)), 100),
        ];
        let measured = measure(&courses, &[1.0]);
        assert!(measured.hand_overs.is_empty());
        assert!((measured.idle_while_waiting - 1.0 / 26.0).abs() < 1e-9);
    }

    #[test]
    fn overlapping_waits_count_once() {
        let courses = [
            course(0, Some((0, 4, 10)), 100),
            course(2, Some((0, 12, 22)), 100),
            RequestTimes {
                ended: 5,
                ..course(1, None, 100)
            },
        ];
        // Until 4, and from 10 to 12.
        let measured = measure(&courses, &[1.0]);
        assert!((measured.idle_while_waiting - 6.0 / 22.0).abs() < 1e-9);
    }
}
