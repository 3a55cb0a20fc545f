//! Device memory: allocation, accounting against the pod's limit, and the amounts reported to the program.
//!
//! Plain allocations (`cuMemAlloc`) are mappings of physical memory that this library creates ([`alloc`], [`free`]), so that the
//! memory behind an address can be moved away and back. They have the properties of the driver's own allocations ([`query`],
//! [`peers`], [`ipc`]). All other memory stays the driver's and is counted ([`native`], [`pools`], [`program`]). The sum is kept
//! within the pod's limit ([`limit`]), which also determines the amounts reported to the program ([`info`]).
//!
//! # Locks
//!
//! All locks are in one [`State`]. They are taken in this order, and a thread may skip any:
//!
//! 1. `pools`: held over a call that may grow a pool, so that growth is attributed to one call.
//! 2. `claims`: held during a request to the agent. Frees never wait for it.
//! 3. a device's `access`: shared while memory is mapped, exclusive while peers change.
//! 4. `ipc`, then a device's `table`; `contexts`, `native`, `program`: held briefly. Under them the driver is called only for
//!    short operations, such as a query of an address, and never to wait for the device: an allocation does not wait for
//!    another thread's free.
//! 5. `arenas`, `account`: innermost; nothing is called under them.
//!
//! A thread that panics under a lock leaves its operation incomplete; [`crate::hook`] passes every later call to the driver.

use crate::host::Host;
use preload_ops::capture;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use crate::context::context;
use crate::driver::Address;
use crate::hook::Hook;

mod account;
mod alloc;
mod api32;
mod contexts;
mod device;
mod free;
mod info;
mod ipc;
mod limit;
mod native;
mod peers;
mod physical;
mod pools;
mod program;
mod query;
mod slabs;
mod spans;
mod spare;

pub(crate) use contexts::{context_destroyed, has_context};
pub(crate) use info::{View, held, view};
pub(crate) use limit::relinquish;
pub(crate) use spare::before_capture;

/// Wrappers of all functions that concern memory.
pub(crate) static HOOKS: &[&[Hook]] = &[
    alloc::HOOKS,
    free::HOOKS,
    query::HOOKS,
    peers::HOOKS,
    ipc::HOOKS,
    native::HOOKS,
    pools::HOOKS,
    program::HOOKS,
    info::HOOKS,
    api32::HOOKS,
];

/// Number of device ordinals that are managed; machines have fewer devices.
const DEVICES_MAX: usize = 64;

/// Range of addresses that this library has reserved, and the ordinal of its device.
#[derive(Clone, Copy, Debug)]
struct ReservedRange {
    begin: Address,
    bytes: u64,
    device: usize,
}

/// Memory state of the process. See the [module](self) for the order of its locks.
#[derive(Debug)]
pub(crate) struct State {
    devices: Vec<device::Slot>,
    arenas: RwLock<Vec<ReservedRange>>,
    account: Mutex<account::Account>,
    claims: Mutex<()>,
    contexts: Mutex<contexts::Contexts>,
    native: Mutex<native::Natives>,
    pools: Mutex<pools::Pools>,
    program: Mutex<program::Program>,
    ipc: Mutex<ipc::Tickets>,
}

impl State {
    fn new() -> Self {
        let ordinals = 0..c_int::try_from(DEVICES_MAX).unwrap_or(0);
        Self {
            devices: ordinals.map(device::Slot::new).collect(),
            arenas: RwLock::default(),
            account: Mutex::default(),
            claims: Mutex::default(),
            contexts: Mutex::default(),
            native: Mutex::default(),
            pools: Mutex::default(),
            program: Mutex::default(),
            ipc: Mutex::default(),
        }
    }

    /// Returns the state of a device; `None` if the ordinal is out of range.
    fn slot(&self, ordinal: c_int) -> Option<&device::Slot> {
        self.devices.get(usize::try_from(ordinal).ok()?)
    }

    /// Returns the device in whose reserved ranges the address is; `None` if it is in none.
    fn owner(&self, address: Address) -> Option<&device::Slot> {
        let arenas = self.arenas.read().unwrap_or_else(PoisonError::into_inner);
        let mut arenas = arenas.iter();
        let known = arenas.find(|known| address.wrapping_sub(known.begin) < known.bytes)?;
        self.devices.get(known.device)
    }
}

/// Returns the state of this process, created at the first call and never dropped.
fn state() -> &'static State {
    let existing = context().memory.load(Ordering::Acquire);
    // SAFETY: null, or a box that was leaked below.
    if let Some(existing) = unsafe { existing.as_ref() } {
        return existing;
    }
    let new = Box::into_raw(Box::new(State::new()));
    let put = context().memory.compare_exchange(
        std::ptr::null_mut(),
        new,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    let kept = match put {
        Ok(_null) => new,
        Err(other) => {
            // SAFETY: created above and not shared with another thread.
            drop(unsafe { Box::from_raw(new) });
            other
        }
    };
    // SAFETY: a leaked box, from this thread or from the one that stored it first.
    unsafe { &*kept }
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

/// Calls the driver in relaxed capture mode while any stream captures, so that the call neither fails nor invalidates a capture.
fn beside_captures<T>(call: impl FnOnce() -> T) -> T {
    capture::relaxed(Host, call)
}

/// Writes a result to the program's memory, which need not be aligned. Does nothing if the pointer is null.
fn write_out<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the program guarantees that a `T` may be written there.
        unsafe { to.write_unaligned(value) };
    }
}
