//! Runs Weir's policy in virtual time.
//!
//! The [`policy`] crate makes all decisions; this crate models everything around them: arriving requests, the passing of
//! time and busy devices. The same scenario and seed give the same result on every machine.
//!
//! | module | content |
//! |---|---|
//! | [`agenda`] | event queue and virtual clock |
//! | [`generate`] | synthetic workloads |
//! | [`instance`] | one instance behind its queue-proxy, as the demo runs it |
//! | [`node`] | nodes with GPUs shared by many functions |
//! | [`random`] | independent streams of random numbers |
//! | [`report`] | results as one HTML page |
//! | [`routing`] | one function with several instances behind one router |
//! | [`rules`] | named sets of rules for running a node |
//! | [`shared`] | GPUs with SMs shared by many pods |
//! | [`statistics`] | statistics of one run and of several seeds |
//! | [`traces`] | reading and writing of recorded workloads |
//! | [`what_if`] | what-if questions about a user's functions on a given cluster |
#![forbid(unsafe_code)]

pub mod agenda;
pub mod generate;
pub mod instance;
pub mod node;
pub mod random;
pub mod report;
pub mod routing;
pub mod rules;
pub mod shared;
pub mod statistics;
pub mod traces;
pub mod what_if;
