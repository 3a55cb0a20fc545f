//! Shared parts of the benchmarks: loads, a user container, and the proxies' processes.

pub mod app;
mod command;
mod configurations;
pub mod figures;
pub mod load;
pub mod process;
pub mod quota;
