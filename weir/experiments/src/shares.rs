//! The statements of FaST-GShare which can be examined in virtual time, each as a function from a seed to its number.
//!
//! Runs use the seeds [`SEED`] + 0..9 (workloads §1). The number for a claim is in the field whose doc names the claim.
//!
//! | module | shows | claims |
//! |---|---|---|
//! | `quotas` | share of their quotas that pods reach | S14, S17, the eight pods of §5.4 |
//! | `packing` | GPUs and memory that pods need | S06, S10, S11 |
//! | `load` | violations of the objective while pods follow a load | S07 |

mod load;
mod packing;
mod quotas;

pub use load::{LoadFollowing, follow};
pub use packing::{Batch, EIGHT, GpusNeeded, MemoryNeeded, batch, eight_pods, vit_huge};
pub use quotas::{
    EightPods, Influence, Isolation, Proportion, QuotaAttainment, eight, isolation, proportion,
};

/// Base seed of FaST-GShare's experiments (workloads §1).
pub const SEED: u64 = 20_230_807;
