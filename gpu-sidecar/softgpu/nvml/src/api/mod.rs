//! The functions of NVML that are here, by their names.

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
use crate::border::{Out, Slots};

/// Puts a list where callers first ask, with room for none, how many there are: `count` becomes that, and no error.
fn put_up_to<T: Copy>(count: Out<u32>, slots: Slots<T>, values: &[T]) -> Answer {
    if slots.is_null() || count.get()? == 0 {
        return count.put(u32::try_from(values.len()).unwrap_or(u32::MAX));
    }
    slots.put_counted(count, values)
}
