//! Estimates the share of requests in time under the best possible order: a search over orders with knowledge of every arrival.
//!
//! Finding the largest set of requests which one server can answer in time, without preemption, is NP-hard when they arrive one
//! by one (1 | r_j | ΣU_j). This is a lower bound on the best: simulated annealing over the sequence in which the accepted
//! requests run, starting from the sequence of earliest-latest-start. It needs no queue bound and no estimate, so no real proxy
//! can be expected to reach it.

use super::random::Random;
use super::workload::Workload;

const STEPS: u32 = 400_000;
/// Bound on steps times requests: a step's cost grows with the number of requests, so larger workloads get fewer steps.
const WORK_MAX: usize = 200_000_000;
/// Temperature at the start, in requests; it falls linearly to zero.
const HEAT: f64 = 0.6;

/// A request's times in nanoseconds since the start.
#[derive(Debug, Clone, Copy)]
struct Job {
    release: u64,
    service: u64,
    due: u64,
}

/// Returns the share of requests answered in time by the best order found, 0 to 1.
pub(crate) fn hit_rate(workload: &Workload, seed: u64) -> f64 {
    let nanos = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let jobs: Vec<Job> = workload
        .requests
        .iter()
        .map(|request| {
            let release = nanos(request.arrival);
            Job {
                release,
                service: nanos(request.service),
                due: release + nanos(request.objective),
            }
        })
        .collect();
    let affordable = u32::try_from(WORK_MAX / jobs.len().max(1)).unwrap_or(STEPS);
    let found = search(&jobs, seed, STEPS.min(affordable));
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let share = found as f64 / jobs.len() as f64;
    share
}

/// Returns the number of requests in time in the best sequence found.
fn search(jobs: &[Job], seed: u64, steps: u32) -> usize {
    let mut random = Random::new(seed);
    let mut sequence = earliest_latest_start(jobs);
    let mut best = sequence.len();
    let mut runs = vec![false; jobs.len()];
    for &job in &sequence {
        runs[job] = true;
    }
    let mut left_out: Vec<usize> = (0..jobs.len()).filter(|&job| !runs[job]).collect();
    let mut candidate = Vec::with_capacity(jobs.len());
    let mut dropped = Vec::new();
    for step in 0..steps {
        if left_out.is_empty() {
            break;
        }
        // Insert a request that was left out at a random position, and drop those that become late.
        let pick = random.below(left_out.len());
        let job = left_out[pick];
        let from = sequence.partition_point(|&other| jobs[other].due < jobs[job].release);
        let span = sequence[from..]
            .iter()
            .take_while(|&&other| jobs[other].release < jobs[job].due)
            .count();
        let place = from + random.below(span + 1);
        candidate.clear();
        candidate.extend_from_slice(&sequence[..place]);
        candidate.push(job);
        candidate.extend_from_slice(&sequence[place..]);
        dropped.clear();
        keep_on_time(jobs, &mut candidate, &mut dropped);
        #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
        let loss = sequence.len() as f64 - candidate.len() as f64;
        let heat = HEAT * (1.0 - f64::from(step) / f64::from(steps));
        if loss <= 0.0 || random.unit() < (-loss / heat.max(1e-9)).exp() {
            std::mem::swap(&mut sequence, &mut candidate);
            left_out.swap_remove(pick);
            left_out.extend_from_slice(&dropped);
            best = best.max(sequence.len());
        }
    }
    best
}

/// Keeps the jobs of a sequence which end in time, and moves the others to `dropped`.
fn keep_on_time(jobs: &[Job], sequence: &mut Vec<usize>, dropped: &mut Vec<usize>) {
    let mut now = 0;
    sequence.retain(|&job| {
        let Job {
            release,
            service,
            due,
        } = jobs[job];
        let end = now.max(release) + service;
        if end <= due {
            now = end;
            true
        } else {
            dropped.push(job);
            false
        }
    });
}

/// Returns the sequence of a server that always runs the request with the earliest latest start and drops late ones.
fn earliest_latest_start(jobs: &[Job]) -> Vec<usize> {
    let mut waiting: Vec<usize> = Vec::new();
    let mut sequence = Vec::new();
    let (mut now, mut next) = (0, 0);
    while next < jobs.len() || !waiting.is_empty() {
        if waiting.is_empty() && next < jobs.len() {
            now = now.max(jobs[next].release);
        }
        while next < jobs.len() && jobs[next].release <= now {
            waiting.push(next);
            next += 1;
        }
        waiting.retain(|&job| now + jobs[job].service <= jobs[job].due);
        let first = waiting
            .iter()
            .enumerate()
            .min_by_key(|&(_, &job)| jobs[job].due - jobs[job].service);
        if let Some((at, &job)) = first {
            now += jobs[job].service;
            sequence.push(job);
            waiting.swap_remove(at);
        }
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(release: u64, service: u64, due: u64) -> Job {
        Job {
            release,
            service,
            due,
        }
    }

    /// Returns the optimal number of jobs in time, by trying every subset in every order.
    fn exhaustive(jobs: &[Job], now: u64, left: &mut Vec<usize>) -> usize {
        let mut best = 0;
        for at in 0..left.len() {
            let job = left.remove(at);
            let end = now.max(jobs[job].release) + jobs[job].service;
            if end <= jobs[job].due {
                best = best.max(1 + exhaustive(jobs, end, left));
            }
            left.insert(at, job);
        }
        best
    }

    #[test]
    fn the_search_finds_the_best_of_small_cases() {
        let mut random = Random::new(7);
        for case in 0..60 {
            let mut jobs: Vec<Job> = (0..7)
                .map(|_| {
                    let release = random.next() % 20;
                    let service = 1 + random.next() % 6;
                    job(
                        release,
                        service,
                        release + service * (1 + random.next() % 3),
                    )
                })
                .collect();
            jobs.sort_by_key(|job| job.release);
            let best = exhaustive(&jobs, 0, &mut (0..7).collect());
            assert_eq!(search(&jobs, 1, 20_000), best, "case {case}: {jobs:?}");
        }
    }

    #[test]
    fn idling_for_a_short_request_can_be_optimal() {
        // Running the long one first would make both short ones late.
        let jobs = [job(0, 10, 12), job(1, 1, 2), job(3, 1, 4)];
        assert_eq!(search(&jobs, 1, 20_000), 2);
    }
}
