//! Weir's decisions in virtual time.
//!
//! The [`policy`] crate decides; this crate has what policy does not know: requests that arrive, time that passes,
//! devices that are busy. The same scenario and seed give the same result on every machine.
//!
//! | module | what |
//! |---|---|
//! | [`agenda`] | events in the order of time |
//! | [`claims`] | what the papers say, and whether it comes out here |
//! | [`experiments`] | the papers' experiments |
//! | [`generate`] | workloads made up by rule |
//! | [`instance`] | one instance behind its queue-proxy, as the demo runs it |
//! | [`node`] | nodes whose GPUs many functions share |
//! | [`optimum`] | how far policies are from the best possible |
//! | [`random`] | random numbers in streams of their own |
//! | [`report`] | the whole result as one page |
//! | [`routing`] | one function with several instances behind one router |
//! | [`rules`] | by what rules a node is run |
//! | [`shared`] | GPUs whose SMs many pods share |
//! | [`statistics`] | what came of a run, and of several seeds |
//! | [`traces`] | recorded workloads, read and written |
//! | [`what_if`] | users' own functions on a cluster of their own |
#![forbid(unsafe_code)]

pub mod agenda;
pub mod claims;
pub mod experiments;
pub mod generate;
pub mod instance;
pub mod node;
pub mod optimum;
pub mod random;
pub mod report;
pub mod routing;
pub mod rules;
pub mod shared;
pub mod statistics;
pub mod traces;
pub mod what_if;
