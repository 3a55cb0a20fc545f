//! Requests that wait, and how they are taken together: in order of arrival, up to a batch's size.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::failure::Failure;
use crate::request::{Answer, Request};

/// So many requests wait at most; what comes then is refused.
const WAITING_MAX: usize = 10_000;
/// So many checks of the GPU wait at most.
const PROBES_MAX: usize = 16;

/// Whoever waits for an answer.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Failure>>;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) reply: Reply<Answer>,
    /// Told how many units of output there are, if they are streamed.
    pub(crate) progress: Option<watch::Sender<u64>>,
    pub(crate) arrived: Instant,
    /// The same by the machine's clock, for the answer.
    pub(crate) read_ns: u64,
}

/// What a worker does next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Compute these together: at least one.
    Batch(Vec<Job>),
    /// Look whether the GPU works.
    Probe(Reply<()>),
}

/// See the [module](self).
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
    /// No batch is held back for others.
    is_hurried: bool,
    is_closed: bool,
}

impl Queue {
    /// Batches have at most `batch` members; the first one waits at most `wait` from its arrival for others.
    pub(crate) fn new(batch: usize, wait: Duration) -> Self {
        Self {
            batch: batch.max(1),
            wait,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and the queue would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a request at the end. `false`: it is full or closed, and the request is dropped.
    pub(crate) fn push(&self, job: Job) -> bool {
        let mut state = self.state();
        if state.is_closed || state.jobs.len() >= WAITING_MAX {
            return false;
        }
        state.jobs.push_back(job);
        drop(state);
        // Not one: it might be a worker that waits for its batch to fill and has enough.
        self.changed.notify_all();
        true
    }

    /// Puts a check before all requests.
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

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state().jobs.len()
    }

    /// Holds no batch back any more: nobody else is expected.
    pub(crate) fn hurry(&self) {
        self.state().is_hurried = true;
        self.changed.notify_all();
    }

    /// Lets no more in. Workers get what waits, then `None`.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_hurried = true;
        state.is_closed = true;
        drop(state);
        self.changed.notify_all();
    }

    /// What is to be done next; waits for it. `None`: closed and empty.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut state = self.state();
        loop {
            if let Some(probe) = state.probes.pop_front() {
                return Some(Next::Probe(probe));
            }
            // Whoever has gone is not computed for.
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
            return Some(Next::Batch(state.jobs.drain(..count).collect()));
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

    fn outputs(next: Option<Next>) -> Vec<u64> {
        match next {
            Some(Next::Batch(jobs)) => jobs.iter().map(|job| job.request.work.output).collect(),
            Some(Next::Probe(_)) | None => Vec::new(),
        }
    }

    #[test]
    fn what_waits_is_taken_together_in_order() {
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
    fn who_has_gone_is_passed_over() {
        let queue = Queue::new(8, Duration::ZERO);
        let (gone, _) = job(1);
        let (here, _answer) = job(2);
        assert!(queue.push(gone) && queue.push(here));
        assert_eq!(outputs(queue.next()), [2]);
    }

    #[test]
    fn the_first_one_waits_for_others_until_the_batch_is_full() {
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
    fn the_wait_for_others_ends() {
        let queue = Queue::new(2, Duration::from_millis(1));
        let (only, _answer) = job(1);
        assert!(queue.push(only));
        assert_eq!(outputs(queue.next()), [1]);
        // And at once when nobody else can come.
        let queue = Queue::new(2, Duration::from_secs(600));
        let (only, _answer) = job(1);
        assert!(queue.push(only));
        queue.hurry();
        assert_eq!(outputs(queue.next()), [1]);
        queue.close();
        assert!(queue.next().is_none());
    }

    #[test]
    fn a_check_comes_before_all_requests() {
        let queue = Queue::new(1, Duration::ZERO);
        let (only, _answer) = job(1);
        assert!(queue.push(only));
        let (reply, _checked) = oneshot::channel();
        assert!(queue.probe(reply));
        assert!(matches!(queue.next(), Some(Next::Probe(_))));
        assert_eq!(outputs(queue.next()), [1]);
        let full = (0..=PROBES_MAX).map(|_| queue.probe(oneshot::channel().0));
        assert_eq!(full.filter(|&taken| taken).count(), PROBES_MAX);
    }

    #[test]
    fn a_full_queue_takes_no_more() {
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
