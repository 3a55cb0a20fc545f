//! What the benchmarks have in common: loads, a user container, and the processes of proxies.

pub mod app;
mod command;
mod configurations;
pub mod figures;
pub mod load;
pub mod process;
pub mod quota;
