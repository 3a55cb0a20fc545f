//! The statements of FaST-GShare that virtual time can show, each as a function from a seed to its number.
//!
//! Run under seeds [`SEED`] + 0..9 (workloads 1). What a claim needs is in the field that its comment names.
//!
//! | module | shows | claims |
//! |---|---|---|
//! | `quotas` | what pods get of their quotas | S14, S17, the eight pods of §5.4 |
//! | `packing` | GPUs and memory that pods need | S06, S10, S11 |
//! | `load` | violations while pods follow a load | S07 |

mod load;
mod packing;
mod quotas;

pub use load::{Followed, follow};
pub use packing::{Batch, EIGHT, GpusNeeded, Shared, batch, eight_pods, vit_huge};
pub use quotas::{Eight, Influence, Isolation, Proportion, Reached, eight, isolation, proportion};

/// The base seed of FaST-GShare (workloads 1).
pub const SEED: u64 = 20_230_807;
