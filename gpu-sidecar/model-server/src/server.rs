//! What the sockets and the workers share, and what a worker does.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::checksum::{Checked, Reference, fold};
use crate::device::{Batch, Lane, Loaded};
use crate::failure::Failure;
use crate::plan::units_after;
use crate::queue::{Job, Next, Queue};
use crate::request::{Answer, Request, monotonic_ns};
use crate::settings::Settings;

/// Whether requests are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The weights are not there yet.
    Loading,
    /// They are.
    Ready,
    /// The device failed for good.
    Failed(Failure),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: Settings,
    pub(crate) reference: Reference,
    pub(crate) queue: Queue,
    condition: Mutex<Condition>,
    device: Mutex<String>,
    load: Mutex<Duration>,
    /// The block that the next batch checks first.
    turn: AtomicUsize,
    running: AtomicUsize,
    served: AtomicU64,
    batches: AtomicU64,
    errors: AtomicU64,
    wrong: AtomicU64,
    gpu_ns: AtomicU64,
}

/// `GET /stats`.
#[derive(Debug, Serialize)]
pub(crate) struct Stats<'a> {
    model: &'a str,
    device: String,
    condition: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Served to the end.
    requests: u64,
    waiting: usize,
    /// Batches that are computed now.
    running: usize,
    batches: u64,
    errors: u64,
    /// Answers with a checksum that was not the right one; only where the server verifies.
    wrong: u64,
    weights_bytes: u64,
    blocks: usize,
    blocks_bytes: u64,
    load_seconds: f64,
    /// Sum over all batches, by the GPU's events.
    gpu_ms: f64,
    bytes_scale: u64,
    time_scale: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing panics while it holds one, and what it guards is a single value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            reference: Reference::new(&settings.planner.model, settings.bytes_scale),
            queue: Queue::new(settings.batch, settings.batch_wait),
            condition: Mutex::new(Condition::Loading),
            device: Mutex::default(),
            load: Mutex::default(),
            turn: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            served: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            wrong: AtomicU64::new(0),
            gpu_ns: AtomicU64::new(0),
            settings,
        }
    }

    /// Loads the weights and says so, then computes until the queue is closed and empty. Runs on a thread of its own,
    /// and has one more for each lane.
    pub(crate) fn work(
        self: &Arc<Self>,
        loaded: impl FnOnce(Result<(), Failure>),
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let lanes = || -> Result<_, Failure> {
            let device = Loaded::load(&self.settings)?;
            let lanes: Vec<Lane> = (0..self.settings.concurrency)
                .map(|_| device.lane(&self.settings))
                .collect::<Result<_, _>>()?;
            Ok((device, lanes))
        };
        let (device, lanes) = match lanes() {
            Ok(both) => both,
            Err(failure) => {
                loaded(Err(failure.clone()));
                return Err(failure);
            }
        };
        device.name().clone_into(&mut lock(&self.device));
        *lock(&self.load) = begin.elapsed();
        *lock(&self.condition) = Condition::Ready;
        loaded(Ok(()));
        std::thread::scope(|scope| {
            for mut lane in lanes {
                scope.spawn(move || {
                    let _watch = Watch(self);
                    while let Some(next) = self.queue.next() {
                        self.serve(&mut lane, next);
                    }
                });
            }
        });
        Ok(())
    }

    fn serve(&self, lane: &mut Lane, next: Next) {
        if let Condition::Failed(failure) = self.condition() {
            // Nothing more is asked of a device that has failed.
            match next {
                Next::Probe(reply) => drop(reply.send(Err(failure))),
                Next::Batch(jobs) => {
                    for job in jobs {
                        self.errors.fetch_add(1, Ordering::Relaxed);
                        drop(job.reply.send(Err(failure.clone())));
                    }
                }
            }
            return;
        }
        match next {
            Next::Probe(reply) => {
                let checked = lane.probe();
                self.note(&checked);
                // Whoever asked may have gone.
                drop(reply.send(checked));
            }
            Next::Batch(jobs) => {
                self.running.fetch_add(1, Ordering::Relaxed);
                self.compute(lane, jobs);
                self.running.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn compute(&self, lane: &mut Lane, jobs: Vec<Job>) {
        let members: Vec<Request> = jobs.iter().map(|job| job.request).collect();
        let plan = self.settings.planner.plan(&members);
        let batch = Batch {
            plan: &plan,
            members: &members,
            checked: self.next_checked(),
            is_streamed: jobs.iter().any(|job| job.progress.is_some()),
        };
        let steps = plan.steps();
        let outcome = lane.run(&batch, &mut |step| {
            for job in &jobs {
                if let Some(progress) = &job.progress {
                    let units = units_after(step, steps, job.request.work.output);
                    progress.send_replace(units);
                }
            }
        });
        self.note(&outcome);
        self.batches.fetch_add(1, Ordering::Relaxed);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(failure) => {
                for job in jobs {
                    self.errors.fetch_add(1, Ordering::Relaxed);
                    drop(job.reply.send(Err(failure.clone())));
                }
                return;
            }
        };
        let took = u64::try_from(outcome.took.as_nanos()).unwrap_or(u64::MAX);
        self.gpu_ns.fetch_add(took, Ordering::Relaxed);
        for (job, input) in jobs.into_iter().zip(outcome.inputs) {
            let checksum = fold(outcome.blocks.iter().copied(), input);
            let model = &self.settings.planner.model.name;
            let mut answer = Answer::new(model, checksum, batch.checked);
            answer.batch = members.len();
            answer.gpu_ms = self.reported_ms(outcome.took);
            answer.read_ns = job.read_ns;
            answer.answered_ns = monotonic_ns();
            if self.settings.verify {
                let right = self.reference.checksum(batch.checked, job.request.seed);
                answer.right = Some(right == checksum);
                if right != checksum {
                    self.wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.served.fetch_add(1, Ordering::Relaxed);
            drop(job.reply.send(Ok(answer)));
        }
    }

    /// The blocks that the next batch checks.
    fn next_checked(&self) -> Checked {
        let blocks = self.reference.blocks().len();
        let count = self.settings.check.min(blocks);
        if count == 0 {
            return Checked { first: 0, count: 0 };
        }
        let turn = self.turn.fetch_add(count, Ordering::Relaxed);
        Checked {
            first: turn % blocks,
            count,
        }
    }

    /// A failure that is final ends the service.
    fn note<T>(&self, result: &Result<T, Failure>) {
        if let Err(failure) = result
            && failure.is_final()
        {
            self.fail(failure.clone());
        }
    }

    fn fail(&self, failure: Failure) {
        let mut condition = lock(&self.condition);
        // The first one is the cause.
        if !matches!(*condition, Condition::Failed(_)) {
            *condition = Condition::Failed(failure);
        }
    }

    pub(crate) fn condition(&self) -> Condition {
        lock(&self.condition).clone()
    }

    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// In whole ns, so that no digits come of the division.
    fn reported_ms(&self, time: Duration) -> f64 {
        let time = time / self.settings.time_scale.max(1);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53 ns")]
        let nanos = time.as_nanos() as f64;
        nanos / 1e6
    }

    pub(crate) fn stats(&self) -> Stats<'_> {
        let condition = self.condition();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let blocks = self.reference.blocks();
        Stats {
            model: &self.settings.planner.model.name,
            device: lock(&self.device).clone(),
            condition: match condition {
                Condition::Loading => "loading",
                Condition::Ready => "ready",
                Condition::Failed(_) => "failed",
            },
            failure: match condition {
                Condition::Failed(failure) => Some(failure.to_string()),
                Condition::Loading | Condition::Ready => None,
            },
            requests: self.served(),
            waiting: self.queue.waiting(),
            running: self.running.load(Ordering::Relaxed),
            batches: count(&self.batches),
            errors: count(&self.errors),
            wrong: count(&self.wrong),
            weights_bytes: blocks.iter().map(|block| block.used).sum(),
            blocks: blocks.len(),
            blocks_bytes: blocks.iter().map(|block| block.bytes).sum(),
            load_seconds: self.reported_ms(*lock(&self.load)) / 1e3,
            gpu_ms: self.reported_ms(Duration::from_nanos(count(&self.gpu_ns))),
            bytes_scale: self.settings.bytes_scale,
            time_scale: self.settings.time_scale,
        }
    }
}

/// Notices when a worker dies.
struct Watch<'a>(&'a Server);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Failure::Worker);
            // Whoever waits for it hears so: the queue is emptied by nobody else if it was the last one.
            self.0.queue.close();
            while let Some(next) = self.0.queue.next() {
                drop(next);
            }
        }
    }
}
