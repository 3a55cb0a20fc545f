//! GPUs with SMs shared by many pods (mechanisms §4). [`policy::tokens`] decides which pod may launch kernels and when,
//! [`policy::rectangles`] on which GPU it is placed, and [`policy::scaling`] how many pods of which shape there are; this module
//! models the time that kernels, messages and cold starts take.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`models`] | models, their memory, GPUs and gates, as data | FaST-GShare §5; workloads §8, §9 |
//! | [`gpu`] | processes on one GPU: gates, messages, speed | M4.5–M4.9; workloads §8 |
//! | [`profile`] | throughput and latency of a pod by its shape | M4.2, M4.3; mechanisms §4.5 |
//! | [`settings`] | rules for running, starting and stopping pods | M4.7–M4.13, M4.17 |
//! | [`run`] | requests, pods, and the event loop | – |
//! | [`outcome`] | counters and results | – |
//!
//! **A request** is a burst of work of one pod, which executes one at a time: 1 / T1 at full speed. Its speed depends on the
//! pod's SMs and on the pods that run beside it. Proportionality to quotas is a result of the tokens, not of a formula.
//!
//! **Requests** come from closed loops, or from a workload: then each is assigned on arrival to the ready pod of its function
//! with the fewest requests.
//!
//! Memory grows with the number of GPUs, pods and requests in flight, not with the length of the run.

pub mod gpu;
pub mod models;
pub mod outcome;
mod pods;
pub mod profile;
pub mod run;
pub mod settings;

pub use models::Models;
pub use outcome::{FunctionOutcome, Outcome, PodOutcome};
pub use run::{Loop, RunError, loops, serve};
pub use settings::{Choice, CountedSpan, Lending, Noise, Scaling, Settings};
