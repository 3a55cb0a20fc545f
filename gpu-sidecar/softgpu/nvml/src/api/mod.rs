//! Supported NVML functions, by their exported names.

mod board;
mod clocks;
mod errors;
mod events;
mod identity;
mod links;
mod memory;
mod mig;
mod processes;
mod system;
mod utilisation;

use crate::answer::Answer;
use crate::pointer::{Out, Slots};

/// Writes a list for functions that are first called with a count of 0: then only the number of values is written,
/// without an error.
fn put_up_to<T: Copy>(count: Out<u32>, slots: Slots<T>, values: &[T]) -> Answer {
    if slots.is_null() || count.get()? == 0 {
        return count.put(u32::try_from(values.len()).unwrap_or(u32::MAX));
    }
    slots.put_counted(count, values)
}
