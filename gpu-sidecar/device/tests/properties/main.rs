//! Invariants of a machine under arbitrary commands.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compute;
mod driver;
mod earliest_end;
mod machine;
