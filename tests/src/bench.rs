//! What the benchmarks have in common: loads, a user container, and the processes of proxies.

pub mod app;
pub mod figures;
pub mod load;
pub mod process;
