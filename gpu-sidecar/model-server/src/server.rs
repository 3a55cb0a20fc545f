//! State shared by the connections and the workers, and the work of a worker.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::checksum::{CheckedBlocks, Reference, fold};
use crate::device::{Batch, Lane, LoadedModel};
use crate::failure::Failure;
use crate::plan::units_after;
use crate::queue::{Job, Queue, Task};
use crate::request::{Answer, Request, monotonic_ns};
use crate::settings::Settings;

/// State of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The weights are being loaded.
    Loading,
    /// The weights are loaded.
    Ready,
    /// The device has failed permanently.
    Failed(Failure),
}

/// State of the server with its queue and counters.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: Settings,
    pub(crate) reference: Reference,
    pub(crate) queue: Queue,
    condition: Mutex<Condition>,
    device: Mutex<String>,
    load: Mutex<Duration>,
    /// First block that the next batch checks, modulo the number of blocks.
    turn: AtomicUsize,
    running: AtomicUsize,
    served: AtomicU64,
    batches: AtomicU64,
    errors: AtomicU64,
    wrong: AtomicU64,
    moved: AtomicU64,
    gpu_ns: AtomicU64,
}

/// Body of `GET /stats`.
#[derive(Debug, Serialize)]
pub(crate) struct Stats<'a> {
    model: &'a str,
    device: String,
    condition: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// Number of requests served completely.
    requests: u64,
    waiting: usize,
    /// Number of batches being computed.
    running: usize,
    batches: u64,
    errors: u64,
    /// Number of answers with a wrong checksum; counted only if the server verifies.
    wrong: u64,
    /// Number of blocks of weights which the driver did not report at their addresses after a batch, over all batches; likewise.
    moved_blocks: u64,
    weights_bytes: u64,
    blocks: usize,
    blocks_bytes: u64,
    load_seconds: f64,
    /// Sum over all batches, measured by the GPU's events.
    gpu_ms: f64,
    bytes_scale: u64,
    time_scale: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No code panics while it holds a lock, and each lock guards a single value.
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
            moved: AtomicU64::new(0),
            gpu_ns: AtomicU64::new(0),
            settings,
        }
    }

    /// Loads the weights and calls `loaded`, then computes until the queue is closed and empty. Blocks; uses one more thread
    /// per lane.
    pub(crate) fn work(
        self: &Arc<Self>,
        loaded: impl FnOnce(Result<(), Failure>),
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let lanes = || -> Result<_, Failure> {
            let device = LoadedModel::load(&self.settings)?;
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
                    let _guard = PanicGuard(self);
                    while let Some(next) = self.queue.next() {
                        self.serve(&mut lane, next);
                    }
                });
            }
        });
        Ok(())
    }

    fn serve(&self, lane: &mut Lane, next: Task) {
        if let Condition::Failed(failure) = self.condition() {
            // A failed device gets no more work.
            match next {
                Task::Probe(reply) => drop(reply.send(Err(failure))),
                Task::Batch(jobs) => {
                    for job in jobs {
                        self.errors.fetch_add(1, Ordering::Relaxed);
                        drop(job.reply.send(Err(failure.clone())));
                    }
                }
            }
            return;
        }
        match next {
            Task::Probe(reply) => {
                let checked = lane.probe();
                self.note(&checked);
                // The client may have disconnected.
                drop(reply.send(checked));
            }
            Task::Batch(jobs) => self.compute(lane, jobs),
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
        self.running.fetch_add(1, Ordering::Relaxed);
        let outcome = lane.run(&batch, &mut |step| {
            for job in &jobs {
                if let Some(progress) = &job.progress {
                    let units = units_after(step, steps, job.request.work.output);
                    progress.send_replace(units);
                }
            }
        });
        // A client that has its answer finds the batch counted no more.
        self.running.fetch_sub(1, Ordering::Relaxed);
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
        if self.settings.verify {
            let moved = lane.moved_blocks();
            self.moved.fetch_add(moved, Ordering::Relaxed);
        }
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
                let expected = self.reference.checksum(batch.checked, job.request.seed);
                let right = expected == checksum && outcome.is_state_right;
                answer.right = Some(right);
                if !right {
                    self.wrong.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.served.fetch_add(1, Ordering::Relaxed);
            drop(job.reply.send(Ok(answer)));
        }
    }

    /// Returns the blocks that the next batch checks, and advances to the following ones.
    fn next_checked(&self) -> CheckedBlocks {
        let blocks = self.reference.blocks().len();
        let count = self.settings.check.min(blocks);
        if count == 0 {
            return CheckedBlocks { first: 0, count: 0 };
        }
        let turn = self.turn.fetch_add(count, Ordering::Relaxed);
        CheckedBlocks {
            first: turn % blocks,
            count,
        }
    }

    /// Marks the server as failed after a permanent failure.
    fn note<T>(&self, result: &Result<T, Failure>) {
        if let Err(failure) = result
            && failure.is_final()
        {
            self.fail(failure.clone());
        }
    }

    fn fail(&self, failure: Failure) {
        let mut condition = lock(&self.condition);
        // The first failure is the cause.
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

    /// Returns the unscaled time in ms, from whole ns, so that the division adds no digits.
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
            moved_blocks: count(&self.moved),
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

/// Marks the server as failed when its worker panics.
struct PanicGuard<'a>(&'a Server);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Failure::Worker);
            // Waiting clients receive an error: after the last worker nothing else empties the queue.
            self.0.queue.close();
            while let Some(next) = self.0.queue.next() {
                drop(next);
            }
        }
    }
}
