//! What if these functions, with this load, ran on that cluster? Who keeps its objective, what the GPUs do meanwhile,
//! what it costs, and what stands in the way of more.
//!
//! | module | what |
//! |---|---|
//! | [`place`] | files of settings: an error names file, line and key |
//! | [`cluster`] | nodes, GPUs, memory, links, price |
//! | [`functions`] | models and objectives, by function |
//! | [`load`] | a trace or a made-up workload, read once for all runs |
//! | [`called`] | what a function is, of all that is said of it |
//! | [`scenario`] | all three together, and one run of them |
//! | [`sweep`] | which runs: a value that goes through a range, several rules |
//! | [`answer`], [`seeds`] | what came of a run, and of several seeds together |
//! | [`verdict`] | the answer in a sentence |
//! | [`limit`] | what stands in the way, by rules that are written down there |
//! | [`table`], [`page`] | the answers for people |
//!
//! **Execution.** What a request executes is told by [`functions::Times`]: as a rule a function keeps the mean that the file
//! of functions states, and its requests differ as the trace's service times or tokens do. The noise of
//! [`crate::node::Noise`] is added.
//!
//! **Memory.** 40 bytes for each request of the window, 32 for each while a run is judged, and 30 KB for each function
//! that is called; see [`load::REQUESTS_MAX`] and [`scenario::FUNCTIONS_MAX`].

pub mod answer;
pub mod called;
pub mod cluster;
pub mod functions;
mod judge;
pub mod limit;
pub mod load;
pub mod page;
pub mod place;
pub mod scenario;
pub mod seeds;
pub mod sweep;
pub mod table;
pub mod verdict;

pub use answer::{Answer, FunctionAnswer, Outcome, Runs};
pub use cluster::Cluster;
pub use functions::Functions;
pub use limit::{Binding, Limit};
pub use load::{Load, LoadError, Window};
pub use place::InputError;
pub use scenario::{Point, Scenario, WhatIfError};
pub use seeds::Seeds;
pub use sweep::{Axis, Sweep, SweepError};
pub use verdict::{Arrivals, Verdict, verdicts};
