//! Device memory: where it comes from, how much of it the process may have, and what the program is told about it.
//!
//! Plain allocations (`cuMemAlloc`) are mappings of physical memory that this library makes itself ([`alloc`], [`free`]), so
//! that the memory behind an address can be taken away and put back. They look like the driver's own ([`query`], [`peers`],
//! [`ipc`]). Everything else stays the driver's and is counted ([`native`], [`pools`], [`program`]). The sum is held against
//! the limit of the pod ([`limit`]), and what the program is told of its device follows from it ([`info`]).
//!
//! # Locks
//!
//! All of them lie in one [`State`]. They are taken in this order, and a thread may leave any out:
//!
//! 1. `pools`: held over a call that lets a pool grow, so that growth has one author.
//! 2. `claims`: held over a question to the agent. Frees never wait for it.
//! 3. a device's `access`: shared while memory is mapped, alone while peers come and go.
//! 4. `ipc`, then a device's `table`; `contexts`, `native`, `program`: for moments. The driver is called under them only
//!    for what is short, like a question about an address, and never to wait for the device: an allocation does not wait
//!    for another thread's free.
//! 5. `arenas`, `account`: innermost; nothing is called under them.
//!
//! A thread that panics under a lock leaves what it has half done; [`crate::hook`] lets every call pass from then on.

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use crate::driver::{Address, Code};
use crate::hook::Hook;

mod account;
mod alloc;
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
mod short;
mod slabs;
mod spans;
mod spare;

pub(crate) use contexts::{context_gone, has_context};
pub(crate) use info::{View, held, view};
pub(crate) use limit::relinquish;
pub(crate) use spare::capture_begins;

/// The wrappers of all functions that have to do with memory.
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
    short::HOOKS,
];

/// `CUDA_ERROR_INVALID_CONTEXT`
const INVALID_CONTEXT: Code = 201;
/// Ordinals that are looked after; a machine has fewer.
const DEVICES_MAX: usize = 64;

/// A stretch of addresses that this library has reserved.
#[derive(Clone, Copy, Debug)]
struct Known {
    begin: Address,
    bytes: u64,
    device: usize,
}

/// Everything that there is to know. See the [module](self) for the order of its locks.
#[derive(Debug)]
struct State {
    devices: Vec<device::Slot>,
    arenas: RwLock<Vec<Known>>,
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

    /// What belongs to an ordinal.
    fn slot(&self, ordinal: c_int) -> Option<&device::Slot> {
        self.devices.get(usize::try_from(ordinal).ok()?)
    }

    /// The device in whose reserved addresses one lies.
    fn owner(&self, address: Address) -> Option<&device::Slot> {
        let arenas = self.arenas.read().unwrap_or_else(PoisonError::into_inner);
        let mut arenas = arenas.iter();
        let known = arenas.find(|known| address.wrapping_sub(known.begin) < known.bytes)?;
        self.devices.get(known.device)
    }
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());

/// The state of this process, made at the first call and never dropped.
fn state() -> &'static State {
    let there = STATE.load(Ordering::Acquire);
    // SAFETY: null, or a box that was leaked below.
    if let Some(there) = unsafe { there.as_ref() } {
        return there;
    }
    let new = Box::into_raw(Box::new(State::new()));
    let put = STATE.compare_exchange(
        std::ptr::null_mut(),
        new,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    let kept = match put {
        Ok(_null) => new,
        Err(other) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(new) });
            other
        }
    };
    // SAFETY: a leaked box, this thread's or that of the one that was first.
    unsafe { &*kept }
}

/// In the child of a fork, which has no use of the parent's memory: all is forgotten, and nothing dropped, because a thread
/// that the child does not have may hold any of the locks.
pub(crate) fn child() {
    STATE.store(std::ptr::null_mut(), Ordering::Release);
}

/// Takes a lock, also after a panic: see the [module](self).
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock if nobody has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Calls the driver where captures must not be disturbed: nothing is refused, and none is broken.
fn beside_captures<T>(call: impl FnOnce() -> T) -> T {
    if crate::capture::any() {
        crate::capture::relaxed(call)
    } else {
        call()
    }
}

/// Puts a result where the program wants it. It need not be aligned, and null means that it is not wanted.
fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not null, and the program says that a `T` may be written there.
        unsafe { to.write_unaligned(value) };
    }
}
