//! Device memory: allocation, accounting against the pod's limit, and the amounts reported to the program.
//!
//! Plain allocations (`cuMemAlloc`) are mappings of physical memory that this library creates ([`alloc`], [`free`]), so that the
//! memory behind an address can be moved away and back. They have the properties of the driver's own allocations ([`query`],
//! [`peers`], [`ipc`]). All other memory stays the driver's and is counted ([`native`], [`pools`], [`program`]). The sum is kept
//! within the pod's limit (`limit`), which also determines the amounts reported to the program ([`info`]).
//!
//! # Locks
//!
//! All locks are in one [`Memory`]. They are taken in this order, and a thread may skip any:
//!
//! 1. `pools`: held over a call that may grow a pool, so that growth is attributed to one call.
//! 2. `claims`: held during a request to the agent. Frees never wait for it.
//! 3. `moves`: held over a move.
//! 4. a device's `access`: shared while memory is mapped, exclusive while peers change.
//! 5. `ipc`, then a device's `table`; `contexts`, `native`, `program`: held briefly. Under them the driver is called only for
//!    short operations, such as a query of an address, and never to wait for the device: an allocation does not wait for
//!    another thread's free.
//! 6. `ranges`, `account`: innermost; nothing is called under them.
//!
//! A thread that panics under a lock leaves its operation incomplete; the library then passes every later call to the driver.

pub mod alloc;
pub mod contexts;
mod current;
mod device;
pub(crate) mod extents;
pub mod free;
pub mod info;
pub mod ipc;
mod limit;
pub mod make;
mod measure;
mod movable;
pub mod native;
pub mod peers;
mod physical;
pub mod pools;
pub mod program;
pub mod query;
mod release;
pub mod spare;
mod state;
#[cfg(test)]
mod tests;
mod tickets;

pub(crate) use movable::{
    MovableBlock, MovableDevice, away, create_block, finish_block, fixed, give_up_spare,
    has_imported, has_other_access, is_exported, is_of_program, movable, moves, ranges_of,
    release_block, total_of_kind,
};
pub use state::Memory;
#[cfg(test)]
use state::lock;
