//! Nodes whose GPUs many functions share (papers 2): requests come to a node's queue, [`policy::pool`] says whose is
//! next, where it runs, from where its model comes and who gives way; this module lets the time pass that that takes.
//!
//! | module | models | source |
//! |---|---|---|
//! | [`hardware`] | models, links, slots: data | Torpor Tables 3, 4; workloads 9 |
//! | [`links`] | loads that share the path to the host | Torpor §5.3; workloads 9 |
//! | [`settings`] | which rules, which noise, which latencies of hops | M2.13–M2.21; workloads 10 |
//! | [`memory`] | memory in blocks, and what the device takes to give it | M2.10, M2.21 |
//! | [`swap_time`] | swaps in groups, as a whole or by the fitted law | M2.6 |
//! | [`mod@run`] | the loop over events | – |
//! | `groups` | nodes that are run apart from each other | – |
//! | `state` | what is known of nodes and their functions between events | – |
//! | `slots` | requests get slots, models come and give way | M2.1–M2.18 |
//! | `kept_alive` | processes that come and go by their functions' history | M2.21 |
//! | [`outcome`] | what is counted | M2.19, M2.20 |
//!
//! **A request's time.** Resident: the model's execution C. Swapped: max(transfer, C) + a from the moment it gets
//! the slot, for the groups of a model compute as they arrive (M2.6); [`Settings::swap_time`] has them
//! one by one. Memory is counted in bytes, or in blocks by [`Settings::memory`]. The slot is taken from then until the answer.
//! What a request costs beside that (gateway, activator, queue-proxy) is a latency each way that takes no slot.
//!
//! **Counting.** Requests that arrive in the warm-up are served and not counted. One that has no answer at the end is a
//! miss if its deadline is past, and is else left out (workloads 1).
//!
//! Memory grows with functions and with requests in flight, not with the length of the run.

mod groups;
pub mod hardware;
mod kept_alive;
pub mod links;
pub mod memory;
pub mod outcome;
pub mod run;
pub mod settings;
mod slots;
mod state;
pub mod swap_time;

pub use hardware::{Hardware, HardwareError, ModelTimes};
pub use memory::{MemoryRule, MemoryTimes};
pub use outcome::{FunctionOutcome, NodeOutcome, Outcome, Taken};
pub use run::{Counted, RunError, run};
pub use settings::{Hops, Hosting, Noise, Settings};
pub use swap_time::{CopyTimes, SwapTime};
