//! Seeded random numbers, variables of random runs, waiting for conditions, executable scripts: what the tests of all members have in common. Only std.
//!
//! Deliberately absent: anything which knows Weir. Start reading in [`until()`].
//!
//! # Examples
//!
//! ```
//! use testing::{Random, until};
//!
//! let mut random = Random(7);
//! assert!(random.below(10) < 10);
//!
//! let mut attempts = 0;
//! until("three attempts", || {
//!     attempts += 1;
//!     attempts == 3
//! });
//! ```
#![forbid(unsafe_code)]

mod random;
mod script;
mod until;
pub mod variables;

pub use random::Random;
pub use script::write_script;
pub use until::{Condition, PATIENCE, until};
