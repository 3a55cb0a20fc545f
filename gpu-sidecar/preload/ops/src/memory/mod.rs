//! Device memory: allocation, accounting against the pod's limit, and the amounts reported to the program.
//!
//! Plain allocations (`cuMemAlloc`) are mappings of physical memory that this library creates ([`alloc`], [`free`]), so that the
//! memory behind an address can be moved away and back. They have the properties of the driver's own allocations ([`query`],
//! [`peers`], [`ipc`]). All other memory stays the driver's and is counted ([`native`], [`pools`], [`program`]). The sum is kept
//! within the pod's limit ([`limit`]), which also determines the amounts reported to the program ([`info`]).
//!
//! # Locks
//!
//! All locks are in one [`Memory`]. They are taken in this order, and a thread may skip any:
//!
//! 1. `pools`: held over a call that may grow a pool, so that growth is attributed to one call.
//! 2. `claims`: held during a request to the agent. Frees never wait for it.
//! 3. a device's `access`: shared while memory is mapped, exclusive while peers change.
//! 4. `ipc`, then a device's `table`; `contexts`, `native`, `program`: held briefly. Under them the driver is called only for
//!    short operations, such as a query of an address, and never to wait for the device: an allocation does not wait for
//!    another thread's free.
//! 5. `ranges`, `account`: innermost; nothing is called under them.
//!
//! A thread that panics under a lock leaves its operation incomplete; the library then passes every later call to the driver.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use preload_state::memory::{
    Account, Allocation, Backing, Contexts, Natives, Pools, Program, Ranges, ordinals,
};

use crate::cuda::{Address, Handle};

pub mod alloc;
pub mod contexts;
mod device;
pub mod free;
pub mod info;
pub mod ipc;
pub mod limit;
pub mod native;
pub mod peers;
mod physical;
pub mod pools;
pub mod program;
pub mod query;
pub mod spare;
#[cfg(test)]
mod tests;

/// First buffer id. The driver numbers its allocations from 1, so these ids differ from them.
const FIRST_ID: u64 = 1 << 48;

/// Memory state of a process. See the [module](self) for the order of its locks.
#[derive(Debug)]
pub struct Memory {
    devices: Vec<device::Slot>,
    ranges: RwLock<Ranges>,
    account: Mutex<Account>,
    claims: Mutex<()>,
    contexts: Mutex<Contexts>,
    native: Mutex<Natives>,
    pools: Mutex<Pools>,
    program: Mutex<Program>,
    ipc: Mutex<ipc::Tickets>,
    next_id: AtomicU64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Creates the state of a process that holds no memory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            devices: ordinals().map(device::Slot::new).collect(),
            ranges: RwLock::default(),
            account: Mutex::default(),
            claims: Mutex::default(),
            contexts: Mutex::default(),
            native: Mutex::default(),
            pools: Mutex::default(),
            program: Mutex::default(),
            ipc: Mutex::default(),
            next_id: AtomicU64::new(FIRST_ID),
        }
    }

    /// Returns the state of a device; `None` if the ordinal is out of range.
    fn slot(&self, ordinal: c_int) -> Option<&device::Slot> {
        self.devices.get(usize::try_from(ordinal).ok()?)
    }

    /// Returns the device in whose reserved ranges the address is; `None` if it is in none.
    fn owner(&self, address: Address) -> Option<&device::Slot> {
        let owner = self
            .ranges
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .owner(address);
        self.slot(owner?)
    }

    fn allocation(&self, requested: u64, context: Handle, backing: Backing) -> Allocation {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Allocation::new(id, requested, context, backing)
    }
}

/// Takes a lock, even if it is poisoned: see the [module](self).
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock if it is free; poisoned locks count as free.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
