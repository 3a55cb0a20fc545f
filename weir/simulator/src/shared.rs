//! GPUs whose SMs many pods share (papers 4): [`policy::tokens`] says which pod may launch when, [`policy::rectangles`] on which
//! GPU it is, [`policy::scaling`] how many pods of which shape there are; this module lets the time pass that kernels,
//! messages and cold starts take.
//!
//! | module | models | source |
//! |---|---|---|
//! | [`models`] | models, their memory, GPUs, gates: data | FaST-GShare §5; workloads 8, 9 |
//! | [`gpu`] | processes on one GPU: gates, messages, speed | M4.5–M4.9; workloads 8 |
//! | [`profile`] | what a shape of pod serves, and how fast | M4.2, M4.3; papers 4.5 |
//! | [`settings`] | by which rules pods run, come and go | M4.7–M4.13, M4.17 |
//! | [`run`] | requests, pods, the loop over events | – |
//! | [`outcome`] | what is counted | – |
//! | [`experiments`] | the paper's statements, a number per seed | FaST-GShare §5.2–§5.5 |
//!
//! **A request** is a burst of work of one pod, which runs one at a time: 1 / T1 at full speed. Its speed depends on the
//! pod's SMs and on who runs beside it. What is proportional to a quota is so because of tokens, not by a formula.
//!
//! **Requests** come from closed loops, or from a workload: then each goes to the ready pod of its function with the
//! fewest requests, and stays there.
//!
//! Memory grows with GPUs, pods and requests in flight, not with the length of the run.

pub mod experiments;
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
pub use settings::{Choice, Counted, Lending, Noise, Scaling, Settings};
