//! What the operations on memory share: the state of a process, and its locks.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

use preload_state::memory::{
    Account, Allocation, Backing, Contexts, Natives, OpenedBlocks, Pools, Program, Ranges, Table,
    ordinals,
};

use crate::cuda::{Address, Handle};
use crate::residency::Moves;

/// State of one device.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) ordinal: c_int,
    /// Shared while memory is mapped, exclusive while peers change, so that every mapping gets the current peers.
    pub(super) access: RwLock<()>,
    pub(super) table: Mutex<Table>,
}

impl Slot {
    pub(super) fn new(ordinal: c_int) -> Self {
        Self {
            ordinal,
            access: RwLock::default(),
            table: Mutex::default(),
        }
    }
}

/// Block that other processes may map.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) id: u64,
    pub(super) list: File,
    /// Descriptors in the list, which stay open with it.
    #[cfg_attr(not(test), expect(dead_code, reason = "kept open alone"))]
    pub(super) files: Vec<OwnedFd>,
}

/// Tickets for inter-process handles, which this process has offered or opened; see [`super::ipc`].
#[derive(Debug, Default)]
pub(super) struct Tickets {
    pub(super) offers: BTreeMap<Address, Offer>,
    pub(super) opened: OpenedBlocks,
}

impl Tickets {
    /// Returns the list of each block that other processes may map, and the descriptors in it.
    #[cfg(test)]
    pub(super) fn files(&self) -> impl Iterator<Item = (&File, &[OwnedFd])> {
        let offers = self.offers.values();
        offers.map(|offer| (&offer.list, offer.files.as_slice()))
    }
}

/// First buffer id. The driver numbers its allocations from 1, so these ids differ from them.
const FIRST_ID: u64 = 1 << 48;

/// Memory state of a process. See the [module](super) for the order of its locks.
#[derive(Debug)]
pub struct Memory {
    pub(super) devices: Vec<Slot>,
    pub(super) ranges: RwLock<Ranges>,
    pub(super) account: Mutex<Account>,
    pub(super) claims: Mutex<()>,
    pub(super) contexts: Mutex<Contexts>,
    pub(super) native: Mutex<Natives>,
    pub(super) pools: Mutex<Pools>,
    pub(super) program: Mutex<Program>,
    pub(super) ipc: Mutex<Tickets>,
    /// Taken before the tables: held over a move.
    pub(super) moves: Mutex<Moves>,
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
            devices: ordinals().map(Slot::new).collect(),
            ranges: RwLock::default(),
            account: Mutex::default(),
            claims: Mutex::default(),
            contexts: Mutex::default(),
            native: Mutex::default(),
            pools: Mutex::default(),
            program: Mutex::default(),
            ipc: Mutex::default(),
            moves: Mutex::default(),
            next_id: AtomicU64::new(FIRST_ID),
        }
    }

    /// Returns the state of a device; `None` if the ordinal is out of range.
    pub(super) fn slot(&self, ordinal: c_int) -> Option<&Slot> {
        self.devices.get(usize::try_from(ordinal).ok()?)
    }

    /// Returns the device in whose reserved ranges the address is; `None` if it is in none.
    pub(super) fn owner(&self, address: Address) -> Option<&Slot> {
        let owner = self
            .ranges
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .owner(address);
        self.slot(owner?)
    }

    pub(super) fn allocation(
        &self,
        requested: u64,
        context: Handle,
        backing: Backing,
    ) -> Allocation {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Allocation::new(id, requested, context, backing)
    }
}

/// Takes a lock, even if it is poisoned: see the [module](super).
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock if it is free; poisoned locks count as free.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
