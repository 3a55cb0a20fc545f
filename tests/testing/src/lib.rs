//! Seeded random numbers and waiting for conditions: what the tests of all members have in common. Only std.
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
mod until;

pub use random::Random;
pub use until::{Condition, PATIENCE, until};
