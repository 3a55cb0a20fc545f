//! Time, identifiers and shares as integers: what the crate `policy`, the device model and the crates around them have in common.
//!
//! Names never enter a decision: a caller numbers functions, slots and requests densely and keeps the names to itself. Times are
//! nanoseconds of the caller's own clock. There is no clock, no I/O and no dependency here.
//!
//! # Examples
//!
//! ```
//! use units::{Span, Time};
//!
//! let arrival = Time(5_000_000);
//! let deadline = arrival.after(Span::from_millis(200));
//! assert_eq!(deadline.since(arrival), Span(200_000_000));
//! assert_eq!(arrival.since(deadline), Span::ZERO, "a clock which was set back gives no negative span");
//! ```
#![forbid(unsafe_code)]

mod ids;
mod shares;
mod time;

pub use ids::{FunctionId, InstanceId, RequestId, SlotId};
pub use shares::{SHARE_WHOLE, SM_WHOLE};
pub use time::{Span, Time};
