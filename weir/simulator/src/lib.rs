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
//!
//! Deliberately absent: decisions, which are `policy`'s, and the papers' experiments, which are `experiments`'. Start reading in
//! [`instance`].
//!
//! # Examples
//!
//! Fifteen minutes of twenty functions on a node of four GPUs:
//!
//! ```
//! use policy::Time;
//! use simulator::generate::{generate, preset};
//! use simulator::node::{self, CountedSpan, Hardware, Settings};
//! use simulator::random::Streams;
//! use simulator::statistics::Percentile;
//!
//! let mut workload = preset("torpor-node")?.spec();
//! workload.functions = 20;
//! let span = CountedSpan { from: Time::ZERO, to: Time::ZERO.after(workload.length()), keep: 0 };
//! let streams = Streams::new(&workload.experiment, workload.seed);
//! let requests = generate(&workload)?;
//! let outcome = node::run(&Hardware::torpor(), &Settings::default(), requests, span, &streams, &mut |_, _| true)?;
//! assert_eq!(outcome.compliant(Percentile::P98), 20, "all keep their objectives");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
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
