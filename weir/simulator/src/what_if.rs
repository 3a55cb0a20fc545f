//! Answers what-if questions: which functions keep their objectives if they run with this load on that cluster, how busy the
//! GPUs are, what it costs, and what limits more load.
//!
//! | module | content |
//! |---|---|
//! | [`input`] | parsing of settings files: errors name file, line and key |
//! | [`cluster`] | nodes, GPUs, memory, links and price |
//! | [`functions`] | models and objectives of functions |
//! | [`load`] | a trace or a synthetic workload, read once for all runs |
//! | [`resolve`] | resolved settings of a function with requests |
//! | [`scenario`] | cluster, functions and load together, and one run of them |
//! | [`sweep`] | selection of runs: a range of values, several rules |
//! | [`answer`], [`seeds`] | results of a run, and of several seeds together |
//! | [`verdict`] | the answer in a sentence |
//! | [`limit`] | the binding limit, by rules documented there |
//! | [`table`], [`page`] | output of the answers for people |
//!
//! **Execution.** The execution time of a request is determined by [`functions::Times`]: by default a function has the mean
//! that the file of functions states, and its requests vary as the trace's service times or tokens do. The noise of
//! [`crate::node::Noise`] is added.
//!
//! **Memory.** 40 bytes for each request of the window, 32 for each while a run is judged, and 30 KB for each function
//! with requests; see [`load::REQUESTS_MAX`] and [`scenario::FUNCTIONS_MAX`].

pub mod answer;
pub mod cluster;
pub mod functions;
pub mod input;
mod judge;
pub mod limit;
pub mod load;
pub mod page;
pub mod resolve;
pub mod scenario;
pub mod seeds;
pub mod sweep;
pub mod table;
mod usage;
pub mod verdict;

pub use answer::{Answer, FunctionAnswer, Outcome, Runs};
pub use cluster::Cluster;
pub use functions::Functions;
pub use input::InputError;
pub use limit::{Binding, Limit};
pub use load::{Load, LoadError, Window};
pub use scenario::{Point, Scenario, WhatIfError};
pub use seeds::Seeds;
pub use sweep::{Axis, Sweep, SweepError};
pub use verdict::{Arrivals, Verdict, verdicts};
