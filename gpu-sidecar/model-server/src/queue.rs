//! Queue of waiting requests, which are batched in order of arrival.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::failure::Failure;
use crate::request::{Answer, Request};

/// Maximum number of waiting requests; further ones are refused.
const WAITING_MAX: usize = 10_000;
/// Maximum number of waiting checks of the GPU.
const PROBES_MAX: usize = 16;

/// Sender of the answer to a waiting client.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Failure>>;

/// A waiting request with its client.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) reply: Reply<Answer>,
    /// Receives the number of computed units of output, if they are streamed.
    pub(crate) progress: Option<watch::Sender<u64>>,
    /// Time of arrival, from which the wait for a batch counts.
    pub(crate) arrived: Instant,
    /// Time of arrival on `CLOCK_MONOTONIC` in nanoseconds, for the answer.
    pub(crate) read_ns: u64,
}

/// The next task of a worker.
#[derive(Debug)]
pub(crate) enum Task {
    /// A batch of at least one request.
    Batch(Vec<Job>),
    /// A check of the GPU.
    Probe(Reply<()>),
}

/// Queue of requests and checks, shared by the connections and the workers.
#[derive(Debug)]
pub(crate) struct Queue {
    batch: usize,
    wait: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    probes: VecDeque<Reply<()>>,
    /// Whether batches start without waiting for further members.
    is_hurried: bool,
    is_closed: bool,
}

impl Queue {
    /// Creates a queue for batches of at most `batch` members; the first member waits at most `wait` from its arrival for
    /// others.
    pub(crate) fn new(batch: usize, wait: Duration) -> Self {
        Self {
            batch: batch.max(1),
            wait,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, and the queue would still be consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a request. Returns `false` and drops it when the queue is full or closed.
    pub(crate) fn push(&self, job: Job) -> bool {
        let mut state = self.state();
        if state.is_closed || state.jobs.len() >= WAITING_MAX {
            return false;
        }
        state.jobs.push_back(job);
        drop(state);
        // All, since a single one might be a worker that waits for its batch to fill and has enough members.
        self.changed.notify_all();
        true
    }

    /// Enqueues a check before all requests. Returns `false` and drops it when too many wait or the queue is closed.
    pub(crate) fn probe(&self, reply: Reply<()>) -> bool {
        let mut state = self.state();
        if state.is_closed || state.probes.len() >= PROBES_MAX {
            return false;
        }
        state.probes.push_back(reply);
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Returns the number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.state().jobs.len()
    }

    /// Stops holding back batches, since no further requests are expected.
    pub(crate) fn hurry(&self) {
        self.state().is_hurried = true;
        self.changed.notify_all();
    }

    /// Closes the queue for new entries. Workers receive the remaining ones, then `None`.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_hurried = true;
        state.is_closed = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Blocks until a task is due and returns it; `None` once the queue is closed and empty.
    pub(crate) fn next(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if let Some(probe) = state.probes.pop_front() {
                return Some(Task::Probe(probe));
            }
            // Skip requests of disconnected clients.
            state.jobs.retain(|job| !job.reply.is_closed());
            let Some(first) = state.jobs.front() else {
                if state.is_closed {
                    return None;
                }
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = first.arrived.elapsed();
            if state.jobs.len() < self.batch && waited < self.wait && !state.is_hurried {
                (state, _) = self
                    .changed
                    .wait_timeout(state, self.wait - waited)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let count = state.jobs.len().min(self.batch);
            return Some(Task::Batch(state.jobs.drain(..count).collect()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cost::Work;

    fn job(output: u64) -> (Job, oneshot::Receiver<Result<Answer, Failure>>) {
        let (reply, answer) = oneshot::channel();
        let job = Job {
            request: Request {
                work: Work { input: 0, output },
                seed: 0,
                stream: false,
            },
            reply,
            progress: None,
            arrived: Instant::now(),
            read_ns: 0,
        };
        (job, answer)
    }

    fn outputs(next: Option<Task>) -> Vec<u64> {
        match next {
            Some(Task::Batch(jobs)) => jobs.iter().map(|job| job.request.work.output).collect(),
            Some(Task::Probe(_)) | None => Vec::new(),
        }
    }

    #[test]
    fn waiting_requests_are_batched_in_order() {
        let queue = Queue::new(3, Duration::ZERO);
        let answers: Vec<_> = (0..5)
            .map(|n| {
                let (job, answer) = job(n);
                assert!(queue.push(job));
                answer
            })
            .collect();
        assert_eq!(queue.waiting(), 5);
        assert_eq!(outputs(queue.next()), [0, 1, 2]);
        assert_eq!(outputs(queue.next()), [3, 4]);
        queue.close();
        assert!(queue.next().is_none());
        assert!(!queue.push(job(9).0), "closed");
        drop(answers);
    }

    #[test]
    fn disconnected_requests_are_skipped() {
        let queue = Queue::new(8, Duration::ZERO);
        let (gone, _) = job(1);
        let (here, _answer) = job(2);
        assert!(queue.push(gone) && queue.push(here));
        assert_eq!(outputs(queue.next()), [2]);
    }

    #[test]
    fn the_first_request_waits_until_the_batch_is_full() {
        let queue = Arc::new(Queue::new(2, Duration::from_secs(600)));
        let worker = {
            let queue = Arc::clone(&queue);
            std::thread::spawn(move || outputs(queue.next()))
        };
        let (first, _first) = job(1);
        let (second, _second) = job(2);
        assert!(queue.push(first));
        assert!(queue.push(second));
        assert_eq!(worker.join().unwrap(), [1, 2]);
    }

    #[test]
    fn the_wait_for_a_full_batch_is_bounded() {
        let queue = Queue::new(2, Duration::from_millis(1));
        let (only, _answer) = job(1);
        assert!(queue.push(only));
        assert_eq!(outputs(queue.next()), [1]);
        // At once when no further request is expected.
        let queue = Queue::new(2, Duration::from_secs(600));
        let (only, _answer) = job(1);
        assert!(queue.push(only));
        queue.hurry();
        assert_eq!(outputs(queue.next()), [1]);
        queue.close();
        assert!(queue.next().is_none());
    }

    #[test]
    fn checks_run_before_all_requests() {
        let queue = Queue::new(1, Duration::ZERO);
        let (only, _answer) = job(1);
        assert!(queue.push(only));
        let (reply, _checked) = oneshot::channel();
        assert!(queue.probe(reply));
        assert!(matches!(queue.next(), Some(Task::Probe(_))));
        assert_eq!(outputs(queue.next()), [1]);
        let full = (0..=PROBES_MAX).map(|_| queue.probe(oneshot::channel().0));
        assert_eq!(full.filter(|&taken| taken).count(), PROBES_MAX);
    }

    #[test]
    fn a_full_queue_refuses_requests() {
        let queue = Queue::new(1, Duration::ZERO);
        let mut answers = Vec::new();
        for _ in 0..WAITING_MAX {
            let (job, answer) = job(0);
            assert!(queue.push(job));
            answers.push(answer);
        }
        assert!(!queue.push(job(0).0));
    }
}
