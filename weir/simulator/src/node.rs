//! Nodes with GPUs shared by many functions (mechanisms §2). Requests enter a node's queue; [`policy::pool`] decides which function
//! runs next, on which slot, from where its model is loaded and which models are evicted; this module models the time that this
//! takes.
//!
//! | module | content | source |
//! |---|---|---|
//! | [`hardware`] | models, links and slots, as data | Torpor Tables 3, 4; workloads §9 |
//! | [`links`] | loads that share the path to the host | Torpor §5.3; workloads §9 |
//! | [`settings`] | rules, noise and latencies of hops | M2.13–M2.21; workloads §10 |
//! | [`memory`] | memory in blocks, and the cost of device calls | M2.10, M2.21 |
//! | [`swap_time`] | swaps in groups, as a whole or by the fitted law | M2.6 |
//! | [`mod@run`] | event loop | – |
//! | `groups` | groups of nodes simulated independently | – |
//! | `state` | state of nodes and their functions between events | – |
//! | `slots` | granting of slots, loading and eviction of models | M2.1–M2.18 |
//! | `ahead` | loads beside what computes | [`policy::pool::ahead`] |
//! | `kept_alive` | processes started and stopped by their functions' history | M2.21 |
//! | [`outcome`] | counters and results | M2.19, M2.20 |
//!
//! **A request's time.** Resident: the model's execution C. Swapped: max(transfer, C) + a from the moment at which it gets
//! the slot, since the groups of a model compute as they arrive (M2.6); [`Settings::swap_time`] can simulate them
//! one by one. Memory is counted in bytes, or in blocks, by [`Settings::memory`]. The slot is taken from then until the answer.
//! Other costs of a request (gateway, activator, queue-proxy) are a latency in each direction that takes no slot.
//!
//! **Counting.** Requests that arrive in the warm-up are served and not counted. A request without an answer at the end is a
//! miss if its deadline is past, and is otherwise left out (workloads §1).
//!
//! Memory grows with the number of functions and of requests in flight, not with the length of the run.

mod ahead;
mod groups;
pub mod hardware;
mod kept_alive;
pub mod links;
pub mod memory;
pub mod outcome;
pub mod run;
pub mod settings;
mod setup;
mod slots;
mod state;
pub mod swap_time;

pub use hardware::{Hardware, HardwareError, ModelTimes};
pub use memory::{MemoryRule, MemoryTimes};
pub use outcome::{FunctionOutcome, NodeOutcome, Occupancy, Outcome};
pub use run::{CountedSpan, RunError, run};
pub use settings::{Hops, Hosting, Noise, Settings};
pub use swap_time::{CopyTimes, SwapTime};
